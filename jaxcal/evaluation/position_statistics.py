"""Statistics of cosines by position, as Schuhmacher et al. (arXiv 2601.16934) report them.

The unit of all of them is the segment set: documents of one set share their segments, and segments of one document
compete for its vector. Had documents or segments been the units, that would count as evidence: tests over segments
reject at 5 % in up to 15 % of cases without an effect.

Axis letters: R segment sets, O orders, S positions (and segments).
"""

import dataclasses
import warnings
from typing import Any

import numpy as np

from jaxcal.errors import InvalidInput, MissingDependency

_BLOCK = 1 << 22  # shuffled values held at once
_RESOLUTION = float(np.finfo(np.float32).eps)  # of the vectors: a smaller difference of cosines is none


@dataclasses.dataclass(frozen=True)
class Statistics:
    """How cosines depend on position.

    Attributes:
        means: by position, over all documents.
        standard_errors: of the means, segment sets being the units.
        anova: repeated measures, one factor: "f", "p", "generalised_eta_squared", "df". The subjects are the segment
            sets, each measured at every position by its mean over orders; no correction for sphericity. "f" is None if
            positions differ and nothing else does.
        ols: the means of the later positions less that of the first ("coefficients"), with "standard_errors" and "p"
            for errors that are correlated within a segment set.
        gini: "value" of the means, 0 if all are alike, and "p" of shuffling each set's means over positions.
        relative_difference: (first - last) / first, with a 95 % interval by the delta method over segment sets.
        welch, wilcoxon: "statistic" and "p" of first against last position, over segment sets; the latter in pairs.
            None where there is nothing to test.
    """

    means: list[float]
    standard_errors: list[float]
    anova: dict[str, Any]
    ols: dict[str, list[float]]
    gini: dict[str, float]
    relative_difference: dict[str, float]
    welch: dict[str, float | None]
    wilcoxon: dict[str, float | None]


def statistics(cosines: np.ndarray, permutations: int, seed: int) -> Statistics:
    """Compute all of them.

    Args:
        cosines: [R, O, S] by set, order and position.
        permutations: shuffles for the Gini coefficient.
        seed: of the shuffles.

    Raises:
        InvalidInput: fewer than two segment sets, or a mean cosine that is not above zero, of which neither a Gini
            coefficient nor a relative difference can be told.
        MissingDependency: scipy is not installed.
    """
    if len(cosines) < 2:
        raise InvalidInput(f"{len(cosines)} segment set has no statistics; at least two are needed.")
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingDependency("these statistics need scipy: install jaxcal[evaluation].") from error
    of_sets = cosines.mean(axis=1)
    means = of_sets.mean(axis=0)
    for position, mean in enumerate(means, 1):
        if not mean > 0:
            raise InvalidInput(f"the mean cosine at position {position} is {mean:.4g}; it must be above zero.")
    first = of_sets[:, 0]
    last = np.where(np.abs(of_sets[:, -1] - first) < _RESOLUTION, first, of_sets[:, -1])
    with warnings.catch_warnings():  # scipy warns of cosines that are all alike, which is no trouble here
        warnings.simplefilter("ignore", RuntimeWarning)
        welch: Any = stats.ttest_ind(first, last, equal_var=False)
        signed: Any = stats.wilcoxon(first, last)
    return Statistics(
        means=means.tolist(),
        standard_errors=(of_sets.std(axis=0, ddof=1) / np.sqrt(len(of_sets))).tolist(),
        anova=_anova(of_sets),
        ols=_ols(of_sets, cosines.shape[1]),
        gini=_gini_test(of_sets, permutations, seed),
        relative_difference=_relative_difference(of_sets),
        welch={"statistic": _number(welch.statistic), "p": _number(welch.pvalue)},
        wilcoxon={"statistic": _number(signed.statistic), "p": _number(signed.pvalue)},
    )


