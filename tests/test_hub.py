"""Finding the files of a checkpoint: folders, a hub (a small fake one on the loopback), its cache, and no network."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import SAFE, SMALL, TORCH, UNWANTED, FakeHub, commit_of, write

from jaxcal.checkpoint.files import WeightFiles, weight_files
from jaxcal.checkpoint.hub import resolve
from jaxcal.errors import CheckpointNotFound, CorruptCheckpoint, MissingDependency


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A fake hub that huggingface_hub talks to, and an empty cache."""
    from huggingface_hub import constants

    fake = FakeHub()
    monkeypatch.setattr(constants, "ENDPOINT", fake.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", fake.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("jaxcal.checkpoint.hub.find_spec", lambda package: package)  # as if torch were installed
    monkeypatch.chdir(tmp_path)
    yield fake
    fake.close()


def disconnect(hub: FakeHub) -> None:
    hub.close()
    hub.requests.clear()


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# --- downloading ------------------------------------------------------------------------------------------------------


def test_downloads_what_an_encoder_needs_and_nothing_else(hub):
    commit = hub.add("org/model", SMALL | UNWANTED | SAFE | TORCH)
    found = resolve("org/model")
    assert (found.name, found.commit, found.weights_revision) == ("org/model", commit, None)
    assert found.folder == found.weights_folder and found.folder.name == commit
    assert names_in(found.folder) == set(SMALL | SAFE)
    assert (found.folder / "1_Pooling/config.json").read_bytes() == SMALL["1_Pooling/config.json"]
    assert {file.split("/", 1)[1] for file in hub.downloads()} == set(SMALL | SAFE)


def test_a_second_call_downloads_nothing_and_a_pinned_one_asks_nothing(hub):
    commit = hub.add("org/model", SMALL | SAFE)
    first = resolve("org/model")
    hub.requests.clear()
    assert resolve("org/model") == first
    assert not hub.downloads() and len(hub.requests) <= 2
    hub.requests.clear()
    assert resolve("org/model", revision=commit) == first
    assert hub.requests == []


def test_branch_tag_and_commit(hub):
    old = hub.add("org/model", SMALL | {"model.safetensors": b"old"}, "v1")
    new = hub.add("org/model", SMALL | SAFE)
    for revision, commit in ((None, new), ("v1", old), (old, old), ("main", new)):
        found = resolve("org/model", revision=revision)
        assert found.commit == commit
        assert resolve("org/model", revision=revision, local_files_only=True) == found
    with pytest.raises(CheckpointNotFound, match="no such revision.*branch, a tag or a full commit"):
        resolve("org/model", revision="v9")


@pytest.mark.parametrize(("single", "form"), [("model.safetensors", "safetensors"), ("pytorch_model.bin", "torch")])
def test_shards_of_an_index(hub, single, form):
    stem, suffix = single.split(".")
    shards = {f"{stem}-0000{n}-of-00002.{suffix}": b"shard %d" % n for n in (1, 2)}
    index = {f"{single}.index.json": json.dumps({"weight_map": {k: k for k in sorted(shards, reverse=True)}}).encode()}
    hub.add("org/sharded", SMALL | shards | index | {f"{stem}-old.{suffix}": b"not listed"})
    found = resolve("org/sharded")
    assert names_in(found.folder) == set(SMALL | shards | index)
    assert weight_files(found.weights_folder) == WeightFiles(
        form, tuple(found.folder / name for name in sorted(shards))
    )
    assert resolve("org/sharded", local_files_only=True) == found


def test_an_index_that_names_absent_shards(hub):
    index = {"model.safetensors.index.json": b'{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'}
    hub.add("org/model", SMALL | index | {"one.safetensors": b"1"})
    with pytest.raises(CheckpointNotFound, match=r"org/model .*repository lacks: two\.safetensors"):
        resolve("org/model")
    assert not any("one.safetensors" in file for file in hub.downloads())


# --- the conversion pull request --------------------------------------------------------------------------------------


def test_safetensors_of_the_conversion_pull_request(hub, caplog):
    main = hub.add("org/model", SMALL | TORCH)
    pull = hub.add("org/model", SMALL | TORCH | SAFE, "refs/pr/7")
    hub.add("org/model", SMALL | TORCH | {"model.safetensors": b"by somebody"}, "refs/pr/8")
    hub.pull("org/model", 3, title="Fix a typo")
    hub.pull("org/model", 7)
    hub.pull("org/model", 8, author="somebody")
    found = resolve("org/model")
    assert (found.commit, found.weights_revision, found.weights_commit) == (main, "refs/pr/7", pull)
    assert names_in(found.folder) == set(SMALL) and names_in(found.weights_folder) == set(SAFE)
    assert weight_files(found.weights_folder).format == "safetensors"
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("refs/pr/7" in message and pull in message for message in warned)

    hub.requests.clear()
    assert resolve("org/model", local_files_only=True) == found
    assert resolve("org/model", revision=main, local_files_only=True) == found
    assert resolve("org/model", revision=main) == found
    assert hub.requests == []


def test_a_sharded_conversion(hub):
    index = {"model.safetensors.index.json": b'{"weight_map": {"a": "one.safetensors"}}', "one.safetensors": b"1"}
    hub.add("org/model", SMALL | TORCH)
    hub.add("org/model", SMALL | TORCH | index, "refs/pr/1")
    hub.pull("org/model", 1)
    found = resolve("org/model")
    assert found.weights_revision == "refs/pr/1" and names_in(found.weights_folder) == set(index)
    assert resolve("org/model", local_files_only=True) == found


@pytest.mark.parametrize("case", ["by somebody", "closed", "stale", "without weights", "discussions off", "none"])
def test_torch_weights_where_no_conversion_fits(hub, case):
    hub.add("org/model", SMALL | TORCH)
    converted = {"stale": SAFE | {"pytorch_model.bin": b"older"}, "without weights": TORCH}.get(case, SAFE | TORCH)
    hub.add("org/model", SMALL | converted, "refs/pr/1")
    if case != "none":
        author = "somebody" if case == "by somebody" else "SFconvertbot"
        hub.pull("org/model", 1, author=author, status="closed" if case == "closed" else "open")
    if case == "discussions off":
        hub.fail["/discussions"] = (403, {"X-Error-Message": "Discussions are disabled for this repo"})
    found = resolve("org/model")
    assert found.weights_revision is None and names_in(found.folder) == set(SMALL | TORCH)
    assert weight_files(found.weights_folder).format == "torch"
    assert resolve("org/model", local_files_only=True) == found


@pytest.mark.parametrize("status", [403, 500])
def test_trouble_with_the_pull_requests_is_no_silent_fallback(hub, status):
    hub.add("org/model", SMALL | TORCH)
    hub.fail["/discussions"] = (status, {})
    with pytest.raises(CheckpointNotFound, match=str(status)):
        resolve("org/model")


def test_torch_weights_are_looked_at_again_for_a_conversion(hub):
    hub.add("org/model", SMALL | TORCH)
    assert resolve("org/model").weights_revision is None
    hub.add("org/model", SMALL | TORCH | SAFE, "refs/pr/1")
    hub.pull("org/model", 1)
    assert resolve("org/model").weights_revision == "refs/pr/1"


def test_torch_weights_are_not_downloaded_in_vain(hub, monkeypatch):
    monkeypatch.setattr("jaxcal.checkpoint.hub.find_spec", lambda package: None)
    hub.add("org/model", SMALL | TORCH)
    with pytest.raises(MissingDependency, match=r"org/model has only PyTorch.*Install torch.*revision='refs/pr/N'"):
        resolve("org/model")
    assert not any("pytorch_model.bin" in file for file in hub.downloads())


# --- refusals of the hub ----------------------------------------------------------------------------------------------


def test_no_such_repository(hub):
    with pytest.raises(CheckpointNotFound, match="org/nothing .*not on the hub, or is private"):
        resolve("org/nothing")


@pytest.mark.parametrize("place", ["/api/models", "/resolve/"])
def test_gated(hub, place):
    hub.add("org/gated", SMALL | SAFE)
    hub.fail[place] = (403, {"X-Error-Code": "GatedRepo"})
    with pytest.raises(CheckpointNotFound, match="org/gated .*gated.*log in.*local_files_only=True"):
        resolve("org/gated")


def test_gated_with_an_older_copy_in_the_cache(hub):
    old = hub.add("org/gated", SMALL | SAFE)
    resolve("org/gated")
    new = hub.add("org/gated", SMALL | {"model.safetensors": b"newer"})
    hub.fail["/resolve/"] = (403, {"X-Error-Code": "GatedRepo"})
    with pytest.raises(CheckpointNotFound, match="gated"):
        resolve("org/gated")
    assert resolve("org/gated", local_files_only=True).commit == old != new


@pytest.mark.parametrize(
    ("missing", "message"), [("config.json", "no config.json"), ("model.safetensors", "no weights")]
)
def test_a_repository_without_configuration_or_weights(hub, missing, message):
    files = {name: data for name, data in (SMALL | SAFE | UNWANTED).items() if name != missing}
    hub.add("org/model", files)
    with pytest.raises(CheckpointNotFound, match=f"org/model .*{message}") as caught:
        resolve("org/model")
    if missing == "model.safetensors":
        assert "onnx/model.onnx" in str(caught.value)  # says what is there instead


def test_modules_outside_the_checkpoint(hub):
    modules = json.dumps([{"idx": 0, "path": "../../elsewhere", "type": "x"}]).encode()
    hub.add("org/model", SMALL | SAFE | {"modules.json": modules})
    with pytest.raises(CorruptCheckpoint, match=r"modules\.json.*elsewhere"):
        resolve("org/model")


@pytest.mark.parametrize("place", ["/api/models", "/resolve/"])
def test_an_answer_that_is_no_hub(hub, place):
    hub.add("org/model", SMALL | SAFE)
    hub.fail[place] = (200, {})
    with pytest.raises(CheckpointNotFound, match="not the hub's.*HF_ENDPOINT"):
        resolve("org/model")


def test_a_listed_file_that_is_not_there(hub):
    hub.add("org/model", SMALL | SAFE)
    hub.fail["vocab.txt"] = (404, {"X-Error-Code": "EntryNotFound"})
    with pytest.raises(CheckpointNotFound, match=r"vocab\.txt of org/model .*does not have this file"):
        resolve("org/model")


@pytest.mark.parametrize("status", [401, 429])
def test_refused_for_another_reason(hub, status):
    hub.add("org/model", SMALL | SAFE)
    resolve("org/model")
    hub.fail["/api/models"] = (status, {"X-Error-Message": "Invalid credentials in Authorization header"})
    with pytest.raises(CheckpointNotFound, match=f"its file list of org/model .*HTTP {status} .*local_files_only=True"):
        resolve("org/model")  # the cached copy is not taken silently


def test_a_proxy_that_refuses(hub, monkeypatch):
    from huggingface_hub import HfApi
    from huggingface_hub.utils import httpx

    def refuse(*arguments, **options):
        raise httpx.ProxyError("407 Proxy Authentication Required")

    hub.add("org/model", SMALL | SAFE)
    resolve("org/model")
    monkeypatch.setattr(HfApi, "model_info", refuse)
    with pytest.raises(CheckpointNotFound, match="proxy refuses .407 Proxy Authentication Required.*HTTPS_PROXY"):
        resolve("org/model")


def test_other_errors_pass_through(hub, monkeypatch):
    from huggingface_hub import HfApi

    def fail(*arguments, **options):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(HfApi, "model_info", fail)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        resolve("org/model")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("IO Error: No space left")])
