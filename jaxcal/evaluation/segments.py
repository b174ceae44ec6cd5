"""The segment-average baseline: a document's vector as the mean of the vectors of its parts.

Axis letters: N texts, T tokens, D width.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxcal.encoder import Encoder, normalised
from jaxcal.errors import InvalidSetting


def encode_segments(
    encoder: Encoder, texts: Sequence[str], size: int, prompt: str = ""
) -> tuple[Float[np.ndarray, "n d"], Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Encode texts as averages of their segments: `size` content tokens with special tokens and prompt of their own.

    Each segment's vector is normalised, the plain mean is taken, and normalised again. The paper (arXiv 2606.02737)
    compares with "Segment Embed Average" without these details, so they are ours. Tokens beyond the encoder's maximum
    length are left out, as when the text is encoded whole: both see the same part of a document.

    Returns:
        Vectors [N, D], and the tokens [N] and truncation [N] of the whole text, prompt included.

    Raises:
        InvalidSetting: size is below 1, or a segment with its prompt is longer than the encoder takes.
    """
    if size < 1:
        raise InvalidSetting(f"a segment has {size} tokens; it needs at least one.")
    first, last = special_tokens(encoder)
    lead = _content(encoder.tokenize([prompt])[0], first, last) if prompt else first[:0]
    if len(first) + len(lead) + size + len(last) > encoder.max_length:
        raise InvalidSetting(
            f"a segment of {size} tokens with prompt and special tokens is longer than the {encoder.max_length} tokens "
            "of this encoder; choose smaller segments."
        )
    whole = encoder.tokenize(texts, prompt=prompt)
    cut = encoder.count_tokens([prompt + text for text in texts]) > encoder.max_length
    segments, owner = [], []
    for number, ids in enumerate(whole):
        content = _content(ids, first, last)[len(lead) :]
        for start in range(0, max(len(content), 1), size):
            segments.append(np.concatenate([first, lead, content[start : start + size], last]))
            owner.append(number)
    vectors = normalised(encoder.encode_ids(segments))
    sums = np.zeros((len(whole), vectors.shape[1]), np.float64)
    np.add.at(sums, owner, vectors)
    return normalised(sums).astype(np.float32), np.array([len(ids) for ids in whole], np.int32), cut


def special_tokens(encoder: Encoder) -> tuple[np.ndarray, np.ndarray]:
    """The special tokens that this encoder's tokenizer puts before and after a text."""
    # What an empty text has is special; the part of it that a text with content begins with stands before.
    empty, text = encoder.tokenize(["", "a"])
    before = 0
    while before < min(len(empty), len(text) - 1) and empty[before] == text[before]:
        before += 1
    return empty[:before], empty[before:]


def _content(ids: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    return ids[len(first) : len(ids) - len(last)]
