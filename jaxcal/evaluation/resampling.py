"""How sure a figure is: bootstrap intervals, and a permutation test of the difference between two systems.

Both keep what the systems share: a resample scores them on the same queries, and a permutation exchanges them query by
query.

Axis letters: J judgements, G groups, R resamples.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.metrics import Summary, as_summary, checked_groups, figures, sizes

_BLOCK = 1 << 22  # resampled queries held at once

Groups = Mapping[str, ArrayLike]


class Interval(NamedTuple):
    """An estimate and the bounds of its bootstrap percentile interval."""

    estimate: float
    low: float
    high: float


def bootstrap(
    scores: Groups, *, same_queries: bool, resamples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> Summary[Interval]:
    """Give bootstrap percentile intervals for the summary of one system; arguments and errors of `paired_bootstrap`."""
    return _intervals([checked_groups(scores)], same_queries, resamples, confidence, seed)


def paired_bootstrap(
    scores: Groups,
    baseline: Groups,
    *,
    same_queries: bool,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Summary[Interval]:
    """Give bootstrap percentile intervals for the differences `scores - baseline` of two systems' summaries.

    Each resample draws queries with replacement and summarises both systems on the same draw, so what the systems
    share cancels. If the groups hold the same queries, a drawn query enters all groups at once.

    Args:
        scores, baseline: {group: [J_g]}, entry i of a group being the same query in both (and in all groups, if
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
    return _intervals(_paired(scores, baseline), same_queries, resamples, confidence, seed)


def paired_permutation(
    scores: Groups, baseline: Groups, *, same_queries: bool, resamples: int = 10_000, seed: int = 0
) -> Summary[float]:
    """Give two-sided p-values of the differences between two systems' summaries, by exchanging them query by query.

    If both systems were alike, either could have given either score of a query. The p-value is the share of random
    exchanges (the observed one counted) that differ at least as much as the systems do.

    Args and errors as in `paired_bootstrap`.
    """
    systems = _paired(scores, baseline)
    _check(systems, same_queries, resamples)
    counts = sizes(systems[0])
    rng = np.random.default_rng(seed)

    def exchange(values: np.ndarray) -> np.ndarray:
        """[J, 2, ...] of both systems to the means [R, 2, ...] of random exchanges."""
        gain = values[:, 1] - values[:, 0]
        moved = _in_blocks(len(values), resamples, lambda shape: rng.integers(0, 2, shape, np.int8), gain)
        return np.stack([values[:, 0].mean(0) + moved, values[:, 1].mean(0) - moved], axis=1)

    drawn = figures(_resampled_means(systems, same_queries, exchange), counts)
    differences = drawn[:, 0] - drawn[:, 1]
    first, second = (figures(np.array([group.mean() for group in system.values()]), counts) for system in systems)
    # Exchanges that change nothing but the order of a sum must count as equal.
    extreme = np.abs(differences) >= np.abs(first - second) * (1 - 1e-9) - 1e-12
    return as_summary(systems[0], ((1 + extreme.sum(0)) / (1 + resamples)).tolist())


def _paired(scores: Groups, baseline: Groups) -> list[dict[str, np.ndarray]]:
    first, second = checked_groups(scores), checked_groups(baseline)
    for name in first | second:
        if name not in first or name not in second or len(first[name]) != len(second[name]):
            raise InvalidInput(f"Group '{name}' must hold the same queries for both systems.")
    return [first, {name: second[name] for name in first}]


def _check(systems: list[dict], same_queries: bool, resamples: int) -> None:
    if resamples < 1:
        raise InvalidSetting(f"resamples is {resamples}; at least 1 is needed.")
    counts = sizes(systems[0])
    if same_queries and len(set(counts)) > 1:
        raise InvalidInput(f"Groups of {counts.tolist()} queries cannot hold the same ones: set same_queries=False.")


def _intervals(systems: list[dict], same_queries: bool, resamples: int, confidence: float, seed: int):
    """Return the figures of one system, or of the first minus the second, with percentile intervals."""
    if not 0 < confidence < 1:
        raise InvalidSetting(f"confidence is {confidence}; it must lie between 0 and 1.")
    _check(systems, same_queries, resamples)
    counts = sizes(systems[0])
    rng = np.random.default_rng(seed)

    def draw(values: np.ndarray) -> np.ndarray:
        """[J, ...] to the means [R, ...] of random draws with replacement."""
        return _in_blocks(len(values), resamples, lambda shape: _times_drawn(rng, *shape), values)

    means = np.array([[array.mean() for array in arrays.values()] for arrays in systems])
    drawn = figures(_resampled_means(systems, same_queries, draw), counts)
    estimate = figures(means, counts)
    if len(systems) == 2:
        drawn, estimate = drawn[:, 0] - drawn[:, 1], estimate[0] - estimate[1]
    else:
        drawn, estimate = drawn[:, 0], estimate[0]
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return as_summary(systems[0], [Interval(*map(float, three)) for three in zip(estimate, low, high, strict=True)])


def _resampled_means(
    systems: list[dict], same_queries: bool, resample: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the group means of every system in every resample, [R, systems, G]."""
    groups = [np.stack([system[name] for system in systems], axis=-1) for name in systems[0]]  # [J_g, systems] each
    if same_queries:
        return resample(np.stack(groups, axis=-1))
    return np.stack([resample(group) for group in groups], axis=-1)


def _in_blocks(
    count: int, resamples: int, weights: Callable[[tuple[int, int]], np.ndarray], values: np.ndarray
) -> np.ndarray:
    """Return `weights([R, J]) @ values / J`, [R, ...], with weights made and used in blocks of resamples."""
    step = max(1, _BLOCK // count)
    flat = values.reshape(count, -1)
    parts = []
    for begin in range(0, resamples, step):
        size = min(step, resamples - begin)
        parts.append(weights((size, count)).astype(np.float64) @ flat / count)
    return np.concatenate(parts).reshape(resamples, *values.shape[1:])


def _times_drawn(rng: np.random.Generator, resamples: int, count: int) -> np.ndarray:
    """How often each of `count` queries is drawn: all a mean needs, and far cheaper to use than the draws."""
    index = rng.integers(0, count, (resamples, count)) + count * np.arange(resamples)[:, None]
    return np.bincount(index.ravel(), minlength=resamples * count).reshape(resamples, count)
