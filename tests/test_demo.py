"""The demo from model to files, on a tiny checkpoint and a handful of documents; the benchmark's table and refusals."""

import importlib.util
import json
import re

import numpy as np
import pytest

import jaxcal.bench
import jaxcal.demo
import jaxcal.evaluation.minilm as minilm
from jaxcal.checkpoint.hub import Checkpoint
from jaxcal.errors import CheckpointNotFound, CorruptCheckpoint, InvalidSetting, MissingDependency
from jaxcal.evaluation.datasets import PositionDataset
from jaxcal.tables import markdown_table

pytest.importorskip("matplotlib")


@pytest.fixture
def small(monkeypatch):
    """Six documents of two sections in both orders, one query each for either half."""
    words = np.random.default_rng(0).integers(0, 60, (6, 2, 40))
    sections = [[" ".join(f"w{word}" for word in part) for part in parts] for parts in words]
    passages = [" ".join(order) for first, second in sections for order in ((first, second), (second, first))]
    queries = [" ".join(first.split()[:6]) for first, _ in sections]
    dataset = PositionDataset(
        name="small",
        queries=tuple(queries),
        passages=tuple(passages),
        groups=("beginning", "end"),
        query=np.repeat(np.arange(6), 2),
        gold=np.arange(12),
        group=np.tile([0, 1], 6),
        pool=2 * np.arange(6),
    )
    monkeypatch.setattr(jaxcal.demo, "load_pydoc_posq", lambda variant: dataset)
    return dataset


@pytest.fixture(scope="module")
def folder(written):
    return written("bert", "mean", max_position_embeddings=64).folder


def test_demo_writes_a_table_a_plot_and_a_record(small, folder, tmp_path, capsys):
    jaxcal.demo.demo(model=str(folder), output=tmp_path / "new" / "demo")
    printed = capsys.readouterr().out
    table = [line for line in printed.splitlines() if line.startswith("|")]
    assert len({len(line) for line in table}) == 1 and len(table) == 7
    assert "12 of 12 documents are longer than the 64 tokens" in printed
    assert (tmp_path / "new" / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "new" / "demo" / "demo.json").read_text())
    assert record["dataset"]["truncated_passages"] == 12
    assert record["calibrations"]["uncalibrated"] is None
    assert record["calibrations"]["full strength (1.0)"]["calibrated_layers"] == 2
    assert re.fullmatch("[0-9a-f]{64}", record["model"]["sha256"]["model.safetensors"])
    assert record["environment"]["packages"]["jax"]
    # The figures in the table are those in the record.
    plain = record["scores"]["uncalibrated"]["groups"]["beginning"]
    assert plain["low"] <= plain["estimate"] <= plain["high"]
    assert f"{100 * plain['estimate']:.2f}" in table[2]


def test_outputs_are_tried_before_anything_is_encoded(monkeypatch, tmp_path):
    monkeypatch.setattr(jaxcal.demo, "load", lambda *args, **kwargs: pytest.fail("the model was loaded"))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidSetting, match="file"):
        jaxcal.demo.demo(model="any", output=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "demo" / "demo.json").mkdir(parents=True)
    with pytest.raises(InvalidSetting, match=r"demo\.json"):
        jaxcal.demo.demo(model="any", output=tmp_path / "demo")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"jaxcal\[evaluation\]"):
        jaxcal.demo.demo(model="any", output=tmp_path)


def test_weights_that_are_not_the_published_ones(monkeypatch, folder):
    monkeypatch.setattr(minilm, "resolve", lambda *args, **kwargs: Checkpoint("x", folder, folder))
    with pytest.raises(CorruptCheckpoint, match="sha256"):
        minilm.load_minilm(64)


def test_nothing_is_installed_offline(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(minilm.subprocess, "run", lambda *args, **kwargs: pytest.fail("something was installed"))
    with pytest.raises(CheckpointNotFound, match="HF_HUB_OFFLINE is set"):
        minilm.load_minilm(64)


def test_bench_writes_its_table_as_json_lines(monkeypatch, tmp_path, capsys):
    def made():
        yield jaxcal.bench._ratio("made", "a / b", [2.0, 4.0, 3.0], [2.0, 2.0, 2.0], None, 1.2)
        yield jaxcal.bench._ratio("made", "b / a", [2.0], [1.0], 1.0, None)

    monkeypatch.setitem(jaxcal.bench.BENCHES, "made", made)
    jaxcal.bench.bench("made", tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["value"], row["kept"]) for row in rows] == [(1.5, False), (2.0, True)]
    assert rows[0]["detail"]["round_ratios"] == [1.0, 1.5, 2.0]
    assert "| made: a / b |" in capsys.readouterr().out


def test_bench_refuses_before_it_measures(tmp_path, monkeypatch):
    monkeypatch.setitem(jaxcal.bench.BENCHES, "made", lambda: pytest.fail("it measured"))
    with pytest.raises(InvalidSetting, match="there is no benchmark 'speed'; choose all, "):
        jaxcal.bench.bench("speed")
    with pytest.raises(InvalidSetting):
        jaxcal.bench.bench("made", tmp_path / "missing" / "rows.jsonl")


def test_runs_take_turns():
    order = []
    seconds = jaxcal.bench.interleaved(lambda: order.append("a"), lambda: order.append("b"), rounds=3)
    assert order == ["a", "b"] * 4  # one round to warm up
    assert [len(times) for times in seconds] == [3, 3]


def test_tables_align():
    assert markdown_table(["name", "n"], [["a", "10"], ["long name", "3"]]).splitlines() == [
        "| name      |  n |",
        "| --------- | -: |",
        "| a         | 10 |",
        "| long name |  3 |",
    ]
