"""The permutation protocol: a made-up encoder whose cosines are known, statistics against statsmodels, refusals."""

import itertools
import json
import math

import numpy as np
import pytest
from official_layouts import write_jsonl

from jaxcal import Calibration
from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation import position_statistics
from jaxcal.evaluation.config import EvaluationConfig
from jaxcal.evaluation.datasets import read_pydoc_posq
from jaxcal.evaluation.orders import evaluate_orders
from jaxcal.evaluation.permutations import (
    SEPARATOR,
    PositionProfile,
    SegmentSet,
    documents,
    measure,
    plot_profiles,
    pydoc_segment_sets,
    read_segment_sets,
    report,
)

pytest.importorskip("scipy")


def made_up(weights, count=10, seed=0):
    """Segments with orthogonal vectors; a document's vector is their sum, weighted by position."""
    size = len(weights)
    sets = [SegmentSet(str(r), tuple(f"s{r}.{i}" for i in range(size))) for r in range(count)]
    axes = {text: np.eye(count * size)[n] for n, text in enumerate(text for one in sets for text in one.segments)}
    whole = lambda text: sum(w * axes[part] for w, part in zip(weights, text.split(SEPARATOR), strict=True))  # noqa: E731
    return sets, lambda texts: np.stack([axes[t] for t in texts]), lambda texts: np.stack([whole(t) for t in texts])


def random_profile(shape=(12, 6, 3), effect=0.1, seed=0):
    rng = np.random.default_rng(seed)
    segment = np.array(list(itertools.permutations(range(shape[2]))))
    of_segment = rng.normal(0.5, 0.1, (shape[0], shape[2]))
    cosines = of_segment[:, segment] + effect * np.array([1.0, 0, 0]) + rng.normal(0, 0.05, shape)
    return PositionProfile(cosines + rng.normal(0, 0.05, (shape[0], 1, 1)), segment)


def test_cosines_of_a_known_encoder_in_all_orders():
    weights = np.array([0.8, 0.5, 0.3])
    sets, segments, whole = made_up(weights)
    assert len(documents(sets)) == 10 * 6
    profile = measure(sets, segments, whole)
    assert profile.cosines.shape == (10, 6, 3)
    np.testing.assert_allclose(profile.cosines, np.broadcast_to(weights / np.linalg.norm(weights), (10, 6, 3)))
    found = profile.statistics(permutations=99)
    np.testing.assert_allclose(found.means, weights / np.linalg.norm(weights))
    assert found.relative_difference["estimate"] == pytest.approx(1 - 0.3 / 0.8)
    np.testing.assert_allclose(found.ols["coefficients"], (weights[1:] - weights[0]) / np.linalg.norm(weights))
    # |.8-.5| + |.8-.3| + |.5-.3| = 1, twice, over 9 pairs and twice the mean.
    assert found.gini["value"] == pytest.approx(2 / 9 / (2 * 1.6 / 3))
    assert found.gini["p"] == pytest.approx(1 / 100)
    assert found.anova["generalised_eta_squared"] == pytest.approx(1)


def test_an_even_encoder_has_no_effect():
    found = measure(*made_up(np.ones(3))).statistics(permutations=99)
    assert found.gini == {"value": pytest.approx(0, abs=1e-12), "p": 1}
    assert found.relative_difference["estimate"] == pytest.approx(0, abs=1e-12)


def test_as_many_documents_as_the_published_example():
    sets, *_ = made_up(np.ones(3), count=167)
    assert len(documents(sets)) == 1002
    assert len(set(documents(sets))) == 1002


def test_each_segment_at_each_position():
    profile = random_profile()
    table = profile.by_segment
    for segment, position in itertools.product(range(3), range(3)):
        orders = [o for o in range(6) if profile.segment[o, position] == segment]
        assert len(orders) == 2
        np.testing.assert_allclose(table[:, segment, position], profile.cosines[:, orders, position].mean(1))


def test_statistics_equal_statsmodels():
    sm = pytest.importorskip("statsmodels.api")
    import pandas as pd
    from statsmodels.stats.anova import AnovaRM

    profile = random_profile(effect=0.02)
    found = profile.statistics(permutations=99)
    sets, orders, levels = profile.cosines.shape
    position = np.broadcast_to(np.arange(levels), profile.cosines.shape).ravel()
    design = np.column_stack([np.ones(len(position)), position == 1, position == 2]).astype(float)
    clusters = np.repeat(np.arange(sets), orders * levels)
    fit = sm.OLS(profile.cosines.ravel(), design).fit(cov_type="cluster", cov_kwds={"groups": clusters})
    np.testing.assert_allclose(found.ols["coefficients"], fit.params[1:], atol=1e-12)
    np.testing.assert_allclose(found.ols["standard_errors"], fit.bse[1:], rtol=1e-9)
    np.testing.assert_allclose(found.ols["p"], fit.pvalues[1:], rtol=1e-7)
    table = profile.by_segment.reshape(-1, levels)
    long = pd.DataFrame(
        {
            "y": table.ravel(),
            "subject": np.repeat(np.arange(len(table)), levels),
            "position": np.tile(np.arange(levels), len(table)),
        }
    )
    row = AnovaRM(long, "y", "subject", ["position"]).fit().anova_table.iloc[0]
    assert found.anova["f"] == pytest.approx(row["F Value"], rel=1e-9)
    assert found.anova["p"] == pytest.approx(row["Pr > F"], rel=1e-7)
    assert found.anova["df"] == [row["Num DF"], row["Den DF"]]


