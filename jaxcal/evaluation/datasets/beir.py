"""A user's own data in BEIR's layout, with the positions of the answers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxcal.errors import InvalidInput
from jaxcal.evaluation.datasets.base import THIRDS, Benchmark, PositionDataset, Task
from jaxcal.evaluation.datasets.rows import (
    BadField,
    Policy,
    Refusals,
    columns,
    enter,
    known_of,
    local_source,
    read_rows,
    text_of,
)
from jaxcal.io import read_lines

_SPAN, _GROUP = ("query-id", "corpus-id", "start", "end"), ("query-id", "corpus-id", "group")


def load_beir(
    folder: str,
    *,
    positions: str | None = None,
    split: str = "test",
    called: str | None = None,
    language: str = "eng-Latn",
    malformed: Policy = "stop",
) -> Benchmark:
    """Load a folder with corpus.jsonl, queries.jsonl and qrels/<split>.tsv, and a file that says where answers stand.

    The file of positions is tab-separated with a header, "query-id corpus-id start end" or "query-id corpus-id group".
    Start and end are characters of the passage's "text" (without its title), and the centre of the answer decides
    whether it is in the beginning, the middle or the end third; a group is one of these words.

    Every relevant pair of query and passage is judged by itself, at its own position, and a query's other relevant
    passages do not compete with it. A query without any position is left out and counted; one with positions for only
    some of its passages is refused.

    Args:
        folder: with the files; a passage that has a title is searched as "title text".
        positions: file of positions; positions.tsv in the folder by default.
        split: which qrels. Scores above 0 are relevant, all alike; the others, and those above 1, are counted.
        called: what results call the data set; the folder's name by default.
        language: of the texts, for results.
        malformed: "stop" at a malformed row, or "skip" it; skipped rows are counted.

    Raises:
        InvalidInput: a malformed row, with file, row and field.
    """
    place = Path(folder)
    files = [place / "corpus.jsonl", place / "queries.jsonl", place / "qrels" / f"{split}.tsv"]
    files.append(Path(positions) if positions else place / "positions.tsv")
    source = local_source(files)
    title = called or place.resolve().name

    def load() -> list[PositionDataset]:
        return [_dataset(title, files, Refusals(malformed))]

    tasks = (Task("default", (language,), load),)
    return Benchmark(name=title, split=split, source=source.origin(source.names), tasks=tasks)


def _dataset(name: str, files: list[Path], refusals: Refusals) -> PositionDataset:
    corpus, questions, qrels, positions = files
    counts: dict[str, int] = {}
    passages: dict[str, tuple[str, int]] = {}  # what is searched, and the characters of its text without the title
    for number, row in read_rows(corpus):
        with refusals.row(corpus, number):
            text, title = text_of(row, "text"), text_of(row, "title") if row.get("title") else ""
            enter(passages, text_of(row, "_id"), (f"{title} {text}" if title else text, len(text)))
    queries: dict[str, str] = {}
    for number, row in read_rows(questions):
        with refusals.row(questions, number):
            enter(queries, text_of(row, "_id"), text_of(row, "text"))
    relevant = _relevant(qrels, queries, passages, counts, refusals)
    groups = _groups(positions, relevant, passages, refusals)
    used = {query: None for query, _ in groups}
    for number, (query, passage) in relevant.items():
        if (query, passage) not in groups and query in used:
            raise InvalidInput(
                f"{positions}: query {query!r} has a position for some of its passages but none for {passage!r} "
                f"({qrels}, row {number}), which would compete although it is relevant; add it."
            )
    numbers = {query: i for i, query in enumerate(used)}
    index = {passage: i for i, passage in enumerate(passages)}
    judged = [(numbers[query], index[passage], group) for (query, passage), group in groups.items()]
    counts |= {
        "queries": len(queries),
        "queries without a position": len({query for query, _ in relevant.values()} - set(used)),
        "queries used": len(used),
        "passages": len(passages),
        "judgements": len(judged),
        "refused": refusals.count,
    }
    return PositionDataset(
        name=name,
        queries=tuple(queries[query] for query in used),
        passages=tuple(text for text, _ in passages.values()),
        groups=THIRDS,
        **columns(judged),
        query_ids=tuple(used),
        passage_ids=tuple(passages),
        counts=counts,
    )


def _relevant(
    path: Path, queries: Mapping[str, Any], passages: Mapping[str, Any], counts: dict[str, int], refusals: Refusals
) -> dict[int, tuple[str, str]]:
    """The relevant pairs, by their rows."""
    pairs: dict[int, tuple[str, str]] = {}
    seen: set[tuple[str, str]] = set()
    counts |= {"qrels read": 0, "not relevant": 0, "scores above 1": 0}
    for number, row in _table(path, (("query-id", "corpus-id", "score"),)):
        counts["qrels read"] += 1
        with refusals.row(path, number):
            pair = known_of(row, "query-id", queries), known_of(row, "corpus-id", passages)
            if pair in seen:
                raise BadField("corpus-id", f"is {pair[1]!r} for the second time for query {pair[0]!r}")
            seen.add(pair)
            score = _whole(row, "score")
            if score > 0:
                pairs[number] = pair
            counts["not relevant"] += score <= 0
            counts["scores above 1"] += score > 1  # relevant like any other
    return pairs


def _groups(
    path: Path, relevant: Mapping[int, tuple[str, str]], passages: Mapping[str, tuple[str, int]], refusals: Refusals
) -> dict[tuple[str, str], int]:
    """The group of each relevant pair that has a position."""
    groups: dict[tuple[str, str], int] = {}
    pairs = set(relevant.values())
    for number, row in _table(path, (_SPAN, _GROUP)):
        with refusals.row(path, number):
            pair = (row["query-id"], row["corpus-id"])
            if pair not in pairs:
                raise BadField("corpus-id", f"{pair[1]!r} is not relevant for query {pair[0]!r}")
            if pair in groups:
                raise BadField("corpus-id", f"{pair[1]!r} has a second position for query {pair[0]!r}")
            groups[pair] = _group(row, passages[pair[1]][1])
    return groups


def _group(row: Mapping[str, str], length: int) -> int:
    if "group" in row:
        if row["group"] not in THIRDS:
            raise BadField("group", f"is {row['group']!r}; it must be {', '.join(THIRDS)}")
        return THIRDS.index(row["group"])
    start, end = _whole(row, "start"), _whole(row, "end")
    if not 0 <= start <= end <= length or not length:
        raise BadField("end", f"is {end} after a start of {start}; the passage's text has {length} characters")
    return min(3 * (start + end) // (2 * length), 2)


def _table(path: Path, headers: tuple[tuple[str, ...], ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a tab-separated file, numbered from 1 as an editor counts lines, the header being the first."""
    lines = read_lines(path)
    _, first = next(lines, (1, ""))
    header = tuple(first.split("\t"))
    if header not in headers:
        wanted = " or ".join(repr("\t".join(names)) for names in headers)
        raise InvalidInput(f"{path}, row 1: the header is {first!r}; it must be {wanted}.")
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) != len(header):
            raise InvalidInput(f"{path}, row {number}: has {len(cells)} cells; the header has {len(header)}.")
        yield number, dict(zip(header, cells, strict=True))


def _whole(row: Mapping[str, str], field: str) -> int:
    try:
        return int(row[field])
    except ValueError:
        raise BadField(field, f"is {row[field]!r}; it must be a whole number") from None
