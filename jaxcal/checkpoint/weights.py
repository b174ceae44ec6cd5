"""Strict loading: every weight of ours is filled exactly once, every tensor of theirs is used or ignorable by name.

Names and shapes are checked before memory is spent; then tensors stream one at a time into the stacked arrays, so peak
host memory stays near the size of the model. A `.bin` file is read through torch's `weights_only` mode alone: no pickle
is ever executed.
"""

import fnmatch
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxcal.checkpoint.files import WeightFiles
from jaxcal.errors import CorruptCheckpoint, MissingDependency, WeightMismatch
from jaxcal.models import Family
from jaxcal.models.config import EncoderConfig
from jaxcal.models.rules import Rule, Rules

# Heads for other tasks, and buffers that the configuration determines.
IGNORABLE = ("classifier.*", "pooler.*", "lm_head.*", "*position_ids", "*inv_freq")

Params = dict[str, Any]


@runtime_checkable
class TensorFile(Protocol):
    """One shard of a checkpoint: shapes at hand, contents on demand."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, without reading any."""

    @abstractmethod
    def read(self, name: str, rows: slice) -> np.ndarray:
        """A tensor, or a stretch of its first axis."""


class Safetensors:
    """A safetensors file, memory-mapped."""

    def __init__(self, path: Path):
        from safetensors import safe_open

        try:
            self._file = safe_open(path, framework="numpy")
        except Exception as error:  # the library raises its own type, OSError and more
            raise CorruptCheckpoint(f"{path} cannot be read as safetensors ({error}); download it again.") from error

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, from the header."""
        return {name: tuple(self._file.get_slice(name).get_shape()) for name in self._file.keys()}

    def read(self, name: str, rows: slice) -> np.ndarray:
        """A tensor, or a stretch of its first axis."""
        return self._file.get_slice(name)[rows]


class TorchFile:
    """A `.bin` file, read by torch with `weights_only`."""

    def __init__(self, path: Path):
        try:
            import torch
        except ImportError as error:
            raise MissingDependency(
                f"{path} is a torch file. Install torch to read it, or convert it to model.safetensors once, with "
                "safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'model.safetensors')."
            ) from error
        try:
            # Before version 1.6 torch wrote no zip archives, and only those can be memory-mapped.
            mapped = zipfile.is_zipfile(path)
            self._tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except Exception as error:  # unpickling errors of many types
            raise CorruptCheckpoint(f"{path} cannot be read as a torch file of weights only ({error}).") from error
        if not isinstance(self._tensors, dict) or not all(torch.is_tensor(value) for value in self._tensors.values()):
            raise CorruptCheckpoint(
                f"{path} holds something else than a dictionary of tensors; save the state_dict alone."
            )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str, rows: slice) -> np.ndarray:
        """A tensor, or a stretch of its first axis."""
        import torch

        tensor = self._tensors[name][rows]
        if tensor.dtype == torch.bfloat16:  # numpy has no such type of its own
            return tensor.contiguous().view(torch.int16).numpy().view(jnp.bfloat16)
        return tensor.numpy()


class _Source(NamedTuple):
    file: TensorFile
    name: str  # as the file has it, with prefix
    shape: tuple[int, ...]


class _Piece(NamedTuple):
    """One read: a block of rows of one tensor that becomes one layer of one of our weights."""

    source: _Source
    rule: Rule
    layer: int | None


def build(family: Family, config: EncoderConfig, dtype: jnp.dtype) -> tuple[nnx.GraphDef, Params]:
    """A family's module split into its definition and its parameters' shapes; nothing is allocated."""
    abstract = nnx.eval_shape(lambda: family.model(config, dtype, nnx.Rngs(0)))
    definition, state = nnx.split(abstract, nnx.Param)
    return definition, nnx.to_pure_dict(state)


def load_weights(files: WeightFiles, family: Family, config: EncoderConfig, shapes: Params) -> Params:
    """The parameters of `shapes`, filled from a checkpoint's files.

    Raises:
        WeightMismatch: listing every missing, extra and misshapen tensor, or naming the first that is not finite.
        CorruptCheckpoint: if a file cannot be read.
        MissingDependency: if the files are torch's and torch is not installed.
    """
    leaves = {
        ".".join(str(key.key) for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
    }
    sources = _index(files, family.prefixes, config, family.weight_rules)
    rules = family.weight_rules(config, frozenset(sources))
    if rules.keys() != leaves.keys():
        raise AssertionError(f"weight rules and model differ: {sorted(rules.keys() ^ leaves.keys())}")
    pieces = _match(rules, leaves, sources, config.layers)
    flat = {name: jnp.asarray(_fill(leaf, pieces[name])) for name, leaf in leaves.items()}
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shapes), list(flat.values()))


def _open(files: WeightFiles) -> list[TensorFile]:
    reader: Callable[[Path], TensorFile] = Safetensors if files.format == "safetensors" else TorchFile
    return [reader(path) for path in files.paths]


def _index(
    files: WeightFiles,
    prefixes: Iterable[str],
    config: EncoderConfig,
    weight_rules: Callable[[Any, frozenset[str]], Rules],
) -> dict[str, _Source]:
    """All tensors by their name without the family's prefix, ignorable ones left out."""
    sources: dict[str, _Source] = {}
    for file in _open(files):
        for name, shape in file.shapes().items():
            if name in sources:
                raise WeightMismatch(f"the checkpoint holds {name} in two of its files.")
            sources[name] = _Source(file, name, shape)
    anchor = weight_rules(config, frozenset())["words.embedding"].tensor
    prefix = next((prefix for prefix in prefixes if prefix + anchor in sources), "")
    bare: dict[str, _Source] = {}
    for name, source in sources.items():
        stem = name.removeprefix(prefix)
        if bare.setdefault(stem, source) is not source:
            raise WeightMismatch(f"the checkpoint holds {stem} with and without {prefix!r} before it.")
    return {
        name: source
        for name, source in bare.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in IGNORABLE)
    }


