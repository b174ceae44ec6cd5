"""FineWeb-PosQ: the official arithmetic recomputed, every layout alike, and refusals."""

import json

import pytest
from official_layouts import fineweb_rows, write_jsonl, write_parquet

from jaxcal.errors import InvalidInput
from jaxcal.evaluation.datasets import load_fineweb_posq

ROWS = fineweb_rows()


def load(path, **options):
    (part,) = load_fineweb_posq(str(path), **options).tasks[0].load()
    return part


@pytest.mark.parametrize("layout", ["parquet", "jsonl", "json"])
@pytest.mark.parametrize("as_string", [False, True])
def test_a_sample_gives_the_official_arithmetic_in_every_layout(tmp_path, layout, as_string):
    rows = [row | {"span_class": ",".join(row["span_class"])} for row in ROWS] if as_string else ROWS
    path = tmp_path / f"rows.{layout}"
    writers = {"parquet": write_parquet, "jsonl": write_jsonl, "json": lambda p, r: p.write_text(json.dumps(r))}
    writers[layout](path, rows)
    dataset = load(path)
    corpus, passage_of_question, asked = [], {}, []
    for row in ROWS:
        if row["content"] not in corpus:
            corpus.append(row["content"])
        if row["question"]:
            passage_of_question[row["question"]] = row["content"]
            asked.append(row)
    expected = [
        (row["question"], passage_of_question[row["question"]], group)
        for row in asked
        for group in ("beginning", "middle", "end")
        if group in row["span_class"]
    ]
    columns = zip(dataset.query, dataset.gold, dataset.group, strict=True)
    assert [(dataset.queries[q], dataset.passages[p], dataset.groups[g]) for q, p, g in columns] == expected
    assert list(dataset.passages) == corpus
    repeated = len(asked) - len(passage_of_question)
    assert repeated > 0 and any(len(row["span_class"]) > 1 for row in asked), "the sample shows every quirk"
    assert dataset.counts["without a question"] == 300 - len(asked)
    assert dataset.counts["in several groups"] == sum(len(row["span_class"]) > 1 for row in asked)


@pytest.mark.parametrize("classes", ["whole", "", [], ["whole", "ending"]])
def test_a_question_of_no_group_is_counted_and_its_passage_kept(tmp_path, classes):
    write_jsonl(tmp_path / "rows.jsonl", [*ROWS, {"question": "Q?", "content": "new", "span_class": classes}])
    dataset = load(tmp_path / "rows.jsonl")
    assert dataset.counts["without a class"] == 1
    assert dataset.passages[-1] == "new" and dataset.queries[-1] == "Q?"
    assert len(dataset.queries) - 1 not in dataset.query


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"question": "q", "span_class": "end"}, "content"),
        ({"question": 3, "content": "c", "span_class": "end"}, "question"),
        ({"question": "q", "content": "c"}, "span_class"),
        ({"question": "q", "content": "c", "span_class": None}, "span_class"),
        ({"question": "q", "content": None, "span_class": "end"}, "content"),
        ({"question": "q", "content": "c", "span_class": [1]}, "span_class"),
    ],
)
def test_malformed_rows_are_refused_or_counted(tmp_path, row, field):
    write_jsonl(tmp_path / "rows.jsonl", [*ROWS[:7], row])
    with pytest.raises(InvalidInput, match=f'rows.jsonl, row 8, field "{field}"'):
        load(tmp_path / "rows.jsonl")
    assert load(tmp_path / "rows.jsonl", malformed="skip").counts["refused"] == 1
