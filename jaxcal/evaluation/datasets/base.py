"""What a position-aware data set is: queries, passages, and judgements grouped by where in the passage the answer is.

Axis letters: Q queries, P passages, J judgements, U topics.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from jaxcal.errors import InvalidInput

# The default of a field that __post_init__ fills from the others; cast, so that readers need not think of None.
_FILLED = cast(Any, None)
Ties = Literal["average", "trec"]
THIRDS = ("beginning", "middle", "end")
"""Groups of data sets that tell positions by thirds of the passage."""
_ARRAYS = ("query", "gold", "group", "pool", "bucket")


@dataclasses.dataclass(frozen=True, eq=False)
class PositionDataset:
    """Queries, passages, and judgements that say which passage answers a query, and which positional group that tests.

    A judgement j is one retrieval: query `query[j]` looks for passage `gold[j]`, and its score counts for group
    `groups[group[j]]`. Its candidates are its gold passage and every passage of `pool` that is not gold for the same
    query in another judgement. So each text is encoded once, whatever the number of groups, and three kinds of data
    set fit:

    - one corpus (SQuAD-PosQ, FineWeb-PosQ, PosIR): all passages are in the pool, and a query is judged once, in the
      group of its answer (or in several, where groups overlap).
    - one document, several versions (PyDoc-PosQ): `pool` holds one fixed version of each document, and the same queries
      are judged in every group, each time against the version that puts the answer there. The other versions are gold
      in other groups, so a document never competes with itself.
    - a query with several relevant passages (a user's own data): it is judged once for each, and the others do not
      compete.

    Attributes:
        name: what reports call the data set.
        queries: Q texts.
        passages: P texts.
        groups: G names, in order of position.
        query, gold, group: [J] integers, indices into queries, passages and groups.
        pool: indices of the passages that compete in every judgement; None: all.
        query_ids, passage_ids: names of the queries and passages in result files; None: "0", "1", ...
        buckets: names of a second grouping, such as document lengths; none by default.
        bucket: [J] integers, indices into buckets.
        counts: what happened to the rows the data set was read from, for reports: {"rows read": 92749, ...}.

    Raises:
        InvalidInput: an index outside its range, arrays of unequal length, a passage twice in the pool, an id twice.
    """

    name: str
    queries: tuple[str, ...]
    passages: tuple[str, ...]
    groups: tuple[str, ...]
    query: np.ndarray
    gold: np.ndarray
    group: np.ndarray
    pool: np.ndarray = _FILLED
    query_ids: tuple[str, ...] = _FILLED
    passage_ids: tuple[str, ...] = _FILLED
    buckets: tuple[str, ...] = ()
    bucket: np.ndarray = _FILLED
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        defaults = {
            "pool": lambda: np.arange(len(self.passages)),
            "bucket": lambda: np.zeros(len(self.query), np.int64),
            "query_ids": lambda: tuple(map(str, range(len(self.queries)))),
            "passage_ids": lambda: tuple(map(str, range(len(self.passages)))),
        }
        for field, make in defaults.items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, make())
        for field in _ARRAYS:
            array = np.array(getattr(self, field))  # a copy, so that nobody else can write to it
            if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
                raise InvalidInput(f"Data set '{self.name}': '{field}' must be one row of integers, not {array.dtype}.")
            array = array.astype(np.int64)
            array.setflags(write=False)
            object.__setattr__(self, field, array)
        self._check()

    def _check(self) -> None:
        where = f"Data set '{self.name}'"
        sizes = {field: len(getattr(self, field)) for field in ("query", "gold", "group", "bucket")}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"'{field}' {size}" for field, size in sizes.items())
            raise InvalidInput(f"{where}: each judgement needs one entry in every array; there are {listed}.")
        limits = {
            "query": self.queries,
            "gold": self.passages,
            "group": self.groups,
            "pool": self.passages,
            "bucket": self.buckets or ("all",),
        }
        for field, target in limits.items():
            values = getattr(self, field)
            wrong = np.flatnonzero((values < 0) | (values >= len(target)))
            if wrong.size:
                i = wrong[0]
                raise InvalidInput(f"{where}: {field}[{i}] is {values[i]}, but only 0 to {len(target) - 1} exist.")
        if len(np.unique(self.pool)) != len(self.pool):
            raise InvalidInput(f"{where}: a passage stands twice in 'pool'; list each competing passage once.")
        for field, target in (("query_ids", self.queries), ("passage_ids", self.passages)):
            ids = getattr(self, field)
            if len(ids) != len(target):
                raise InvalidInput(f"{where}: '{field}' has {len(ids)} entries for {len(target)} texts.")
            if len(set(ids)) != len(ids):
                raise InvalidInput(f"{where}: an id stands twice in '{field}'.")

    @functools.cached_property
    def same_queries(self) -> bool:
        """Whether every group judges the same queries, each once: then groups can be compared query by query."""
        parts = [np.sort(self.query[self.group == i]) for i in range(len(self.groups))]
        return all(np.array_equal(part, np.unique(parts[0])) for part in parts)

    @functools.cached_property
    def topics(self) -> "Topics":
        """The retrievals that differ: judgements with the same query and the same gold passage share one."""
        pairs = np.stack([self.query, self.gold], axis=1)
        unique, of_judgement = np.unique(pairs, axis=0, return_inverse=True)
        return Topics(unique[:, 0], unique[:, 1], of_judgement.reshape(-1))

    def by_group(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Split one value a judgement [J] into one array a group, each in order of the query's index.

        Raises:
            InvalidInput: the number of values is not the number of judgements.
        """
        values = np.asarray(values)
        if values.shape != self.query.shape:
            raise InvalidInput(f"Got values of shape {values.shape} for {len(self.query)} judgements of '{self.name}'.")
        return split_by_group(values, self.query, self.group, self.groups)


def split_by_group(
    values: np.ndarray, query: np.ndarray, group: np.ndarray, groups: Sequence[str]
) -> dict[str, np.ndarray]:
    """Split values [J] by the group [J] of each judgement, in order of the query [J] within a group."""
    order = np.argsort(query, kind="stable")
    return {name: values[order[group[order] == i]] for i, name in enumerate(groups)}


@dataclasses.dataclass(frozen=True, eq=False)
class Topics:
    """The different retrievals of a data set.

    Attributes:
        query, gold: [U] indices of the query and of its gold passage.
        of_judgement: [J] index of each judgement's topic.
    """

    query: np.ndarray
    gold: np.ndarray
    of_judgement: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A part of a benchmark that is scored by itself: a language, a pair of languages, or the whole.

    Attributes:
        subset: its name, "default" if there is only one.
        languages: codes such as "eng-Latn", of the queries first.
        load: reads the data sets. They are searched apart, each in its own passages; their judgements are then pooled.
            All of them have the same groups and buckets.
        parts: names of the data sets, known before they are loaded.
    """

    subset: str
    languages: tuple[str, ...]
    load: Callable[[], Sequence[PositionDataset]]
    parts: tuple[str, ...] = ("default",)


@dataclasses.dataclass(frozen=True, eq=False)
class Benchmark:
    """A data set as the evaluation runs it.

    Attributes:
        name: what results call it, e.g. "SQuAD-PosQ".
        split: the split the texts come from, e.g. "test".
        source: where they come from: a hub repository with "repository" and "revision" (a commit), or "files" with a
            sha256 each; JSON types only.
        tasks: what is scored apart.
        depth: passages retrieved for a query; a gold passage below counts as not found.
        ties: how equal similarities score: "average" gives tied passages the mean of the gains of the ranks they
            occupy, as scikit-learn's ndcg_score does; "trec" ranks them by descending id, as trec_eval does.
        averages: unweighted means over tasks: {"multilingual": (subset, ...)}.
    """

    name: str
    split: str
    source: Mapping[str, Any]
    tasks: tuple[Task, ...]
    depth: int = 100
    ties: Ties = "average"
    averages: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def revision(self) -> str:
        """The commit of a hub repository, or a digest of the local files."""
        known = self.source.get("revision")
        return known or hashlib.sha256(json.dumps(self.source, sort_keys=True).encode()).hexdigest()
