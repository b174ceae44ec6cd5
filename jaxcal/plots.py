"""Figures, drawn without a display."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxcal.errors import MissingDependency
from jaxcal.evaluation.metrics import Summary
from jaxcal.evaluation.resampling import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def require_matplotlib() -> None:
    """Find out, before there is anything to draw, whether it could be drawn.

    Raises:
        MissingDependency: if matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingDependency("plots need matplotlib: install jaxcal[evaluation].")


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of a size in inches.

    Raises:
        MissingDependency: if matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, without the version of matplotlib in it: the same figures give the same bytes."""
    figure.savefig(path, format="png", dpi=144, metadata={"Software": None})


def plot_positions(
    path: Path,
    title: str,
    scores: Mapping[str, Summary[Interval]],
    differences: Mapping[str, Summary[Interval]],
) -> None:
    """Draw nDCG@10 by answer position for several settings, and what each changes, as a PNG with 95 % intervals.

    Args:
        path: the file to write.
        title: what was measured: model and data set.
        scores: setting -> its scores in [0, 1].
        differences: setting -> paired differences from the first setting.

    Raises:
        MissingDependency: if matplotlib is not installed.
    """
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    groups = list(next(iter(scores.values())).groups)
    for offset, (name, summary) in zip(_spread(len(scores)), scores.items(), strict=True):
        _error_bars(left, offset, name, [summary.groups[group] for group in groups], line="-")
    left.set_ylabel("nDCG@10 (%)")
    left.set_xlabel("where the answer stands in the document")
    columns = [*groups, "harmonic\nmean", "PSI\n(x 100)"]
    # Colours follow the left panel, whose first setting is the baseline.
    for number, (offset, (name, summary)) in enumerate(
        zip(_spread(len(differences)), differences.items(), strict=True), start=1
    ):
        values = [*(summary.groups[group] for group in groups), summary.harmonic_mean, summary.psi]
        _error_bars(right, offset, name, values, line="", colour=f"C{number}")
    right.axhline(0, color="grey", linewidth=0.8)
    right.set_ylabel("difference from uncalibrated (points)")
    right.set_xlabel("nDCG@10 by position, and summaries")
    for axes, ticks in ((left, groups), (right, columns)):
        axes.set_xticks(range(len(ticks)), ticks)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(frameon=False)
    figure.suptitle(title)
    save(figure, path)


def _spread(count: int) -> list[float]:
    return [0.12 * (number - (count - 1) / 2) for number in range(count)]


def _error_bars(axes, offset: float, name: str, values: Sequence, *, line: str, colour: str | None = None) -> None:
    centres = [100 * value.estimate for value in values]
    below = [100 * (value.estimate - value.low) for value in values]
    above = [100 * (value.high - value.estimate) for value in values]
    places = [place + offset for place in range(len(values))]
    axes.errorbar(places, centres, yerr=[below, above], fmt=f"o{line}", capsize=3, label=name, color=colour)
