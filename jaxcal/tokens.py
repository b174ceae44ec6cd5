"""Texts to token ids: what a text must be, truncation that is counted, and lengths.

Axis letters: N texts, T tokens.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from tokenizers import Tokenizer

from jaxcal.errors import InvalidInput

# Texts are tokenised in portions, so that a million of them never stand in memory as the tokenizer's objects.
_PORTION = 4096


def checked_texts(texts: Iterable[Any]) -> list[str]:
    """Return the texts as a list.

    Raises:
        InvalidInput: one of them is not a string, or holds half a surrogate pair; names its index.
    """
    if isinstance(texts, bytes | dict) or not isinstance(texts, Iterable):
        raise InvalidInput(
            f"texts is of the type {type(texts).__name__}; it must be a string or a sequence of strings."
        )
    listed = list(texts)
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise InvalidInput(f"text {index} is of the type {type(text).__name__}; it must be a string.")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidInput(
                    f"text {index} holds a lone surrogate at character {error.start}, which is not Unicode text; "
                    "decode its source with errors='replace'."
                ) from None
    return listed


def tokenize(
    tokenizer: Tokenizer, texts: Sequence[str], limit: int, vocab_size: int
) -> tuple[list[Int[np.ndarray, " t"]], Bool[np.ndarray, " n"]]:
    """Token ids with special tokens, at most `limit` of them, and which texts [N] were cut there.

    Raises:
        InvalidInput: a text gives no token, or one beyond the vocabulary; names its index.
    """
    tokenizer.enable_truncation(limit)
    ids, cut = [], np.zeros(len(texts), bool)
    for start in range(0, len(texts), _PORTION):
        for index, encoding in enumerate(tokenizer.encode_batch(texts[start : start + _PORTION]), start):
            if not encoding.ids:
                raise InvalidInput(f"text {index} gives no token at all; this tokenizer adds no special tokens.")
            if max(encoding.ids) >= vocab_size:
                raise InvalidInput(
                    f"text {index} has a token beyond the model's vocabulary of {vocab_size}; tokenizer and weights do "
                    "not belong together."
                )
            ids.append(np.asarray(encoding.ids, np.int32))
            cut[index] = bool(encoding.overflowing)
    return ids, cut


def count_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> Int[np.ndarray, " n"]:
    """Tokens of each text, special tokens included, nothing truncated."""
    tokenizer.no_truncation()
    portions = (texts[start : start + _PORTION] for start in range(0, len(texts), _PORTION))
    counts = [len(encoding.ids) for portion in portions for encoding in tokenizer.encode_batch(portion)]
    return np.array(counts, np.int32)
