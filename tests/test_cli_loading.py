"""The command line and a checkpoint that cannot be loaded: one line that names what is needed, and the old output."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_checkpoint
from safetensors.numpy import load_file, save_file

from jaxcal.cli import main

NORM = "encoder.layer.1.output.LayerNorm.weight"


@pytest.fixture
def refused(tmp_path, capsys, monkeypatch):
    """Run `jaxcal encode` on a model that cannot be loaded and return its one line, without the log."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    work = tmp_path / "work"
    work.mkdir()
    (work / "i.txt").write_text("w1 w2\n")
    (work / "o.npy").write_text("old")

    def run(model: object, *options: str) -> str:
        argv = ["encode", "--model", str(model), "--input", str(work / "i.txt"), "--output", str(work / "o.npy")]
        assert main([*argv, *options]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and "Traceback" not in printed.err
        lines = printed.err.splitlines()
        assert [line for line in lines if line.startswith("jaxcal: error: ")] == lines[-1:]
        assert all(" WARNING " in line or " INFO " in line for line in lines[:-1])
        assert (work / "o.npy").read_text() == "old" and sorted(os.listdir(work)) == ["i.txt", "o.npy"]
        return lines[-1]

    return run


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_checkpoint(tmp_path / "model", "bert", "first", num_hidden_layers=2).folder


def configure(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


# --- damaged or incomplete --------------------------------------------------------------------------------------------


def test_truncated_weights(refused, folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    line = refused(folder)
    assert f"{file} cannot be read as safetensors" in line and "download it again" in line


def test_a_missing_shard(refused, tmp_path):
    folder = write_checkpoint(tmp_path / "model", "bert", "first", num_hidden_layers=2, shards=3).folder
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "lacks 1 of 3 weight files" in (line := refused(folder)) and "model-00002-of-00003.safetensors" in line


def test_weights_that_are_no_numbers(refused, folder):
    tensors = load_file(folder / "model.safetensors")
    tensors[NORM][3] = np.nan
    save_file(tensors, folder / "model.safetensors")
    assert f"tensor {NORM} holds NaN or infinite values" in refused(folder)


def test_missing_tensors(refused, folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors[NORM]
    save_file(tensors, folder / "model.safetensors")
    assert f"missing: {NORM}" in refused(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_missing_files(refused, folder, name):
    (folder / name).unlink()
    assert str(folder) in (line := refused(folder)) and name in line


def test_files_that_may_not_be_read(refused, folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("jaxcal.checkpoint.files.is_lfs_pointer", refuse)  # the first to open a file
    assert f"{folder / 'config.json'} cannot be read: Permission denied" in refused(folder)


# --- without a port ---------------------------------------------------------------------------------------------------


def test_an_architecture_without_a_port(refused, folder):
    configure(folder, model_type="modernbert", architectures=["ModernBertModel"])
    line = refused(folder)
    assert "'modernbert'" in line
    assert all(name in line for name in ("bert", "roberta", "xlm-roberta", "new", "gte", "qwen3"))


def test_a_field_with_a_value_that_is_not_implemented(refused, folder):
    configure(folder, position_embedding_type="relative_key", hidden_act="relu")
    line = refused(folder)
    assert (
        "position_embedding_type = 'relative_key' (implemented: 'absolute')" in line and "hidden_act = 'relu'" in line
    )


# --- not there --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--local-files-only",)])
def test_an_offline_miss(refused, tmp_path, options):
    line = refused("org/model", *options)
    assert f"config.json of org/model (revision main) is not in the cache {tmp_path / 'cache'}" in line
    assert "HF_HUB_OFFLINE" in line


@pytest.mark.parametrize("name", ["~nouser_x/y", "a" * 300, "org/model.", "model-", "org/" + "m" * 97, "org/a--b"])
def test_names_that_mean_nothing(refused, name):
    assert f"'{name}' is neither an existing folder nor a hub id" in refused(name)
