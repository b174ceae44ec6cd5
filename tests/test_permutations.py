"""The permutation protocol: a made-up encoder whose cosines are known, statistics against statsmodels, refusals."""

import dataclasses
import itertools
import json
import logging
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

stats = pytest.importorskip("scipy.stats")


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
    assert found.anova == {"f": None, "p": 0, "df": [2, 18], "generalised_eta_squared": pytest.approx(1)}
    json.dumps(dataclasses.asdict(found), allow_nan=False)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_even_encoder_has_no_effect(size, seed):
    """Not even that of rounding: turned axes in float32 make cosines that differ in their last digits."""
    sets, segments, whole = made_up(np.ones(size))
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(10 * size, 10 * size)))[0]
    rounded = [lambda texts, encode=encode: (encode(texts) @ turn).astype(np.float32) for encode in (segments, whole)]
    profile = measure(sets, *rounded)
    assert np.ptp(profile.cosines) > 0
    found = profile.statistics(permutations=99)
    assert found.gini == {"value": pytest.approx(0, abs=1e-7), "p": 1}
    assert found.anova == {"f": 0, "p": 1, "df": [size - 1, (size - 1) * 9], "generalised_eta_squared": 0}
    assert found.ols["p"] == [1] * (size - 1)
    assert found.wilcoxon["p"] in (1, None)  # as scipy has it
    assert found.relative_difference["estimate"] == pytest.approx(0, abs=1e-6)
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_each_text_is_encoded_once_in_a_fixed_order():
    sets = [SegmentSet("a", ("y", "x")), SegmentSet("b", ("x", "z")), SegmentSet("c", ("x", "y"))]
    given = []
    vectors = {text: row for text, row in zip("xyz", np.eye(3), strict=True)}

    def encode(texts):
        given.append(list(texts))
        return np.stack([sum(vectors[part] for part in text.split(SEPARATOR)) for text in texts])

    profile = measure(sets, encode, encode)
    assert given == [["y", "x", "z"], ["y\n\nx", "x\n\ny", "x\n\nz", "z\n\nx"]]
    np.testing.assert_allclose(profile.cosines, np.full((3, 2, 2), 0.5**0.5))
    np.testing.assert_array_equal(profile.segment, [[0, 1], [1, 0]])


def test_cosines_belong_to_the_segment_at_the_position():
    """Documents that hold their segment 0 alone, wherever it stands: its cosine is 1, the others' 0."""
    sets, segments, _ = made_up(np.ones(3), count=2)
    first = lambda texts: segments([min(text.split(SEPARATOR)) for text in texts])  # noqa: E731
    profile = measure(sets, segments, first)
    np.testing.assert_array_equal(profile.cosines, np.broadcast_to(profile.segment == 0, (2, 6, 3)))


def test_as_many_documents_as_the_published_example():
    sets, *_ = made_up(np.ones(3), count=167)
    assert len(documents(sets)) == 1002
    assert len(set(documents(sets))) == 1002


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
    table = profile.cosines.mean(axis=1)
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


def test_first_against_last_equals_textbook_formulas():
    """Four sets; Welch's t by its formula, the signed ranks by hand: differences .4 .1 -.2 .3 have ranks 4 1 2 3."""
    first, last = np.array([0.9, 0.6, 0.5, 0.8]), np.array([0.5, 0.5, 0.7, 0.5])
    cosines = np.stack([first, last], axis=1)[:, None, :] * np.ones((1, 2, 1))
    found = position_statistics.statistics(cosines, 99, 42)
    a, b = first.var(ddof=1) / 4, last.var(ddof=1) / 4
    t = (first.mean() - last.mean()) / math.sqrt(a + b)
    p = 2 * stats.t.sf(t, (a + b) ** 2 / (a**2 / 3 + b**2 / 3))  # Student's has 6 degrees of freedom
    assert found.welch == {"statistic": pytest.approx(t), "p": pytest.approx(p)}
    # Of the 16 ways to sign the ranks, those with a rank sum of 0, 1 or 2 in the smaller half: {}, {1}, {2}, twice.
    assert found.wilcoxon == {"statistic": pytest.approx(2), "p": pytest.approx(6 / 16)}
    # 1 - .55 / .7, and the variance of last - (.55 / .7) first over 4 .7^2.
    ratio = 0.55 / 0.7
    reach = 1.96 * math.sqrt(np.var(last - ratio * first, ddof=1) / 4) / 0.7
    assert found.relative_difference["estimate"] == pytest.approx(1 - ratio)
    assert found.relative_difference["low"] == pytest.approx(1 - ratio - reach)
    assert found.relative_difference["high"] == pytest.approx(1 - ratio + reach)
    np.testing.assert_allclose(found.standard_errors, [first.std(ddof=1) / 2, last.std(ddof=1) / 2])


def test_the_published_gini_follows_from_the_published_means():
    assert float(position_statistics.gini(np.array([0.938, 0.432, 0.430]))) == pytest.approx(0.188, abs=5e-4)


def test_the_gini_test_of_two_sets_equals_all_shuffles():
    table = np.array([[0.9, 0.5, 0.4], [0.7, 0.6, 0.2]])
    shuffles = [np.mean(pair, axis=0) for pair in itertools.product(*map(itertools.permutations, table))]
    value = position_statistics.gini(table.mean(0))
    exact = np.mean([position_statistics.gini(means) >= value - 1e-12 for means in shuffles])
    found = position_statistics._gini_test(table, 20_000, 42)
    assert found["p"] == pytest.approx(exact, abs=0.015)


