"""Which texts are encoded together, and in what shape.

Texts are sorted by their true token count, longest first, and cut into batches of about equal area. Lengths are
rounded up to a bucket and the number of texts of a last, partial batch to a power of two, so that a corpus meets few
shapes and each shape is compiled once.

Axis letters: N texts in a batch, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

# Eight buckets per octave keep rounding below 1/8 of a text, about 4 % on average.
_STEPS_PER_OCTAVE = 8
_SHORTEST = 8


def bucket(length: int, limit: int | None = None) -> int:
    """The padded length of a text of `length` tokens: a multiple of an eighth of the octave, at most `limit`."""
    octave = 1 << (length - 1).bit_length() >> 1  # the power of two below
    step = max(_SHORTEST, octave // _STEPS_PER_OCTAVE)
    rounded = -(-length // step) * step
    return rounded if limit is None else max(min(rounded, limit), length)


@dataclass(frozen=True)
class Batch:
    """Texts encoded together, by their indices, and the shape [N, T] they are padded to."""

    texts: tuple[int, ...]
    shape: tuple[int, int]


def plan_batches(lengths: Sequence[int], batch_tokens: int, limit: int | None = None) -> list[Batch]:
    """Batches of at most `batch_tokens` tokens, padding included (one text at least), longest texts first.

    Args:
        lengths: tokens of each text.
        batch_tokens: the area N T of a batch.
        limit: the longest padded length the model takes, in tokens.
    """
    order = sorted(range(len(lengths)), key=lambda text: -lengths[text])
    batches, start = [], 0
    while start < len(order):
        length = bucket(lengths[order[start]], limit)
        full = max(batch_tokens // length, 1)
        texts = tuple(order[start : start + full])
        rows = min(1 << (len(texts) - 1).bit_length(), full)
        batches.append(Batch(texts, (rows, length)))
        start += len(texts)
    return batches


def pad(
    ids: Sequence[np.ndarray], batch: Batch, pad_token: int
) -> tuple[Int[np.ndarray, "n t"], Bool[np.ndarray, "n t"]]:
    """Token ids and mask of a batch, [N, T], right-padded; rows that stand for no text hold one padding token."""
    tokens = np.full(batch.shape, pad_token, np.int32)
    mask = np.zeros(batch.shape, bool)
    mask[len(batch.texts) :, 0] = True
    for row, text in enumerate(batch.texts):
        tokens[row, : len(ids[text])] = ids[text]
        mask[row, : len(ids[text])] = True
    return tokens, mask


def _per_text(kind: type) -> Any:
    """A field of one value a text, empty before the first run; too long to print, and nothing to tell runs apart by."""
    return field(default_factory=lambda: np.zeros(0, kind), repr=False, compare=False)


@dataclass(frozen=True)
class Statistics:
    """What one encoding run did; times in seconds."""

    texts: int = 0
    tokens: int = 0  # real ones
    computed_tokens: int = 0  # with padding
    truncated: int = 0  # texts cut at the maximum length
    too_short: int = 0  # texts below one basket, left as the uncalibrated model has them
    shapes: int = 0  # different batch shapes met
    compilations: int = 0
    seconds: float = 0.0
    lengths: Int[np.ndarray, " n"] = _per_text(np.int32)  # tokens of each text
    cut: Bool[np.ndarray, " n"] = _per_text(bool)  # which texts were truncated

    @property
    def padding(self) -> float:
        """The share of computed tokens that were padding."""
        return 1 - self.tokens / self.computed_tokens if self.computed_tokens else 0.0
