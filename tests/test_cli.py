"""The command line: the same vectors as the library, one line for every mistake, nothing heavy for `--help`."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_checkpoint

import jaxcal
from jaxcal import Calibration
from jaxcal.cli import main

ROOT = Path(__file__).parents[1]
PROMPTS = {"query": "w1 w2 ", "passage": "w3 ", "other": "w4 w5 "}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    return write_checkpoint(folder, "bert", "first", num_hidden_layers=2, sentence={"prompts": PROMPTS}).folder


@pytest.fixture(scope="session")
def encoder(checkpoint):
    return jaxcal.load(checkpoint)


@pytest.fixture
def warm(encoder, monkeypatch):
    """The command gets an encoder that is loaded already, with its programs compiled: most tests need no other."""
    monkeypatch.setattr("jaxcal.encoder.load", lambda name, **options: encoder)


@pytest.fixture(scope="session")
def texts():
    rng = np.random.default_rng(0)
    return [" ".join(f"w{word}" for word in rng.integers(0, 76, length)) for length in (40, 3, 200, 0, 129)]


@pytest.fixture
def encode(checkpoint, texts, tmp_path, capsys):
    """Run `jaxcal encode` on the texts and return what it wrote."""
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts)))

    def run(*options: str, output: str = "vectors.npy"):
        path = tmp_path / output
        status = main(["encode", "--model", str(checkpoint), "--input", str(source), "--output", str(path), *options])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        vectors = np.load(path) if path.suffix == ".npy" else path
        assert printed.out.startswith(f"wrote {path}: 5 vectors of width ") and printed.out.count("\n") == 1
        return vectors

    return run


def refused(capsys, *argv: str) -> str:
    """The one line that a refused command leaves."""
    assert main(list(argv)) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("jaxcal: error: ") and printed.err.count("\n") == 1
    return printed.err


# --- encode -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "calibration"),
    [
        ((), None),
        (("--strength", "0.75"), Calibration(strength=0.75)),
        (("--basket-size", "16"), Calibration(basket_size=16)),
        (("--layers=last-50%", "--basket-size=16"), Calibration(basket_size=16)),
        (("--layers", "all", "--basket-size=16"), Calibration(layers="all", basket_size=16)),
        (("--layers", "2", "--basket-size=16"), Calibration(layers=2, basket_size=16)),
        (("--special-tokens", "keep", "--isolate", "first"), Calibration(special_tokens="keep", isolate={"first"})),
        (("--isolate", "none", "--basket-size=16"), Calibration(isolate=(), basket_size=16)),
        (("--isolate", "both"), Calibration(isolate={"first", "last"})),
        (("--calibration", "configs/calibrations/paper.yaml"), Calibration()),
        (
            ("--calibration", "configs/calibrations/reference-code.yaml", "--strength=1", "--isolate=auto"),
            Calibration(strength=1.0, special_tokens="keep"),
        ),
    ],
)
def test_the_vectors_are_those_of_the_library(warm, encode, encoder, texts, monkeypatch, options, calibration):
    monkeypatch.chdir(ROOT)
    assert np.array_equal(encode(*options), encoder.encode_document(texts, calibration=calibration))


def test_calibration_changes_what_it_should(encoder, texts):
    plain, calibrated = encoder.encode_document(texts), encoder.encode_document(texts, calibration=Calibration())
    assert np.any(plain != calibrated, axis=1).tolist() == [False, False, True, False, True]


def test_prompts(warm, encode, encoder, texts):
    assert np.array_equal(encode("--prompt", "w9 "), encoder.encode(texts, prompt="w9 "))
    assert np.array_equal(encode("--prompt", ""), encoder.encode(texts, prompt=""))
    assert np.array_equal(encode("--prompt-name", "query"), encoder.encode_query(texts))
    assert np.array_equal(encode("--prompt-name", "document"), encoder.encode(texts, prompt="w3 "))
    assert np.array_equal(encode("--prompt-name", "other"), encoder.encode(texts, prompt="w4 w5 "))


def test_the_other_options(encode, checkpoint, texts):
    options = ("--dtype", "bfloat16", "--max-length", "64", "--batch-tokens", "512", "--local-files-only")
    encoder = jaxcal.load(checkpoint, dtype="bfloat16", max_length=64)
    expected = encoder.encode_document(texts, batch_tokens=512, truncate_dim=8)
    assert np.array_equal(encode(*options, "--truncate-dim", "8"), expected)


def test_options_from_a_file(warm, encode, encoder, texts, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("strength: 1\nbasket_size: 16\nlayers: all\nprompt: ''\nlocal_files_only: true\n")
    expected = encoder.encode(texts, prompt="", calibration=Calibration(1.0, 32, "all"))
    assert np.array_equal(encode("--config", str(config), "--basket-size", "32"), expected)


def test_ids_and_vectors_in_parquet(encode, encoder, texts):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(encode(output="vectors.parquet"))
    assert table["id"].to_pylist() == ["d0", "d1", "d2", "d3", "d4"]
    assert np.array_equal(np.float32(table["embedding"].to_pylist()), encoder.encode_document(texts))


def test_no_texts_give_no_vectors(checkpoint, tmp_path, capsys):
    (tmp_path / "empty.txt").touch()
    argv = ["encode", "--model", str(checkpoint), "--input", str(tmp_path / "empty.txt")]
    assert main([*argv, "--output", str(tmp_path / "a.npy")]) == 0
    assert np.load(tmp_path / "a.npy").shape == (0, 32)
    assert capsys.readouterr().out == f"wrote {tmp_path / 'a.npy'}: 0 vectors of width 32; commit local\n"


def test_the_log_goes_to_stderr_and_ends_with_the_command(checkpoint, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("w1 w2 w3 w4 w5 w6\nw1\n")
    argv = ["encode", "--model", str(checkpoint), "--input", str(tmp_path / "a.txt"), "--max-length", "4"]
    for _ in range(2):
        assert main([*argv, "--strength", "1", "--output", str(tmp_path / "a.npy")]) == 0
        log = capsys.readouterr().err
        assert log.count("INFO loaded ") == 1 and "INFO calibration: Calibration(strength=1.0" in log
        assert "WARNING 1 of 2 texts were longer than 4 tokens and were truncated" in log and "% padding" in log
    assert not logging.getLogger("jaxcal").handlers and logging.getLogger("jaxcal").level == logging.NOTSET


# --- mistakes ---------------------------------------------------------------------------------------------------------

ENCODE = ("encode", "--model", "m", "--input", "i.txt", "--output", "o.npy")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "a command must be given; commands are encode, evaluate, demo, bench; see `jaxcal --help`."),
        (("nope",), "'nope' is no command; commands are encode, evaluate"),
        (("--nope",), "unrecognized arguments: --nope; commands are encode, evaluate"),
        (("encode", "--input", "i.txt"), "--model, --output must be given; see `jaxcal encode --help`."),
        ((*ENCODE, "--nope", "3"), "unrecognized arguments: --nope 3; see `jaxcal encode --help`."),
        ((*ENCODE, "more"), "unrecognized arguments: more"),
        ((*ENCODE, "--stren", "1"), "unrecognized arguments: --stren 1"),
        ((*ENCODE, "--strength"), "--strength: expected one argument"),
        ((*ENCODE, "--strength", "half"), "--strength is 'half'; it must be a number"),
        ((*ENCODE, "--strength", "-0.5"), "strength is -0.5; every value must lie in [0, 1]"),
        ((*ENCODE, "--basket-size", "1.5"), "--basket-size is '1.5'; it must be a whole number"),
        ((*ENCODE, "--basket-size", "0"), "basket_size is 0"),
        ((*ENCODE, "--layers", "first\nsecond"), "--layers is 'first second'; it must be last-50% or last or all or a"),
        ((*ENCODE, "--layers", "0"), "layers is 0"),
        ((*ENCODE, "--special-tokens", "drop"), "--special-tokens is 'drop'; it must be equal or keep"),
        ((*ENCODE, "--isolate", "middle"), "--isolate is 'middle'; it must be first or last or both or none or auto"),
        ((*ENCODE, "--dtype", "int8"), "--dtype is 'int8'; it must be float32 or bfloat16 or float16"),
        ((*ENCODE, "--prompt", "a", "--prompt-name", "b"), "--prompt and --prompt-name are both given"),
        ((*ENCODE, "--input", "no.txt"), "no.txt cannot be read: No such file or directory"),
        ((*ENCODE, "--input", "bad.txt"), "bad.txt, row 1, byte 1: not UTF-8"),
        ((*ENCODE, "--input", "i.csv"), "i.csv ends in .csv; texts are read from .txt, .jsonl, .parquet files"),
        ((*ENCODE, "--output", "o.csv"), "o.csv ends in .csv; vectors are written to .npy, .parquet files"),
        ((*ENCODE, "--output", "no/o.npy"), "no/o.npy cannot be written: No such file or directory"),
        ((*ENCODE, "--calibration", "no.yaml"), "no.yaml cannot be read"),
        ((*ENCODE, "--calibration", "key.yaml"), "key.yaml has the unknown keys strenght; known are strength"),
        ((*ENCODE, "--config", "no.yaml"), "--config: File does not exist"),
        ((*ENCODE, "--config", "bad.txt"), "bad.txt: not UTF-8"),
        ((*ENCODE, "--config", "list.yaml"), "list.yaml: not a mapping of options"),
        ((*ENCODE, "--config=brace.yaml"), "brace.yaml: not YAML"),
        ((*ENCODE, "--config", "key.yaml"), "key.yaml: unknown option 'strenght'"),
        ((*ENCODE, "--config", "type.yaml"), "--max-length is 'long'; it must be a whole number"),
        ((*ENCODE, "--config", "flag.yaml"), "flag.yaml: maybe is neither true nor false"),
        (
            ("demo", "--max-length", "long"),
            "--max-length is 'long'; it must be a whole number; see `jaxcal demo --help`.",
        ),
        (ENCODE, "'m' is neither an existing folder nor a hub id"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jaxcal.encoder.resolve", _no_checkpoint)
    for name, content in {
        "i.txt": b"text\n",
        "bad.txt": b"\xff\n",
        "list.yaml": b"- strength\n",
        "brace.yaml": b"{\n",
        "key.yaml": b"strenght: 1\n",
        "type.yaml": b"max_length: long\n",
        "flag.yaml": b"local_files_only: maybe\n",
    }.items():
        Path(name).write_bytes(content)
    assert message in refused(capsys, *argv)
    assert not Path("o.npy").exists()


def _no_checkpoint(name, **options):
    raise jaxcal.errors.CheckpointNotFound(f"{name!r} is neither an existing folder nor a hub id;\n  check the path.")


def test_unknown_prompt_names_are_refused(checkpoint, tmp_path, capsys):
    (tmp_path / "i.txt").write_text("w1\n")
    argv = ["--model", str(checkpoint), "--input", str(tmp_path / "i.txt"), "--output", str(tmp_path / "o.npy")]
    assert main(["encode", *argv, "--prompt-name", "title"]) == 2
    expected = "jaxcal: error: --prompt-name is 'title'; this checkpoint has document, query, passage, other.\n"
    assert capsys.readouterr().err.endswith(expected)


def test_the_input_is_never_overwritten(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), path)
    before = path.read_bytes()
    (tmp_path / "link.parquet").symlink_to(path)
    message = refused(
        capsys, "encode", "--model", "m", "--input", str(path), "--output", str(tmp_path / "link.parquet")
    )
    assert "--output is the input file" in message and path.read_bytes() == before


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt(), 130), (jaxcal.errors.WeightMismatch("a\nb"), 2), (ZeroDivisionError(), None)],
)
def test_a_run_that_fails_leaves_the_old_output(checkpoint, tmp_path, monkeypatch, capsys, error, status):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("jaxcal.encoder.Encoder._encode", fail)
    (tmp_path / "i.txt").write_text("w1\n")
    (tmp_path / "o.npy").write_text("old")
    argv = [
        "encode",
        "--model",
        str(checkpoint),
        "--input",
        str(tmp_path / "i.txt"),
        "--output",
        str(tmp_path / "o.npy"),
    ]
    if status is None:
        with pytest.raises(ZeroDivisionError):
            main(argv)
    else:
        assert main(argv) == status
        assert capsys.readouterr().err.endswith("jaxcal: error: a b\n" if status == 2 else "")
    assert (tmp_path / "o.npy").read_text() == "old" and sorted(os.listdir(tmp_path)) == ["i.txt", "o.npy"]


# --- help, version, other commands ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["encode", "evaluate", "demo", "bench"])
def test_every_command_explains_itself_with_an_example(capsys, command):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"examples:\n  jaxcal {command} " in text and f"usage: jaxcal {command} [--config" in text
    assert main(["--help"]) == 0
    assert f"    {command} " in capsys.readouterr().out


def test_version_and_the_configuration_as_yaml(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxcal {jaxcal.__version__}\n"
    assert main([*ENCODE, "--layers", "3", "--isolate", "none", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "model: m\n" in printed and "layers: 3\n" in printed and "isolate: none\n" in printed


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["demo"], {"model": None, "output": Path("demo"), "max_length": None}),
        (
            ["demo", "--model", "m", "--output", "o", "--max-length", "7"],
            {"model": "m", "output": Path("o"), "max_length": 7},
        ),
        (["bench"], {"name": "all", "output": None}),
        (["bench", "--name", "import", "--output", "b.json"], {"name": "import", "output": Path("b.json")}),
    ],
)
def test_the_other_commands_pass_their_options_on(monkeypatch, argv, expected):
    class Module:
        called = None

        def run(self, **options):
            self.called = options

    module = Module()
    setattr(module, argv[0], module.run)
    monkeypatch.setitem(sys.modules, f"jaxcal.{argv[0]}", module)
    assert main(argv) == 0
    assert module.called == expected


# --- as a process -----------------------------------------------------------------------------------------------------


def process(*command: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120, **options)


def test_a_mistake_shows_no_traceback():
    done = process("-m", "jaxcal", "encode", "--model", "m", "--input", "no.txt", "--output", "o.npy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "jaxcal: error: no.txt cannot be read: No such file or directory.\n"


def test_help_imports_nothing_heavy():
    code = """
import sys
from jaxcal.cli import main
assert main(["--help"]) == main(["encode", "--help"]) == 0
heavy = {"jax", "jaxlib", "flax", "torch", "transformers", "numpy", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
"""
    done = process("-c", code)
    assert done.returncode == 0, done.stderr


def test_a_reader_who_leaves_is_no_error():
    code = """
import sys, types
from jaxcal.cli import main
sys.modules["jaxcal.bench"] = bench = types.ModuleType("bench")
bench.bench = lambda **options: print("a line")
sys.exit(main(["bench"]))
"""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