def _match(
    rules: Rules, leaves: Mapping[str, jax.ShapeDtypeStruct], sources: Mapping[str, _Source], layers: int
) -> dict[str, list[_Piece]]:
    """The reads that fill each of our weights."""
    pieces: dict[str, list[_Piece]] = {}
    missing, misshapen, used = set[str](), list[str](), set[str]()
    for ours, rule in rules.items():
        stacked = "{l}" in rule.tensor
        shape = leaves[ours].shape[1:] if stacked else leaves[ours].shape
        wanted = tuple(reversed(shape)) if rule.transpose else shape
        wanted = (wanted[0] * rule.part[1], *wanted[1:])
        pieces[ours] = []
        for layer in range(layers) if stacked else (None,):
            theirs = rule.tensor.format(l=layer)
            source = sources.get(theirs)
            if source is None:
                missing.add(theirs)
                continue
            used.add(theirs)
            if source.shape != wanted:
                misshapen.append(f"{theirs} is {source.shape}, the configuration makes it {wanted}")
            pieces[ours].append(_Piece(source, rule, layer))
    extra = sources.keys() - used
    problems = [
        f"{label}: {', '.join(sorted(items))}"
        for label, items in (("missing", missing), ("not known to this family", extra), ("misshapen", set(misshapen)))
        if items
    ]
    if problems:
        raise WeightMismatch("the checkpoint's tensors do not fill the model. " + "; ".join(problems) + ".")
    return pieces


def _fill(leaf: jax.ShapeDtypeStruct, pieces: Iterable[_Piece]) -> np.ndarray:
    out = np.empty(leaf.shape, leaf.dtype)
    for piece in pieces:
        index, count = piece.rule.part
        rows = piece.source.shape[0] // count
        try:
            values = piece.source.file.read(piece.source.name, slice(index * rows, (index + 1) * rows))
        except Exception as error:  # whatever the reader raises on a damaged file
            raise CorruptCheckpoint(f"tensor {piece.source.name} cannot be read ({error}).") from error
        if not jnp.issubdtype(values.dtype, jnp.floating):
            raise WeightMismatch(
                f"tensor {piece.source.name} is stored as {values.dtype}; weights must be floating point."
            )
        target = out[...] if piece.layer is None else out[piece.layer]
        with np.errstate(over="ignore"):  # told by name below
            target[...] = values.T if piece.rule.transpose else values
        _check_finite(piece.source.name, values, target)
    return out


def _check_finite(name: str, stored: np.ndarray, ours: np.ndarray) -> None:
    # min and max carry NaN and infinity through, at a fraction of isfinite's memory.
    if all(np.isfinite(np.float32(bound(ours))) for bound in (np.min, np.max)):
        return
    if all(np.isfinite(np.float32(bound(stored))) for bound in (np.min, np.max)):
        wider = "'float32'" if ours.dtype == jnp.bfloat16 else "'float32' or 'bfloat16'"
        raise WeightMismatch(f"tensor {name} overflows {ours.dtype}; load with dtype={wider}.")
    raise WeightMismatch(f"tensor {name} holds NaN or infinite values; the checkpoint is damaged.")
