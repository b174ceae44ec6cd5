"""The contract of `load` and `Encoder`: what goes in, what comes out, and what is refused with which words."""

import json
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import make_tokenizer, write_checkpoint

import jaxcal
from jaxcal import Calibration
from jaxcal.errors import InvalidCalibration, InvalidInput, InvalidSetting, UnsupportedCheckpoint

ROOT = Path(__file__).parents[1]
PROMPTS = {"query": "w1 w2 ", "document": "", "other": "w9 "}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return write_checkpoint(
        tmp_path_factory.mktemp("encoder"),
        "bert",
        "first",
        num_hidden_layers=2,
        max_position_embeddings=64,
        sentence={"prompts": PROMPTS, "max_seq_length": 24},
    )


@pytest.fixture(scope="session")
def encoder(checkpoint):
    return jaxcal.load(checkpoint.folder)


def texts_of(*lengths):
    """Texts of so many words, all different."""
    return [" ".join(f"w{(7 * number + step) % 70}" for step in range(length)) for number, length in enumerate(lengths)]


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_one_text_gives_one_vector_and_a_list_gives_rows(encoder):
    texts = texts_of(3, 20, 7)
    one, many = encoder.encode(texts[0]), encoder.encode(texts)
    assert one.shape == (32,) and many.shape == (3, 32)
    assert one.dtype == many.dtype == np.float32 and isinstance(many, np.ndarray)
    np.testing.assert_allclose(one, many[0], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(many, axis=1), 1, atol=1e-6)
    assert encoder.dimension == 32 and encoder.commit is None


def test_no_text_gives_no_rows(encoder):
    assert encoder.encode([]).shape == encoder.encode_ids([]).shape == (0, 32)
    assert encoder.encode([]).dtype == np.float32
    assert (encoder.last_run.texts, encoder.last_run.shapes, encoder.last_run.padding) == (0, 0, 0.0)
    assert encoder.encode([], truncate_dim=5, calibration=Calibration()).shape == (0, 5)


def test_an_empty_text_is_its_special_tokens(encoder):
    np.testing.assert_array_equal(encoder.encode([""]), encoder.encode_ids([[2, 3]]))
    assert encoder.encode("").shape == (32,)
    np.testing.assert_array_equal(encoder.encode(" \n\t"), encoder.encode(""))


def test_rows_come_back_in_the_given_order(encoder):
    texts = texts_of(2, 19, 1, 8, 8, 13, 0, 21)
    together = encoder.encode(texts)
    for index, text in enumerate(texts):
        np.testing.assert_allclose(encoder.encode(text), together[index], atol=2e-6)
    assert len({row.tobytes() for row in together}) == len(texts)


def test_equal_texts_give_equal_rows(encoder):
    rows = encoder.encode([texts_of(5)[0]] * 3)
    np.testing.assert_array_equal(rows[0], rows[1])


def test_any_sequence_of_strings_will_do(encoder, unchecked):
    texts = texts_of(4, 6)
    expected = encoder.encode(texts)
    for given in (tuple(texts), np.array(texts), iter(texts), dict.fromkeys(texts).keys()):
        np.testing.assert_array_equal(encoder.encode(given), expected)


def test_ids_are_what_texts_become(encoder):
    texts = texts_of(4, 6, 0)
    ids = encoder.tokenize(texts)
    assert [text.tolist() for text in ids][2] == [2, 3] and all(text.dtype == np.int32 for text in ids)
    expected = encoder.encode(texts)
    np.testing.assert_array_equal(encoder.encode_ids(ids), expected)
    np.testing.assert_array_equal(encoder.encode_ids([text.tolist() for text in ids]), expected)


def test_unknown_words_and_odd_characters_are_the_tokenizer_s_business(encoder):
    """NUL, emoji, other scripts, control characters: whatever the tokenizer makes of them."""
    odd = ["w1 \0 w2", "w1 [UNK] w2", "w1 \U0001f600 w2", "w1 東京 w2", "w1 \x1b w2"]
    rows = encoder.encode(odd)
    assert np.isfinite(rows).all()
    for row in rows[1:]:
        np.testing.assert_array_equal(row, rows[0])  # one unknown word between two known ones


