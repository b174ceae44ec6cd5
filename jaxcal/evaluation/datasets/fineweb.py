"""FineWeb-PosQ: long web passages with questions about their beginning, middle or end.

Data: NovaSearch/FineWeb-PosQ, the filtered set; protocol: Zeng et al., arXiv 2505.13950, and
NovaSearch-Team/position-bias-in-IR. Figures of arXiv 2505.13950 v1 are of the older, unfiltered set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcal.evaluation.datasets.base import Benchmark, PositionDataset, Task
from jaxcal.evaluation.datasets.rows import (
    BadField,
    Policy,
    Refusals,
    Source,
    columns,
    hub_source,
    list_of,
    local_source,
    read_rows,
    text_of,
)

REPOSITORY = "NovaSearch/FineWeb-PosQ"
GROUPS = ("beginning", "middle", "end")


def load_fineweb_posq(
    files: Sequence[str] | str | None = None,
    *,
    revision: str | None = None,
    malformed: Policy = "stop",
    local_files_only: bool = False,
) -> Benchmark:
    """Load FineWeb-PosQ: all contents are passages; a question counts in each group that its span_class names.

    Args:
        files: local copies instead of the hub's: .parquet, .jsonl or .json with question, content and span_class.
        revision: branch, tag or commit on the hub.
        malformed: "stop" at a malformed row, or "skip" it; skipped rows are counted.
        local_files_only: never touch the network.

    Raises:
        InvalidInput: a malformed row, with file, row and field.
        CheckpointNotFound: the hub's files cannot be had.
    """
    if files is not None:
        source = local_source(files)
        names = list(source.names)
    else:
        source = hub_source(REPOSITORY, revision=revision, local_files_only=local_files_only)
        names = source.matching("*train*")
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
                # Looked up by text, so that the last passage of a repeated question counts, as in the same authors'
                # SQuAD-PosQ script; for this data set derived, not published.
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
        groups=GROUPS,
        **columns(judged),
        counts=counts,
    )


def _row(row: Mapping[str, Any]) -> tuple[str | None, str, list[int]]:
    """Question, content, and the groups it counts in."""
    content = text_of(row, "content")
    if row.get("question") in (None, ""):
        return None, content, []
    question = text_of(row, "question")
    if isinstance(row.get("span_class"), list):
        classes = " ".join(list_of(row, "span_class", str))
    else:
        classes = text_of(row, "span_class")
    if not classes.strip():
        raise BadField("span_class", "is empty")
    # Quirk: membership is that of a substring, so "beginning,middle" is in both groups.
    return question, content, [number for number, group in enumerate(GROUPS) if group in classes]
