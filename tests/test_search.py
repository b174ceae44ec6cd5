"""Data sets by position, and retrieval from them: against plain loops, ties and blocks, and the libraries' metrics."""

import numpy as np
import pytest

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation import metrics, search
from jaxcal.evaluation.datasets import PositionDataset
from jaxcal.evaluation.scoring import score
from jaxcal.evaluation.search import retrieve, retrieve_by_scores


def corpus(**changes):
    """One corpus, every query in the group of its answer, one query in two groups."""
    fields = {
        "name": "tiny",
        "queries": ("q0", "q1", "q2"),
        "passages": ("p0", "p1", "p2", "p3"),
        "groups": ("early", "late"),
        "query": [2, 0, 1, 1],
        "gold": [0, 1, 3, 3],
        "group": [0, 0, 1, 0],
    }
    return PositionDataset(**(fields | changes))


def one_gold_each(count, gold, **changes):
    fields = {
        "name": "made up",
        "queries": tuple(f"q{i}" for i in range(len(gold))),
        "passages": tuple(f"p{i}" for i in range(count)),
        "groups": ("all",),
        "query": np.arange(len(gold)),
        "gold": gold,
        "group": np.zeros(len(gold), int),
    }
    return PositionDataset(**(fields | changes))


def of_judgements(dataset, ranks):
    return metrics.Ranks(*(values[dataset.topics.of_judgement] for values in ranks))


# ---- data sets


def test_judgements_with_the_same_query_and_gold_share_a_topic():
    topics = corpus().topics
    assert topics.query.tolist() == [0, 1, 2] and topics.gold.tolist() == [1, 3, 0]
    assert topics.of_judgement.tolist() == [2, 0, 1, 1]


def test_one_corpus_with_different_queries_a_group():
    dataset = corpus()
    assert not dataset.same_queries
    similarities = np.array([[0.1, 0.4, 0.3, 0.2], [0.4, 0.1, 0.2, 0.3], [0.1, 0.2, 0.2, 0.1]])
    ranks = of_judgements(dataset, retrieve(dataset, similarities, np.eye(4)).ranks(dataset.topics.gold))
    assert ranks.above.tolist() == [2, 0, 1, 1]
    assert ranks.tied.tolist() == [1, 0, 0, 0]
    groups = dataset.by_group(ranks.above)
    assert groups["early"].tolist() == [0, 1, 2], "in order of the query"
    assert groups["late"].tolist() == [1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": [3, 0, 1, 1]}, r"query\[0\] is 3"),
        ({"gold": [0, 1, 3, -1]}, r"gold\[3\] is -1"),
        ({"gold": [0, 1]}, "'gold' 2"),
        ({"bucket": [0, 0, 0, 1], "buckets": ("Q1",)}, r"bucket\[3\] is 1"),
        ({"pool": [0, 0]}, "twice"),
        ({"pool": [0.5]}, "integers"),
        ({"query_ids": ("a", "b")}, "2 entries for 3"),
        ({"passage_ids": ("a", "b", "a", "c")}, "twice in 'passage_ids'"),
    ],
)
def test_data_sets_without_meaning_are_refused(changes, message):
    with pytest.raises(InvalidInput, match=message):
        corpus(**changes)


def test_vectors_that_do_not_fit_are_refused():
    dataset = corpus()
    with pytest.raises(InvalidInput, match="query_vectors"):
        retrieve(dataset, np.zeros((2, 4)), np.zeros((4, 4)))
    with pytest.raises(InvalidInput, match="passage_vectors"):
        retrieve(dataset, np.zeros((3, 4)), np.zeros((3, 4)))
    with pytest.raises(InvalidInput, match="one model"):
        retrieve(dataset, np.zeros((3, 4)), np.zeros((4, 5)))
    for value in (np.nan, np.inf):
        passages = np.zeros((4, 4))
        passages[2, 1] = value
        with pytest.raises(InvalidInput, match=r"passage_vectors\[2\] is not finite"):
            retrieve(dataset, np.zeros((3, 4)), passages)
    with pytest.raises(InvalidSetting, match="depth"):
        retrieve(dataset, np.zeros((3, 4)), np.zeros((4, 4)), depth=0)
    with pytest.raises(InvalidInput, match="judgements"):
        dataset.by_group(np.zeros(3))


