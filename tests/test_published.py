"""Published figures: transcribed rightly, validated strictly, and set beside results with their origin."""

import copy

import numpy as np
import pytest

from jaxcal.errors import InvalidInput
from jaxcal.evaluation.compare import compare, find_results, table
from jaxcal.evaluation.figures import draw_bins, draw_groups, plot_bins, plot_groups
from jaxcal.evaluation.published import load_published

ROWS = load_published()
MODELS = ("BAAI/bge-m3", "Alibaba-NLP/gte-multilingual-base", "Qwen/Qwen3-Embedding-0.6B")


def find(task, subset, model, method="uncalibrated", status="published"):
    found = [
        row.figures
        for row in ROWS
        if (row.task_name, row.subset, row.model, row.method, row.status) == (task, subset, model, method, status)
    ]
    assert len(found) == 1
    return found[0]


# --- what is shipped --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "path", "value"),
    [
        (("PosIR", "deu-deu", MODELS[0]), ("ndcg_at_10",), 0.4659),
        (("PosIR", "deu-deu", MODELS[0]), ("buckets", "Q4", "psi"), 0.423),
        (("PosIR", "kor-kor", MODELS[1]), ("buckets", "Q3", "macro_ndcg_at_10"), 0.2732),
        (("PosIR", "spa-eng", MODELS[2]), ("psi",), 0.275),
        (("PosIR", "rus-eng", MODELS[1]), ("buckets", "Q1", "macro_ndcg_at_10"), 0.5556),
        (("PosIR", "multilingual", MODELS[1]), ("ndcg_at_10",), 0.4737),
        (("PosIR", "cross-lingual", MODELS[2]), ("buckets", "Q2", "psi"), 0.372),
        (("PosIR", "multilingual", "Qwen/Qwen3-Embedding-8B"), ("psi",), 0.197),
        (("PosIR", "multilingual", "nvidia/NV-Embed-v2"), ("ndcg_at_10",), 0.4502),
        (("SQuAD-PosQ", "default", MODELS[0]), ("groups", "500-3120"), 0.7461),
        (("SQuAD-PosQ", "default", "BM25", "BM25"), ("groups", "400-500"), 0.8143),
        (("FineWeb-PosQ (unfiltered)", "default", MODELS[0]), ("groups", "end"), 0.8035),
        (("FineWeb-PosQ", "default", MODELS[2]), ("groups", "end"), 0.6561),
        (("FineWeb-PosQ", "default", MODELS[2], "paper"), ("harmonic_mean",), 0.7994),
        (("FineWeb-PosQ", "default", MODELS[2], "paper", "derived"), ("groups", "middle"), 0.8114),
    ],
)
def test_single_figures(place, path, value):
    figures = find(*place)
    for key in path:
        figures = figures[key]
    assert figures == value


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("average", "count"), [("multilingual", 10), ("cross-lingual", 8)])
def test_the_printed_averages_are_those_of_the_printed_rows(model, average, count):
    """A slip in a single figure would show here: the source prints the means of its columns."""
    subsets = {row.subset for row in ROWS if row.task_name == "PosIR" and row.model == model}
    single = subsets - {"multilingual", "cross-lingual"}
    chosen = [find("PosIR", s, model) for s in single if (s[:3] == s[4:]) == (average == "multilingual")]
    assert len(chosen) == count
    mean = find("PosIR", average, model)
    assert np.mean([f["ndcg_at_10"] for f in chosen]) == pytest.approx(mean["ndcg_at_10"], abs=1.01e-4)
    assert np.mean([f["psi"] for f in chosen]) == pytest.approx(mean["psi"], abs=1.01e-3)
    for bucket in ("Q1", "Q2", "Q3", "Q4"):
        for key, slack in (("macro_ndcg_at_10", 1.01e-4), ("psi", 1.01e-3)):
            values = [f["buckets"][bucket][key] for f in chosen]
            assert np.mean(values) == pytest.approx(mean["buckets"][bucket][key], abs=slack), (bucket, key)


