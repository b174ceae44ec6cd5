"""The tokenizer of a checkpoint, as the `tokenizers` library has it."""

import os
from importlib.util import find_spec
from pathlib import Path

from tokenizers import Tokenizer, normalizers

from jaxcal.checkpoint.files import VOCABULARIES, is_lfs_pointer, os_errors, read_json
from jaxcal.errors import CheckpointNotFound, CorruptCheckpoint, MissingDependency, UnsupportedCheckpoint


@os_errors()
def load_tokenizer(folder: str | os.PathLike[str], *, lowercase: bool = False) -> Tokenizer:
    """Load the tokenizer of a folder, without truncation and without padding.

    tokenizer.json is read directly. Stored truncation and padding are dropped: they are leftovers of training (a
    popular model stores 128 tokens for both) and would cut or pad texts silently. A folder that has only an older
    vocabulary is converted through transformers, without running any code of the checkpoint. `lowercase` puts
    lower-casing before the other normalisers, unless they do it already (`EncoderSettings.lowercase` asks for it).

    Raises `CheckpointNotFound` if there is no vocabulary, `CorruptCheckpoint` if it cannot be read,
    `UnsupportedCheckpoint` if it cannot be converted, `MissingDependency` if that takes the package sentencepiece.
    """
    folder = Path(folder)
    file = folder / "tokenizer.json"
    tokenizer = _read(file) if file.is_file() else _convert(folder)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if lowercase:
        _prepend_lowercase(tokenizer)
    return tokenizer


def _read(file: Path) -> Tokenizer:
    if is_lfs_pointer(file):
        raise CorruptCheckpoint(f"{file} is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder.")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        read_json(file)  # says where the text stops being JSON, if that is the trouble
        raise CorruptCheckpoint(
            f"{file} is JSON, but no tokenizer that this version of `tokenizers` reads ({error}); download it again, or"
            " update the package."
        ) from error


def _convert(folder: Path) -> Tokenizer:
    present = [name for name in VOCABULARIES if (folder / name).is_file()]
    if not present:
        raise CheckpointNotFound(
            f"No tokenizer in {folder}: neither tokenizer.json nor a vocabulary ({', '.join(VOCABULARIES)}); complete"
            " the folder, or load the hub id."
        )
    if present == ["vocab.json"] and not (folder / "merges.txt").is_file():
        raise CheckpointNotFound(f"{folder} has vocab.json without merges.txt, which is half a tokenizer; add it.")
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:
        pieces = [name for name in present if name.endswith(".model")]
        if pieces and find_spec("sentencepiece") is None:
            raise MissingDependency(
                f"{folder} has no tokenizer.json; to convert {pieces[0]}, pip install sentencepiece."
            ) from error
        raise UnsupportedCheckpoint(
            f"{folder} has no tokenizer.json, and transformers cannot convert {present[0]}: {error}"
        ) from error
    # Where the class of the model family reads a file of another name, transformers makes an empty tokenizer instead.
    read = set(getattr(loaded, "vocab_files_names", {}).values())
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None or not read & set(present):
        raise UnsupportedCheckpoint(
            f"{folder} has no tokenizer.json, and {type(loaded).__name__} makes none of {', '.join(present)} (it reads"
            f" {', '.join(sorted(read)) or 'no vocabulary'}); add a tokenizer.json."
        )
    return backend


def _prepend_lowercase(tokenizer: Tokenizer) -> None:
    present = tokenizer.normalizer
    if isinstance(present, normalizers.Sequence):
        parts = list(present)  # pyright: ignore[reportArgumentType] (its stub lacks __iter__)
    else:
        parts = [] if present is None else [present]
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])
