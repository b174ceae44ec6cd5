"""Published figures, to stand beside measured ones: configs/published, one YAML file a source."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jaxcal
from jaxcal.errors import InvalidInput
from jaxcal.io import read_yaml

_FIGURES = ("ndcg_at_10", "macro_ndcg_at_10", "harmonic_mean", "psi")
_STATUS = ("published", "derived", "measured by this project")


@dataclasses.dataclass(frozen=True)
class PublishedRow:
    """The figures of one method on one task, as somebody printed them.

    Attributes:
        source: short name of the source, such as "arXiv 2606.02737".
        status: "published", "derived" (computed from what is published) or "measured by this project".
        note: what to know about the source before comparing; "" if nothing.
        task_name, subset, model, method: as in a result file.
        figures: laid out as an entry of a result file's scores; shares from 0 to 1.
    """

    source: str
    status: str
    note: str
    task_name: str
    subset: str
    model: str
    method: str
    figures: Mapping[str, Any]


def shipped_configs() -> Path:
    """The folder with the configurations: in the package where it was installed, beside it in a checkout."""
    package = Path(jaxcal.__file__).parent
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def load_published(folder: Path | None = None) -> list[PublishedRow]:
    """Read all published figures of a folder, by default the shipped ones.

    Raises:
        InvalidInput: a file does not have the layout; names file and row. Or there is none.
    """
    folder = folder or shipped_configs() / "published"
    rows = [row for path in sorted(folder.glob("*.yaml")) for row in _read(path)]
    if not rows:
        raise InvalidInput(f"{folder} holds no published figures; there should be a YAML file for each source.")
    return rows


def _read(path: Path) -> list[PublishedRow]:
    content = read_yaml(path)
    if not isinstance(content, dict) or set(content) - {"source", "citation", "note", "groups", "rows"}:
        raise InvalidInput(f"{path} must be a mapping of source, citation, note, groups and rows.")
    if not isinstance(content.get("source"), str) or not isinstance(content.get("rows"), list):
        raise InvalidInput(f'{path} needs a "source" and a list "rows".')
    for key in ("citation", "note"):
        if not isinstance(content.get(key, ""), str):
            raise InvalidInput(f'{path}: "{key}" must be text.')
    names = content.get("groups", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidInput(f'{path}: "groups" must be a list of different names; put numbers in quotation marks.')
    rows = []
    for number, row in enumerate(content["rows"], 1):
        try:
            rows.append(_row(content, row))
        except ValueError as error:
            raise InvalidInput(f"{path}, row {number}: {error}.") from None
    return rows


def _row(content: Mapping[str, Any], row: Any) -> PublishedRow:
    known = {"task", "subset", "model", "method", "status", "groups", "buckets", *_FIGURES}
    if not isinstance(row, dict):
        raise ValueError(f"is {row!r}; it must be a mapping")
    if unknown := sorted(map(str, set(row) - known)):
        raise ValueError(f"unknown keys {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if row.get("status", "published") not in _STATUS:
        raise ValueError(f"status is {row['status']!r}; it must be {', '.join(_STATUS)}")
    place = {"subset": "default"} | {key: row[key] for key in ("task", "subset", "model", "method") if key in row}
    for key in ("task", "subset", "model", "method"):
        if not isinstance(place.get(key), str):
            raise ValueError(f"{key} is {place.get(key)!r}; it must be a name")
    figures: dict[str, Any] = {key: _share(key, row[key]) for key in _FIGURES if key in row}
    if "groups" in row:
        figures["groups"] = _groups(content.get("groups", []), row["groups"])
    if "buckets" in row:
        figures["buckets"] = _buckets(row["buckets"])
    if not figures:
        raise ValueError("has no figures")
    return PublishedRow(
        content["source"],
        row.get("status", "published"),
        content.get("note", ""),
        place["task"],
        place["subset"],
        place["model"],
        place["method"],
        figures,
    )


def _groups(names: list[str], values: Any) -> dict[str, float]:
    if not isinstance(values, list) or len(values) != len(names):
        raise ValueError(f"groups is {values!r}; it must have a figure, or null, for each of {', '.join(names)}")
    if all(value is None for value in values):
        raise ValueError("groups has no figures; leave it out")
    # Some sources print only the first and the last group: the others are null.
    return {name: _share(name, value) for name, value in zip(names, values, strict=True) if value is not None}


def _buckets(buckets: Any) -> dict[str, dict[str, float]]:
    if not isinstance(buckets, dict):
        raise ValueError(f"buckets is {buckets!r}; it must be a mapping of names to [nDCG@10, PSI]")
    figures = {}
    for name, pair in buckets.items():
        if not isinstance(name, str) or not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"bucket {name!r} is {pair!r}; it must be [nDCG@10, PSI]")
        figures[name] = {"macro_ndcg_at_10": _share(name, pair[0]), "psi": _share(name, pair[1])}
    return figures


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} is {value!r}; figures are shares from 0 to 1")
    return float(value)
