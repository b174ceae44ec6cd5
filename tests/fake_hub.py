"""A small Hugging Face hub on the loopback, and the files of a checkpoint to put into it."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

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


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder
