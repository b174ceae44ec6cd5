"""Texts from files, vectors to files, and calibrations from YAML.

Whatever a file holds that cannot be encoded is refused with file, row and field; nothing is dropped or repaired in
silence. Rows count from 1, as editors count lines. Files are written beside their place and renamed, so a run that
fails or is killed leaves an older file whole.

Axis letters: N texts, D model width.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxcal.errors import InvalidCalibration, InvalidInput, InvalidSetting, JaxcalError, MissingDependency

if TYPE_CHECKING:
    from jaxcal.calibration import Calibration

_TEMPORARY = re.compile(r"\..{0,40}-[0-9a-f]{16}(\.[^.]*)?")  # names of the files that `atomic` writes to
_ABSENT = object()  # a field that is not there, as opposed to one that is null


class TextFile(NamedTuple):
    """The texts of a file in their order, and an id for each."""

    ids: list[str]
    texts: list[str]


def read_texts(path: str | os.PathLike[str]) -> TextFile:
    """Read the texts of a file.

    - `.txt`: one text a line, in UTF-8. An empty line is an empty text.
    - `.jsonl`: one object a line with "text" and, as in BEIR's corpus.jsonl, perhaps "_id" (or "id") and "title"; or
      plain JSON strings.
    - `.parquet`: a column "text", and perhaps "_id" (or "id") and "title".

    A title that is not empty is put before the text, with a space. Where a file has no ids, they are "0", "1", ...

    Raises:
        InvalidInput: if the file cannot be read, a row is malformed or an id is there twice; names file, row and field.
        MissingDependency: if Parquet is asked for without pyarrow.
    """
    path = Path(path)
    return _by_suffix(path, _READERS, "texts are read from", InvalidInput)(path)


def write_vectors(
    path: str | os.PathLike[str],
    ids: Sequence[str],
    vectors: Float[np.ndarray, "n d"],
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write vectors as `.npy` (float32 [N, D]) or `.parquet` (columns id and embedding, a list of D float32).

    `origin` says what made the vectors; Parquet keeps it as JSON under the key "jaxcal" of the file's metadata, and
    beside a `.npy` it becomes a file of its own, named as the vectors with `.json` behind (vectors.npy.json).

    Raises:
        InvalidSetting: if the place cannot be written, as `check_output` finds, or the ids do not fit the vectors.
        MissingDependency: if Parquet is asked for without pyarrow.
    """
    path = Path(path)
    write = _by_suffix(path, _WRITERS, "vectors are written to", InvalidSetting)
    if vectors.ndim != 2 or len(ids) != len(vectors):
        raise InvalidSetting(f"{len(ids)} ids and vectors of the shape {vectors.shape} do not belong together.")
    with contextlib.ExitStack() as stack:
        if origin is not None and path.suffix.lower() == ".npy":  # gets its name last, once the vectors have theirs
            beside = stack.enter_context(atomic(_origin_path(path)))
            beside.write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
        temporary = stack.enter_context(atomic(path))
        write(temporary, ids, np.ascontiguousarray(vectors, np.float32), origin or {})


def check_output(path: str | os.PathLike[str]) -> None:
    """Find out, before hours of work, whether `write_vectors` can write to this path.

    Raises:
        InvalidSetting: if the suffix is unknown, the folder does not exist or cannot be written, or a folder is there.
        MissingDependency: if Parquet is asked for without pyarrow.
    """
    path = Path(path)
    _by_suffix(path, _WRITERS, "vectors are written to", InvalidSetting)
    if path.suffix.lower() == ".parquet":
        import_pyarrow(path)
    check_writable(path)
    if path.suffix.lower() == ".npy":
        check_writable(_origin_path(path))


def check_writable(path: str | os.PathLike[str]) -> None:
    """Find out, before long work, whether a file of any kind can be written to this path; nothing is left behind.

    Raises:
        InvalidSetting: if the folder does not exist or cannot be written, or something other than a file is there.
    """
    path = Path(path)
    with _os_errors(path):
        if path.exists() and not path.is_file():
            raise InvalidSetting(f"{path} is not a file that could be replaced; give another output.")
        # Only trying tells: permissions say nothing about a read-only disk, nor to the superuser.
        _create_beside(Path(os.path.realpath(path))).unlink()


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make sure that there is a folder at this path, with its parents.

    Raises:
        InvalidSetting: if there is a file instead, or the folder cannot be made.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be made a folder: {error.strerror}; give another place.") from None


