"""Random checkpoints in Hugging Face layout, small and with nothing trivial in them.

Biases are not zero and norms' scales not one, so a swapped or dropped tensor shows. The tensors are made by name with
numpy, which needs no torch; `torch_model` puts the same tensors into the class of transformers, strictly.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

KINDS = ("bert", "xlm-roberta", "roberta", "gte", "gte-original", "qwen3")
NTK_FACTOR = 8.0
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}
_POOLING_MODES = {"first": "cls", "last": "lasttoken", "mean": "mean"}
# <pad>, <unk>, and what the template puts at the front and at the back, as ids.
_SPECIALS = {
    "bert": ({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}, "[CLS]", "[SEP]"),
    "xlm-roberta": ({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}, "<s>", "</s>"),
    "qwen3": ({"<|endoftext|>": 0, "<unk>": 1}, None, "<|endoftext|>"),
}


@dataclass(frozen=True)
class Written:
    """A checkpoint on disk and what it was made of; `config` and `tensors` are in the layout of transformers."""

    folder: Path
    kind: str
    pooling: str
    config: dict[str, Any]
    tensors: dict[str, np.ndarray]

    def ids(self, rng: np.random.Generator, length: int) -> list[int]:
        """Random token ids with the family's special tokens at the ends, as far as they find room."""
        specials, front, back = specials_of(self.kind)
        ids = rng.integers(len(specials), self.config["vocab_size"], length).tolist()
        if front and length > 1:
            ids[0] = specials[front]
        ids[-1] = specials[back]
        return ids


def specials_of(kind: str) -> tuple[dict[str, int], str | None, str]:
    return _SPECIALS[kind if kind in _SPECIALS else "xlm-roberta"]


def make_config(kind: str, **changes: Any) -> dict[str, Any]:
    """A `config.json` in the spelling of transformers 5; `gte-original` gives the native twin of the same positions."""
    config: dict[str, Any] = {
        "vocab_size": 80,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "hidden_act": "gelu",
        "max_position_embeddings": 1200,
        "dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    if kind == "bert":
        config |= {"model_type": "bert", "architectures": ["BertModel"], "pad_token_id": 0, "type_vocab_size": 2}
        config |= {"layer_norm_eps": 1e-12}
    elif kind in ("xlm-roberta", "roberta"):
        names = {"xlm-roberta": "XLMRobertaModel", "roberta": "RobertaModel"}
        config |= {"model_type": kind, "architectures": [names[kind]], "pad_token_id": 1, "type_vocab_size": 1}
        config |= {"layer_norm_eps": 1e-5, "max_position_embeddings": 1202}  # serves exactly 1200 tokens
    elif kind in ("gte", "gte-original"):
        config |= {"model_type": "gte", "architectures": ["GteModel"], "pad_token_id": 1, "type_vocab_size": 1}
        config |= {"layer_norm_eps": 1e-12}
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 160_000.0}
    elif kind == "qwen3":
        config |= {"model_type": "qwen3", "architectures": ["Qwen3Model"], "hidden_act": "silu", "head_dim": 12}
        config |= {"num_key_value_heads": 2, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "pad_token_id": 0}
        config |= {"bos_token_id": 0, "eos_token_id": 0, "attention_bias": False, "use_sliding_window": False}
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1_000_000.0}
    config |= changes
    if kind == "gte-original":
        width = config["hidden_size"] // config["num_attention_heads"]
        # The original NTK: base times factor, and frequencies divided by factor^(2/K) besides.
        rope = {"rope_type": "linear", "factor": NTK_FACTOR ** (2 / width), "rope_theta": 20_000.0 * NTK_FACTOR}
        config["rope_parameters"] = rope
    return config


