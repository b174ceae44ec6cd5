"""Statistics of cosines by position, as Schuhmacher et al. (arXiv 2601.16934) report them.

Axis letters: R segment sets, O orders, S positions (and segments).
"""

import dataclasses
import warnings
from typing import Any

import numpy as np

from jaxcal.errors import InvalidInput, MissingDependency

_BLOCK = 1 << 22  # shuffled values held at once


@dataclasses.dataclass(frozen=True)
class Statistics:
    """How cosines depend on position.

    Attributes:
        means: by position, over all documents.
        standard_errors: of the means, segment sets being the units.
        anova: repeated measures, one factor: "f", "p", "generalised_eta_squared", "df". The subjects are the segments,
            each measured at every position by its mean over orders.
        ols: the means of the later positions less that of the first ("coefficients"), with "standard_errors" and "p"
            for errors that are correlated within a segment set.
        gini: "value" of the means, 0 if all are alike, and "p" of shuffling each segment's cosines over positions.
        relative_difference: (first - last) / first, with a 95 % interval by the delta method over segment sets.
        welch, wilcoxon: "statistic" and "p" of first against last position, over segments; the latter in pairs. None
            where there is nothing to test.
    """

    means: list[float]
    standard_errors: list[float]
    anova: dict[str, Any]
    ols: dict[str, list[float]]
    gini: dict[str, float]
    relative_difference: dict[str, float]
    welch: dict[str, float | None]
    wilcoxon: dict[str, float | None]


def statistics(cosines: np.ndarray, by_segment: np.ndarray, permutations: int, seed: int) -> Statistics:
    """Compute all of them.

    Args:
        cosines: [R, O, S] by set, order and position.
        by_segment: [R, S, S] by set, segment and position, averaged over orders.
        permutations: shuffles for the Gini coefficient.
        seed: of the shuffles.

    Raises:
        InvalidInput: fewer than two segment sets.
        MissingDependency: scipy is not installed.
    """
    if len(cosines) < 2:
        raise InvalidInput(f"{len(cosines)} segment set has no statistics; at least two are needed.")
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingDependency("these statistics need scipy: install jaxcal[evaluation].") from error
    subjects = by_segment.reshape(-1, by_segment.shape[-1])
    first, last = subjects[:, 0], subjects[:, -1]
    with warnings.catch_warnings():  # scipy warns of cosines that are all alike, which is no trouble here
        warnings.simplefilter("ignore", RuntimeWarning)
        welch: Any = stats.ttest_ind(first, last, equal_var=False)
        signed: Any = stats.wilcoxon(first, last)
    of_sets = cosines.mean(axis=1)
    return Statistics(
        means=cosines.mean(axis=(0, 1)).tolist(),
        standard_errors=(of_sets.std(axis=0, ddof=1) / np.sqrt(len(of_sets))).tolist(),
        anova=_anova(subjects),
        ols=_ols(cosines),
        gini=_gini_test(subjects, permutations, seed),
        relative_difference=_relative_difference(of_sets),
        welch={"statistic": _number(welch.statistic), "p": _number(welch.pvalue)},
        wilcoxon={"statistic": _number(signed.statistic), "p": _number(signed.pvalue)},
    )


def gini(values: np.ndarray) -> np.ndarray:
    """The Gini coefficient over the last axis: the mean absolute difference of two values over twice their mean."""
    differences = np.abs(values[..., :, None] - values[..., None, :]).mean(axis=(-2, -1))
    return differences / (2 * values.mean(axis=-1))


def _anova(table: np.ndarray) -> dict[str, Any]:
    """One-way repeated measures of [subjects, S]; generalised eta squared by Olejnik and Algina (2003)."""
    from scipy import stats

    subjects, levels = table.shape
    grand = table.mean()
    effect = subjects * ((table.mean(0) - grand) ** 2).sum()
    between = levels * ((table.mean(1) - grand) ** 2).sum()
    error = max(((table - grand) ** 2).sum() - effect - between, 0.0)
    df = [levels - 1, (levels - 1) * (subjects - 1)]
    if error == 0:  # cosines that do not differ within a segment at all
        f, p = (float("inf"), 0.0) if effect > 0 else (0.0, 1.0)
    else:
        f = float((effect / df[0]) / (error / df[1]))
        p = float(stats.f.sf(f, *df))
    total = effect + between + error
    return {"f": f, "p": p, "df": df, "generalised_eta_squared": float(effect / total) if total else 0.0}


def _ols(cosines: np.ndarray) -> dict[str, list[float]]:
    """Least squares on categorical position, the first being the baseline, errors clustered by segment set.

    The fit is the means; the covariance is the sandwich with the usual correction R / (R - 1) (N - 1) / (N - S).
    """
    from scipy import stats

    sets, orders, levels = cosines.shape
    count = sets * orders * levels
    means = cosines.mean(axis=(0, 1))
    design = np.eye(levels)
    design[:, 0] = 1  # intercept, then a column for each later position
    bread = np.linalg.inv(sets * orders * design.T @ design)
    scores = (cosines - means).sum(axis=1) @ design  # of each set
    meat = scores.T @ scores
    covariance = bread @ meat @ bread * sets / (sets - 1) * (count - 1) / (count - levels)
    coefficients, errors = means[1:] - means[0], np.sqrt(np.maximum(np.diag(covariance)[1:], 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(errors > 0, 2 * stats.norm.sf(np.abs(coefficients / errors)), (coefficients == 0).astype(float))
    return {"coefficients": coefficients.tolist(), "standard_errors": errors.tolist(), "p": p.tolist()}


def _gini_test(table: np.ndarray, permutations: int, seed: int) -> dict[str, float]:
    """If positions did not matter, the cosines of a segment, [segments, S], could stand in any order.

    Not those of a document: all orders balance the segments over positions, which shuffling documents would undo.
    """
    value = float(gini(table.mean(0)))
    rng = np.random.default_rng(seed)
    step = max(1, _BLOCK // table.size)
    extreme = 0
    for start in range(0, permutations, step):
        size = min(step, permutations - start)
        shuffled = rng.permuted(np.broadcast_to(table, (size, *table.shape)), axis=-1)
        extreme += int((gini(shuffled.mean(axis=1)) >= value * (1 - 1e-9)).sum())
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
