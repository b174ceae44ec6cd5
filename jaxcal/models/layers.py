"""What the families share: the parts of a layer, rotary positions, and the contract the stack relies on.

Axis letters: N texts in a batch, T tokens, D model width, F feed-forward width, H query heads, G key/value heads,
K head width, L layers.

Modules only declare weights and the arithmetic around them; attention itself is a pure function between a layer's
`query`/`key_value` and its `finish`, which is where calibration enters.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxcal.models.config import EncoderConfig


class Angles(NamedTuple):
    """Cosines and sines of the rotary angles, float32."""

    cos: Float[Array, "t k"]
    sin: Float[Array, "t k"]


@runtime_checkable
class Layer(Protocol):
    """One transformer block, cut open at the attention."""

    def prepare(self, x: Array) -> Array:
        """What the projections read, [N, T, D]: the input itself, or its norm in pre-norm families."""
        ...

    def query(self, h: Array, angles: Angles | None) -> Array:
        """Queries, [N, T, H, K], scaled and rotated."""
        ...

    def key_value(self, h: Array, angles: Angles | None) -> tuple[Array, Array]:
        """Keys and values, each [N, T, G, K]."""
        ...

    def finish(self, x: Array, attended: Array) -> Array:
        """Output projection, feed-forward, residuals and norms: [N, T, D] and [N, T, H, K] to [N, T, D]."""
        ...


@runtime_checkable
class Model(Protocol):
    """A family's encoder: embeddings, stacked layers, final norm. Row i of every weight in `layers` is layer i."""

    config: EncoderConfig
    layers: Layer

    def embed(self, tokens: Array, mask: Array) -> Array:
        """Token ids [N, T] to the first layer's input [N, T, D]."""
        ...

    def angles(self, length: int) -> Angles | None:
        """Rotary angles of positions 0..length-1, or None."""
        ...

    def normalise(self, x: Array) -> Array:
        """The norm after the last layer; the identity in post-norm families."""
        ...


def linear(inputs: int, outputs: int, *, bias: bool, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.Linear:
    """A projection that computes in its weights' type."""
    return nnx.Linear(inputs, outputs, use_bias=bias, dtype=dtype, param_dtype=dtype, rngs=rngs)


def layer_norm(width: int, eps: float, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """A layer norm with float32 weights; the exact variance, as eps 1e-12 leaves no room for cancellation."""
    return nnx.LayerNorm(width, epsilon=eps, use_fast_variance=False, dtype=jnp.float32, rngs=rngs)


def rms_norm(width: int, eps: float, rngs: nnx.Rngs) -> nnx.RMSNorm:
    """A root-mean-square norm with float32 weights."""
    return nnx.RMSNorm(width, epsilon=eps, use_fast_variance=False, dtype=jnp.float32, rngs=rngs)


def embedding(rows: int, width: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.Embed:
    """A lookup table."""
    return nnx.Embed(rows, width, dtype=dtype, param_dtype=dtype, rngs=rngs)


def split_heads(x: Float[Array, "n t hk"], heads: int) -> Float[Array, "n t {heads} k"]:
    """[N, T, H K] to [N, T, H, K]."""
    return x.reshape(*x.shape[:-1], heads, -1)


def merge_heads(x: Float[Array, "n t h k"]) -> Float[Array, "n t hk"]:
    """[N, T, H, K] to [N, T, H K]."""
    return x.reshape(*x.shape[:-2], -1)


def rotary_angles(config: EncoderConfig, length: int) -> Angles:
    """Angles of positions 0..length-1 for the rotate-half form, [T, K] in float32.

    Only differences of positions matter to attention, so a left-padded text may start anywhere.
    """
    assert config.rope is not None
    steps = jnp.arange(length, dtype=jnp.float32)[:, None] * config.rope.frequencies(config.head_width)
    angles = jnp.concatenate([steps, steps], axis=-1)
    return Angles(jnp.cos(angles), jnp.sin(angles))


def rotate(x: Float[Array, "n t h k"], angles: Angles) -> Float[Array, "n t h k"]:
    """Turn each pair (i, i + K/2) of every head by its position's angle, in float32."""
    cos, sin = (part[..., None, :] for part in angles)
    wide = x.astype(jnp.float32)
    low, high = jnp.split(wide, 2, axis=-1)
    return (wide * cos + jnp.concatenate([-high, low], axis=-1) * sin).astype(x.dtype)


def positions(mask: Bool[Array, "n t"]) -> Int[Array, "n t"]:
    """The number of each real token in its text, [N, T], from zero on either padding side; padding repeats a number."""
    return jnp.maximum(jnp.cumsum(mask, axis=-1, dtype=jnp.int32) - 1, 0)


def stacked(make_layer, layers: int, rngs: nnx.Rngs):
    """`layers` copies of a layer with a leading layer axis on every weight."""
    return jax.vmap(lambda key: make_layer(nnx.Rngs(key)))(jax.random.split(rngs.params(), layers))
