"""The adapter for mteb: its own check of models, prompts, results kept apart, and position-aware tasks."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    mteb = pytest.importorskip("mteb")
    from mteb.cache import ResultCache
    from mteb.models.models_protocols import EncoderProtocol
    from mteb.results.task_result import TaskError
    from mteb.types import PromptType

from official_layouts import posir_tables, squad_rows, write_jsonl, write_posir

from jaxcal import Calibration
from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.config import EvaluationConfig
from jaxcal.evaluation.datasets import PositionDataset, load_benchmark, load_posir, load_squad_posq
from jaxcal.evaluation.mteb import JaxcalEncoder, _position_scores, as_mteb_task
from jaxcal.evaluation.runner import evaluate

pytestmark = pytest.mark.filterwarnings("default")  # mteb and what it brings warn as they please

SMALL = Calibration(basket_size=8, strength=1.0)


@pytest.fixture
def encoder(loaded):
    return loaded("bert", "mean", max_position_embeddings=128)


def batches(texts, size=2):
    return [{"text": texts[start : start + size]} for start in range(0, len(texts), size)]


@pytest.mark.parametrize("calibration", [None, SMALL])
def test_mteb_finds_nothing_wrong(encoder, calibration):
    model = JaxcalEncoder(encoder=encoder, calibration=calibration)
    assert isinstance(model, EncoderProtocol)
    results = mteb.mock_run(model)
    ran = {name: status for name, status in results.items() if status is not None}
    failed = {name: status.exception for name, status in ran.items() if isinstance(status, TaskError)}
    assert len(ran) > 20 and not failed


def test_documents_are_calibrated_and_nothing_else(encoder):
    texts = [" ".join(f"w{(7 * n + i) % 70}" for i in range(40)) for n in range(5)]
    model = JaxcalEncoder(encoder=encoder, calibration=SMALL)
    task = SimpleNamespace(name="T", type="Retrieval")

    def encode(kind):
        return model.encode(batches(texts), task_metadata=task, hf_split="test", hf_subset="default", prompt_type=kind)

    plain = encoder.encode(texts)
    np.testing.assert_allclose(encode(PromptType.query), plain, atol=5e-6)
    np.testing.assert_allclose(encode(None), plain, atol=5e-6)
    calibrated = encode(PromptType.document)
    np.testing.assert_allclose(calibrated, encoder.encode(texts, calibration=SMALL), atol=5e-6)
    assert abs(calibrated - plain).max() > 1e-4


@pytest.mark.parametrize(
    ("prompts", "kind", "expected"),
    [
        ({}, "query", ""),
        ({"query": "w1 "}, "query", "w1 "),
        ({"query": "w1 ", "Retrieval": "w2 "}, "query", "w2 "),
        ({"Retrieval": "w2 ", "Retrieval-query": "w3 "}, "query", "w3 "),
        ({"Retrieval-query": "w3 ", "T": "w4 "}, "query", "w4 "),
        ({"T": "w4 ", "T-query": "w5 "}, "query", "w5 "),
        ({"T": "w4 ", "T-query": "w5 "}, "document", "w4 "),
        ({"query": "w1 "}, "document", ""),
    ],
)
def test_prompts_in_the_order_of_mteb(encoder, prompts, kind, expected):
    model = JaxcalEncoder(encoder=encoder, prompts=prompts)
    got = model.encode(
        batches(["w9 w8"]),
        task_metadata=SimpleNamespace(name="T", type="Retrieval"),
        hf_split="test",
        hf_subset="default",
        prompt_type=PromptType(kind),
    )
    np.testing.assert_allclose(got, encoder.encode([expected + "w9 w8"]), atol=5e-6)


def test_the_prompts_of_the_checkpoint_are_the_default(encoder, monkeypatch):
    monkeypatch.setattr(type(encoder), "prompt", lambda self, kind: {"query": "w3 ", "document": "w6 "}[kind])
    model = JaxcalEncoder(encoder=encoder)
    assert model.mteb_model_meta.use_instructions
    for kind, prompt in (("query", "w3 "), ("document", "w6 ")):
        got = model.encode(
            batches(["w9 w8"]),
            task_metadata=SimpleNamespace(name="T", type="Retrieval"),
            hf_split="test",
            hf_subset="default",
            prompt_type=PromptType(kind),
        )
        np.testing.assert_allclose(got, encoder.encode([prompt + "w9 w8"]), atol=5e-6)


def test_what_mteb_is_told(encoder):
    plain, calibrated = JaxcalEncoder(encoder=encoder), JaxcalEncoder(encoder=encoder, calibration=SMALL)
    meta = calibrated.mteb_model_meta
    assert meta.framework == ["JAX"] and meta.name.startswith("local/") and len(meta.revision) == 40
    assert meta.experiment_kwargs["calibration_basket_size"] == 8
    assert plain.mteb_model_meta != meta, "results of one must not be taken for those of the other"
    assert meta.max_tokens == 128 and meta.embed_dim == encoder.dimension
    with pytest.raises(InvalidSetting, match="device is 'cuda'"):
        JaxcalEncoder(encoder=encoder, device="cuda")


def test_similarities_are_cosines(encoder):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 4, 8)).astype(np.float32)
    model = JaxcalEncoder(encoder=encoder)
    cosines = (a / np.linalg.norm(a, axis=1, keepdims=True)) @ (b / np.linalg.norm(b, axis=1, keepdims=True)).T
    np.testing.assert_allclose(np.asarray(model.similarity(a, b)), cosines, atol=1e-6)
    np.testing.assert_allclose(np.asarray(model.similarity_pairwise(a, b)), np.diag(cosines), atol=1e-6)


# --- tasks ------------------------------------------------------------------------------------------------------------


def run(model, task, cache):
    return mteb.evaluate(model, task, cache=cache, show_progress_bar=False).task_results[0]


def test_squad_posq_as_a_task_scores_as_jaxcal_evaluate_does(encoder, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", squad_rows(120))
    options = {"name": "squad-posq", "files": str(tmp_path / "rows.jsonl")}
    config = EvaluationConfig(dataset=options, calibrations={"small": SMALL}, resamples=10)
    expected = {result["method"]: result for result in evaluate(config, encoder, tmp_path / "out")}
    cache = ResultCache(tmp_path / "cache")
    for method, calibration in (("uncalibrated", None), ("small", SMALL)):
        task = as_mteb_task(load_squad_posq(str(tmp_path / "rows.jsonl")))
        (got,) = run(JaxcalEncoder(encoder=encoder, calibration=calibration), task, cache).scores["train+validation"]
        (ours,) = expected[method]["scores"]["train+validation"]
        for group, value in ours["groups"].items():
            assert got[f"ndcg_at_10_{group}"] == pytest.approx(value, abs=5e-3)  # near ties of random weights
        assert got["psi"] == pytest.approx(ours["psi"], abs=0.05)
        assert {"ndcg_at_10", "recall_at_5", "harmonic_mean"} <= got.keys()


def test_posir_as_a_task_has_a_subset_a_pair_and_domain(encoder, tmp_path):
    folder = write_posir(tmp_path / "posir", posir_tables())
    task = as_mteb_task(load_posir(str(folder), languages=["deu", "eng"]))
    assert set(task.hf_subsets) == {
        f"{pair}/{domain}" for pair in ("deu-deu", "eng-eng", "deu-eng") for domain in ("law", "tea")
    }
    result = run(JaxcalEncoder(encoder=encoder), task, ResultCache(tmp_path / "cache"))
    scores = {one["hf_subset"]: one for one in result.scores["test"]}
    assert scores["deu-eng/law"]["languages"] == ["deu-Latn", "eng-Latn"]
    assert 0 <= scores["deu-deu/tea"]["psi"] <= 1


def test_versions_of_a_document_are_refused(encoder):
    task = as_mteb_task(load_benchmark("pydoc-posq", {}, len))
    with pytest.raises(InvalidInput, match="one at a time, which mteb cannot do"):
        task.load_data()


def test_figures_by_position_from_results_by_hand():
    arrays = {"query": [0, 1, 2], "gold": [0, 1, 2], "group": [0, 0, 1]}
    dataset = PositionDataset("d", ("a", "b", "c"), ("x", "y", "z"), ("early", "late"), **arrays)
    results = {"0": {"0": 0.9, "1": 0.5}, "1": {"0": 0.7, "1": 0.7, "2": 0.1}, "2": {"0": 0.9, "1": 0.8, "2": 0.3}}
    early = (1 + (1 + 1 / np.log2(3)) / 2) / 2  # first, and tied with another for the first two ranks
    expected = {"ndcg_at_10_early": early, "ndcg_at_10_late": 0.5, "psi": 1 - 0.5 / early}
    got = _position_scores(dataset, results)
    assert {key: got[key] for key in expected} == pytest.approx(expected)
    assert _position_scores(dataset, results | {"2": {"0": 0.9}})["ndcg_at_10_late"] == 0
