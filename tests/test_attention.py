"""Attention in blocks, for one row, and calibrated, against a naive softmax and the rule written out in numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import calibrated

from jaxcal import Calibration, attention
from jaxcal.attention import attend, attend_calibrated, attend_row, calibrated_row
from jaxcal.calibration import lay_baskets

WIDTH = 8
TOLERANCE = 2e-6


@pytest.fixture(params=["cpu", "accelerator"])
def layout(request, monkeypatch):
    """The loops of either platform, with blocks of few rows: the number of tokens is no multiple of theirs."""
    one_by_one = request.param == "cpu"
    monkeypatch.setattr(attention, "_blockwise", functools.partial(blockwise, rows=7, one_by_one=one_by_one))


def blockwise(q, k, v, mask, causal, weigh, rows, one_by_one):
    return attention._map_heads(q, k, v, mask, causal, weigh, rows, one_by_one)


def tensors(n=3, t=45, heads=4, kv_heads=2, seed=0, whole=False):
    """Scaled queries, keys, values and a mask with padding on either side; whole numbers give exact scores."""
    rng = np.random.default_rng(seed)
    # Unscaled scores would reach 20, whose rounding in float32 alone moves outputs by more than the tolerance.
    q = rng.normal(0, 1 if whole else WIDTH**-0.5, (n, t, heads, WIDTH))
    k, v = (rng.normal(0, 1, (n, t, kv_heads, WIDTH)) for _ in "kv")
    if whole:
        q, k = np.round(2 * q), np.round(2 * k)
    mask = np.ones((n, t), bool)
    mask[1:2, t - t // 3 :] = False
    mask[2:3, : t // 4] = False
    return *(x.astype(np.float32) for x in (q, k, v)), mask


def run(function, *arrays, **static):
    """Compile and call; a new program each time, as `layout` changes what is compiled."""
    return jax.jit(functools.partial(function, **static))(*arrays)


def naive(q, k, v, mask, causal=False):
    """Softmax rows [N, H, T, T] in float64, zero where no key is visible, and the values of every head [N, H, T, K]."""
    groups = q.shape[2] // k.shape[2]
    q, k, v = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    k, v = (np.repeat(x, groups, axis=1) for x in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2)
    visible = np.broadcast_to(mask[:, None, None, :], scores.shape).copy()
    if causal:
        visible &= np.tril(np.ones(scores.shape[-2:], bool))
    scores = np.where(visible, scores, -np.inf)
    peaks = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(peaks), peaks, 0))
    total = weights.sum(-1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0), v


def combine(rows, v):
    return (rows @ v).transpose(0, 2, 1, 3)


def calibrate_all(rows, mask, size, strength, isolate, special_tokens):
    """Every row of every text and head; `strength` is [N, H]."""
    return np.stack(
        [
            calibrated(rows[text], mask[text], size, strength[text][:, None, None], isolate, special_tokens)
            for text in range(len(rows))
        ]
    )


def assert_real_rows_close(got, expected, mask, tolerance=TOLERANCE):
    assert np.isfinite(got).all()
    np.testing.assert_allclose(np.asarray(got)[mask], expected[mask], rtol=0, atol=tolerance)


# --- plain ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_attend(layout, causal, kv_heads):
    q, k, v, mask = tensors(kv_heads=kv_heads)
    got = run(attend, q, k, v, mask, causal=causal)
    assert_real_rows_close(got, combine(*naive(q, k, v, mask, causal)), mask)


@pytest.mark.parametrize("length", [1, 2, 16, 600])
def test_attend_as_the_platform_runs_it(length):
    q, k, v, mask = tensors(t=length)
    mask[:, 0] = True
    got = run(attend, q, k, v, mask, causal=False)
    assert_real_rows_close(got, combine(*naive(q, k, v, mask)), mask)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attend_row(kv_heads):
    q, k, v, mask = tensors(kv_heads=kv_heads)
    rows, values = naive(q, k, v, mask)
    got = run(attend_row, q[:, 20], k, v, mask)
    np.testing.assert_allclose(got, combine(rows, values)[:, 20], rtol=0, atol=TOLERANCE)


def test_rows_without_a_visible_key_are_zero(layout):
    q, k, v, mask = tensors()
    mask[0] = False
    for causal in (False, True):
        got = np.asarray(run(attend, q, k, v, mask, causal=causal))
        assert (got[0] == 0).all() and np.isfinite(got).all()
    assert (got[2, : 45 // 4] == 0).all()  # left padding under the causal mask
    assert (np.asarray(run(attend_row, q[:, 3], k, v, mask))[0] == 0).all()


def test_logits_of_any_size_give_no_nan(layout):
    q, k, v, mask = tensors(whole=True)
    rows, values = naive(200 * q, k, v, mask)
    assert_real_rows_close(run(attend, 200 * q, k, v, mask, causal=False), combine(rows, values), mask)


# --- one calibrated row -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("special_tokens", ["equal", "keep"])
@pytest.mark.parametrize("isolate", [(), ("first",), ("first", "last")])
@pytest.mark.parametrize("row", ["first", "last"])
def test_calibrated_row(row, isolate, special_tokens):
    q, k, v, mask = tensors()
    at = mask.argmax(1) if row == "first" else mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
    rows, values = naive(q, k, v, mask, causal=row == "last")
    strength = np.random.default_rng(1).uniform(0, 1, (3, 4)).astype(np.float32)
    texts = np.arange(3)
    calibrate = jax.jit(calibrated_row, static_argnames="special_tokens")
    for size in (1, 5, 16, 64):
        baskets = lay_baskets(jnp.asarray(mask), jnp.int32(size), frozenset(isolate))
        plain = run(attend_row, q[texts, at], k, v, mask)
        got = calibrate(plain, q[texts, at], k, v, mask, baskets, strength, special_tokens=special_tokens)
        expected = combine(calibrate_all(rows, mask, size, strength, isolate, special_tokens), values)
        np.testing.assert_allclose(got, expected[texts, at], rtol=0, atol=TOLERANCE)


def test_strength_zero_returns_the_plain_row_bit_for_bit():
    q, k, v, mask = tensors()
    baskets = lay_baskets(jnp.asarray(mask), 5, frozenset({"first", "last"}))
    plain = run(attend_row, q[:, 15], k, v, mask)
    got = run(calibrated_row, plain, q[:, 15], k, v, mask, baskets, jnp.zeros((3, 4)), special_tokens="equal")
    np.testing.assert_array_equal(got, plain)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_calibrated_row_in_half_precision(dtype):
    """Scores and calibration stay in float32, so only inputs and outputs are rounded."""
    q, k, v, mask = (jnp.asarray(x) for x in tensors())
    half = [x.astype(dtype) for x in (q, k, v)]
    baskets = lay_baskets(mask, 5, frozenset({"first", "last"}))
    strength = jnp.full((3, 4), 0.5)
    plain = run(attend_row, half[0][:, 15], *half[1:], mask)
    got = run(calibrated_row, plain, half[0][:, 15], *half[1:], mask, baskets, strength, special_tokens="equal")
    rows, values = naive(*(np.asarray(x, np.float32) for x in half), np.asarray(mask))
    expected = combine(
        calibrate_all(rows, np.asarray(mask), 5, np.asarray(strength), ("first", "last"), "equal"), values
    )
    assert got.dtype == dtype
    np.testing.assert_allclose(
        np.asarray(got, np.float32), expected[:, 15], atol={"bfloat16": 2e-2, "float16": 2e-3}[dtype]
    )


# --- all rows calibrated ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("isolate", [(), ("last",), ("first", "last")])
@pytest.mark.parametrize("special_tokens", ["equal", "keep"])
def test_attend_calibrated(layout, special_tokens, isolate, causal):
    # 75 tokens: two baskets of 32 and a part, beside the isolated ends, and no padding in the first text.
    q, k, v, mask = tensors(t=75)
    rows, values = naive(q, k, v, mask, causal)
    strength = np.random.default_rng(1).uniform(0, 1, (3, 4)).astype(np.float32)
    calibrate = jax.jit(functools.partial(attend_calibrated, special_tokens=special_tokens, causal=causal))
    for size in (1, 5, 32, 40, 100):
        baskets = lay_baskets(jnp.asarray(mask), jnp.int32(size), frozenset(isolate))
        got = calibrate(q, k, v, mask, baskets, strength, basket_size=jnp.int32(size))
        expected = combine(calibrate_all(rows, mask, size, strength, isolate, special_tokens), values)
        assert_real_rows_close(got, expected, mask)


@pytest.mark.parametrize("isolate", [(), ("first",), ("first", "last")])
def test_every_length_has_room_for_all_its_baskets(isolate):
    """Texts that fill the whole batch, at lengths around every multiple of the shortest basket of the fast path."""
    for length in (33, 34, 35, 63, 64, 66, 67):
        q, k, v, _ = tensors(n=1, t=length, heads=1, kv_heads=1)
        mask = np.ones((1, length), bool)
        baskets = lay_baskets(jnp.asarray(mask), 32, frozenset(isolate))
        strength = np.ones((1, 1), np.float32)
        got = run(
            attend_calibrated, q, k, v, mask, baskets, strength, special_tokens="equal", basket_size=32, causal=False
        )
        rows, values = naive(q, k, v, mask)
        expected = combine(calibrate_all(rows, mask, 32, strength, isolate, "equal"), values)
        assert_real_rows_close(got, expected, mask)


@pytest.mark.parametrize("causal", [False, True])
def test_extreme_score_gaps_take_the_exact_path(layout, causal):
    """A basket hundreds of nats below the row's peak has no mass in float32, yet gets its share."""
    q, k, v, mask = tensors(t=75, whole=True)  # whole numbers, so scores are exact and only their gaps are tested
    q[..., 0], k[..., 0] = 20, 0
    k[:, 32:64, :, 0] = -15
    rows, values = naive(q, k, v, mask, causal)
    assert np.median(rows[0, :, -1, 32:64]) < 1e-100 and rows[rows > 0].min() > 1e-300
    strength = np.ones((3, 4), np.float32)
    baskets = lay_baskets(jnp.asarray(mask), 32, frozenset())
    got = run(
        attend_calibrated,
        q,
        k,
        v,
        mask,
        baskets,
        strength,
        special_tokens="equal",
        basket_size=32,
        causal=causal,
    )
    # The rule itself, on float64 rows, loses nothing.
    expected = combine(calibrate_all(rows, mask, 32, strength, (), "equal"), values)
    assert_real_rows_close(got, expected, mask)