def test_a_cache_that_cannot_be_written(hub, monkeypatch, error):
    def fail(*arguments, **options):
        raise error

    hub.add("org/model", SMALL | SAFE)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    with pytest.raises(CheckpointNotFound, match="No space left.*HF_HUB_CACHE") as caught:
        resolve("org/model")
    assert str(Path("hub").resolve()) in str(caught.value)


def test_the_hub_client_still_understands_its_cache(hub):
    from huggingface_hub import scan_cache_dir

    commit = hub.add("org/model", SMALL | SAFE)
    resolve("org/model")
    scanned = scan_cache_dir()
    (repository,) = scanned.repos
    assert not scanned.warnings and repository.repo_id == "org/model"
    assert [(revision.commit_hash, revision.refs) for revision in repository.revisions] == [(commit, {"main"})]


@pytest.mark.parametrize("name", ["gpt2", "a", "_org/_model", "org_/1.5-b_", "o" * 96 + "/" + "m" * 96])
def test_what_the_hub_allows_is_asked_for(hub, name):
    with pytest.raises(CheckpointNotFound, match=f"{name} .*not on the hub|{name} .*HTTP 404"):
        resolve(name)
    with pytest.raises(CheckpointNotFound, match=rf"config\.json of {name} "):
        resolve(name, local_files_only=True)


