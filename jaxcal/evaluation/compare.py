"""Tables that set results beside each other, and beside published figures, saying of each where it is from."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxcal.errors import InvalidInput
from jaxcal.evaluation.config import UNCALIBRATED
from jaxcal.evaluation.published import PublishedRow
from jaxcal.tables import markdown_table

_EMPTY = "-"
_MEASURED = "measured here"
_RECALL = 10
_KEYS = {"task_name", "dataset_revision", "scores", "method", "calibration", "model", "environment"}
_SUMMARIES = {"ndcg_at_10": "all", "macro_ndcg_at_10": "mean of groups", "harmonic_mean": "harmonic mean", "psi": "PSI"}


class _Row(NamedTuple):
    """One line of a table: the figures of a method, and where they are from."""

    model: str
    method: str
    origin: str
    figures: Mapping[str, Any]


def find_results(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Read result files, or all of them in a folder and the folders below; a file that is named twice counts once.

    Raises:
        InvalidInput: a file that is named is no result, or nothing is found.
    """
    results: dict[Path, dict[str, Any]] = {}
    for path in paths:
        if not path.exists():
            raise InvalidInput(f"{path} does not exist.")
        if path.is_file():
            result = _read(path)
            if result is None:
                raise InvalidInput(f"{path} is not a result of `jaxcal evaluate`.")
            results[path.resolve()] = result
        else:
            found = {file.resolve(): _read(file) for file in sorted(path.rglob("*.json"))}
            results |= {file: result for file, result in found.items() if result is not None}
    if not results:
        raise InvalidInput(f"no results in {', '.join(map(str, paths))}.")
    return list(results.values())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or not content.keys() >= _KEYS or not isinstance(content["scores"], dict):
        return None
    if not isinstance(content["method"], str) or not isinstance(content["model"], dict | None):
        return None
    entries = [one for part in content["scores"].values() for one in (part if isinstance(part, list) else [None])]
    return content if all(isinstance(one, dict) and "hf_subset" in one for one in entries) else None


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The figures of results, a Markdown table for each task and subset, in percent but PSI.

    Below a method stands its difference from the uncalibrated model with the 95 % paired interval.
    """
    return compare(results, None)


def compare(results: Sequence[Mapping[str, Any]], published: Sequence[PublishedRow] | None) -> str:
    """Like `table`, with the published figures of the same tasks, and a column that says where each row is from."""
    places: dict[tuple[str, str], list[_Row]] = {}
    revisions: dict[tuple[str, str], dict[str, None]] = {}
    # The uncalibrated model before its calibrations, and what has no model, such as BM25, last; else as they come.
    for result in sorted(results, key=lambda result: (result["model"] is None, result["method"] != UNCALIBRATED)):
        for entries in result["scores"].values():
            for entry in entries:
                place = (result["task_name"], entry["hf_subset"])
                revisions.setdefault(place, {})[str(result["dataset_revision"])] = None
                rows = places.setdefault(place, [])
                model = (result["model"] or {}).get("model") or result["method"]
                rows.append(_Row(model, result["method"], _MEASURED, entry))
    parts = []
    for (task, subset), rows in places.items():
        beside = [row for row in published or () if (row.task_name, row.subset) == (task, subset)]
        beside.sort(key=lambda row: row.method != UNCALIBRATED)
        marks = {"published": "quoted: ", "derived": "derived from "}
        rows += [_Row(r.model, r.method, f"{marks.get(r.status, '')}{_origin(r)}", r.figures) for r in beside]
        # Rows of one model stand together, models in the order in which they first come.
        order = list(dict.fromkeys(_short(row.model) for row in rows))
        rows.sort(key=lambda row: order.index(_short(row.model)))
        title = task if subset == "default" else f"{task}, {subset}"
        notes = list(dict.fromkeys(f"{row.source}: {row.note}" for row in beside if row.note))
        if len(read := revisions[task, subset]) > 1:
            notes.insert(0, f"Measured on different revisions or files of the data: {', '.join(read)}.")
        parts.append("\n\n".join([f"### {title}", _table(rows, published is not None), *notes]))
    return "\n\n".join(parts)


def _origin(row: PublishedRow) -> str:
    return "measured by this project" if row.status == "measured by this project" else row.source


def _short(model: str) -> str:
    return model.rpartition("/")[2].lower()


def _table(rows: Sequence[_Row], with_origin: bool) -> str:
    by_bucket = any("buckets" in row.figures for row in rows)
    columns = _bucket_columns(rows) if by_bucket else _group_columns(rows)
    # The folder says which model a run is of; a comparison stands alone.
    with_model = with_origin or len({_short(row.model) for row in rows if row.model != row.method}) > 1
    lines = []
    for row in rows:
        cells = [_cell(row.figures, place) for place in columns.values()]
        named = with_model and row.model != row.method  # what has no model is called by its method alone
        lines.append([f"{row.model}, {row.method}" if named else row.method, *cells, row.origin])
        if "difference" in row.figures:
            changes = [_change(row.figures, place) for place in columns.values()]
            lines.append(["  difference", *changes, ""])
    header = ["method", *columns, "from"]
    if not with_origin:
        header, lines = header[:-1], [line[:-1] for line in lines]
    return markdown_table(header, lines)


def _group_columns(rows: Sequence[_Row]) -> dict[str, tuple[str, ...]]:
    """Column titles, and where in an entry their figures stand. The groups are those that were measured."""
    measured = [row.figures for row in rows if row.origin == _MEASURED]
    groups = dict.fromkeys(group for figures in measured for group in figures.get("groups", {}))
    columns: dict[str, tuple[str, ...]] = {group: ("groups", group) for group in groups}
    columns |= {title: (key,) for key, title in _SUMMARIES.items()}
    return columns | {f"recall@{_RECALL}": (f"recall_at_{_RECALL}",)}


def _bucket_columns(rows: Sequence[_Row]) -> dict[str, tuple[str, ...]]:
    """As PosIR prints them: of all queries the mean, of a length bucket the mean of its bins; then PSI."""
    buckets = list(dict.fromkeys(bucket for row in rows for bucket in row.figures.get("buckets", {})))
    columns: dict[str, tuple[str, ...]] = {"nDCG all": ("ndcg_at_10",)}
    columns |= {f"nDCG {bucket}": ("buckets", bucket, "macro_ndcg_at_10") for bucket in buckets}
    columns |= {"PSI all": ("psi",)}
    return columns | {f"PSI {bucket}": ("buckets", bucket, "psi") for bucket in buckets}


def _find(entry: Mapping[str, Any], place: Sequence[str]) -> Any:
    value: Any = entry
    for key in place:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _cell(entry: Mapping[str, Any], place: tuple[str, ...]) -> str:
    value = _find(entry, place)
    if value is None:
        return _EMPTY
    return f"{value:.3f}" if place[-1] == "psi" else f"{100 * value:.2f}"


def _change(entry: Mapping[str, Any], place: tuple[str, ...]) -> str:
    """The difference at the same place, which within a bucket is the bucket's own."""
    if place[0] == "buckets":
        change = _find(entry, (*place[:2], "difference", *place[2:]))
    else:
        change = _find(entry, ("difference", *place))
    if change is None:
        return ""
    scale, digits = (1, 3) if place[-1] == "psi" else (100, 2)
    estimate, low, high = (f"{scale * change[key]:+.{digits}f}" for key in ("estimate", "low", "high"))
    return f"{estimate} [{low}, {high}]"