def gini(values: np.ndarray) -> np.ndarray:
    """The Gini coefficient over the last axis: the mean absolute difference of two values over twice their mean."""
    differences = np.abs(values[..., :, None] - values[..., None, :]).mean(axis=(-2, -1))
    return differences / (2 * values.mean(axis=-1))


def _anova(table: np.ndarray) -> dict[str, Any]:
    """One-way repeated measures of [R, S]; generalised eta squared by Olejnik and Algina (2003)."""
    from scipy import stats

    subjects, levels = table.shape
    grand = table.mean()
    effect = subjects * ((table.mean(0) - grand) ** 2).sum()
    between = levels * ((table.mean(1) - grand) ** 2).sum()
    error = ((table - table.mean(0) - table.mean(1, keepdims=True) + grand) ** 2).sum()
    df = [levels - 1, (levels - 1) * (subjects - 1)]
    least = table.size * _RESOLUTION**2
    if effect < least:
        effect, f, p = 0.0, 0.0, 1.0
    elif error < least:
        f, p = None, 0.0
    else:
        f = float((effect / df[0]) / (error / df[1]))
        p = float(stats.f.sf(f, *df))
    total = effect + between + error
    return {"f": f, "p": p, "df": df, "generalised_eta_squared": float(effect / total) if total else 0.0}


def _ols(of_sets: np.ndarray, orders: int) -> dict[str, list[float]]:
    """Least squares of all R O S cosines on position, the first being the baseline, errors clustered by segment set.

    The fit is the means; the covariance is the sandwich with the usual correction R / (R - 1) (N - 1) / (N - S), N
    being R O S. Both need no more of a set than its means over orders, [R, S].
    """
    from scipy import stats

    sets, levels = of_sets.shape
    count = sets * orders * levels
    means = of_sets.mean(axis=0)
    design = np.eye(levels)
    design[:, 0] = 1  # intercept, then a column for each later position
    bread = np.linalg.inv(sets * orders * design.T @ design)
    scores = orders * (of_sets - means) @ design  # of each set
    meat = scores.T @ scores
    covariance = bread @ meat @ bread * sets / (sets - 1) * (count - 1) / (count - levels)
    coefficients, errors = means[1:] - means[0], np.sqrt(np.maximum(np.diag(covariance)[1:], 0))
    distance = np.abs(coefficients) / np.maximum(errors, np.finfo(float).tiny)
    p = np.where(np.abs(coefficients) < _RESOLUTION, 1.0, 2 * stats.norm.sf(distance))
    return {"coefficients": coefficients.tolist(), "standard_errors": errors.tolist(), "p": p.tolist()}


def _gini_test(table: np.ndarray, permutations: int, seed: int) -> dict[str, float]:
    """If positions did not matter, the means of a set, [R, S], could stand in any order.

    Not the cosines of a document: all orders balance the segments over positions, which shuffling documents would undo.
    Nor those of a segment: what its document gives to it, the others of the set lack.
    """
    value = float(gini(table.mean(0)))
    rng = np.random.default_rng(seed)
    step = max(1, _BLOCK // table.size)
    extreme = 0
    for start in range(0, permutations, step):
        size = min(step, permutations - start)
        shuffled = rng.permuted(np.broadcast_to(table, (size, *table.shape)), axis=-1)
        extreme += int((gini(shuffled.mean(axis=1)) >= value - _RESOLUTION).sum())
    return {"value": value, "p": (1 + extreme) / (1 + permutations)}


def _relative_difference(of_sets: np.ndarray) -> dict[str, float]:
    """(first - last) / first of the means over sets; the delta method gives the variance of the ratio."""
    first, last = of_sets[:, 0], of_sets[:, -1]
    ratio = last.mean() / first.mean()
    variance = (last - ratio * first).var(ddof=1) / len(first) / first.mean() ** 2
    reach = 1.96 * float(np.sqrt(variance))
    estimate = float(1 - ratio)
    return {"estimate": estimate, "low": estimate - reach, "high": estimate + reach}


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
