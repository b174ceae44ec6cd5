"""The command line: it parses options and calls one function of the command's name, which prints what it wrote.

Everything heavy is imported inside the commands, so that `--help` and mistyped options are answered at once. On stdout
stand results alone; log and progress go to stderr. Whatever the user can set right (`JaxcalError` and wrong options) is
one line on stderr and exit status 2; any other exception is a bug and keeps its traceback.
"""

import argparse
import contextlib
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from jsonargparse import ActionYesNo, ArgumentParser, DefaultHelpFormatter

from jaxcal import __version__
from jaxcal.errors import InvalidSetting, JaxcalError

if TYPE_CHECKING:
    from jaxcal.calibration import Calibration
    from jaxcal.encoder import Encoder

Isolate = Literal["first", "last", "both", "none", "auto"]
_ENDS = {"first": ("first",), "last": ("last",), "both": ("first", "last"), "none": (), "auto": None}


def encode(
    model: str,
    input: Path,
    output: Path,
    calibration: Path | None = None,
    strength: float | None = None,
    basket_size: int | None = None,
    layers: Literal["last-50%", "last", "all"] | int | None = None,
    special_tokens: Literal["equal", "keep"] | None = None,
    isolate: Isolate | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    revision: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    max_length: int | None = None,
    batch_tokens: int | None = None,
    truncate_dim: int | None = None,
    local_files_only: bool = False,
) -> None:
    """Encode the texts of a file, one vector each.

    Without a calibration option the model is used as published. Any of
    --strength, --basket-size, --layers, --special-tokens and --isolate calibrates
    it, starting from the paper's default (strength 0.5, baskets of 128 tokens,
    last half of the layers) or from the file given by --calibration. Texts are
    encoded as documents unless a prompt says otherwise.

    Args:
        model: a hub id such as BAAI/bge-m3, or a folder with a checkpoint
        input: texts: .txt (one a line), .jsonl (objects with text, perhaps _id and title) or .parquet (such columns)
        output: vectors: .npy (float32, one row a text; what made them in a .json beside) or .parquet (id, embedding)
        calibration: a calibration in YAML, such as configs/calibrations/paper.yaml
        strength: from 0, attention as it is, to 1, equal attention to all parts of a text
        basket_size: tokens in each of those parts; texts below one basket are never calibrated
        layers: which layers are calibrated: last-50%, last, all, or a number, counted from the last
        special_tokens: share of an isolated special token: equal, like a basket, or keep, what the first one had
        isolate: ends of a text that are no part of a basket: first, last, both, none, or auto (by the pooling)
        prompt: put before every text; an empty one means no prompt
        prompt_name: take this prompt of the checkpoint instead of the document prompt: query for queries
        revision: branch, tag or commit of a hub id
        dtype: type of weights and activations: float32, bfloat16 or float16; the vectors are float32
        max_length: longest text in tokens; longer ones are truncated, which the log tells
        batch_tokens: tokens in a batch, padding included
        truncate_dim: keep so many leading dimensions
        local_files_only: never touch the network
    """
    from jaxcal.io import check_output, read_texts, write_vectors

    if prompt is not None and prompt_name is not None:
        raise InvalidSetting("--prompt and --prompt-name are both given; give one of them.")
    check_output(output)
    texts = read_texts(input)
    if output.exists() and output.samefile(input):
        raise InvalidSetting(f"--output is the input file {input}, which would be lost; give another output.")
    changes = {"strength": strength, "basket_size": basket_size, "layers": layers, "special_tokens": special_tokens}
    chosen = _calibration(calibration, changes, isolate)

    from jaxcal.encoder import load

    encoder = load(model, revision=revision, dtype=dtype, max_length=max_length, local_files_only=local_files_only)
    logging.getLogger("jaxcal").info("calibration: %s", chosen or "none, the model as published")
    vectors = _encoding(encoder, prompt, prompt_name)(
        texts.texts,
        calibration=chosen,
        batch_tokens=batch_tokens,
        truncate_dim=truncate_dim,
        show_progress=sys.stderr.isatty(),
    )
    write_vectors(output, texts.ids, vectors, encoder.describe(chosen))
    print(f"wrote {output}: {vectors.shape[0]} vectors of width {vectors.shape[1]}; commit {encoder.commit or 'local'}")


