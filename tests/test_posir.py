"""PosIR: bins, buckets and pairs recomputed, what is read and what is not, and refusals."""

import copy

import pytest
from official_layouts import DATASET_COMMIT, POSIR_DOMAINS, posir_tables, write_parquet, write_posir

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.datasets import load_posir
from jaxcal.evaluation.datasets.posir import CROSS_LINGUAL, LANGUAGES, POSIR_INSTRUCTION, place

TABLES = posir_tables()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_posir(tmp_path_factory.mktemp("posir"), TABLES)


def row(start, end, length, tokens=100):
    return {"pos_char_span": [start, end], "pos_char_length": length, "pos_token_length": tokens}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ((0, 0, 100), (0, 0)),  # centre 0: the first bin alone holds its lower bound
        ((0, 9, 100), (0, 0)),  # centre .045
        ((0, 10, 100), (0, 0)),  # centre .05: bins end at their bound
        ((0, 11, 100), (1, 0)),  # centre .055
        ((40, 60, 100), (9, 0)),
        ((41, 60, 100), (10, 0)),
        ((94, 96, 100), (18, 0)),  # centre .95
        ((100, 100, 100), (19, 0)),  # centre 1 is in the last bin
        ((90, 130, 100), (19, 0)),  # centre 1.1 is clipped
        ((0, 0, 7, 512), (0, 0)),
        ((0, 0, 7, 513), (0, 1)),
        ((0, 0, 7, 1024), (0, 1)),
        ((0, 0, 7, 1536), (0, 2)),
        ((0, 0, 7, 1537), (0, 3)),
    ],
)
def test_bins_and_buckets_by_hand(fields, expected):
    assert place(row(*fields)) == expected


def test_pairs_and_what_is_pooled(folder):
    benchmark = load_posir(str(folder), languages=["deu", "eng-Latn", "cmn"])
    assert [task.subset for task in benchmark.tasks] == ["deu-deu", "eng-eng", "cmn-cmn", "deu-eng"]
    assert [task.languages for task in benchmark.tasks][::3] == [("deu-Latn",), ("deu-Latn", "eng-Latn")]
    assert benchmark.averages == {"multilingual": ("deu-deu", "eng-eng", "cmn-cmn")}
    assert (benchmark.depth, benchmark.ties) == (1000, "trec")
    assert len(LANGUAGES) == 10 and len(CROSS_LINGUAL) == 8 and not {"cmn", "eng"} & set(CROSS_LINGUAL)
    task = "Given a web search query, retrieve relevant passages that answer the query"
    assert f"Instruct: {task}\nQuery: " == POSIR_INSTRUCTION


@pytest.mark.parametrize(
    ("subset", "asked", "corpus"), [("deu-deu", "deu-Latn", "deu-Latn"), ("deu-eng", "deu-Latn", "eng-Latn")]
)
def test_a_sample_gives_the_official_arithmetic(folder, subset, asked, corpus):
    benchmark = load_posir(str(folder), languages=["deu", "eng"])
    parts = {task.subset: task for task in benchmark.tasks}[subset].load()
    assert [part.name for part in parts] == sorted(POSIR_DOMAINS)
    total = 0
    for part in parts:
        queries = {q["_id"]: q for q in TABLES[f"{asked}/{part.name}/queries.parquet"]}
        passages = {p["_id"]: p["text"] for p in TABLES[f"{corpus}/{part.name}/corpus.parquet"]}
        gold = {r["query-id"]: r["corpus-id"] for r in TABLES[f"{asked}/{part.name}/qrels/test.parquet"]}
        assert dict(zip(part.passage_ids, part.passages, strict=True)) == passages
        for j, q in enumerate(part.query):
            source = queries[part.query_ids[q]]
            assert part.queries[q] == source["text"]
            assert part.passage_ids[part.gold[j]] == gold[part.query_ids[q]]
            start, end = source["pos_char_span"]
            relative = min(max((start + end) / 2 / source["pos_char_length"], 0), 1)
            low, high = map(float, part.groups[part.group[j]].split("-"))
            assert (low < relative or relative == low == 0) and relative <= high
            tokens = source["pos_token_length"]
            expected = "Q1" if tokens <= 512 else "Q2" if tokens <= 1024 else "Q3" if tokens <= 1536 else "Q4"
            assert part.buckets[part.bucket[j]] == expected
        total += len(part.query)
    assert total == 100


def test_only_what_is_chosen_is_read(folder, tmp_path):
    write_posir(tmp_path, TABLES)
    (tmp_path / "deu-Latn/law/corpus.parquet").write_bytes(b"broken")
    (tmp_path / "cmn-Hans/tea/queries.parquet").write_bytes(b"broken")
    benchmark = load_posir(str(tmp_path), languages=["eng", "cmn"], domains=["law"], cross_lingual=False)
    assert [len(task.load()) for task in benchmark.tasks] == [1, 1]
    assert all("tea" not in name and "deu" not in name for name in benchmark.source["files"])
    with pytest.raises(InvalidInput, match="not a Parquet file"):
        load_posir(str(tmp_path), languages=["deu"], domains=["law"], cross_lingual=False).tasks[0].load()


