"""The weights of a checkpoint folder, single or in shards, and the files that cannot be read."""

import hashlib
import json
import os

import pytest
from fake_hub import SAFE, TORCH, write

from jaxcal.checkpoint.files import WeightFiles, sha256, weight_files
from jaxcal.errors import CheckpointNotFound, CorruptCheckpoint


def test_weights_are_sought_in_order(tmp_path):
    def index(form: str) -> bytes:
        return json.dumps({"weight_map": {"b": f"2.{form}", "a": f"1.{form}", "c": f"2.{form}"}}).encode()

    shards = {f"{n}.{form}": b"x" for n in (1, 2) for form in ("safetensors", "bin")}
    indices = {f"{stem}.{form}.index.json": index(form) for stem, form in
               (("model", "safetensors"), ("pytorch_model", "bin"))}  # fmt: skip
    write(tmp_path, shards | indices | SAFE | TORCH)
    expected = [
        ("model.safetensors", WeightFiles("safetensors", (tmp_path / "model.safetensors",))),
        (
            "model.safetensors.index.json",
            WeightFiles("safetensors", (tmp_path / "1.safetensors", tmp_path / "2.safetensors")),
        ),
        ("pytorch_model.bin", WeightFiles("torch", (tmp_path / "pytorch_model.bin",))),
        ("pytorch_model.bin.index.json", WeightFiles("torch", (tmp_path / "1.bin", tmp_path / "2.bin"))),
    ]
    for name, files in expected:
        assert weight_files(tmp_path) == files
        (tmp_path / name).unlink()
    with pytest.raises(CheckpointNotFound, match=r"No weights.*looked for model\.safetensors.*1\.bin"):
        weight_files(tmp_path)


def test_a_missing_shard_is_named_before_anything_is_read(tmp_path):
    weight_map = {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"}
    write(tmp_path, {"model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()})
    (tmp_path / "1.safetensors").symlink_to(tmp_path / "gone")
    write(tmp_path, {"2.safetensors": b"not safetensors at all"})
    with pytest.raises(CheckpointNotFound, match=r"lacks 2 of 3.*index\.json.*1\.safetensors, 3\.safetensors"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON.*line 1, column 2"),
        (b'{"metadata": {}}', "no weight_map"),
        (b'{"weight_map": {}}', "no weight_map"),
        (b'{"weight_map": ["a"]}', "no weight_map"),
        (b'{"weight_map": {"a": 1}}', "not files beside it: 1"),
        (b'{"weight_map": {"a": "../secret.bin"}}', r"not files beside it: \.\./secret\.bin"),
        (b'{"weight_map": {"a": "/secret.bin"}}', "not files beside it"),
        (b'{"weight_map": {"a": "c:\\\\secret.bin"}}', "not files beside it"),
        (b'["weight_map"]', "holds a JSON list"),
        (b"\xff", "not UTF-8: bad byte at offset 0"),
        (b"[" * 100_000, "nested too deeply"),
        (b"version https://git-lfs.example/spec/v1\n", "Git LFS pointer.*git lfs pull"),
    ],
)
def test_an_index_that_cannot_be_read(tmp_path, content, message):
    write(tmp_path, {"model.safetensors.index.json": content})
    with pytest.raises(CorruptCheckpoint, match=message):
        weight_files(tmp_path)


def test_stubs_in_place_of_weights(tmp_path):
    write(tmp_path, {"model.safetensors": b"version https://git-lfs.example/spec/v1\noid sha256:0\n"})
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors.*git lfs pull"):
        weight_files(tmp_path)


def test_sha256(tmp_path):
    data = os.urandom(1000)
    (tmp_path / "file").write_bytes(data)
    assert sha256(tmp_path / "file") == sha256(tmp_path / "file", block=7) == hashlib.sha256(data).hexdigest()
