"""Retrieval data sets whose queries are grouped by where in the passage the answer stands."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from importlib import resources

import numpy as np

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.metrics import Ranks, gold_ranks
from jaxcal.evaluation.pydoc_posq import GROUPS, VARIANTS, rotate, rotation_by_group

MAX_SIMILARITIES = 1 << 24  # float values held at once while ranking


@dataclasses.dataclass(frozen=True, eq=False)
class PositionDataset:
    """Queries, passages, and judgements that say which passage answers a query, and which positional group that tests.

    A judgement j is one retrieval: query `query[j]` looks for passage `gold[j]`, and its score counts for group
    `groups[group[j]]`. Its candidates are its gold passage and every passage of `pool` that shows another document.
    So each text is encoded once, whatever the number of groups, and two kinds of data set fit:

    - one document, several versions (PyDoc-PosQ): `document` tells which passages are versions of one document, and
      `pool` holds one fixed version of each. The same queries are judged in every group.
    - one corpus (SQuAD-PosQ, FineWeb-PosQ): every passage is its own document and all of them are in the pool. A query
      is judged once, in the group of its answer (or twice, where bins overlap).

    Attributes:
        name: what reports call the data set.
        queries: Q texts.
        passages: P texts.
        groups: G names, in order of position.
        query, gold, group: [J] integers, indices into queries, passages and groups.
        pool: [C] integers, indices of the passages that compete in every judgement.
        document: [P] integers, the document each passage shows.

    Raises:
        InvalidInput: an index outside its range, arrays of unequal length, a passage twice in the pool, an empty group.
    """

    name: str
    queries: tuple[str, ...]
    passages: tuple[str, ...]
    groups: tuple[str, ...]
    query: np.ndarray
    gold: np.ndarray
    group: np.ndarray
    pool: np.ndarray
    document: np.ndarray

    def __post_init__(self):
        for field in ("query", "gold", "group", "pool", "document"):
            array = np.array(getattr(self, field))  # a copy, so that nobody else can write to it
            if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
                raise InvalidInput(f"Data set '{self.name}': '{field}' must be one row of integers, not {array.dtype}.")
            array = array.astype(np.int64)
            array.setflags(write=False)
            object.__setattr__(self, field, array)
        self._check()

    def _check(self) -> None:
        where = f"Data set '{self.name}'"
        if not len(self.query) == len(self.gold) == len(self.group):
            sizes = f"{len(self.query)}, {len(self.gold)} and {len(self.group)}"
            raise InvalidInput(
                f"{where}: 'query', 'gold' and 'group' have {sizes} entries; each needs one a judgement."
            )
        if len(self.document) != len(self.passages):
            raise InvalidInput(
                f"{where}: 'document' has {len(self.document)} entries for {len(self.passages)} passages."
            )
        limits = {"query": self.queries, "gold": self.passages, "group": self.groups, "pool": self.passages}
        for field, target in limits.items():
            values = getattr(self, field)
            wrong = np.flatnonzero((values < 0) | (values >= len(target)))
            if wrong.size:
                i = wrong[0]
                raise InvalidInput(f"{where}: {field}[{i}] is {values[i]}, but only 0 to {len(target) - 1} exist.")
        if len(np.unique(self.pool)) != len(self.pool):
            raise InvalidInput(f"{where}: a passage stands twice in 'pool'; list each competing passage once.")
        empty = [name for i, name in enumerate(self.groups) if not (self.group == i).any()]
        if empty or not self.groups:
            raise InvalidInput(f"{where}: no judgement in group {empty}; leave out groups without queries.")

    @functools.cached_property
    def same_queries(self) -> bool:
        """Whether every group judges the same queries, each once: then groups can be compared query by query."""
        parts = [np.sort(self.query[self.group == i]) for i in range(len(self.groups))]
        return all(np.array_equal(part, np.unique(parts[0])) for part in parts)

    def by_group(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Split one value a judgement [J] into one array a group, each in order of the query's index.

        Raises:
            InvalidInput: the number of values is not the number of judgements.
        """
        values = np.asarray(values)
        if values.shape != self.query.shape:
            raise InvalidInput(f"Got values of shape {values.shape} for {len(self.query)} judgements of '{self.name}'.")
        order = np.argsort(self.query, kind="stable")
        return {name: values[order[self.group[order] == i]] for i, name in enumerate(self.groups)}

    def ranks(self, query_vectors: np.ndarray, passage_vectors: np.ndarray) -> Ranks:
        """Rank the gold passage of every judgement among its candidates, by inner product.

        Args:
            query_vectors: [Q, D], one a query.
            passage_vectors: [P, D], one a passage.

        Returns:
            Ranks of [J] counts, in the order of the judgements.

        Raises:
            InvalidInput: a shape does not fit the data set, or a vector holds NaN or infinity.
        """
        query_vectors = self._checked_vectors("query", query_vectors, len(self.queries))
        passage_vectors = self._checked_vectors("passage", passage_vectors, len(self.passages))
        if query_vectors.shape[1] != passage_vectors.shape[1]:
            raise InvalidInput(
                f"Query vectors have {query_vectors.shape[1]} dimensions, passage vectors {passage_vectors.shape[1]}:"
                " encode both with one model."
            )
        above, tied = np.zeros(len(self.query), np.int64), np.zeros(len(self.query), np.int64)
        order = np.argsort(self.query, kind="stable")
        step = max(1, MAX_SIMILARITIES // max(len(self.passages), 1))
        for begin in range(0, len(order), step):
            block = order[begin : begin + step]
            above[block], tied[block] = self._rank_block(block, query_vectors, passage_vectors)
        return Ranks(above, tied)

    def _checked_vectors(self, what: str, vectors: np.ndarray, count: int) -> np.ndarray:
        """Return the vectors in a type that products are exact enough in, or raise InvalidInput."""
        vectors = np.asarray(vectors)
        if vectors.ndim != 2 or len(vectors) != count:
            raise InvalidInput(f"{what}_vectors has shape {vectors.shape}; '{self.name}' needs [{count}, D].")
        if vectors.dtype not in (np.float32, np.float64):
            vectors = vectors.astype(np.float32)
        wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if wrong.size:
            raise InvalidInput(f"{what}_vectors[{wrong[0]}] is not finite (one of {wrong.size}): the encoding failed.")
        return vectors

    def _rank_block(self, block: np.ndarray, query_vectors: np.ndarray, passage_vectors: np.ndarray) -> Ranks:
        rows, row_of = np.unique(self.query[block], return_inverse=True)
        similarities = query_vectors[rows] @ passage_vectors.T
        gold = self.gold[block]
        # Column 0 is the gold passage; the other versions of its document do not compete.
        candidates = np.concatenate([gold[:, None], np.broadcast_to(self.pool, (len(block), len(self.pool)))], axis=1)
        allowed = self.document[candidates] != self.document[gold][:, None]
        allowed[:, 0] = True
        return gold_ranks(similarities[row_of[:, None], candidates], np.zeros(len(block), np.int64), allowed)


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
        document=np.repeat(np.arange(len(documents)), 3),
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
