"""Strict loading: every offender is named, nothing is guessed, no code is run, memory stays near the model's size."""

import json
import pickle
import sys
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import pytest
from checkpoints import KINDS, original_tensors, write_checkpoint, write_tensors
from safetensors.numpy import load_file, save_file

import jaxcal
from jaxcal.checkpoint import weights
from jaxcal.checkpoint.files import weight_files
from jaxcal.errors import CheckpointNotFound, CorruptCheckpoint, MissingDependency, WeightMismatch
from jaxcal.models import find_family

SMALL = {"num_hidden_layers": 2, "max_position_embeddings": 40}
POOLING = {"qwen3": "last", "bert": "mean"}


def small(folder, kind="bert", **options):
    return write_checkpoint(folder, kind, POOLING.get(kind, "first"), **SMALL, **options)


def change(folder, edit):
    """Rewrite the tensors of a checkpoint after `edit` changed the dictionary."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)


# --- names and shapes -------------------------------------------------------------------------------------------------


def test_all_offenders_are_named_at_once(tmp_path):
    def edit(tensors):
        del tensors["embeddings.LayerNorm.bias"], tensors["encoder.layer.1.output.dense.weight"]
        tensors["encoder.layer.2.output.dense.weight"] = np.zeros((32, 48), np.float32)
        tensors["something.else"] = np.zeros(3, np.float32)
        tensors["encoder.layer.0.intermediate.dense.weight"] = np.zeros((32, 48), np.float32)
        tensors["embeddings.word_embeddings.weight"] = np.zeros((81, 32), np.float32)

    change(small(tmp_path).folder, edit)
    with pytest.raises(WeightMismatch) as caught:
        jaxcal.load(tmp_path)
    message = str(caught.value)
    assert "missing: embeddings.LayerNorm.bias, encoder.layer.1.output.dense.weight" in message
    assert "not known to this family: encoder.layer.2.output.dense.weight, something.else" in message
    assert "encoder.layer.0.intermediate.dense.weight is (32, 48), the configuration makes it (48, 32)" in message
    assert "embeddings.word_embeddings.weight is (81, 32), the configuration makes it (80, 32)" in message


@pytest.mark.parametrize("kind", KINDS)
def test_every_single_tensor_is_needed(tmp_path, kind):
    """Leaving out any one of them, or adding one under a similar name, is an error that names it."""
    written = small(tmp_path, kind)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in tensors:
        write_tensors(tmp_path, {key: value for key, value in tensors.items() if key != name})
        with pytest.raises(WeightMismatch, match="missing: ") as caught:
            jaxcal.load(tmp_path)
        assert name.removeprefix("new.") in str(caught.value)
    for name in ("layers.0.self_attn.q_proj.bias_", "encoder.layer.0.attention.self.query.weight2", "pooler2.weight"):
        write_tensors(tmp_path, {**tensors, name: np.zeros(2, np.float32)})
        with pytest.raises(WeightMismatch, match=f"not known to this family: .*{name}"):
            jaxcal.load(tmp_path)
    assert len(written.tensors) >= 23


@pytest.mark.parametrize(("kind", "changes"), [("bert", {"num_hidden_layers": 1}), ("qwen3", {"num_hidden_layers": 3})])
def test_a_configuration_with_another_number_of_layers(tmp_path, kind, changes):
    config = small(tmp_path, kind).config | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    problem = "not known to this family: encoder.layer.1" if kind == "bert" else "missing: layers.2"
    with pytest.raises(WeightMismatch, match=problem):
        jaxcal.load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "prefix", "names"),
    [
        ("bert", "", ["pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"]),
        ("bert", "bert.", ["bert.pooler.dense.weight", "classifier.weight", "bert.embeddings.position_ids"]),
        ("xlm-roberta", "roberta.", ["lm_head.dense.weight", "lm_head.bias", "classifier.out_proj.weight"]),
        ("gte-original", "", ["classifier.weight", "classifier.bias", "new.pooler.dense.weight"]),
        ("gte", "gte.", ["gte.rotary_emb.inv_freq", "classifier.weight"]),
        ("qwen3", "", ["lm_head.weight", "rotary_emb.inv_freq"]),
        ("qwen3", "model.", ["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"]),
    ],
)
def test_ignorable_tensors(tmp_path, kind, prefix, names):
    plain = jaxcal.load(small(tmp_path / "plain", kind).folder)
    extra = {name: np.full((2, 3), np.nan, np.float32) for name in names}  # not even read
    more = jaxcal.load(small(tmp_path / "more", kind, prefix=prefix, extra=extra).folder)
    jax.tree.map(np.testing.assert_array_equal, plain.params, more.params)


def test_both_layouts_of_gte_give_the_same_weights(tmp_path):
    native = jaxcal.load(small(tmp_path / "native", "gte").folder)
    original = jaxcal.load(small(tmp_path / "original", "gte-original").folder)
    jax.tree.map(np.testing.assert_array_equal, native.params, original.params)


def test_packed_tensors_are_split_in_the_right_order(tmp_path):
    """[q, k, v] and [up, gate], each part where it belongs."""
    written = small(tmp_path, "gte-original")
    layers = jaxcal.load(tmp_path).params["layers"]
    packed = original_tensors(written.tensors)
    qkv = packed["new.encoder.layer.1.attention.qkv_proj.weight"]
    up_gate = packed["new.encoder.layer.1.mlp.up_gate_proj.weight"]
    assert qkv.shape == (96, 32) and up_gate.shape == (96, 32)
    for part, name in enumerate(("query_projection", "key_projection", "value_projection")):
        np.testing.assert_array_equal(layers[name]["kernel"][1], qkv[32 * part : 32 * part + 32].T)
    for part, name in enumerate(("up", "gate")):
        np.testing.assert_array_equal(layers[name]["kernel"][1], up_gate[48 * part : 48 * part + 48].T)


# --- several files ----------------------------------------------------------------------------------------------------


def test_a_tensor_in_two_shards(tmp_path):
    small(tmp_path, shards=2)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    first, second = load_file(shards[0]), load_file(shards[1])
    name = sorted(first)[0]
    save_file({**second, name: first[name]}, shards[1])
    with pytest.raises(WeightMismatch, match=f"holds {name} in two of its files"):
        jaxcal.load(tmp_path)


def test_a_tensor_with_and_without_the_prefix(tmp_path):
    small(tmp_path, "qwen3", prefix="model.", extra={"norm.weight": np.ones(32, np.float32)})
    with pytest.raises(WeightMismatch, match=r"holds norm\.weight with and without 'model\.'"):
        jaxcal.load(tmp_path)


def test_missing_shards_are_named(tmp_path):
    small(tmp_path, shards=3)
    gone = sorted(tmp_path.glob("model-*.safetensors"))[1:]
    for file in gone:
        file.unlink()
    with pytest.raises(CheckpointNotFound, match="lacks 2 of 3 weight files") as caught:
        jaxcal.load(tmp_path)
    assert all(file.name in str(caught.value) for file in gone)


@pytest.mark.parametrize("keep", [0, 5, 200, 0.5, -1])
def test_a_truncated_file(tmp_path, keep):
    small(tmp_path)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors cannot be read as safetensors"):
        jaxcal.load(tmp_path)


def test_a_file_that_is_no_safetensors(tmp_path):
    small(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"<html>404</html>" * 20)
    with pytest.raises(CorruptCheckpoint, match="download it again"):
        jaxcal.load(tmp_path)


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bert", "encoder.layer.1.attention.output.dense.bias"),
        ("bert", "embeddings.word_embeddings.weight"),
        ("gte-original", "new.encoder.layer.0.attention.qkv_proj.weight"),
        ("qwen3", "layers.1.self_attn.k_norm.weight"),
    ],
)
def test_values_that_are_not_finite(tmp_path, kind, name, value):
    def edit(tensors):
        tensors[name].reshape(-1)[-1] = value

    change(small(tmp_path, kind).folder, edit)
    with pytest.raises(WeightMismatch, match=f"tensor {name} holds NaN or infinite values"):
        jaxcal.load(tmp_path)


def test_overflow_of_half_precision_is_named(tmp_path):
    name = "encoder.layer.1.intermediate.dense.weight"

    def edit(tensors):
        tensors[name][0, 0] = 1e5

    change(small(tmp_path).folder, edit)
    with pytest.raises(WeightMismatch, match=rf"tensor {name} overflows float16; load with .*'bfloat16'"):
        jaxcal.load(tmp_path, dtype="float16")
    assert jaxcal.load(tmp_path, dtype="bfloat16").params["layers"]["up"]["kernel"].max() > 9e4


def test_overflow_of_bfloat16_is_not_cured_by_bfloat16(tmp_path):
    def edit(tensors):
        tensors["encoder.layer.1.intermediate.dense.weight"][0, 0] = 3.4e38

    change(small(tmp_path).folder, edit)
    with pytest.raises(WeightMismatch, match=r"overflows bfloat16; load with dtype='float32'\.$"):
        jaxcal.load(tmp_path, dtype="bfloat16")


def test_overflow_of_norms_does_not_happen(tmp_path):
    """Norms stay float32 whatever the type asked for."""

    def edit(tensors):
        tensors["embeddings.LayerNorm.weight"][0] = 1e5

    change(small(tmp_path).folder, edit)
    assert jaxcal.load(tmp_path, dtype="float16").params["norm"]["scale"].dtype == np.float32


def test_whole_numbers_are_no_weights(tmp_path):
    """A quantised tensor of the right shape would load as nonsense."""
    name = "encoder.layer.0.output.dense.weight"

    def edit(tensors):
        tensors[name] = np.ones_like(tensors[name], np.int8)

    change(small(tmp_path).folder, edit)
    with pytest.raises(WeightMismatch, match=f"tensor {name} is stored as int8"):
        jaxcal.load(tmp_path)


# --- torch files ------------------------------------------------------------------------------------------------------


class _Attack:
    def __init__(self, proof: Path):
        self.proof = proof

    def __reduce__(self):
        return (Path.touch, (self.proof,))


def test_a_torch_file_without_torch(tmp_path, monkeypatch):
    small(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"pytorch_model\.bin is a torch file.*Install torch.*convert it"):
        jaxcal.load(tmp_path)


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path):
    pytest.importorskip("torch")
    small(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "model.safetensors").unlink()
    proof = tmp_path / "code-was-run"
    (tmp_path / "checkpoint" / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": _Attack(proof)}))
    with pytest.raises(CorruptCheckpoint, match="cannot be read as a torch file of weights only"):
        jaxcal.load(tmp_path / "checkpoint")
    assert not proof.exists()
    pickle.loads((tmp_path / "checkpoint" / "pytorch_model.bin").read_bytes())
    assert proof.exists()  # the file was a real attack


@pytest.mark.parametrize("content", ["nested", "list", "step", "cut"])
def test_torch_files_that_hold_no_weights(tmp_path, content):
    torch = pytest.importorskip("torch")
    small(tmp_path, torch_file=True)
    file = tmp_path / "pytorch_model.bin"
    tensors = torch.load(file, weights_only=True)
    if content == "cut":
        file.write_bytes(file.read_bytes()[:-2000])
    else:
        saved = {"nested": {"state_dict": tensors}, "list": list(tensors.values()), "step": {**tensors, "step": 3}}
        torch.save(saved[content], file)
    with pytest.raises(CorruptCheckpoint, match=r"pytorch_model\.bin"):
        jaxcal.load(tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about its own old format
def test_torch_files_from_before_the_zip_format(tmp_path):
    torch = pytest.importorskip("torch")
    small(tmp_path, torch_file=True)
    expected = jaxcal.load(tmp_path).params
    file = tmp_path / "pytorch_model.bin"
    torch.save(torch.load(file, weights_only=True), file, _use_new_zipfile_serialization=False)
    jax.tree.map(np.testing.assert_array_equal, jaxcal.load(tmp_path).params, expected)


def test_safetensors_come_before_torch_files(tmp_path):
    small(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    jaxcal.load(tmp_path)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bert", "gte-original", "qwen3"])
def test_tensors_stream_one_at_a_time(tmp_path, monkeypatch, kind):
    """Every value is read once, never more than one tensor at a time, into stacked arrays of the model's size."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 500, "num_hidden_layers": 6}
    written = write_checkpoint(tmp_path, kind, "mean", max_position_embeddings=64, **sizes)
    raw = json.loads((tmp_path / "config.json").read_text())
    family = find_family(raw)
    config = family.read_config(raw)
    _, shapes = weights.build(family, config, np.dtype("float32"))
    reads, read = [], weights.Safetensors.read

    def count(self, name, rows):
        values = read(self, name, rows)
        reads.append((name, rows.start, values.nbytes))
        return values

    monkeypatch.setattr(weights.Safetensors, "read", count)
    leaves = [leaf.size * 4 for leaf in jax.tree.leaves(shapes)]
    total = sum(leaves)
    assert total > 3 * max(leaves)
    tracemalloc.start()
    weights.load_weights(weight_files(tmp_path), family, config, shapes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(reads)) == len(reads)
    assert sum(size for _, _, size in reads) == total == sum(tensor.nbytes for tensor in written.tensors.values())
    assert max(size for _, _, size in reads) == max(tensor.nbytes for tensor in written.tensors.values())
    print(f"peak {peak / max(leaves):.2f} of the largest stacked array, {peak / total:.2f} of the model")
    # JAX releases a copied array a little later, so two stacked arrays may be alive; all tensors never are.
    assert peak < 0.8 * total


def test_names_are_checked_before_anything_is_read(tmp_path, monkeypatch):
    def edit(tensors):
        del tensors["encoder.layer.1.output.dense.bias"]

    change(small(tmp_path).folder, edit)
    monkeypatch.setattr(weights.Safetensors, "read", lambda *arguments: pytest.fail("read before checked"))
    with pytest.raises(WeightMismatch):
        jaxcal.load(tmp_path)
