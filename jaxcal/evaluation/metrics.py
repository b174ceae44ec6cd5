"""Retrieval scores by positional group: ranks, nDCG, harmonic mean, the position sensitivity index, and intervals."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxcal.errors import InvalidInput, InvalidSetting

BLOCK = 1 << 22  # resampled query indices held at once


class Ranks(NamedTuple):
    """Where gold passages stand among their candidates.

    Attributes:
        above: [J] integers, candidates with a strictly higher similarity.
        tied: [J] integers, other candidates with the same similarity.
    """

    above: np.ndarray
    tied: np.ndarray

    @property
    def rank(self) -> np.ndarray:
        """[J] ranks from 1, ties resolved in favour of the gold passage: 1 + strictly higher candidates."""
        return self.above + 1


class Interval(NamedTuple):
    """An estimate and the bounds of its bootstrap percentile interval."""

    estimate: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Summary:
    """Scores of one system: the mean of each group, of all judgements, the harmonic mean over groups, and PSI."""

    groups: dict[str, float]
    mean: float
    harmonic_mean: float
    psi: float


@dataclasses.dataclass(frozen=True)
class SummaryIntervals:
    """The figures of a `Summary` (or of a difference of two), each with its interval."""

    groups: dict[str, Interval]
    mean: Interval
    harmonic_mean: Interval
    psi: Interval


def gold_ranks(similarities: np.ndarray, gold: np.ndarray, candidates: np.ndarray | None = None) -> Ranks:
    """Count, for each row, the candidates above the gold passage and those tied with it.

    Args:
        similarities: [J, P], one row a judgement.
        gold: [J] column of the gold passage.
        candidates: [J, P] booleans, which columns compete; None: all. The gold column counts in any case.

    Raises:
        InvalidInput: shapes that do not fit, a gold column that does not exist, NaN or infinite similarities.
    """
    similarities, gold = np.asarray(similarities), np.asarray(gold)
    if similarities.ndim != 2 or gold.shape != similarities.shape[:1]:
        raise InvalidInput(f"similarities {similarities.shape} and gold {gold.shape}: expected [J, P] and [J].")
    if candidates is not None and np.shape(candidates) != similarities.shape:
        raise InvalidInput(
            f"candidates {np.shape(candidates)} must have the shape of similarities {similarities.shape}."
        )
    if gold.size and (gold.min() < 0 or gold.max() >= similarities.shape[1]):
        raise InvalidInput(
            f"gold holds columns {gold.min()} to {gold.max()}; there are {similarities.shape[1]} passages."
        )
    bad = np.argwhere(~np.isfinite(similarities))
    if bad.size:
        raise InvalidInput(
            f"The similarity at row {bad[0][0]}, column {bad[0][1]} is not a finite number ({len(bad)} such values):"
            " look for NaN in the vectors of that query and passage."
        )
    own = np.take_along_axis(similarities, gold[:, None], axis=1)
    competes = np.ones(similarities.shape, bool) if candidates is None else np.array(candidates, bool)
    np.put_along_axis(competes, gold[:, None], False, axis=1)
    return Ranks(((similarities > own) & competes).sum(1), ((similarities == own) & competes).sum(1))


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


def ndcg_at_10(similarities: np.ndarray, gold: np.ndarray, candidates: np.ndarray | None = None) -> np.ndarray:
    """Compute nDCG@10 of each row of similarities: `ndcg(gold_ranks(...))`; same arguments, errors and tie rule."""
    return ndcg(gold_ranks(similarities, gold, candidates), 10)


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


def summarise(scores: Mapping[str, ArrayLike]) -> Summary:
    """Summarise the scores of one system, given by group ({name: [Q_g]}).

    Raises:
        InvalidInput: no groups, an empty group, or a negative or not finite score.
    """
    arrays = _checked_groups(scores)
    means = np.array([array.mean() for array in arrays.values()])
    return _as_summary(Summary, arrays, _figures(means, _sizes(arrays)).tolist())


def bootstrap(
    scores: Mapping[str, ArrayLike],
    *,
    same_queries: bool,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> SummaryIntervals:
    """Give bootstrap percentile intervals for the summary of one system; arguments and errors of `paired_bootstrap`."""
    arrays = _checked_groups(scores)
    return _intervals([arrays], same_queries, resamples, confidence, seed)


def paired_bootstrap(
    scores: Mapping[str, ArrayLike],
    baseline: Mapping[str, ArrayLike],
    *,
    same_queries: bool,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> SummaryIntervals:
    """Give bootstrap percentile intervals for the differences `scores - baseline` of two systems' summaries.

    Each resample draws queries with replacement and summarises both systems on the same draw, so what the systems
    share cancels. If the groups hold the same queries, a drawn query enters all groups at once.

    Args:
        scores, baseline: {group: [Q_g]}, entry i of a group being the same query in both (and in all groups, if
            `same_queries`).
        same_queries: whether all groups hold the same queries in the same order (`PositionDataset.same_queries`); if
            not, each group is resampled by itself.
        resamples: number of resamples.
        confidence: probability mass between the bounds.
        seed: seed of the draws; the same seed gives the same bounds.

    Raises:
        InvalidInput: groups or sizes that differ, an empty group, a negative or not finite score.
        InvalidSetting: fewer than 1 resample, or a confidence outside (0, 1).
    """
    first, second = _checked_groups(scores), _checked_groups(baseline)
    for name in first | second:
        if name not in first or name not in second or len(first[name]) != len(second[name]):
            raise InvalidInput(f"Group '{name}' must hold the same queries for both systems.")
    return _intervals([first, {name: second[name] for name in first}], same_queries, resamples, confidence, seed)


def _intervals(systems: list[dict], same_queries: bool, resamples: int, confidence: float, seed: int):
    """Return the figures of one system, or of the first minus the second, with percentile intervals."""
    if resamples < 1 or not 0 < confidence < 1:
        raise InvalidSetting(f"resamples={resamples}, confidence={confidence}: needs at least 1, and between 0 and 1.")
    sizes = _sizes(systems[0])
    if same_queries and len(set(sizes)) > 1:
        raise InvalidInput(f"Groups of {sizes.tolist()} queries cannot hold the same ones: set same_queries=False.")
    means = np.array([[array.mean() for array in arrays.values()] for arrays in systems])
    drawn = _figures(_resampled_means(systems, same_queries, resamples, seed), sizes)
    estimate = _figures(means, sizes)
    if len(systems) == 2:
        drawn, estimate = drawn[0] - drawn[1], estimate[0] - estimate[1]
    else:
        drawn, estimate = drawn[0], estimate[0]
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    figures = [Interval(*map(float, three)) for three in zip(estimate, low, high, strict=True)]
    return _as_summary(SummaryIntervals, systems[0], figures)


def _resampled_means(systems: list[dict], same_queries: bool, resamples: int, seed: int) -> np.ndarray:
    """Return the group means of every system in every resample, [systems, resamples, G]."""
    rng = np.random.default_rng(seed)
    scores = [[arrays[name] for arrays in systems] for name in systems[0]]  # by group, then by system
    if same_queries:
        stacked = np.array(scores).reshape(len(scores) * len(systems), -1).T
        means = _draw(rng, stacked, resamples).reshape(resamples, len(scores), len(systems))
    else:
        means = np.stack([_draw(rng, np.array(group).T, resamples) for group in scores], axis=1)
    return means.transpose(2, 0, 1)


def _draw(rng: np.random.Generator, values: np.ndarray, resamples: int) -> np.ndarray:
    """Return the column means of `resamples` draws of rows with replacement: [Q, X] -> [resamples, X]."""
    count = len(values)
    step = max(1, BLOCK // count)
    means = []
    for begin in range(0, resamples, step):
        size = min(step, resamples - begin)
        # How often each row is drawn is all a mean needs, and a product with counts is far cheaper than a gather.
        index = rng.integers(0, count, (size, count)) + count * np.arange(size)[:, None]
        times = np.bincount(index.ravel(), minlength=size * count).reshape(size, count)
        means.append(times.astype(np.float64) @ values / count)
    return np.concatenate(means)


def _figures(means: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Extend group means [..., G] by the mean of all judgements, the harmonic mean and PSI: [..., G + 3]."""
    pooled = means @ (sizes / sizes.sum())
    return np.concatenate([means, np.stack([pooled, harmonic_mean(means), psi(means)], axis=-1)], axis=-1)


def _as_summary(kind: type, arrays: dict, figures: list):
    """Name the entries of a row of `_figures`."""
    *groups, mean, harmonic, sensitivity = figures
    return kind(dict(zip(arrays, groups, strict=True)), mean, harmonic, sensitivity)


def _sizes(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return np.array([len(array) for array in arrays.values()])


def _checked_groups(scores: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Return the groups as float arrays, or raise InvalidInput naming the one that has no meaning."""
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
