"""Files in and out: what is read, what is refused and how, and that a failed write costs nothing."""

import json
import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxcal.calibration import Calibration
from jaxcal.errors import CheckpointNotFound, InvalidCalibration, InvalidInput, InvalidSetting, MissingDependency
from jaxcal.io import (
    TextFile,
    atomic,
    check_output,
    check_writable,
    load_calibration,
    make_folder,
    read_texts,
    write_vectors,
)

CONFIGS = Path(__file__).parents[1] / "configs" / "calibrations"
VECTORS = np.arange(6, dtype=np.float32).reshape(2, 3)


def file(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def parquet(folder: Path, name: str = "texts.parquet", **columns: object) -> Path:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = arrow.table(columns)
    pyarrow.parquet.write_table(table, folder / name, row_group_size=2)
    return folder / name


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"", []),
        (b"\xef\xbb\xbf", []),
        (b"one\ntwo", ["one", "two"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"\n", [""]),
        (b"one\n\n two \n\n", ["one", "", " two ", ""]),
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),
        ("a\u2028b\x0bc\x0cd\x85e\n".encode(), ["a\u2028b\x0bc\x0cd\x85e"]),
        ("Käse 🧀\nπ\n".encode(), ["Käse 🧀", "π"]),
    ],
)
def test_lines_of_text(tmp_path, content, texts):
    expected = TextFile([str(index) for index in range(len(texts))], texts)
    assert read_texts(file(tmp_path, "a.txt", content)) == expected
    assert read_texts(str(file(tmp_path, "A.TXT", content))) == expected


def test_json_lines_as_in_beir(tmp_path):
    rows = lines(
        {"_id": "d1", "title": "Title", "text": "text", "metadata": {}},
        {"_id": 7, "title": "", "text": "a\nb"},
        {"_id": "d3", "id": "other", "title": None, "text": ""},
    )
    assert read_texts(file(tmp_path, "a.jsonl", rows)) == (["d1", "7", "d3"], ["Title text", "a\nb", ""])
    assert read_texts(file(tmp_path, "b.jsonl", b"\xef\xbb\xbf" + rows.replace("\n", "\r\n").encode())).ids[0] == "d1"


def test_json_lines_without_ids(tmp_path):
    rows = lines("one", {"text": "two"}, "\u2028").removesuffix("\n")
    assert read_texts(file(tmp_path, "a.jsonl", rows)) == (["0", "1", "2"], ["one", "two", "\u2028"])
    assert read_texts(file(tmp_path, "b.jsonl", "")) == ([], [])


def test_parquet_columns(tmp_path):
    texts, titles = ["a", "b", "ü"], ["T", None, ""]
    assert read_texts(parquet(tmp_path, text=texts)) == (["0", "1", "2"], texts)
    assert read_texts(parquet(tmp_path, text=texts, id=[3, 2, 1], title=titles)) == (["3", "2", "1"], ["T a", "b", "ü"])
    assert read_texts(parquet(tmp_path, id=[1, 1, 1], text=texts, _id=["x", "y", "z"], other=[0, 0, 0])).ids[2] == "z"


