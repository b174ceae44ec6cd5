"""What must not change a vector (batch, bucket, padding, order, a strength of zero), and what must not compile."""

import functools

import jax
import numpy as np
import pytest
from reference import pad_ids

import jaxcal
from jaxcal import Calibration
from jaxcal.errors import UnexpectedCompilation

TOLERANCE = 5e-6
ENCODERS = {"bert": "mean", "gte-original": "first", "qwen3": "last"}
CALIBRATIONS = {"plain": None, "calibrated": Calibration(0.7, 16)}
LENGTHS = (200, 3, 40, 97, 1, 60)

both = pytest.mark.parametrize("calibration", CALIBRATIONS.values(), ids=CALIBRATIONS)
every = pytest.mark.parametrize("kind", ENCODERS)


@pytest.fixture
def encoder(loaded, kind):
    return loaded(kind, ENCODERS[kind])


@pytest.fixture
def ids(written, kind):
    rng = np.random.default_rng(11)
    return [written(kind, ENCODERS[kind]).ids(rng, length) for length in LENGTHS]


@functools.cache
def embedder(encoder):
    """The pure function, compiled once for all tests."""
    return jax.jit(encoder.embed)


@pytest.fixture
def compiled_by_jax():
    """The programs XLA compiles during a test, counted by JAX itself."""
    names = []

    def listen(name, seconds, **details):
        if name == "/jax/core/compile/backend_compile_duration":
            names.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


# --- the same vector --------------------------------------------------------------------------------------------------


@every
@both
def test_batch_and_bucket_do_not_matter(encoder, ids, calibration):
    """All in one batch (six texts and two rows that stand for none), alone, and in small batches of several shapes."""
    together = encoder.encode_ids(ids, calibration=calibration, batch_tokens=8 * 208)
    assert encoder.last_run.computed_tokens == 8 * 208
    alone = encoder.encode_ids(ids[:3], calibration=calibration, batch_tokens=1)
    assert encoder.last_run.shapes == 3
    np.testing.assert_allclose(alone, together[:3], rtol=0, atol=TOLERANCE)
    if calibration is None:
        small = encoder.encode_ids(ids, batch_tokens=224)
        assert encoder.last_run.shapes >= 3
        np.testing.assert_allclose(small, together, rtol=0, atol=TOLERANCE)
    assert np.isfinite(together).all()
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=0, atol=1e-6)


@every
@both
def test_order_does_not_matter(encoder, ids, calibration):
    forward = encoder.encode_ids(ids, calibration=calibration, batch_tokens=8 * 208)
    order = [3, 0, 5, 4, 1, 2]
    shuffled = encoder.encode_ids([ids[text] for text in order], calibration=calibration, batch_tokens=8 * 208)
    np.testing.assert_array_equal(shuffled, forward[order])


@every
@both
def test_rows_that_stand_for_no_text_do_not_leak(encoder, ids, calibration):
    """The same shape with six texts, and with eight of which the last two are anything."""
    six = encoder.encode_ids(ids, calibration=calibration, batch_tokens=8 * 208)
    eight = encoder.encode_ids([*ids, ids[3], ids[2]], calibration=calibration, batch_tokens=8 * 208)
    np.testing.assert_array_equal(eight[:6], six)


@every
@both
def test_padding_does_not_matter(encoder, ids, calibration):
    expected = encoder.encode_ids(ids, calibration=calibration, batch_tokens=8 * 208)
    embed = embedder(encoder)
    right, left = (pad_ids(ids, encoder.config.pad_token, side, to=251) for side in ("right", "left"))
    both_sides = [np.roll(array, -20, axis=1) for array in left]  # every text ends 20 tokens before the end
    assert all((mask.sum(1) == LENGTHS).all() for _, mask in (right, left, both_sides))
    for tokens, mask in (right, left, both_sides):
        got = embed(encoder.params, tokens, mask, calibration)
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


@every
def test_what_stands_in_the_padding_does_not_matter(encoder, ids):
    """Any token may lie under the mask; only XLM-RoBERTa's positions would read it, and it is padded with its own."""
    embed = embedder(encoder)
    tokens, mask = pad_ids(ids, encoder.config.pad_token, "right", to=251)
    rubbish = np.where(mask, tokens, np.random.default_rng(0).integers(0, encoder.config.vocab_size, tokens.shape))
    for calibration in CALIBRATIONS.values():
        one, two = (embed(encoder.params, array.astype(np.int32), mask, calibration) for array in (tokens, rubbish))
        np.testing.assert_array_equal(one, two)


