"""BM25, the lexical baseline, by the library bm25s.

Words are runs of letters and digits in lower case; a Chinese character or Japanese kana is a word by itself, because
those scripts put no space between words. No stop words, no stemming, so that every language is treated alike; k1 = 1.5
and b = 0.75, the library's defaults ("lucene" form).

Axis letters: P passages.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxcal.errors import MissingDependency

_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
SETTINGS = {"library": "bm25s", "form": "lucene", "k1": 1.5, "b": 0.75, "words": _WORD.pattern}


def words(text: str) -> list[str]:
    """The words of a text, as BM25 counts them."""
    return _WORD.findall(text.lower())


class Bm25:
    """An index of passages.

    Raises:
        MissingDependency: bm25s is not installed.
    """

    def __init__(self, passages: Sequence[str]):
        numbers: dict[str, int] = {}
        ids = [[numbers.setdefault(word, len(numbers)) for word in words(text)] for text in passages]
        self._numbers, self._passages = numbers, len(passages)
        self._index = _library().BM25(method="lucene", k1=SETTINGS["k1"], b=SETTINGS["b"])
        if numbers:
            self._index.index((ids, numbers), show_progress=False)

    def scores(self, query: str) -> Float[np.ndarray, " p"]:
        """The scores [P] of all passages for a query; a query without a known word scores 0 everywhere."""
        known = [self._numbers[word] for word in words(query) if word in self._numbers]
        if not known:
            return np.zeros(self._passages, np.float32)
        return self._index.get_scores_from_ids(known)


def _library() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise MissingDependency("the BM25 baseline needs bm25s: install jaxcal[evaluation].") from error
    return bm25s