def test_a_word_that_is_a_special_token_is_one(encoder):
    np.testing.assert_array_equal(encoder.encode(["w1 [SEP] w2"]), encoder.encode_ids([[2, 5, 3, 6, 3]]))


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_prompts(encoder):
    texts = texts_of(3, 9)
    plain = encoder.encode([f"w1 w2 {text}" for text in texts])
    np.testing.assert_array_equal(encoder.encode_query(texts), plain)
    np.testing.assert_array_equal(encoder.encode(texts, prompt="w1 w2 "), plain)
    np.testing.assert_array_equal(encoder.encode_document(texts, prompt="w1 w2 "), plain)
    bare = encoder.encode_document(texts)
    np.testing.assert_array_equal(encoder.encode_query(texts, prompt=""), bare)
    np.testing.assert_array_equal(encoder.encode(texts), bare)
    assert np.abs(plain - bare).max() > 1e-3
    assert encoder.encode_query(texts[0]).shape == (32,)
    tokens = encoder.tokenize(texts[:1], prompt="w9 ")
    assert tokens[0].tolist()[:3] == [2, 13, 4]


def test_the_default_prompt_is_for_encode_alone(checkpoint, tmp_path):
    def load(**options):
        for file in checkpoint.folder.iterdir():
            if file.is_file():
                (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "1_Pooling").mkdir(exist_ok=True)
        pooling = (checkpoint.folder / "1_Pooling" / "config.json").read_bytes()
        (tmp_path / "1_Pooling" / "config.json").write_bytes(pooling)
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(options))
        return jaxcal.load(tmp_path)

    encoder, text = load(prompts={"other": "w9 "}, default_prompt_name="other"), "w4 w5"
    with_prompt, without = encoder.encode(text, prompt="w9 "), encoder.encode(text, prompt="")
    np.testing.assert_array_equal(encoder.encode(text), with_prompt)
    # As in sentence-transformers, the named methods do not fall back to the default prompt.
    np.testing.assert_array_equal(encoder.encode_query(text), without)
    np.testing.assert_array_equal(encoder.encode_document(text), without)
    passage = load(prompts={"query": "w1 ", "passage": "w9 "})
    np.testing.assert_array_equal(passage.encode_document(text), with_prompt)


def test_a_prompt_counts_towards_the_length(encoder):
    encoder.encode(texts_of(22))
    assert encoder.last_run.truncated == 0
    encoder.encode_query(texts_of(22))
    assert encoder.last_run.truncated == 1


# --- lengths and dimensions -------------------------------------------------------------------------------------------


def test_truncation_is_counted_and_told(encoder, caplog):
    texts = texts_of(22, 23, 3, 40)
    rows = encoder.encode(texts)
    assert encoder.last_run.truncated == 2 and encoder.last_run.texts == 4
    assert warnings_of(caplog) == ["2 of 4 texts were longer than 24 tokens and were truncated"]
    ids = encoder.tokenize(texts)
    assert [len(text) for text in ids] == [24, 24, 5, 24]
    assert all(text[0] == 2 and text[-1] == 3 for text in ids)  # special tokens survive
    np.testing.assert_allclose(rows[1], encoder.encode(" ".join(texts[1].split()[:22])), atol=1e-6)
    caplog.clear()
    encoder.encode(texts_of(22))
    assert warnings_of(caplog) == []


def test_a_text_far_beyond_the_maximum(encoder, caplog):
    words = [f"w{number % 70}" for number in range(200_000)]
    row = encoder.encode(" ".join(words))
    np.testing.assert_array_equal(row, encoder.encode(" ".join(words[:22])))
    assert warnings_of(caplog) == ["1 of 1 texts were longer than 24 tokens and were truncated"]


