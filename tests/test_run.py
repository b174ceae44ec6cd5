"""What an encoding run reports and refuses: compilations, short texts, vectors that are not finite, huge baskets."""

import logging

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcal import Calibration
from jaxcal.encoder import Encoder
from jaxcal.errors import InvalidSetting, NotFinite, UnexpectedCompilation


@pytest.fixture(scope="module")
def encoder(loaded):
    return loaded("gte", "first")


def ids_of(encoder, *lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(5, encoder.config.vocab_size, length) for length in lengths]


def test_no_compilation_nests(encoder):
    encoder.encode_ids(ids_of(encoder, 8))
    with encoder.no_compilation():
        with encoder.no_compilation():
            encoder.encode_ids(ids_of(encoder, 8))
        with pytest.raises(UnexpectedCompilation, match="shape"):
            encoder.encode_ids(ids_of(encoder, 8), batch_tokens=10**6, calibration=Calibration(0.5, 2, layers=3))
    encoder.encode_ids(ids_of(encoder, 8), calibration=Calibration(0.5, 2, layers=3))


def test_texts_below_one_basket_are_counted(encoder, caplog):
    with caplog.at_level(logging.INFO, "jaxcal"):
        encoder.encode_ids(ids_of(encoder, 5, 17, 18, 30), calibration=Calibration(basket_size=16))
    assert encoder.last_run.too_short == 2
    assert "2 of 4 texts were shorter than one basket and stay uncalibrated" in caplog.text
    encoder.encode_ids(ids_of(encoder, 5, 17, 18, 30))
    assert encoder.last_run.too_short == 0


@pytest.mark.parametrize("size", [10**6, 2**31 - 2, 2**31 - 1])
def test_baskets_longer_than_any_text_leave_all_texts_alone(encoder, size):
    ids = ids_of(encoder, 40, 90)
    got = encoder.encode_ids(ids, calibration=Calibration(1.0, size))
    np.testing.assert_allclose(got, encoder.encode_ids(ids), rtol=0, atol=1e-6)
    assert encoder.last_run.too_short == 0 and encoder.last_run.texts == 2


def test_vectors_that_are_not_finite_are_refused(encoder):
    params = {**encoder.params, "norm": {**encoder.params["norm"], "bias": encoder.params["norm"]["bias"] + jnp.inf}}
    broken = Encoder(encoder._definition, params, encoder.config, encoder.settings, None, encoder.max_length)
    with pytest.raises(NotFinite, match=r"vector of text 0 is not finite \(and 1 more\)"):
        broken.encode_ids(ids_of(encoder, 8, 8))


def test_a_checkpoint_whose_limit_leaves_no_room_for_special_tokens(written, tmp_path):
    from checkpoints import write_checkpoint

    import jaxcal

    folder = write_checkpoint(tmp_path, "bert", "first", num_hidden_layers=1, sentence={"max_seq_length": 1}).folder
    with pytest.raises(InvalidSetting, match="this model takes 2 to "):
        jaxcal.load(folder)