# ---- runs


def expected_row(similarities, ids, barred, depth):
    """The definition: best first, equal ones by descending id."""
    order = [p for p in np.lexsort((np.arange(len(ids)), -similarities)) if p not in barred]
    order.sort(key=lambda p: (similarities[p], ids[p].encode()), reverse=True)
    return order[:depth]


@pytest.mark.parametrize("blocks", [(1024, 32768), (8, 16)])
def test_a_run_equals_sorting_everything(monkeypatch, blocks):
    """Few distinct vectors, so that most passages tie, in blocks smaller and larger than the data."""
    monkeypatch.setattr(search, "_QUERIES", blocks[0])
    monkeypatch.setattr(search, "_PASSAGES", blocks[1])
    rng = np.random.default_rng(0)
    passages = rng.integers(-1, 2, (90, 3)).astype(np.float32)
    queries = rng.integers(-1, 2, (30, 3)).astype(np.float32)
    ids = tuple(f"d{i}é" if i % 7 else f"d{i}" for i in rng.permutation(90))
    dataset = one_gold_each(90, rng.integers(0, 90, 30), passage_ids=ids)
    similarities = queries @ passages.T
    for depth in (1, 20, 200):
        run = retrieve(dataset, queries, passages, depth)
        by_score = retrieve_by_scores(dataset, lambda q: similarities[q], depth)
        for u in range(30):
            expected = expected_row(similarities[u], ids, (), depth)
            assert run.passages[u].tolist() == expected
            np.testing.assert_array_equal(run.similarities[u], similarities[u][expected])
        np.testing.assert_array_equal(by_score.passages, run.passages)
        np.testing.assert_array_equal(by_score.similarities, run.similarities)


@pytest.mark.parametrize("depth", [3, 60])
def test_other_golds_of_a_query_and_passages_outside_the_pool_do_not_compete(depth):
    rng = np.random.default_rng(1)
    passages = rng.integers(-1, 2, (40, 3)).astype(np.float32)
    queries = rng.integers(-1, 2, (6, 3)).astype(np.float32)
    pool = rng.choice(40, 25, replace=False)
    judged = sorted({(int(q), int(p)) for q, p in zip(rng.integers(0, 6, 16), rng.integers(0, 40, 16), strict=True)})
    # Query 0 looks for the three passages it likes best, which must not take one another's places.
    judged = sorted({*judged, *((0, int(p)) for p in np.argsort(-passages[pool] @ queries[0], kind="stable")[:3])})
    judged = sorted({(q, int(pool[p]) if q == 0 and p < len(pool) else p) for q, p in judged})
    query, gold = np.array(judged).T
    dataset = one_gold_each(40, gold, queries=tuple("abcdef"), query=query, pool=pool)
    run = retrieve(dataset, queries, passages, depth)
    similarities = queries @ passages.T
    for u, (q, g) in enumerate(judged):
        others = {p for other, p in judged if other == q} - {g}
        barred = (set(range(40)) - set(pool.tolist()) | others) - {g}
        expected = expected_row(similarities[q], dataset.passage_ids, barred, depth)
        got = [p for p in run.passages[u] if p >= 0]
        assert got == expected
        assert np.isneginf(run.similarities[u][len(got) :]).all()
    by_score = retrieve_by_scores(dataset, lambda q: similarities[q], depth)
    np.testing.assert_array_equal(by_score.passages, run.passages)