def test_parquet_of_other_string_types_and_of_no_rows(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    texts = ["a", "b", "a"]
    for column in (arrow.array(texts, arrow.large_string()), arrow.array(texts).dictionary_encode()):
        assert read_texts(parquet(tmp_path, text=column)).texts == texts
    assert read_texts(parquet(tmp_path, text=arrow.array([], arrow.string()))) == ([], [])


REFUSED = {
    "utf-8": ("a.txt", b"fine\nfine \xff\n", "a.txt, row 2, byte 6: not UTF-8"),
    "utf-16": ("a.txt", "text".encode("utf-16"), "a.txt, row 1, byte 1: not UTF-8"),
    "utf-8 in json": ("a.jsonl", b'"fine"\n"\xc3"\n', "a.jsonl, row 2, byte 2: not UTF-8"),
    "json": ("a.jsonl", '"fine"\n{"text": }\n', "a.jsonl, row 2: not JSON (Expecting value at column 10)"),
    "two values": ("a.jsonl", '"a" "b"\n', "row 1: not JSON (Extra data"),
    "blank line": ("a.jsonl", '"a"\n\n"b"\n', "row 2: not JSON (Expecting value at column 1); the line is blank"),
    "deep json": ("a.jsonl", "[" * 100_000, "row 1: not JSON (nested too deeply)"),
    "long number": ("a.jsonl", "1" * 5000, "row 1: not JSON (Exceeds the limit"),
    "list": ("a.jsonl", '"fine"\n["text"]\n', 'a.jsonl, row 2: is neither an object with "text" nor a string'),
    "no text": ("a.jsonl", lines({"text": "a"}, {"txt": "b"}), 'a.jsonl, row 2, field "text": is missing'),
    "null text": ("a.jsonl", lines({"text": None}), 'row 1, field "text": is null'),
    "number": ("a.jsonl", lines({"text": 3}), 'row 1, field "text": is of the type int; it must be a string'),
    "title": ("a.jsonl", lines({"text": "a", "title": ["b"]}), 'row 1, field "title": is of the type list'),
    "surrogate": ("a.jsonl", '"ab\\ud800"', 'row 1, field "text": holds half a surrogate pair at character 3'),
    "null id": ("a.jsonl", lines({"text": "a", "_id": None}), 'row 1, field "id": is null'),
    "float id": ("a.jsonl", lines({"text": "a", "_id": 1.0}), 'row 1, field "id": is of the type float'),
    "bool id": ("a.jsonl", lines({"text": "a", "id": True}), 'row 1, field "id": is of the type bool'),
    "id twice": (
        "a.jsonl",
        lines({"text": "a", "id": "1"}, {"text": "b", "id": "2"}, {"text": "c", "id": 1}),
        "row 3, field \"id\": is '1', as in row 1",
    ),
    "id lost": (
        "a.jsonl",
        lines({"text": "a", "id": "1"}, "b"),
        'row 2, field "id": is there in some rows and missing',
    ),
    "id late": (
        "a.jsonl",
        lines("a", {"text": "b", "id": "1"}),
        'row 2, field "id": is there in some rows and missing',
    ),
    "suffix": ("a.csv", "text\n", "a.csv ends in .csv; texts are read from .txt, .jsonl, .parquet files"),
    "no suffix": ("corpus", "text\n", "corpus ends in no suffix; texts are read from"),
    "compressed": ("a.jsonl.gz", b"", "ends in .gz"),
    "parquet": ("a.parquet", b"PAR1 but no more", "a.parquet is not a Parquet file, or a damaged one"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_malformed_files_are_refused(tmp_path, case):
    name, content, message = REFUSED[case]
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(InvalidInput) as error:
        read_texts(file(tmp_path, name, content))
    assert str(tmp_path / name) in str(error.value) and message in str(error.value)


def test_files_that_cannot_be_opened_are_refused(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(InvalidInput, match="nowhere.txt cannot be read: No such file or directory"):
        read_texts(tmp_path / "nowhere.txt")
    with pytest.raises(InvalidInput, match="folder.txt cannot be read: Is a directory"):
        read_texts(tmp_path / "folder.txt")
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_calibration(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"txt": ["a"], "id": ["1"]}, 'texts.parquet has no column "text"; its columns are txt, id'),
        ({"text": ["a", "b", "c", None]}, 'row 4, field "text": is null'),
        ({"text": [1, 2]}, 'row 1, field "text": is of the type int'),
        ({"text": [b"a"]}, 'row 1, field "text": is of the type bytes'),
        ({"text": ["a", "b", "c"], "id": ["1", "2", "1"]}, "row 3, field \"id\": is '1', as in row 1"),
        ({"text": ["a", "b", "c"], "_id": ["1", "2", None]}, 'row 3, field "id": is null'),
        ({"text": ["a"], "title": [1]}, 'row 1, field "title": is of the type int'),
    ],
)
def test_malformed_parquet_is_refused(tmp_path, columns, message):
    with pytest.raises(InvalidInput) as error:
        read_texts(parquet(tmp_path, **columns))
    assert message in str(error.value)


def test_parquet_with_broken_bytes_or_a_column_twice_is_refused(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    broken = arrow.StringArray.from_buffers(
        3, arrow.py_buffer(np.array([0, 1, 2, 4], np.int32)), arrow.py_buffer(b"abc\xff")
    )
    with pytest.raises(InvalidInput, match='row 3, field "text": is not UTF-8 at byte 2'):
        read_texts(parquet(tmp_path, text=broken))
    twice = arrow.Table.from_arrays([arrow.array(["a"])] * 2, names=["text", "text"])
    pyarrow.parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(InvalidInput, match='twice.parquet has the column "text" twice'):
        read_texts(tmp_path / "twice.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    source, target = file(tmp_path, "a.parquet", b"PAR1"), tmp_path / "b.parquet"
    for use in (read_texts, check_output):
        with pytest.raises(MissingDependency, match=r"jaxcal\[evaluation\]"):
            use(source)
    with pytest.raises(MissingDependency, match="pyarrow"):
        write_vectors(target, ["a", "b"], VECTORS)
    assert os.listdir(tmp_path) == ["a.parquet"]


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 2])
def test_written_vectors_are_read_again(tmp_path, count):
    vectors, ids = VECTORS[:count].astype(np.float64), ["é", "b"][:count]
    for name in ("a.npy", "A.NPY"):
        write_vectors(tmp_path / name, ids, vectors)
        found = np.load(tmp_path / name)
        assert found.dtype == np.float32 and np.array_equal(found, vectors) and found.shape == (count, 3)

    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    write_vectors(str(tmp_path / "a.parquet"), ids, vectors[:, ::-1])
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    assert table.schema.names == ["id", "embedding"] and table["id"].to_pylist() == ids
    assert table.schema.field("embedding").type == arrow.list_(arrow.float32(), 3)
    assert table["embedding"].to_pylist() == vectors[:, ::-1].tolist()
    assert sorted(os.listdir(tmp_path)) == ["A.NPY", "a.npy", "a.parquet"]


def test_ids_must_fit_the_vectors(tmp_path):
    with pytest.raises(InvalidSetting, match=r"1 ids and vectors of the shape \(2, 3\)"):
        write_vectors(tmp_path / "a.npy", ["a"], VECTORS)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["a.npy", "a.parquet"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ZeroDivisionError()])
