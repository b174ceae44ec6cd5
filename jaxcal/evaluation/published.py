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
        InvalidInput: a file does not have the layout; names file and row.
    """
    folder = folder or shipped_configs() / "published"
    return [row for path in sorted(folder.glob("*.yaml")) for row in _read(path)]


def _read(path: Path) -> list[PublishedRow]:
    content = read_yaml(path)
    if not isinstance(content, dict) or set(content) - {"source", "citation", "note", "groups", "rows"}:
        raise InvalidInput(f"{path} must be a mapping of source, citation, note, groups and rows.")
    if not isinstance(content.get("source"), str) or not isinstance(content.get("rows"), list):
        raise InvalidInput(f'{path} needs a "source" and a list "rows".')
    rows = []
    for number, row in enumerate(content["rows"], 1):
        try:
            rows.append(_row(content, row))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"{path}, row {number}: {error}.") from None
    return rows


def _row(content: Mapping[str, Any], row: Mapping[str, Any]) -> PublishedRow:
    known = {"task", "subset", "model", "method", "status", "groups", "buckets", *_FIGURES}
    if unknown := sorted(map(str, set(row) - known)):
        raise ValueError(f"unknown keys {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if row.get("status", "published") not in _STATUS:
        raise ValueError(f"status is {row['status']!r}; it must be {', '.join(_STATUS)}")
    figures: dict[str, Any] = {key: _share(key, row[key]) for key in _FIGURES if key in row}
    if "groups" in row:
        names = content["groups"]
        # Some sources print only the first and the last group: the others are null.
        pairs = zip(names, row["groups"], strict=True)
        figures["groups"] = {name: _share(name, value) for name, value in pairs if value is not None}
    if "buckets" in row:
        figures["buckets"] = {
            bucket: {"macro_ndcg_at_10": _share(bucket, ndcg), "psi": _share(bucket, psi)}
            for bucket, (ndcg, psi) in row["buckets"].items()
        }
    return PublishedRow(
        content["source"],
        row.get("status", "published"),
        content.get("note", ""),
        row["task"],
        row.get("subset", "default"),
        row["model"],
        row["method"],
        figures,
    )


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} is {value!r}; figures are shares from 0 to 1")
    return float(value)
