"""Vectors kept on disk by what they depend on, so that nothing is encoded twice and an interrupted run continues.

Everything that changes a vector but the text itself makes a *space*: the weights, the tokenizer, the prompt, the
calibration, the maximum length, the type. A space is a folder of chunks; a chunk is two files, written beside and
renamed:

    <space>/space.json              what the space is, to read
    <space>/000000.vectors.npy      [n, D] float32
    <space>/000000.texts.npy        [n] sha256 of the text, its tokens, whether it was truncated

What is missing is encoded in chunks of a fixed order and size. A run that is killed leaves whole chunks, and the next
one goes on with the very chunks that were left: its vectors are the same to the bit.

Axis letters: N texts, D width.
"""

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from tqdm import tqdm

from jaxcal import __version__
from jaxcal.calibration import Calibration
from jaxcal.checkpoint.files import sha256, weight_files
from jaxcal.encoder import Encoder
from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.segments import encode_segments
from jaxcal.io import atomic, exclusive, make_folder
from jaxcal.tokens import checked_texts

logger = logging.getLogger("jaxcal")

# Characters of a chunk: what a killed run loses is at most so much work, about a hundred thousand tokens on a CPU. An
# accelerator is given more, so that it does not wait for the disk; the platform is part of a space.
_CHUNK, _CHUNK_ACCELERATOR = 1 << 19, 1 << 23
_TEXTS = np.dtype([("digest", "u1", 32), ("tokens", "<i4"), ("cut", "?")])


class Encoded(NamedTuple):
    """Vectors of texts, with what the encoder saw of each.

    Attributes:
        vectors: [N, D] float32.
        tokens: [N] tokens, special ones and the prompt included, after truncation.
        cut: [N] whether the text was truncated.
    """

    vectors: Float[np.ndarray, "n d"]
    tokens: Int[np.ndarray, " n"]
    cut: Bool[np.ndarray, " n"]


def fingerprint(encoder: Encoder) -> dict[str, str]:
    """What identifies the files an encoder was made of: hub commits, or a sha256 of a local folder's files.

    Raises:
        InvalidSetting: the encoder was not loaded from a checkpoint.
    """
    checkpoint = encoder.checkpoint
    if checkpoint is None:
        raise InvalidSetting("an encoder that was not loaded from a checkpoint has nothing to know its vectors by.")
    if checkpoint.commit is not None:
        weights = checkpoint.weights_commit or checkpoint.commit
        return {"model": checkpoint.name, "commit": checkpoint.commit, "weights_commit": weights}
    small = (path for pattern in ("*.json", "*.txt", "*.model") for path in checkpoint.folder.rglob(pattern))
    files = sorted({*small, *weight_files(checkpoint.weights_folder).paths})
    digests = [f"{path.relative_to(checkpoint.folder)} {sha256(path)}" for path in files if path.is_file()]
    return {"files": hashlib.sha256("\n".join(digests).encode()).hexdigest()}


class VectorStore:
    """The vectors of one encoder, in a folder that any number of encoders, data sets and runs share.

    Attributes:
        folder: where the vectors are.
        encoder: what makes them.
        model: what identifies its files, found once: the weights of a local folder take seconds to hash.
    """

    def __init__(self, folder: Path, encoder: Encoder):
        self.folder, self.encoder = folder, encoder
        self.model = fingerprint(encoder)
        make_folder(folder)

    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        calibration: Calibration | None = None,
        segment: int | None = None,
        label: str = "encode",
        show_progress: bool = False,
    ) -> Encoded:
        """Vectors of texts in their given order, taken from disk where they are there.

        Texts below one basket have the vectors of the uncalibrated model, as the rule says, and are encoded once.

        Args:
            texts: what to encode.
            prompt: put before every text.
            calibration: None for the model as published.
            segment: instead of whole texts, average the vectors of segments of so many tokens.
            label: what the progress bar calls the work.
            show_progress: show a progress bar with an estimate of the time left.

        Raises:
            InvalidInput: a file of the store is damaged.
            InvalidSetting: another run writes to the same space.
        """
        texts = checked_texts(texts)
        if calibration is None:
            return self._encode(texts, prompt, None, segment, label, show_progress)
        plain = self._encode(texts, prompt, None, None, label, show_progress)
        long = np.flatnonzero(plain.tokens >= calibration.least_tokens(self.encoder.settings.pooling))
        if long.size:
            calibrated = self._encode(
                [texts[i] for i in long.tolist()], prompt, calibration, None, label, show_progress
            )
            plain.vectors[long] = calibrated.vectors
        return plain

    def _encode(
        self,
        texts: Sequence[str],
        prompt: str,
        calibration: Calibration | None,
        segment: int | None,
        label: str,
        show_progress: bool,
    ) -> Encoded:
        digests = [hashlib.sha256(text.encode()).digest() for text in texts]
        with self._space(prompt, calibration, segment) as space:
            missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in space.rows}
            # Longest first, so that a chunk holds texts of about one length, and by digest, so that the order of the
            # data set does not matter.
            order = sorted(missing, key=lambda digest: (-len(missing[digest]), digest))
            total = sum(map(len, missing.values()))
            started, hidden = time.perf_counter(), not (show_progress and total)
            with tqdm(total=total, unit="char", unit_scale=True, desc=label, disable=hidden) as bar, _quiet():
                for chunk in _chunks(order, missing):
                    listed = [missing[digest] for digest in chunk]
                    space.add(chunk, self._compute(listed, prompt, calibration, segment))
                    bar.update(sum(map(len, listed)))
            result = space.read(digests, self.encoder.dimension)
        cut, seconds = int(result.cut.sum()), time.perf_counter() - started
        logger.info(
            "%s: %d texts encoded, %d were there, %.1f s", label, len(missing), len(texts) - len(missing), seconds
        )
        if cut:
            logger.warning(
                "%s: %d of %d texts are longer than %d tokens and were truncated",
                label,
                cut,
                len(texts),
                self.encoder.max_length,
            )
        return result

    def _compute(self, texts: list[str], prompt: str, calibration: Calibration | None, segment: int | None) -> Encoded:
        if segment is not None:
            return Encoded(*encode_segments(self.encoder, texts, segment, prompt))
        vectors = self.encoder.encode(texts, prompt=prompt, calibration=calibration)
        return Encoded(vectors, self.encoder.last_run.lengths, self.encoder.last_run.cut)

    @contextlib.contextmanager
    def _space(self, prompt: str, calibration: Calibration | None, segment: int | None) -> Iterator["_Space"]:
        described = self.encoder.describe(calibration)
        kept = ("pooling", "normalize", "max_length", "dtype", "matmul_precision", "calibration")
        facts = {
            "jaxcal": __version__,
            "platform": jax.default_backend(),
            **self.model,
            **{key: described[key] for key in kept},
            "dimension": self.encoder.dimension,
            "prompt": prompt,
            "segment": segment,
        }
        text = json.dumps(facts, sort_keys=True)
        folder = self.folder / hashlib.sha256(text.encode()).hexdigest()[:24]
        make_folder(folder)
        with exclusive(folder):
            if not (folder / "space.json").exists():
                with atomic(folder / "space.json") as path:
                    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
            yield _Space(folder)


