"""The plain forward pass against the models of transformers, float32: each family, layout, pooling, padding side."""

import json

import jax
import numpy as np
import pytest

pytest.importorskip("torch")

from checkpoints import write_checkpoint, write_modules
from reference import empty_model, pad_ids, reference_vectors, torch_model

import jaxcal
from jaxcal.errors import InvalidInput

TOLERANCE = 1e-5
LENGTHS = (500, 1, 1200, 17, 2, 128)
ONE_BATCH = 10**6

MAIN = {
    "bert": ("bert", "mean", {}),
    "xlm-roberta": ("xlm-roberta", "first", {}),
    "gte": ("gte", "first", {}),
    "gte-original": ("gte-original", "first", {}),
    "qwen3": ("qwen3", "last", {}),
}
WIDE = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96, "num_hidden_layers": 3, "seed": 1}
OTHERS = {
    "bert first": ("bert", "first", {"prefix": "bert.", "old": True}),
    "bert last, wide": ("bert", "last", {**WIDE, "layer_norm_eps": 0.1}),
    "bert, not normalised": ("bert", "mean", {"normalize": False, "seed": 2}),
    "roberta mean": ("roberta", "mean", {"prefix": "roberta.", "pad_token_id": 3, "max_position_embeddings": 1204}),
    "xlm-roberta mean, wide": ("xlm-roberta", "mean", {**WIDE, "old": True, "layer_norm_eps": 0.1}),
    "gte mean, no token types": ("gte", "mean", {"type_vocab_size": 0, "prefix": "gte."}),
    "gte linear, wide": ("gte", "last", {**WIDE, "rope": ("linear", 3.0, 20_000.0), "layer_norm_eps": 0.1}),
    "gte-original mean, wide": ("gte-original", "mean", {**WIDE, "type_vocab_size": 2, "layer_norm_eps": 0.1}),
    "qwen3 mean": ("qwen3", "mean", {"prefix": "model.", "old": True}),
    "qwen3 linear, wide": (
        "qwen3",
        "last",
        {**WIDE, "rope": ("linear", 4.0, 5e5), "head_dim": 64, "rms_norm_eps": 0.1},
    ),
    "qwen3, one key head": ("qwen3", "last", {"num_key_value_heads": 1, "num_hidden_layers": 1, "head_dim": 2}),
    "qwen3, no grouping": ("qwen3", "first", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
}
BY_NAME = {**MAIN, **OTHERS}


@pytest.fixture(scope="session")
def compared(tmp_path_factory):
    """By name: checkpoint, encoder, torch model, token ids, and the torch model's vectors of unpadded texts."""
    made = {}

    def compare(name):
        if name not in made:
            kind, pooling, options = BY_NAME[name]
            options = dict(options)
            if "rope" in options:
                rope_type, factor, theta = options.pop("rope")
                options["rope_parameters"] = {"rope_type": rope_type, "factor": factor, "rope_theta": theta}
            written = write_checkpoint(tmp_path_factory.mktemp("parity"), kind, pooling, **options)
            rng = np.random.default_rng(7)
            ids = [written.ids(rng, length) for length in LENGTHS]
            model, encoder = torch_model(written), jaxcal.load(written.folder)
            expected = reference_vectors(model, ids, pooling, normalize=encoder.settings.normalize)
            made[name] = written, encoder, model, ids, expected
        return made[name]

    return compare


def assert_close(got, expected, tolerance=TOLERANCE):
    assert got.shape == expected.shape and got.dtype == np.float32
    scale = np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1)
    difference = np.abs(got - expected) / scale
    print(f"largest difference {difference.max():.2e}")
    assert np.isfinite(got).all() and difference.max() <= tolerance, np.abs(difference).max(axis=1)


@pytest.mark.parametrize("name", BY_NAME)
def test_mixed_batch(compared, name):
    _, encoder, _, ids, expected = compared(name)
    assert_close(encoder.encode_ids(ids, batch_tokens=ONE_BATCH), expected)
    assert encoder.last_run.shapes == 1


@pytest.mark.parametrize("name", MAIN)
def test_alone(compared, name):
    _, encoder, _, ids, expected = compared(name)
    some = [text for text in range(len(ids)) if LENGTHS[text] in (1, 2, 17, 1200)]
    assert_close(encoder.encode_ids([ids[text] for text in some], batch_tokens=1), expected[some])
    assert encoder.last_run.shapes == 3  # one and two tokens share the shortest bucket


@pytest.mark.parametrize("name", [*MAIN, "qwen3 mean"])
def test_left_padding(compared, name):
    written, encoder, model, ids, expected = compared(name)
    normalize = encoder.settings.normalize
    reference = reference_vectors(model, ids, written.pooling, side="left", normalize=normalize)
    tokens, mask = pad_ids(ids, encoder.config.pad_token, "left", to=1209)
    got = np.asarray(jax.jit(encoder.embed)(encoder.params, tokens, mask))
    assert_close(got, reference)
    assert_close(got, expected)


def test_right_padded_reference_agrees(compared):
    """The reference itself: padding changes nothing in the torch models either."""
    for name in MAIN:
        written, _, model, ids, expected = compared(name)
        short = [text for text in range(len(ids)) if LENGTHS[text] <= 128]
        got = reference_vectors(model, [ids[text] for text in short], written.pooling, side="right")
        assert_close(got.astype(np.float32), expected[short])


