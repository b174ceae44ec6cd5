"""Tables of results: their order and names, what is found in folders, and what a reader is warned of."""

import json

import pytest

from jaxcal.errors import InvalidInput
from jaxcal.evaluation.compare import compare, find_results, table
from jaxcal.evaluation.published import PublishedRow


def result(
    method="uncalibrated", model: str | None = "a/small", *, groups=None, revision="1", subset="default", **figures
):
    entry = {"hf_subset": subset, "ndcg_at_10": 0.5, "psi": 0.25, "groups": groups or {"begin": 0.6, "end": 0.45}}
    return {
        "task_name": "T",
        "dataset_revision": revision,
        "scores": {"test": [entry | figures]},
        "method": method,
        "calibration": None,
        "model": model and {"model": model},
        "environment": {},
    }


def quoted(model="b/small", status="published", note="", **figures):
    return PublishedRow("S", status, note, "T", "default", model, "uncalibrated", figures)


def cells(text):
    """The cells of all rows of all tables, without headers and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [row for row in split if row[0] != "method" and set(row[0]) != {"-"}]


def test_a_row_worked_by_hand():
    made = result(harmonic_mean=0.51426, macro_ndcg_at_10=0.525, recall_at_10=0.98765)
    assert cells(table([made])) == [["uncalibrated", "60.00", "45.00", "50.00", "52.50", "51.43", "0.250", "98.77"]]


def test_what_is_absent_is_a_dash():
    (row,) = cells(table([result()]))
    assert row[4:] == ["-", "-", "0.250", "-"]


def test_the_uncalibrated_model_first_and_bm25_last_whatever_the_order_of_files():
    found = [result("BM25", None), result("paper"), result("full"), result()]
    assert [row[0] for row in cells(table(found))] == ["uncalibrated", "paper", "full", "BM25"]
    assert [row[0] for row in cells(table([found[0], found[1]]))] == ["paper", "BM25"]


def test_several_models_are_named_and_the_rows_of_each_stand_together():
    found = [result("BM25", None), result("paper", "b/large"), result("paper"), result(), result(model="b/large")]
    rows = cells(compare(found, [quoted("b/Small", psi=0.3), quoted("c/other", "derived", psi=0.4)]))
    assert [(row[0], row[-1]) for row in rows] == [
        ("a/small, uncalibrated", "measured here"),
        ("a/small, paper", "measured here"),
        ("b/Small, uncalibrated", "quoted: S"),
        ("b/large, uncalibrated", "measured here"),
        ("b/large, paper", "measured here"),
        ("BM25", "measured here"),
        ("c/other, uncalibrated", "derived from S"),
    ]


def test_a_comparison_names_even_an_only_model_which_the_table_of_a_run_need_not():
    found = [result(), result("BM25", None)]
    assert [row[0] for row in cells(compare(found, []))] == ["a/small, uncalibrated", "BM25"]
    assert [row[0] for row in cells(table(found))] == ["uncalibrated", "BM25"]


def test_figures_measured_by_this_project_are_not_said_to_be_quoted():
    rows = cells(compare([result()], [quoted(status="measured by this project", psi=0.3)]))
    assert [row[-1] for row in rows] == ["measured here", "measured by this project"]


def test_quoted_groups_of_other_names_stay_out():
    first, second = cells(compare([result()], [quoted(groups={"begin": 0.7, "middle": 0.6}, psi=0.3)]))
    assert first[1:] == ["60.00", "45.00", "50.00", "-", "-", "0.250", "-", "measured here"]
    assert second[1:] == ["70.00", "-", "-", "-", "-", "0.300", "-", "quoted: S"]


def test_groups_that_only_one_result_has_are_all_shown():
    first, second = cells(table([result(), result("paper", groups={"end": 0.5, "later": 0.4})]))
    assert first[1:4] == ["60.00", "45.00", "-"] and second[1:4] == ["-", "50.00", "40.00"]


def test_notes_stand_once_below_the_table():
    text = compare([result()], [quoted(note="beware", psi=0.3), quoted("x/y", note="beware", psi=0.3)])
    assert text.count("S: beware") == 1 and text.endswith("\n\nS: beware")


def test_other_data_under_the_same_name_is_told():
    assert "different" not in table([result(), result("paper")])
    assert "Measured on different revisions or files of the data: 1, 2." in table([result(), result(revision="2")])
    # Of another subset it would say nothing about this table.
    assert "different" not in table([result(), result(revision="2", subset="other")])


def test_published_figures_of_other_subsets_and_tasks_stay_out():
    assert len(cells(compare([result(subset="deu-deu")], [quoted(psi=0.3)]))) == 1


def test_differences_within_buckets_are_the_buckets_own():
    change = {"estimate": 0.02, "low": -0.01, "high": 0.05, "p": 0.1}
    inside = {"macro_ndcg_at_10": 0.4, "psi": 0.3, "difference": {"macro_ndcg_at_10": change, "psi": change}}
    outside = {"ndcg_at_10": {**change, "estimate": 0.01}}
    first, below = cells(table([result("paper", buckets={"Q2": inside}, difference=outside)]))
    assert first == ["paper", "50.00", "40.00", "0.250", "0.300"]
    assert below == ["difference", "+1.00 [-1.00, +5.00]", "+2.00 [-1.00, +5.00]", "", "+0.020 [-0.010, +0.050]"]


def test_a_file_named_twice_counts_once(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(result()))
    (tmp_path / "sub").mkdir()
    assert find_results([tmp_path, tmp_path / "sub" / ".." / "r.json", tmp_path]) == [result()]


@pytest.mark.parametrize(
    "change",
    [
        *({"scores": scores} for scores in ([], {"test": {}}, {"test": [1]}, {"test": [{"psi": 0.1}]})),
        {"model": "a/small"},
        {"method": None},
    ],
)
def test_files_in_another_layout_are_no_result(tmp_path, change):
    (tmp_path / "r.json").write_text(json.dumps(result() | change))
    with pytest.raises(InvalidInput, match="r.json is not a result"):
        find_results([tmp_path / "r.json"])
    with pytest.raises(InvalidInput, match="no results"):
        find_results([tmp_path])
