"""Qwen3-Embedding encoders: a causal pre-norm decoder with grouped-query attention and norms on queries and keys.

Source: arXiv 2505.09388 (Qwen3), arXiv 2506.05176 (Qwen3-Embedding). The model is headless: tied or untied output
embeddings play no part in a text's vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxcal.errors import UnsupportedCheckpoint
from jaxcal.models.config import ConfigReader, EncoderConfig, read_rope
from jaxcal.models.layers import (
    Angles,
    embedding,
    linear,
    merge_heads,
    rms_norm,
    rotary_angles,
    rotate,
    split_heads,
    stacked,
)
from jaxcal.models.rules import Rule, Rules, norm, projection

PREFIXES = ("", "model.")
_FIXED = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "use_sliding_window": (False,),
}
# Without a sliding window these two say nothing.
_HARMLESS = ("sliding_window", "max_window_layers")


@dataclass(frozen=True)
class Qwen3Config(EncoderConfig):
    """A Qwen3 shape; H K need not equal D."""


def read_config(raw: Mapping[str, Any]) -> Qwen3Config:
    """The configuration of a `qwen3` checkpoint.

    Raises:
        UnsupportedCheckpoint: if a field asks for what the port does not implement.
    """
    fields = ConfigReader(raw, "qwen3")
    heads = fields.integer("num_attention_heads", 32)
    # A missing field means 32, but null means one key head per query head.
    kv_heads = fields.integer("num_key_value_heads", heads if "num_key_value_heads" in raw else 32)
    if heads % kv_heads:
        raise UnsupportedCheckpoint(
            f"config.json has num_attention_heads = {heads}, which num_key_value_heads = {kv_heads} does not divide."
        )
    layers = fields.integer("num_hidden_layers", 32)
    full = ["full_attention"] * layers
    kinds = fields.value("layer_types", full)
    if kinds != full:
        raise UnsupportedCheckpoint(
            f"config.json has layer_types = {kinds}; implemented: full_attention for all num_hidden_layers = {layers}."
        )
    head_width = fields.integer("head_dim", 128)
    config = Qwen3Config(
        vocab_size=fields.integer("vocab_size", 151936),
        width=fields.integer("hidden_size", 4096),
        feed_forward=fields.integer("intermediate_size", 22016),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        max_tokens=fields.integer("max_position_embeddings", 32768),
        # Padding is masked and never read; any id of the vocabulary does.
        pad_token=fields.integer("pad_token_id", 0, least=0),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=read_rope(fields, 10_000.0, ("default", "linear"), head_width),
        causal=True,
    )
    fields.finish(_FIXED, _HARMLESS)
    return config


class Qwen3Layer(nnx.Module):
    """x = x + Wo attention(norm(x)); x = x + W2 (silu(Wg h) * (Wu h)) with h = norm(x); no biases."""

    def __init__(self, config: Qwen3Config, dtype: jnp.dtype, rngs: nnx.Rngs):
        width, kwargs = config.width, {"bias": False, "dtype": dtype, "rngs": rngs}
        queries, keys = config.heads * config.head_width, config.kv_heads * config.head_width
        self.config = config
        self.attention_norm = rms_norm(width, config.norm_eps, rngs)
        self.query_projection = linear(width, queries, **kwargs)
        self.key_projection = linear(width, keys, **kwargs)
        self.value_projection = linear(width, keys, **kwargs)
        self.query_norm = rms_norm(config.head_width, config.norm_eps, rngs)
        self.key_norm = rms_norm(config.head_width, config.norm_eps, rngs)
        self.output_projection = linear(queries, width, **kwargs)
        self.feed_forward_norm = rms_norm(width, config.norm_eps, rngs)
        self.gate = linear(width, config.feed_forward, **kwargs)
        self.up = linear(width, config.feed_forward, **kwargs)
        self.down = linear(config.feed_forward, width, **kwargs)

    def prepare(self, x: Float[Array, "n t d"]) -> Float[Array, "n t d"]:
        """The norm before the attention."""
        return self.attention_norm(x).astype(x.dtype)

    def query(self, h: Float[Array, "n t d"], angles: Angles) -> Float[Array, "n t h k"]:
        """Queries, normalised per head, rotated, scaled by K^-1/2."""
        q = self.query_norm(split_heads(self.query_projection(h), self.config.heads)).astype(h.dtype)
        return rotate(q, angles) * self.config.head_width**-0.5

    def key_value(
        self, h: Float[Array, "n t d"], angles: Angles
    ) -> tuple[Float[Array, "n t g k"], Float[Array, "n t g k"]]:
        """Keys, normalised per head and rotated, and values."""
        k = self.key_norm(split_heads(self.key_projection(h), self.config.kv_heads)).astype(h.dtype)
        return rotate(k, angles), split_heads(self.value_projection(h), self.config.kv_heads)

    def finish(self, x: Float[Array, "n t d"], attended: Float[Array, "n t h k"]) -> Float[Array, "n t d"]:
        """Output projection and gated feed-forward, each added to the residual stream."""
        x = x + self.output_projection(merge_heads(attended))
        h = self.feed_forward_norm(x).astype(x.dtype)
        return x + self.down(jax.nn.silu(self.gate(h)) * self.up(h))


class Qwen3(nnx.Module):
    """The encoder: word embeddings, the stacked blocks, a final norm."""

    def __init__(self, config: Qwen3Config, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.config = config
        self.words = embedding(config.vocab_size, config.width, dtype=dtype, rngs=rngs)
        self.layers = stacked(lambda rngs: Qwen3Layer(config, dtype, rngs), config.layers, rngs)
        self.norm = rms_norm(config.width, config.norm_eps, rngs)

    def embed(self, tokens: Int[Array, "n t"], mask: Bool[Array, "n t"]) -> Float[Array, "n t d"]:
        """Word embeddings."""
        return self.words(tokens)

    def angles(self, length: int) -> Angles:
        """Rotary angles of positions 0..length-1."""
        return rotary_angles(self.config, length)

    def normalise(self, x: Float[Array, "n *t d"]) -> Float[Array, "n *t d"]:
        """The final norm."""
        return self.norm(x)


def weight_rules(config: Qwen3Config, names: frozenset[str]) -> Rules:
    """Where each of our weights comes from in a Hugging Face Qwen3 checkpoint."""
    layer = "layers.{l}."
    rules: Rules = {"words.embedding": Rule("embed_tokens.weight")}
    rules |= norm("norm", "norm", bias=False)
    for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
        rules |= projection(f"layers.{ours}_projection", f"{layer}self_attn.{theirs}_proj", bias=False)
    for ours in ("gate", "up", "down"):
        rules |= projection(f"layers.{ours}", f"{layer}mlp.{ours}_proj", bias=False)
    rules |= norm("layers.attention_norm", layer + "input_layernorm", bias=False)
    rules |= norm("layers.query_norm", layer + "self_attn.q_norm", bias=False)
    rules |= norm("layers.key_norm", layer + "self_attn.k_norm", bias=False)
    return rules | norm("layers.feed_forward_norm", layer + "post_attention_layernorm", bias=False)
