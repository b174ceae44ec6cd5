"""Where rows come from: local files, folders, the hub and its cache; and files that cannot be read."""

import json
from types import SimpleNamespace

import huggingface_hub
import pytest
from official_layouts import fineweb_rows, squad_rows, write_jsonl, write_parquet

from jaxcal.errors import CheckpointNotFound, InvalidInput, InvalidSetting
from jaxcal.evaluation.datasets import load_benchmark, load_fineweb_posq, load_squad_posq
from jaxcal.evaluation.datasets.rows import hub_source, local_source, read_rows

COMMIT = "c" * 40


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub whose repository is a folder: what was downloaded is listed."""
    folder, fetched = tmp_path / "repository", []

    def info(self, repository, revision=None):
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        return SimpleNamespace(sha=COMMIT, siblings=[SimpleNamespace(rfilename=name) for name in names])

    def download(repository, name, repo_type, revision):
        assert (repo_type, revision) == ("dataset", COMMIT), "every file is of the resolved commit"
        fetched.append(name)
        return str(folder / name)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", info)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return SimpleNamespace(folder=folder, fetched=fetched)


def test_the_hub_gives_what_local_files_give(hub, tmp_path):
    rows = squad_rows()
    write_parquet(hub.folder / "squad_v2/train-00000-of-00001.parquet", rows[:200])
    write_parquet(hub.folder / "squad_v2/validation-00000-of-00001.parquet", rows[200:])
    (hub.folder / "README.md").write_text("read me")
    benchmark = load_squad_posq()
    assert hub.fetched == [], "nothing is fetched before it is needed"
    (part,) = benchmark.tasks[0].load()
    write_jsonl(tmp_path / "all.jsonl", rows)
    (local,) = load_squad_posq(str(tmp_path / "all.jsonl")).tasks[0].load()
    assert (part.queries, part.passages, part.counts) == (local.queries, local.passages, local.counts)
    assert part.gold.tolist() == local.gold.tolist() and part.group.tolist() == local.group.tolist()
    assert benchmark.source == {"repository": "rajpurkar/squad_v2", "revision": COMMIT}
    assert hub.fetched == [f"squad_v2/{split}-00000-of-00001.parquet" for split in ("train", "validation")]


def test_fineweb_comes_from_the_train_files(hub):
    write_parquet(hub.folder / "data/train-00000-of-00002.parquet", fineweb_rows()[:100])
    write_parquet(hub.folder / "data/train-00001-of-00002.parquet", fineweb_rows()[100:])
    (part,) = load_fineweb_posq().tasks[0].load()
    assert part.counts["rows read"] == 300
    (hub.folder / "data/train-00001-of-00002.parquet").unlink()
    with pytest.raises(InvalidInput, match="1 of the 2 parts"):
        load_fineweb_posq()


def test_a_repository_without_the_files_says_what_it_has(hub):
    write_parquet(hub.folder / "data/test.parquet", [{"a": 1}])
    with pytest.raises(
        InvalidInput, match=r"rajpurkar/squad_v2 has no file \*train-\*.parquet; it has data/test.parquet"
    ):
        load_squad_posq()


def test_offline_takes_the_cache_or_says_how_to_get_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointNotFound, match="a/b .*not in the cache.*local copies with `files`"):
        hub_source("a/b", local_files_only=True)
    snapshot = tmp_path / "datasets--a--b" / "snapshots" / COMMIT
    write_parquet(snapshot / "x.parquet", [{"a": 1}])
    (tmp_path / "datasets--a--b" / "refs").mkdir()
    (tmp_path / "datasets--a--b" / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(snapshot))
    source = hub_source("a/b", local_files_only=True)
    assert (source.names, source.commit) == (("x.parquet",), COMMIT)


def test_what_a_failed_download_says(hub, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk is full")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    write_parquet(hub.folder / "train.parquet", [{"a": 1}])
    with pytest.raises(CheckpointNotFound, match="train.parquet of a/b .*disk is full"):
        hub_source("a/b").fetch("train.parquet")


def test_local_sources(tmp_path):
    write_jsonl(tmp_path / "one" / "a.jsonl", [{"x": 1}])
    write_jsonl(tmp_path / "two" / "a.jsonl", [{"x": 2}])
    source = local_source(str(tmp_path))
    assert source.names == ("one/a.jsonl", "two/a.jsonl")
    assert source.matching("two/*") == ["two/a.jsonl"]
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
        ("a.jsonl", b'{"a": "\xff"}\n', "a.jsonl cannot be read.*utf-8"),
        ("a.json", b'{"a": 1}', "not a list"),
        ("a.json", b"[" * 100_000, "not JSON"),
        ("a.parquet", b"PAR1", "not a Parquet file"),
        ("a.csv", b"", r"ends in .csv; rows are read from .parquet, .jsonl and .json"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        list(read_rows(tmp_path / name))


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
