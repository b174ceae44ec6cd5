"""The encoder families, and which checkpoint belongs to which."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jaxcal.errors import UnsupportedCheckpoint
from jaxcal.models import bert, gte, qwen3
from jaxcal.models.config import EncoderConfig
from jaxcal.models.rules import Rules


@dataclass(frozen=True)
class Family:
    """What a family contributes: its configuration reader, its module, its weight rules and key prefixes."""

    read_config: Callable[[Mapping[str, Any]], Any]
    model: Callable[[Any, jnp.dtype, nnx.Rngs], nnx.Module]
    weight_rules: Callable[[Any, frozenset[str]], Rules]
    prefixes: tuple[str, ...]


_BERT = Family(bert.read_config, bert.Bert, bert.weight_rules, bert.PREFIXES)
_GTE = Family(gte.read_config, gte.Gte, gte.weight_rules, gte.PREFIXES)
_QWEN3 = Family(qwen3.read_config, qwen3.Qwen3, qwen3.weight_rules, qwen3.PREFIXES)

FAMILIES: Mapping[str, Family] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "new": _GTE,
    "gte": _GTE,
    "qwen3": _QWEN3,
}


def find_family(raw: Mapping[str, Any]) -> Family:
    """The family of a checkpoint, by the `model_type` of its `config.json`.

    Raises:
        UnsupportedCheckpoint: if jaxcal has no port of it.
    """
    kind = str(raw.get("model_type"))
    if kind not in FAMILIES:
        raise UnsupportedCheckpoint(
            f"config.json has model_type {kind!r} (architectures {raw.get('architectures')}); "
            f"jaxcal has ports of: {', '.join(FAMILIES)}."
        )
    return FAMILIES[kind]


__all__ = ["FAMILIES", "EncoderConfig", "Family", "find_family"]
