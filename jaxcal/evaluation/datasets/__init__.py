"""Retrieval data sets whose queries are grouped by where in the passage the answer stands."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxcal.errors import InvalidSetting
from jaxcal.evaluation.datasets.base import Benchmark, PositionDataset, Task, Topics
from jaxcal.evaluation.datasets.beir import load_beir
from jaxcal.evaluation.datasets.fineweb import load_fineweb_posq
from jaxcal.evaluation.datasets.posir import load_posir
from jaxcal.evaluation.datasets.pydoc import load_pydoc_posq, pydoc_posq, read_pydoc_posq
from jaxcal.evaluation.datasets.squad import load_squad_long, load_squad_posq

__all__ = [
    "Benchmark",
    "PositionDataset",
    "Task",
    "Topics",
    "load_beir",
    "load_benchmark",
    "load_fineweb_posq",
    "load_posir",
    "load_pydoc_posq",
    "load_squad_long",
    "load_squad_posq",
    "read_pydoc_posq",
]

LOADERS: Mapping[str, Callable[..., Benchmark]] = {
    "squad-posq": load_squad_posq,
    "squad-long": load_squad_long,
    "fineweb-posq": load_fineweb_posq,
    "posir": load_posir,
    "pydoc-posq": pydoc_posq,
    "beir": load_beir,
}


def load_benchmark(
    name: str, options: Mapping[str, Any], count_tokens: Callable[[Sequence[str]], Iterable[int]]
) -> Benchmark:
    """Load a data set by the name that configurations give it.

    Args:
        name: one of `LOADERS`.
        options: the keyword arguments of its loader.
        count_tokens: tokens of texts, for data sets that join paragraphs up to a number of tokens.

    Raises:
        InvalidSetting: there is no such data set, or it has no such option, or lacks one it needs.
    """
    if name not in LOADERS:
        raise InvalidSetting(f"there is no data set {name!r}; choose one of {', '.join(LOADERS)}.")
    loader = LOADERS[name]
    known = dict(inspect.signature(loader).parameters)
    given = dict(options)
    if known.pop("count_tokens", None):
        given["count_tokens"] = count_tokens
    if unknown := [key for key in options if key not in known]:
        raise InvalidSetting(f"the data set {name} has no option {unknown[0]!r}; it has {', '.join(known)}.")
    if missing := [key for key, option in known.items() if option.default is option.empty and key not in options]:
        raise InvalidSetting(f"the data set {name} needs the option {missing[0]!r}.")
    return loader(**given)
