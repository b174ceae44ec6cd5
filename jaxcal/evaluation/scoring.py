"""From ranks to the figures of a task: groups, length buckets, intervals, and differences from the uncalibrated model.

All figures are JSON types, laid out as an entry of MTEB's TaskResult. The official scripts disagree on two points, and
each data set keeps its own: SQuAD-PosQ and FineWeb-PosQ average tied gains (scikit-learn), PosIR orders ties by id
(trec_eval); PosIR's figure of a length bucket is the unweighted mean over its bins, while its overall nDCG is the mean
over queries.

Axis letters: J judgements, G groups.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxcal.errors import InvalidInput
from jaxcal.evaluation.datasets.base import PositionDataset, Ties, split_by_group
from jaxcal.evaluation.metrics import Summary, ndcg, recall, summarise
from jaxcal.evaluation.resampling import Interval, bootstrap, paired_bootstrap, paired_permutation
from jaxcal.evaluation.search import Run

CUTOFFS = (5, 10, 20, 30, 50, 100)  # of recall, as the official scripts have them
_FIGURES = {"ndcg_at_10": "mean", "macro_ndcg_at_10": "macro", "harmonic_mean": "harmonic_mean", "psi": "psi"}


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """What one method scored on every judgement of a task, pooled over its data sets.

    Attributes:
        ndcg: [J] nDCG@10.
        recall: cut-off -> [J].
    """

    ndcg: np.ndarray
    recall: dict[int, np.ndarray]


def score(dataset: PositionDataset, run: Run, ties: Ties, depth: int) -> Scores:
    """Score a run of a data set's topics, one value a judgement."""
    of_judgement, gold = dataset.topics.of_judgement, dataset.topics.gold
    gains = ndcg(run.ranks(gold, ties), 10)
    # Recall has no average over ties: it takes the passages in the order in which they were retrieved.
    ordered = run.ranks(gold, "trec")
    found = {k: recall(ordered, k)[of_judgement] for k in CUTOFFS if k <= depth}
    return Scores(gains[of_judgement], found)


def pool_scores(parts: Sequence[Scores]) -> Scores:
    """Join the scores of a task's data sets."""
    return Scores(
        np.concatenate([part.ndcg for part in parts]),
        {k: np.concatenate([part.recall[k] for part in parts]) for k in parts[0].recall},
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Judgements:
    """The groups and buckets of every judgement of a task, pooled over its data sets."""

    groups: tuple[str, ...]
    buckets: tuple[str, ...]
    group: np.ndarray
    bucket: np.ndarray
    query: np.ndarray
    same_queries: bool

    @classmethod
    def pool(cls, parts: Sequence[PositionDataset]) -> "Judgements":
        """Join the judgements of a task's data sets.

        Raises:
            InvalidInput: the data sets differ in groups or buckets, or a group holds no judgement although the data
                set has no length buckets (PosIR's bins of single buckets may be empty, a group of its own may not).
        """
        first = parts[0]
        for part in parts[1:]:
            if (part.groups, part.buckets) != (first.groups, first.buckets):
                raise InvalidInput(f"'{part.name}' and '{first.name}' are scored together but have other groups.")
        offsets = np.cumsum([0, *(len(part.queries) for part in parts)])[:-1]
        pooled = cls(
            first.groups,
            first.buckets,
            np.concatenate([part.group for part in parts]),
            np.concatenate([part.bucket for part in parts]),
            np.concatenate([part.query + offset for part, offset in zip(parts, offsets, strict=True)]),
            len(parts) == 1 and first.same_queries,
        )
        empty = [name for i, name in enumerate(first.groups) if not (pooled.group == i).any()]
        if not len(pooled.group) or (empty and not first.buckets):
            raise InvalidInput(f"'{first.name}' has no judgement in group {', '.join(empty) or '(none at all)'}.")
        return pooled

    def by_group(self, values: np.ndarray, bucket: int | None = None) -> dict[str, np.ndarray]:
        """Split values [J] by group, each in order of its queries; groups without a judgement are left out."""
        chosen = slice(None) if bucket is None else self.bucket == bucket
        split = split_by_group(values[chosen], self.query[chosen], self.group[chosen], self.groups)
        return {name: part for name, part in split.items() if part.size}


def entry(
    judgements: Judgements, scores: Scores, baseline: Scores | None, *, resamples: int, seed: int = 0
) -> dict[str, Any]:
    """The figures of one method on one task, with 95 % bootstrap intervals.

    Args:
        judgements: groups and buckets.
        scores: of the method.
        baseline: of the uncalibrated model; adds the paired difference from it, with its interval and p-value.
        resamples: of the bootstrap and of the permutation test.
        seed: of both.
    """
    figures = _figures(judgements, scores, baseline, None, resamples, seed)
    result: dict[str, Any] = {"main_score": figures["ndcg_at_10"], **figures}
    result |= {f"recall_at_{k}": float(values.mean()) for k, values in scores.recall.items()}
    if judgements.buckets:
        result["buckets"] = {
            name: _figures(judgements, scores, baseline, number, resamples, seed)
            for number, name in enumerate(judgements.buckets)
            if (judgements.bucket == number).any()
        }
    return result


def _figures(
    judgements: Judgements, scores: Scores, baseline: Scores | None, bucket: int | None, resamples: int, seed: int
) -> dict[str, Any]:
    groups = judgements.by_group(scores.ndcg, bucket)
    options: dict[str, Any] = {"same_queries": judgements.same_queries, "resamples": resamples, "seed": seed}
    result: dict[str, Any] = {
        "judgements": sum(map(len, groups.values())),
        **_named(summarise(groups), float),
        "intervals": _named(bootstrap(groups, **options), lambda interval: [interval.low, interval.high]),
    }
    if baseline is not None:
        before = judgements.by_group(baseline.ndcg, bucket)
        change, p = paired_bootstrap(groups, before, **options), paired_permutation(groups, before, **options)
        result["difference"] = _named(_zip(change, p), lambda both: {**both[0]._asdict(), "p": both[1]})
    return result


def _named(summary: Summary, write: Any) -> dict[str, Any]:
    named: dict[str, Any] = {name: write(getattr(summary, field)) for name, field in _FIGURES.items()}
    return {**named, "groups": {name: write(value) for name, value in summary.groups.items()}}


def _zip(first: Summary[Interval], second: Summary[float]) -> Summary[tuple[Interval, float]]:
    groups = {name: (value, second.groups[name]) for name, value in first.groups.items()}
    pairs = {field: (getattr(first, field), getattr(second, field)) for field in _FIGURES.values()}
    return Summary(groups, **pairs)


def average(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The unweighted mean of several entries, figure by figure, as PosIR averages language pairs; without intervals.

    A group or bucket that one of them lacks is averaged over those that have it; counts are added.
    """
    result: dict[str, Any] = {}
    for key in dict.fromkeys(key for one in entries for key in one):
        values = [one[key] for one in entries if key in one]
        if key in ("intervals", "difference", "hf_subset", "languages", "parts"):
            continue
        if isinstance(values[0], Mapping):
            result[key] = average(values)
        elif isinstance(values[0], int):
            result[key] = sum(values)
        else:
            result[key] = float(np.mean(values))
    return result
