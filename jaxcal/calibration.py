"""Attention calibration: baskets, target shares and the two-level softmax. This room knows no model.

Let l_k be one row's attention logits over the real tokens k, and b(k) the basket of k. With

    p(k|b) = softmax of l inside basket b           w(b) = softmax over baskets of logsumexp_b(l)

ordinary attention is a_k = w(b) p(k|b), and calibrated attention (arXiv 2606.02737) is

    a'_k = ((1 - strength) w(b) + strength u(b)) p(k|b)          u(b) = target share of basket b.

Written as a + strength (t - a) with the target row t_k = u(b) p(k|b), a strength of zero changes no bit, and nothing is
ever divided by a basket's small mass. Strength and basket size are traced values: new values compile nothing, `vmap`
sweeps them and `grad` passes through the strength.

Axis letters: N texts in a batch, T tokens, H query heads, L layers (L' of them calibrated).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from jaxcal.errors import InvalidCalibration

Pooling = Literal["first", "last", "mean"]
SpecialTokens = Literal["equal", "keep"]

POOLINGS: tuple[Pooling, ...] = ("first", "last", "mean")
SPECIAL_TOKENS: tuple[SpecialTokens, ...] = ("equal", "keep")
_ENDS = frozenset({"first", "last"})


@dataclass(frozen=True, eq=False)
class Calibration:
    """How attention is calibrated: the pooling token's row, in the last layers, towards equal shares per basket.

    A pytree whose leaves are `strength` and `basket_size`, so both can be traced, swept and differentiated.

    Attributes:
        strength: blend between the original row (0) and equal shares (1): a number, or an array [L'] with one value per
            calibrated layer (first calibrated layer first), or [L', H] per layer and query head. (`calibrate_rows`,
            which knows no layers, takes a number or one per head.)
        basket_size: content tokens per basket, at least 1. A text with fewer content tokens stays uncalibrated.
        layers: the calibrated layers, always the last ones: "last-50%" (half of them, rounded down, at least one),
            "last", "all", or a number of layers.
        special_tokens: "equal" gives each isolated special token the share of a basket; "keep" leaves the isolated
            first token its own mass.
        isolate: the ends that stand in baskets of their own, any of {"first", "last"}. None means both for first-token
            and last-token pooling and none for mean pooling.

    Raises:
        InvalidCalibration: if a value has no meaning.
    """

    strength: Any = 0.5
    basket_size: Any = 128
    layers: Any = "last-50%"
    special_tokens: Any = "equal"
    isolate: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", _checked_strength(self.strength))
        object.__setattr__(self, "basket_size", _checked_basket_size(self.basket_size))
        object.__setattr__(self, "layers", _checked_layers(self.layers))
        if self.special_tokens not in SPECIAL_TOKENS:
            raise InvalidCalibration(f"special_tokens is {self.special_tokens!r}; it must be 'equal' or 'keep'.")
        if self.isolate is not None:
            object.__setattr__(self, "isolate", _checked_ends(self.isolate))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Calibration):
            return NotImplemented
        static = (self.layers, self.special_tokens, self.isolate) == (other.layers, other.special_tokens, other.isolate)
        return (
            static
            and np.array_equal(self.strength, other.strength)
            and np.array_equal(self.basket_size, other.basket_size)
        )

    def __hash__(self) -> int:
        return hash((self.layers, self.special_tokens, self.isolate))

    def replace(self, **changes: Any) -> "Calibration":
        """A copy with some fields changed, checked like a new one."""
        return replace(self, **changes)

    def number_of_layers(self, total: int) -> int:
        """How many of a model's `total` layers are calibrated (always the last ones).

        Raises:
            InvalidCalibration: if more layers are asked for than the model has.
        """
        named = {"last-50%": max(1, total // 2), "last": 1, "all": total}
        count = named[self.layers] if isinstance(self.layers, str) else self.layers
        if count > total:
            raise InvalidCalibration(f"layers={self.layers} asks for {count} layers, but the model has {total}.")
        return count

    def isolated(self, pooling: Pooling) -> frozenset[str]:
        """The ends of a text that stand in baskets of their own under this pooling."""
        if self.isolate is not None:
            return frozenset(self.isolate)
        return frozenset() if pooling == "mean" else _ENDS

    def least_tokens(self, pooling: Pooling) -> int:
        """Tokens of the shortest text that an encoder calibrates: one basket, and the isolated ends."""
        return int(self.basket_size) + len(self.isolated(pooling))

    def strengths(self, layers: int, heads: int) -> Float[Array, "{layers} {heads}"]:
        """The strength of every calibrated layer and head, [L', H] in float32.

        Raises:
            InvalidCalibration: if the strength's shape fits neither a number, nor [L'], nor [L', H].
        """
        strength = jnp.asarray(self.strength, jnp.float32)
        if strength.ndim > 2 or strength.shape != (layers, heads)[: strength.ndim]:
            raise InvalidCalibration(
                f"strength has the shape {strength.shape}; for {layers} calibrated layers of {heads} heads it must be "
                f"a number, ({layers},) or ({layers}, {heads})."
            )
        return jnp.broadcast_to(strength.reshape(strength.shape + (1,) * (2 - strength.ndim)), (layers, heads))

    @property
    def is_identity(self) -> bool:
        """Whether every strength is known to be zero, so that nothing at all needs to be calibrated."""
        return not isinstance(self.strength, Tracer) and not np.any(np.asarray(self.strength))


def _flatten(calibration: Calibration) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]:
    key = jax.tree_util.GetAttrKey
    children = ((key("strength"), calibration.strength), (key("basket_size"), calibration.basket_size))
    return children, (calibration.layers, calibration.special_tokens, calibration.isolate)


def _unflatten(static: tuple[Any, ...], leaves: Iterable[Any]) -> Calibration:
    # Built without the checks: JAX passes tracers, None and placeholder objects through here.
    calibration = object.__new__(Calibration)
    for name, value in zip(Calibration.__dataclass_fields__, (*leaves, *static), strict=True):
        object.__setattr__(calibration, name, value)
    return calibration


jax.tree_util.register_pytree_with_keys(Calibration, _flatten, _unflatten)


def _checked_strength(strength: Any) -> Any:
    if isinstance(strength, Tracer):
        return strength
    try:
        values = np.asarray(strength)
    except (TypeError, ValueError):
        values = np.asarray("not numbers")
    if values.dtype.kind not in "fiu" and values.dtype != jnp.bfloat16:
        raise InvalidCalibration(f"strength is {strength!r}; it must be a number in [0, 1], or an array of them.")
    numbers = values.astype(np.float64)
    if not np.all((numbers >= 0) & (numbers <= 1)):
        raise InvalidCalibration(f"strength is {strength!r}; every value must lie in [0, 1].")
    if isinstance(strength, list | tuple):
        return numbers.astype(np.float32)
    return float(strength) if values.ndim == 0 and not isinstance(strength, jax.Array) else strength


def _checked_basket_size(basket_size: Any) -> Any:
    if isinstance(basket_size, Tracer):
        return basket_size
    is_number = np.isscalar(basket_size) or isinstance(basket_size, np.ndarray | jax.Array)
    values = np.asarray(basket_size) if is_number else np.asarray(None)
    if values.dtype.kind not in "fiu" or values.ndim or values != np.floor(values) or not 1 <= values < 2**31:
        raise InvalidCalibration(f"basket_size is {basket_size!r}; it must be a whole number of tokens, at least 1.")
    return basket_size if isinstance(basket_size, jax.Array) else int(values)


def _checked_ends(isolate: Any) -> frozenset[str]:
    ends = {isolate} if isinstance(isolate, str) else isolate
    if not isinstance(ends, Iterable) or not all(end in ("first", "last") for end in ends):
        raise InvalidCalibration(f"isolate is {isolate!r}; it may hold 'first' and 'last' only, or be None.")
    return frozenset(ends)


def _checked_layers(layers: Any) -> str | int:
    if isinstance(layers, str) and layers in ("last-50%", "last", "all"):
        return layers
    if isinstance(layers, int | np.integer) and not isinstance(layers, bool) and layers >= 1:
        return int(layers)
    raise InvalidCalibration(f"layers is {layers!r}; it must be 'last-50%', 'last', 'all' or a number of at least 1.")


class Baskets(NamedTuple):
    """How the tokens of each text fall into baskets; an isolated token is a basket of its own.

    Baskets are numbered along the text, so `ids` never falls; padding carries the number of its neighbour and no mass.
    """

    ids: Int[Array, "*n t"]
    ends: Int[Array, "*n t"]  # where the token's own basket ends
    mask: Bool[Array, "*n t"]
    first: Bool[Array, "*n t"]  # the isolated first token
    last: Bool[Array, "*n t"]  # the isolated last token
    contents: Int[Array, "*n 1"]  # number of baskets that hold content


def lay_baskets(
    mask: Bool[Array, "*n t"], basket_size: Int[Array, ""] | int, isolate: frozenset[str] = frozenset()
) -> Baskets:
    """Cut the real tokens of each text into consecutive baskets of `basket_size` tokens, special tokens apart.

    Padding is removed before baskets are laid, so either padding side gives the same baskets, and a partial last basket
    is a basket.

    Args:
        mask: real tokens, [..., T].
        basket_size: tokens per content basket; may be traced.
        isolate: ends that get baskets of their own, any of {"first", "last"}; static.
    """
    leading, trailing = int("first" in isolate), int("last" in isolate)
    order = jnp.cumsum(mask, axis=-1, dtype=jnp.int32) - 1
    length = order[..., -1:] + 1
    contents = -(-jnp.maximum(length - leading - trailing, 0) // basket_size)
    first = mask & (order == 0) & bool(leading)
    # Right padding shares the last token's order and so its basket; left padding has order -1 and joins the first.
    is_tail = (order == length - 1) & (length > leading) & bool(trailing)
    last = mask & is_tail
    ids = jnp.where(order < leading, 0, leading + (order - leading) // basket_size)
    ids = jnp.where(is_tail, leading + contents, jnp.maximum(ids, 0)).astype(jnp.int32)
    positions = jnp.arange(mask.shape[-1], dtype=jnp.int32)
    closes = jnp.concatenate([ids[..., 1:] != ids[..., :-1], jnp.ones_like(mask[..., :1])], axis=-1)
    ends = jax.lax.cummin(jnp.where(closes, positions, mask.shape[-1]), axis=ids.ndim - 1, reverse=True)
    return Baskets(ids, ends, mask, first, last, contents)


def basket_softmax(
    logits: Float[Array, "*r t"], ids: Int[Array, "*#r t"], ends: Int[Array, "*#r t"]
) -> Float[Array, "*r t"]:
    """For every token, its share p(k|b) of its own basket: the softmax of the logits inside each basket.

    Baskets are runs, so log2 T doubling steps along the tokens sum all of them, however many there are: the program
    depends neither on the basket size nor on a bound on the number of baskets, and holds no scatter. Peaks are taken
    off before anything is summed, so logits of any size keep full precision.

    Args:
        logits: [..., T] in float32 or float64; -inf carries no mass, and a basket of nothing else gives zeros.
        ids: basket of each token, never falling, broadcastable to the logits.
        ends: where each token's basket ends, likewise.
    """
    at = jnp.broadcast_to(ends, logits.shape)
    peaks = jnp.take_along_axis(_run(jnp.maximum, jax.lax.stop_gradient(logits), ids, -jnp.inf), at, axis=-1)
    weights = jnp.exp(logits - jnp.where(peaks > -jnp.inf, peaks, 0.0))
    sums = jnp.take_along_axis(_run(jnp.add, weights, ids, 0.0), at, axis=-1)
    return weights / jnp.where(sums > 0, sums, 1.0)


def _run(combine: Callable[[Array, Array], Array], values: Array, ids: Array, neutral: float) -> Array:
    """Combine every value with those before it in its own basket."""
    length = values.shape[-1]

    def shifted(array: Array, step: Array, fill: float | int) -> Array:
        before = jnp.full_like(array, fill)
        return jax.lax.dynamic_slice_in_dim(jnp.concatenate([before, array], -1), length - step, length, axis=-1)

    def double(exponent: Array, values: Array) -> Array:
        step = jnp.left_shift(1, exponent)
        # Baskets are runs: the same number at both ends means the same number all the way.
        return combine(values, jnp.where(shifted(ids, step, -1) == ids, shifted(values, step, neutral), neutral))

    return jax.lax.fori_loop(0, (length - 1).bit_length(), double, values)


def target_shares(
    own_first: Float[Array, "*r 1"],
    first: Bool[Array, "*#r t"],
    last: Bool[Array, "*#r t"],
    contents: Int[Array, "*#r 1"],
    special_tokens: SpecialTokens,
) -> Float[Array, "*r t"]:
    """The target share u(b(k)) of every token's basket, [..., T]; `own_first` is the first token's own mass, [..., 1].

    Under "keep" the isolated first token keeps that mass, an isolated last token gets 1/n, and the content baskets
    share the rest; where nothing is left they get zero.
    """
    has_first = jnp.any(first, axis=-1, keepdims=True)
    has_last = jnp.any(last, axis=-1, keepdims=True)
    equal = 1.0 / jnp.maximum(contents + has_first + has_last, 1).astype(own_first.dtype)
    if special_tokens == "equal":
        return jnp.broadcast_to(equal, jnp.broadcast_shapes(own_first.shape, first.shape))
    kept = jnp.where(has_first, own_first, 0.0)
    rest = jnp.maximum(1.0 - kept - jnp.where(has_last, equal, 0.0), 0.0)
    content = jnp.where(has_first, rest / jnp.maximum(contents, 1), equal)
    return jnp.where(first, kept, jnp.where(last, equal, content))


def target_row(
    logits: Float[Array, "*r t"], baskets: Baskets, special_tokens: SpecialTokens = "equal"
) -> Float[Array, "*r t"]:
    """The fully calibrated attention row t_k = u(b) p(k|b), which sums to one.

    Args:
        logits: attention logits of one row per leading index, [..., T], in float32 or wider; padding is ignored.
        baskets: the layout, broadcastable to the logits.
        special_tokens: "equal" or "keep"; static.
    """
    logits = jnp.where(baskets.mask, logits, -jnp.inf)
    inside = basket_softmax(logits, baskets.ids, baskets.ends)
    # A row that sees nothing (padding at the left of a causal model) has no softmax; zero logits keep it finite.
    seen = logits > -jnp.inf
    plain = jax.nn.softmax(jnp.where(jnp.any(seen, axis=-1, keepdims=True), logits, 0.0), axis=-1)
    own_first = jnp.sum(jnp.where(baskets.first & seen, plain, 0.0), axis=-1, keepdims=True)
    row = inside * target_shares(own_first, baskets.first, baskets.last, baskets.contents, special_tokens)
    # Shares of baskets without mass, and those above one under "keep", leave a sum that is not one.
    total = jnp.sum(row, axis=-1, keepdims=True)
    return row / jnp.where(total > 0, total, 1.0)


def calibrate_rows(
    attention: Float[Array | np.ndarray, "n h *q t"],
    mask: Bool[Array | np.ndarray, "n t"] | Int[Array | np.ndarray, "n t"],
    calibration: Calibration,
    pooling: str = "first",
) -> Float[Array, "n h *q t"]:
    """Calibrate softmax rows that are already at hand (arXiv 2606.02737).

    Args:
        attention: for first-token and last-token pooling the pooling token's row, [N, H, T]; for mean pooling all rows,
            [N, H, T, T], of which those of real tokens are edited.
        mask: real tokens, [N, T]; padding may stand on either side.
        calibration: strength (a number, or one per head), basket size, special tokens and isolation count here; the
            choice of layers does not.
        pooling: "first", "last" or "mean".

    Returns:
        Rows of the same shape, with zeros on padding columns; in the attention's type, or float32 for float64 where JAX
        does not have it enabled.

    Raises:
        InvalidCalibration: if the pooling is unknown, the attention is not floating point, or the shapes of attention,
            mask and strength do not belong together.
    """
    if pooling not in POOLINGS:
        raise InvalidCalibration(f"pooling is {pooling!r}; it must be 'first', 'last' or 'mean'.")
    attention, mask = jnp.asarray(attention), jnp.asarray(mask).astype(bool)
    if not jnp.issubdtype(attention.dtype, jnp.floating):
        raise InvalidCalibration(f"attention is of the type {attention.dtype}; softmax rows are floating point.")
    if mask.ndim != 2:
        raise InvalidCalibration(f"mask has the shape {mask.shape}; it must be [texts, tokens].")
    n, t = mask.shape
    expected = (n, *attention.shape[1:2], *((t,) if pooling == "mean" else ()), t)
    if attention.ndim < 3 or attention.shape != expected:
        raise InvalidCalibration(f"attention has the shape {attention.shape}; with this mask it must be {expected}.")
    if np.shape(calibration.strength) not in ((), attention.shape[1:2]):
        raise InvalidCalibration(
            f"strength has the shape {np.shape(calibration.strength)}; for rows it is a number or one per head."
        )
    return _calibrate_rows(attention, mask, calibration, pooling)


@partial(jax.jit, static_argnames="pooling")
def _calibrate_rows(attention: Array, mask: Array, calibration: Calibration, pooling: Pooling) -> Array:
    row_axes = tuple(range(1, attention.ndim - 1))
    baskets = lay_baskets(mask, calibration.basket_size, calibration.isolated(pooling))
    baskets = Baskets(*(jnp.expand_dims(part, row_axes) for part in baskets))
    rows = jnp.where(baskets.mask, attention, 0).astype(jnp.promote_types(attention.dtype, jnp.float32))
    target = target_row(jnp.log(rows), baskets, calibration.special_tokens)
    strength = jnp.asarray(calibration.strength, rows.dtype)
    strength = strength.reshape(strength.shape + (1,) * (attention.ndim - 2))
    blended = (rows + strength * (target - rows)).astype(attention.dtype)
    if pooling == "mean":
        return jnp.where(mask[:, None, :, None], blended, attention)
    return blended
