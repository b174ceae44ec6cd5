"""Bootstrap intervals and the permutation test: worked values, plain loops, properties, refusals."""

import itertools

import numpy as np
import pytest

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation import metrics, resampling
from jaxcal.evaluation.resampling import bootstrap, paired_bootstrap, paired_permutation

# ---- bootstrap


def test_a_constant_difference_has_no_width():
    rng = np.random.default_rng(0)
    baseline = {name: rng.random(50) for name in "bme"}
    better = {name: values + 0.25 for name, values in baseline.items()}
    result = paired_bootstrap(better, baseline, same_queries=True, resamples=500)
    for interval in (*result.groups.values(), result.mean):
        np.testing.assert_allclose(interval, 0.25, atol=1e-12)
    assert result.harmonic_mean.low > 0.2
    assert result.psi.high < 0.0 or result.psi.low < 0.0


def test_the_distribution_of_two_queries_is_known():
    # Means 0, 1/2, 1 with probability 1/4, 1/2, 1/4.
    scores = {"only": [0.0, 1.0]}
    assert bootstrap(scores, same_queries=True, confidence=0.95).mean == (0.5, 0.0, 1.0)
    assert bootstrap(scores, same_queries=True, confidence=0.4).mean == (0.5, 0.5, 0.5)


def test_width_matches_the_normal_approximation():
    values = np.random.default_rng(1).random(500)
    interval = bootstrap({"only": values}, same_queries=False).mean
    half = 1.96 * values.std() / np.sqrt(500)
    np.testing.assert_allclose([interval.low, interval.high], [values.mean() - half, values.mean() + half], atol=2e-3)


def test_same_queries_are_drawn_jointly():
    first = np.random.default_rng(2).random(100)
    scores = {"beginning": first, "end": 1 - first}  # every query's mean is 1/2
    joint = bootstrap(scores, same_queries=True, resamples=300).mean
    np.testing.assert_allclose(joint, 0.5, atol=1e-12)
    apart = bootstrap(scores, same_queries=False, resamples=300).mean
    assert apart.high - apart.low > 0.02


def test_joint_draws_equal_a_plain_loop(monkeypatch):
    monkeypatch.setattr(resampling, "_BLOCK", 100)  # several blocks
    rng = np.random.default_rng(3)
    a, b = ({name: rng.random(20) for name in ("x", "y", "z")} for _ in range(2))
    result = paired_bootstrap(a, b, same_queries=True, resamples=64, seed=11)
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
    result = paired_bootstrap(a, b, same_queries=False, resamples=50)
    assert list(result.groups) == ["short", "long"]
    assert result.mean == (0, 0, 0)
    single = bootstrap(a, same_queries=False, resamples=50)
    assert single.mean.estimate == pytest.approx(np.concatenate([a["short"], a["long"]]).mean())


def test_the_seed_fixes_the_bounds():
    scores = {"only": np.random.default_rng(5).random(40)}
    first, again, other = (bootstrap(scores, same_queries=True, resamples=99, seed=s) for s in (0, 0, 1))
    assert first == again
    assert first != other


# ---- permutation test


def test_a_permutation_test_of_few_queries_equals_all_exchanges():
    a, b = {"x": [0.9, 0.4, 0.8], "y": [0.1, 0.6, 0.7]}, {"x": [0.5, 0.5, 0.2], "y": [0.3, 0.6, 0.1]}
    got = paired_permutation(a, b, same_queries=True, resamples=40_000)

    def differences(exchanged):
        one, two = ({n: [s[n][i] for i, s in enumerate(picks)] for n in "xy"} for picks in exchanged)
        first, second = metrics.summarise(one), metrics.summarise(two)
        return [
            first.groups["x"] - second.groups["x"],
            first.psi - second.psi,
            first.harmonic_mean - second.harmonic_mean,
        ]

    observed = np.abs(differences([(a, a, a), (b, b, b)]))
    every = [
        differences([picks, tuple(b if s is a else a for s in picks)]) for picks in itertools.product((a, b), repeat=3)
    ]
    exact = (np.abs(every) >= observed - 1e-12).mean(0)
    np.testing.assert_allclose([got.groups["x"], got.psi, got.harmonic_mean], exact, atol=0.01)


def test_groups_with_queries_of_their_own_are_exchanged_apart():
    a, b = {"x": [1.0, 1.0], "y": [0.5, 0.6, 0.7]}, {"x": [0.0, 0.0], "y": [0.5, 0.6, 0.7]}
    got = paired_permutation(a, b, same_queries=False, resamples=20_000)
    assert got.groups["x"] == pytest.approx(0.5, abs=0.015)  # two of the four exchanges are as extreme
    assert got.groups["y"] == 1


def test_a_clear_difference_has_a_small_p_and_equal_systems_have_one():
    rng = np.random.default_rng(6)
    b = {"x": rng.random(200) * 0.5, "y": rng.random(200) * 0.5}
    a = {name: values + 0.3 for name, values in b.items()}
    assert paired_permutation(a, b, same_queries=True, resamples=999).mean == pytest.approx(1 / 1000)
    assert paired_permutation(b, b, same_queries=True, resamples=99).mean == 1


def test_p_values_are_even_under_the_null():
    rng = np.random.default_rng(8)
    p = [
        paired_permutation({"x": rng.random(30)}, {"x": rng.random(30)}, same_queries=True, resamples=199).mean
        for _ in range(200)
    ]
    assert 0.4 < np.mean(p) < 0.6 and 0.01 < np.mean(np.array(p) <= 0.05) < 0.1


# ---- refusals


def test_systems_that_cannot_be_paired_are_refused():
    with pytest.raises(InvalidInput, match="'end'"):
        paired_bootstrap({"end": [1.0, 0.5]}, {"end": [1.0]}, same_queries=True)
    with pytest.raises(InvalidInput, match="'middle'"):
        paired_bootstrap({"end": [1.0]}, {"middle": [1.0], "end": [1.0]}, same_queries=True)
    with pytest.raises(InvalidInput, match="same_queries=False"):
        bootstrap({"beginning": [1.0], "end": [1.0, 0.5]}, same_queries=True)


@pytest.mark.parametrize("setting", [{"resamples": 0}, {"confidence": 0.0}, {"confidence": 1.0}])
def test_settings_without_meaning_are_refused(setting):
    with pytest.raises(InvalidSetting):
        bootstrap({"only": [1.0]}, same_queries=True, **setting)
