"""config.json, field by field: read, harmless, fixed at the one implemented value, or refused by name."""

import dataclasses
import json
import logging

import jax
import numpy as np
import pytest
from checkpoints import KINDS, make_config, old_spelling, original_config

from jaxcal.checkpoint.weights import build
from jaxcal.errors import UnsupportedCheckpoint
from jaxcal.models import FAMILIES, find_family
from jaxcal.models.config import HARMLESS, Rope

CLASSES = {
    "bert": "BertConfig",
    "xlm-roberta": "XLMRobertaConfig",
    "roberta": "RobertaConfig",
    "gte": "GteConfig",
    "qwen3": "Qwen3Config",
}
# The published files, as far as they say anything about the model.
PUBLISHED = {
    "bge-m3": {
        "_name_or_path": "",
        "architectures": ["XLMRobertaModel"],
        "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0,
        "classifier_dropout": None,
        "eos_token_id": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 4096,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 8194,
        "model_type": "xlm-roberta",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "output_past": True,
        "pad_token_id": 1,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
        "transformers_version": "4.33.0",
        "type_vocab_size": 1,
        "use_cache": True,
        "vocab_size": 250002,
    },
    "gte-multilingual-base": original_config(
        {
            "bos_token_id": 0,
            "eos_token_id": 2,
            "hidden_act": "gelu",
            "hidden_size": 768,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 8192,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "pad_token_id": 1,
            "type_vocab_size": 1,
            "vocab_size": 250048,
        }
    ),
    "Qwen3-Embedding-0.6B": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151643,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.3",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151669,
    },
    "all-MiniLM-L6-v2": {
        "_name_or_path": "nreimers/MiniLM-L6-H384-uncased",
        "architectures": ["BertModel"],
        "attention_probs_dropout_prob": 0.1,
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 384,
        "initializer_range": 0.02,
        "intermediate_size": 1536,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "bert",
        "num_attention_heads": 12,
        "num_hidden_layers": 6,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "transformers_version": "4.8.2",
        "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": 30522,
    },
}
# width, F, layers, heads, key heads, head width, longest text, pad, eps, vocabulary, causal
TABLE = {
    "bge-m3": (1024, 4096, 24, 16, 16, 64, 8192, 1, 1e-5, 250002, False),
    "gte-multilingual-base": (768, 3072, 12, 12, 12, 64, 8192, 1, 1e-12, 250048, False),
    "Qwen3-Embedding-0.6B": (1024, 3072, 28, 16, 8, 128, 32768, 0, 1e-6, 151669, True),
    "all-MiniLM-L6-v2": (384, 1536, 6, 12, 12, 32, 512, 0, 1e-12, 30522, False),
}


def read(raw):
    return find_family(raw).read_config(json.loads(json.dumps(raw)))


def raw_config(kind):
    config = make_config(kind)
    return original_config(config) if kind == "gte-original" else config


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(name, caplog):
    config = read(PUBLISHED[name])
    assert TABLE[name] == (
        *(config.width, config.feed_forward, config.layers, config.heads, config.kv_heads, config.head_width),
        *(config.max_tokens, config.pad_token, config.norm_eps, config.vocab_size, config.causal),
    )
    assert warnings_of(caplog) == [] and hash(config) == hash(read(PUBLISHED[name]))
    if name == "Qwen3-Embedding-0.6B":
        assert config.rope == Rope(1e6)


@pytest.mark.parametrize(
    ("width", "feed_forward", "parameters"), [(2560, 9728, 4.02e9), (4096, 12288, 7.57e9)], ids=["4B", "8B"]
)
def test_the_larger_qwen3_embedding_models(caplog, width, feed_forward, parameters):
    """Whether every weight has its place, on shapes alone; nothing is allocated."""
    sizes = {"hidden_size": width, "intermediate_size": feed_forward, "num_hidden_layers": 36, "vocab_size": 151665}
    more = {"num_attention_heads": 32, "num_key_value_heads": 8, "max_window_layers": 36}
    raw = PUBLISHED["Qwen3-Embedding-0.6B"] | sizes | more
    config, family = read(raw), find_family(raw)
    assert (config.width, config.layers, config.heads, config.kv_heads) == (width, 36, 32, 8)
    assert config.head_width == 128 and config.rope == Rope(1e6) and warnings_of(caplog) == []
    leaves = jax.tree_util.tree_leaves_with_path(build(family, config, np.dtype("float32"))[1])
    shapes = {".".join(str(key.key) for key in path): leaf.shape for path, leaf in leaves}
    assert shapes.keys() == family.weight_rules(config, frozenset()).keys()
    assert shapes["layers.query_projection.kernel"] == (36, width, 4096)
    assert shapes["layers.key_projection.kernel"] == (36, width, 1024)
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == pytest.approx(parameters, rel=0.005)


