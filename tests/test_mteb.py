"""The adapter for mteb: its own check of models, prompts, results kept apart, and position-aware tasks."""

import dataclasses
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

import jax
from official_layouts import posir_tables, squad_rows, write_jsonl, write_posir

from jaxcal import Calibration
from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.config import EvaluationConfig
from jaxcal.evaluation.datasets import Benchmark, PositionDataset, Task, load_benchmark, load_posir, load_squad_posq
from jaxcal.evaluation.mteb import JaxcalEncoder, _position_scores, as_mteb_task
from jaxcal.evaluation.runner import evaluate

pytestmark = pytest.mark.filterwarnings("default")  # mteb and what it brings warn as they please

SMALL = Calibration(basket_size=8, strength=1.0)


@pytest.fixture
def encoder(loaded):
    return loaded("bert", "mean", max_position_embeddings=128)


def batches(texts, size=2):
    return [{"text": texts[start : start + size]} for start in range(0, len(texts), size)]


def encode(model, texts, kind):
    """What mteb gets of texts in a task "T" of the type Retrieval."""
    task = SimpleNamespace(name="T", type="Retrieval")
    kind = kind and PromptType(kind)
    return model.encode(batches(texts), task_metadata=task, hf_split="test", hf_subset="default", prompt_type=kind)


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
    plain = encoder.encode(texts)
    np.testing.assert_allclose(encode(model, texts, "query"), plain, atol=5e-6)
    np.testing.assert_allclose(encode(model, texts, None), plain, atol=5e-6)
    calibrated = encode(model, texts, "document")
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
    got = encode(model, ["w9 w8"], kind)
    np.testing.assert_allclose(got, encoder.encode([expected + "w9 w8"]), atol=5e-6)


def test_the_prompts_of_the_checkpoint_are_the_default(encoder, monkeypatch):
    monkeypatch.setattr(type(encoder), "prompt", lambda self, kind: {"query": "w3 ", "document": "w6 "}[kind])
    model = JaxcalEncoder(encoder=encoder)
    assert model.mteb_model_meta.use_instructions
    for kind, prompt in (("query", "w3 "), ("document", "w6 ")):
        got = encode(model, ["w9 w8"], kind)
        np.testing.assert_allclose(got, encoder.encode([prompt + "w9 w8"]), atol=5e-6)


def test_what_mteb_is_told(encoder):
    plain, calibrated = JaxcalEncoder(encoder=encoder), JaxcalEncoder(encoder=encoder, calibration=SMALL)
    meta = calibrated.mteb_model_meta
    assert meta.framework == ["JAX"] and meta.name.startswith("local/") and len(meta.revision) == 40
    assert meta.experiment_kwargs["calibration_basket_size"] == 8
    assert plain.mteb_model_meta.experiment_kwargs is None, "the model as published is no experiment"
    assert meta.max_tokens == 128 and meta.embed_dim == encoder.dimension


def test_results_of_other_settings_are_never_taken_from_the_cache(written, tmp_path):
    folder = str(written("bert", "mean", max_position_embeddings=128).folder)
    settings = [
        {},
        {"calibration": SMALL},
        {"calibration": SMALL.replace(strength=0.5)},
        {"prompts": {"query": "w1 "}},
        {"prompts": {"query": "w2 "}},
        {"max_length": 16},
        {"dtype": "bfloat16"},
    ]
    cache = ResultCache(tmp_path)
    metas = [JaxcalEncoder(folder, **options).mteb_model_meta for options in settings]
    assert len({cache.get_task_result_path("T", meta) for meta in metas}) == len(settings)
    assert JaxcalEncoder(folder, max_length=128, device=jax.default_backend()).mteb_model_meta == metas[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "device is 'cuda'"),
        ({"calibration": 0.5}, "calibration is 0.5; it must be a jaxcal.Calibration"),
        ({"model_name": "BAAI/bge-m3"}, "encoder is loaded already"),
        ({"revision": "main"}, "encoder is loaded already"),
        ({"dtype": "bfloat16"}, "encoder is loaded already"),
        ({"max_length": 16}, "encoder is loaded already"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(encoder, options, message):
    with pytest.raises(InvalidSetting, match=message):
        JaxcalEncoder(encoder=encoder, **options)


def test_a_precision_that_jaxcal_does_not_give_is_refused(encoder):
    def encode(**options):
        task = SimpleNamespace(name="T", type="STS")
        return JaxcalEncoder(encoder=encoder).encode(
            batches(["w9"]), task_metadata=task, hf_split="test", hf_subset="default", **options
        )

    assert encode(precision="float32", batch_size=7).dtype == np.float32
    with pytest.raises(InvalidSetting, match="precision is 'int8'"):
        encode(precision="int8")


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


class Recorded(JaxcalEncoder):
    """Keeps the vectors it gave to mteb."""

    def encode(self, inputs, *, prompt_type=None, **options):
        vectors = super().encode(inputs, prompt_type=prompt_type, **options)
        self.given = {**getattr(self, "given", {}), prompt_type: vectors}
        return vectors


def words(rng, count):
    return " ".join(f"w{i}" for i in rng.integers(0, 70, count))


@pytest.mark.parametrize("calibration", [None, SMALL])
def test_a_small_data_set_as_a_task_by_hand(encoder, calibration, tmp_path):
    rng = np.random.default_rng(3)
    gold = [3, 9, 14, 0, 21, 7]
    dataset = PositionDataset(
        name="Small",
        queries=tuple(words(rng, 6) for _ in gold),
        passages=tuple(words(rng, 40) for _ in range(24)),
        groups=("early", "late"),
        query=np.array([0, 1, 2, 3, 4, 5, 0]),  # the first query counts for both groups
        gold=np.array([*gold, gold[0]]),
        group=np.array([0, 0, 0, 1, 1, 1, 1]),
    )
    benchmark = Benchmark("Small", "test", {"files": {}}, (Task("default", ("eng-Latn",), lambda: [dataset]),))
    model = Recorded(encoder=encoder, calibration=calibration)
    (got,) = run(model, as_mteb_task(benchmark), ResultCache(tmp_path)).scores["test"]

    queries, passages = (model.given[kind].astype(np.float64) for kind in (PromptType.query, PromptType.document))
    np.testing.assert_allclose(passages, encoder.encode(dataset.passages, calibration=calibration), atol=5e-6)
    cosines = (queries / np.linalg.norm(queries, axis=1)[:, None]) @ (
        passages / np.linalg.norm(passages, axis=1)[:, None]
    ).T
    lead = cosines - cosines[np.arange(6), gold][:, None]
    assert np.sort(abs(lead), axis=1)[:, 1].min() > 1e-5, "the order must not hang on rounding"
    ranks = 1 + (lead > 0).sum(axis=1)
    gains = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)
    early, late = gains[:3].mean(), gains[[3, 4, 5, 0]].mean()
    assert early > 0 and late > 0 and early != late
    assert got["ndcg_at_10"] == pytest.approx(gains.mean(), abs=1e-5)  # mteb rounds to five digits, and counts it once
    assert got["main_score"] == got["ndcg_at_10"]
    assert got["ndcg_at_10_early"] == pytest.approx(early, abs=1e-9)
    assert got["ndcg_at_10_late"] == pytest.approx(late, abs=1e-9)
    assert got["harmonic_mean"] == pytest.approx(2 / (1 / early + 1 / late), abs=1e-9)
    assert got["psi"] == pytest.approx(1 - min(early, late) / max(early, late), abs=1e-9)