@contextlib.contextmanager
def exclusive(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a folder, with all below it, for this process alone, and clear what killed runs of `atomic` left there.

    The system lets go of the folder when the process ends, however it ends.

    Raises:
        InvalidSetting: if another process holds it.
    """
    import fcntl

    folder = Path(folder)
    with (folder / ".lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidSetting(f"another run writes to {folder}; wait for its end, or give another folder.") from None
        for path in folder.rglob(".*"):
            if _TEMPORARY.fullmatch(path.name):
                path.unlink()
        yield


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path, of the same suffix and in the same folder, that becomes `path` if the block ends well.

        with atomic("result.json") as temporary:
            temporary.write_text(text)

    If the block raises, the temporary file is removed and whatever was at `path` stays. The block is for writing: an
    OSError in it, such as that of a full disk, is one of `path`.

    Raises:
        InvalidSetting: if the folder does not exist, the file cannot be written, or a folder is at `path`.
    """
    target = Path(os.path.realpath(path))  # renaming onto a symbolic link would replace the link itself
    with _os_errors(Path(path)):
        temporary = _create_beside(target)
        try:
            yield temporary
            _sync(temporary)
            if target.exists():
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    with contextlib.suppress(OSError):  # not every file system can sync a folder, and the file is in place by now
        _sync(target.parent)


def load_calibration(path: str | os.PathLike[str]) -> "Calibration":
    """Read a calibration from YAML: a mapping of fields of `jaxcal.Calibration`; those left out keep their default.

    Raises:
        InvalidInput: if the file cannot be read or is not YAML; names the line.
        InvalidCalibration: if it holds anything but fields of a calibration, or values without a meaning.
    """
    from jaxcal.calibration import Calibration

    path = Path(path)
    values = read_yaml(path)
    known = tuple(Calibration.__dataclass_fields__)
    if not isinstance(values, dict):
        raise InvalidCalibration(f"{path} is not a mapping; its keys may be {', '.join(known)}.")
    if unknown := [str(key) for key in values if key not in known]:
        raise InvalidCalibration(f"{path} has the unknown keys {', '.join(unknown)}; known are {', '.join(known)}.")
    try:
        return Calibration(**values)
    except (TypeError, ValueError) as error:
        raise InvalidCalibration(f"{path}: {error}") from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file of plain values.

    Raises:
        InvalidInput: if the file cannot be read or is not YAML; names the line.
    """
    import yaml

    with _opened(path) as file:
        try:
            return yaml.safe_load(file.read().decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{path}, byte {error.start + 1}: not UTF-8.") from None
        except yaml.MarkedYAMLError as error:
            line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
            raise InvalidInput(f"{path}{line}: not YAML ({error.problem}).") from None
        except (yaml.YAMLError, ValueError) as error:  # control characters; dates that do not exist
            raise InvalidInput(f"{path}: not YAML ({error}).") from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers, without line ends and byte order mark.

    Raises:
        InvalidInput: if the file cannot be read, or a line is not UTF-8; names row and byte.
    """
    with _opened(path) as file:
        for row, raw in enumerate(file, start=1):  # of a binary file: lines end at \n alone, not at U+2028 and its like
            try:
                line = raw.decode()
            except UnicodeDecodeError as error:
                raise InvalidInput(f"{path}, row {row}, byte {error.start + 1}: not UTF-8; convert the file.") from None
            line = line.removeprefix("\ufeff") if row == 1 else line
            if line:  # nothing at all, without even a line end, is what a lone byte order mark leaves
                yield row, line.removesuffix("\n").removesuffix("\r")


def parse_json_line(path: Path, row: int, line: str) -> Any:
    """Parse a line that must be JSON.

    Raises:
        InvalidInput: if it is not; names row and column.
    """
    try:
        return json.loads(line)
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:
        problem = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    raise InvalidInput(f"{path}, row {row}: not JSON ({problem}){'' if line.strip() else '; the line is blank'}.")


def import_pyarrow(path: Path) -> ModuleType:
    """Import pyarrow, for a Parquet file.

    Raises:
        MissingDependency: if it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency(f"{path}: Parquet needs pyarrow; pip install 'jaxcal[evaluation]'.") from error
    return pyarrow


# --- reading ----------------------------------------------------------------------------------------------------------


def _read_txt(path: Path) -> TextFile:
    texts = [text for _, text in read_lines(path)]
    return TextFile(_numbers(texts), texts)


def _read_jsonl(path: Path) -> TextFile:
    def records() -> Iterator[tuple[Any, Any, Any]]:
        for row, line in read_lines(path):
            value = parse_json_line(path, row, line)
            if isinstance(value, str):
                yield _ABSENT, None, value
            elif isinstance(value, dict):
                yield value.get("_id", value.get("id", _ABSENT)), value.get("title"), value.get("text", _ABSENT)
            else:
                raise InvalidInput(f'{path}, row {row}: is neither an object with "text" nor a string.')

    return _gather(path, records())


def _read_parquet(path: Path) -> TextFile:
    arrow = import_pyarrow(path)
    with _opened(path) as file:
        try:
            return _gather(path, _parquet_records(path, arrow.parquet.ParquetFile(file)))
        except (arrow.lib.ArrowException, OSError) as error:
            raise InvalidInput(f"{path} is not a Parquet file, or a damaged one: {error}") from None


def _parquet_records(path: Path, source: Any) -> Iterator[tuple[Any, Any, Any]]:
    names = source.schema_arrow.names
    if "text" not in names:
        raise InvalidInput(f'{path} has no column "text"; its columns are {", ".join(names) or "none"}.')
    wanted = {"_id" if "_id" in names else "id": _ABSENT, "title": None, "text": _ABSENT}
    if twice := [name for name in wanted if names.count(name) > 1]:
        raise InvalidInput(f'{path} has the column "{twice[0]}" twice.')
    start = 1
    for batch in source.iter_batches(columns=[name for name in wanted if name in names]):
        columns = []
        for name, absent in wanted.items():
            present = name in names
            columns.append(_cells(path, start, name, batch.column(name)) if present else [absent] * batch.num_rows)
        yield from zip(*columns, strict=True)
        start += batch.num_rows


def _cells(path: Path, start: int, name: str, column: Any) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        for row, cell in enumerate(column, start):
            try:
                cell.as_py()
            except UnicodeDecodeError as error:
                raise _malformed(path, row, name, f"is not UTF-8 at byte {error.start + 1}") from None
        raise


def _gather(path: Path, records: Iterable[tuple[Any, Any, Any]]) -> TextFile:
    """Check records of id, title and text, and join them."""
    texts: list[str] = []
    rows: dict[str, int] = {}  # of each id
    for row, (key, title, text) in enumerate(records, start=1):
        text = _string(path, row, "text", text)
        title = "" if title is None else _string(path, row, "title", title)
        texts.append(f"{title} {text}" if title else text)
        if key is not _ABSENT:
            key = str(key) if isinstance(key, int) and not isinstance(key, bool) else _string(path, row, "id", key)
            if key in rows:
                raise _malformed(path, row, "id", f"is {key!r}, as in row {rows[key]}; every id must be there once")
            rows[key] = row
        if len(rows) not in (0, row) or (rows and key is _ABSENT):
            raise _malformed(path, row, "id", "is there in some rows and missing in others; give all rows one, or none")
    return TextFile(list(rows) if rows else _numbers(texts), texts)


def _numbers(texts: Sequence[str]) -> list[str]:
    return [str(index) for index in range(len(texts))]


def _string(path: Path, row: int, field: str, value: Any) -> str:
    if value is _ABSENT or value is None:
        raise _malformed(path, row, field, "is missing" if value is _ABSENT else "is null")
    if not isinstance(value, str):
        raise _malformed(path, row, field, f"is of the type {type(value).__name__}; it must be a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _malformed(path, row, field, f"holds half a surrogate pair at character {error.start + 1}") from None
    return value


def _malformed(path: Path, row: int, field: str, what: str) -> InvalidInput:
    return InvalidInput(f'{path}, row {row}, field "{field}": {what}.')


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    with file:
        yield file


# --- writing ----------------------------------------------------------------------------------------------------------


def _write_npy(path: Path, ids: Sequence[str], vectors: np.ndarray, origin: Mapping[str, Any]) -> None:
    with path.open("wb") as file:  # given a path, numpy would put ".npy" behind ".NPY"
        np.save(file, vectors)


def _write_parquet(path: Path, ids: Sequence[str], vectors: np.ndarray, origin: Mapping[str, Any]) -> None:
    arrow = import_pyarrow(path)
    embedding = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.reshape(-1)), vectors.shape[1])
    columns = {"id": arrow.array(ids, arrow.string()), "embedding": embedding}
    arrow.parquet.write_table(arrow.table(columns, metadata={"jaxcal": json.dumps(origin)}), path)


def _origin_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _create_beside(target: Path) -> Path:
    """A new, empty file in the folder of `target`."""
    temporary = target.with_name(f".{target.stem[:40]}-{secrets.token_hex(8)}{target.suffix}")  # as _TEMPORARY says
    # Not by `tempfile`, whose files nobody else may read, even after they got their final name.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return temporary


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    """A full disk or a missing folder is no bug of ours: one line instead of a traceback."""
    try:
        yield
    except JaxcalError:  # some of them are OSErrors too
        raise
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be written: {error.strerror or error}.") from None


# --- formats ----------------------------------------------------------------------------------------------------------

_READERS = {".txt": _read_txt, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
_WRITERS = {".npy": _write_npy, ".parquet": _write_parquet}


def _by_suffix(
    path: Path, formats: Mapping[str, Callable[..., Any]], purpose: str, error: type[InvalidInput | InvalidSetting]
) -> Callable[..., Any]:
    suffix = path.suffix.lower()
    if suffix not in formats:
        raise error(f"{path} ends in {suffix or 'no suffix'}; {purpose} {', '.join(formats)} files.")
    return formats[suffix]