def test_the_hub_gives_each_task_its_files_at_one_commit(dataset_hub):
    write_posir(dataset_hub.folder, TABLES)
    (dataset_hub.folder / "README.md").write_text("read me")
    benchmark = load_posir(languages=["deu"], domains=["tea"])
    assert benchmark.source == {"repository": "infgrad/PosIR-Benchmark-v1", "revision": DATASET_COMMIT}
    assert dataset_hub.fetched == [], "nothing is fetched before it is needed"
    (part,) = benchmark.tasks[1].load()
    assert sorted(dataset_hub.fetched) == [
        "deu-Latn/tea/qrels/test.parquet",
        "deu-Latn/tea/queries.parquet",
        "eng-Latn/tea/corpus.parquet",
    ]
    assert part.passages[0].startswith("eng-Latn") and part.query_ids[0].startswith("deu-Latn")
    assert dataset_hub.repositories == {"infgrad/PosIR-Benchmark-v1"}


def test_all_the_pairs(tmp_path):
    for code in LANGUAGES.values():
        write_posir(tmp_path, {name.replace("eng-Latn", code): rows for name, rows in TABLES.items() if "eng" in name})
    benchmark = load_posir(str(tmp_path))
    ten = "ara cmn deu eng fra ita kor por rus spa".split()
    eight = "ara deu fra ita kor por rus spa".split()
    mono, cross = [f"{code}-{code}" for code in ten], [f"{code}-eng" for code in eight]
    assert [task.subset for task in benchmark.tasks] == mono + cross
    assert benchmark.averages == {"multilingual": tuple(mono), "cross-lingual": tuple(cross)}
    alone = load_posir(str(tmp_path), cross_lingual=False)
    assert [task.subset for task in alone.tasks] == mono and list(alone.averages) == ["multilingual"]


def test_a_file_that_is_missing_is_named(tmp_path):
    write_posir(tmp_path, TABLES)
    (tmp_path / "deu-Latn/tea/qrels/test.parquet").unlink()
    with pytest.raises(InvalidInput, match="lacks deu-Latn/tea/qrels/test.parquet;"):
        load_posir(str(tmp_path), languages=["deu"], domains=["tea"])


def test_skipped_rows_are_counted(tmp_path):
    tables = copy.deepcopy(TABLES)
    name = "eng-Latn/law/queries.parquet"
    tables[name][0]["pos_char_length"] = 0  # so its row of the qrels names a query that does not exist
    write_posir(tmp_path, tables)
    (part,) = load_posir(str(tmp_path), languages=["eng"], domains=["law"], malformed="skip").tasks[0].load()
    assert part.counts["refused"] == 2 and len(part.queries) == len(tables[name]) - 1


def test_a_query_without_a_judgement_is_counted(tmp_path):
    tables = copy.deepcopy(TABLES)
    dropped = tables["eng-Latn/law/qrels/test.parquet"].pop()
    write_posir(tmp_path, tables)
    (part,) = load_posir(str(tmp_path), languages=["eng"], domains=["law"]).tasks[0].load()
    assert part.counts["without a judgement"] == 1 and dropped["query-id"] not in part.query_ids


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("qrels/test", {"score": 0}, '"score": is 0'),
        ("qrels/test", {"query-id": "none"}, "\"query-id\": is 'none', which does not exist"),
        ("qrels/test", {"corpus-id": "none"}, "\"corpus-id\": is 'none'"),
        ("qrels/test", {"query-id": TABLES["eng-Latn/law/qrels/test.parquet"][1]["query-id"]}, "a second passage"),
        ("queries", {"pos_char_span": [5, 3]}, '"pos_char_span"'),
        ("queries", {"pos_char_span": [-1, 3]}, '"pos_char_span"'),
        ("queries", {"pos_char_span": [5]}, '"pos_char_span"'),
        ("queries", {"pos_char_length": 0}, '"pos_char_length": is 0'),
        ("queries", {"pos_token_length": 0}, '"pos_token_length": is 0'),
        ("queries", {"_id": TABLES["eng-Latn/law/queries.parquet"][1]["_id"]}, "second time"),
        ("corpus", {"_id": TABLES["eng-Latn/law/corpus.parquet"][1]["_id"]}, "second time"),
        ("corpus", {"text": None}, '"text"'),
    ],
)
def test_malformed_rows_are_refused(tmp_path, file, change, message):
    write_posir(tmp_path, {name: rows for name, rows in TABLES.items() if "eng-Latn/law" in name})
    rows = copy.deepcopy(TABLES[f"eng-Latn/law/{file}.parquet"])
    rows[0] |= change
    write_parquet(tmp_path / f"eng-Latn/law/{file}.parquet", rows)
    with pytest.raises(
        InvalidInput, match=rf"eng-Latn/law/{file}.parquet, row [12], field .*{message.partition(': ')[2] or message}"
    ):
        load_posir(str(tmp_path), languages=["eng"]).tasks[0].load()


def test_choices_that_do_not_exist_are_refused(folder):
    with pytest.raises(InvalidSetting, match="no language 'xyz'"):
        load_posir(str(folder), languages=["xyz"])
    with pytest.raises(InvalidSetting, match="no language 'deu-Cyrl'"):
        load_posir(str(folder), languages=["deu-Cyrl"])
    with pytest.raises(InvalidSetting, match="no domain 'sea'"):
        load_posir(str(folder), domains=["sea"])
    with pytest.raises(InvalidInput, match="no domain with fra-Latn"):
        load_posir(str(folder), languages=["fra"])
