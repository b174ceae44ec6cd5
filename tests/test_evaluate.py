"""Evaluations from files to files: the official scripts' arithmetic recomputed, what is written, and killed runs."""

import importlib.util
import json
import math
import os
import random
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest
from official_layouts import fineweb_rows, posir_tables, squad_rows, write_jsonl, write_parquet, write_posir

import jaxcal
from jaxcal import Calibration
from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.config import EvaluationConfig, read_config, read_model
from jaxcal.evaluation.datasets.posir import POSIR_INSTRUCTION
from jaxcal.evaluation.runner import evaluate
from jaxcal.evaluation.vectors import VectorStore

pytest.importorskip("matplotlib")
pytest.importorskip("bm25s")

SMALL = Calibration(basket_size=8, strength=1.0)
BINS = [(0, 100), (100, 200), (200, 300), (300, 400), (400, 500), (500, 3120)]


@pytest.fixture
def encoder(written):
    return jaxcal.load(written("bert", "mean", max_position_embeddings=128).folder)


def run(encoder, output, dataset, **options):
    config = EvaluationConfig(dataset=dataset, **{"resamples": 50, **options})
    return {result["method"]: result for result in evaluate(config, encoder, output)}


def only(result):
    ((one,),) = result["scores"].values()
    return one


# --- the official scripts' arithmetic ---------------------------------------------------------------------------------


def sklearn_ndcg(queries, passages, gold):
    """As exp_SQuAD-PosQ.py scores: the 100 best of each query, handed to scikit-learn with one relevant passage."""
    ndcg_score = pytest.importorskip("sklearn.metrics").ndcg_score
    # The product as the search makes it: passages of random weights are so alike that a last bit decides on ranks.
    similarities = np.asarray(jnp.matmul(queries, passages.T, precision="highest"))
    np.testing.assert_allclose(similarities, queries.astype(np.float64) @ passages.T, rtol=0, atol=1e-6)
    scores = []
    for row, g in zip(similarities, gold, strict=True):
        best = np.argsort(-row, kind="stable")[:100]
        relevance = (best == g).astype(int)
        scores.append(ndcg_score(relevance[None], row[best][None], k=10) if relevance.any() else 0.0)
    return np.array(scores)


def recall_at(queries, passages, gold, k):
    ranks = [(passages @ q > (passages @ q)[g]).sum() for q, g in zip(queries, gold, strict=True)]
    return np.mean(np.array(ranks) < k)


@pytest.mark.parametrize("calibration", [None, SMALL])
def test_squad_posq_equals_the_official_arithmetic(encoder, tmp_path, calibration):
    rows = squad_rows()
    write_jsonl(tmp_path / "rows.jsonl", rows)
    results = run(
        encoder,
        tmp_path / "out",
        {"name": "squad-posq", "files": str(tmp_path / "rows.jsonl")},
        calibrations={"full": SMALL},
    )
    one = only(results["full" if calibration else "uncalibrated"])
    corpus = list(dict.fromkeys(row["context"] for row in rows))
    answerable = [row for row in rows if row["answers"]["text"]]
    last = {row["question"]: row["context"] for row in answerable}
    gold = [corpus.index(last[row["question"]]) for row in answerable]
    # The vectors of the run, so that nothing but the arithmetic is compared.
    store = VectorStore(tmp_path / "out" / "vectors", encoder)
    passages = store.encode(corpus, calibration=calibration).vectors
    texts = list(dict.fromkeys(row["question"] for row in answerable))
    found = dict(zip(texts, store.encode(texts).vectors, strict=True))
    queries = np.stack([found[row["question"]] for row in answerable])
    scores = sklearn_ndcg(queries, passages, gold)
    starts = np.array([row["answers"]["answer_start"][0] for row in answerable])
    groups = {f"{low}-{high}": scores[(starts >= low) & (starts <= high)] for low, high in BINS}
    assert one["groups"] == pytest.approx({name: values.mean() for name, values in groups.items()}, abs=1e-12)
    means = np.array([values.mean() for values in groups.values()])
    assert one["psi"] == pytest.approx(1 - means.min() / means.max(), abs=1e-12)
    assert one["harmonic_mean"] == pytest.approx(len(means) / (1 / means).sum(), abs=1e-12)
    assert one["macro_ndcg_at_10"] == pytest.approx(means.mean(), abs=1e-12)
    assert (
        one["main_score"] == one["ndcg_at_10"] == pytest.approx(np.concatenate(list(groups.values())).mean(), abs=1e-12)
    )
    judged = np.concatenate([np.flatnonzero((starts >= low) & (starts <= high)) for low, high in BINS])
    for k in (5, 20):
        expected = recall_at(queries[judged], passages, np.array(gold)[judged], k)
        assert one[f"recall_at_{k}"] == pytest.approx(expected, abs=1e-12)


