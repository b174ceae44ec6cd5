"""The forward pass, the same for every family: prefix layers, calibrated layers, and the last layer for the pooled row
only.

With first-token and last-token pooling nothing but the pooled row of the last layer is ever read, so that layer
computes keys and values for all tokens but a single query, output projection and feed-forward row. That holds without
calibration.

Layers are stacked and scanned over their number: the scan indexes the whole stack, so no part of the weights is copied
to split it. Axis letters as in `layers.py`; L' calibrated layers.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcal.attention import attend, attend_calibrated, attend_row, calibrated_row
from jaxcal.calibration import Baskets, Calibration, Pooling, lay_baskets
from jaxcal.models.layers import Angles, Layer, Model


class _Batch(NamedTuple):
    """What every layer of one forward pass shares."""

    mask: Bool[Array, "n t"]
    pooled: Int[Array, " n"] | None  # position of the pooling token; None for mean pooling
    visible: Bool[Array, "n t"]  # keys the pooling token may read
    angles: Angles | None
    causal: bool


@dataclass(frozen=True)
class _Calibrated:
    """A calibration laid over one batch; the strength is zero where a text is too short to be calibrated."""

    calibration: Calibration
    first_layer: int
    strength: Float[Array, "l n h"]
    baskets: Baskets

    @classmethod
    def over(cls, mask: Array, calibration: Calibration, pooling: Pooling, layers: int, heads: int) -> "_Calibrated":
        count = calibration.number_of_layers(layers)
        isolate = calibration.isolated(pooling)
        # Texts with less content than one basket are encoded as if there were no calibration (arXiv 2606.02737).
        enough = jnp.sum(mask, axis=1) - len(isolate) >= calibration.basket_size
        strength = calibration.strengths(count, heads)[:, None, :] * enough[None, :, None]
        return cls(calibration, layers - count, strength, lay_baskets(mask, calibration.basket_size, isolate))

    def strength_of(self, layer: Array | int) -> Float[Array, "n h"]:
        """The strength of each text and head in a calibrated layer, by the layer's number in the model."""
        return self.strength[layer - self.first_layer]


def pooled_position(mask: Bool[Array, "n t"], pooling: Pooling) -> Int[Array, " n"]:
    """Where the pooling token stands: the first or the last real token, on either padding side, [N]."""
    if pooling == "last":
        return mask.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)
    return jnp.argmax(mask, axis=1)


def forward(
    model: Model,
    tokens: Int[Array, "n t"],
    mask: Bool[Array, "n t"],
    pooling: Pooling,
    calibration: Calibration | None = None,
) -> Float[Array, "n d"]:
    """Token ids to pooled vectors, not normalised, float32.

    Args:
        model: a family's module.
        tokens: token ids, [N, T], padding on either side.
        mask: real tokens, [N, T].
        pooling: which rows make the vector; static.
        calibration: None for the model as published. Its strength and basket size may be traced.

    Raises:
        InvalidCalibration: if it asks for more layers than the model has, or its strength has the wrong shape.
    """
    config, by_row = model.config, pooling != "mean"
    position = pooled_position(mask, pooling) if by_row else None
    visible = mask
    if config.causal and position is not None:
        visible = mask & (jnp.arange(mask.shape[1]) <= position[:, None])
    batch = _Batch(mask, position, visible, model.angles(mask.shape[1]), config.causal)
    calibrated, first = None, config.layers
    if calibration is not None:
        calibrated = _Calibrated.over(mask, calibration, pooling, config.layers, config.heads)
        first = calibrated.first_layer
    full_layers = config.layers - 1 if by_row else config.layers

    x = model.embed(tokens, mask)
    x = _scan(model.layers, x, batch, 0, min(first, full_layers), None)
    x = _scan(model.layers, x, batch, min(first, full_layers), full_layers, calibrated)
    if by_row:
        row = _last_row(_layer(model.layers, full_layers), x, batch, calibrated, full_layers)
        return model.normalise(row).astype(jnp.float32)
    real = mask[..., None].astype(jnp.float32)
    summed = jnp.sum(model.normalise(x).astype(jnp.float32) * real, axis=1)
    return summed / jnp.maximum(jnp.sum(real, axis=1), 1.0)


def _layer(layers: Layer, number: Array | int) -> Layer:
    return jax.tree.map(lambda weight: weight[number], layers)


def _scan(
    layers: Layer, x: Array, batch: _Batch, start: int, stop: int, calibrated: _Calibrated | None
) -> Float[Array, "n t d"]:
    if start == stop:
        return x

    def step(x: Array, number: Array) -> tuple[Array, None]:
        layer = _layer(layers, number)
        h = layer.prepare(x)
        q = layer.query(h, batch.angles)
        k, v = layer.key_value(h, batch.angles)
        return layer.finish(x, _attend_all(q, k, v, batch, calibrated, number)), None

    return jax.lax.scan(step, x, jnp.arange(start, stop, dtype=jnp.int32))[0]


def _attend_all(
    q: Array, k: Array, v: Array, batch: _Batch, calibrated: _Calibrated | None, number: Array
) -> Float[Array, "n t h k"]:
    """Attention of all rows; where calibrated, the pooled row (or every row, for mean pooling) is edited."""
    if calibrated is None:
        return attend(q, k, v, batch.mask, causal=batch.causal)
    if batch.pooled is None:
        return attend_calibrated(
            q,
            k,
            v,
            batch.mask,
            calibrated.baskets,
            calibrated.strength_of(number),
            calibrated.calibration.special_tokens,
            calibrated.calibration.basket_size,
            causal=batch.causal,
        )
    attended = attend(q, k, v, batch.mask, causal=batch.causal)
    at = (jnp.arange(q.shape[0]), batch.pooled)
    row = _edit_row(attended[at], q[at], k, v, batch, calibrated, number)
    is_pooled = jnp.arange(q.shape[1]) == batch.pooled[:, None]
    return jnp.where(is_pooled[..., None, None], row[:, None], attended)


def _last_row(
    layer: Layer, x: Array, batch: _Batch, calibrated: _Calibrated | None, number: int
) -> Float[Array, "n d"]:
    """The last layer's pooled row, [N, D]: keys and values of all tokens, everything else for one token."""
    row = x[jnp.arange(x.shape[0]), batch.pooled][:, None]
    angles = batch.angles and Angles(*(part[batch.pooled][:, None] for part in batch.angles))
    k, v = layer.key_value(layer.prepare(x), batch.angles)
    q = layer.query(layer.prepare(row), angles)[:, 0]
    attended = attend_row(q, k, v, batch.visible)
    if calibrated is not None:
        attended = _edit_row(attended, q, k, v, batch, calibrated, number)
    return layer.finish(row, attended[:, None])[:, 0]


def _edit_row(
    plain: Array, q: Array, k: Array, v: Array, batch: _Batch, calibrated: _Calibrated, number: Array | int
) -> Float[Array, "n h k"]:
    return calibrated_row(
        plain,
        q,
        k,
        v,
        batch.visible,
        calibrated.baskets,
        calibrated.strength_of(number),
        calibrated.calibration.special_tokens,
    )
