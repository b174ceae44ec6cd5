"""The files of a checkpoint folder: small ones read, weights listed, with errors that name the file and the place."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal

from jaxcal.errors import CheckpointNotFound, CorruptCheckpoint, JaxcalError

Format = Literal["safetensors", "torch"]

WEIGHTS: dict[Format, str] = {"safetensors": "model.safetensors", "torch": "pytorch_model.bin"}
"""The weight formats in order of preference, each with the name of its single file."""

VOCABULARIES = ("vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")
"""Vocabularies from the time before tokenizer.json; each makes a tokenizer, vocab.json together with merges.txt."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    *VOCABULARIES,
)

SENTENCE_CONFIGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The options of the encoder module, under the names that versions of sentence-transformers gave the file."""

_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class WeightFiles:
    """The weight files of a folder: their format, and the existing shards in order of name."""

    format: Format
    paths: tuple[Path, ...]


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """A file that the system refuses to give is no bug of ours: `CheckpointNotFound` with its path."""
    try:
        yield
    except JaxcalError:  # some of them are OSErrors too
        raise
    except OSError as error:
        raise CheckpointNotFound(
            f"{error.filename or 'A file of the checkpoint'} cannot be read: {error.strerror or error}; check its"
            " permissions and those of its folders, or give another folder."
        ) from error


@os_errors()
def read_json(path: Path, expect: type = dict) -> Any:
    """The content of a JSON file, which must be of type `expect` (dict or list).

    Raises `CheckpointNotFound` if there is no such file or it may not be read, `CorruptCheckpoint` if it is not JSON
    (with line and column), not UTF-8, or of another type.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointNotFound(f"{path.name} is missing in {path.parent}; complete the folder, or load the hub id.")
    if is_lfs_pointer(path):
        raise CorruptCheckpoint(f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise CorruptCheckpoint(
            f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}; download it again."
        ) from error
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"{path} is not UTF-8: bad byte at offset {error.start}; download it again.") from error
    except RecursionError as error:
        raise CorruptCheckpoint(f"{path} is nested too deeply to be a checkpoint file; download it again.") from error
    if not isinstance(content, expect):
        raise CorruptCheckpoint(
            f"{path} holds a JSON {type(content).__name__} where a {expect.__name__} belongs; download it again."
        )
    return content


@os_errors()
def read_json_if_present(path: Path, expect: type = dict) -> Any:
    """Like `read_json`, but an empty `expect()` where the file does not exist."""
    return read_json(path, expect) if Path(path).is_file() else expect()


def shard_names(index: Path) -> tuple[str, ...]:
    """The distinct shard files that a weight index names, sorted.

    Raises `CorruptCheckpoint` if the index is not JSON, has no weight_map, or names anything but plain file names: a
    shard lies beside its index, and a path leading elsewhere would read files that are no part of the checkpoint.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptCheckpoint(f"{index} has no weight_map that names the shards; download it again.")
    names = set(map(str, weight_map.values()))  # what is no string is no file beside the index either
    odd = sorted(name for name in names if not is_inside(name) or "/" in name or "\\" in name or "." not in name)
    if odd:
        raise CorruptCheckpoint(f"{index} names shards that are not files beside it: {', '.join(odd)}.")
    return tuple(sorted(names))


def is_inside(path: str) -> bool:
    """Whether a relative path read from a checkpoint stays inside its folder, under POSIX and Windows rules alike."""
    windows = PureWindowsPath(path)
    return not windows.anchor and ".." not in windows.parts and "\0" not in path


def is_lfs_pointer(path: Path) -> bool:
    """Whether the file is the text stub that Git leaves where large-file storage was not pulled."""
    with open(path, "rb") as file:
        return file.read(len(_LFS_POINTER)) == _LFS_POINTER


@os_errors()
def weight_files(folder: str | os.PathLike[str]) -> WeightFiles:
    """The weights of a folder: model.safetensors, else its index, else pytorch_model.bin, else its index.

    Raises `CheckpointNotFound` if there are none or if an index names shards that are not there (all of them, before
    any is opened), `CorruptCheckpoint` for an unreadable index or for Git LFS stubs in place of weights.
    """
    folder = Path(folder)
    for form, single in WEIGHTS.items():
        names = weight_names(single, lambda file: (folder / file).is_file(), lambda file: folder / file)
        if not names:
            continue
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise CheckpointNotFound(
                f"{folder} lacks {len(missing)} of {len(names)} weight files that {single}.index.json names:"
                f" {', '.join(missing)}; copy or download them."
            )
        paths = tuple(folder / name for name in names)
        stubs = [path.name for path in paths if is_lfs_pointer(path)]
        if stubs:
            raise CorruptCheckpoint(f"{', '.join(stubs)} in {folder}: Git LFS pointers only; run `git lfs pull` there.")
        return WeightFiles(form, paths)
    raise CheckpointNotFound(f"No weights in {folder}: {no_weights(file.name for file in folder.glob('*'))}")


def weight_names(single: str, has: Callable[[str], bool], fetch: Callable[[str], Path]) -> tuple[str, ...]:
    """The files of one format: the single file, or the shards of its index; empty if there is neither."""
    if has(single):
        return (single,)
    index = f"{single}.index.json"
    return shard_names(fetch(index)) if has(index) else ()


def no_weights(names: Iterable[str]) -> str:
    """What was looked for in vain, and which of `names` are weights in forms that jaxcal does not read."""
    sought = ", ".join(f"{single}, {single}.index.json" for single in WEIGHTS.values())
    other = re.compile(r".*\.(safetensors|bin|onnx|h5|msgpack|pt|ckpt|gguf)")
    found = sorted(name for name in names if other.fullmatch(name))
    there = f" Files of other names or formats are there: {', '.join(found[:5])}." if found else ""
    return f"looked for {sought}.{there}"


def module_configs(modules: Path) -> list[str]:
    """The configuration files of the module folders that modules.json lists, the root excepted."""
    entries = read_json(modules, list)
    paths = [entry.get("path") if isinstance(entry, dict) else None for entry in entries]
    folders = [PurePosixPath(path) for path in paths if isinstance(path, str) and is_inside(path)]
    if len(folders) != len(entries):
        raise CorruptCheckpoint(f"{modules} lists modules without a path inside the checkpoint; the paths are {paths}.")
    return [f"{folder}/config.json" for folder in folders if folder.name]


def sha256(path: str | os.PathLike[str], block: int = 1 << 22) -> str:
    """The SHA-256 of a file in hexadecimal, read block by block."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(block):
            digest.update(data)
    return digest.hexdigest()