def test_null_key_heads_mean_one_per_query_head():
    raw = {**PUBLISHED["Qwen3-Embedding-0.6B"], "num_key_value_heads": None}
    assert read(raw).kv_heads == 16


@pytest.mark.parametrize("kind", CLASSES)
def test_every_field_that_transformers_defines_is_accounted_for(kind, caplog):
    """The defaults of the installed class pass without a warning: no field is unknown, none is refused."""
    transformers = pytest.importorskip("transformers")
    defaults = json.loads(getattr(transformers, CLASSES[kind])().to_json_string(use_diff=False))
    config = read(defaults)
    assert warnings_of(caplog) == []
    assert (config.width, config.layers) == (defaults["hidden_size"], defaults["num_hidden_layers"])
    # And a missing field means what the class means by it.
    assert read({"model_type": kind}) == config


@pytest.mark.parametrize("kind", CLASSES)
def test_every_field_matters_or_is_harmless_by_name(kind):
    """Change each field that the class defines: the result changes, or it is refused, or the name is a harmless one."""
    transformers = pytest.importorskip("transformers")
    defaults = json.loads(getattr(transformers, CLASSES[kind])().to_json_string(use_diff=False))
    plain = read(defaults)
    silent = set()
    for name, value in defaults.items():
        if name == "model_type":
            continue
        if isinstance(value, bool):
            other = not value
        elif isinstance(value, int | float):
            other = value * 2 + 2
        else:
            other = {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}, "layer_types": []}.get(
                name, "other"
            )
        try:
            silent |= {name} if read({**defaults, name: other}) == plain else set()
        except UnsupportedCheckpoint as error:
            assert name in str(error)
    extra = {"sliding_window", "max_window_layers"} if kind == "qwen3" else set()
    assert silent <= HARMLESS | extra, silent - HARMLESS


@pytest.mark.parametrize("kind", KINDS)
def test_old_and_new_spelling_agree(kind, caplog):
    config = make_config(kind)
    if "rope_parameters" in config and kind != "gte-original":
        config["rope_parameters"] = {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e4}
    new = read(config)
    assert read(old_spelling(config)) == new
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "gte-original", "qwen3"])
def test_unknown_fields_give_one_warning_that_lists_them(name, caplog):
    raw = raw_config(name)
    assert read({**raw, "zeta_mode": 3, "alpha_flag": None}) == read(raw)
    assert len(warnings_of(caplog)) == 1
    assert "alpha_flag, zeta_mode" in warnings_of(caplog)[0]


@pytest.mark.parametrize(("pad", "rows", "longest"), [(1, 514, 512), (1, 8194, 8192), (0, 11, 10), (3, 12, 8)])
def test_roberta_positions_start_behind_the_padding_token(pad, rows, longest):
    raw = {**make_config("xlm-roberta"), "pad_token_id": pad, "max_position_embeddings": rows}
    config = read(raw)
    assert (config.max_tokens, config.positions, config.roberta) == (longest, rows, True)
    assert read({**raw, "model_type": "bert"}).max_tokens == rows


def test_a_position_table_that_serves_no_token():
    with pytest.raises(UnsupportedCheckpoint, match="max_position_embeddings = 2, which serves no token"):
        read({**make_config("xlm-roberta"), "max_position_embeddings": 2})


# --- what is refused --------------------------------------------------------------------------------------------------

