"""Rows of data sets, from the hub or from local files, with refusals that name file, row and field."""

import contextlib
import fnmatch
import json
import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxcal.checkpoint.files import sha256
from jaxcal.checkpoint.hub import Unreachable, hub_errors, offline
from jaxcal.errors import CheckpointNotFound, InvalidInput, InvalidSetting
from jaxcal.io import import_pyarrow, parse_json_line, read_lines

logger = logging.getLogger("jaxcal")

Policy = Literal["stop", "skip"]
_SHOWN = 10  # refused rows that the log names; all of them are counted


@dataclass(frozen=True, eq=False)
class Source:
    """The files of a data set, wherever they are.

    Attributes:
        where: what messages call the place.
        names: the files, relative to it.
        fetch: gives the local path of a file, downloading it if need be.
        repository, commit: on the hub; None for local files.
    """

    where: str
    names: tuple[str, ...]
    fetch: Callable[[str], Path]
    repository: str | None = None
    commit: str | None = None

    def matching(self, patterns: Sequence[str]) -> list[str]:
        """The names that match the first of the patterns that any name matches, in order.

        Raises:
            InvalidInput: none does, or one of numbered parts (-00000-of-00002) is missing.
        """
        by_pattern = {pattern: sorted(fnmatch.filter(self.names, pattern)) for pattern in patterns}
        pattern, found = next(((pattern, found) for pattern, found in by_pattern.items() if found), ("", []))
        if not found:
            listed = ", ".join(self.names[:8]) or "nothing"
            raise InvalidInput(f"{self.where} has no file {' or '.join(patterns)}; it has {listed}.")
        parts = [name.rpartition("-of-")[2].partition(".")[0] for name in found if "-of-" in name]
        if parts and parts[0].isdigit() and len(parts) != int(parts[0]):
            raise InvalidInput(
                f"{self.where} has {len(parts)} of the {int(parts[0])} parts of {pattern}; get them all."
            )
        return found

    def origin(self, names: Sequence[str]) -> dict[str, Any]:
        """What identifies these files: the commit of a repository, or a sha256 of each."""
        if self.commit is not None:
            return {"repository": self.repository, "revision": self.commit}
        return {"files": {name: sha256(self.fetch(name)) for name in names}}


def find_files(
    files: str | Path | Sequence[str | Path] | None,
    repository: str,
    wanted: Sequence[Sequence[str]],
    *,
    revision: str | None,
    local_files_only: bool,
) -> tuple[Source, list[str]]:
    """The files of a data set, in order: local ones as they are listed; of the hub, or of a folder, by their names.

    Args:
        files: local files, or a folder with a copy of the repository; None: the hub's.
        wanted: for each part of the data set the patterns that its files may have; the first that matches counts.

    Raises:
        InvalidInput: a local file does not exist, or no file has a wanted name.
        InvalidSetting: a revision of local files.
        CheckpointNotFound: the hub's files cannot be had; says why.
    """
    if files is None:
        try:
            source = hub_source(repository, revision=revision, local_files_only=local_files_only)
        except CheckpointNotFound as error:
            listed = " and ".join(" or ".join(patterns) for patterns in wanted)
            raise CheckpointNotFound(f"{error} Or give local copies of {listed} with `files`.") from error
    else:
        if revision is not None:
            raise InvalidSetting("revision is of the hub's files; leave it out where `files` gives local ones.")
        source = local_source(files)
        if not Path(source.where).is_dir():
            return source, list(source.names)
    return source, [name for patterns in wanted for name in source.matching(patterns)]