def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, name, error):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")

    def fail(descriptor):
        raise error

    file(tmp_path, name, "old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InvalidSetting if isinstance(error, OSError) else type(error)) as caught:
        write_vectors(tmp_path / name, ["a", "b"], VECTORS)
    if isinstance(error, OSError):
        assert str(caught.value) == f"{tmp_path / name} cannot be written: No space left on device."
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_text() == "old"


def test_atomic_replaces_only_what_ended_well(tmp_path):
    path = file(tmp_path, "result.json", "old")
    with atomic(str(path)) as temporary:
        assert temporary.parent == tmp_path and temporary.suffix == ".json" and temporary != path
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["result.json"]


def test_atomic_gives_the_usual_permissions_and_keeps_others(tmp_path):
    path, mode = tmp_path / "a.npy", lambda: stat.S_IMODE(path.stat().st_mode)
    before = os.umask(0o027)
    try:
        write_vectors(path, ["a", "b"], VECTORS)
        assert mode() == 0o640
        path.chmod(0o604)
        write_vectors(path, ["a", "b"], VECTORS)
        assert mode() == 0o604
    finally:
        os.umask(before)


def test_atomic_writes_through_a_symbolic_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "a.txt"
    link.symlink_to(file(tmp_path / "elsewhere", "b.txt", "old"))
    with atomic(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink() and (tmp_path / "elsewhere" / "b.txt").read_text() == "new"


def test_an_output_is_checked_without_touching_it(tmp_path):
    check_output(tmp_path / "new.npy")
    assert not os.listdir(tmp_path)
    check_output(str(file(tmp_path, "old.npy", "old")))
    assert (tmp_path / "old.npy").read_text() == "old" and os.listdir(tmp_path) == ["old.npy"]


def _refuse(*args):
    raise PermissionError(13, "Permission denied")


def test_impossible_outputs_are_refused(tmp_path, monkeypatch):
    (tmp_path / "folder.npy").mkdir()
    file(tmp_path, "file", "")
    for path, message in {
        "a.csv": "a.csv ends in .csv; vectors are written to .npy, .parquet files",
        "a": "a ends in no suffix; vectors are written to",
        "nowhere/a.npy": "nowhere/a.npy cannot be written: No such file or directory",
        "file/a.npy": "file/a.npy cannot be written: Not a directory",
        "folder.npy": "folder.npy is not a file that could be replaced",
    }.items():
        with pytest.raises(InvalidSetting) as error:
            check_output(tmp_path / path)
        assert message in str(error.value)
    with pytest.raises(InvalidSetting, match="cannot be written"), atomic(tmp_path / "nowhere" / "a.json"):
        pass

    monkeypatch.setattr(os, "open", _refuse)  # the tests may run as root, whom no permission stops
    with pytest.raises(InvalidSetting, match=r"a\.npy cannot be written: Permission denied"):
        check_output(tmp_path / "a.npy")


@pytest.mark.parametrize("name", ["a.json", "a.png", "a", "a.npy.json"])
def test_any_output_is_checked_without_touching_it(tmp_path, name):
    check_writable(tmp_path / name)
    assert not os.listdir(tmp_path)
    check_writable(str(file(tmp_path, name, "old")))
    assert (tmp_path / name).read_text() == "old" and os.listdir(tmp_path) == [name]


def test_any_impossible_output_is_refused(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "v.npy.json").mkdir()
    file(tmp_path, "file", "")
    for path, message in {
        "folder": "folder is not a file that could be replaced",
        "nowhere/a.json": "nowhere/a.json cannot be written: No such file or directory",
        "file/a.json": "file/a.json cannot be written: Not a directory",
        "a" * 300: "cannot be written: File name too long",
    }.items():
        with pytest.raises(InvalidSetting) as error:
            check_writable(tmp_path / path)
        assert message in str(error.value)
    with pytest.raises(InvalidSetting, match=r"v\.npy\.json is not a file"):
        check_output(tmp_path / "v.npy")
    monkeypatch.setattr(os, "open", _refuse)
    with pytest.raises(InvalidSetting, match=r"a\.json cannot be written: Permission denied"):
        check_writable(tmp_path / "a.json")


def test_atomic_refuses_a_folder_in_its_place_and_passes_our_errors_on(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(InvalidSetting, match=r"a\.json cannot be written: Is a directory"), atomic(tmp_path / "a.json"):
        pass
    with pytest.raises(InvalidSetting, match=r"b\.json cannot be written: No space"), atomic(tmp_path / "b.json"):
        raise OSError(28, "No space left on device")
    with pytest.raises(CheckpointNotFound, match="no model"), atomic(tmp_path / "b.json"):
        raise CheckpointNotFound("no model")
    assert os.listdir(tmp_path) == ["a.json"]


def test_folders_are_made_with_their_parents(tmp_path, monkeypatch):
    for _ in range(2):
        make_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    file(tmp_path, "file", "")
    for path, message in {
        "file": "File exists",
        "file/a": "Not a directory",
        "a/" + "b" * 300: "name too long",
    }.items():
        with pytest.raises(InvalidSetting, match=f"cannot be made a folder: .*{message}"):
            make_folder(tmp_path / path)


# --- calibrations -----------------------------------------------------------------------------------------------------


def test_the_calibrations_that_come_along():
    assert load_calibration(CONFIGS / "paper.yaml") == Calibration()
    expected = Calibration(special_tokens="keep", isolate={"first"})
    assert load_calibration(str(CONFIGS / "reference-code.yaml")) == expected
    assert {path.name for path in CONFIGS.iterdir()} == {"paper.yaml", "reference-code.yaml"}
    for path in CONFIGS.iterdir():
        first = path.read_text().splitlines()[0]
        assert first.startswith("# jaxcal encode ") and f"--calibration configs/calibrations/{path.name}" in first


def test_a_calibration_may_leave_out_fields_and_hold_lists(tmp_path):
    text = "\ufeffstrength: [0, 0.25]\nlayers: 2\nisolate: []\n"
    found = load_calibration(file(tmp_path, "a.yaml", text))
    assert np.array_equal(found.strength, np.float32([0, 0.25]))
    assert (found.basket_size, found.layers, found.isolate) == (128, 2, frozenset())
    assert load_calibration(file(tmp_path, "a.yaml", "isolate: last\n")).isolate == {"last"}


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (
            "strength: 0.5\nbaskets: 3\nλ: 1\n",
            InvalidCalibration,
            "has the unknown keys baskets, λ; known are strength, ",
        ),
        ("", InvalidCalibration, "is not a mapping; its keys may be strength, basket_size"),
        ("- strength\n", InvalidCalibration, "is not a mapping"),
        ("strength: 2\n", InvalidCalibration, "strength is 2; every value must lie in [0, 1]"),
        ("strength: '0.5'\n", InvalidCalibration, "strength is '0.5'"),
        ("strength: [[1], [1, 0]]\n", InvalidCalibration, "strength is "),
        ("basket_size: null\n", InvalidCalibration, "basket_size is None"),
        ("basket_size: [1, [2]]\n", InvalidCalibration, ""),
        ("layers: first\n", InvalidCalibration, "layers is 'first'"),
        ("special_tokens: [equal]\n", InvalidCalibration, "special_tokens is ['equal']"),
        ("isolate: 3\n", InvalidCalibration, ""),
        ("isolate: [middle]\n", InvalidCalibration, "it may hold 'first' and 'last' only"),
        ("strength: 0.5\nlayers: [1\nisolate: x\n", InvalidInput, "a.yaml, line 3: not YAML ("),
        ("strength: !!python/object:os.system {}\n", InvalidInput, "a.yaml, line 1: not YAML ("),
        ("strength: \x00\n", InvalidInput, "a.yaml: not YAML ("),
        ("strength: 2024-13-41\n", InvalidInput, "a.yaml: not YAML ("),
        (b"strength: \xff\n", InvalidInput, "a.yaml, byte 11: not UTF-8"),
    ],
)
def test_malformed_calibrations_are_refused(tmp_path, unchecked, content, error, message):
    path = file(tmp_path, "a.yaml", content)
    with pytest.raises(error) as caught:
        load_calibration(path)
    assert str(path) in str(caught.value) and message in str(caught.value)


def test_a_file_beside_npy_says_what_made_the_vectors(tmp_path, monkeypatch):
    origin = {"model": "a/b", "commit": None, "calibration": {"strength": 0.5}}
    write_vectors(tmp_path / "v.npy", ["a", "b"], VECTORS, origin)
    assert sorted(os.listdir(tmp_path)) == ["v.npy", "v.npy.json"]
    assert json.loads((tmp_path / "v.npy.json").read_text()) == origin
    assert np.array_equal(np.load(tmp_path / "v.npy"), VECTORS)
    monkeypatch.setattr("numpy.save", _refuse)
    with pytest.raises(InvalidSetting):
        write_vectors(tmp_path / "v.npy", ["a", "b"], VECTORS, {"model": "c/d"})
    assert json.loads((tmp_path / "v.npy.json").read_text()) == origin
    assert sorted(os.listdir(tmp_path)) == ["v.npy", "v.npy.json"]


def test_parquet_says_what_made_the_vectors(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    origin = {"model": "a/b", "commit": "c", "calibration": {"strength": 0.5}}
    write_vectors(tmp_path / "v.parquet", ["x"], np.zeros((1, 3), np.float32), origin)
    metadata = parquet.read_schema(tmp_path / "v.parquet").metadata
    assert json.loads(metadata[b"jaxcal"]) == origin