def test_names_that_only_the_hub_client_refuses(hub, monkeypatch):
    monkeypatch.setattr("jaxcal.checkpoint.hub._REPOSITORY", re.compile(".*"))
    with pytest.raises(CheckpointNotFound, match="org/model-"):
        resolve("org/model-", local_files_only=True)


# --- without a network ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["argument", "variable", "late variable"])
def test_offline_makes_no_request_and_names_what_is_missing(hub, monkeypatch, how):
    from huggingface_hub import constants

    hub.add("org/model", SMALL | SAFE)
    found = resolve("org/model")
    hub.requests.clear()
    if how == "variable":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif how == "late variable":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options = {"local_files_only": how == "argument"}
    assert resolve("org/model", **options) == found
    with pytest.raises(CheckpointNotFound, match=r"config\.json of org/other .*once with a connection.*give a folder"):
        resolve("org/other", **options)
    with pytest.raises(CheckpointNotFound, match=r"config\.json of org/model \(revision v2\)"):
        resolve("org/model", revision="v2", **options)
    for file in ("1_Pooling/config.json", "tokenizer_config.json", "model.safetensors"):
        (found.folder / file).rename(found.folder / "aside")
        with pytest.raises(CheckpointNotFound, match=f"{re.escape(file)} of org/model"):
            resolve("org/model", **options)
        (found.folder / "aside").rename(found.folder / file)
    assert hub.requests == []