def test_other_local_data_of_the_same_name_is_another_task(tmp_path):
    names = set()
    for seed in (0, 1):
        write_jsonl(tmp_path / str(seed) / "rows.jsonl", squad_rows(40, seed))
        metadata = as_mteb_task(load_squad_posq(str(tmp_path / str(seed) / "rows.jsonl"))).metadata
        assert metadata.name == f"SQuAD-PosQ-{metadata.revision[:8]}" and len(metadata.revision) == 64
        names.add(metadata.name)
    assert len(names) == 2
    hub = dataclasses.replace(
        load_squad_posq(str(tmp_path / "0" / "rows.jsonl")), source={"repository": "a/b", "revision": "c" * 40}
    )
    metadata = as_mteb_task(hub).metadata
    assert (metadata.name, metadata.dataset) == ("SQuAD-PosQ", {"path": "a/b", "revision": "c" * 40})


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
            assert got[f"ndcg_at_10_{group}"] == pytest.approx(value, abs=1e-9)
        assert got["psi"] == pytest.approx(ours["psi"], abs=1e-9)
        assert got["harmonic_mean"] == pytest.approx(ours["harmonic_mean"], abs=1e-9)


def test_posir_as_a_task_has_a_subset_a_pair_and_domain(encoder, tmp_path):
    tables = posir_tables()
    for name, rows in tables.items():
        if name.endswith("corpus.parquet"):  # every text stands there several times, so that the order of ties counts
            for number, row in enumerate(rows):
                row["text"] = rows[number % 9]["text"]
    folder = str(write_posir(tmp_path / "posir", tables))
    benchmark = load_posir(folder, languages=["deu", "eng"])
    task = as_mteb_task(benchmark)
    assert set(task.hf_subsets) == {
        f"{pair}/{domain}" for pair in ("deu-deu", "eng-eng", "deu-eng") for domain in ("law", "tea")
    }
    result = run(JaxcalEncoder(encoder=encoder), task, ResultCache(tmp_path / "cache"))
    scores = {one["hf_subset"]: one for one in result.scores["test"]}
    assert scores["deu-eng/law"]["languages"] == ["deu-Latn", "eng-Latn"]
    assert 0 <= scores["deu-deu/tea"]["psi"] <= 1
    for part in benchmark.tasks:
        for domain, dataset in zip(part.parts, part.load(), strict=True):
            one = scores[f"{part.subset}/{domain}"]
            sizes = {name: values.size for name, values in dataset.by_group(dataset.query).items() if values.size}
            # Each query is judged once, so the groups together are pytrec_eval's own figure, ties and all.
            total = sum(one[f"ndcg_at_10_{name}"] * size for name, size in sizes.items()) / len(dataset.query)
            assert total == pytest.approx(one["ndcg_at_10"], abs=1e-5)


def test_one_domain_of_posir_keeps_its_name(tmp_path):
    folder = str(write_posir(tmp_path, posir_tables()))
    task = as_mteb_task(load_posir(folder, languages=["deu"], domains=["tea"]))
    assert set(task.hf_subsets) == {"deu-deu/tea", "deu-eng/tea"}


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
    got = _position_scores(dataset, results, "average")
    assert {key: got[key] for key in expected} == pytest.approx(expected)
    assert _position_scores(dataset, results | {"2": {"0": 0.9}}, "average")["ndcg_at_10_late"] == 0
    assert _position_scores(dataset, {}, "average")["ndcg_at_10_early"] == 0

    # As trec_eval orders ties, "1" stands before "0": query 1 looks for "1", so it is first.
    assert _position_scores(dataset, results, "trec")["ndcg_at_10_early"] == 1
    results["1"] = {"0": 0.2, "1": 0.7, "2": 0.7}  # and now "2" stands before it
    assert _position_scores(dataset, results, "trec")["ndcg_at_10_early"] == pytest.approx((1 + 1 / np.log2(3)) / 2)
