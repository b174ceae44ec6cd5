"""BERT and XLM-RoBERTa encoders (all-MiniLM-L6-v2, bge-m3): post-norm blocks with learned absolute positions.

Sources: arXiv 1810.04805 (BERT), arXiv 1911.02116 (XLM-RoBERTa). The two differ in their position ids alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxcal.errors import UnsupportedCheckpoint
from jaxcal.models.config import ConfigReader, EncoderConfig
from jaxcal.models.layers import Angles, embedding, layer_norm, linear, merge_heads, positions, split_heads, stacked
from jaxcal.models.rules import Rule, Rules, norm, projection

PREFIXES = ("", "bert.", "roberta.", "model.")
_FIXED = {"hidden_act": ("gelu",), "position_embedding_type": ("absolute",)}


@dataclass(frozen=True)
class BertConfig(EncoderConfig):
    """A BERT shape; `roberta` numbers positions from the padding token's id on, as XLM-RoBERTa does."""

    roberta: bool = False


def read_config(raw: Mapping[str, Any]) -> BertConfig:
    """The configuration of a `bert`, `roberta` or `xlm-roberta` checkpoint.

    Raises:
        UnsupportedCheckpoint: if a field asks for what the port does not implement.
    """
    family = raw["model_type"]
    roberta = family != "bert"
    fields = ConfigReader(raw, family)
    width = fields.integer("hidden_size", 768)
    heads = fields.heads(width, 12)
    pad = fields.integer("pad_token_id", 1 if roberta else 0, least=0)
    rows = fields.integer("max_position_embeddings", 512)
    max_tokens = rows - pad - 1 if roberta else rows
    if max_tokens < 1:
        raise UnsupportedCheckpoint(f"config.json has max_position_embeddings = {rows}, which serves no token at all.")
    config = BertConfig(
        vocab_size=fields.integer("vocab_size", 50265 if family == "roberta" else 30522),
        width=width,
        feed_forward=fields.integer("intermediate_size", 3072),
        layers=fields.integer("num_hidden_layers", 12),
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        max_tokens=max_tokens,
        pad_token=pad,
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        token_types=fields.integer("type_vocab_size", 2),
        positions=rows,
        roberta=roberta,
    )
    fields.finish(_FIXED)
    return config


class BertLayer(nnx.Module):
    """x = LN(x + Wo attention(x)); x = LN(x + W2 gelu(W1 x)), every projection with a bias."""

    def __init__(self, config: BertConfig, dtype: jnp.dtype, rngs: nnx.Rngs):
        width, kwargs = config.width, {"bias": True, "dtype": dtype, "rngs": rngs}
        self.config = config
        self.query_projection = linear(width, width, **kwargs)
        self.key_projection = linear(width, width, **kwargs)
        self.value_projection = linear(width, width, **kwargs)
        self.output_projection = linear(width, width, **kwargs)
        self.attention_norm = layer_norm(width, config.norm_eps, rngs)
        self.up = linear(width, config.feed_forward, **kwargs)
        self.down = linear(config.feed_forward, width, **kwargs)
        self.output_norm = layer_norm(width, config.norm_eps, rngs)

    def prepare(self, x: Float[Array, "n t d"]) -> Float[Array, "n t d"]:
        """The projections read the block's input itself."""
        return x

    def query(self, h: Float[Array, "n t d"], angles: Angles | None) -> Float[Array, "n t h k"]:
        """Queries, scaled by K^-1/2."""
        return split_heads(self.query_projection(h), self.config.heads) * self.config.head_width**-0.5

    def key_value(
        self, h: Float[Array, "n t d"], angles: Angles | None
    ) -> tuple[Float[Array, "n t g k"], Float[Array, "n t g k"]]:
        """Keys and values."""
        heads = self.config.heads
        return split_heads(self.key_projection(h), heads), split_heads(self.value_projection(h), heads)

    def finish(self, x: Float[Array, "n t d"], attended: Float[Array, "n t h k"]) -> Float[Array, "n t d"]:
        """Output projection and feed-forward, each followed by its norm."""
        x = self.attention_norm(x + self.output_projection(merge_heads(attended))).astype(x.dtype)
        h = self.down(jax.nn.gelu(self.up(x), approximate=False))
        return self.output_norm(x + h).astype(x.dtype)


class Bert(nnx.Module):
    """The encoder: word, position and token-type embeddings, then the stacked blocks."""

    def __init__(self, config: BertConfig, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.config = config
        self.words = embedding(config.vocab_size, config.width, dtype=dtype, rngs=rngs)
        self.positions = embedding(config.positions, config.width, dtype=dtype, rngs=rngs)
        self.types = embedding(config.token_types, config.width, dtype=dtype, rngs=rngs)
        self.norm = layer_norm(config.width, config.norm_eps, rngs)
        self.layers = stacked(lambda rngs: BertLayer(config, dtype, rngs), config.layers, rngs)

    def position_ids(self, tokens: Int[Array, "n t"], mask: Bool[Array, "n t"]) -> Int[Array, "n t"]:
        """Rows of the position table: 0, 1, ... for BERT; XLM-RoBERTa counts ids other than padding, from pad + 1."""
        if not self.config.roberta:
            return positions(mask)
        real = tokens != self.config.pad_token
        return jnp.cumsum(real, axis=-1, dtype=jnp.int32) * real + self.config.pad_token

    def embed(self, tokens: Int[Array, "n t"], mask: Bool[Array, "n t"]) -> Float[Array, "n t d"]:
        """The sum of the three embeddings (token type 0), normalised."""
        words = self.words(tokens)
        summed = words + self.types.embedding[0] + self.positions(self.position_ids(tokens, mask))
        return self.norm(summed).astype(words.dtype)

    def angles(self, length: int) -> None:
        """Positions are learned, not rotary."""
        return None

    def normalise(self, x: Float[Array, "n *t d"]) -> Float[Array, "n *t d"]:
        """Post-norm blocks end normalised."""
        return x


def weight_rules(config: BertConfig, names: frozenset[str]) -> Rules:
    """Where each of our weights comes from in a Hugging Face BERT or XLM-RoBERTa checkpoint."""
    rules: Rules = {
        "words.embedding": Rule("embeddings.word_embeddings.weight"),
        "positions.embedding": Rule("embeddings.position_embeddings.weight"),
        "types.embedding": Rule("embeddings.token_type_embeddings.weight"),
    }
    rules |= norm("norm", "embeddings.LayerNorm")
    for ours, theirs in {
        "query_projection": "attention.self.query",
        "key_projection": "attention.self.key",
        "value_projection": "attention.self.value",
        "output_projection": "attention.output.dense",
        "up": "intermediate.dense",
        "down": "output.dense",
    }.items():
        rules |= projection(f"layers.{ours}", f"encoder.layer.{{l}}.{theirs}")
    rules |= norm("layers.attention_norm", "encoder.layer.{l}.attention.output.LayerNorm")
    rules |= norm("layers.output_norm", "encoder.layer.{l}.output.LayerNorm")
    return rules
