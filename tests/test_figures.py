"""Plots of results, read back from the figure that is drawn."""

import numpy as np
import pytest

from jaxcal.evaluation.figures import draw_bins, draw_groups, plot_bins

to_hex = pytest.importorskip("matplotlib.colors").to_hex
BarContainer = pytest.importorskip("matplotlib.container").BarContainer

THIRDS = {"beginning": 0.8, "middle": 0.7, "end": 0.5}


def groups_entry(groups=THIRDS, below=0.02, above=0.05):
    return {"groups": groups, "intervals": {"groups": {name: [v - below, v + above] for name, v in groups.items()}}}


def bins_entry(**buckets):
    return {"buckets": {name: {"judgements": 7, "groups": bins} for name, bins in buckets.items()}}


def is_bars(container):
    return isinstance(container, BarContainer)


def colours_of(artists):
    return {artist.get_label(): to_hex(artist.get_color()) for artist in artists}


def test_error_bars_reach_from_bound_to_bound():
    (axes,) = draw_groups("title", {"uncalibrated": groups_entry()}).axes
    (bounds,) = [one for one in axes.containers if not is_bars(one)]
    (lines,) = bounds.lines[2]
    reach = [segment[:, 1].tolist() for segment in lines.get_segments()]
    np.testing.assert_allclose(reach, [[78, 85], [68, 75], [48, 55]])


def test_bars_of_several_methods_stand_side_by_side_about_their_tick():
    (axes,) = draw_groups("title", dict.fromkeys(("a", "b", "c"), groups_entry())).axes
    edges = np.array([[bar.get_x(), bar.get_x() + bar.get_width()] for bar in axes.patches]).reshape(3, 3, 2)
    np.testing.assert_allclose(edges[:-1, :, 1], edges[1:, :, 0], err_msg="neither gap nor overlap")
    assert (edges[-1, :-1, 1] < edges[0, 1:, 0]).all(), "groups stand apart"
    np.testing.assert_allclose((edges[0, :, 0] + edges[-1, :, 1]) / 2, [0, 1, 2], atol=1e-12)


def test_titles_legends_and_units():
    figure = draw_groups("model on data", {"uncalibrated": groups_entry(), "paper": groups_entry()})
    assert figure.get_suptitle() == "model on data"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["uncalibrated", "paper"]
    assert figure.axes[0].get_xlabel() == "where the answer stands in the passage"
    characters = draw_groups("t", {"uncalibrated": groups_entry({"0-100": 0.8, "100-200": 0.7})})
    assert characters.axes[0].get_xlabel() == "where the answer begins in the passage (characters)"
    bins = draw_bins("t", {"uncalibrated": bins_entry(Q1={"0.00-0.05": 0.8})})
    assert bins.get_suptitle() == "t"
    assert bins.axes[0].get_xlabel() == "relative position of the answer\n(0 start, 1 end of the passage)"
    assert bins.axes[0].get_xlim() == (0, 1)


def test_a_curve_has_a_point_for_each_bin_that_is_there():
    entries = {"a": bins_entry(Q1={"0.00-0.05": 0.8, "0.90-0.95": 0.4}, Q2={"0.50-0.55": 0.6})}
    panels = draw_bins("t", entries).axes
    assert panels[0].get_ylim() == panels[1].get_ylim()
    np.testing.assert_allclose(panels[0].lines[0].get_xydata(), [[0.025, 80], [0.925, 40]])
    np.testing.assert_allclose(panels[1].lines[0].get_xydata(), [[0.525, 60]])


@pytest.mark.parametrize("count", [2, 10, 14])
def test_each_method_has_a_colour_of_its_own_and_the_same_in_all_panels_and_plots(count):
    one = bins_entry(Q1={"0.00-0.05": 0.8}, Q2={"0.00-0.05": 0.7})
    panels = draw_bins("t", {f"m{i}": one for i in range(count)}).axes
    first, second = (colours_of(axes.lines) for axes in panels)
    assert len(set(first.values())) == count and first == second
    (axes,) = draw_groups("t", {f"m{i}": groups_entry() for i in range(count)}).axes
    fills = {one.get_label(): to_hex(one.patches[0].get_facecolor()) for one in axes.containers if is_bars(one)}
    assert fills == first


def test_the_same_figures_give_the_same_bytes(tmp_path):
    entries = {"a": bins_entry(Q1={"0.00-0.05": 0.8}), "b": bins_entry(Q1={"0.00-0.05": 0.7})}
    for name in ("one", "two"):
        plot_bins(tmp_path / name, "t", entries)
    content = (tmp_path / "one").read_bytes()
    assert content == (tmp_path / "two").read_bytes() and content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == int(144 * 5.6), "a panel's width in inches at 144 dots"
    assert b"Software" not in content, "a version of matplotlib would change the bytes"
