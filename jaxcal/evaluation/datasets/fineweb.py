"""FineWeb-PosQ: long web passages with questions about their beginning, middle or end.

Data: NovaSearch/FineWeb-PosQ, the filtered set; protocol: Zeng et al., arXiv 2505.13950, and
NovaSearch-Team/position-bias-in-IR. Figures of arXiv 2505.13950 v1 are of the older, unfiltered set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcal.evaluation.datasets.base import THIRDS, Benchmark, PositionDataset, Task
from jaxcal.evaluation.datasets.rows import (
    Policy,
    Refusals,
    Source,
    columns,
    find_files,
    list_of,
    read_rows,
    text_of,
)

REPOSITORY = "NovaSearch/FineWeb-PosQ"
# The hub's tools call all files "train" where none has the word in its name.
_FILES = tuple(f"{name}.{suffix}" for name in ("*train*", "*") for suffix in ("parquet", "jsonl", "json"))


def load_fineweb_posq(
    files: Sequence[str] | str | None = None,
    *,
    revision: str | None = None,
    malformed: Policy = "stop",
    local_files_only: bool = False,
) -> Benchmark:
    """Load FineWeb-PosQ: all contents are passages; a question counts in each group that its span_class names.

    Args:
        files: local copies instead of the hub's: .parquet, .jsonl or .json with question, content and span_class; or a
            folder with them.
        revision: branch, tag or commit on the hub.
        malformed: "stop" at a malformed row, or "skip" it; skipped rows are counted.
        local_files_only: never touch the network.

    Raises:
        InvalidInput: a malformed row, with file, row and field.
        CheckpointNotFound: the hub's files cannot be had.
    """
    source, names = find_files(files, REPOSITORY, [_FILES], revision=revision, local_files_only=local_files_only)
    return Benchmark(
        name="FineWeb-PosQ",
        split="train",
        source=source.origin(names),
        tasks=(Task("default", ("eng-Latn",), lambda: [_by_class(source, names, malformed)]),),
    )


def _by_class(source: Source, names: Sequence[str], malformed: Policy) -> PositionDataset:
    refusals = Refusals(malformed)
    passages: dict[str, int] = {}
    queries: dict[str, int] = {}
    gold: dict[str, int] = {}
    asked: list[tuple[str, list[int]]] = []
    counts: dict[str, int] = dict.fromkeys(
        ("rows read", "without a question", "without a class", "in several groups"), 0
    )
    for name in names:
        for number, row in read_rows(source.fetch(name)):
            counts["rows read"] += 1
            with refusals.row(name, number):
                question, content, groups = _row(row)
                # Quirk: a row without a question only adds its passage.
                passage = passages.setdefault(content, len(passages))
                if question is None:
                    counts["without a question"] += 1
                    continue
                queries.setdefault(question, len(queries))
                # Quirk: the gold passage is looked up by the question's text, so the last one of a repeated question
                # counts.
                gold[question] = passage
                asked.append((question, groups))
                counts["without a class"] += not groups
                counts["in several groups"] += len(groups) > 1
    judged = [(queries[text], gold[text], group) for text, groups in asked for group in groups]
    counts |= {"refused": refusals.count, "passages": len(passages), "different queries": len(queries)}
    return PositionDataset(
        name="FineWeb-PosQ",
        queries=tuple(queries),
        passages=tuple(passages),
        groups=THIRDS,
        **columns(judged),
        counts=counts,
    )


def _row(row: Mapping[str, Any]) -> tuple[str | None, str, list[int]]:
    """Question, content, and the groups it counts in."""
    content = text_of(row, "content")
    if row.get("question") in (None, ""):
        return None, content, []
    question = text_of(row, "question")
    listed = isinstance(row.get("span_class"), list)
    classes = list_of(row, "span_class", str) if listed else text_of(row, "span_class")
    # Quirk: one membership test for lists and strings, so the string "beginning,middle" is in both groups.
    return question, content, [number for number, group in enumerate(THIRDS) if group in classes]
