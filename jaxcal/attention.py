"""Attention over all rows, and exactly over one: the place where calibration enters a forward pass.

First-token and last-token pooling edit the pooling token's row alone, so all rows run through the plain kernel and the
one row is computed beside it, at O(T) cost per head. Mean pooling edits every row, block by block. Softmax and
calibration are float32 whatever the compute type, and no [T, T] array is ever formed for more than one block of rows.

Axis letters: N texts, T tokens, H query heads, G key/value heads, K head width; R rows of one block, J blocks of keys.
Queries arrive scaled. Query head h reads key/value head h // (H / G).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcal.calibration import Baskets, SpecialTokens, target_row, target_shares

# Scores held at once per key/value head, in numbers: 1 MiB of float32 stays in a core's cache.
_CPU_BLOCK = 2**18
# On accelerators a block spans all texts and heads; this bounds the rows of one block.
_ACCELERATOR_ROWS = 512
# Baskets of fewer tokens than this are calibrated key by key, which is slower.
_SHORT_BASKET = 32
# A basket's mass, relative to the row's largest weight, below which float32 would lose its proportions.
_FAINT = 1e-30

# Scores [N, G, R, T] of some texts and key/value heads, and their numbers; to weights and their sums [N, G, R, 1].
_Weigh = Callable[[Array, Array, Array], tuple[Array, Array]]


def attend(
    q: Float[Array, "n t h k"],
    k: Float[Array, "n t g k"],
    v: Float[Array, "n t g k"],
    mask: Bool[Array, "n t"],
    *,
    causal: bool,
) -> Float[Array, "n t h k"]:
    """Ordinary attention for all rows, [N, T, H, K].

    Rows without a single visible key (an empty text, or left padding under a causal mask) give zeros.
    """
    return _blockwise(q, k, v, mask, causal, lambda scores, texts, heads: _softmax_weights(scores))


def attend_row(
    q: Float[Array, "n h k"],
    k: Float[Array, "n t g k"],
    v: Float[Array, "n t g k"],
    visible: Bool[Array, "n t"],
) -> Float[Array, "n h k"]:
    """Ordinary attention for one row per text, [N, H, K]; `visible` marks the keys that row may read."""
    weights, sums = _softmax_weights(_row_scores(q, k, visible))
    return _row_values(weights / sums, v).astype(v.dtype)


def calibrated_row(
    plain: Float[Array, "n h k"],
    q: Float[Array, "n h k"],
    k: Float[Array, "n t g k"],
    v: Float[Array, "n t g k"],
    visible: Bool[Array, "n t"],
    baskets: Baskets,
    strength: Float[Array, "n h"],
    special_tokens: SpecialTokens,
) -> Float[Array, "n h k"]:
    """Blend a row's plain output with its fully calibrated one: plain + strength (target - plain), [N, H, K].

    Strength zero returns `plain` bit for bit.
    """
    target = target_row(_row_scores(q, k, visible), _over_heads(baskets), special_tokens)
    own = plain.astype(jnp.float32)
    return (own + strength[..., None] * (_row_values(target, v) - own)).astype(plain.dtype)


def attend_calibrated(
    q: Float[Array, "n t h k"],
    k: Float[Array, "n t g k"],
    v: Float[Array, "n t g k"],
    mask: Bool[Array, "n t"],
    baskets: Baskets,
    strength: Float[Array, "n h"],
    special_tokens: SpecialTokens,
    basket_size: Int[Array, ""] | int,
    *,
    causal: bool,
) -> Float[Array, "n t h k"]:
    """Attention with every row calibrated (mean pooling), [N, T, H, K]: each softmax row blended with its target."""
    (n, t, h, _), g = q.shape, k.shape[2]
    strength = strength.reshape(n, g, h // g)
    columns = _columns(baskets, -(-t // _SHORT_BASKET) + 2)  # two isolated ends, and a partial last basket

    def weigh(scores: Array, texts: Array, heads: Array) -> tuple[Array, Array]:
        rows = scores.shape[2] // (h // g)
        shares = jnp.repeat(strength[texts][:, heads], rows, axis=-1)[..., None]
        own = jax.tree.map(lambda part: part[texts], columns)
        plain, sums = _softmax_weights(scores)
        masses = _sum_columns(plain, own.members)

        def by_columns() -> Array:
            return plain * _spread_columns(_column_scale(masses, sums, own, shares, special_tokens), own.members)

        def by_keys() -> Array:
            target = target_row(scores, Baskets(*(part[texts][:, None, None] for part in baskets)), special_tokens)
            return plain / sums + shares * (target - plain / sums)

        # exp(score - peak) says nothing about a basket whose best score lies far below the row's peak. One answer for
        # the whole block, as a branch per head would run both branches for all of them.
        sound = jnp.all((masses > _FAINT) | ~_sees(scores, own.members, causal))
        weights = jax.lax.cond(sound & (basket_size >= _SHORT_BASKET), by_columns, by_keys)
        return weights, jnp.ones_like(sums)

    return _blockwise(q, k, v, mask, causal, weigh)


class _Columns(NamedTuple):
    """Baskets as the columns of a matrix, so that their masses are a matrix product; S columns bound their number."""

    members: Float[Array, "n t s"]  # one where a token lies in a basket
    first: Bool[Array, "n 1 1 s"]
    last: Bool[Array, "n 1 1 s"]
    contents: Int[Array, "n 1 1 1"]


def _columns(baskets: Baskets, bound: int) -> _Columns:
    members = (baskets.ids[..., None] == jnp.arange(bound)) & baskets.mask[..., None]

    def holds(flags: Array) -> Array:
        own = jnp.max(jnp.where(flags, baskets.ids, -1), axis=1, keepdims=True)
        return (own == jnp.arange(bound))[:, None, None]

    contents = baskets.contents[:, None, None]
    return _Columns(members.astype(jnp.float32), holds(baskets.first), holds(baskets.last), contents)


def _column_scale(
    masses: Float[Array, "n g r s"],
    sums: Float[Array, "n g r 1"],
    columns: _Columns,
    strength: Float[Array, "n g r 1"],
    special_tokens: SpecialTokens,
) -> Float[Array, "n g r s"]:
    """What turns exp(score - peak) into calibrated weights: (1 - strength) / sum + strength u(b) / mass(b)."""
    own_first = jnp.sum(jnp.where(columns.first, masses, 0.0), axis=-1, keepdims=True) / sums
    shares = target_shares(own_first, columns.first, columns.last, columns.contents, special_tokens)
    shares = jnp.where(masses > 0, shares, 0.0)
    shares = shares / jnp.maximum(jnp.sum(shares, axis=-1, keepdims=True), _FAINT)
    return 1 / sums + strength * (shares / jnp.where(masses > 0, masses, 1.0) - 1 / sums)


def _sees(scores: Float[Array, "n g r t"], members: Float[Array, "n t s"], causal: bool) -> Bool[Array, "n #g #r s"]:
    """Which baskets hold a key that a row may read; without a causal mask the same for all rows."""
    if not causal:
        return jnp.any(members > 0, axis=1)[:, None, None]
    return _sum_columns((scores > -jnp.inf).astype(jnp.float32), members) > 0


# Products with ones and zeros, in full float32, so that they only add and select.


def _sum_columns(keys: Float[Array, "n g r t"], members: Float[Array, "n t s"]) -> Float[Array, "n g r s"]:
    return jnp.einsum("ngrt,nts->ngrs", keys, members, precision=jax.lax.Precision.HIGHEST)


def _spread_columns(columns: Float[Array, "n g r s"], members: Float[Array, "n t s"]) -> Float[Array, "n g r t"]:
    return jnp.einsum("ngrs,nts->ngrt", columns, members, precision=jax.lax.Precision.HIGHEST)


def _safe(logs: Array) -> Array:
    """Logarithms of masses with zero mass moved to zero, so that differences stay defined; callers mask those."""
    return jnp.where(logs > -jnp.inf, logs, 0.0)


def _over_heads(baskets: Baskets) -> Baskets:
    return Baskets(*(part[:, None, :] for part in baskets))


def _grouped(q: Float[Array, "n h k"], g: int) -> Float[Array, "n {g} r k"]:
    n, h, width = q.shape
    return q.reshape(n, g, h // g, width)


# One row costs O(T), so its products are full float32 whatever the compute type: a rounded row would not sum to one.


def _row_scores(
    q: Float[Array, "n h k"], k: Float[Array, "n t g k"], visible: Bool[Array, "n t"]
) -> Float[Array, "n h t"]:
    q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    scores = jnp.einsum("ngrk,ntgk->ngrt", _grouped(q, k.shape[2]), k, precision=jax.lax.Precision.HIGHEST)
    return jnp.where(visible[:, None, :], scores.reshape(*q.shape[:2], -1), -jnp.inf)


def _row_values(weights: Float[Array, "n h t"], v: Float[Array, "n t g k"]) -> Float[Array, "n h k"]:
    grouped = _grouped(weights, v.shape[2])
    out = jnp.einsum("ngrt,ntgk->ngrk", grouped, v.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
    return out.reshape(*weights.shape[:2], -1)


def _softmax_weights(scores: Float[Array, "*r t"]) -> tuple[Float[Array, "*r t"], Float[Array, "*r 1"]]:
    """exp(scores - peak) and its sum; a row of -inf gives zeros and one."""
    peak = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - _safe(peak))
    sums = jnp.sum(weights, axis=-1, keepdims=True)
    return weights, jnp.where(sums > 0, sums, 1.0)


def _blockwise(q: Array, k: Array, v: Array, mask: Array, causal: bool, weigh: _Weigh) -> Float[Array, "n t h k"]:
    """Attention in blocks of rows, laid out for the platform the program is lowered for."""

    def cpu(q: Array, k: Array, v: Array, mask: Array) -> Array:
        rows = max(_CPU_BLOCK // q.shape[1] // (q.shape[2] // k.shape[2]), 16)
        return _map_heads(q, k, v, mask, causal, weigh, rows, one_by_one=True)

    def accelerator(q: Array, k: Array, v: Array, mask: Array) -> Array:
        return _map_heads(q, k, v, mask, causal, weigh, _ACCELERATOR_ROWS, one_by_one=False)

    return jax.lax.platform_dependent(q, k, v, mask, cpu=cpu, default=accelerator)


def _map_heads(
    q: Array, k: Array, v: Array, mask: Array, causal: bool, weigh: _Weigh, rows: int, one_by_one: bool
) -> Array:
    """Loop over blocks of `rows` query tokens and, where `one_by_one`, over texts and key/value heads."""
    (n, t, h, width), g = q.shape, k.shape[2]
    count = -(-t // rows)
    rows = -(-t // count)
    q = jnp.pad(q, ((0, 0), (0, count * rows - t), (0, 0), (0, 0)))
    # Queries of the heads that share a key/value head stand side by side: [N, G, blocks, H/G rows, K].
    q = q.reshape(n, count, rows, g, h // g, width).transpose(0, 3, 1, 4, 2, 5).reshape(n, g, count, -1, width)
    k, v = (x.transpose(0, 2, 1, 3) for x in (k, v))

    def attend_block(number: Array, q: Array, k: Array, v: Array, texts: Array, heads: Array) -> Array:
        scores = jnp.einsum("ngrk,ngtk->ngrt", q, k, preferred_element_type=jnp.float32)
        visible = mask[texts][:, None, None, :]
        if causal:
            row = number * rows + jnp.arange(q.shape[2]) % rows
            visible = visible & (jnp.arange(t) <= row[:, None])
        weights, sums = weigh(jnp.where(visible, scores, -jnp.inf), texts, heads)
        out = jnp.einsum("ngrt,ngtk->ngrk", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        return (out / sums).astype(v.dtype)

    def attend_blocks(q: Array, k: Array, v: Array, texts: Array, heads: Array) -> Array:
        if count == 1:
            return attend_block(jnp.int32(0), q[:, :, 0], k, v, texts, heads)[:, :, None]
        blocks = (jnp.arange(count, dtype=jnp.int32), jnp.moveaxis(q, 2, 0))
        out = jax.lax.map(lambda block: attend_block(block[0], block[1], k, v, texts, heads), blocks)
        return jnp.moveaxis(out, 0, 2)

    def attend_head(head: tuple[Array, Array, Array, Array]) -> Array:
        number, (q, k, v) = head[0], (x[None, None] for x in head[1:])
        return attend_blocks(q, k, v, (number // g)[None], (number % g)[None])[0, 0]

    if one_by_one:
        flat = (x.reshape(n * g, *x.shape[2:]) for x in (q, k, v))
        out = jax.lax.map(attend_head, (jnp.arange(n * g, dtype=jnp.int32), *flat))
    else:
        out = attend_blocks(q, k, v, jnp.arange(n), jnp.arange(g))
    out = out.reshape(n, g, count, h // g, rows, width).transpose(0, 2, 4, 1, 3, 5)
    return out.reshape(n, count * rows, h, width)[:, :t]