def test_generalised_eta_squared_by_hand():
    table = np.array([[1.0, 2.0], [3.0, 6.0]])
    # Means 2 and 4 by position, 1.5 and 4.5 by subject, 3 in all: 4, 9, and what is left of 14.
    found = position_statistics._anova(table)
    assert found["generalised_eta_squared"] == pytest.approx(4 / 14)
    assert found["f"] == pytest.approx(4 / 1)


def test_the_interval_of_the_relative_difference_covers_as_it_says():
    hits = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        first = rng.normal(0.8, 0.05, 60)
        last = first * 0.5 + rng.normal(0, 0.05, 60)
        found = position_statistics._relative_difference(np.stack([first, last], axis=1))
        hits += found["low"] <= 0.5 <= found["high"]
    assert 0.91 < hits / 300 < 0.98


def test_shuffling_is_seeded_and_its_p_is_even_without_an_effect(monkeypatch):
    profile = random_profile(effect=0)
    assert profile.statistics(199, seed=1).gini == profile.statistics(199, seed=1).gini
    p = [random_profile((6, 6, 3), 0, seed).statistics(99).gini["p"] for seed in range(150)]
    assert 0.4 < np.mean(p) < 0.6
    whole = profile.statistics(199).gini
    monkeypatch.setattr(position_statistics, "_BLOCK", 1000)
    assert profile.statistics(199).gini == whole, "in blocks too"


def test_segment_sets_of_the_shipped_data():
    records = {document["id"]: document for document in read_pydoc_posq("long")[0]}
    sets = pydoc_segment_sets(3)
    assert len(sets) > 90
    for one in sets:
        assert SEPARATOR.join(one.segments) == SEPARATOR.join(records[one.id]["sections"])
        lengths = [len(segment) for segment in one.segments]
        assert len(lengths) == 3 and min(lengths) > 0
    shares = np.array([[len(s) for s in one.segments] for one in sets], float)
    assert np.median(shares.max(1) / shares.min(1)) < 2
    assert math.factorial(4) * len(pydoc_segment_sets(4)) == len(documents(pydoc_segment_sets(4)))
    with pytest.raises(InvalidSetting, match="2 to 6"):
        pydoc_segment_sets(7)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "a", "segments": ["x"]}], 'row 1, field "segments": has 1'),
        ([{"id": "a", "segments": ["x"] * 7}], 'row 1, field "segments": has 7'),
        ([{"id": "a", "segments": ["x", 3]}], "row 1, field \"segments\": holds '3'; it must be a list of strings.$"),
        ([{"segments": ["x", "y"]}], 'row 1, field "id": is missing'),
        ([{"id": "a", "segments": ["x", "y"]}, {"id": "b", "segments": ["x", "y", "z"]}], "row 2.*the first set 2"),
        ([{"id": "a", "segments": ["x", "y"]}], "at least two"),
    ],
)
def test_malformed_sets_are_refused(tmp_path, rows, message):
    write_jsonl(tmp_path / "sets.jsonl", rows)
    with pytest.raises(InvalidInput, match=f"sets.jsonl.*{message}"):
        read_segment_sets(tmp_path / "sets.jsonl")


def test_one_set_has_no_statistics():
    with pytest.raises(InvalidInput, match="at least two"):
        random_profile((1, 6, 3)).statistics()


def test_a_table_and_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    found = {"uncalibrated": random_profile().statistics(99), "paper": random_profile(effect=0.0).statistics(99)}
    lines = report(found).splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1
    plot_profiles(tmp_path / "a.png", "title", found)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_protocol_as_an_evaluation(loaded, tmp_path, capsys):
    """From a file of segments to a table, with cosines recomputed from the encoder."""
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    rows = [
        {"id": str(n), "segments": [" ".join(f"w{w}" for w in rng.integers(0, 70, 12)) for _ in range(3)]}
        for n in range(4)
    ]
    write_jsonl(tmp_path / "sets.jsonl", rows)
    encoder, calibration = loaded("bert", "mean"), Calibration(basket_size=8, strength=1.0)
    dataset = {"name": "segment-orders", "file": str(tmp_path / "sets.jsonl")}
    config = EvaluationConfig(dataset=dataset, calibrations={"full": calibration}, resamples=99)
    result = evaluate_orders(config, encoder, tmp_path / "out")
    assert result["data"] == {"sets": 4, "segments": 3, "documents": 24, "truncated": 0}
    for method, used in (("uncalibrated", None), ("full", calibration)):
        cosines = []
        for row in rows:
            for order in itertools.permutations(range(3)):
                parts = [row["segments"][i] for i in order]
                document = encoder.encode(SEPARATOR.join(parts), calibration=used)
                cosines.append([encoder.encode(part) @ document for part in parts])
        np.testing.assert_allclose(result["methods"][method]["means"], np.mean(cosines, axis=0), atol=1e-5)
    folder = next((tmp_path / "out" / "Segment-orders").iterdir())
    assert json.loads((folder / "result.json").read_text()) == result
    assert "24 documents" in capsys.readouterr().out
    with pytest.raises(InvalidSetting, match="BM25 has none"):
        evaluate_orders(EvaluationConfig(dataset=dataset, bm25=True), encoder, tmp_path)
    with pytest.raises(InvalidSetting, match="no option 'size'"):
        evaluate_orders(EvaluationConfig(dataset={"name": "segment-orders", "size": 3}), encoder, tmp_path)