def test_at_the_end_of_the_position_table(compared):
    written, encoder, model, ids, _ = compared("xlm-roberta")
    assert encoder.config.max_tokens == encoder.max_length == max(LENGTHS) == 1200
    too_long = written.ids(np.random.default_rng(0), 1201)
    with pytest.raises(InvalidInput, match="text 0 .* 1 to 1200"):
        encoder.encode_ids([too_long])
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        reference_vectors(model, [too_long], "first")


@pytest.mark.parametrize("name", ["xlm-roberta", "bert", "gte", "qwen3"])
def test_padding_token_inside_a_text(compared, name):
    """XLM-RoBERTa numbers positions by token ids, so a literal padding token does not count, in torch either."""
    written, encoder, model, ids, _ = compared(name)
    odd = [list(text) for text in ids]
    for text in odd:
        text[len(text) // 2 :: 5] = [encoder.config.pad_token] * len(text[len(text) // 2 :: 5])
    assert_close(encoder.encode_ids(odd, batch_tokens=ONE_BATCH), reference_vectors(model, odd, written.pooling))


@pytest.mark.parametrize(
    ("kind", "pooling", "stored", "torch_file"),
    [
        ("bert", "mean", "float16", False),
        ("bert", "mean", "float32", True),
        ("xlm-roberta", "first", "bfloat16", True),
        ("gte-original", "first", "float16", False),
        ("gte-original", "first", "float16", True),
        ("qwen3", "last", "bfloat16", False),
        ("gte", "mean", "float64", False),
    ],
)
def test_stored_types(tmp_path, kind, pooling, stored, torch_file):
    written = write_checkpoint(tmp_path, kind, pooling, stored=stored, torch_file=torch_file)
    encoder = jaxcal.load(written.folder)
    rng = np.random.default_rng(3)
    ids = [written.ids(rng, length) for length in (600, 45)]
    assert_close(encoder.encode_ids(ids, batch_tokens=ONE_BATCH), reference_vectors(torch_model(written), ids, pooling))


@pytest.mark.parametrize("torch_file", [False, True], ids=["safetensors", "bin"])
@pytest.mark.parametrize(("kind", "pooling", "options"), MAIN.values(), ids=MAIN)
def test_shards(tmp_path, kind, pooling, options, torch_file):
    one = jaxcal.load(write_checkpoint(tmp_path / "one", kind, pooling).folder)
    many = jaxcal.load(write_checkpoint(tmp_path / "many", kind, pooling, shards=3, torch_file=torch_file).folder)
    assert len(list((tmp_path / "many").glob("*-of-00003.*"))) == 3
    jax.tree.map(np.testing.assert_array_equal, one.params, many.params)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", MAIN)
def test_half_precision(compared, name, dtype):
    written, encoder, _, ids, expected = compared(name)
    half = jaxcal.load(written.folder, dtype=dtype)
    assert half.params["words"]["embedding"].dtype == dtype
    got = half.encode_ids(ids, batch_tokens=ONE_BATCH)
    cosines = np.sum(got * expected, axis=1)
    print(f"smallest cosine {cosines.min():.5f}")
    assert got.dtype == np.float32 and np.isfinite(got).all()
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)
    assert cosines.min() >= {"bfloat16": 0.999, "float16": 0.99999}[dtype]


WITH_HEADS = {
    "BertForSequenceClassification": ("bert", "mean"),
    "XLMRobertaForMaskedLM": ("xlm-roberta", "first"),
    "RobertaForTokenClassification": ("roberta", "mean"),
    "GteForTokenClassification": ("gte", "first"),
    "GteForMaskedLM": ("gte", "first"),
    "Qwen3ForCausalLM tied": ("qwen3", "last"),
    "Qwen3ForCausalLM untied": ("qwen3", "last"),
}


@pytest.mark.parametrize("name", WITH_HEADS)
def test_saved_by_transformers_with_a_head(tmp_path, written, name):
    """Files that transformers itself writes, sharded, with a prefix and the tensors of a head."""
    import torch
    import transformers

    kind, pooling = WITH_HEADS[name]
    config = {**written(kind, pooling).config, "tie_word_embeddings": not name.endswith("untied")}
    torch.manual_seed(0)
    head = name.split()[0]
    settings = getattr(transformers, f"{head.partition('For')[0]}Config")(**config)
    model = getattr(transformers, head)(settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # fresh biases are zero and fresh norms one
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "tokenizer.json").write_bytes((written(kind, pooling).folder / "tokenizer.json").read_bytes())
    write_modules(tmp_path, config["hidden_size"], pooling)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == kind

    body = empty_model(config).eval()
    tensors = {name: tensor for name, tensor in model.base_model.state_dict().items() if not name.startswith("pooler.")}
    body.load_state_dict(tensors, strict=True)
    rng = np.random.default_rng(5)
    ids = [written(kind, pooling).ids(rng, length) for length in (600, 45)]
    got = jaxcal.load(tmp_path).encode_ids(ids, batch_tokens=ONE_BATCH)
    assert_close(got, reference_vectors(body, ids, pooling))