class _Space:
    """One folder of chunks."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.rows: dict[bytes, tuple[int, int]] = {}  # digest -> chunk, row
        self._texts: list[np.ndarray] = []
        for number, path in enumerate(sorted(folder.glob("*.texts.npy"))):
            if path != self._path(number, "texts"):
                raise InvalidInput(f"{self._path(number, 'texts')} is missing; delete {folder} to encode again.")
            self._enter(_load(path))

    def add(self, digests: list[bytes], encoded: Encoded) -> None:
        """Write a chunk: the vectors first, because the file of texts says that they are there."""
        number = len(self._texts)
        texts = np.empty(len(digests), _TEXTS)
        texts["digest"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
        texts["tokens"], texts["cut"] = encoded.tokens, encoded.cut
        for kind, array in (("vectors", encoded.vectors), ("texts", texts)):
            with atomic(self._path(number, kind)) as path:
                np.save(path, array, allow_pickle=False)
        self._enter(texts)

    def read(self, digests: list[bytes], dimension: int) -> Encoded:
        """The vectors of these texts, all of which are here."""
        places = np.array([self.rows[digest] for digest in digests], np.int64).reshape(-1, 2)
        result = Encoded(
            np.empty((len(digests), dimension), np.float32),
            np.empty(len(digests), np.int32),
            np.empty(len(digests), bool),
        )
        order = np.argsort(places[:, 0], kind="stable")
        for chunk, members in _runs(places[order, 0], order):
            texts, row = self._texts[chunk], places[members, 1]
            vectors = _load(self._path(chunk, "vectors"))
            if vectors.shape != (len(texts), dimension) or vectors.dtype != np.float32:
                raise InvalidInput(f"{self._path(chunk, 'vectors')} does not fit its texts; delete {self.folder}.")
            result.vectors[members] = vectors[row]
            result.tokens[members], result.cut[members] = texts["tokens"][row], texts["cut"][row]
        return result

    def _enter(self, texts: np.ndarray) -> None:
        if texts.dtype != _TEXTS or texts.ndim != 1:
            raise InvalidInput(f"{self._path(len(self._texts), 'texts')} is not of this version; delete {self.folder}.")
        number = len(self._texts)
        self.rows.update((digest.tobytes(), (number, row)) for row, digest in enumerate(texts["digest"]))
        self._texts.append(texts)

    def _path(self, number: int, kind: str) -> Path:
        return self.folder / f"{number:06d}.{kind}.npy"


def _runs(values: np.ndarray, members: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each value of a sorted array, with the members at its places."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        yield int(values[start]), members[start:end]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A chunk is none of the log's business; the whole is told at its end."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _chunks(order: list[bytes], texts: dict[bytes, str]) -> Iterator[list[bytes]]:
    most = _CHUNK if jax.default_backend() == "cpu" else _CHUNK_ACCELERATOR
    chunk: list[bytes] = []
    size = 0
    for digest in order:
        chunk.append(digest)
        size += len(texts[digest])
        if size >= most:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _load(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r" if ".vectors" in path.name else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}); delete {path.parent} to encode again.") from None
