"""`load` and `Encoder`: texts or token ids in, vectors out.

Axis letters: N texts, T tokens, D model width, L' calibrated layers, H query heads.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int
from tqdm import tqdm

from jaxcal.batching import Batch, Statistics, pad, plan_batches
from jaxcal.calibration import Calibration
from jaxcal.checkpoint.files import read_json, weight_files
from jaxcal.checkpoint.hub import Checkpoint, resolve
from jaxcal.checkpoint.modules import EncoderSettings, read_modules
from jaxcal.checkpoint.tokenizer import load_tokenizer
from jaxcal.checkpoint.weights import Params, build, load_weights
from jaxcal.errors import InvalidInput, InvalidSetting, NotFinite, UnexpectedCompilation
from jaxcal.models import EncoderConfig, find_family
from jaxcal.models.stack import forward
from jaxcal.tokens import checked_texts, count_tokens, tokenize

logger = logging.getLogger("jaxcal")

DTYPES = {name: jnp.dtype(name) for name in ("float32", "bfloat16", "float16")}
# Area N T of a batch: a CPU is fastest when activations stay in its caches, an accelerator when it is full.
_BATCH_TOKENS = {"cpu": 2048}
_BATCH_TOKENS_ACCELERATOR = 32768


def load(
    name: str | Path,
    *,
    revision: str | None = None,
    dtype: str = "float32",
    max_length: int | None = None,
    local_files_only: bool = False,
) -> "Encoder":
    """Load an encoder from a Hugging Face checkpoint.

    Args:
        name: a local folder, or a hub id such as "BAAI/bge-m3"; an existing folder wins.
        revision: branch, tag or commit of a hub id.
        dtype: type of weights and activations: "float32" (matrix products in full float32 on every device), "bfloat16"
            or "float16". Norms, softmax, calibration and pooling are float32 in any case.
        max_length: longest text in tokens, special tokens included; longer ones are truncated. By default what the
            checkpoint's files say.
        local_files_only: never touch the network, as HF_HUB_OFFLINE=1 does.

    Raises:
        CheckpointNotFound: if the checkpoint or one of its files is missing.
        UnsupportedCheckpoint: if its architecture or configuration has no port.
        WeightMismatch, CorruptCheckpoint: if its weights do not fill the model.
        InvalidSetting: if dtype or max_length is impossible.
    """
    if dtype not in DTYPES:
        raise InvalidSetting(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}.")
    checkpoint = resolve(name, revision=revision, local_files_only=local_files_only)
    raw = read_json(checkpoint.folder / "config.json")
    family = find_family(raw)
    config = family.read_config(raw)
    settings = read_modules(checkpoint.folder, raw, position_limit=config.max_tokens)
    tokenizer = load_tokenizer(checkpoint.folder, lowercase=settings.lowercase)
    limit = _length_limit(max_length, settings, config, tokenizer.num_special_tokens_to_add(is_pair=False))
    definition, shapes = build(family, config, DTYPES[dtype])
    params = load_weights(weight_files(checkpoint.weights_folder), family, config, shapes)
    logger.info(
        "loaded %s (commit %s, weights %s): %d layers, width %d, %s pooling, %s, at most %d tokens",
        checkpoint.name,
        checkpoint.commit or "local",
        checkpoint.weights_revision or "same revision",
        config.layers,
        config.width,
        settings.pooling,
        dtype,
        limit,
    )
    return Encoder(definition, params, config, settings, tokenizer, limit, checkpoint)


def _length_limit(max_length: int | None, settings: EncoderSettings, config: EncoderConfig, special: int) -> int:
    if max_length is None:
        max_length = min(settings.max_length or config.max_tokens, config.max_tokens)
    least = max(special, 1)  # truncation keeps the special tokens
    if not isinstance(max_length, int) or isinstance(max_length, bool) or not least <= max_length <= config.max_tokens:
        raise InvalidSetting(f"max_length is {max_length!r}; this model takes {least} to {config.max_tokens} tokens.")
    return max_length


class Encoder:
    """A loaded encoder.

    Attributes:
        params: the weights, a nested dict of arrays; `embed` takes them as an argument, so gradients and other weights
            of the same shapes are a matter of passing them.
        config: the model's shape.
        settings: pooling, normalisation and prompts of the checkpoint.
        max_length: longest text in tokens.
        checkpoint: where the files came from, with the commit.
        dtype: type of weights and activations.
        precision: JAX's matrix-product precision, "highest" for float32.
        compilations: programs compiled by this encoder so far.
        last_run: statistics of the latest encode call.
    """

    def __init__(
        self,
        definition: nnx.GraphDef,
        params: Params,
        config: EncoderConfig,
        settings: EncoderSettings,
        tokenizer: Any,
        max_length: int,
        checkpoint: Checkpoint | None = None,
    ):
        self.params, self.config, self.settings = params, config, settings
        self.max_length, self.checkpoint = max_length, checkpoint
        self.compilations = 0
        self.last_run = Statistics()
        self._definition, self._tokenizer = definition, tokenizer
        self._may_compile = True
        self.dtype = str(params["words"]["embedding"].dtype)
        # Full float32 products where float32 was asked for: elsewhere than on a CPU that is not JAX's default.
        self.precision = "highest" if self.dtype == "float32" else "default"
        self._compiled = jax.jit(self._traced)

    @property
    def dimension(self) -> int:
        """The width of the vectors: D, or what the checkpoint truncates to."""
        return self.settings.truncate_dim or self.config.width

    @property
    def commit(self) -> str | None:
        """The resolved commit of a hub checkpoint; None for a local folder."""
        return self.checkpoint.commit if self.checkpoint else None

    def embed(
        self,
        params: Params,
        tokens: Int[Array, "n t"],
        mask: Bool[Array, "n t"],
        calibration: Calibration | None = None,
    ) -> Float[Array, "n d"]:
        """Token ids to vectors as a pure function, for use under jit, vmap and grad.

        Args:
            params: weights, as in `self.params`.
            tokens: token ids, [N, T], padded on either side.
            mask: real tokens, [N, T].
            calibration: a pytree; its strength and basket size may be traced.

        Returns:
            Vectors [N, D] in float32, normalised if the checkpoint says so.
        """
        with jax.default_matmul_precision(self.precision):
            model = cast(Any, nnx.merge(self._definition, params))
            vectors = forward(model, tokens, mask, self.settings.pooling, calibration)
        if not self.settings.normalize:
            return vectors
        squares = jnp.sum(vectors**2, axis=-1, keepdims=True)
        return vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))

    def prompt(self, kind: Literal["query", "document"]) -> str:
        """The checkpoint's prompt for queries or for documents; "" if it has none."""
        names = {"query": ("query",), "document": ("document", "passage", "corpus")}[kind]
        return next((self.settings.prompts[name] for name in names if name in self.settings.prompts), "")

    def encode_query(self, texts: str | Sequence[str], **options: Any) -> Float[np.ndarray, "*n d"]:
        """Encode queries with the checkpoint's query prompt; options as in `encode`."""
        options.setdefault("prompt", self.prompt("query"))
        return self.encode(texts, **options)

    def encode_document(self, texts: str | Sequence[str], **options: Any) -> Float[np.ndarray, "*n d"]:
        """Encode documents with the checkpoint's document prompt; options as in `encode`."""
        options.setdefault("prompt", self.prompt("document"))
        return self.encode(texts, **options)

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        calibration: Calibration | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        batch_tokens: int | None = None,
        show_progress: bool = False,
    ) -> Float[np.ndarray, "*n d"]:
        """Encode texts in their given order.

        Args:
            texts: one text gives one vector [D], a sequence gives [N, D]; an empty text is encoded as its special
                tokens.
            calibration: None for the model as published. Texts with less content than one basket are never calibrated.
            prompt: put before every text; None means the checkpoint's default prompt, "" none.
            truncate_dim: keep so many leading dimensions and normalise again (Matryoshka models).
            batch_tokens: tokens per batch, padding included; by default 2048 on a CPU, 32768 elsewhere.
            show_progress: show a progress bar with an estimate of the time left.

        Returns:
            float32 vectors, normalised if the checkpoint says so.

        Raises:
            InvalidInput: if a text is not a string, or cannot be tokenised; names its index.
            InvalidCalibration, InvalidSetting: if an option has no meaning for this model.
            NotFinite: if activations overflow.
        """
        single = isinstance(texts, str)
        listed = checked_texts([texts] if isinstance(texts, str) else texts)
        started = time.perf_counter()
        ids, cut = self._tokenize(listed, self._default_prompt() if prompt is None else prompt)
        vectors = self._encode(ids, calibration, truncate_dim, batch_tokens, show_progress, cut, started)
        return vectors[0] if single else vectors

    def encode_ids(
        self,
        ids: Sequence[Sequence[int] | Int[np.ndarray, " t"]],
        *,
        calibration: Calibration | None = None,
        truncate_dim: int | None = None,
        batch_tokens: int | None = None,
        show_progress: bool = False,
    ) -> Float[np.ndarray, "n d"]:
        """Encode token ids, special tokens included, in their given order: [N, D]; options as in `encode`.

        Raises:
            InvalidInput: if a text has no token, more tokens than the model takes, or an id outside the vocabulary.
        """
        started = time.perf_counter()
        checked = [self._checked_ids(index, text) for index, text in enumerate(ids)]
        cut = np.zeros(len(checked), bool)
        return self._encode(checked, calibration, truncate_dim, batch_tokens, show_progress, cut, started)

    def tokenize(self, texts: Sequence[str], *, prompt: str = "") -> list[Int[np.ndarray, " t"]]:
        """Token ids of texts as `encode` sees them: with special tokens, truncated at `max_length`."""
        return self._tokenize(checked_texts(texts), prompt)[0]

    def count_tokens(self, texts: Sequence[str]) -> Int[np.ndarray, " n"]:
        """Tokens of each text [N], special tokens included, before any truncation."""
        return count_tokens(self._tokenizer, checked_texts(texts))

    def describe(self, calibration: Calibration | None = None) -> dict[str, Any]:
        """What makes this encoder's vectors what they are, for result files: JSON types only."""
        settled: dict[str, Any] | None = None
        if calibration is not None:
            settled = {
                "strength": np.asarray(calibration.strength).tolist(),
                "basket_size": int(calibration.basket_size),
                "layers": calibration.layers,
                "calibrated_layers": calibration.number_of_layers(self.config.layers),
                "special_tokens": calibration.special_tokens,
                "isolate": sorted(calibration.isolated(self.settings.pooling)),
            }
        return {
            "model": self.checkpoint.name if self.checkpoint else None,
            "commit": self.commit,
            "weights_revision": self.checkpoint.weights_revision if self.checkpoint else None,
            "weights_commit": self.checkpoint.weights_commit if self.checkpoint else None,
            "pooling": self.settings.pooling,
            "normalize": self.settings.normalize,
            "max_length": self.max_length,
            "dtype": self.dtype,
            "matmul_precision": self.precision,
            "calibration": settled,
        }

    @contextlib.contextmanager
    def no_compilation(self) -> Iterator[None]:
        """A context in which a program that was not compiled before raises UnexpectedCompilation."""
        outside, self._may_compile = self._may_compile, False
        try:
            yield
        finally:
            self._may_compile = outside

    def _traced(self, params: Params, tokens: Array, mask: Array, calibration: Calibration | None) -> Array:
        # Python runs this body once per program, when JAX traces it.
        if not self._may_compile:
            raise UnexpectedCompilation(
                f"a batch of the shape {tokens.shape} needs a program that was not compiled before; encode texts of "
                "such lengths once, or leave no_compilation()."
            )
        self.compilations += 1
        return self.embed(params, tokens, mask, calibration)

    def _encode(
        self,
        ids: list[np.ndarray],
        calibration: Calibration | None,
        truncate_dim: int | None,
        batch_tokens: int | None,
        show_progress: bool,
        cut: np.ndarray,
        started: float,
    ) -> Float[np.ndarray, "n d"]:
        calibration = self._settled(calibration)
        dimension = self._checked_dimension(truncate_dim)
        compiled_before = self.compilations
        batches = plan_batches([len(text) for text in ids], _checked_batch_tokens(batch_tokens), self.config.max_tokens)
        vectors = np.empty((len(ids), self.config.width), np.float32)
        for batch, result in self._run(ids, batches, calibration, show_progress):
            vectors[list(batch.texts)] = np.asarray(result)[: len(batch.texts)]
        self._check_finite(vectors)
        if dimension < self.config.width:
            vectors = vectors[:, :dimension]
            if self.settings.normalize:
                vectors = normalised(vectors)
        least = 0 if calibration is None else calibration.least_tokens(self.settings.pooling)
        self.last_run = Statistics(
            texts=len(ids),
            tokens=sum(len(text) for text in ids),
            computed_tokens=sum(batch.shape[0] * batch.shape[1] for batch in batches),
            truncated=int(cut.sum()),
            lengths=np.array([len(text) for text in ids], np.int32),
            cut=cut,
            too_short=sum(len(text) < least for text in ids),
            shapes=len({batch.shape for batch in batches}),
            compilations=self.compilations - compiled_before,
            seconds=time.perf_counter() - started,
        )
        self._report(self.last_run)
        return vectors

    def _run(
        self, ids: list[np.ndarray], batches: list[Batch], calibration: Calibration | None, show_progress: bool
    ) -> Iterator[tuple[Batch, Array]]:
        """Dispatch batches one ahead of the result that is read, so that the device never waits for the host."""
        total = sum(len(text) for text in ids)
        with tqdm(total=total, unit="tok", unit_scale=True, desc="encode", disable=not show_progress) as bar:
            waiting: deque[tuple[Batch, Array]] = deque()
            for batch in batches:
                tokens, mask = pad(ids, batch, self.config.pad_token)
                waiting.append((batch, self._compiled(self.params, tokens, mask, calibration)))
                while len(waiting) > (1 if batch is not batches[-1] else 0):
                    done, result = waiting.popleft()
                    yield done, jax.block_until_ready(result)
                    bar.update(sum(len(ids[text]) for text in done.texts))

    def _settled(self, calibration: Calibration | None) -> Calibration | None:
        """The calibration with its traced values as arrays of one shape, so that new values meet the same program."""
        if calibration is None:
            return None
        if not isinstance(calibration, Calibration):
            raise InvalidSetting(f"calibration is {calibration!r}; it must be a jaxcal.Calibration or None.")
        count = calibration.number_of_layers(self.config.layers)
        strength = calibration.strengths(count, self.config.heads)
        if calibration.is_identity:
            return None
        return calibration.replace(
            strength=strength,
            basket_size=jnp.asarray(calibration.basket_size, jnp.int32),
            layers=count,
            isolate=calibration.isolated(self.settings.pooling),
        )

    def _tokenize(self, texts: list[str], prompt: str) -> tuple[list[np.ndarray], np.ndarray]:
        if prompt and not self.settings.include_prompt and self.settings.pooling != "last":
            raise InvalidSetting("this checkpoint leaves prompts out of its pooling, which jaxcal does not implement.")
        if not isinstance(prompt, str):
            raise InvalidSetting(f"prompt is {prompt!r}; it must be a string.")
        prompted = [prompt + text for text in texts] if prompt else texts
        return tokenize(self._tokenizer, prompted, self.max_length, self.config.vocab_size)

    def _checked_ids(self, index: int, text: Any) -> Int[np.ndarray, " t"]:
        ids = np.asarray(text)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or not 1 <= ids.size <= self.config.max_tokens:
            raise InvalidInput(
                f"ids of text {index} have the shape {ids.shape} and type {ids.dtype}; they must be 1 to "
                f"{self.config.max_tokens} whole numbers."
            )
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            raise InvalidInput(f"ids of text {index} leave the vocabulary of {self.config.vocab_size}.")
        return ids.astype(np.int32)

    def _checked_dimension(self, truncate_dim: int | None) -> int:
        dimension, width = self.dimension if truncate_dim is None else truncate_dim, self.config.width
        if not isinstance(dimension, int) or isinstance(dimension, bool) or not 1 <= dimension <= width:
            raise InvalidSetting(f"truncate_dim is {truncate_dim!r}; this model has 1 to {width} dimensions.")
        return dimension

    def _check_finite(self, vectors: np.ndarray) -> None:
        broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if broken.size:
            raise NotFinite(
                f"the vector of text {broken[0]} is not finite (and {broken.size - 1} more); activations overflow "
                f"{self.dtype}: load with dtype='bfloat16' or 'float32'."
            )

    def _default_prompt(self) -> str:
        name = self.settings.default_prompt_name
        return self.settings.prompts.get(name, "") if name else ""

    def _report(self, run: Statistics) -> None:
        if run.truncated:
            logger.warning(
                "%d of %d texts were longer than %d tokens and were truncated",
                run.truncated,
                run.texts,
                self.max_length,
            )
        if run.too_short:
            logger.info("%d of %d texts were shorter than one basket and stay uncalibrated", run.too_short, run.texts)
        logger.info(
            "encoded %d texts, %d tokens, %.1f %% padding, %d shapes, %d compilations, %.1f s",
            run.texts,
            run.tokens,
            100 * run.padding,
            run.shapes,
            run.compilations,
            run.seconds,
        )


def normalised(vectors: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Vectors of length one, in the same directions; zeros stay zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _checked_batch_tokens(batch_tokens: int | None) -> int:
    if batch_tokens is None:
        return _BATCH_TOKENS.get(jax.default_backend(), _BATCH_TOKENS_ACCELERATOR)
    if not isinstance(batch_tokens, int) or isinstance(batch_tokens, bool) or batch_tokens < 1:
        raise InvalidSetting(f"batch_tokens is {batch_tokens!r}; it must be a whole number of at least 1.")
    return batch_tokens
