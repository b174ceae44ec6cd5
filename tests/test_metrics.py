"""The scores by positional group: worked values, properties, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation import metrics

LOG2_3 = np.log2(3)
positive = st.floats(0.01, 1.0)
score_lists = st.lists(positive, min_size=1, max_size=6)


# ---- ranks and nDCG


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


def test_recall_worked_by_hand():
    ranks = metrics.Ranks(np.array([0, 4, 5, 1 << 30]), np.zeros(4, int))
    assert metrics.recall(ranks, 5).tolist() == [1, 1, 0, 0]
    assert metrics.recall(ranks, 6).tolist() == [1, 1, 1, 0]


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
    assert summary.macro == pytest.approx(0.75)
    assert summary.harmonic_mean == pytest.approx(2 / 3)
    assert summary.psi == pytest.approx(0.5)


# ---- refusals


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
        metrics.summarise({"beginning": [1.0], "end": [np.nan]})


@pytest.mark.parametrize("metric", [metrics.ndcg, metrics.recall])
def test_a_cut_off_below_one_is_refused(metric):
    with pytest.raises(InvalidSetting, match="cut-off"):
        metric(metrics.Ranks(np.array([0]), np.array([0])), k=0)