def test_offline_without_the_weights_of_the_pull_request(hub):
    hub.add("org/model", SMALL | TORCH)
    hub.add("org/model", SMALL | TORCH | SAFE, "refs/pr/1")
    hub.pull("org/model", 1)
    (resolve("org/model").weights_folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointNotFound, match=r"model\.safetensors \(from refs/pr/1\) of org/model"):
        resolve("org/model", local_files_only=True)


def test_a_cache_filled_by_another_tool(hub):
    from huggingface_hub import hf_hub_download

    def fetch(*names, name="org/partial"):
        for file in names:
            hf_hub_download(name, file)

    hub.add("org/whole", SMALL | UNWANTED | SAFE | TORCH)
    snapshot = SMALL | {".gitattributes": b""} | SAFE
    hub.add("org/plain", {name: data for name, data in snapshot.items() if not name.startswith(("1_", "modules"))})
    hub.add("org/partial", SMALL | SAFE)
    fetch(*hub.revisions["org/whole"]["main"], name="org/whole")
    fetch(*hub.revisions["org/plain"]["main"], name="org/plain")
    assert resolve("org/whole", local_files_only=True).weights_revision is None
    assert resolve("org/plain", local_files_only=True).folder  # a whole copy: there is no modules.json

    fetch("config.json")
    for file in ("modules.json", "1_Pooling/config.json", "tokenizer.json", "model.safetensors"):
        with pytest.raises(CheckpointNotFound, match=f"{re.escape(file)}.* of org/partial"):
            resolve("org/partial", local_files_only=True)
        fetch(file)
    assert names_in(resolve("org/partial", local_files_only=True).folder) < set(SMALL | SAFE)


