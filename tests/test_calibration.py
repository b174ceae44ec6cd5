"""The row operator against a rule written out in numpy, its invariants and derivatives; what Calibration refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import calibrated, default_isolation, units

from jaxcal import Calibration, calibrate_rows
from jaxcal.calibration import basket_softmax, lay_baskets, target_row

N, H, T = 3, 2, 14
ISOLATIONS = (None, (), ("first",), ("last",), ("first", "last"))
# One program per static choice: hypothesis then runs at full speed.
COMPILED = jax.jit(calibrate_rows, static_argnames="pooling")


@st.composite
def cases(draw, poolings=("first", "last", "mean"), special_tokens=("equal", "keep"), isolations=ISOLATIONS):
    """Attention rows with their mask, and a calibration's settings."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mask = np.zeros((N, T), bool)
    for row in mask:  # padding on either side, or on both
        length = draw(st.integers(1, T))
        start = draw(st.sampled_from([0, T - length, (T - length) // 2]))
        row[start : start + length] = True
    pooling = draw(st.sampled_from(poolings))
    shape = (N, H, T, T) if pooling == "mean" else (N, H, T)
    logits = rng.normal(0, draw(st.sampled_from([0.5, 3.0])), shape)
    rows = softmax(np.where(mask[:, None, None] if len(shape) == 4 else mask[:, None], logits, -np.inf))
    strength = draw(st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)))
    return {
        "rows": rows,
        "mask": mask,
        "pooling": pooling,
        "strength": rng.uniform(0, 1, H) if draw(st.booleans()) else strength,
        "basket_size": draw(st.integers(1, T + 2)),
        "special_tokens": draw(st.sampled_from(special_tokens)),
        "isolate": draw(st.sampled_from(isolations)),
    }


def softmax(logits):
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def ours(case, **changes):
    """Calibrated rows in float64."""
    case = {**case, **changes}
    # Arrays in both leaves, so that a number and a value per head are the only two programs.
    calibration = Calibration(
        strength=np.asarray(case["strength"], np.float64),
        basket_size=np.int32(case["basket_size"]),
        special_tokens=case["special_tokens"],
        isolate=case["isolate"],
    )
    with jax.enable_x64(True):
        return np.asarray(COMPILED(case["rows"], case["mask"], calibration, pooling=case["pooling"]))


def isolation(case):
    return default_isolation(case["pooling"]) if case["isolate"] is None else case["isolate"]


def edited_rows(case, got):
    """Pairs of a text's mask and its edited rows [H, R, T]."""
    for valid, rows in zip(case["mask"], got, strict=True):
        yield valid, rows[:, valid] if case["pooling"] == "mean" else rows[:, None]


def written_out(case):
    expected = []
    for valid, rows in zip(case["mask"], case["rows"], strict=True):
        strength = np.broadcast_to(case["strength"], (H,)).reshape((H,) + (1,) * (rows.ndim - 1))
        new = calibrated(rows, valid, case["basket_size"], strength, isolation(case), case["special_tokens"])
        expected.append(np.where(valid[:, None], new, rows) if case["pooling"] == "mean" else new)
    return np.stack(expected)


# --- the rule and its invariants --------------------------------------------------------------------------------------


@given(cases())
@settings(max_examples=150, deadline=None)
def test_the_rule(case):
    np.testing.assert_allclose(ours(case), written_out(case), rtol=0, atol=1e-13)


@given(cases())
@settings(max_examples=40, deadline=None)
def test_the_rule_where_attention_is_exactly_zero(case):
    """Units without mass stay empty, and the row sums to one all the same."""
    rows = case["rows"] * (case["rows"] > np.median(case["rows"], axis=-1, keepdims=True))
    total = rows.sum(-1, keepdims=True)
    case["rows"] = np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)
    np.testing.assert_allclose(ours(case), written_out(case), rtol=0, atol=1e-13)


@given(cases())
@settings(max_examples=60, deadline=None)
def test_rows_sum_to_one_and_padding_is_exactly_zero(case):
    for valid, rows in edited_rows(case, ours(case)):
        np.testing.assert_allclose(rows.sum(-1), 1, rtol=0, atol=1e-13)
        assert (rows >= 0).all() and (rows[..., ~valid] == 0).all()


@given(cases())
@settings(max_examples=60, deadline=None)
def test_strength_zero_changes_no_bit(case):
    np.testing.assert_array_equal(ours(case, strength=np.zeros(np.shape(case["strength"]))), case["rows"])