@pytest.mark.parametrize("shared", [False, True])
def test_p_values_keep_their_level_when_segments_share_documents(shared):
    """Segments that compete for a document's vector, or are all near it, are no more evidence than their set is."""
    rejected = np.zeros(3)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        noise = rng.normal(0, 0.05, (20, 6, 3))
        noise = noise + rng.normal(0, 0.2, (20, 6, 1)) if shared else noise - noise.mean(axis=2, keepdims=True)
        found = position_statistics.statistics(0.5 + noise, 99, seed)
        rejected += np.array([found.gini["p"], found.anova["p"], found.wilcoxon["p"]]) <= 0.1
    # Of 200 at a level of .1; over segments they are at about .2 and 0.
    assert np.all((rejected > 8) & (rejected < 33)), rejected


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
    assert 0.4 < np.mean(p) < 0.6 and min(p) >= 1 / 100 and max(p) <= 1
    whole = profile.statistics(199).gini
    monkeypatch.setattr(position_statistics, "_BLOCK", 1000)
    assert profile.statistics(199).gini == whole, "in blocks too"


def test_segment_sets_of_the_shipped_data(caplog):
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
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="jaxcal"):
        kept = len(pydoc_segment_sets(6))
    assert f"{len(records) - kept} of {len(records)} documents have fewer than 6 sections: left out" in caplog.text
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
        ([{"id": "a", "segments": ["x", " "]}], 'row 1, field "segments": holds a blank segment'),
        ([{"id": "a", "segments": ["x", "x"]}], 'row 1, field "segments": holds a segment twice'),
        ([{"id": "a", "segments": "xy"}], "row 1, field \"segments\": is 'xy'; it must be a list"),
        ([{"id": "a", "segments": ["x", "y"]}] * 2, "row 2, field \"id\": is 'a' for the second time"),
        ([{"id": "a", "segments": ["x", "y"]}], "at least two"),
    ],
)
def test_malformed_sets_are_refused(tmp_path, rows, message):
    write_jsonl(tmp_path / "sets.jsonl", rows)
    with pytest.raises(InvalidInput, match=f"sets.jsonl.*{message}"):
        read_segment_sets(tmp_path / "sets.jsonl")


def test_half_a_surrogate_pair_is_refused(tmp_path):
    (tmp_path / "sets.jsonl").write_text('{"id": "a", "segments": ["x", "y\\ud800"]}\n')
    with pytest.raises(InvalidInput, match='row 1, field "segments": holds half a surrogate pair at character 2'):
        read_segment_sets(tmp_path / "sets.jsonl")


def test_sets_of_a_file_are_read_in_order(tmp_path):
    write_jsonl(tmp_path / "sets.jsonl", [{"id": "b", "segments": ["x", "y"]}, {"id": "a", "segments": ["é", "x"]}])
    assert read_segment_sets(tmp_path / "sets.jsonl") == [SegmentSet("b", ("x", "y")), SegmentSet("a", ("é", "x"))]


@pytest.mark.parametrize(
    ("sizes", "message"), [([], "are missing"), ([2, 3], "of 2, 3 segments"), ([1], "2 to 6"), ([7], "2 to 6")]
)
def test_sets_that_cannot_be_put_in_all_orders_are_refused(sizes, message):
    sets = [SegmentSet(str(size), tuple("abcdefg"[:size])) for size in sizes]
    for run in (lambda: documents(sets), lambda: measure(sets, np.zeros, np.zeros)):
        with pytest.raises(InvalidInput, match=message):
            run()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda vectors: vectors[1:], r"60 documents got vectors of the shape \(59, 30\)"),
        (lambda vectors: vectors[:, 1:], "30 dimensions and documents 29"),
        (lambda vectors: vectors * (np.arange(60) != 4)[:, None], r"documents \[4\] is zero"),
        (lambda vectors: np.where(np.arange(60)[:, None] == 5, np.nan, vectors), r"documents \[5\] is zero or not"),
        (lambda vectors: np.where(np.arange(60)[:, None] == 6, np.inf, vectors), r"documents \[6\] is zero or not"),
    ],
)
def test_vectors_without_a_cosine_are_refused(spoil, message):
    sets, segments, whole = made_up(np.ones(3))
    with pytest.raises(InvalidInput, match=message):
        measure(sets, segments, lambda texts: spoil(whole(texts)))


def test_cosines_without_a_gini_coefficient_are_refused():
    cosines = np.full((4, 2, 2), 0.5)
    cosines[..., 1] = -0.1
    with pytest.raises(InvalidInput, match="position 2 is -0.1"):
        position_statistics.statistics(cosines, 99, 42)
    with pytest.raises(InvalidInput, match="position 1 is nan"):
        position_statistics.statistics(cosines * np.nan, 99, 42)


def test_one_set_has_no_statistics():
    with pytest.raises(InvalidInput, match="at least two"):
        random_profile((1, 6, 3)).statistics()


def test_a_table_and_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    found = {"uncalibrated": random_profile().statistics(99), "paper": random_profile(effect=0.0).statistics(99)}
    lines = report(found).splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    one = found["uncalibrated"]
    assert cells[:4] == ["uncalibrated", *(f"{mean:.3f}" for mean in one.means)]
    assert cells[5:7] == [f"{one.gini['value']:.3f}", "0.01"] and cells[7] == (
        f"{one.anova['generalised_eta_squared']:.3f}"
    )
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