def test_fineweb_posq_equals_the_official_arithmetic(encoder, tmp_path):
    rows = fineweb_rows()
    write_parquet(tmp_path / "rows.parquet", rows)
    one = only(
        run(encoder, tmp_path / "out", {"name": "fineweb-posq", "files": str(tmp_path / "rows.parquet")})[
            "uncalibrated"
        ]
    )
    corpus = list(dict.fromkeys(row["content"] for row in rows))
    asked = [row for row in rows if row["question"]]
    last = {row["question"]: row["content"] for row in asked}
    store = VectorStore(tmp_path / "out" / "vectors", encoder)
    queries = store.encode([row["question"] for row in asked]).vectors
    gold = [corpus.index(last[row["question"]]) for row in asked]
    scores = sklearn_ndcg(queries, store.encode(corpus).vectors, gold)
    for group in ("beginning", "middle", "end"):
        expected = np.mean([s for s, row in zip(scores, asked, strict=True) if group in row["span_class"]])
        assert one["groups"][group] == pytest.approx(expected, abs=1e-12)


def test_posir_equals_the_official_arithmetic(encoder, tmp_path):
    """Domains searched apart, pooled; bins by pytrec_eval's nDCG; buckets by the mean of bins; pairs averaged."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    tables = posir_tables()
    folder = write_posir(tmp_path / "posir", tables)
    options = {"name": "posir", "folder": str(folder), "languages": ["deu", "eng"]}
    result = run(encoder, tmp_path / "out", options, prompts="posir")["uncalibrated"]
    entries = {one["hf_subset"]: one for one in result["scores"]["test"]}
    assert list(entries) == ["deu-deu", "eng-eng", "deu-eng", "multilingual"]
    assert entries["deu-eng"]["parts"] == ["law", "tea"], "a part of the domains is never silent"
    store = VectorStore(tmp_path / "out" / "vectors", encoder)
    for subset, one in entries.items():
        if subset == "multilingual":
            continue
        asked, corpus = ({"deu": "deu-Latn", "eng": "eng-Latn"}[code] for code in subset.split("-"))
        scored = []
        for domain in ("law", "tea"):
            queries = tables[f"{asked}/{domain}/queries.parquet"]
            passages = tables[f"{corpus}/{domain}/corpus.parquet"]
            qrels = {r["query-id"]: {r["corpus-id"]: 1} for r in tables[f"{asked}/{domain}/qrels/test.parquet"]}
            texts = store.encode([p["text"] for p in passages]).vectors
            asked_vectors = store.encode([q["text"] for q in queries], prompt=POSIR_INSTRUCTION).vectors
            names = [p["_id"] for p in passages]
            listed = {
                q["_id"]: dict(zip(names, (texts @ v).tolist(), strict=True))
                for q, v in zip(queries, asked_vectors, strict=True)
            }
            measured = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(listed)
            scored += [(q, measured[q["_id"]]["ndcg_cut_10"]) for q in queries]
        assert one["ndcg_at_10"] == pytest.approx(np.mean([s for _, s in scored]), abs=1e-9)
        bins = {}
        for q, s in scored:
            relative = min(max(sum(q["pos_char_span"]) / 2 / q["pos_char_length"], 0), 1)
            tokens = q["pos_token_length"]
            bucket = 1 if tokens <= 512 else 2 if tokens <= 1024 else 3 if tokens <= 1536 else 4
            for which in (0, bucket):  # 0: all lengths
                bins.setdefault(which, {}).setdefault(max(math.ceil(relative * 20 - 1e-12) - 1, 0), []).append(s)
        means = {which: [np.mean(values) for values in of.values()] for which, of in bins.items()}
        assert one["psi"] == pytest.approx(1 - min(means[0]) / max(means[0]), abs=1e-9)
        for bucket in (1, 2, 3, 4):
            got = one["buckets"][f"Q{bucket}"]
            assert got["macro_ndcg_at_10"] == pytest.approx(np.mean(means[bucket]), abs=1e-9)
            assert got["psi"] == pytest.approx(1 - min(means[bucket]) / max(means[bucket]), abs=1e-9)
    average = entries["multilingual"]
    for key in ("ndcg_at_10", "psi"):
        assert average[key] == pytest.approx((entries["deu-deu"][key] + entries["eng-eng"][key]) / 2, abs=1e-12)
        key = {"ndcg_at_10": "macro_ndcg_at_10"}.get(key, key)
        two = [entries[subset]["buckets"]["Q4"][key] for subset in ("deu-deu", "eng-eng")]
        assert average["buckets"]["Q4"][key] == pytest.approx(np.mean(two), abs=1e-12)
    assert result["protocol"]["prompts"]["query"] == POSIR_INSTRUCTION and result["protocol"]["ties"] == "trec"


# --- what is written --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(written, tmp_path_factory):
    """One evaluation with every kind of method on a small corpus, and its folder."""
    place = tmp_path_factory.mktemp("small")
    rows = squad_rows(80)
    write_jsonl(place / "rows.jsonl", rows)
    encoder = jaxcal.load(written("bert", "mean", max_position_embeddings=128).folder)
    options = {"calibrations": {"full strength": SMALL}, "segment_average": (8,), "bm25": True}
    results = run(encoder, place / "out", {"name": "squad-posq", "files": str(place / "rows.jsonl")}, **options)
    (folder,) = (place / "out" / "SQuAD-PosQ").iterdir()
    return place, encoder, options, results, folder


def test_one_result_a_method_in_the_layout_of_mteb(small, written):
    place, encoder, _, results, folder = small
    assert list(results) == ["uncalibrated", "full strength", "segment-average 8", "BM25"]
    for name, result in results.items():
        path = folder / f"{name.replace(' ', '-')}.json"
        assert json.loads(path.read_text()) == result
        one = only(result)
        assert {"main_score", "hf_subset", "languages"} <= one.keys()
        assert result["environment"]["packages"]["jax"]
        assert ("difference" in one) == (name != "uncalibrated")
    assert results["full strength"]["calibration"]["basket_size"] == 8
    assert results["uncalibrated"]["calibration"] is None and results["BM25"]["model"] is None
    assert len(results["uncalibrated"]["model"]["files"]) == 64
    assert str(place) not in json.dumps(results), "a result does not tell where things stood"
    assert only(results["full strength"])["passages_below_one_basket"] == 0
    for name in list(results)[1:]:
        difference = only(results[name])["difference"]
        change = only(results[name])["psi"] - only(results["uncalibrated"])["psi"]
        assert difference["psi"]["estimate"] == pytest.approx(change, abs=1e-12)
        assert 0 < difference["psi"]["p"] <= 1
    if importlib.util.find_spec("mteb"):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from mteb.results import TaskResult

        loaded = TaskResult.model_validate(results["full strength"])
        assert loaded.get_score() == only(results["full strength"])["main_score"]


def test_runs_and_qrels_are_read_by_trec_eval(small):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    _, _, _, results, folder = small
    with (folder / "qrels" / "default.trec").open() as file:
        qrels = pytrec_eval.parse_qrel(file)
    for name in results:
        with (folder / "runs" / name.replace(" ", "-") / "default.trec").open() as file:
            listed = pytrec_eval.parse_run(file)
        scored = pytrec_eval.RelevanceEvaluator(qrels, {"recall.10"}).evaluate(listed)
        assert scored.keys() == qrels.keys()
        depth = {len(passages) for passages in listed.values()}
        assert depth == {only(results[name])["passages"]}, "fewer passages than the depth: all of them"


def test_a_table_a_plot_and_a_log(small, capsys):
    *_, folder = small
    table = (folder / "table.md").read_text().splitlines()
    assert table[0] == "### SQuAD-PosQ"
    assert len({len(line) for line in table[2:]}) == 1 and len(table) == 2 + 2 + 4 + 3
    assert (folder / "plots" / "default.png").read_bytes().startswith(b"\x89PNG")
    (line,) = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    assert line["methods"] == ["uncalibrated", "full strength", "segment-average 8", "BM25"]


def test_an_added_calibration_encodes_only_what_is_new_and_changes_nothing(small, monkeypatch, capsys):
    place, encoder, options, results, folder = small
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "log.jsonl"}
    encoded = []
    compute = VectorStore._compute
    monkeypatch.setattr(
        VectorStore, "_compute", lambda self, texts, *rest: encoded.append(len(texts)) or compute(self, texts, *rest)
    )
    dataset = {"name": "squad-posq", "files": str(place / "rows.jsonl")}
    run(encoder, place / "out", dataset, **options)
    assert encoded == []
    assert {path: path.read_bytes() for path in before} == before
    more = options | {"calibrations": {"full strength": SMALL, "half": SMALL.replace(strength=0.5)}}
    again = run(encoder, place / "out", dataset, **more)
    assert sum(encoded) == only(results["BM25"])["passages"]
    assert only(again["full strength"]) == only(results["full strength"])
    assert "SQuAD-PosQ default: 80 questions read" in capsys.readouterr().out


def test_results_of_something_else_are_not_replaced(small, written):
    place, _, options, _, folder = small
    dataset = {"name": "squad-posq", "files": str(place / "rows.jsonl")}
    encoder = jaxcal.load(written("bert", "mean", max_position_embeddings=128).folder)
    with pytest.raises(InvalidSetting, match="another 'model'.*--output"):
        run(encoder, place / "out", dataset, max_length=64)
    assert encoder.max_length == 128, "the caller's encoder stays as it was"
    with pytest.raises(InvalidSetting, match="another 'calibration'"):
        run(encoder, place / "out", dataset, calibrations={"full strength": SMALL.replace(basket_size=9)})
    with pytest.raises(InvalidSetting, match="another 'protocol'"):
        run(encoder, place / "out", dataset, resamples=51)
    write_jsonl(place / "other" / "rows.jsonl", squad_rows(80, seed=5))
    with pytest.raises(InvalidSetting, match="another 'dataset_revision'"):
        run(encoder, place / "out", {"name": "squad-posq", "files": str(place / "other" / "rows.jsonl")})


@pytest.mark.parametrize("names", [("a b", "a-b"), ("a", "A"), ("BM25",)])
def test_methods_with_one_file_name_are_refused(encoder, tmp_path, names):
    calibrations = dict.fromkeys(names, SMALL)
    with pytest.raises(InvalidSetting, match="rename one"):
        run(encoder, tmp_path, {"name": "pydoc-posq"}, calibrations=calibrations, bm25=True)


def test_a_group_without_questions_is_refused_before_anything_is_encoded(encoder, tmp_path, monkeypatch):
    rows = [row for row in squad_rows(60) if not row["answers"]["text"] or row["answers"]["answer_start"][0] < 400]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    monkeypatch.setattr(VectorStore, "_compute", lambda *_: pytest.fail("something was encoded"))
    with pytest.raises(InvalidInput, match="no judgement in group 400-500, 500-3120"):
        run(encoder, tmp_path / "out", {"name": "squad-posq", "files": str(tmp_path / "rows.jsonl")})


# --- killed runs ------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
import jaxcal.evaluation.vectors as vectors
vectors._CHUNK = 2000
from jaxcal.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_killing_a_run_at_ten_random_moments_changes_no_byte(written, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", squad_rows(120))
    (tmp_path / "config.yaml").write_text(
        "dataset: {name: squad-posq, files: [rows.jsonl]}\n"
        "calibrations: {full: {basket_size: 8, strength: 1.0}}\n"
        "segment_average: 8\nbm25: true\nresamples: 100\n"
    )
    folder = written("bert", "mean", max_position_embeddings=128).folder

    def start(output):
        options = [str(tmp_path / "config.yaml"), "--model", str(folder), "--output", str(output)]
        command = [sys.executable, "-c", PROGRAM, "evaluate", *options]
        with (tmp_path / "log").open("w") as log:
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def files(output):
        found = {path.relative_to(output): path for path in output.rglob("*") if path.is_file()}
        return {name: path.read_bytes() for name, path in found.items() if name.name != "log.jsonl"}

    begun = time.monotonic()
    whole = start(tmp_path / "whole")
    assert whole.wait() == 0, (tmp_path / "log").read_text()
    length = time.monotonic() - begun
    rng = random.Random(0)
    killed = 0
    while killed < 10:
        process = start(tmp_path / "killed")
        try:
            process.wait(timeout=rng.uniform(0.1, 1.0) * length)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
        else:
            assert process.returncode == 0, (tmp_path / "log").read_text()
            # It came through: the next kills start from nothing again.
            assert files(tmp_path / "killed") == files(tmp_path / "whole")
            for path in sorted((tmp_path / "killed").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
    last = start(tmp_path / "killed")
    assert last.wait() == 0, (tmp_path / "log").read_text()
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


# --- configurations ---------------------------------------------------------------------------------------------------


def test_a_configuration_by_its_methods(tmp_path):
    (tmp_path / "mine.yaml").write_text("strength: 0.25\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "c.yaml").write_text(
        "dataset: {name: squad-long, files: [a.json]}\ncalibrations: {paper: {}, file: ../mine.yaml}\n"
        "segment_average: [64, 128]\nbm25: true\n"
    )
    config = read_config(tmp_path / "folder" / "c.yaml", [tmp_path / "mine.yaml"])
    names = ["uncalibrated", "paper", "file", "mine", "segment-average 64", "segment-average 128", "BM25"]
    assert [method.name for method in config.methods] == names
    assert config.methods[2].calibration == config.methods[3].calibration == Calibration(strength=0.25)
    assert config.dataset["files"] == [str(tmp_path / "folder" / "a.json")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "not a mapping"),
        ("dataset: pydoc-posq\nmethods: 1", "unknown keys methods"),
        ("calibrations: {}", '"dataset" must be the name'),
        ("dataset: {variant: long}", '"dataset" must be the name'),
        ("dataset: pydoc-posq\ncalibrations: [paper]", '"calibrations" must be a mapping'),
        ("dataset: pydoc-posq\ncalibrations: {uncalibrated: {}}", "cannot be a calibration's name"),
        ("dataset: pydoc-posq\ncalibrations: {a: {strength: 2}}", "calibration 'a'.*strength"),
        ("dataset: pydoc-posq\ncalibrations: {a: {size: 2}}", "calibration 'a'.*size"),
        ("dataset: pydoc-posq\nsegment_average: [0]", '"segment_average"'),
        ("dataset: pydoc-posq\nbm25: 1", '"bm25" is 1'),
        ("dataset: pydoc-posq\nprompts: mine", '"prompts" is .mine.; it must be checkpoint or posir'),
        ("dataset: pydoc-posq\nresamples: 0", '"resamples"'),
        ("dataset: pydoc-posq\nmax_length: true", '"max_length"'),
        ("dataset: [", "not YAML"),
    ],
)
def test_configurations_without_meaning_are_refused(tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ValueError, match=f"c.yaml.*{message}"):
        read_config(tmp_path / "c.yaml")


def test_a_calibration_named_twice_is_refused(tmp_path):
    (tmp_path / "c.yaml").write_text("dataset: pydoc-posq\ncalibrations: {mine: {}}\n")
    (tmp_path / "mine.yaml").write_text("strength: 1.0\n")
    with pytest.raises(InvalidInput, match="already has a calibration named 'mine'"):
        read_config(tmp_path / "c.yaml", [tmp_path / "mine.yaml"])


def test_models_by_name_or_by_file(tmp_path):
    assert read_model("BAAI/bge-m3").model == "BAAI/bge-m3"
    (tmp_path / "m.yaml").write_text("model: a/b\nmax_length: 9\n")
    assert read_model(str(tmp_path / "m.yaml")).max_length == 9
    (tmp_path / "m.yaml").write_text("model: a/b\nlength: 9\n")
    with pytest.raises(InvalidInput, match="m.yaml must be a mapping"):
        read_model(str(tmp_path / "m.yaml"))


def test_shipped_configurations_are_read():
    from jaxcal.evaluation.published import shipped_configs

    read = [read_config(path) for path in sorted((shipped_configs() / "evaluations").glob("*.yaml"))]
    assert {config.dataset["name"] for config in read} == {
        "squad-posq",
        "fineweb-posq",
        "posir",
        "pydoc-posq",
        "squad-long",
        "segment-orders",
    }
    models = [read_model(str(path)) for path in sorted((shipped_configs() / "models").glob("*.yaml"))]
    assert {"BAAI/bge-m3", "Alibaba-NLP/gte-multilingual-base", "Qwen/Qwen3-Embedding-0.6B"} <= {
        m.model for m in models
    }
    for path in shipped_configs().rglob("*.yaml"):
        assert path.read_text().startswith("# jaxcal "), f"{path.name} begins with the command that uses it"