EVERYWHERE = [
    ("is_decoder", True),
    ("is_encoder_decoder", True),
    ("add_cross_attention", True),
    ("pruned_heads", {"0": [1]}),
    ("quantization_config", {"quant_method": "bitsandbytes"}),
]
FIXED = {
    "bert": [("hidden_act", "relu"), ("hidden_act", "gelu_new"), ("position_embedding_type", "relative_key")],
    "xlm-roberta": [("hidden_act", "gelu_pytorch_tanh"), ("position_embedding_type", "relative_key_query")],
    "gte-original": [
        ("hidden_act", "gelu_new"),
        ("position_embedding_type", "absolute"),
        ("layer_norm_type", "rms_norm"),
        ("pack_qkv", False),
        ("logn_attention_scale", True),
        ("logn_attention_clip1", True),
    ],
    "gte": [("hidden_act", "silu")],
    "qwen3": [("hidden_act", "gelu"), ("attention_bias", True), ("use_sliding_window", True)],
}


@pytest.mark.parametrize(
    ("kind", "name", "value"), [(kind, *field) for kind, fields in FIXED.items() for field in [*fields, *EVERYWHERE]]
)
def test_values_that_are_not_implemented(kind, name, value):
    with pytest.raises(UnsupportedCheckpoint, match="asks for what jaxcal does not implement") as caught:
        read({**raw_config(kind), name: value})
    assert f"{name} = {value!r}" in str(caught.value)


def test_all_refused_fields_are_listed_at_once():
    with pytest.raises(UnsupportedCheckpoint) as caught:
        read({**raw_config("qwen3"), "attention_bias": True, "use_sliding_window": True, "hidden_act": "gelu"})
    assert all(name in str(caught.value) for name in ("attention_bias", "use_sliding_window", "hidden_act"))


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        ("bert", "num_hidden_layers", [0, -1, "12", 2.5, True, [12]]),
        ("bert", "hidden_size", [0, "768"]),
        ("bert", "type_vocab_size", [0]),
        ("bert", "pad_token_id", [-1, "0"]),
        ("bert", "num_attention_heads", [5, 0]),
        ("xlm-roberta", "layer_norm_eps", [0, -1e-5, "1e-5", float("inf"), True]),
        ("gte-original", "vocab_size", [0]),
        ("gte", "max_position_embeddings", [0]),
        ("qwen3", "rms_norm_eps", [0]),
        ("qwen3", "head_dim", [0, 2.0]),
        ("qwen3", "num_key_value_heads", [3, 0]),
        ("qwen3", "layer_types", [["sliding_attention"] * 4, ["full_attention"] * 3]),
    ],
)
def test_values_without_meaning(kind, name, values):
    for value in values:
        with pytest.raises(UnsupportedCheckpoint) as caught:
            find_family(raw_config(kind)).read_config({**raw_config(kind), name: value})
        assert name in str(caught.value)


@pytest.mark.parametrize("kind", ["modernbert", "t5", "distilbert", "mpnet", None, "", ["bert"], "BERT"])
def test_architectures_without_a_port(kind):
    with pytest.raises(UnsupportedCheckpoint) as caught:
        find_family({"model_type": kind, "architectures": ["SomeModel"]})
    assert all(name in str(caught.value) for name in (*FAMILIES, "SomeModel"))
    with pytest.raises(UnsupportedCheckpoint):
        find_family({})


# --- rotary positions -------------------------------------------------------------------------------------------------


def rope_of(kind, **settings):
    raw = {name: value for name, value in raw_config(kind).items() if not name.startswith("rope")}
    return read({**raw, **settings}).rope


def test_check_values_of_the_ntk_frequencies():
    """gte-multilingual-base: (20000 8)^(-2i/64) / 8^(2/64), for short texts as well."""
    config = read(PUBLISHED["gte-multilingual-base"])
    frequencies = config.rope.frequencies(config.head_width)
    assert frequencies.shape == (32,) and frequencies.dtype == np.float32
    np.testing.assert_allclose(frequencies[[0, 1, 31]], [0.9370838, 0.6443913, 8.51701e-06], rtol=1e-6)
    exact = (20000.0 * 8) ** (-2 * np.arange(32) / 64) / 8 ** (2 / 64)
    np.testing.assert_allclose(frequencies, exact, rtol=2e-6)