def make_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors under the names of transformers, without prefix."""
    rng = np.random.default_rng(seed)
    d, f = config["hidden_size"], config["intermediate_size"]
    tensors: dict[str, np.ndarray] = {}

    def table(name: str, rows: int) -> None:
        tensors[f"{name}.weight"] = rng.normal(0, 0.7, (rows, d))

    def linear(name: str, inputs: int, outputs: int, bias: bool = True, gain: float = 1.0) -> None:
        tensors[f"{name}.weight"] = rng.normal(0, gain / inputs**0.5, (outputs, inputs))
        if bias:
            tensors[f"{name}.bias"] = rng.normal(0, 0.3, outputs)

    def norm(name: str, width: int = d, bias: bool = True) -> None:
        tensors[f"{name}.weight"] = rng.normal(1, 0.3, width)
        if bias:
            tensors[f"{name}.bias"] = rng.normal(0, 0.3, width)

    if config["model_type"] == "qwen3":
        heads, kv_heads, k = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        table("embed_tokens", config["vocab_size"])
        for layer in (f"layers.{number}." for number in range(config["num_hidden_layers"])):
            for name in ("input_layernorm", "post_attention_layernorm"):
                norm(layer + name, bias=False)
            for name, outputs in (("q", heads * k), ("k", kv_heads * k), ("v", kv_heads * k)):
                linear(f"{layer}self_attn.{name}_proj", d, outputs, bias=False)
            linear(f"{layer}self_attn.o_proj", heads * k, d, bias=False)
            for name in ("q_norm", "k_norm"):
                norm(f"{layer}self_attn.{name}", k, bias=False)
            for name, inputs, outputs in (("gate", d, f), ("up", d, f), ("down", f, d)):
                linear(f"{layer}mlp.{name}_proj", inputs, outputs, bias=False)
        norm("norm", bias=False)
    else:
        table("embeddings.word_embeddings", config["vocab_size"])
        if config["model_type"] != "gte":
            table("embeddings.position_embeddings", config["max_position_embeddings"])
        if config["type_vocab_size"]:
            table("embeddings.token_type_embeddings", config["type_vocab_size"])
        norm("embeddings.LayerNorm")
        make_layer = _gte_layer if config["model_type"] == "gte" else _bert_layer
        for number in range(config["num_hidden_layers"]):
            make_layer(number, d, f, linear, norm)
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def _bert_layer(number: int, d: int, f: int, linear: Any, norm: Any) -> None:
    layer = f"encoder.layer.{number}."
    for name in ("query", "key"):
        linear(f"{layer}attention.self.{name}", d, d, gain=1.3)
    linear(f"{layer}attention.self.value", d, d)
    linear(f"{layer}attention.output.dense", d, d)
    norm(f"{layer}attention.output.LayerNorm")
    linear(f"{layer}intermediate.dense", d, f)
    linear(f"{layer}output.dense", f, d)
    norm(f"{layer}output.LayerNorm")


def _gte_layer(number: int, d: int, f: int, linear: Any, norm: Any) -> None:
    layer = f"layers.{number}."
    for name, gain in (("q", 1.3), ("k", 1.3), ("v", 1.0), ("o", 1.0)):
        linear(f"{layer}self_attn.{name}_proj", d, d, gain=gain)
    for name in ("gate", "up"):
        linear(f"{layer}mlp.{name}_proj", d, f, bias=False)
    linear(f"{layer}mlp.down_proj", f, d)
    for name in ("post_attention_layernorm", "post_mlp_layernorm"):
        norm(layer + name)


def original_tensors(tensors: dict[str, np.ndarray], *, classifier: bool = False) -> dict[str, np.ndarray]:
    """A native GTE model's tensors, packed and named as in the original layout."""
    packed = {f"new.{name}": tensor for name, tensor in tensors.items() if name.startswith("embeddings.")}
    numbers = {int(name.split(".")[1]) for name in tensors if name.startswith("layers.")}
    renamed = {
        "self_attn.o_proj": "attention.o_proj",
        "post_attention_layernorm": "attn_ln",
        "mlp.down_proj": "mlp.down_proj",
        "post_mlp_layernorm": "mlp_ln",
    }
    for ours, theirs in ((f"layers.{number}.", f"new.encoder.layer.{number}.") for number in numbers):
        for part in ("weight", "bias"):
            qkv = [tensors[f"{ours}self_attn.{name}_proj.{part}"] for name in "qkv"]
            packed[f"{theirs}attention.qkv_proj.{part}"] = np.concatenate(qkv)
            for old, new in renamed.items():
                packed[f"{theirs}{new}.{part}"] = tensors[f"{ours}{old}.{part}"]
        up_gate = [tensors[f"{ours}mlp.{name}_proj.weight"] for name in ("up", "gate")]
        packed[f"{theirs}mlp.up_gate_proj.weight"] = np.concatenate(up_gate)
    if classifier:
        width = tensors["embeddings.LayerNorm.weight"].size
        packed |= {"classifier.weight": np.ones((1, width), np.float32), "classifier.bias": np.ones(1, np.float32)}
    return packed


def original_config(config: dict[str, Any]) -> dict[str, Any]:
    """The `config.json` of the original layout, field for field as the published checkpoint has it."""
    kept = {name: value for name, value in config.items() if name not in ("rope_parameters", "dtype", "model_type")}
    return kept | {
        "architectures": ["NewModel", "NewForTokenClassification"],
        "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
        "model_type": "new",
        "torch_dtype": "float16",
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.0,
        "hidden_dropout_prob": 0.1,
        "id2label": {"0": "LABEL_0"},
        "initializer_range": 0.02,
        "label2id": {"LABEL_0": 0},
        "layer_norm_type": "layer_norm",
        "logn_attention_clip1": False,
        "logn_attention_scale": False,
        "pack_qkv": True,
        "position_embedding_type": "rope",
        "rope_scaling": {"factor": NTK_FACTOR, "type": "ntk"},
        "rope_theta": 20_000,
        "transformers_version": "4.39.1",
        "unpad_inputs": False,
        "use_memory_efficient_attention": False,
    }


