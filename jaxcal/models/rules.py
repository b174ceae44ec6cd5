"""How a family says where its weights come from: our name -> the tensor of a Hugging Face checkpoint."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One of our weights in Hugging Face terms.

    Attributes:
        tensor: their name without prefix; `{l}` stands for the layer's number.
        transpose: torch keeps projections as [out, in], we as [in, out].
        part: (i, n) takes the i-th of n equal blocks of rows of a packed tensor, before transposing.
    """

    tensor: str
    transpose: bool = False
    part: tuple[int, int] = (0, 1)


Rules = dict[str, Rule]


def projection(ours: str, theirs: str, *, bias: bool = True, part: tuple[int, int] = (0, 1)) -> Rules:
    """Kernel and bias of a linear projection."""
    rules = {f"{ours}.kernel": Rule(f"{theirs}.weight", transpose=True, part=part)}
    if bias:
        rules[f"{ours}.bias"] = Rule(f"{theirs}.bias", part=part)
    return rules


def norm(ours: str, theirs: str, *, bias: bool = True) -> Rules:
    """Scale and bias of a norm."""
    rules = {f"{ours}.scale": Rule(f"{theirs}.weight")}
    if bias:
        rules[f"{ours}.bias"] = Rule(f"{theirs}.bias")
    return rules