def test_the_maximum_length_may_be_chosen(checkpoint, caplog):
    assert jaxcal.load(checkpoint.folder).max_length == 24
    longer = jaxcal.load(checkpoint.folder, max_length=64)
    assert longer.max_length == 64
    longer.encode(texts_of(62))
    assert longer.last_run.truncated == 0 and longer.last_run.tokens == 64
    shortest = jaxcal.load(checkpoint.folder, max_length=2)
    np.testing.assert_allclose(shortest.encode("w1 w2"), shortest.encode(""), atol=1e-6)
    assert warnings_of(caplog)[-1] == "1 of 1 texts were longer than 2 tokens and were truncated"


@pytest.mark.parametrize("value", [0, 1, -1, 65, 10**9, 24.0, "24", True, float("nan")])
def test_impossible_lengths(checkpoint, unchecked, value):
    with pytest.raises(InvalidSetting, match=r"max_length is .* takes 2 to 64 tokens"):
        jaxcal.load(checkpoint.folder, max_length=value)


def test_leading_dimensions(encoder):
    texts = texts_of(3, 9)
    full = encoder.encode(texts)
    for dimension in (1, 8, 32):
        got = encoder.encode(texts, truncate_dim=dimension)
        expected = full[:, :dimension] / np.linalg.norm(full[:, :dimension], axis=1, keepdims=True)
        assert got.shape == (2, dimension) and got.dtype == np.float32
        np.testing.assert_allclose(got, expected, atol=1e-6)
    assert encoder.encode(texts[0], truncate_dim=8).shape == (8,)


def test_leading_dimensions_are_not_normalised_where_the_checkpoint_does_not(tmp_path):
    written = write_checkpoint(
        tmp_path, "bert", "mean", num_hidden_layers=1, normalize=False, sentence={"truncate_dim": 8, "prompts": {}}
    )
    encoder = jaxcal.load(written.folder)
    full, own = encoder.encode("w1 w2", truncate_dim=32), encoder.encode("w1 w2")
    assert own.shape == (8,) and abs(np.linalg.norm(full) - 1) > 0.1
    np.testing.assert_array_equal(own, full[:8])


@pytest.mark.parametrize("value", [0, -1, 33, 8.0, "8", True])
def test_impossible_dimensions(encoder, unchecked, value):
    with pytest.raises(InvalidSetting, match=r"truncate_dim is .* 1 to 32 dimensions"):
        encoder.encode("w1", truncate_dim=value)


@pytest.mark.parametrize("value", [0, -5, 1.5, "8", True])
def test_impossible_batches(encoder, unchecked, value):
    with pytest.raises(InvalidSetting, match="batch_tokens is"):
        encoder.encode("w1", batch_tokens=value)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "texts is of the type NoneType"),
        (b"bytes", "texts is of the type bytes"),
        (7, "texts is of the type int"),
        ({"text": 1}, "texts is of the type dict"),
        (["w1", None], "text 1 is of the type NoneType"),
        (["w1", "w2", b"w3"], "text 2 is of the type bytes"),
        ([3.5], "text 0 is of the type float"),
        ([["w1"], ["w2"]], "text 0 is of the type list"),
        (["w1", float("nan")], "text 1 is of the type float"),
        (["w1", "w2 \ud800"], "text 1 holds a lone surrogate at character 3"),
        ("\udfff w1", "text 0 holds a lone surrogate at character 0"),
    ],
)
def test_texts_that_are_none(encoder, unchecked, texts, message):
    for call in (encoder.encode, encoder.encode_query, encoder.encode_document):
        with pytest.raises(InvalidInput, match=message):
            call(texts)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[2, 3], []], r"ids of text 1 have the shape \(0,\).* 1 to 64 whole numbers"),
        ([[2, 80]], "ids of text 0 leave the vocabulary of 80"),
        ([[2, 3], [2, -1]], "ids of text 1 leave the vocabulary of 80"),
        ([[2] * 65], r"ids of text 0 have the shape \(65,\).* 1 to 64"),
        ([[[2, 3]]], r"ids of text 0 have the shape \(1, 2\)"),
        ([2, 3], r"ids of text 0 have the shape \(\)"),
        ([[2.0, 3.0]], "type float64"),
        ([[True, False]], "type bool"),
        ([["w1"]], "whole numbers"),
        ([np.array([2, 3], np.float32)], "type float32"),
        ([None], "whole numbers"),
        (["w1 w2"], "whole numbers"),
    ],
)
def test_ids_that_are_none(encoder, unchecked, ids, message):
    with pytest.raises(InvalidInput, match=message):
        encoder.encode_ids(ids)


