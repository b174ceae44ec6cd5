"""Where rows come from: local files, folders, the hub and its cache; and files that cannot be read."""

import json
from types import SimpleNamespace

import huggingface_hub
import pytest
from official_layouts import DATASET_COMMIT, fineweb_rows, squad_json, squad_rows, write_jsonl, write_parquet

from jaxcal.errors import CheckpointNotFound, InvalidInput, InvalidSetting
from jaxcal.evaluation.datasets import load_benchmark, load_fineweb_posq, load_squad_posq
from jaxcal.evaluation.datasets.rows import Refusals, find_files, hub_source, local_source, read_rows, whole_of


def cache(place, monkeypatch, files):
    """A hub cache that holds these files of a/b."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(place))
    (place / "datasets--a--b" / "refs").mkdir(parents=True)
    (place / "datasets--a--b" / "refs" / "main").write_text(DATASET_COMMIT)
    for name, rows in files.items():
        write_parquet(place / "datasets--a--b" / "snapshots" / DATASET_COMMIT / name, rows)


def ask(local_files_only=False):
    wanted = (("*train-*.parquet", "*train-*.json"), ("*test*",))
    return find_files(None, "a/b", wanted, revision=None, local_files_only=local_files_only)


def test_the_hub_gives_what_local_files_give(dataset_hub, tmp_path):
    rows = squad_rows()
    write_parquet(dataset_hub.folder / "squad_v2/train-00000-of-00001.parquet", rows[:200])
    write_parquet(dataset_hub.folder / "squad_v2/validation-00000-of-00001.parquet", rows[200:])
    (dataset_hub.folder / "README.md").write_text("read me")
    benchmark = load_squad_posq()
    assert dataset_hub.fetched == [], "nothing is fetched before it is needed"
    (part,) = benchmark.tasks[0].load()
    write_jsonl(tmp_path / "all.jsonl", rows)
    (local,) = load_squad_posq(str(tmp_path / "all.jsonl")).tasks[0].load()
    assert (part.queries, part.passages, part.counts) == (local.queries, local.passages, local.counts)
    assert part.gold.tolist() == local.gold.tolist() and part.group.tolist() == local.group.tolist()
    assert benchmark.source == {"repository": "rajpurkar/squad_v2", "revision": DATASET_COMMIT}
    assert dataset_hub.fetched == [f"squad_v2/{split}-00000-of-00001.parquet" for split in ("train", "validation")]


def test_fineweb_comes_from_the_train_files(dataset_hub):
    write_parquet(dataset_hub.folder / "data/train-00000-of-00002.parquet", fineweb_rows()[:100])
    write_parquet(dataset_hub.folder / "data/train-00001-of-00002.parquet", fineweb_rows()[100:])
    (part,) = load_fineweb_posq().tasks[0].load()
    assert part.counts["rows read"] == 300
    (dataset_hub.folder / "data/train-00001-of-00002.parquet").unlink()
    with pytest.raises(InvalidInput, match="1 of the 2 parts"):
        load_fineweb_posq()


def test_a_folder_is_a_copy_of_the_repository(tmp_path):
    """Its parts come in the order of the data set, not of their names, and what else lies there is no data."""
    rows = squad_rows()
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "train-v2.0.json").write_text(json.dumps(squad_json(rows[:200])))
    (tmp_path / "json" / "dev-v2.0.json").write_text(json.dumps(squad_json(rows[200:])))
    write_parquet(tmp_path / "hub" / "squad_v2" / "train-00000-of-00001.parquet", rows[:200])
    write_parquet(tmp_path / "hub" / "squad_v2" / "validation-00000-of-00001.parquet", rows[200:])
    (tmp_path / "hub" / "README.md").write_text("read me")
    write_jsonl(tmp_path / "all.jsonl", rows)
    (whole,) = load_squad_posq(str(tmp_path / "all.jsonl")).tasks[0].load()
    for name in ("json", "hub"):
        (part,) = load_squad_posq(str(tmp_path / name)).tasks[0].load()
        assert (part.queries, part.passages) == (whole.queries, whole.passages)
        assert (part.gold.tolist(), part.query_ids) == (whole.gold.tolist(), whole.query_ids)
    (tmp_path / "hub" / "squad_v2" / "validation-00000-of-00001.parquet").unlink()
    with pytest.raises(InvalidInput, match=r"hub has no file \*validation-\*.parquet or \*dev-\*.json; it has README"):
        load_squad_posq(str(tmp_path / "hub"))


def test_fineweb_files_need_not_be_called_train(dataset_hub):
    write_jsonl(dataset_hub.folder / "FineWeb.jsonl", fineweb_rows())
    (dataset_hub.folder / "README.md").write_text("read me")
    (part,) = load_fineweb_posq().tasks[0].load()
    assert part.counts["rows read"] == 300
    write_jsonl(dataset_hub.folder / "train.jsonl", fineweb_rows()[:7])
    (part,) = load_fineweb_posq().tasks[0].load()
    assert part.counts["rows read"] == 7


def test_a_revision_of_local_files_is_refused(tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", fineweb_rows())
    with pytest.raises(InvalidSetting, match="revision is of the hub's files"):
        load_fineweb_posq(str(tmp_path / "rows.jsonl"), revision="main")


def test_a_repository_without_the_files_says_what_it_has(dataset_hub):
    write_parquet(dataset_hub.folder / "data/test.parquet", [{"a": 1}])
    with pytest.raises(
        InvalidInput,
        match=r"^rajpurkar/squad_v2 has no file \*train-\*.parquet or \*train-\*.json; it has data/test.parquet",
    ):
        load_squad_posq()


def test_offline_takes_the_cache(tmp_path, monkeypatch, dataset_hub):
    cache(tmp_path, monkeypatch, {"x/train-0.parquet": [{"a": 1}], "test.parquet": [{"a": 2}]})
    source, names = ask(local_files_only=True)
    assert names == ["x/train-0.parquet", "test.parquet"]
    assert list(read_rows(source.fetch(names[1]))) == [(1, {"a": 2})]
    assert source.origin(names) == {"repository": "a/b", "revision": DATASET_COMMIT}
    assert dataset_hub.fetched == []


def test_offline_with_an_incomplete_cache_says_what_is_missing(tmp_path, monkeypatch):
    cache(tmp_path, monkeypatch, {"train-0.parquet": [{"a": 1}]})
    with pytest.raises(InvalidInput, match=r"the cached copy of a/b has no file \*test\*; it has train-0.parquet"):
        ask(local_files_only=True)


def test_offline_needs_the_wanted_files_of_the_repository_only(tmp_path, monkeypatch):
    """A partial download leaves a list of all files, so that what is missing is not taken for what does not exist."""
    cache(tmp_path, monkeypatch, {"train-0.parquet": [{"a": 1}], "test.parquet": [{"a": 2}]})
    folder = tmp_path / "datasets--a--b" / "snapshots" / DATASET_COMMIT

    def incomplete(*_, **__):
        raise huggingface_hub.errors.IncompleteSnapshotError("README.md is missing", snapshot_path=str(folder))

    def tree(repository, repo_type, revision):
        assert (repository, repo_type, revision) == ("a/b", "dataset", DATASET_COMMIT)
        return [SimpleNamespace(path=name) for name in ("train-0.parquet", "test.parquet", "README.md")]

    monkeypatch.setattr(huggingface_hub, "snapshot_download", incomplete)
    monkeypatch.setattr(huggingface_hub, "get_cached_repo_tree", tree)
    source, names = ask(local_files_only=True)
    assert (names, source.commit) == (["train-0.parquet", "test.parquet"], DATASET_COMMIT)
    assert list(read_rows(source.fetch(names[1]))) == [(1, {"a": 2})]
    (folder / "test.parquet").unlink()
    source, names = ask(local_files_only=True)
    with pytest.raises(CheckpointNotFound, match="test.parquet of a/b is not in the cache, and the hub was not to be"):
        source.fetch(names[1])


def test_offline_without_a_cache_says_how_to_get_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointNotFound) as error:
        ask(local_files_only=True)
    assert str(error.value) == (
        "The data set a/b (revision main) is not in the cache, and the hub was not to be asked; load it once with a"
        " connection. Or give local copies of *train-*.parquet or *train-*.json and *test* with `files`."
    )


def test_an_unreachable_hub_leaves_the_cache_with_a_warning(tmp_path, monkeypatch, dataset_hub, caplog):
    def fail(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "none"))
    with pytest.raises(CheckpointNotFound, match=r"hub cannot be reached \(ConnectionError: no route\).*`files`"):
        ask()
    cache(tmp_path, monkeypatch, {"train-0.parquet": [{"a": 1}], "test.parquet": [{"a": 2}]})
    _, names = ask()
    assert names == ["train-0.parquet", "test.parquet"]
    assert f"using the cached commit {DATASET_COMMIT} of a/b" in caplog.text


def test_what_a_failed_download_says(dataset_hub, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk is full")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    write_parquet(dataset_hub.folder / "train.parquet", [{"a": 1}])
    with pytest.raises(CheckpointNotFound, match="train.parquet of a/b .*disk is full"):
        hub_source("a/b").fetch("train.parquet")


def test_local_sources(tmp_path):
    write_jsonl(tmp_path / "one" / "a.jsonl", [{"x": 1}])
    write_jsonl(tmp_path / "two" / "a.jsonl", [{"x": 2}])
    source = local_source(str(tmp_path))
    assert source.names == ("one/a.jsonl", "two/a.jsonl")
    assert source.matching(["three/*", "two/*", "*"]) == ["two/a.jsonl"]
    origin = source.origin(source.names)
    assert set(origin) == {"files"} and len(set(origin["files"].values())) == 2
    with pytest.raises(InvalidInput, match="same name"):
        local_source([tmp_path / "one/a.jsonl", tmp_path / "two/a.jsonl"])
    with pytest.raises(InvalidInput, match="empty"):
        local_source([])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n{', "a.jsonl, row 2: not JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl, row 1: is not an object"),
        ("a.jsonl", b'{}\n{"a": "\xff"}\n', "a.jsonl, row 2, byte 8: not UTF-8"),
        ("a.json", b'["\xff"]', "a.json cannot be read.*utf-8"),
        ("a.json", b'{"a": 1}\n{', "a.json, row 2: not JSON"),
        ("a.json", b"[" * 100_000, "not JSON"),
        ("a.parquet", b"PAR1", "not a Parquet file"),
        ("a.csv", b"", r"ends in .csv; rows are read from .parquet, .jsonl and .json"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        list(read_rows(tmp_path / name))


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n')
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf[{"a": 1}]')
    assert list(read_rows(tmp_path / "a.jsonl")) == list(read_rows(tmp_path / "a.json")) == [(1, {"a": 1})]


def test_ten_refusals_are_logged_and_all_are_counted(caplog):
    refusals = Refusals("skip")
    for number in range(1, 13):
        with refusals.row("a.jsonl", number):
            whole_of({"n": True}, "n")
    assert refusals.count == 12 and len(caplog.records) == 10
    assert caplog.records[9].message == "refused: a.jsonl, row 10, field \"n\": is 'True'; it must be a whole number."


def test_line_separators_inside_strings_are_text(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"a": "x\u2028y\u0085z"}, ensure_ascii=False) + "\r\n", encoding="utf-8"
    )
    assert list(read_rows(tmp_path / "a.jsonl")) == [(1, {"a": "x\u2028y\u0085z"})]


def test_names_and_options_of_data_sets(tmp_path):
    def count(texts):
        return [1] * len(texts)

    assert load_benchmark("pydoc-posq", {"variant": "long"}, count).name == "PyDoc-PosQ long"
    with pytest.raises(InvalidSetting, match="no data set 'squad'; choose one of squad-posq"):
        load_benchmark("squad", {}, count)
    with pytest.raises(InvalidSetting, match="no option 'file'; it has variant"):
        load_benchmark("pydoc-posq", {"file": 1}, count)
    with pytest.raises(InvalidSetting, match="needs the option 'files'"):
        load_benchmark("squad-long", {}, count)
    with pytest.raises(InvalidSetting, match="no option 'count_tokens'"):
        load_benchmark("squad-long", {"files": "a", "count_tokens": 1}, count)


def test_json_lines_may_be_called_json(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "b.json").write_text('[{"a": 1},\n {"a": 2}]')
    assert list(read_rows(tmp_path / "a.json")) == list(read_rows(tmp_path / "b.json"))
