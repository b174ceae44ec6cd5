"""Exact retrieval in blocks: the most similar passages of every query, on whatever device JAX has.

Passages visit the device block by block and each query keeps its best so far, so memory depends on how many are kept
and on the size of a block, not on how many passages there are. Similarities are inner products in full float32.

Equal similarities are ranked by descending passage id, as trec_eval ranks them, so that it finds the same ranks in a
run file.

Axis letters: Q queries, P passages, U topics, D width, K passages kept.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from tqdm import tqdm

from jaxcal.batching import bucket
from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.datasets.base import PositionDataset, Ties
from jaxcal.evaluation.metrics import Ranks

# Queries and passages compared at once: 1024 x 32768 similarities take 128 MB.
_QUERIES, _PASSAGES = 1024, 32768
_SCORES = 1 << 25  # scores of a function held at once
NOT_RETRIEVED = 1 << 30  # as a number of passages above: a rank that never counts


class Run(NamedTuple):
    """What was retrieved, best first.

    Attributes:
        passages: [U, K] indices of passages, -1 where there are fewer than K.
        similarities: [U, K] float32, -infinity where there is no passage.
    """

    passages: Int[np.ndarray, "u k"]
    similarities: Float[np.ndarray, "u k"]

    def ranks(self, gold: Int[np.ndarray, " u"], ties: Ties = "average") -> Ranks:
        """Where the gold passages [U] stand among those retrieved.

        Args:
            gold: index of each topic's gold passage.
            ties: "average": passages of the same similarity are tied; "trec": they stand in the order of the run.
        """
        at_gold = self.passages == gold[:, None]
        found, column = at_gold.any(axis=1), at_gold.argmax(axis=1)
        if ties == "trec":
            above, tied = column, np.zeros(len(gold), np.int64)
        else:
            own = np.take_along_axis(self.similarities, column[:, None], axis=1)
            above = (self.similarities > own).sum(axis=1)
            tied = (self.similarities == own).sum(axis=1) - 1
        return Ranks(np.where(found, above, NOT_RETRIEVED), np.where(found, tied, 0))


def retrieve(
    dataset: PositionDataset,
    query_vectors: Float[np.ndarray, "q d"],
    passage_vectors: Float[np.ndarray, "p d"],
    depth: int = 100,
    *,
    show_progress: bool = False,
) -> Run:
    """Retrieve for every topic of a data set by inner product.

    Args:
        dataset: queries, passages and topics.
        query_vectors: [Q, D], one a query.
        passage_vectors: [P, D], one a passage; may be a memory map.
        depth: passages to keep for each topic.
        show_progress: show a progress bar with an estimate of the time left.

    Raises:
        InvalidInput: a shape does not fit the data set, or a vector holds NaN or infinity.
        InvalidSetting: depth is below 1.
    """
    query_vectors = _checked(dataset, "query", query_vectors, len(dataset.queries))
    passage_vectors = _checked(dataset, "passage", passage_vectors, len(dataset.passages))
    if query_vectors.shape[1] != passage_vectors.shape[1]:
        raise InvalidInput(
            f"Query vectors have {query_vectors.shape[1]} dimensions, passage vectors {passage_vectors.shape[1]}:"
            " encode both with one model."
        )

    def best(queries: np.ndarray, order: np.ndarray, count: int) -> Run:
        return _best_by_vectors(query_vectors[queries], passage_vectors, order, count, show_progress)

    def own(query: np.ndarray, gold: np.ndarray) -> np.ndarray:
        return np.einsum("ud,ud->u", query_vectors[query], passage_vectors[gold], dtype=np.float64)

    return _retrieve(dataset, best, own, depth)


def retrieve_by_scores(
    dataset: PositionDataset,
    scores: Callable[[int], Float[np.ndarray, " p"]],
    depth: int = 100,
    *,
    show_progress: bool = False,
) -> Run:
    """Retrieve for every topic by a function from a query's index to the scores [P] of all passages; as `retrieve`."""

    def best(queries: np.ndarray, order: np.ndarray, count: int) -> Run:
        parts = []
        step = max(1, min(_QUERIES, _SCORES // max(len(order), 1)))
        for start in tqdm(range(0, len(queries), step), desc="search", disable=not show_progress):
            rows = np.stack([scores(query)[order] for query in queries[start : start + step]])
            parts.append(_best_of(jnp.asarray(rows, jnp.float32), min(count, len(order))))
        values, columns = (np.concatenate([np.asarray(part[i]) for part in parts]) for i in (0, 1))
        return Run(order[columns], values)

    def own(query: np.ndarray, gold: np.ndarray) -> np.ndarray:
        return np.array([scores(q)[g] for q, g in zip(query, gold, strict=True)])

    return _retrieve(dataset, best, own, depth)


def _checked(dataset: PositionDataset, what: str, vectors: np.ndarray, count: int) -> np.ndarray:
    vectors = np.asanyarray(vectors)
    if vectors.ndim != 2 or len(vectors) != count:
        raise InvalidInput(f"{what}_vectors has shape {vectors.shape}; '{dataset.name}' needs [{count}, D].")
    for start in range(0, count, _PASSAGES):
        wrong = np.flatnonzero(~np.isfinite(vectors[start : start + _PASSAGES]).all(axis=1))
        if wrong.size:
            raise InvalidInput(f"{what}_vectors[{start + wrong[0]}] is not finite: the encoding failed.")
    return vectors


# --- the best passages of each query ----------------------------------------------------------------------------------


def _best_by_vectors(
    queries: np.ndarray, passages: np.ndarray, order: np.ndarray, count: int, show_progress: bool
) -> Run:
    """The `count` best of the passages `order`, for each query; of equal ones those that stand first in `order`."""
    count = min(count, len(order))
    rows = min(_QUERIES, bucket(max(len(queries), 1)))
    columns = max(min(_PASSAGES, bucket(max(len(order), 1))), count)
    starts = range(0, len(queries), rows)
    padded = [jnp.asarray(_fill(queries[start : start + rows].astype(np.float32), rows)) for start in starts]
    nothing = (jnp.full((rows, count), -jnp.inf, jnp.float32), jnp.full((rows, count), -1, jnp.int32))
    kept = [nothing] * len(padded)
    total = len(padded) * -(-len(order) // columns)
    with tqdm(total=total, desc="search", unit="block", disable=not show_progress) as bar:
        for start in range(0, len(order), columns):
            indices = order[start : start + columns]
            block = jnp.asarray(_fill(passages[indices].astype(np.float32), columns))
            places = jnp.asarray(_fill(indices.astype(np.int32), columns, -1))
            for number, part in enumerate(padded):
                kept[number] = _merge(part, block, places, *kept[number])
                bar.update()
            jax.block_until_ready(kept)  # so that the bar tells the truth, and one block of passages is held at a time
    return Run(*(np.concatenate([np.asarray(part[i]) for part in kept])[: len(queries)] for i in (1, 0)))


def _fill(array: np.ndarray, length: int, value: int = 0) -> np.ndarray:
    """Lengthen an array along its first axis, so that all blocks have one shape and one program serves them."""
    return np.concatenate([array, np.full((length - len(array), *array.shape[1:]), value, array.dtype)])


@jax.jit
def _merge(queries: Array, block: Array, places: Array, values: Array, passages: Array) -> tuple[Array, Array]:
    """The best of what was kept [n, K] and of a block of passages [m, D]; places [m] are -1 for padding."""
    similarities = jnp.matmul(queries, block.T, precision="highest")
    similarities = jnp.where(places >= 0, similarities, -jnp.inf)
    count = values.shape[1]
    # top_k prefers the first of equal values; those kept before stand first in the order, and come first here too.
    best, columns = jax.lax.top_k(similarities, count)
    return _best_pairs(jnp.concatenate([values, best], 1), jnp.concatenate([passages, places[columns]], 1), count)


def _best_pairs(values: Array, passages: Array, count: int) -> tuple[Array, Array]:
    values, columns = jax.lax.top_k(values, count)
    return values, jnp.take_along_axis(passages, columns, axis=1)


@functools.partial(jax.jit, static_argnums=1)
def _best_of(scores: Array, count: int) -> tuple[Array, Array]:
    values, columns = jax.lax.top_k(scores, count)
    return values, columns


# --- from queries to topics -------------------------------------------------------------------------------------------


def _retrieve(
    dataset: PositionDataset,
    best: Callable[[np.ndarray, np.ndarray, int], Run],
    own: Callable[[np.ndarray, np.ndarray], np.ndarray],
    depth: int,
) -> Run:
    """One search a query, then each topic's own candidates: without its query's other gold passages, with its own."""
    if depth < 1:
        raise InvalidSetting(f"depth is {depth}; at least one passage must be retrieved.")
    # Ids stand in descending order, as trec_eval's tie rule wants them, by their UTF-8 bytes.
    ids = [name.encode() for name in dataset.passage_ids]
    preferred = np.array(sorted(range(len(ids)), key=ids.__getitem__, reverse=True), np.int64)
    pooled = np.zeros(len(ids), bool)
    pooled[dataset.pool] = True
    topics = dataset.topics
    queries, row = np.unique(topics.query, return_inverse=True)
    golds = np.bincount(row)  # of each query
    others = int(golds.max(initial=1)) - 1
    run = best(queries, preferred[pooled[preferred]], depth + others)
    if not others and pooled[topics.gold].all():
        return Run(run.passages[row], run.similarities[row])
    preference = np.empty(len(ids), np.int64)
    preference[preferred] = np.arange(len(ids))
    rivals = _golds_of_queries(topics.gold, row, golds)
    parts = []
    step = max(1, _SCORES // ((run.passages.shape[1] + 1) * (others + 1)))
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        gold = topics.gold[part]
        outside = ~pooled[gold]
        similarity = np.full(len(gold), -np.inf, np.float32)
        similarity[outside] = own(topics.query[part][outside], gold[outside])
        passages = np.concatenate([run.passages[row[part]], np.where(outside, gold, -1)[:, None]], axis=1)
        similarities = np.concatenate([run.similarities[row[part]], similarity[:, None]], axis=1)
        barred = (passages[:, :, None] == rivals[row[part]][:, None, :]).any(axis=2) & (passages != gold[:, None])
        similarities, passages = np.where(barred, -np.inf, similarities), np.where(barred, -1, passages)
        sequence = np.lexsort((preference[passages], -similarities), axis=1)[:, :depth]
        parts.append([np.take_along_axis(array, sequence, axis=1) for array in (passages, similarities)])
    return Run(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _golds_of_queries(gold: np.ndarray, row: np.ndarray, golds: np.ndarray) -> np.ndarray:
    """The gold passages of each query, padded with -2; topics stand in the order of their queries."""
    table = np.full((len(golds), golds.max()), -2, np.int64)
    table[row, np.arange(len(row)) - np.repeat(np.cumsum(golds) - golds, golds)] = gold
    return table