def test_derived_figures_follow_from_the_published_ones():
    for method in ("uncalibrated", "paper"):
        printed = find("FineWeb-PosQ", "default", MODELS[2], method)
        derived = find("FineWeb-PosQ", "default", MODELS[2], method, "derived")
        groups = [printed["groups"]["beginning"], derived["groups"]["middle"], printed["groups"]["end"]]
        assert 3 / sum(1 / g for g in groups) == pytest.approx(printed["harmonic_mean"], abs=1e-4)
        assert np.mean(groups) == pytest.approx(derived["macro_ndcg_at_10"], abs=1e-4)
        assert 1 - min(groups) / max(groups) == pytest.approx(derived["psi"], abs=6e-4)


ZENG = """
BM25 | 76.62 79.37 80.61 81.06 81.43 79.49 | 89.56 89.63 88.80
BAAI/bge-m3 | 84.47 83.03 81.47 79.95 77.98 74.61 | 88.64 84.75 80.35
NovaSearch/stella_en_400M_v5 | 85.78 83.62 82.24 80.34 78.96 75.69 | 88.19 83.93 78.96
voyage-3-large | 89.93 89.32 89.17 88.70 88.09 86.73 | 92.65 90.63 87.96
text-embedding-3-large | 85.19 82.45 80.32 77.84 75.27 71.10 | 86.09 83.84 82.09
Alibaba-NLP/gte-Qwen2-7B-instruct | 85.13 83.85 83.33 81.71 80.13 77.75 | 87.45 84.92 81.79
nvidia/NV-Embed-v2 | 93.04 93.55 93.48 93.02 92.48 90.72 | 87.35 88.39 88.10
colbert-ir/colbertv2.0 | 91.85 90.27 91.74 89.64 86.71 84.57 | 88.73 77.78 64.25
BAAI/bge-m3 (multi-vector) | 89.88 88.09 88.84 87.68 86.72 86.36 | 92.08 90.23 86.66
"""


def test_the_table_of_zeng_et_al_in_percent():
    for line in ZENG.strip().splitlines():
        model, *printed = line.split(" | ")
        for task, values in zip(("SQuAD-PosQ", "FineWeb-PosQ (unfiltered)"), printed, strict=True):
            figures = find(task, "default", model, "BM25" if model == "BM25" else "uncalibrated")
            assert [f"{100 * value:.2f}" for value in figures["groups"].values()] == values.split(), model
    for task in ("SQuAD-PosQ", "FineWeb-PosQ (unfiltered)"):
        groups = find(task, "default", MODELS[0])["groups"].values()
        derived = find(task, "default", MODELS[0], status="derived")
        assert len(groups) / sum(1 / g for g in groups) == pytest.approx(derived["harmonic_mean"], abs=5.1e-5)
        assert 1 - min(groups) / max(groups) == pytest.approx(derived["psi"], abs=5.1e-4)


def test_summaries_of_minilm_follow_from_its_groups():
    rows = [row for row in ROWS if row.task_name == "XQuAD-long en"]
    assert {row.status for row in rows} == {"measured by this project"}
    for row in rows:
        groups = row.figures["groups"].values()
        assert 3 / sum(1 / g for g in groups) == pytest.approx(row.figures["harmonic_mean"], abs=1.01e-4), row.method
        assert 1 - min(groups) / max(groups) == pytest.approx(row.figures["psi"], abs=6e-4), row.method