def demo(model: str | None = None, output: Path = Path("demo"), max_length: int | None = None) -> None:
    """Show what calibration does, on a real model and real text.

    Args:
        model: a hub id or a folder with a checkpoint; by default a small model, fetched if need be
        output: folder for the numbers and the plot
        max_length: longest text in tokens
    """
    from jaxcal.demo import demo as run

    run(model=model, output=output, max_length=max_length)


def evaluate(
    evaluation: Path | None = None,
    model: str | None = None,
    calibration: list[Path] | None = None,
    output: Path | None = None,
    cache: Path | None = None,
    compare: list[Path] | None = None,
    revision: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    max_length: int | None = None,
    local_files_only: bool = False,
) -> None:
    """Measure how a model finds answers by their position, on a data set.

    CONFIG names the data set and the methods to compare, such as
    configs/evaluations/squad-posq.yaml. Results, runs, a table and plots are
    written to OUTPUT/<data set>/<model>. Vectors are kept, so an interrupted
    run goes on where it stopped, and a run with one more calibration encodes
    only what is new. --compare sets results beside each other and beside
    published figures instead.

    Args:
        evaluation: the data set and the methods to compare, in YAML
        model: a hub id, a folder with a checkpoint, or a file such as configs/models/bge-m3.yaml
        calibration: calibrations in YAML to compare besides those of CONFIG, named as the files
        output: folder for results
        cache: folder for vectors, to share between outputs; OUTPUT/vectors by default
        compare: result files or folders to show beside each other and beside published figures
        revision: branch, tag or commit of a hub id
        dtype: type of weights and activations: float32, bfloat16 or float16
        max_length: longest text in tokens; longer ones are truncated, which the results tell
        local_files_only: never touch the network
    """
    if compare:
        if evaluation or model or output or calibration:
            raise InvalidSetting("--compare shows results that are there; give it without CONFIG and other options.")
        from jaxcal.evaluation.compare import compare as side_by_side
        from jaxcal.evaluation.compare import find_results
        from jaxcal.evaluation.published import load_published

        print(side_by_side(find_results(compare), load_published()))
        return
    if evaluation is None or model is None or output is None:
        raise InvalidSetting("CONFIG, --model and --output must be given, or --compare")
    from jaxcal.evaluation.config import read_config, read_model
    from jaxcal.io import make_folder

    config = read_config(evaluation, calibration or [])
    chosen = read_model(model)
    make_folder(output)

    from jaxcal.encoder import load
    from jaxcal.evaluation.orders import SEGMENT_ORDERS, evaluate_orders
    from jaxcal.evaluation.runner import evaluate as evaluate_retrieval

    encoder = load(
        chosen.model,
        revision=revision or chosen.revision,
        dtype=dtype or chosen.dtype,
        max_length=max_length or chosen.max_length,
        local_files_only=local_files_only,
    )
    run = evaluate_orders if config.dataset["name"] == SEGMENT_ORDERS else evaluate_retrieval
    run(config, encoder, output, cache=cache, show_progress=sys.stderr.isatty())


def bench(name: str = "all", output: Path | None = None) -> None:
    """Measure speed, memory and accuracy against the budgets.

    Args:
        name: the benchmark to run, or all
        output: write the table's rows to this .jsonl file as well
    """
    from jaxcal.bench import bench as run

    run(name=name, output=output)


_COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "encode": (
        encode,
        "jaxcal encode --model BAAI/bge-m3 --input texts.txt --output plain.npy\n"
        "  jaxcal encode --model BAAI/bge-m3 --input corpus.jsonl --output fair.parquet --strength 0.5\n"
        "  jaxcal encode --model BAAI/bge-m3 --input queries.jsonl --output queries.npy --prompt-name query",
    ),
    "evaluate": (
        evaluate,
        "jaxcal evaluate configs/evaluations/squad-posq.yaml --model BAAI/bge-m3 --output results\n"
        "  jaxcal evaluate CONFIG.yaml --model FOLDER --calibration mine.yaml --output results\n"
        "  jaxcal evaluate --compare results",
    ),
    "demo": (demo, "jaxcal demo --output demo"),
    "bench": (bench, "jaxcal bench --output bench.jsonl"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 2 for what the user can set right, 130 when interrupted."""
    try:
        with _logging():
            if parsed := _parse(sys.argv[1:] if argv is None else list(argv)):
                command, options = parsed
                _COMMANDS[command][0](**options)
            sys.stdout.flush()
    except JaxcalError as error:
        print("jaxcal: error:", _one_line(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of stdout has gone. Python would flush it once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """The log of jaxcal on stderr while a command runs."""
    logger = logging.getLogger("jaxcal")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


# --- what the options mean --------------------------------------------------------------------------------------------


def _calibration(file: Path | None, changes: dict[str, Any], isolate: Isolate | None) -> "Calibration | None":
    changes = {field: value for field, value in changes.items() if value is not None}
    if isolate is not None:
        changes["isolate"] = _ENDS[isolate]
    if file is None and not changes:
        return None
    from jaxcal.calibration import Calibration
    from jaxcal.io import load_calibration

    start = Calibration() if file is None else load_calibration(file)
    return start.replace(**changes)


def _encoding(encoder: "Encoder", prompt: str | None, name: str | None) -> Callable[..., Any]:
    """The way to encode: as documents unless another prompt is asked for."""
    if prompt is not None:
        return lambda texts, **options: encoder.encode(texts, prompt=prompt, **options)
    if name is None or name == "document":
        return encoder.encode_document
    if name == "query":
        return encoder.encode_query
    prompts = encoder.settings.prompts
    if name not in prompts:
        known = ", ".join(dict.fromkeys(("document", "query", *prompts)))
        raise InvalidSetting(f"--prompt-name is {name!r}; this checkpoint has {known}.")
    return lambda texts, **options: encoder.encode(texts, prompt=prompts[name], **options)


# --- parsing ----------------------------------------------------------------------------------------------------------


class _Help(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of examples, and leaves out Python types and empty defaults."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if not action.option_strings:
            return text
        if action.required:
            return f"{text} (required)"
        return text if action.default in (None, False, argparse.SUPPRESS) else f"{text} (default: %(default)s)"


class _Parser(ArgumentParser):
    """Options are spelled with hyphens, and true-or-false options need no value."""

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("type") is bool:
            kwargs["action"] = ActionYesNo(no_prefix=None)  # pyright: ignore[reportArgumentType]
            del kwargs["type"]
        names = (name.replace("_", "-") if name.startswith("--") else name for name in args)
        return super().add_argument(*names, **kwargs)


def _parser() -> ArgumentParser:
    shared: dict[str, Any] = {"exit_on_error": False, "allow_abbrev": False, "formatter_class": _Help}
    parser = _Parser(
        prog="jaxcal",
        description="Position-fair dense retrieval: attention calibration of sentence encoders.",
        epilog=f"examples:\n  {_COMMANDS['encode'][1]}\n\n`jaxcal COMMAND --help` explains a command.",
        version=__version__,
        **shared,
    )
    commands = parser.add_subcommands(dest="command", title="commands", metavar="COMMAND", description=None)
    for name, (function, examples) in _COMMANDS.items():
        text = inspect.getdoc(function) or ""
        sub = _Parser(
            description=text.partition("\n\nArgs:")[0],
            epilog=f"examples:\n  {examples}",
            print_config="--print-config",
            **shared,
        )
        sub.add_argument("--config", action="config", help="a YAML file with any of these options")
        special = _add_special(sub, function, text)
        sub.add_function_arguments(function, as_group=False, as_positional=False, skip=special)
        commands.add_subcommand(name, sub, help=text.partition("\n")[0])
        sub.prog = f"jaxcal {name}"
    return parser


def _add_special(parser: ArgumentParser, function: Callable[..., None], text: str) -> set[str | int]:
    """Add what jsonargparse would not as one writes it on a command line: lists of paths, and CONFIG without a name."""
    added: set[str | int] = set()
    for name, annotation in get_type_hints(function).items():
        described = re.search(rf"^    {name}: (.*)$", text, re.MULTILINE)
        options: dict[str, Any] = {"help": described and described[1]}
        if name == "evaluation":
            # Without a default, because an absent positional would wipe out what --config says.
            parser.add_argument(name, nargs="?", type=Path, metavar="CONFIG", default=argparse.SUPPRESS, **options)
        elif annotation == list[Path] | None:
            parser.add_argument(f"--{name}", nargs="+", type=Path, metavar="PATH", **options)
        else:
            continue
        added.add(name)
    return added


def _parse(argv: list[str]) -> tuple[str, dict[str, Any]] | None:
    """The command and its options; None if --help or --version has been answered."""
    try:
        parsed = _parser().parse_args(argv)
    except (argparse.ArgumentError, UnicodeDecodeError) as error:
        known = argv and argv[0] in _COMMANDS
        raise InvalidSetting(
            f"{_explain(argv, _one_line(error))}; see `jaxcal {argv[0] + ' ' if known else ''}--help`."
        ) from None
    except SystemExit as answered:
        if answered.code:
            raise
        return None
    options = parsed[parsed.command].as_dict()
    options.pop("config")
    return parsed.command, options


def _explain(argv: list[str], message: str) -> str:
    """What jsonargparse found wrong, in words of the command line instead of Python types."""
    if not argv or argv[0] not in _COMMANDS:
        if not argv or not argv[0].startswith("-"):
            message = f"{argv[0]!r} is no command" if argv else "a command must be given"
        return f"{message}; commands are {', '.join(_COMMANDS)}"
    if missing := re.fullmatch(r"the following arguments are required: (.*)", message):
        return f"{', '.join(_option(key) for key in missing[1].split(', '))} must be given"
    if wrong := re.match(r'Parser key "([\w.]+)":.*(?:Given value|Got value): (.*)', message):
        annotation = get_type_hints(_COMMANDS[argv[0]][0]).get(wrong[1], str)
        return f"{_option(wrong[1])} is {wrong[2]!r}; it must be {_kind(annotation)}"
    for pattern, meaning in _CONFIG_TROUBLE.items():
        if re.match(pattern, message):
            files = [value for name, value in pairwise(argv) if name == "--config"]
            files += [name.partition("=")[2] for name in argv if name.startswith("--config=")]
            return f"{', '.join(files)}: {re.sub(pattern, meaning, message)}"
    return re.sub(r'Parser key "([\w.]+)":', lambda key: f"{_option(key[1])}:", message)


_CONFIG_TROUBLE = {
    r"Problems parsing config: ": "not YAML: ",
    r"Unexpected config:.*": "not a mapping of options",
    r"Subcommand '\w+' does not accept option (.*)": r"unknown option \1",
    r"'utf-8' codec ": "not UTF-8: ",
    r"Value not boolean: (.*)\.": r"\1 is neither true nor false",
}


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(get_args(annotation))
    if parts := [part for part in get_args(annotation) if part is not NoneType]:
        return " or ".join(_kind(part) for part in parts)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}[annotation]


def _option(key: str) -> str:
    return "--" + key.rpartition(".")[2].replace("_", "-")


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