@given(cases(poolings=("mean",)))
@settings(max_examples=30, deadline=None)
def test_rows_of_padding_are_not_touched(case):
    for valid, old, new in zip(case["mask"], case["rows"], ours(case), strict=True):
        np.testing.assert_array_equal(new[:, ~valid], old[:, ~valid])


@given(cases(special_tokens=("equal",)))
@settings(max_examples=60, deadline=None)
def test_full_strength_gives_every_unit_the_same_mass(case):
    for valid, rows in edited_rows(case, ours(case, strength=1.0)):
        front, baskets, back = units(valid, case["basket_size"], isolation(case))
        all_units = [*([token] for token in front), *baskets, *([token] for token in back)]
        for unit in all_units:
            np.testing.assert_allclose(rows[..., unit].sum(-1), 1 / len(all_units), rtol=0, atol=1e-13)


@given(cases(poolings=("first", "last"), special_tokens=("keep",), isolations=(("first",), ("first", "last"))))
@settings(max_examples=80, deadline=None)
def test_keep_leaves_the_first_token_its_mass(case):
    got = ours(case)
    for valid, rows, old in zip(case["mask"], got, case["rows"], strict=True):
        front, baskets, back = units(valid, case["basket_size"], isolation(case))
        count = 1 + len(baskets) + len(back)
        fits = baskets and (old[:, front[0]] + len(back) / count < 1).all()
        if fits:  # else the content budget is clamped, and the row brought back to one
            np.testing.assert_allclose(rows[:, front[0]], old[:, front[0]], rtol=0, atol=1e-13)


@given(cases())
@settings(max_examples=60, deadline=None)
def test_proportions_inside_a_unit_never_change(case):
    got = ours(case)
    for (valid, rows), (_, old) in zip(edited_rows(case, got), edited_rows(case, case["rows"]), strict=True):
        for unit in units(valid, case["basket_size"], isolation(case))[1]:
            left = rows[..., unit] * old[..., unit].sum(-1, keepdims=True)
            right = old[..., unit] * rows[..., unit].sum(-1, keepdims=True)
            np.testing.assert_allclose(left, right, rtol=1e-11, atol=1e-16)


