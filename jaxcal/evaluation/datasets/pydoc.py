"""PyDoc-PosQ, the data set that is shipped: see `jaxcal/evaluation/pydoc_posq/README.md`."""

import hashlib
import json
from collections.abc import Mapping
from importlib import resources

import numpy as np

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.datasets.base import Benchmark, PositionDataset, Task
from jaxcal.evaluation.pydoc_posq import GROUPS, VARIANTS, rotate, rotation_by_group


def load_pydoc_posq(variant: str = "short") -> PositionDataset:
    """Load PyDoc-PosQ: the summary lines of standard-library docstrings, asked of documents made of their bodies.

    Every document stands in `passages` three times, as rotations of its sections, and every query is judged three
    times, against the rotation that puts its answer in the first, the middle and the last third. The competitors are
    all other documents in their first rotation, the order of the source. They are thus the same passages, with the same
    similarities, in all three groups: between the groups nothing changes for a query but where its answer stands. (Had
    the competitors been rotated along with the gold passage, a group's score would also hold how well *their* order
    happens to match the query; and a document never competes with its own rotations, which say the same.)

    Passage 3 d + r is rotation r of document d. README.md beside the data tells how it was made, NOTICE its licence.

    Args:
        variant: "short" (300 to 480 tokens of all-MiniLM-L6-v2) or "long" (1,200 to 2,000).

    Raises:
        InvalidSetting: there is no such variant.
        InvalidInput: the shipped file was changed so that a query's answer no longer stands once in each third.
    """
    documents, queries = read_pydoc_posq(variant)
    index = {document["id"]: i for i, document in enumerate(documents)}
    judgements = []
    for q, query in enumerate(queries):
        d = index[query["document"]]
        lengths = [len(section) for section in documents[d]["sections"]]
        rotations = rotation_by_group(lengths, documents[d]["rotations"], query["section"])
        if rotations is None:
            raise InvalidInput(f"{variant}.jsonl is damaged: query {query['id']} does not stand once in each third.")
        judgements += [(q, 3 * d + r, group) for group, r in enumerate(rotations)]
    query_of, gold, group_of = np.array(judgements).T
    return PositionDataset(
        name=f"PyDoc-PosQ {variant}",
        queries=tuple(query["text"] for query in queries),
        passages=tuple(rotate(d["sections"], start) for d in documents for start in d["rotations"]),
        groups=GROUPS,
        query=query_of,
        gold=gold,
        group=group_of,
        pool=3 * np.arange(len(documents)),
        query_ids=tuple(query["id"] for query in queries),
        passage_ids=tuple(f"{d['id']}/{r}" for d in documents for r in range(3)),
        counts={"queries": len(queries), "documents": len(documents)},
    )


def read_pydoc_posq(variant: str = "short") -> tuple[list[Mapping], list[Mapping]]:
    """Read the records of PyDoc-PosQ as they stand in the file.

    Returns:
        documents, each with "id", "source", "rotations" (the section each rotation begins with) and "sections", and
        queries, each with "id", "text", "document" and "section" (the answering section).

    Raises:
        InvalidSetting: there is no such variant.
    """
    if variant not in VARIANTS:
        raise InvalidSetting(f"PyDoc-PosQ has no variant {variant!r}: choose one of {', '.join(VARIANTS)}.")
    text = (resources.files("jaxcal.evaluation.pydoc_posq") / f"{variant}.jsonl").read_text(encoding="utf-8")
    # Not splitlines(), which would also cut at separators that JSON leaves inside strings.
    records = [json.loads(line) for line in text.split("\n") if line]
    return [r for r in records if "sections" in r], [r for r in records if "sections" not in r]


def pydoc_posq(variant: str = "short") -> Benchmark:
    """PyDoc-PosQ as a benchmark; arguments and errors of `load_pydoc_posq`."""
    dataset = load_pydoc_posq(variant)
    file = resources.files("jaxcal.evaluation.pydoc_posq") / f"{variant}.jsonl"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Benchmark(
        name=dataset.name,
        split="test",
        source={"files": {f"{variant}.jsonl": digest}},
        tasks=(Task("default", ("eng-Latn",), lambda: [dataset]),),
    )
