"""From a hub id or a folder to the files of a checkpoint.

Only what an encoder needs is downloaded: configuration, tokenizer, module files and one set of weights. The hub's own
cache layout is used and honoured (HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE). Beside the cached snapshots of a repository
a small record, jaxcal/<commit>.json, notes which files make a commit complete, so that an offline run can tell "the
repository has no such file" from "it was never downloaded", and knows which conversion pull request gave the weights.
"""

import contextlib
import errno
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxcal.checkpoint.files import (
    SENTENCE_CONFIGS,
    TOKENIZER_FILES,
    VOCABULARIES,
    WEIGHTS,
    is_inside,
    module_configs,
    no_weights,
    os_errors,
    read_json,
    weight_files,
    weight_names,
)
from jaxcal.errors import CheckpointNotFound, JaxcalError, MissingDependency

logger = logging.getLogger("jaxcal")

MODULE_FILES = ("modules.json", "config_sentence_transformers.json")

# What the hub allows: owner and model of 96 characters at most, with letters, digits or underscores at their ends.
_PART = r"\w(?:[\w.-]{0,94}\w)?"
_REPOSITORY = re.compile(rf"(?!.*(?:--|\.\.|\.git$)){_PART}(?:/{_PART})?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONVERTER = "SFconvertbot"


@dataclass(frozen=True)
class Checkpoint:
    """Where the files of a checkpoint lie, and which revision they are.

    `folder` holds configuration, tokenizer and module files; `weights_folder` the weights, which is the same folder
    unless they come from a conversion pull request: then `weights_revision` names it ("refs/pr/N") and
    `weights_commit` pins it. `commit` is None for a local folder.
    """

    name: str
    folder: Path
    weights_folder: Path
    commit: str | None = None
    weights_revision: str | None = None
    weights_commit: str | None = None


class Unreachable(Exception):
    """The hub gave no answer; the cache may still have everything."""


@os_errors()
def resolve(name: str | os.PathLike[str], *, revision: str | None = None, local_files_only: bool = False) -> Checkpoint:
    """Find the files of a checkpoint, downloading what the cache lacks.

    `name` is a folder (an existing one wins) or a hub id such as "BAAI/bge-m3"; `revision` a branch, a tag or a commit
    of 40 hex digits. With `local_files_only`, or with HF_HUB_OFFLINE set, nothing touches the network. A repository
    that has PyTorch weights only is completed from the pull request of the hub's conversion bot, if that converts
    exactly these weights. If the hub cannot be reached, a complete copy in the cache is used, with a warning.

    Raises `CheckpointNotFound` with the cause: no such repository or revision, access denied, no connection and an
    incomplete cache, a missing file, a cache that cannot be written. Raises `CorruptCheckpoint` for module and index
    files that cannot be read, `MissingDependency` before PyTorch weights are downloaded that nothing here could read.
    """
    name = os.fspath(name)
    if folder := _existing_folder(name):
        return _from_folder(name, folder, revision)
    if not _REPOSITORY.fullmatch(name):
        raise CheckpointNotFound(
            f"{name!r} is neither an existing folder nor a hub id (owner/model); check the path or the spelling."
        )
    if local_files_only or offline():
        return _from_cache(name, revision)
    if revision and _COMMIT.fullmatch(revision) and (found := _from_record(name, revision)):
        return found
    try:
        return _from_hub(name, revision)
    except Unreachable as cause:
        try:
            found = _from_cache(name, revision)
        except CheckpointNotFound as miss:
            raise CheckpointNotFound(f"The hub cannot be reached ({cause}); and offline: {miss}") from cause
        logger.warning("The hub cannot be reached (%s); using the cached commit %s of %s.", cause, found.commit, name)
        return found


# --- what to take -----------------------------------------------------------------------------------------------------


def _small_files(available: Iterable[str]) -> list[str]:
    fixed = {"config.json", *TOKENIZER_FILES, *MODULE_FILES, *SENTENCE_CONFIGS}
    return sorted(file for file in available if file in fixed)


# --- a folder ---------------------------------------------------------------------------------------------------------


def _existing_folder(name: str) -> Path | None:
    try:
        folder = Path(name).expanduser()
        return folder if name and folder.is_dir() else None
    except RuntimeError:  # "~somebody" without such a user
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


def _from_folder(name: str, folder: Path, revision: str | None) -> Checkpoint:
    if not (folder / "config.json").is_file():
        raise CheckpointNotFound(
            f"{folder} has no config.json; give the folder that holds config.json, tokenizer and weights"
            " (in a hub cache: snapshots/<commit> of the model)."
        )
    if revision is not None:
        logger.warning("%s is a local folder; revision %r does not apply to it and is ignored.", name, revision)
    return Checkpoint(name, folder, folder)


# --- the cache --------------------------------------------------------------------------------------------------------


def offline() -> bool:
    """Whether the environment forbids to ask the hub."""
    from huggingface_hub import constants

    # The library reads the variable once, at import; a variable set later is meant just as seriously.
    late = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    return bool(constants.HF_HUB_OFFLINE) or late


def _storage(name: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser() / f"models--{name.replace('/', '--')}"


def _snapshot(name: str, commit: str) -> Path:
    return _storage(name) / "snapshots" / commit


def _missing(name: str, revision: str | None, file: str) -> CheckpointNotFound:
    return CheckpointNotFound(
        f"{file} of {name} (revision {revision or 'main'}) is not in the cache {_storage(name).parent}. Load it once"
        " with a connection (without HF_HUB_OFFLINE and local_files_only), or give a folder that has the checkpoint."
    )


def _from_cache(name: str, revision: str | None) -> Checkpoint:
    """The checkpoint as the cache has it, without any request."""
    config = _cached(name, "config.json", revision)
    if not isinstance(config, str):
        raise _missing(name, revision, "config.json")
    folder = Path(config).parent
    if found := _from_record(name, folder.name):
        return found
    record = _read_record(name, folder.name)
    if record is not None:
        raise _missing(name, revision, ", ".join(_absent(name, folder.name, record)))

    # Another tool filled the cache. What it did not ask for may exist all the same, so absence must be proved.
    if not (folder / "modules.json").is_file() and not _known_absent(name, folder, "modules.json"):
        raise _missing(name, revision, "modules.json (which says how to pool)")
    wanted = module_configs(folder / "modules.json") if (folder / "modules.json").is_file() else []
    for file in wanted:
        # Normalize and its like often have no configuration, so only the pooling file is a must.
        if "pooling" in file.lower() and not (folder / file).is_file():
            raise _missing(name, revision, file)
    if not any((folder / file).is_file() for file in ("tokenizer.json", *VOCABULARIES)):
        raise _missing(name, revision, "tokenizer.json")
    try:
        weight_files(folder)
    except CheckpointNotFound as error:
        raise CheckpointNotFound(f"{_missing(name, revision, 'model.safetensors')} In detail: {error}") from error
    return Checkpoint(name, folder, folder, folder.name)


def _cached(name: str, file: str, revision: str | None) -> Any:
    """The path of a cached file, a mark of its absence from the repository, or None if the cache knows nothing."""
    from huggingface_hub import try_to_load_from_cache

    with hub_errors(name, revision, file):
        return try_to_load_from_cache(name, file, revision=revision)


def _known_absent(name: str, folder: Path, file: str) -> bool:
    """Whether the repository is known not to have a file that its cached snapshot lacks."""
    marked = _cached(name, file, folder.name)
    # Only a download of the whole repository fetches .gitattributes; such a snapshot lacks nothing.
    return (marked is not None and not isinstance(marked, str)) or (folder / ".gitattributes").exists()


def _record_path(name: str, commit: str) -> Path:
    return _storage(name) / "jaxcal" / f"{commit}.json"


def _read_record(name: str, commit: str) -> dict[str, Any] | None:
    try:
        record = read_json(_record_path(name, commit))
        weights = record["weights"]
        plain = [*record["files"], *weights["files"], *(weights[key] or "-" for key in ("commit", "revision"))]
        return record if all(isinstance(item, str) and is_inside(item) for item in plain) else None
    except (JaxcalError, KeyError, TypeError):
        return None  # an unreadable record is no record; the files themselves decide


def _write_record(name: str, commit: str, record: dict[str, Any]) -> None:
    path = _record_path(name, commit)
    with contextlib.suppress(OSError):  # a read-only cache serves just as well, only without the record
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps(record, indent=1), encoding="utf-8")
        os.replace(draft, path)


def _absent(name: str, commit: str, record: dict[str, Any]) -> list[str]:
    weights = record["weights"]
    lacking = [file for file in record["files"] if not (_snapshot(name, commit) / file).is_file()]
    origin = _snapshot(name, weights["commit"] or commit)
    suffix = f" (from {weights['revision']})" if weights["revision"] else ""
    return lacking + [file + suffix for file in weights["files"] if not (origin / file).is_file()]


def _from_record(name: str, commit: str) -> Checkpoint | None:
    """The checkpoint of a commit that jaxcal downloaded before, if nothing of it was removed."""
    record = _read_record(name, commit)
    if record is None or _absent(name, commit, record):
        return None
    weights = record["weights"]
    if weights["revision"]:
        logger.info("Weights of %s come from %s (commit %s).", name, weights["revision"], weights["commit"])
    origin = _snapshot(name, weights["commit"] or commit)
    return Checkpoint(name, _snapshot(name, commit), origin, commit, weights["revision"], weights["commit"])


# --- the hub ----------------------------------------------------------------------------------------------------------


def _from_hub(name: str, revision: str | None) -> Checkpoint:
    info = _info(name, revision)
    files = _blobs(info)
    if "config.json" not in files:
        raise CheckpointNotFound(
            f"{name} (revision {revision or 'main'}) has no config.json, so it is no transformers checkpoint."
        )
    # Asking by the name of the revision lets the cache note which commit the name stands for. All else is asked for by
    # commit: a branch may move meanwhile, and under a branch name the cache may answer for a hub that refuses.
    _download(name, "config.json", revision)
    commit = info.sha
    record = _read_record(name, commit)
    safe = record is not None and all(file.endswith(".safetensors") for file in record["weights"]["files"])
    if safe and (found := _from_record(name, commit)):
        return found

    small = _small_files(files)
    paths = {file: _download(name, file, commit) for file in small}
    if "modules.json" in paths:
        extra = [file for file in module_configs(paths["modules.json"]) if file in files and file not in paths]
        small += extra
        for file in extra:
            _download(name, file, commit)
    weights = _weights_from_hub(name, commit, files)
    _write_record(name, commit, {"files": small, "weights": weights})
    origin = _snapshot(name, weights["commit"] or commit)
    return Checkpoint(name, _snapshot(name, commit), origin, commit, weights["revision"], weights["commit"])


def _weights_from_hub(name: str, commit: str, files: dict[str, str | None]) -> dict[str, Any]:
    """Download one set of weights; says which files, and the pull request and commit if they come from one."""
    if names := _download_weights(name, commit, files, WEIGHTS["safetensors"]):
        return {"files": names, "commit": None, "revision": None}
    single = WEIGHTS["torch"]
    if single not in files and f"{single}.index.json" not in files:
        raise CheckpointNotFound(f"{name} has no weights at commit {commit}: {no_weights(files)}")
    for reference, pull, converted in _conversions(name, files):
        if names := _download_weights(name, pull, converted, WEIGHTS["safetensors"]):
            origin = f"the safetensors copy of its conversion pull request {reference} (commit {pull})"
            logger.warning("%s has only PyTorch weights at commit %s; taking %s.", name, commit, origin)
            return {"files": names, "commit": pull, "revision": reference}
    if find_spec("torch") is None:
        raise MissingDependency(
            f"{name} has only PyTorch weights at commit {commit}, and torch is not installed. Install torch; or convert"
            " them to model.safetensors elsewhere and give the folder; or look for a pull request of the repository"
            " that has safetensors, and give revision='refs/pr/N'."
        )
    logger.warning("%s has neither safetensors weights nor a usable conversion pull request; taking %s.", name, single)
    return {"files": _download_weights(name, commit, files, single), "commit": None, "revision": None}


def _download_weights(name: str, commit: str, files: dict[str, str | None], single: str) -> list[str]:
    """Download the weights of one format, index included, in name order; empty if the commit has none of it."""
    shards = weight_names(single, files.__contains__, lambda file: _download(name, file, commit))
    missing = [shard for shard in shards if shard not in files]
    if missing:
        raise CheckpointNotFound(
            f"{single}.index.json of {name} (commit {commit}) names shards that the repository lacks:"
            f" {', '.join(missing)}; try another revision."
        )
    for shard in shards:
        _download(name, shard, commit)
    return ([] if not shards or single in shards else [f"{single}.index.json"]) + list(shards)


def _conversions(name: str, files: dict[str, str | None]) -> Iterator[tuple[str, str, dict[str, str | None]]]:
    """Open pull requests of the conversion bot that convert exactly the PyTorch weights in `files`, newest first.

    Anybody can open a pull request; only the bot's are considered, and only those whose branch still has the same
    .bin files: one opened before the weights changed converts other weights.
    """
    for discussion in _pull_requests(name):
        title = discussion.title.lower()
        mine = discussion.is_pull_request and discussion.author == _CONVERTER and discussion.status == "open"
        if not mine or "safetensors" not in title or "variant" not in title:
            continue
        reference = f"refs/pr/{discussion.num}"
        info = _info(name, reference)
        converted = _blobs(info)
        if {file: converted.get(file) for file in _torch_files(files)} != _torch_files(files):
            logger.warning("%s of %s converts other weights than the requested revision has; ignored.", reference, name)
            continue
        yield reference, info.sha, converted


def _torch_files(files: dict[str, str | None]) -> dict[str, str | None]:
    return {file: blob for file, blob in files.items() if re.fullmatch(r"pytorch_model[\w-]*\.bin", file)}


def _pull_requests(name: str) -> list[Any]:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    with hub_errors(name, None, "its pull requests"):
        try:
            listed = HfApi().get_repo_discussions(name, discussion_type="pull_request", discussion_status="open")
            return sorted(listed, key=lambda discussion: -discussion.num)
        except HfHubHTTPError as error:
            # Owners can switch discussions off, and mirrors often lack them: then there is no pull request to find.
            status = error.response.status_code
            if status in (404, 410) or (status == 403 and "discussions are disabled" in str(error).lower()):
                logger.info("%s has no pull requests to look through (HTTP %d).", name, status)
                return []
            raise


def _info(name: str, revision: str | None) -> Any:
    from huggingface_hub import HfApi, constants

    wait = constants.HF_HUB_ETAG_TIMEOUT  # without a limit, a network that swallows packets would hang us for minutes
    with hub_errors(name, revision, "its file list"):
        return HfApi().model_info(name, revision=revision, files_metadata=True, timeout=wait)


def _blobs(info: Any) -> dict[str, str | None]:
    """File name -> what identifies its content (the SHA-256 of large files), where the hub says so."""
    siblings = info.siblings or []
    return {file.rfilename: (file.lfs.sha256 if file.lfs is not None else file.blob_id) for file in siblings}


def _download(name: str, file: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    with hub_errors(name, revision, file):
        return Path(hf_hub_download(name, file, revision=revision))


@contextlib.contextmanager
def hub_errors(name: str, revision: str | None, what: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into `CheckpointNotFound`, or `Unreachable` where nobody answered."""
    try:
        yield
    except Exception as error:
        translated = _translate(error, name, revision or "main", what)
        if translated is None:
            raise
        raise translated from error


def _translate(error: Exception, name: str, revision: str, what: str) -> Exception | None:
    from huggingface_hub import errors as hub

    if isinstance(error, hub.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # "not in the cache either"; the cause says why it was not downloaded
    kinds = {kind.__name__ for kind in type(error).__mro__}  # by name: the hub client has changed its HTTP library
    status = getattr(getattr(error, "response", None), "status_code", None)
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    cached = "or use a complete cached copy with local_files_only=True"
    if isinstance(error, hub.GatedRepoError):
        reason = f"is gated: accept its terms on the hub, then log in (`hf auth login`, or HF_TOKEN), {cached}"
    elif isinstance(error, hub.RevisionNotFoundError):
        reason = "has no such revision: give a branch, a tag or a full commit of the repository"
    elif isinstance(error, hub.EntryNotFoundError) and status is not None:
        reason = "does not have this file: try another revision"
    elif isinstance(error, hub.RepositoryNotFoundError):
        reason = "is not on the hub, or is private: check the spelling, or log in (`hf auth login`, or HF_TOKEN)"
    elif "ProxyError" in kinds:
        reason = f"cannot be asked for, the proxy refuses ({first}): check HTTPS_PROXY, {cached}"
    elif (status or 0) >= 500 or kinds & {"TransportError", "ConnectionError", "TimeoutError"}:
        return Unreachable(f"{type(error).__name__}: {first}")
    elif isinstance(error, hub.HfHubHTTPError):
        reason = f"was refused by the hub with HTTP {status} ({first}), {cached}"
    elif "FileMetadataError" in kinds or isinstance(error, (hub.HFValidationError, json.JSONDecodeError)):
        reason = f"got an answer that is not the hub's ({first}): check HF_ENDPOINT and the network"
    elif isinstance(error, OSError) or type(error) is RuntimeError:  # the latter is how the Xet client reports it
        cache = _storage(name).parent
        reason = f"could not be stored in or read from {cache} ({first}): check space and permissions there, or set"
        reason += " HF_HUB_CACHE to another folder"
    else:
        return None
    return CheckpointNotFound(f"Could not get {what} of {name} (revision {revision}): the repository {reason}.")