# --- a strength of zero -----------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("layers", ["last", "last-50%", "all", 3])
def test_strength_zero_is_no_calibration_bit_for_bit(encoder, ids, layers):
    plain = encoder.encode_ids(ids, batch_tokens=8 * 208)
    count = Calibration(layers=layers).number_of_layers(encoder.config.layers)
    for strength in (0, 0.0, np.zeros(count), np.zeros((count, encoder.config.heads))):
        calibration = Calibration(strength, 16, layers=layers)
        got = encoder.encode_ids(ids, calibration=calibration, batch_tokens=8 * 208)
        np.testing.assert_array_equal(got, plain)


@every
def test_a_traced_strength_of_zero_is_no_calibration(encoder, ids):
    """Inside a program the strength is not known to be zero; the calibrated program then returns the plain vectors."""
    tokens, mask = pad_ids(ids, encoder.config.pad_token, "right", to=251)
    embed = embedder(encoder)
    plain = embed(encoder.params, tokens, mask)
    for calibration in (Calibration(np.zeros(2, np.float32), 16), Calibration(0.7, 1000)):  # 1000: all fall back
        np.testing.assert_allclose(embed(encoder.params, tokens, mask, calibration), plain, rtol=0, atol=5e-7)


@every
def test_texts_below_one_basket_are_plain_beside_calibrated_ones(encoder, ids):
    plain = encoder.encode_ids(ids, batch_tokens=8 * 208)
    got = encoder.encode_ids(ids, calibration=Calibration(1.0, 64), batch_tokens=8 * 208)
    moved = np.abs(got - plain).max(axis=1)
    isolated = 0 if encoder.settings.pooling == "mean" else 2
    long_enough = np.array(LENGTHS) - isolated >= 64
    assert long_enough.sum() == 2
    assert (moved[long_enough] > 1e-3).all() and (moved[~long_enough] < 5e-7).all()


# --- compilations -----------------------------------------------------------------------------------------------------


@every
def test_nothing_compiles_after_warm_up(written, encoder, kind, compiled_by_jax):
    """New texts of the same lengths, new strengths, new basket sizes: not one program, by our count and by JAX's."""
    checkpoint, rng = written(kind, ENCODERS[kind]), np.random.default_rng(0)

    def encode(calibration):
        ids = [checkpoint.ids(rng, length) for length in LENGTHS]
        return encoder.encode_ids(ids, calibration=calibration, batch_tokens=8 * 208)

    encode(None), encode(Calibration(0.5, 16))
    compiled_by_jax.clear()
    before = encoder.compilations
    with encoder.no_compilation():
        first = encode(None)
        for strength, basket_size in ((0.1, 3), (1, 128), (0.25, 1), (np.float32(0.75), np.int64(33))):
            assert np.abs(encode(Calibration(strength, basket_size)) - first).max() > 0
        encode(Calibration(0.0, 7))
        encode(None)
    assert encoder.compilations == before and encoder.last_run.compilations == 0
    assert compiled_by_jax == []


def test_new_shapes_and_static_choices_do_compile(written, loaded, compiled_by_jax):
    """The counters can count: a new length or policy is a new program, and an error where that is forbidden."""
    checkpoint, encoder = written("bert", "first"), loaded("bert", "first")
    rng = np.random.default_rng(0)
    short, longer = checkpoint.ids(rng, 9), checkpoint.ids(rng, 25)
    encoder.encode_ids([short], calibration=Calibration(0.5, 4))
    compiled_by_jax.clear()
    with encoder.no_compilation():
        encoder.encode_ids([short], calibration=Calibration(0.6, 5))
        with pytest.raises(UnexpectedCompilation, match=r"shape \(1, 32\)"):
            encoder.encode_ids([longer], calibration=Calibration(0.5, 4))
        with pytest.raises(UnexpectedCompilation, match=r"shape \(1, 16\)"):
            encoder.encode_ids([short], calibration=Calibration(0.5, 4, special_tokens="keep"))
    assert compiled_by_jax == []
    before = encoder.compilations
    encoder.encode_ids([short], calibration=Calibration(0.5, 4, special_tokens="keep"))
    assert encoder.compilations == before + 1 == before + encoder.last_run.compilations and compiled_by_jax


def test_a_corpus_compiles_at_most_one_program_per_shape(written, compiled_by_jax):
    checkpoint = written("bert", "mean")
    encoder = jaxcal.load(checkpoint.folder)
    rng = np.random.default_rng(1)
    lengths = np.clip(np.exp(rng.normal(2.2, 0.7, 300)), 2, 40).astype(int)
    ids = [checkpoint.ids(rng, int(length)) for length in lengths]
    once = encoder.encode_ids(ids)
    run = encoder.last_run
    assert run.compilations == run.shapes == encoder.compilations <= 6
    assert (run.texts, run.tokens) == (300, lengths.sum())
    compiled_by_jax.clear()
    np.testing.assert_array_equal(encoder.encode_ids(ids), once)
    assert compiled_by_jax == []