def old_spelling(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype."""
    old = {name: value for name, value in config.items() if name not in ("rope_parameters", "dtype")}
    rope = config.get("rope_parameters")
    if rope:
        scaling = {"type": rope["rope_type"], "factor": rope["factor"]} if rope["rope_type"] != "default" else None
        old |= {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    return old | {"torch_dtype": config["dtype"], "transformers_version": "4.51.3"}


def make_tokenizer(kind: str, vocab_size: int) -> Tokenizer:
    """A word-level tokenizer, words w0, w1, ..., with the family's special tokens in the family's template."""
    specials, front, back = specials_of(kind)
    words = {**specials, **{f"w{n}": len(specials) + n for n in range(vocab_size - len(specials))}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]" if kind == "bert" else "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join([*([front] if front else []), "$A", back]),
        special_tokens=[(token, specials[token]) for token in (front, back) if token],
    )
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def write_modules(folder: Path, width: int, pooling: str, *, normalize: bool = True, **sentence: Any) -> None:
    """modules.json, the pooling module's configuration, and files made of the keywords prompts, max_seq_length, ..."""
    kinds = ["Transformer", "Pooling", "Normalize"][: 2 + normalize]
    entries = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    settings = {"embedding_dimension": width, "pooling_mode": _POOLING_MODES[pooling]}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    if "max_seq_length" in sentence:
        limit = {"max_seq_length": sentence.pop("max_seq_length"), "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(limit))
    if sentence:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(sentence))


def write_tensors(folder: Path, tensors: dict[str, np.ndarray], *, shards: int = 1, torch_file: bool = False) -> None:
    """The weight files: one or several, safetensors or (through torch) `.bin`, with an index if there are several."""
    single = "pytorch_model.bin" if torch_file else "model.safetensors"
    stem, suffix = single.rsplit(".", 1)
    names = sorted(tensors)
    where = {name: f"{stem}-{n % shards + 1:05}-of-{shards:05}.{suffix}" for n, name in enumerate(names)}
    if shards == 1:
        where = dict.fromkeys(names, single)
    else:
        index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())}, "weight_map": where}
        (folder / f"{single}.index.json").write_text(json.dumps(index))
    for file in sorted(set(where.values())):
        part = {name: np.ascontiguousarray(tensors[name]) for name in names if where[name] == file}
        if torch_file:
            import torch

            torch.save({name: to_torch(tensor) for name, tensor in part.items()}, folder / file)
        else:
            save_file(part, folder / file, metadata={"format": "pt"})


def to_torch(array: np.ndarray) -> Any:
    """A torch tensor of the same type, bfloat16 included."""
    import torch

    array = np.array(array)  # writable, and torch's own
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def write_checkpoint(
    folder: Path,
    kind: str,
    pooling: str,
    *,
    seed: int = 0,
    prefix: str = "",
    stored: str = "float32",
    old: bool = False,
    shards: int = 1,
    torch_file: bool = False,
    extra: dict[str, np.ndarray] | None = None,
    normalize: bool = True,
    sentence: dict[str, Any] | None = None,
    **config_changes: Any,
) -> Written:
    """Write a whole checkpoint folder and return what it is made of.

    `tensors` of the result are float32 with the values that the stored type keeps; `extra` are more tensors, as they
    are; `config_changes` go to `make_config`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = make_config(kind, dtype=stored, **config_changes)
    tensors = {name: tensor.astype(DTYPES[stored]) for name, tensor in make_tensors(config, seed).items()}
    if kind == "gte-original":
        files, written_config = original_tensors(tensors), original_config(config)
    else:
        files = {prefix + name: tensor for name, tensor in tensors.items()}
        written_config = old_spelling(config) if old else config
    write_tensors(folder, {**files, **(extra or {})}, shards=shards, torch_file=torch_file)
    (folder / "config.json").write_text(json.dumps(written_config))
    write_modules(folder, config["hidden_size"], pooling, normalize=normalize, **(sentence or {}))
    make_tokenizer(kind, config["vocab_size"]).save(str(folder / "tokenizer.json"))
    values = {name: np.asarray(tensor, np.float32) for name, tensor in tensors.items()}
    return Written(folder, kind, pooling, config, values)