def test_memory_maps_serve_as_vectors(tmp_path):
    vectors = np.random.default_rng(2).standard_normal((50, 4)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    dataset = one_gold_each(50, np.arange(5))
    mapped = retrieve(dataset, vectors[:5], np.load(tmp_path / "v.npy", mmap_mode="r"))
    np.testing.assert_array_equal(mapped.passages, retrieve(dataset, vectors[:5], vectors).passages)


def test_a_gold_passage_that_was_not_retrieved_scores_nothing_at_any_cut_off():
    dataset = one_gold_each(8, np.array([7, 0]))
    similarities = np.tile(np.arange(8.0, 0, -1), (2, 1))
    ranks = retrieve_by_scores(dataset, lambda q: similarities[q], depth=4).ranks(dataset.topics.gold)
    assert metrics.ndcg(ranks, 10).tolist() == [0, 1]
    assert metrics.recall(ranks, 10).tolist() == [0, 1]


def test_gains_are_averaged_over_ties_but_recall_follows_the_order():
    """Two passages tie for the first rank; the run puts the higher id first."""
    dataset = one_gold_each(3, np.array([0, 1]))
    similarities = np.array([[0.5, 0.5, 0.1], [0.5, 0.5, 0.1]])
    run = retrieve_by_scores(dataset, lambda q: similarities[q], depth=3)
    found = score(dataset, run, "average", 5)
    np.testing.assert_allclose(found.ndcg, (1 + 1 / np.log2(3)) / 2)
    assert metrics.recall(run.ranks(dataset.topics.gold, "trec"), 1).tolist() == [0, 1]
    np.testing.assert_allclose(score(dataset, run, "trec", 5).ndcg, [1 / np.log2(3), 1])
    many = one_gold_each(8, np.arange(8))
    flat = retrieve_by_scores(many, lambda q: np.ones(8), depth=8)
    assert score(many, flat, "average", 5).recall[5].tolist() == [0, 0, 0, 1, 1, 1, 1, 1], "p7 to p3 come first"


# ---- against the libraries of the official scripts


def quantised(seed, rows, columns, levels):
    """Scores with many exact ties, and a data set with one gold passage a row."""
    rng = np.random.default_rng(seed)
    scores = (rng.integers(0, levels, (rows, columns)) / levels).astype(np.float32)
    ids = tuple(map(str, rng.permutation(10 * columns)[:columns]))
    return one_gold_each(columns, rng.integers(0, columns, rows), passage_ids=ids), scores


@pytest.mark.parametrize("levels", [3, 12, 10_000])
@pytest.mark.parametrize("columns", [4, 40])
def test_averaged_ties_equal_scikit_learn(levels, columns):
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    dataset, scores = quantised(levels + columns, 200, columns, levels)
    gold = dataset.topics.gold
    ranks = retrieve_by_scores(dataset, lambda q: scores[q], depth=columns).ranks(gold)
    relevance = np.eye(columns)[gold]
    expected = [
        sklearn_metrics.ndcg_score(truth[None], row[None], k=10) for truth, row in zip(relevance, scores, strict=True)
    ]
    np.testing.assert_allclose(metrics.ndcg(ranks, 10), expected, rtol=0, atol=1e-12)


def test_averaging_stays_within_what_was_retrieved():
    """As the script does that gives scikit-learn the first 100 alone: ties beyond them do not count."""
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    dataset, scores = quantised(5, 100, 60, 4)
    run = retrieve_by_scores(dataset, lambda q: scores[q], depth=20)
    gold = dataset.topics.gold
    expected = [
        sklearn_metrics.ndcg_score((row == g)[None].astype(int), values[None], k=10)
        for row, values, g in zip(run.passages, run.similarities, gold, strict=True)
    ]
    np.testing.assert_allclose(metrics.ndcg(run.ranks(gold), 10), expected, rtol=0, atol=1e-12)
    assert not np.allclose(metrics.ndcg(run.ranks(gold, "trec"), 10), expected)


@pytest.mark.parametrize("levels", [2, 7, 10_000])
@pytest.mark.parametrize("depth", [15, 60])
def test_the_order_of_a_run_is_that_of_trec_eval(levels, depth):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    dataset, scores = quantised(levels + depth, 150, 60, levels)
    gold, ids = dataset.topics.gold, dataset.passage_ids
    run = retrieve_by_scores(dataset, lambda q: scores[q], depth)
    ranks = run.ranks(gold, "trec")
    listed = {
        str(q): {ids[p]: float(s) for p, s in zip(passages, similarities, strict=True)}
        for q, (passages, similarities) in enumerate(zip(*run, strict=True))
    }
    measures = {"ndcg_cut.10", "recall.5", "recall.10"}
    qrels = {str(q): {ids[g]: 1} for q, g in enumerate(gold)}
    scored = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(listed)
    ours = {
        "ndcg_cut_10": metrics.ndcg(ranks, 10),
        "recall_5": metrics.recall(ranks, 5),
        "recall_10": metrics.recall(ranks, 10),
    }
    for name, values in ours.items():
        np.testing.assert_allclose(values, [scored[str(q)][name] for q in range(150)], rtol=0, atol=1e-9)
