"""What every encoder configuration has, and strict reading of Hugging Face `config.json` fields.

A field is read, harmless by name, at the one value the port implements, or refused by name; what nobody defines is
listed in one warning.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxcal.errors import UnsupportedCheckpoint

logger = logging.getLogger("jaxcal")


@dataclass(frozen=True)
class Rope:
    """Rotary frequencies base^(-2i/K) / divisor for i in 0..K/2-1."""

    base: float
    divisor: float = 1.0

    def frequencies(self, head_width: int) -> Float[np.ndarray, " half"]:
        """Angular frequencies in radians per token, [K/2] in float32."""
        exponents = np.arange(0, head_width, 2, dtype=np.float32) / np.float32(head_width)
        return (1.0 / (np.float32(self.base) ** exponents) / np.float32(self.divisor)).astype(np.float32)


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder; hashable, so it can stand in a jitted function's static arguments."""

    vocab_size: int
    width: int  # D
    feed_forward: int  # F
    layers: int  # L
    heads: int  # H
    kv_heads: int  # G
    head_width: int  # K
    max_tokens: int  # longest text the position table or the rotary cache serves
    pad_token: int
    norm_eps: float
    token_types: int = 0
    positions: int = 0  # rows of a learned position table; 0 where positions are rotary
    rope: Rope | None = None
    causal: bool = False


# Fields of every Hugging Face configuration that cannot change an encoder's vectors at inference time.
HARMLESS = frozenset(
    """_name_or_path _attn_implementation_autoset architectures attention_dropout attention_probs_dropout_prob auto_map
    bos_token_id chunk_size_feed_forward classifier_dropout dtype eos_token_id finetuning_task gradient_checkpointing
    hidden_dropout_prob id2label initializer_range label2id model_type output_attentions output_hidden_states
    output_past problem_type return_dict sep_token_id cls_token_id tie_word_embeddings tokenizer_class torch_dtype
    torchscript transformers_version use_bfloat16 use_cache""".split()
)

# Fields with one implemented value, for every family.
FIXED: Mapping[str, tuple[Any, ...]] = {
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}


class ConfigReader:
    """Reads a raw `config.json` field by field and refuses what is left over if it could matter."""

    def __init__(self, raw: Mapping[str, Any], family: str):
        self._raw, self._family, self._read = raw, family, set[str]()

    def integer(self, name: str, default: int, *, least: int = 1) -> int:
        """A whole number of at least `least`; `default` stands for a missing or null field."""
        value = self.value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._refusal(name, value, f"a whole number of at least {least}")
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number above zero; `default` stands for a missing or null field."""
        return self.positive(name, self.value(name, default))

    def positive(self, name: str, value: Any) -> float:
        """The value as a float, if it is a finite number above zero."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._refusal(name, value, "a number above zero")
        return float(value)

    def mapping(self, name: str) -> dict[str, Any]:
        """A group of fields; a missing or null one is empty."""
        value = self.value(name, {})
        if not isinstance(value, dict):
            raise self._refusal(name, value, "an object")
        return value

    def value(self, name: str, default: Any = None) -> Any:
        """The raw value, or `default` where the field is missing or null."""
        self._read.add(name)
        value = self._raw.get(name)
        return default if value is None else value

    def heads(self, width: int, default: int) -> int:
        """The number of attention heads, which must divide the width."""
        heads = self.integer("num_attention_heads", default)
        if width % heads:
            raise self._refusal("num_attention_heads", heads, f"a divisor of hidden_size {width}")
        return heads

    def finish(self, fixed: Mapping[str, tuple[Any, ...]], harmless: Collection[str] = ()) -> None:
        """Check every field that was not read.

        Raises:
            UnsupportedCheckpoint: listing all fields whose value the port does not implement.
        """
        fixed = {**FIXED, **fixed}
        left = {name: value for name, value in self._raw.items() if name not in self._read}
        refused = [
            f"{name} = {value!r} (implemented: {' or '.join(map(repr, fixed[name]))})"
            for name, value in left.items()
            if name in fixed and value not in fixed[name]
        ]
        if refused:
            raise UnsupportedCheckpoint(
                f"config.json of this {self._family} checkpoint asks for what jaxcal does not implement: "
                + "; ".join(refused)
            )
        unknown = sorted(left.keys() - fixed.keys() - HARMLESS - set(harmless))
        if unknown:
            logger.warning(
                "config.json has fields that %s models do not define, ignored: %s", self._family, ", ".join(unknown)
            )

    def _refusal(self, name: str, value: Any, wanted: str) -> UnsupportedCheckpoint:
        return UnsupportedCheckpoint(
            f"config.json of this {self._family} checkpoint has {name} = {value!r}; it must be {wanted}."
        )


def read_rope(fields: ConfigReader, default_base: float, kinds: Collection[str], head_width: int) -> Rope:
    """Rotary settings in the old spelling (`rope_theta`, `rope_scaling`) or the new (`rope_parameters`).

    Kinds: "default"; "linear", positions divided by the factor; "ntk" as in the original GTE code, where the base is
    multiplied by the factor and the frequencies are divided by factor^(2/K) besides, for short texts too.

    Raises:
        UnsupportedCheckpoint: if the kind is not among `kinds`, or has settings the port does not know.
    """
    settings = {**fields.mapping("rope_scaling"), **fields.mapping("rope_parameters")}
    base, own_base = fields.number("rope_theta", default_base), settings.pop("rope_theta", None)
    base = base if own_base is None else fields.positive("rope_theta", own_base)
    named = [settings.pop(name, None) for name in ("rope_type", "type")]
    kind = next(filter(None, named), "default")
    factor = settings.pop("factor", None)
    extra = {name: value for name, value in settings.items() if value is not None}
    if kind not in kinds or extra:
        raise UnsupportedCheckpoint(
            f"config.json asks for rotary positions of the kind {kind!r} with {extra or 'no'} further settings; "
            f"implemented: {', '.join(sorted(kinds))}, with a base and a factor only."
        )
    if kind == "default":
        return Rope(base)
    factor = fields.positive(f"the factor of {kind!r} rotary positions", factor)
    return Rope(base * factor, factor ** (2 / head_width)) if kind == "ntk" else Rope(base, factor)
