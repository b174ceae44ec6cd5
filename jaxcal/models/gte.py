"""GTE encoders (gte-multilingual-base): post-norm blocks with rotary positions and a gated feed-forward.

Source: arXiv 2407.19669 (mGTE). Two checkpoint layouts hold the same model: the original one (`model_type` "new",
packed projections under `new.`) and that of transformers (`model_type` "gte").
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxcal.models.config import ConfigReader, EncoderConfig, read_rope
from jaxcal.models.layers import (
    Angles,
    embedding,
    layer_norm,
    linear,
    merge_heads,
    rotary_angles,
    rotate,
    split_heads,
    stacked,
)
from jaxcal.models.rules import Rule, Rules, norm, projection

PREFIXES = ("", "new.", "gte.", "model.")
_FIXED = {
    "hidden_act": ("gelu",),
    "position_embedding_type": ("rope",),
    "layer_norm_type": ("layer_norm",),
    "pack_qkv": (True,),
    "logn_attention_scale": (False,),
    "logn_attention_clip1": (False,),
}
_HARMLESS = ("unpad_inputs", "use_memory_efficient_attention")


@dataclass(frozen=True)
class GteConfig(EncoderConfig):
    """A GTE shape."""


def read_config(raw: Mapping[str, Any]) -> GteConfig:
    """The configuration of a `new` or `gte` checkpoint.

    Raises:
        UnsupportedCheckpoint: if a field asks for what the port does not implement.
    """
    family = raw["model_type"]
    fields = ConfigReader(raw, family)
    width = fields.integer("hidden_size", 768)
    heads = fields.heads(width, 12)
    original = family == "new"
    kinds, base = (("default", "ntk"), 10_000.0) if original else (("default", "linear"), 160_000.0)
    config = GteConfig(
        vocab_size=fields.integer("vocab_size", 30528 if original else 250048),
        width=width,
        feed_forward=fields.integer("intermediate_size", 3072),
        layers=fields.integer("num_hidden_layers", 12),
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        max_tokens=fields.integer("max_position_embeddings", 2048 if original else 8192),
        pad_token=fields.integer("pad_token_id", 0 if original else 1, least=0),
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        token_types=fields.integer("type_vocab_size", 1, least=0),
        rope=read_rope(fields, base, kinds, width // heads),
    )
    fields.finish(_FIXED, _HARMLESS)
    return config


class GteLayer(nnx.Module):
    """x = LN(x + Wo attention(x)); x = LN(x + W2 (gelu(Wg x) * (Wu x))); gate and up have no bias."""

    def __init__(self, config: GteConfig, dtype: jnp.dtype, rngs: nnx.Rngs):
        width, kwargs = config.width, {"dtype": dtype, "rngs": rngs}
        self.config = config
        self.query_projection = linear(width, width, bias=True, **kwargs)
        self.key_projection = linear(width, width, bias=True, **kwargs)
        self.value_projection = linear(width, width, bias=True, **kwargs)
        self.output_projection = linear(width, width, bias=True, **kwargs)
        self.attention_norm = layer_norm(width, config.norm_eps, rngs)
        self.gate = linear(width, config.feed_forward, bias=False, **kwargs)
        self.up = linear(width, config.feed_forward, bias=False, **kwargs)
        self.down = linear(config.feed_forward, width, bias=True, **kwargs)
        self.output_norm = layer_norm(width, config.norm_eps, rngs)

    def prepare(self, x: Float[Array, "n t d"]) -> Float[Array, "n t d"]:
        """The projections read the block's input itself."""
        return x

    def query(self, h: Float[Array, "n t d"], angles: Angles) -> Float[Array, "n t h k"]:
        """Queries, rotated, scaled by K^-1/2."""
        q = split_heads(self.query_projection(h), self.config.heads)
        return rotate(q, angles) * self.config.head_width**-0.5

    def key_value(
        self, h: Float[Array, "n t d"], angles: Angles
    ) -> tuple[Float[Array, "n t g k"], Float[Array, "n t g k"]]:
        """Keys, rotated, and values."""
        k = split_heads(self.key_projection(h), self.config.heads)
        return rotate(k, angles), split_heads(self.value_projection(h), self.config.heads)

    def finish(self, x: Float[Array, "n t d"], attended: Float[Array, "n t h k"]) -> Float[Array, "n t d"]:
        """Output projection and gated feed-forward, each followed by its norm."""
        x = self.attention_norm(x + self.output_projection(merge_heads(attended))).astype(x.dtype)
        h = self.down(jax.nn.gelu(self.gate(x), approximate=False) * self.up(x))
        return self.output_norm(x + h).astype(x.dtype)


class Gte(nnx.Module):
    """The encoder: word and (where the model has them) token-type embeddings, then the stacked blocks."""

    def __init__(self, config: GteConfig, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.config = config
        self.words = embedding(config.vocab_size, config.width, dtype=dtype, rngs=rngs)
        if config.token_types:
            self.types = embedding(config.token_types, config.width, dtype=dtype, rngs=rngs)
        self.norm = layer_norm(config.width, config.norm_eps, rngs)
        self.layers = stacked(lambda rngs: GteLayer(config, dtype, rngs), config.layers, rngs)

    def embed(self, tokens: Int[Array, "n t"], mask: Bool[Array, "n t"]) -> Float[Array, "n t d"]:
        """Word embeddings plus that of token type 0, normalised."""
        words = self.words(tokens)
        summed = words + self.types.embedding[0] if self.config.token_types else words
        return self.norm(summed).astype(words.dtype)

    def angles(self, length: int) -> Angles:
        """Rotary angles of positions 0..length-1."""
        return rotary_angles(self.config, length)

    def normalise(self, x: Float[Array, "n *t d"]) -> Float[Array, "n *t d"]:
        """Post-norm blocks end normalised."""
        return x


def weight_rules(config: GteConfig, names: frozenset[str]) -> Rules:
    """Where each of our weights comes from, in the layout that `names` (without prefix) show."""
    rules: Rules = {"words.embedding": Rule("embeddings.word_embeddings.weight")}
    if config.token_types:
        rules["types.embedding"] = Rule("embeddings.token_type_embeddings.weight")
    rules |= norm("norm", "embeddings.LayerNorm")
    original = any(name.startswith("encoder.layer.") for name in names)
    return rules | (_original_layers() if original else _native_layers())


def _original_layers() -> Rules:
    layer, rules = "encoder.layer.{l}.", Rules()
    for i, ours in enumerate(("query_projection", "key_projection", "value_projection")):
        rules |= projection(f"layers.{ours}", layer + "attention.qkv_proj", part=(i, 3))
    rules |= projection("layers.output_projection", layer + "attention.o_proj")
    rules |= norm("layers.attention_norm", layer + "attn_ln")
    for i, ours in enumerate(("up", "gate")):
        rules |= projection(f"layers.{ours}", layer + "mlp.up_gate_proj", bias=False, part=(i, 2))
    rules |= projection("layers.down", layer + "mlp.down_proj")
    return rules | norm("layers.output_norm", layer + "mlp_ln")


def _native_layers() -> Rules:
    layer, rules = "layers.{l}.", Rules()
    for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
        rules |= projection(f"layers.{ours}_projection", f"{layer}self_attn.{theirs}_proj")
    rules |= norm("layers.attention_norm", layer + "post_attention_layernorm")
    for ours, bias in (("gate", False), ("up", False), ("down", True)):
        rules |= projection(f"layers.{ours}", f"{layer}mlp.{ours}_proj", bias=bias)
    return rules | norm("layers.output_norm", layer + "post_mlp_layernorm")