def local_source(files: str | Path | Sequence[str | Path]) -> Source:
    """Local files: one, several, or a folder with all that is in it.

    Raises:
        InvalidInput: a file does not exist, or two have the same name.
    """
    paths = [Path(file) for file in ([files] if isinstance(files, str | Path) else files)]
    if not paths:
        raise InvalidInput("the list of files is empty.")
    if len(paths) == 1 and paths[0].is_dir():
        folder = paths[0]
        names = sorted(str(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if path.is_file())
        return Source(str(folder), tuple(names), lambda name: folder / name)
    for path in paths:
        if not path.is_file():
            raise InvalidInput(f"{path} is not a file.")
    by_name = {path.name: path for path in paths}
    if len(by_name) != len(paths):
        raise InvalidInput(f"two of the files {', '.join(map(str, paths))} have the same name; rename one.")
    return Source(", ".join(map(str, paths)), tuple(by_name), by_name.__getitem__)


def hub_source(repository: str, *, revision: str | None = None, local_files_only: bool = False) -> Source:
    """A data set repository of the Hugging Face hub at one commit; its files are fetched when they are asked for.

    Raises:
        CheckpointNotFound: the repository, the revision or a file cannot be had; says why.
    """
    if local_files_only or offline():
        return _cached_source(repository, revision, "was not to be asked")
    from huggingface_hub import HfApi, constants, hf_hub_download

    wait = constants.HF_HUB_ETAG_TIMEOUT  # without a limit, a network that swallows packets would hang us for minutes
    try:
        with hub_errors(repository, revision, "the list of files"):
            info = HfApi().dataset_info(repository, revision=revision, timeout=wait)
    except Unreachable as error:
        source = _cached_source(repository, revision, f"cannot be reached ({error})")
        logger.warning("The hub cannot be reached; using the cached commit %s of %s.", source.commit, repository)
        return source
    commit = info.sha

    def fetch(name: str) -> Path:
        try:
            with hub_errors(repository, commit, name):
                return Path(hf_hub_download(repository, name, repo_type="dataset", revision=commit))
        except Unreachable as error:
            raise CheckpointNotFound(f"{name} of {repository} could not be downloaded: {error}") from error

    names = tuple(sorted(file.rfilename for file in info.siblings or ()))
    return Source(repository, names, fetch, repository, commit)


def _cached_source(repository: str, revision: str | None, hub: str) -> Source:
    from huggingface_hub import errors, get_cached_repo_tree, snapshot_download

    try:
        folder = Path(snapshot_download(repository, repo_type="dataset", revision=revision, local_files_only=True))
        names = local_source(folder).names
    except errors.IncompleteSnapshotError as error:
        # A part of the repository was downloaded, with a list of all of it: so what is missing is known, and refused
        # once it is asked for.
        folder = Path(error.snapshot_path)
        tree = get_cached_repo_tree(repository, repo_type="dataset", revision=folder.name)
        names = tuple(sorted(file.path for file in tree))
    except errors.LocalEntryNotFoundError:
        raise CheckpointNotFound(
            f"The data set {repository} (revision {revision or 'main'}) is not in the cache, and the hub {hub}; load it"
            " once with a connection."
        ) from None

    def fetch(name: str) -> Path:
        if not (folder / name).is_file():
            raise CheckpointNotFound(
                f"{name} of {repository} is not in the cache, and the hub {hub}; load it once with a connection."
            )
        return folder / name

    return Source(f"the cached copy of {repository}", names, fetch, repository, folder.name)


# --- rows -------------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a .parquet, .jsonl or .json file (a list of objects), numbered from 1.

    Raises:
        InvalidInput: the file cannot be read; names file and row.
        MissingDependency: Parquet without pyarrow.
    """
    readers = {".parquet": _parquet, ".jsonl": _json_lines, ".json": _json_list}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InvalidInput(
            f"{path} ends in {path.suffix or 'no suffix'}; rows are read from .parquet, .jsonl and .json."
        )
    try:
        for number, row in enumerate(reader(path), 1):
            if not isinstance(row, dict):
                raise InvalidInput(f"{path}, row {number}: is not an object.")
            yield number, row
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from None


def _parquet(path: Path) -> Iterator[Any]:
    arrow = import_pyarrow(path)
    try:
        with path.open("rb") as file:
            for batch in arrow.parquet.ParquetFile(file).iter_batches():
                yield from batch.to_pylist()
    except arrow.lib.ArrowException as error:
        raise InvalidInput(f"{path} is not a Parquet file, or a damaged one: {error}") from None


def _json_lines(path: Path) -> Iterator[Any]:
    for number, line in read_lines(path):
        yield parse_json_line(path, number, line)


def _json_list(path: Path) -> Iterator[Any]:
    text = path.read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("["):  # some repositories call JSON lines .json
        yield from _json_lines(path)
        return
    yield from parse_json(text, str(path))


def parse_json(text: str, where: str) -> Any:
    """Parse the text of a whole file.

    Raises:
        InvalidInput: with the place and what is wrong there.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: not JSON ({error}).") from None


def columns(judged: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """Judgements (query, gold, group) as the arrays of a `PositionDataset`."""
    query, gold, group = np.array(judged, np.int64).reshape(-1, 3).T
    return {"query": query, "gold": gold, "group": group}


# --- fields and refusals ----------------------------------------------------------------------------------------------


class BadField(Exception):
    """A field of a row that has no meaning; `Refusals` knows what to do about it."""

    def __init__(self, field: str, what: str):
        super().__init__(f'field "{field}": {what}')


def text_of(row: Mapping[str, Any], field: str) -> str:
    """A field that must be a string, of whole characters."""
    value = _of(row, field, str, "a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadField(field, f"holds half a surrogate pair at character {error.start + 1}") from None
    return value


def whole_of(row: Mapping[str, Any], field: str) -> int:
    """A field that must be a whole number."""
    return _of(row, field, int, "a whole number")


def flag_of(row: Mapping[str, Any], field: str) -> bool:
    """A field that must be true or false."""
    return _of(row, field, bool, "true or false")


def list_of(row: Mapping[str, Any], field: str, kind: type) -> list[Any]:
    """A field that must be a list of strings, whole numbers or objects."""
    values = _of(row, field, list, "a list")
    for value in values:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            called = {str: "strings", int: "whole numbers", dict: "objects"}[kind]
            raise BadField(field, f"holds {str(value)[:60]!r}; it must be a list of {called}")
    return values


def mapping_of(row: Mapping[str, Any], field: str) -> dict[str, Any]:
    """A field that must be an object."""
    return _of(row, field, dict, "an object")


def known_of(row: Mapping[str, Any], field: str, known: Container[str]) -> str:
    """A field that must name a row of another file."""
    value = text_of(row, field)
    if value not in known:
        raise BadField(field, f"is {value!r}, which does not exist")
    return value


def enter(table: dict[str, Any], identity: str, value: Any) -> None:
    """Put a row into a table by its "_id", which must be new."""
    if identity in table:
        raise BadField("_id", f"is {identity!r} for the second time")
    table[identity] = value


def _of(row: Mapping[str, Any], field: str, kind: type, called: str) -> Any:
    if field not in row:
        raise BadField(field, "is missing")
    value = row[field]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadField(field, f"is {str(value)[:60]!r}; it must be {called}")
    return value


class Refusals:
    """What happens to malformed rows: "stop" raises at the first, "skip" logs and counts them.

    None stops too, for readers that cannot do without a row.

    Raises:
        InvalidSetting: there is no such policy.
    """

    def __init__(self, policy: Policy | None):
        if policy not in ("stop", "skip", None):
            raise InvalidSetting(f"malformed is {policy!r}; it must be stop or skip.")
        self.policy, self.count = policy, 0

    @contextlib.contextmanager
    def row(self, where: object, number: int | str) -> Iterator[None]:
        """A block that reads one row; a `BadField` in it refuses the row.

        Raises:
            InvalidInput: unless rows are skipped, with file, row and field.
        """
        try:
            yield
        except BadField as bad:
            self._refuse(f"{where}, row {number}, {bad}.")

    def _refuse(self, message: str) -> None:
        if self.policy == "stop":
            raise InvalidInput(f"{message} (malformed: skip leaves such rows out and counts them)")
        if self.policy is None:
            raise InvalidInput(message)
        self.count += 1
        if self.count <= _SHOWN:
            logger.warning("refused: %s", message)
