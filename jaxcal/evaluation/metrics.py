"""Retrieval scores by positional group: nDCG, recall, harmonic mean and the position sensitivity index.

Axis letters: J judgements, G groups.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from jaxcal.errors import InvalidInput, InvalidSetting

Figure = TypeVar("Figure")


class Ranks(NamedTuple):
    """Where gold passages stand among their candidates.

    Attributes:
        above: [J] integers, candidates with a strictly higher similarity.
        tied: [J] integers, other candidates with the same similarity.
    """

    above: np.ndarray
    tied: np.ndarray


@dataclasses.dataclass(frozen=True)
class Summary(Generic[Figure]):
    """The figures of one system (numbers), or their intervals, differences or p-values.

    Attributes:
        groups: the mean score of each group.
        mean: the mean over all judgements.
        macro: the unweighted mean over groups.
        harmonic_mean: G / sum(1 / group), as in arXiv 2606.02737.
        psi: 1 - worst / best group.
    """

    groups: dict[str, Figure]
    mean: Figure
    macro: Figure
    harmonic_mean: Figure
    psi: Figure


def ndcg(ranks: Ranks, k: int = 10) -> np.ndarray:
    """Compute nDCG@k of each judgement with one gold passage: 1 / log2(1 + rank) up to rank k, else 0; [J].

    Tied candidates share the mean of the gains of the ranks they occupy together, as scikit-learn's `ndcg_score` does;
    so the order in which passages happen to be stored never counts.

    Raises:
        InvalidSetting: k is below 1.
    """
    if k < 1:
        raise InvalidSetting(f"nDCG needs a cut-off of at least 1, not {k}.")
    # gained[r] is the sum of the gains of ranks 1 to r.
    gained = np.concatenate([[0.0], np.cumsum(1 / np.log2(1 + np.arange(1, k + 1)))])
    first, last = np.minimum(ranks.above, k), np.minimum(ranks.above + ranks.tied + 1, k)
    exact = 1 / np.log2(2 + np.minimum(ranks.above, k))  # without ties: no rounding from the difference of two sums
    shared = (gained[last] - gained[first]) / (ranks.tied + 1)
    return np.where(ranks.above >= k, 0.0, np.where(ranks.tied == 0, exact, shared))


def recall(ranks: Ranks, k: int) -> np.ndarray:
    """Compute recall@k of each judgement with one gold passage: whether it stands in the first k; [J] of 0 and 1.

    Give it ranks without ties, in the order of the run; a tie at the cut-off has no recall of its own.

    Raises:
        InvalidSetting: k is below 1.
    """
    if k < 1:
        raise InvalidSetting(f"Recall needs a cut-off of at least 1, not {k}.")
    return (ranks.above < k).astype(np.float64)


def harmonic_mean(scores: ArrayLike) -> np.ndarray | np.float64:
    """Compute G / sum(1 / score) over the last axis; 0 if any score is 0, which is the limit.

    Raises:
        InvalidInput: no scores, or a negative or not finite one.
    """
    scores = _checked_scores(scores)
    positive = np.asarray(scores > 0).all(-1)
    inverse = (1 / np.where(scores > 0, scores, 1.0)).sum(-1)
    return np.where(positive, scores.shape[-1] / inverse, 0.0)[()]


def psi(scores: ArrayLike) -> np.ndarray | np.float64:
    """Compute the position sensitivity index 1 - min / max over the last axis: 0 is even, 1 the worst.

    Scores that are all 0 do not differ by position: their PSI is 0. Read it beside the scores, never alone.

    Raises:
        InvalidInput: no scores, or a negative or not finite one.
    """
    scores = _checked_scores(scores)
    top = scores.max(-1)
    return np.where(top > 0, 1 - scores.min(-1) / np.where(top > 0, top, 1.0), 0.0)[()]


def summarise(scores: Mapping[str, ArrayLike]) -> Summary[float]:
    """Summarise the scores of one system, given by group ({name: [J_g]}).

    Raises:
        InvalidInput: no groups, an empty group, or a negative or not finite score.
    """
    arrays = checked_groups(scores)
    means = np.array([array.mean() for array in arrays.values()])
    return as_summary(arrays, figures(means, sizes(arrays)).tolist())


def figures(means: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Extend group means [..., G] by the other figures of a `Summary`: [..., G + 4]; sizes [G] are judgements."""
    extra = [means @ (sizes / sizes.sum()), means.mean(-1), harmonic_mean(means), psi(means)]
    return np.concatenate([means, np.stack(extra, axis=-1)], axis=-1)


def as_summary(groups: Iterable[str], row: Sequence[Figure]) -> Summary[Figure]:
    """Name the entries of a row of `figures`."""
    *means, mean, macro, harmonic, sensitivity = row
    return Summary(dict(zip(groups, means, strict=True)), mean, macro, harmonic, sensitivity)


def sizes(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Judgements of each group, [G]."""
    return np.array([len(array) for array in arrays.values()])


def checked_groups(scores: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Return the groups as float arrays.

    Raises:
        InvalidInput: no groups, an empty one, or a negative or not finite score.
    """
    if not scores:
        raise InvalidInput("There are no groups to summarise.")
    arrays = {name: np.asarray(values, np.float64) for name, values in scores.items()}
    for name, array in arrays.items():
        if array.ndim != 1 or not array.size:
            raise InvalidInput(f"Group '{name}' has scores of shape {array.shape}; it needs at least one, in one row.")
        _checked_scores(array, f" of group '{name}'")
    return arrays


def _checked_scores(scores: ArrayLike, where: str = "") -> np.ndarray:
    """Return the scores as floats, or raise InvalidInput if there are none or one is negative or not finite."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise InvalidInput(f"The scores{where} have shape {scores.shape}; at least one is needed.")
    bad = np.argwhere(~(np.isfinite(scores) & (scores >= 0)))
    if bad.size:
        place = ", ".join(map(str, bad[0]))
        raise InvalidInput(f"Score [{place}]{where} is {scores[tuple(bad[0])]}; scores are finite and not negative.")
    return scores
