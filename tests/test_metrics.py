"""The scores by positional group: worked values, other implementations, properties, intervals, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation import metrics

LOG2_3 = np.log2(3)
positive = st.floats(0.01, 1.0)
score_lists = st.lists(positive, min_size=1, max_size=6)


def quantised(rng, rows, columns, levels):
    """Return similarities with many exact ties, and a gold column a row."""
    return rng.integers(0, levels, (rows, columns)) / levels, rng.integers(0, columns, rows)


# ---- ranks and nDCG


def test_ranks_count_strictly_higher_and_tied_candidates():
    similarities = np.array([[0.9, 0.5, 0.5, 0.1], [0.2, 0.2, 0.2, 0.2], [0.1, 0.2, 0.3, 0.4]])
    ranks = metrics.gold_ranks(similarities, np.array([1, 0, 3]))
    assert ranks.above.tolist() == [1, 0, 0]
    assert ranks.tied.tolist() == [1, 3, 0]
    assert ranks.rank.tolist() == [2, 1, 1]


def test_only_candidates_compete_and_gold_always_counts():
    similarities = np.array([[0.9, 0.8, 0.5, 0.5]])
    allowed = np.array([[False, True, False, False]])
    ranks = metrics.gold_ranks(similarities, np.array([2]), allowed)
    assert (ranks.above.tolist(), ranks.tied.tolist()) == ([1], [0])
    assert not allowed[0, 2], "the caller's mask must stay as it was"


def test_ndcg_worked_by_hand():
    ranks = metrics.Ranks(np.array([0, 1, 2, 9, 10, 0, 9, 8]), np.array([0, 0, 0, 0, 0, 1, 1, 3]))
    expected = [
        1.0,
        1 / LOG2_3,
        0.5,
        1 / np.log2(11),
        0.0,
        (1 + 1 / LOG2_3) / 2,
        (1 / np.log2(11) + 0) / 2,  # ranks 10 and 11: one of the two counts
        (1 / np.log2(10) + 1 / np.log2(11)) / 4,  # ranks 9 to 12
    ]
    np.testing.assert_allclose(metrics.ndcg(ranks), expected, rtol=0, atol=1e-15)


def test_ndcg_honours_the_cutoff():
    ranks = metrics.Ranks(np.array([0, 2, 3]), np.zeros(3, int))
    np.testing.assert_allclose(metrics.ndcg(ranks, k=3), [1, 0.5, 0])
    np.testing.assert_allclose(metrics.ndcg(ranks, k=1), [1, 0, 0])


@pytest.mark.parametrize("levels", [3, 12, 10_000])
@pytest.mark.parametrize("columns", [4, 40])
def test_ndcg_equals_scikit_learn_with_ties(levels, columns):
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    similarities, gold = quantised(np.random.default_rng(levels + columns), 200, columns, levels)
    relevance = np.eye(columns)[gold]
    expected = [
        sklearn_metrics.ndcg_score(truth[None], row[None], k=10)
        for truth, row in zip(relevance, similarities, strict=True)
    ]
    np.testing.assert_allclose(metrics.ndcg_at_10(similarities, gold), expected, rtol=0, atol=1e-12)


def test_ndcg_equals_trec_eval_without_ties():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(7)
    similarities = rng.permuted(np.tile(np.arange(30.0), (100, 1)), axis=1)
    gold = rng.integers(0, 30, 100)
    qrels = {str(q): {str(gold[q]): 1} for q in range(100)}
    run = {str(q): {str(p): float(s) for p, s in enumerate(row)} for q, row in enumerate(similarities)}
    scored = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(run)
    expected = [scored[str(q)]["ndcg_cut_10"] for q in range(100)]
    np.testing.assert_allclose(metrics.ndcg_at_10(similarities, gold), expected, rtol=0, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 20))
def test_ndcg_depends_on_the_order_of_similarities_alone(seed, columns, levels):
    rng = np.random.default_rng(seed)
    similarities, gold = quantised(rng, 5, columns, levels)
    scores = metrics.ndcg_at_10(similarities, gold)
    assert ((scores >= 0) & (scores <= 1)).all()
    np.testing.assert_array_equal(scores, metrics.ndcg_at_10(3 * similarities - 2, gold))
    order = rng.permutation(columns)
    np.testing.assert_array_equal(scores, metrics.ndcg_at_10(similarities[:, order], np.argsort(order)[gold]))


# ---- harmonic mean and PSI


def test_figures_of_a_published_row():
    row = np.array([93.88, 90.72, 83.50])
    assert round(float(metrics.harmonic_mean(row)), 2) == 89.15
    assert round(float(metrics.psi(row)), 3) == 0.111


def test_zero_scores_are_defined():
    assert metrics.harmonic_mean([0.0, 1.0]) == 0
    assert metrics.psi([0.0, 0.5]) == 1
    assert metrics.psi([0.0, 0.0, 0.0]) == 0
    assert metrics.psi([0.3]) == 0


def test_figures_are_taken_over_the_last_axis():
    scores = np.array([[0.5, 1.0], [0.2, 0.2], [0.0, 0.4]])
    np.testing.assert_allclose(metrics.psi(scores), [0.5, 0, 1])
    np.testing.assert_allclose(metrics.harmonic_mean(scores), [2 / 3, 0.2, 0])


@given(score_lists)
def test_harmonic_mean_lies_between_minimum_and_mean(scores):
    value = metrics.harmonic_mean(scores)
    assert min(scores) - 1e-12 <= value <= np.mean(scores) + 1e-12


@given(score_lists, positive)
def test_psi_ignores_scale_and_order(scores, factor):
    value = metrics.psi(scores)
    assert 0 <= value <= 1
    np.testing.assert_allclose(metrics.psi([factor * s for s in reversed(scores)]), value, atol=1e-12)


def test_summary_pools_judgements_not_groups():
    summary = metrics.summarise({"beginning": [1.0, 1.0, 1.0], "end": [0.5]})
    assert summary.groups == {"beginning": 1.0, "end": 0.5}
    assert summary.mean == pytest.approx(0.875)
    assert summary.harmonic_mean == pytest.approx(2 / 3)
    assert summary.psi == pytest.approx(0.5)


# ---- bootstrap


def test_a_constant_difference_has_no_width():
    rng = np.random.default_rng(0)
    baseline = {name: rng.random(50) for name in "bme"}
    better = {name: values + 0.25 for name, values in baseline.items()}
    result = metrics.paired_bootstrap(better, baseline, same_queries=True, resamples=500)
    for interval in (*result.groups.values(), result.mean):
        np.testing.assert_allclose(interval, 0.25, atol=1e-12)
    assert result.harmonic_mean.low > 0.2
    assert result.psi.high < 0.0 or result.psi.low < 0.0


def test_the_distribution_of_two_queries_is_known():
    # Means 0, 1/2, 1 with probability 1/4, 1/2, 1/4.
    scores = {"only": [0.0, 1.0]}
    assert metrics.bootstrap(scores, same_queries=True, confidence=0.95).mean == (0.5, 0.0, 1.0)
    assert metrics.bootstrap(scores, same_queries=True, confidence=0.4).mean == (0.5, 0.5, 0.5)


def test_width_matches_the_normal_approximation():
    values = np.random.default_rng(1).random(500)
    interval = metrics.bootstrap({"only": values}, same_queries=False).mean
    half = 1.96 * values.std() / np.sqrt(500)
    np.testing.assert_allclose([interval.low, interval.high], [values.mean() - half, values.mean() + half], atol=2e-3)


def test_same_queries_are_drawn_jointly():
    first = np.random.default_rng(2).random(100)
    scores = {"beginning": first, "end": 1 - first}  # every query's mean is 1/2
    joint = metrics.bootstrap(scores, same_queries=True, resamples=300).mean
    np.testing.assert_allclose(joint, 0.5, atol=1e-12)
    apart = metrics.bootstrap(scores, same_queries=False, resamples=300).mean
    assert apart.high - apart.low > 0.02


def test_joint_draws_equal_a_plain_loop(monkeypatch):
    monkeypatch.setattr(metrics, "BLOCK", 100)  # several blocks
    rng = np.random.default_rng(3)
    a, b = ({name: rng.random(20) for name in ("x", "y", "z")} for _ in range(2))
    result = metrics.paired_bootstrap(a, b, same_queries=True, resamples=64, seed=11)
    draw = np.random.default_rng(11)
    index = np.concatenate([draw.integers(0, 20, (min(5, 64 - i), 20)) for i in range(0, 64, 5)])
    samples = []
    for row in index:
        one, two = (metrics.summarise({n: v[row] for n, v in s.items()}) for s in (a, b))
        samples.append([one.groups["y"] - two.groups["y"], one.harmonic_mean - two.harmonic_mean, one.psi - two.psi])
    low, high = np.quantile(samples, [0.025, 0.975], axis=0)
    got = np.array([result.groups["y"], result.harmonic_mean, result.psi])
    np.testing.assert_allclose(got[:, 1:].T, [low, high], atol=1e-12)
    np.testing.assert_allclose(result.psi.estimate, metrics.summarise(a).psi - metrics.summarise(b).psi, atol=1e-12)


def test_groups_of_different_sizes_and_the_order_of_names():
    rng = np.random.default_rng(4)
    a = {"short": rng.random(10), "long": rng.random(30)}
    b = {"long": a["long"], "short": a["short"]}
    result = metrics.paired_bootstrap(a, b, same_queries=False, resamples=50)
    assert list(result.groups) == ["short", "long"]
    assert result.mean == (0, 0, 0)
    single = metrics.bootstrap(a, same_queries=False, resamples=50)
    assert single.mean.estimate == pytest.approx(np.concatenate([a["short"], a["long"]]).mean())


def test_the_seed_fixes_the_bounds():
    scores = {"only": np.random.default_rng(5).random(40)}
    first, again, other = (metrics.bootstrap(scores, same_queries=True, resamples=99, seed=s) for s in (0, 0, 1))
    assert first == again
    assert first != other


# ---- refusals


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_similarities_that_are_not_finite_are_refused(value):
    similarities = np.zeros((3, 4))
    similarities[1, 2] = value
    with pytest.raises(InvalidInput, match="row 1, column 2"):
        metrics.ndcg_at_10(similarities, np.zeros(3, int))


@pytest.mark.parametrize(
    ("similarities", "gold", "candidates", "message"),
    [
        (np.zeros(3), np.zeros(3, int), None, "expected"),
        (np.zeros((2, 3)), np.zeros(3, int), None, "expected"),
        (np.zeros((2, 3)), np.array([0, 3]), None, "3 passages"),
        (np.zeros((2, 3)), np.array([-1, 0]), None, "3 passages"),
        (np.zeros((2, 3)), np.array([0, 1]), np.ones((2, 2), bool), "shape of similarities"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(similarities, gold, candidates, message):
    with pytest.raises(InvalidInput, match=message):
        metrics.gold_ranks(similarities, gold, candidates)


@pytest.mark.parametrize("function", [metrics.psi, metrics.harmonic_mean])
@pytest.mark.parametrize("scores", [[], np.array(0.5), [0.5, np.nan], [0.5, -0.1], [np.inf]])
def test_scores_without_meaning_are_refused(function, scores):
    with pytest.raises(InvalidInput, match="scores|Score"):
        function(scores)


def test_groups_without_meaning_are_refused_by_name():
    with pytest.raises(InvalidInput, match="no groups"):
        metrics.summarise({})
    with pytest.raises(InvalidInput, match="'end'"):
        metrics.summarise({"beginning": [1.0], "end": []})
    with pytest.raises(InvalidInput, match="'end'"):
        metrics.bootstrap({"beginning": [1.0], "end": [np.nan]}, same_queries=True)


def test_systems_that_cannot_be_paired_are_refused():
    with pytest.raises(InvalidInput, match="'end'"):
        metrics.paired_bootstrap({"end": [1.0, 0.5]}, {"end": [1.0]}, same_queries=True)
    with pytest.raises(InvalidInput, match="'middle'"):
        metrics.paired_bootstrap({"end": [1.0]}, {"middle": [1.0], "end": [1.0]}, same_queries=True)
    with pytest.raises(InvalidInput, match="same_queries=False"):
        metrics.bootstrap({"beginning": [1.0], "end": [1.0, 0.5]}, same_queries=True)


@pytest.mark.parametrize("setting", [{"resamples": 0}, {"confidence": 0.0}, {"confidence": 1.0}])
def test_settings_without_meaning_are_refused(setting):
    with pytest.raises(InvalidSetting):
        metrics.bootstrap({"only": [1.0]}, same_queries=True, **setting)
    with pytest.raises(InvalidSetting, match="cut-off"):
        metrics.ndcg(metrics.Ranks(np.array([0]), np.array([0])), k=0)
