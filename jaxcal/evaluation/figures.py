"""Plots of results: groups as bars, PosIR's bins as curves."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcal.plots import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Entries = Mapping[str, Mapping[str, Any]]
_WHERE = "where the answer stands in the passage"


def plot_groups(path: Path, title: str, entries: Entries) -> None:
    """Write nDCG@10 by group, a bar a method, with 95 % intervals, as PNG.

    Args:
        path: the file to write.
        title: what was measured: model and data set.
        entries: method -> its entry of a result's scores.

    Raises:
        MissingDependency: if matplotlib is not installed.
    """
    save(draw_groups(title, entries), path)


def plot_bins(path: Path, title: str, entries: Entries) -> None:
    """Write nDCG@10 over the relative position of the answer, a panel a length bucket, a curve a method, as PNG.

    Arguments and errors as in `plot_groups`.
    """
    save(draw_bins(title, entries), path)


def draw_groups(title: str, entries: Entries) -> "Figure":
    """The figure of `plot_groups`."""
    figure = new_figure(9, 4.2)
    axes = figure.subplots()
    groups = list(next(iter(entries.values()))["groups"])
    width = 0.8 / len(entries)
    colours = _colours(entries)
    for number, (method, entry) in enumerate(entries.items()):
        values = [100 * entry["groups"][group] for group in groups]
        bounds = [[100 * bound for bound in entry["intervals"]["groups"][group]] for group in groups]
        reach = [
            [max(value - low, 0) for value, (low, _) in zip(values, bounds, strict=True)],
            [max(high - value, 0) for value, (_, high) in zip(values, bounds, strict=True)],
        ]
        places = [place + (number - (len(entries) - 1) / 2) * width for place in range(len(groups))]
        axes.bar(places, values, width, yerr=reach, capsize=2, color=colours[method], label=method)
    axes.set_xticks(range(len(groups)), groups)
    # SQuAD-PosQ's groups are ranges of the answer's first character.
    counted = all(re.fullmatch(r"\d+-\d+", group) for group in groups)
    axes.set_xlabel("where the answer begins in the passage (characters)" if counted else _WHERE)
    axes.set_ylabel("nDCG@10 (%)")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.suptitle(title)
    return figure


def draw_bins(title: str, entries: Entries) -> "Figure":
    """The figure of `plot_bins`."""
    buckets = list(dict.fromkeys(bucket for entry in entries.values() for bucket in entry["buckets"]))
    figure = new_figure(3 + 2.6 * len(buckets), 4)
    panels = figure.subplots(1, len(buckets), sharey=True, squeeze=False)[0]
    colours = _colours(entries)
    for axes, bucket in zip(panels, buckets, strict=True):
        for method, entry in entries.items():
            if bucket not in entry["buckets"]:
                continue
            bins = entry["buckets"][bucket]["groups"]
            centres = [sum(map(float, name.split("-"))) / 2 for name in bins]
            values = [100 * value for value in bins.values()]
            axes.plot(centres, values, "o-", ms=3, color=colours[method], label=method)
        judgements = next(iter(entries.values()))["buckets"].get(bucket, {}).get("judgements")
        axes.set_title(bucket if judgements is None else f"{bucket} ({judgements} queries)", fontsize="medium")
        axes.set_xlabel("relative position of the answer\n(0 start, 1 end of the passage)")
        axes.set_xlim(0, 1)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("nDCG@10 (%)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.suptitle(title)
    return figure


def _colours(methods: Iterable[str]) -> dict[str, Any]:
    """A colour for each method by its place, the same in all plots of a run; more than the cycle's ten are graded."""
    names = list(methods)
    if len(names) <= 10:
        return {name: f"C{number}" for number, name in enumerate(names)}
    from matplotlib import colormaps

    return {name: colormaps["turbo"](number / (len(names) - 1)) for number, name in enumerate(names)}