def test_ids_of_any_integer_type(encoder):
    expected = encoder.encode_ids([[2, 9, 3]])
    for dtype in (np.int64, np.uint8, np.int32):
        np.testing.assert_array_equal(encoder.encode_ids([np.array([2, 9, 3], dtype)]), expected)


def test_huge_ids_do_not_wrap_round(encoder):
    with pytest.raises(InvalidInput, match="leave the vocabulary"):
        encoder.encode_ids([[2, 2**32 + 9]])


@pytest.mark.parametrize("calibration", [0.5, "paper", {"strength": 0.5}, True, Calibration])
def test_calibrations_that_are_none(encoder, unchecked, calibration):
    with pytest.raises(InvalidSetting, match=r"must be a jaxcal\.Calibration or None"):
        encoder.encode("w1", calibration=calibration)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 3}, "asks for 3 layers, but the model has 2"),
        ({"strength": [0.1, 0.2]}, r"shape \(2,\); for 1 calibrated layers of 4 heads"),
        ({"strength": np.full((1, 3), 0.1)}, r"shape \(1, 3\)"),
        ({"strength": np.zeros((7, 7))}, r"shape \(7, 7\)"),  # also where it would change nothing
    ],
)
def test_calibrations_that_do_not_fit_the_model(encoder, options, message):
    with pytest.raises(InvalidCalibration, match=message):
        encoder.encode("w1", calibration=Calibration(**options))
    tokens, mask = np.array([[2, 3]], np.int32), np.ones((1, 2), bool)
    with pytest.raises(InvalidCalibration, match=message):
        jax.eval_shape(encoder.embed, encoder.params, tokens, mask, Calibration(**options))


@pytest.mark.parametrize("prompt", [5, b"w1 ", ["w1 "]])
def test_prompts_that_are_none(encoder, unchecked, prompt):
    with pytest.raises(InvalidSetting, match="prompt is .* must be a string"):
        encoder.encode("w1", prompt=prompt)


@pytest.mark.parametrize("dtype", ["float64", "int8", "", "fp16", None])
def test_types_that_are_not_offered(checkpoint, unchecked, dtype):
    with pytest.raises(InvalidSetting, match="must be one of float32, bfloat16, float16"):
        jaxcal.load(checkpoint.folder, dtype=dtype)


def test_a_tokenizer_with_more_words_than_the_model(tmp_path):
    """Beyond the table a lookup would silently take another row."""
    written = write_checkpoint(tmp_path, "bert", "mean", num_hidden_layers=1)
    make_tokenizer("bert", 90).save(str(tmp_path / "tokenizer.json"))
    encoder = jaxcal.load(written.folder)
    assert encoder.encode("w75").shape == (32,)  # the last of 80
    with pytest.raises(InvalidInput, match="text 1 has a token beyond the model's vocabulary of 80"):
        encoder.encode(["w1", "w76"])


def test_a_tokenizer_that_adds_no_special_tokens(tmp_path):
    written = write_checkpoint(tmp_path, "bert", "mean", num_hidden_layers=1)
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**stored, "post_processor": None}))
    encoder = jaxcal.load(written.folder)
    with pytest.raises(InvalidInput, match="text 1 gives no token at all"):
        encoder.encode(["w1", ""])


def test_an_architecture_without_a_port(tmp_path, checkpoint):
    (tmp_path / "config.json").write_text(json.dumps({**checkpoint.config, "model_type": "t5"}))
    with pytest.raises(UnsupportedCheckpoint, match="model_type 't5'.* bert, roberta, xlm-roberta, new, gte, qwen3"):
        jaxcal.load(tmp_path)


