"""Run and qrels files as trec_eval reads them.

A run line is "topic Q0 passage rank similarity tag", a qrels line "topic 0 passage 1". A topic is a query; where a
query is asked for several passages in turn, each with the others out of the way, it is "query/passage". trec_eval reads
similarities as float32, which nine digits give back exactly, and orders equal ones by descending id, as the run does.
"""

import re
from collections.abc import Iterator
from typing import TextIO

import numpy as np

from jaxcal.evaluation.datasets.base import PositionDataset
from jaxcal.evaluation.search import Run

_UNSAFE = re.compile(r"[\s%]")


def write_run(file: TextIO, dataset: PositionDataset, run: Run, tag: str, prefix: str = "") -> None:
    """Append the run of a data set's topics; the prefix keeps topics of several data sets apart."""
    names = [_safe(name) for name in dataset.passage_ids]
    tag = _safe(tag)
    for topic, passages, similarities in zip(topic_ids(dataset, prefix), *run, strict=True):
        count = int((passages >= 0).sum())
        rows = zip(passages[:count].tolist(), similarities[:count].tolist(), strict=True)
        file.write("".join(f"{topic} Q0 {names[p]} {i} {s:.9g} {tag}\n" for i, (p, s) in enumerate(rows, 1)))


def write_qrels(file: TextIO, dataset: PositionDataset, prefix: str = "") -> None:
    """Append the judgements of a data set's topics."""
    golds = dataset.topics.gold.tolist()
    for topic, gold in zip(topic_ids(dataset, prefix), golds, strict=True):
        file.write(f"{topic} 0 {_safe(dataset.passage_ids[gold])} 1\n")


def topic_ids(dataset: PositionDataset, prefix: str = "") -> Iterator[str]:
    """The names of a data set's topics."""
    query, gold = dataset.topics.query, dataset.topics.gold
    several = np.bincount(query, minlength=len(dataset.queries)) > 1
    for q, g in zip(query.tolist(), gold.tolist(), strict=True):
        name = f"{dataset.query_ids[q]}/{dataset.passage_ids[g]}" if several[q] else dataset.query_ids[q]
        yield _safe(prefix + name)


def _safe(name: str) -> str:
    """A name without white space, which separates the fields of these files; % as in addresses."""
    return _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)