@pytest.mark.parametrize("width", [8, 12, 64, 128])
@pytest.mark.parametrize("settings", [{"rope_type": "default"}, {"rope_type": "linear", "factor": 3.5}])
def test_frequencies_of_transformers(width, settings):
    torch = pytest.importorskip("torch")
    from transformers import GteConfig, GteModel

    rope = {**settings, "rope_theta": 160_000.0}
    sizes = {"vocab_size": 5, "hidden_size": width, "num_attention_heads": 1, "num_hidden_layers": 1}
    theirs = GteModel(GteConfig(**sizes, rope_parameters=rope)).rotary_emb.inv_freq
    ours = read({"model_type": "gte", **sizes, "rope_parameters": rope}).rope.frequencies(width)
    assert theirs.dtype == torch.float32
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=3e-7)


@pytest.mark.parametrize("kind", ["gte", "qwen3"])
def test_spellings_of_rotary_settings(kind):
    linear = Rope(5e5, 4.0)
    assert rope_of(kind, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}) == linear
    assert rope_of(kind, rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0}) == linear
    assert rope_of(kind, rope_theta=5e5, rope_scaling={"rope_type": "linear", "factor": 4.0}) == linear
    assert (
        rope_of(kind, rope_theta=5e5, rope_scaling={"rope_type": "linear", "type": "linear", "factor": 4.0}) == linear
    )
    assert rope_of(kind, rope_theta=5e5, rope_scaling=None) == Rope(5e5)
    assert rope_of(kind, rope_theta=5e5) == rope_of(kind, rope_parameters={"rope_theta": 5e5}) == Rope(5e5)
    assert rope_of(kind, rope_parameters={"rope_type": "default", "rope_theta": 5e5}) == Rope(5e5)
    assert rope_of("gte") == Rope(160_000.0) and rope_of("qwen3") == Rope(10_000.0)


def test_original_gte_without_scaling_is_plain():
    assert rope_of("gte-original", rope_theta=160_000) == Rope(160_000.0) == rope_of("gte")
    assert rope_of("gte-original", rope_theta=20_000, rope_scaling={"type": "ntk", "factor": 8.0, "mixed_b": None}) == (
        read(PUBLISHED["gte-multilingual-base"] | {"hidden_size": 32, "num_attention_heads": 4}).rope
    )


@pytest.mark.parametrize(
    ("kind", "scaling"),
    [
        ("qwen3", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
        ("qwen3", {"type": "dynamic", "factor": 2.0}),
        ("qwen3", {"rope_type": "llama3", "factor": 8.0}),
        ("qwen3", {"rope_type": "ntk", "factor": 8.0}),
        ("qwen3", {"rope_type": "linear", "factor": 2.0, "attention_factor": 1.5}),
        ("qwen3", {"rope_type": "default", "partial_rotary_factor": 0.5}),
        ("gte", {"type": "ntk", "factor": 8.0}),
        ("gte", {"rope_type": "longrope", "factor": 8.0}),
        ("gte-original", {"type": "ntk", "factor": 8.0, "mixed_b": 0.6}),
        ("gte-original", {"type": "dynamic", "factor": 2.0}),
        ("gte-original", {"type": "linear", "factor": 2.0}),
    ],
)
def test_rotary_kinds_that_are_not_implemented(kind, scaling):
    for settings in ({"rope_theta": 1e4, "rope_scaling": scaling}, {"rope_parameters": {"rope_theta": 1e4, **scaling}}):
        with pytest.raises(UnsupportedCheckpoint, match="rotary positions of the kind") as caught:
            rope_of(kind, **settings)
        assert (scaling.get("type") or scaling["rope_type"]) in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_theta": 0},
        {"rope_theta": -1e4},
        {"rope_theta": "1e4"},
        {"rope_parameters": {"rope_theta": True}},
        {"rope_scaling": {"type": "linear", "factor": "4"}},
        {"rope_scaling": {"type": "linear", "factor": 0}},
        {"rope_scaling": {"type": "linear", "factor": -2}},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": "linear"},
        {"rope_parameters": [1e4]},
    ],
)
def test_rotary_settings_without_meaning(settings):
    with pytest.raises(UnsupportedCheckpoint, match="rope|rotary"):
        rope_of("qwen3", **settings)


def test_configurations_are_frozen():
    config = read(PUBLISHED["bge-m3"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.layers = 3