# --- statistics and progress ------------------------------------------------------------------------------------------


def test_statistics_of_a_run(encoder, caplog):
    with caplog.at_level(logging.INFO, "jaxcal"):
        encoder.encode(texts_of(6, 4, 1))
    run = encoder.last_run
    assert (run.texts, run.tokens, run.computed_tokens, run.truncated, run.shapes) == (3, 17, 32, 0, 1)
    assert run.padding == 1 - 17 / 32 and run.seconds > 0
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "encoded 3 texts, 17 tokens, 46.9 % padding, 1 shapes" in told


def test_progress_is_shown_on_request(encoder, capfd):
    encoder.encode(texts_of(6, 4), show_progress=True)
    shown = capfd.readouterr().err
    assert "encode" in shown and "14.0" in shown
    encoder.encode(texts_of(6, 4))
    assert capfd.readouterr().err == ""


def test_qwen3_appends_its_end_token_and_pools_there(written, loaded):
    checkpoint, encoder = written("qwen3", "last"), loaded("qwen3", "last")
    assert encoder.settings.pooling == "last" and checkpoint.config["pad_token_id"] == 0
    ids = encoder.tokenize(["w1 w2", "", " ".join(["w3"] * 2000)])
    assert ids[0].tolist() == [3, 4, 0] and ids[1].tolist() == [0]
    assert len(ids[2]) == 1200 and ids[2][-1] == 0  # truncation keeps it
    np.testing.assert_array_equal(encoder.encode("w1 w2"), encoder.encode_ids([[3, 4, 0]])[0])


def test_embed_is_a_pure_function_of_weights_and_calibration(encoder):
    """Under vmap over calibrations and under grad by the strength, as sweeps and learning use it."""
    rng = np.random.default_rng(0)
    tokens, mask = jnp.asarray(rng.integers(4, 80, (2, 40)), jnp.int32), jnp.ones((2, 40), bool)
    strengths = np.array([0.0, 0.4, 1.0], np.float32)
    swept = jax.jit(
        jax.vmap(lambda strength: encoder.embed(encoder.params, tokens, mask, Calibration(strength, 8, layers="all")))
    )(strengths)
    one = jax.jit(encoder.embed)
    for got, strength in zip(swept, strengths, strict=True):
        expected = one(encoder.params, tokens, mask, Calibration(np.float32(strength), 8, layers="all"))
        np.testing.assert_allclose(got, expected, atol=2e-6)
    direction = rng.normal(size=(2, 32)).astype(np.float32)

    @jax.jit
    def score(strength):
        calibration = Calibration(strength, 8, layers="all")
        return (encoder.embed(encoder.params, tokens, mask, calibration) * direction).sum()

    gradient = jax.jit(jax.grad(score))(np.float32(0.4))
    step = 1e-2
    finite = (score(np.float32(0.4 + step)) - score(np.float32(0.4 - step))) / (2 * step)
    np.testing.assert_allclose(gradient, finite, rtol=2e-2, atol=1e-4)


def test_gradients_reach_every_weight_and_every_strength(loaded):
    """Per layer and head, through the scans, for both ways of calibrating."""
    for kind, pooling in (("gte", "first"), ("bert", "mean"), ("qwen3", "last")):
        encoder = loaded(kind, pooling)
        tokens = jnp.asarray(np.random.default_rng(0).integers(4, 80, (2, 60)), jnp.int32)
        mask = jnp.ones((2, 60), bool)

        @jax.jit
        def score(params, strength, encoder=encoder, tokens=tokens, mask=mask):
            return encoder.embed(params, tokens, mask, Calibration(strength, 8, layers="all"))[:, 0].sum()

        weights, strengths = jax.jit(jax.grad(score, argnums=(0, 1)))(encoder.params, np.full((4, 4), 0.3, np.float32))
        assert np.isfinite(strengths).all() and (np.abs(strengths) > 0).all()
        for gradient in jax.tree.leaves(weights):
            assert np.isfinite(gradient).all()