def test_how_many_there_are():
    counts = {}
    for row in ROWS:
        counts[row.task_name] = counts.get(row.task_name, 0) + 1
    assert counts == {
        "PosIR": 3 * 20 + 7 + 2,
        "SQuAD-PosQ": 10,
        "FineWeb-PosQ (unfiltered)": 10,
        "FineWeb-PosQ": 4,
        "XQuAD-long en": 7,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be a mapping"),
        ("source: a\nrows: []\nrow: 1", "must be a mapping of"),
        ("source: a", '"source" and a list'),
        ("source: a\nrows: [{task: t, model: m}]", "row 1.*method"),
        ("source: a\nrows: [{task: t, model: m, method: x, ndgc: 0.1}]", "row 1: unknown keys ndgc"),
        ("source: a\nrows: [{task: t, model: m, method: x, psi: 41.4}]", "row 1: psi is 41.4"),
        ("source: a\nrows: [{task: t, model: m, method: x, status: heard}]", "row 1: status is 'heard'"),
        ("source: a\ngroups: [b]\nrows: [{task: t, model: m, method: x, groups: [0.1, 0.2]}]", "row 1: groups is"),
        (
            "source: a\ngroups: [b]\nrows: [{task: t, model: m, method: x, groups: [null]}]",
            "row 1: groups has no figures",
        ),
        ("source: a\nrows: [3]", "row 1: is 3; it must be a mapping"),
        ("source: a\nnote: [b]\nrows: []", '"note" must be text'),
        ("source: a\ngroups: [1, 2]\nrows: []", '"groups" must be a list of different names'),
        ("source: a\ngroups: [b, b]\nrows: []", '"groups" must be a list of different names'),
        ("source: a\nrows: [{task: t, model: 3, method: x, psi: 0.1}]", "row 1: model is 3"),
        ("source: a\nrows: [{task: t, model: m, method: x, subset: null, psi: 0.1}]", "row 1: subset is None"),
        ("source: a\nrows: [{task: t, model: m, method: x}]", "row 1: has no figures"),
        ("source: a\nrows: [{task: t, model: m, method: x, psi: -0.1}]", "row 1: psi is -0.1"),
        ("source: a\nrows: [{task: t, model: m, method: x, psi: true}]", "row 1: psi is True"),
        ("source: a\nrows: [{task: t, model: m, method: x, psi: .nan}]", "row 1: psi is nan"),
        ("source: a\nrows: [{task: t, model: m, method: x, buckets: [0.1, 0.2]}]", "row 1: buckets is"),
        ("source: a\nrows: [{task: t, model: m, method: x, buckets: {Q1: [0.1]}}]", "row 1: bucket 'Q1' is"),
        ("source: a\nrows: [{task: t, model: m, method: x, psi: 0.1}, {task: t}]", "row 2: model is None"),
    ],
)
def test_malformed_files_are_refused_with_the_row(tmp_path, text, message):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=f"bad.yaml.*{message}"):
        load_published(tmp_path)


def test_a_folder_without_figures_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="none holds no published figures"):
        load_published(tmp_path / "none")


# --- results beside them ----------------------------------------------------------------------------------------------


def entry(subset="default", groups=("beginning", "middle", "end"), buckets=(), difference=True):
    names = {name: 0.5 + 0.1 * i for i, name in enumerate(groups)}
    interval = {name: [value - 0.05, value + 0.05] for name, value in names.items()}
    change = {"estimate": 0.01, "low": -0.005, "high": 0.025, "p": 0.2}
    figures = {"ndcg_at_10": 0.6, "macro_ndcg_at_10": 0.61, "harmonic_mean": 0.59, "psi": 0.286, "groups": names}
    figures["intervals"] = {"groups": interval}
    if difference:
        keys = ("ndcg_at_10", "macro_ndcg_at_10", "harmonic_mean", "psi")
        figures["difference"] = {**dict.fromkeys(keys, change), "groups": dict.fromkeys(groups, change)}
    made = {"hf_subset": subset, "languages": ["eng-Latn"], "main_score": 0.6, "recall_at_10": 0.7, **figures}
    if buckets:
        made["buckets"] = {bucket: {"judgements": 9, **copy.deepcopy(figures)} for bucket in buckets}
    return made


def result(task="FineWeb-PosQ", method="paper", model="/x/Qwen3-Embedding-0.6B", entries=None):
    return {
        "task_name": task,
        "dataset_revision": "r",
        "scores": {"test": entries or [entry(difference=method != "uncalibrated")]},
        "method": method,
        "calibration": None,
        "model": {"model": model},
        "environment": {},
    }


