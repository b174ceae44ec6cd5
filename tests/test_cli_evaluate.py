"""`jaxcal evaluate` on the command line: from a configuration to files, side by side, and mistakes in one line."""

import json
import re
from pathlib import Path

import pytest
from official_layouts import squad_rows, write_jsonl

from jaxcal.cli import main

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def evaluated(written, tmp_path_factory):
    """A folder with a configuration, a model file, and the results of one run."""
    place = tmp_path_factory.mktemp("evaluated")
    write_jsonl(place / "rows.jsonl", squad_rows(60))
    (place / "c.yaml").write_text("dataset: {name: squad-posq, files: [rows.jsonl]}\nresamples: 20\n")
    (place / "small.yaml").write_text("basket_size: 8\n")
    (place / "sharp.yaml").write_text("basket_size: 8\nstrength: 1.0\n")
    folder = written("bert", "mean", max_position_embeddings=128).folder
    (place / "model.yaml").write_text(f"model: {folder}\nmax_length: 100\n")
    options = ["--model", str(place / "model.yaml"), "--output", str(place / "out")]
    calibrations = ["--calibration", str(place / "small.yaml"), str(place / "sharp.yaml")]
    assert main(["evaluate", str(place / "c.yaml"), *options, *calibrations]) == 0
    return place


def results(place):
    return {path.stem: json.loads(path.read_text()) for path in (place / "out" / "SQuAD-PosQ").rglob("*.json")}


def test_calibrations_are_named_as_their_files(evaluated):
    found = results(evaluated)
    assert set(found) == {"uncalibrated", "small", "sharp"}
    assert found["small"]["calibration"]["strength"] == 0.5 and found["sharp"]["calibration"]["strength"] == 1.0
    assert found["small"]["model"]["max_length"] == 100, "as the model's file says"


def test_options_from_a_file_and_another_cache(evaluated, tmp_path, capsys):
    (tmp_path / "options.yaml").write_text(
        f"evaluation: {evaluated / 'c.yaml'}\nmodel: {evaluated / 'model.yaml'}\noutput: {tmp_path / 'new'}\n"
        f"cache: {evaluated / 'out' / 'vectors'}\n"
    )
    assert main(["evaluate", "--config", str(tmp_path / "options.yaml")]) == 0
    printed = capsys.readouterr()
    encoded = re.findall(r"(\d+) texts encoded, \d+ were there", printed.err)
    assert len(encoded) == 2 and set(encoded) == {"0"}, "the vectors of the other output serve"
    assert "SQuAD-PosQ default: 60 questions read" in printed.out and "| uncalibrated |" in printed.out
    (path,) = (tmp_path / "new" / "SQuAD-PosQ").rglob("uncalibrated.json")
    assert json.loads(path.read_text()) == results(evaluated)["uncalibrated"]


def test_results_beside_published_figures(evaluated, capsys):
    assert main(["evaluate", "--compare", str(evaluated / "out")]) == 0
    printed = capsys.readouterr().out
    assert "measured here" in printed and "quoted: arXiv 2505.13950v1" in printed
    assert "84.47" in printed, "bge-m3, first bin"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "CONFIG, --model and --output must be given, or --compare"),
        (("c.yaml", "--model", "m"), "CONFIG, --model and --output must be given"),
        (("no.yaml", "--model", "m", "--output", "o"), "no.yaml cannot be read"),
        (("c.yaml", "--compare", "r"), "--compare shows results that are there"),
        (("--compare", "none"), "none does not exist"),
        (("--compare",), "--compare: expected at least one argument"),
        (("c.yaml", "--model", "m", "--output", "o", "--calibration", "no.yaml"), "no.yaml cannot be read"),
        (("c.yaml", "--model", "m", "--output", "c.yaml"), "c.yaml cannot be made a folder"),
        (("c.yaml", "--model", "m", "--output", "o", "--dtype", "int8"), "--dtype is 'int8'; it must be float32"),
        (("c.yaml", "more.yaml", "--model", "m", "--output", "o"), "unrecognized arguments: more.yaml"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("dataset: pydoc-posq\n")
    monkeypatch.setattr("jaxcal.encoder.load", lambda *_, **__: pytest.fail("the model was loaded"))
    assert main(["evaluate", *argv]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and message in printed.err and printed.err.count("\n") == 1


def test_a_data_set_that_is_not_there_is_refused_in_one_line(evaluated, tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("dataset: {name: squad-posq, files: [none.json]}\n")
    options = ["--model", str(evaluated / "model.yaml"), "--output", str(tmp_path / "out")]
    assert main(["evaluate", str(tmp_path / "c.yaml"), *options]) == 2
    assert f"{tmp_path / 'none.json'} is not a file" in capsys.readouterr().err
