"""A user's own data in BEIR's layout: positions, several passages a query, and refusals with file, row and field."""

import pytest
from official_layouts import write_jsonl

from jaxcal.errors import InvalidInput
from jaxcal.evaluation.datasets import load_beir

CORPUS = [
    {"_id": "d1", "title": "Title", "text": "abcdefghij"},
    {"_id": "d2", "title": "", "text": "abcdefghij"},
    {"_id": "d3", "text": "other"},
]
QUERIES = [{"_id": "q1", "text": "one?"}, {"_id": "q2", "text": "two?"}, {"_id": "q3", "text": "three?"}]
QRELS = [("q1", "d1", "1"), ("q1", "d2", "2"), ("q2", "d3", "1"), ("q2", "d1", "0"), ("q3", "d3", "1")]
SPANS = [("q1", "d1", "0", "6"), ("q1", "d2", "2", "5"), ("q3", "d3", "4", "5")]
HEADERS = {3: "query-id\tcorpus-id\tscore", 4: "query-id\tcorpus-id\tstart\tend"}


def table(path, rows, header):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n")


def write(folder, corpus=CORPUS, queries=QUERIES, qrels=QRELS, spans=SPANS, header=HEADERS[4]):
    write_jsonl(folder / "corpus.jsonl", corpus)
    write_jsonl(folder / "queries.jsonl", queries)
    table(folder / "qrels" / "test.tsv", qrels, HEADERS[3])
    table(folder / "positions.tsv", spans, header)
    return str(folder)


def load(folder, **options):
    (part,) = load_beir(folder, **options).tasks[0].load()
    return part


def judged(part):
    columns = zip(part.query, part.gold, part.group, strict=True)
    return [(part.query_ids[q], part.passage_ids[p], part.groups[g]) for q, p, g in columns]


def test_every_relevant_pair_is_judged_at_its_position(tmp_path):
    part = load(write(tmp_path))
    # Centres 3, 3.5 and 4.5 of 10, 10 and 5 characters.
    assert judged(part) == [("q1", "d1", "beginning"), ("q1", "d2", "middle"), ("q3", "d3", "end")]
    assert part.passages == ("Title abcdefghij", "abcdefghij", "other")
    assert part.queries == ("one?", "three?")
    assert part.counts == {
        "qrels read": 5,
        "not relevant": 1,
        "scores above 1": 1,
        "queries": 3,
        "queries without a position": 1,
        "queries used": 2,
        "passages": 3,
        "judgements": 3,
        "refused": 0,
    }
    assert load_beir(str(tmp_path)).name == tmp_path.name
    assert load_beir(str(tmp_path), called="mine").name == "mine"


@pytest.mark.parametrize(
    ("start", "end", "group"),
    [
        ("0", "0", "beginning"),
        ("0", "3", "beginning"),  # centre 1.5 of 6
        ("1", "3", "middle"),  # centre 2 of 6: thirds begin at their bound
        ("1", "6", "middle"),
        ("3", "5", "end"),  # centre 4 of 6
        ("6", "6", "end"),  # the end itself is in the last third
    ],
)
def test_thirds_by_hand(tmp_path, start, end, group):
    corpus = [{"_id": "d", "title": "The title does not count", "text": "abcdef"}]
    folder = write(tmp_path, corpus, qrels=[("q1", "d", "1")], spans=[("q1", "d", start, end)])
    assert judged(load(folder)) == [("q1", "d", group)]


def test_groups_may_be_named(tmp_path):
    groups = [("q1", "d1", "end"), ("q1", "d2", "middle"), ("q2", "d3", "beginning")]
    part = load(write(tmp_path, spans=groups, header="query-id\tcorpus-id\tgroup"))
    assert judged(part) == groups


def test_carriage_returns_and_another_file_of_positions(tmp_path):
    write(tmp_path)
    text = (tmp_path / "positions.tsv").read_text().replace("\n", "\r\n")
    (tmp_path / "elsewhere.tsv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "positions.tsv").unlink()
    assert len(judged(load(str(tmp_path), positions=str(tmp_path / "elsewhere.tsv")))) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": [*CORPUS, CORPUS[0]]}, 'corpus.jsonl, row 4, field "_id"'),
        ({"corpus": [*CORPUS, {"_id": "d9"}]}, 'corpus.jsonl, row 4, field "text"'),
        ({"corpus": [*CORPUS, {"_id": 9, "text": "t"}]}, 'corpus.jsonl, row 4, field "_id"'),
        ({"queries": [*QUERIES, {"_id": "q1", "text": "t"}]}, 'queries.jsonl, row 4, field "_id"'),
        ({"qrels": [*QRELS, ("q9", "d1", "1")]}, 'test.tsv, row 7, field "query-id"'),
        ({"qrels": [*QRELS, ("q1", "d9", "1")]}, 'test.tsv, row 7, field "corpus-id"'),
        ({"qrels": [*QRELS, ("q1", "d1", "1")]}, 'test.tsv, row 7, field "corpus-id".*second time'),
        ({"qrels": [*QRELS, ("q1", "d3", "x")]}, 'test.tsv, row 7, field "score"'),
        ({"qrels": [*QRELS, ("q1", "d3")]}, "test.tsv, row 7: has 2 cells"),
        ({"spans": [*SPANS, ("q2", "d1", "0", "1")]}, 'positions.tsv, row 5, field "corpus-id".*not relevant'),
        ({"spans": [*SPANS, SPANS[0]]}, 'positions.tsv, row 5, field "corpus-id".*second position'),
        ({"spans": [*SPANS, ("q2", "d3", "0", "6")]}, 'positions.tsv, row 5, field "end".*5 characters'),
        ({"spans": [*SPANS, ("q2", "d3", "3", "2")]}, 'positions.tsv, row 5, field "end"'),
        ({"spans": [*SPANS, ("q2", "d3", "-1", "2")]}, 'positions.tsv, row 5, field "end"'),
        ({"spans": [*SPANS, ("q2", "d3", "a", "2")]}, 'positions.tsv, row 5, field "start"'),
        ({"spans": SPANS[1:]}, "query 'q1' has a position for some.*'d1'.*row 2"),
        ({"header": "a\tb\tc\td"}, "positions.tsv, row 1: the header"),
        (
            {"spans": [("q1", "d1", "End")], "header": "query-id\tcorpus-id\tgroup"},
            'positions.tsv, row 2, field "group"',
        ),
    ],
)
def test_malformed_data_is_refused(tmp_path, changes, message):
    with pytest.raises(InvalidInput, match=message):
        load(write(tmp_path, **changes))


def test_skipped_rows_are_counted(tmp_path):
    folder = write(tmp_path, corpus=[*CORPUS, CORPUS[0]], qrels=[*QRELS, ("q9", "d1", "1")])
    assert load(folder, malformed="skip").counts["refused"] == 2


def test_a_missing_file_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "queries.jsonl").unlink()
    with pytest.raises(InvalidInput, match="queries.jsonl is not a file"):
        load_beir(str(tmp_path))