@given(cases(), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_affine_in_the_strength(case, strength):
    none, full = case["rows"], ours(case, strength=1.0)
    between = none + strength * (full - none)
    np.testing.assert_allclose(ours(case, strength=strength), between, rtol=0, atol=1e-14)


@given(cases(poolings=("first", "last")), st.integers(0, T))
@settings(max_examples=60, deadline=None)
def test_padding_side_and_amount_do_not_matter(case, shift):
    """Real tokens moved to any place give the same numbers there."""
    got = ours(case)
    moved_rows, moved_mask = np.zeros_like(case["rows"]), np.zeros_like(case["mask"])
    places = []
    for text, valid in enumerate(case["mask"]):
        length = valid.sum()
        start = min(shift, T - length)
        places.append(slice(start, start + length))
        moved_rows[text, :, places[-1]] = case["rows"][text][:, valid]
        moved_mask[text, places[-1]] = True
    moved = ours(case, rows=moved_rows, mask=moved_mask)
    for text, valid in enumerate(case["mask"]):
        # Sums run over other places, so the last bit may differ.
        np.testing.assert_allclose(moved[text][:, places[text]], got[text][:, valid], rtol=0, atol=1e-15)


@given(cases(poolings=("mean",), isolations=(None,)))
@settings(max_examples=20, deadline=None)
def test_mean_pooling_with_one_basket_is_the_identity(case):
    np.testing.assert_allclose(ours(case, basket_size=T, strength=1.0), case["rows"], rtol=0, atol=1e-14)


@given(cases(poolings=("first",), special_tokens=("keep",), isolations=(("first",),)))
@settings(max_examples=20, deadline=None)
def test_keep_with_one_content_basket_is_the_identity(case):
    assume((case["mask"].sum(1) > 1).all())
    np.testing.assert_allclose(ours(case, basket_size=T), case["rows"], rtol=0, atol=1e-13)
    # Not so where shares are equal: half for the first token, half for the content.
    got = ours(case, basket_size=T, special_tokens="equal", strength=1.0)
    first = got[np.arange(N), :, case["mask"].argmax(1)]
    np.testing.assert_allclose(first, 0.5, rtol=0, atol=1e-13)


@given(cases(poolings=("first", "last")), st.randoms())
@settings(max_examples=30, deadline=None)
def test_permuting_tokens_inside_a_basket_permutes_the_row(case, random):
    order = np.tile(np.arange(T), (N, 1))
    for text, valid in enumerate(case["mask"]):
        for basket in units(valid, case["basket_size"], isolation(case))[1]:
            order[text, basket] = random.sample(basket, len(basket))
    permuted = np.take_along_axis(case["rows"], order[:, None], axis=2)
    expected = np.take_along_axis(ours(case), order[:, None], axis=2)
    np.testing.assert_allclose(ours(case, rows=permuted), expected, rtol=0, atol=1e-15)


@given(cases())
@settings(max_examples=30, deadline=None)
def test_texts_of_a_batch_do_not_meet(case):
    got = ours(case)
    for text in range(N):
        alone = {**case, "rows": case["rows"][[text] * N], "mask": case["mask"][[text] * N]}
        np.testing.assert_allclose(ours(alone)[0], got[text], rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("isolate", "counts"), [((), (1, 1, 2)), (("first",), (2, 2, 3)), (("first", "last"), (3, 3, 4))]
)
def test_content_of_one_token_less_and_one_more_than_a_basket(isolate, counts):
    """B - 1 and B content tokens make one basket, B + 1 make two, the second with a single token."""
    size = 5
    for content, expected in zip((size - 1, size, size + 1), counts, strict=True):
        length = content + len(isolate)
        mask = np.arange(T)[None] < length
        rows = np.where(mask, 1 / length, 0)[:, None]
        got = np.asarray(calibrate_rows(rows, mask, Calibration(1.0, size, isolate=isolate)))[0, 0, :length]
        baskets = units(mask[0], size, isolate)[1]
        assert len(baskets) + len(isolate) == expected
        np.testing.assert_allclose(got[baskets[-1]], 1 / expected / len(baskets[-1]), rtol=1e-6)


@pytest.mark.parametrize(
    ("tokens", "kept", "last", "content"),
    # A sink of 0.9 takes all the content's budget: 2 or 8 baskets of 128, both ends isolated.
    [(258, 0.9 / 1.15, 0.25 / 1.15, 0.0), (1000, 0.9, 0.1, 0.0)],
)
def test_an_attention_sink_under_keep_wipes_the_content_out(tokens, kept, last, content):
    row = np.full(tokens, 0.1 / (tokens - 1))
    row[0] = 0.9
    mask = np.ones((1, tokens), bool)
    for special_tokens in ("keep", "equal"):
        calibration = Calibration(1.0, 128, special_tokens=special_tokens)
        got = np.asarray(calibrate_rows(row[None, None], mask, calibration))[0, 0]
        if special_tokens == "keep":
            np.testing.assert_allclose([got[0], got[-1], got[1:-1].sum()], [kept, last, content], atol=1e-6)
        else:
            share = 1 / (2 + -(-(tokens - 2) // 128))
            np.testing.assert_allclose([got[0], got[-1]], share, atol=1e-6)


def test_an_empty_text_gives_zeros():
    mask = np.zeros((1, 6), bool)
    for pooling, shape in (("first", (1, 2, 6)), ("mean", (1, 2, 6, 6))):
        got = np.asarray(calibrate_rows(np.zeros(shape), mask, Calibration(1.0, 2), pooling=pooling))
        assert (got == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_keep_their_type_and_masks_may_be_integers(dtype):
    rng = np.random.default_rng(0)
    mask = (np.arange(40) < 37).astype(np.int64)[None]
    rows = np.where(mask[:, None], rng.dirichlet(np.ones(40), (1, 3)), 0)
    rows /= rows.sum(-1, keepdims=True)
    got = calibrate_rows(jnp.asarray(rows, dtype), mask, Calibration(0.7, 8))
    assert got.dtype == dtype
    expected = calibrated(rows[0], mask[0] == 1, 8, 0.7, ("first", "last"), "equal")
    tolerance = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}[dtype]
    np.testing.assert_allclose(np.asarray(got, np.float64)[0], expected, rtol=tolerance, atol=1e-7)


# --- from logits: extremes, and the two-level softmax -----------------------------------------------------------------


def logits_case(seed=0, length=37, spread=3.0):
    return np.random.default_rng(seed).normal(0, spread, (2, length)).astype(np.float32)


@pytest.mark.parametrize("special_tokens", ["equal", "keep"])
@pytest.mark.parametrize("isolate", [(), ("first",), ("first", "last")])
def test_target_row_equals_the_rule(special_tokens, isolate):
    logits = logits_case()
    mask = np.arange(37) < 30
    plain = softmax(np.where(mask, logits, -np.inf))
    for size in (1, 4, 7, 64):
        baskets = lay_baskets(jnp.asarray(mask), size, frozenset(isolate))
        got = np.asarray(target_row(jnp.asarray(logits), baskets, special_tokens))
        np.testing.assert_allclose(got, calibrated(plain, mask, size, 1.0, isolate, special_tokens), atol=2e-6)


@pytest.mark.parametrize("gap", [200.0, 1e4, 1e30])
def test_baskets_far_below_the_peak_still_get_their_share(gap):
    """exp(-200) is zero in float32; the two-level softmax never forms it."""
    logits = logits_case(length=32)
    logits[:, 8:16] -= gap
    logits[:, 24:] += gap
    baskets = lay_baskets(jnp.ones(32, bool), 8)
    got = np.asarray(target_row(jnp.asarray(logits), baskets)).reshape(2, 4, 8)
    np.testing.assert_allclose(got.sum(-1), 0.25, rtol=1e-6)
    np.testing.assert_allclose(got, 0.25 * softmax(logits.reshape(2, 4, 8)), rtol=1e-6)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9, 31, 65])
def test_baskets_of_every_size(length):
    """Doubling steps must meet in the middle whatever the length and the basket size."""
    logits = logits_case(length=length)
    compiled = jax.jit(lambda logits, size: basket_softmax(logits, *lay_baskets(jnp.ones(length, bool), size)[:2]))
    for size in range(1, length + 2):
        got = np.asarray(compiled(logits, np.int32(size)))
        for start in range(0, length, size):
            np.testing.assert_allclose(
                got[:, start : start + size], softmax(logits[:, start : start + size]), atol=1e-6
            )


# --- derivatives and transformations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("special_tokens", ["equal", "keep"])
@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
def test_derivative_by_the_strength(special_tokens, pooling):
    """Autodiff, the closed form (u(b) - w(b)) p(k|b), and finite differences agree."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(2)
        length, size = 23, 4
        mask = np.arange(length) < 21
        shape = (1, 2, length, length) if pooling == "mean" else (1, 2, length)
        rows = softmax(np.where(mask, rng.normal(0, 2, shape), -np.inf))
        direction = rng.normal(size=shape)

        def projected(strength):
            calibration = Calibration(strength, size, special_tokens=special_tokens)
            return jnp.sum(calibrate_rows(rows, mask[None], calibration, pooling=pooling) * direction)

        auto = float(jax.grad(projected)(0.37))
        isolate = default_isolation(pooling)
        full = calibrated(rows[0], mask, size, 1.0, isolate, special_tokens)
        closed = full - rows[0]  # u p - w p
        if pooling == "mean":
            closed = np.where(mask[:, None], closed, 0)
        else:
            np.testing.assert_allclose(closed.sum(-1), 0, atol=1e-14)
            if special_tokens == "keep":
                np.testing.assert_allclose(closed[..., 0], 0, atol=1e-14)
        finite = float(projected(0.37 + 1e-4) - projected(0.37 - 1e-4)) / 2e-4
        np.testing.assert_allclose(auto, np.sum(closed * direction[0]), rtol=1e-10)
        np.testing.assert_allclose(auto, finite, rtol=1e-7)


def test_gradients_are_finite_at_extremes():
    """Masked tokens, empty baskets and far-away baskets give gradients without NaN, by strength and by logits."""
    logits = logits_case(length=32)
    logits[:, 8:16] -= 500
    mask = np.arange(32) < 20
    baskets = lay_baskets(jnp.asarray(mask), 8, frozenset({"first", "last"}))

    def loss(logits, strength):
        plain = jax.nn.softmax(jnp.where(mask, logits, -jnp.inf), axis=-1)
        row = plain + strength * (target_row(logits, baskets, "keep") - plain)
        return jnp.sum(row * jnp.arange(32.0))

    by_logits, by_strength = jax.grad(loss, argnums=(0, 1))(jnp.asarray(logits), 0.5)
    assert np.isfinite(by_logits).all() and np.isfinite(by_strength)
    assert (np.asarray(by_logits)[:, 20:] == 0).all()


def test_vmap_over_strength_and_basket_size():
    rng = np.random.default_rng(3)
    mask = np.arange(50)[None] < np.array([[50], [31]])
    rows = np.where(mask[:, None], rng.uniform(size=(2, 3, 50)), 0)
    rows = (rows / rows.sum(-1, keepdims=True)).astype(np.float32)
    strengths, sizes = np.array([0.0, 0.25, 1.0, 0.5], np.float32), np.array([1, 7, 16, 90], np.int32)
    swept = jax.vmap(lambda strength, size: calibrate_rows(rows, mask, Calibration(strength, size)))(strengths, sizes)
    for got, strength, size in zip(swept, strengths, sizes, strict=True):
        expected = calibrate_rows(rows, mask, Calibration(float(strength), int(size)))
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-7)