def test_an_empty_text_among_calibrated_ones(layout):
    q, k, v, mask = tensors()
    mask[0] = False
    for size in (4, 32):
        baskets = lay_baskets(jnp.asarray(mask), size, frozenset({"first", "last"}))
        got = np.asarray(
            run(
                attend_calibrated,
                q,
                k,
                v,
                mask,
                baskets,
                jnp.ones((3, 4)),
                special_tokens="keep",
                basket_size=size,
                causal=False,
            )
        )
        assert (got[0] == 0).all() and np.isfinite(got).all()


def test_strength_zero_of_all_rows_is_plain_attention(layout):
    q, k, v, mask = tensors(t=75)
    plain = run(attend, q, k, v, mask, causal=False)
    for size in (4, 32):
        baskets = lay_baskets(jnp.asarray(mask), size)
        got = run(
            attend_calibrated,
            q,
            k,
            v,
            mask,
            baskets,
            jnp.zeros((3, 4)),
            special_tokens="equal",
            basket_size=size,
            causal=False,
        )
        np.testing.assert_allclose(got, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [8, 32])
def test_gradients_of_calibrated_attention(size):
    """By the strength, against finite differences of the rule in float64; by queries, finite everywhere."""
    q, k, v, mask = tensors(t=75)
    rows, values = naive(q, k, v, mask)
    direction = np.random.default_rng(5).normal(size=q.shape).astype(np.float32) * mask[..., None, None]
    baskets = lay_baskets(jnp.asarray(mask), size)

    arrays = [jnp.asarray(x) for x in (k, v, mask)]

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1))
    def loss(strength, q):
        out = attend_calibrated(q, *arrays, baskets, strength, "equal", size, causal=False)
        return jnp.sum(out * direction)

    strength = np.full((3, 4), 0.3, np.float32)
    _, (by_strength, by_query) = loss(strength, q)
    full = combine(calibrate_all(rows, mask, size, np.ones((3, 4)), (), "equal") - rows, values)
    expected = np.sum(full * direction, axis=(1, 3))
    np.testing.assert_allclose(by_strength, expected, rtol=1e-4, atol=1e-4)
    assert np.isfinite(by_query).all() and np.abs(by_query).max() > 0