def test_measured_and_quoted_rows_of_a_model_stand_together_and_say_so():
    other = result(method="BM25") | {"model": None}
    lines = compare([result(method="uncalibrated"), other, result()], ROWS).splitlines()
    assert lines[0] == "### FineWeb-PosQ"
    rows = [line for line in lines if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1
    origins = [row.split("|")[-2].strip() for row in rows]
    ours, theirs = ["measured here", "measured here", ""], ["quoted: arXiv 2606.02737", "derived from arXiv 2606.02737"]
    assert origins[2:] == [*ours, *theirs, *theirs, "measured here", ""]
    assert [row.split("|")[1].split(", ")[-1].strip() for row in rows[5:9]] == [*["uncalibrated"] * 2, *["paper"] * 2]
    assert "| 88.54 |" in " ".join(rows[5].split()) and "76.49" in rows[5]
    assert "unfiltered" not in "\n".join(lines)
    assert lines[-1].startswith("arXiv 2606.02737: Not known which version")


def test_a_table_of_one_run_has_differences_and_no_origin():
    lines = table([result(method="uncalibrated"), result()]).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        *("method", "beginning", "middle", "end", "all", "mean of groups", "harmonic mean", "PSI", "recall@10")
    ]
    assert "+1.00 [-0.50, +2.50]" in lines[6] and "+0.010 [-0.005, +0.025]" in lines[6]


def test_length_buckets_have_the_columns_of_posir():
    made = [entry(subset, ("0.00-0.05", "0.05-0.10"), ("Q1", "Q2")) for subset in ("deu-deu", "multilingual")]
    text = compare([result("PosIR", entries=made)], ROWS)
    assert "### PosIR, deu-deu" in text and "### PosIR, multilingual" in text
    header = next(line for line in text.splitlines() if line.startswith("| method"))
    assert [cell.strip() for cell in header.split("|")[2:-2]] == [
        *("nDCG all", "nDCG Q1", "nDCG Q2", "nDCG Q3", "nDCG Q4", "PSI all", "PSI Q1", "PSI Q2", "PSI Q3", "PSI Q4")
    ]
    quoted = next(line for line in text.splitlines() if "Qwen/Qwen3-Embedding-0.6B, uncalibrated" in line)
    assert [cell.strip() for cell in quoted.split("|")[2:4]] == ["53.79", "62.12"]


def test_results_are_found_in_folders_and_other_files_refused(tmp_path):
    import json

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "r.json").write_text(json.dumps(result()))
    (tmp_path / "a" / "other.json").write_text("{}")
    (tmp_path / "a" / "broken.json").write_text("{")
    assert find_results([tmp_path]) == [result()]
    assert find_results([tmp_path / "a" / "r.json"]) == [result()]
    with pytest.raises(InvalidInput, match="other.json is not a result"):
        find_results([tmp_path / "a" / "other.json"])
    with pytest.raises(InvalidInput, match="does not exist"):
        find_results([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="no results"):
        find_results([tmp_path / "empty"])


# --- plots ------------------------------------------------------------------------------------------------------------


def test_groups_are_bars_with_intervals(tmp_path):
    pytest.importorskip("matplotlib")
    entries = {"uncalibrated": entry(), "paper": entry()}
    (axes,) = draw_groups("title", entries).axes
    assert len(axes.patches) == 6
    assert [patch.get_height() for patch in axes.patches[:3]] == pytest.approx([50, 60, 70])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["beginning", "middle", "end"]
    assert axes.get_ylabel() == "nDCG@10 (%)" and "answer" in axes.get_xlabel()
    for name in ("one", "two"):
        plot_groups(tmp_path / name, "title", entries)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_bins_are_curves_in_a_panel_a_bucket(tmp_path):
    pytest.importorskip("matplotlib")
    entries = {"uncalibrated": entry(groups=("0.00-0.05", "0.05-0.10"), buckets=("Q1", "Q3"))}
    entries["paper"] = entries["uncalibrated"]
    panels = draw_bins("title", entries).axes
    assert [axes.get_title() for axes in panels] == ["Q1 (9 queries)", "Q3 (9 queries)"]
    line = panels[1].lines[1]
    np.testing.assert_allclose(line.get_xydata(), [[0.025, 50], [0.075, 60]])
    assert panels[0].get_ylabel() == "nDCG@10 (%)"
    plot_bins(tmp_path / "bins", "title", entries)
    assert (tmp_path / "bins").read_bytes().startswith(b"\x89PNG")