def test_a_file_known_to_be_absent(hub):
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    hub.add("org/plain", {name: SMALL[name] for name in ("config.json", "tokenizer.json")} | SAFE)
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        hf_hub_download("org/plain", file)
    with pytest.raises(CheckpointNotFound, match=r"modules\.json \(which says how to pool\) of org/plain"):
        resolve("org/plain", local_files_only=True)
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("org/plain", "modules.json")  # leaves a mark in the cache
    assert resolve("org/plain", local_files_only=True).commit == commit_of(hub.revisions["org/plain"]["main"])


@pytest.mark.parametrize("trouble", ["no connection", "server error"])
def test_an_unreachable_hub(hub, caplog, trouble):
    hub.add("org/model", SMALL | SAFE)
    found = resolve("org/model")
    if trouble == "no connection":
        disconnect(hub)
    else:
        hub.fail["."] = (503, {})
    caplog.clear()
    assert resolve("org/model") == found
    assert any(
        "cannot be reached" in record.getMessage() and found.commit in record.getMessage() for record in caplog.records
    )
    with pytest.raises(CheckpointNotFound, match=r"cannot be reached \(\w+: .*config\.json of org/other"):
        resolve("org/other")


def test_a_damaged_record_is_no_record(hub):
    commit = hub.add("org/model", SMALL | SAFE)
    found = resolve("org/model")
    record = found.folder.parent.parent / "jaxcal" / f"{commit}.json"
    assert record.is_file()
    for content in ("{", "[]", '{"files": [], "weights": {"files": ["../../x"], "commit": null, "revision": null}}'):
        record.write_text(content)
        assert resolve("org/model", local_files_only=True) == found


def test_the_environment_decides_about_hub_and_cache(hub, tmp_path):
    """In a process of its own, since huggingface_hub reads the environment at import."""
    hub.add("org/model", SMALL | SAFE)
    program = (
        "import sys; from jaxcal.checkpoint.hub import resolve; sys.stdout.write(str(resolve('org/model').folder))"
    )
    base = {key: value for key, value in os.environ.items() if not key.startswith("HF_")} | {"HF_ENDPOINT": hub.url}
    homes = [{"HF_HOME": str(tmp_path / "home")}, {"HF_HUB_CACHE": str(tmp_path / "cache")}]
    for home, root in zip(homes, (tmp_path / "home" / "hub", tmp_path / "cache"), strict=True):
        for offline in ("0", "1"):
            hub.requests.clear()
            environment = base | home | {"HF_HUB_OFFLINE": offline, "PYTHONPATH": str(Path(__file__).parents[1])}
            done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert Path(done.stdout).is_relative_to(root)
            assert bool(hub.requests) == (offline == "0")


# --- folders ----------------------------------------------------------------------------------------------------------


def test_an_existing_folder_wins(hub, tmp_path, caplog):
    hub.add("org/model", SMALL | SAFE)
    write(tmp_path / "org/model", SMALL | SAFE)
    for name in ("org/model", tmp_path / "org/model"):
        found = resolve(name, revision="main")
        assert (found.commit, found.weights_revision, found.name) == (None, None, str(name))
        assert found.folder == found.weights_folder == Path(name)
    assert hub.requests == []
    assert any("revision 'main' does not apply" in record.getMessage() for record in caplog.records)


NO_NAMES = r"./nowhere /nowhere/at/all a/b/c a/../b C:\model ~nouser_x/y a/b. a/b- a./b b- a/b--c a/b.git".split()


@pytest.mark.parametrize("name", [*NO_NAMES, "", "org/mo del", "a" * 97, "a" * 300, "org/" + "a" * 300])
def test_neither_folder_nor_id(hub, name):
    for options in ({}, {"local_files_only": True}):
        with pytest.raises(CheckpointNotFound, match="neither an existing folder nor a hub id"):
            resolve(name, **options)
    assert hub.requests == []