@pytest.mark.parametrize("size", [8, 32])
def test_gradients_where_some_rows_see_nothing(size):
    """Left padding under a causal mask, the first token keeping its mass: no gradient becomes NaN."""
    q, k, v, mask = tensors(t=75)
    baskets = lay_baskets(jnp.asarray(mask), size, frozenset({"first", "last"}))
    strength = np.full((3, 4), 0.3, np.float32)

    def loss(strength, q, k, v):
        out = attend_calibrated(q, k, v, jnp.asarray(mask), baskets, strength, "keep", size, causal=True)
        return jnp.sum(out * jnp.arange(WIDTH))

    for gradient in jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(strength, q, k, v):
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0


# --- memory -----------------------------------------------------------------------------------------------------------


def inner_jaxprs(value):
    """Every jaxpr inside an equation's parameters."""
    if isinstance(value, jax.extend.core.ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, jax.extend.core.Jaxpr):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from inner_jaxprs(part)


def shapes_of(jaxpr):
    """Shapes of all intermediate arrays of a program, loops and branches included."""
    found = set()
    for equation in jaxpr.eqns:
        found |= {variable.aval.shape for variable in equation.outvars if hasattr(variable.aval, "shape")}
        for value in equation.params.values():
            for inner in inner_jaxprs(value):
                found |= shapes_of(inner)
    return found


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_no_array_of_tokens_by_tokens(written, loaded, pooling):
    import jax.extend.core  # noqa: F401 (for the helpers above)

    n, t = 1, 4096
    encoder = loaded("gte", pooling, max_position_embeddings=t)
    tokens, mask = np.ones((n, t), np.int32), np.ones((n, t), bool)
    programs = {
        name: shapes_of(jax.make_jaxpr(encoder.embed)(encoder.params, tokens, mask, calibration).jaxpr)
        for name, calibration in (("plain", None), ("calibrated", Calibration(0.5, 128, layers="all")))
    }
    assert any(t in shape for shape in programs["plain"]) and len(programs["plain"]) > 50
    for shapes in programs.values():
        assert [shape for shape in shapes if sum(axis >= t for axis in shape) > 1] == []
    largest = {name: max(int(np.prod(shape)) for shape in shapes) for name, shapes in programs.items()}
    # Nothing larger than a block of scores; doubling steps look at twice a block.
    assert largest["calibrated"] <= (1 if pooling == "first" else 2) * largest["plain"]
    if pooling == "first":
        added = programs["calibrated"] - programs["plain"]
        assert max(int(np.prod(shape)) for shape in added) <= 2 * n * encoder.config.heads * t


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_temporary_memory_of_the_compiled_programs(written, loaded, pooling):
    n, t = 1, 4096
    encoder = loaded("gte", pooling, max_position_embeddings=t)
    tokens, mask = np.ones((n, t), np.int32), np.ones((n, t), bool)
    plain, with_calibration = (
        jax.jit(encoder.embed).lower(encoder.params, tokens, mask, calibration).compile().memory_analysis()
        for calibration in (None, Calibration(0.5, 128, layers="all"))
    )
    extra = with_calibration.temp_size_in_bytes - plain.temp_size_in_bytes
    print(f"{pooling}: plain {plain.temp_size_in_bytes / 2**20:.2f} MiB, calibration {extra / 2**20:.2f} MiB more")
    row, square = 4 * n * encoder.config.heads * t, 4 * t * t
    assert extra < (16 * row if pooling == "first" else square / 4)
