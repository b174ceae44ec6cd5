"""What an evaluation is: a data set, the methods compared on it, and how; read from YAML."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from jaxcal.calibration import Calibration
from jaxcal.errors import InvalidCalibration, InvalidInput
from jaxcal.io import load_calibration, read_yaml

UNCALIBRATED = "uncalibrated"
Prompts = Literal["checkpoint", "posir"]


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to retrieve.

    Attributes:
        name: what results call it.
        calibration: None for the model as published.
        segment: average the vectors of segments of so many tokens.
        bm25: words instead of vectors.
    """

    name: str
    calibration: Calibration | None = None
    segment: int | None = None
    bm25: bool = False


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """An evaluation, with the keys of its YAML file.

    Attributes:
        dataset: "name" and the options of its loader, such as "files" or "revision".
        calibrations: name -> fields of a `jaxcal.Calibration`, or a YAML file that holds them, beside the config.
        segment_average: lengths in tokens of the segments of segment-average baselines.
        bm25: whether BM25 takes part.
        prompts: where query and document prompts come from: "checkpoint" as the model card says, or "posir", the
            instruction that PosIR's script puts before the queries of every model.
        max_length: longest text in tokens; models that take less keep their own limit.
        resamples: of bootstrap intervals and permutation tests.
        seed: of both.
    """

    dataset: Mapping[str, Any]
    calibrations: Mapping[str, Calibration] = dataclasses.field(default_factory=dict)
    segment_average: tuple[int, ...] = ()
    bm25: bool = False
    prompts: Prompts = "checkpoint"
    max_length: int | None = None
    resamples: int = 10_000
    seed: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """The options of the data set, without its name."""
        return {key: value for key, value in self.dataset.items() if key != "name"}

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods compared, the uncalibrated model first: the others are measured against it."""
        return (
            Method(UNCALIBRATED),
            *(Method(name, calibration=calibration) for name, calibration in self.calibrations.items()),
            *(Method(f"segment-average {size}", segment=size) for size in self.segment_average),
            *([Method("BM25", bm25=True)] if self.bm25 else []),
        )


def read_config(path: Path, extra_calibrations: Sequence[Path] = ()) -> EvaluationConfig:
    """Read an evaluation from YAML, and add calibrations from files of their own, named as the files.

    Raises:
        InvalidInput: a file cannot be read, or holds keys or values without a meaning; names file and key.
        InvalidCalibration: a calibration without a meaning.
    """
    values = read_yaml(path)
    fields = {field.name: field for field in dataclasses.fields(EvaluationConfig)}
    if not isinstance(values, dict):
        raise InvalidInput(f"{path} is not a mapping; its keys may be {', '.join(fields)}.")
    if unknown := [str(key) for key in values if key not in fields]:
        raise InvalidInput(f"{path} has the unknown keys {', '.join(unknown)}; known are {', '.join(fields)}.")
    dataset = values.get("dataset")
    if isinstance(dataset, str):
        values["dataset"] = {"name": dataset}
    elif not isinstance(dataset, dict) or not isinstance(dataset.get("name"), str):
        raise InvalidInput(f'{path}, "dataset" must be the name of a data set, or a mapping with its "name".')
    values["dataset"] = {key: _beside(path, key, value) for key, value in values["dataset"].items()}
    sizes = values.get("segment_average", [])
    values["segment_average"] = tuple(sizes) if isinstance(sizes, list) else (sizes,)
    calibrations = _read_calibrations(path, values.get("calibrations") or {})
    for file in extra_calibrations:
        if file.stem in calibrations:
            raise InvalidInput(f"{file}: {path} already has a calibration named '{file.stem}'; rename the file.")
        calibrations[file.stem] = load_calibration(file)
    values["calibrations"] = calibrations
    for key, value in values.items():
        _check(path, key, value)
    return EvaluationConfig(**values)


def _beside(path: Path, key: str, value: Any) -> Any:
    """Paths in a config are relative to its folder, so that it works from anywhere."""
    if key not in ("file", "files", "folder", "positions") or value is None:
        return value
    return (
        [str(path.parent / str(file)) for file in value] if isinstance(value, list) else str(path.parent / str(value))
    )


def _read_calibrations(path: Path, values: Any) -> dict[str, Calibration]:
    if not isinstance(values, dict):
        raise InvalidInput(f'{path}, "calibrations" must be a mapping of names to calibrations.')
    read = {}
    for name, value in values.items():
        if not isinstance(name, str) or name == UNCALIBRATED or not name.strip():
            raise InvalidInput(f'{path}, "calibrations": {name!r} cannot be a calibration\'s name.')
        try:
            read[name] = (
                load_calibration(path.parent / value) if isinstance(value, str) else Calibration(**(value or {}))
            )
        except (TypeError, ValueError) as error:
            raise InvalidCalibration(f"{path}, calibration '{name}': {error}") from None
    return read


def _check(path: Path, key: str, value: Any) -> None:
    def whole(number: Any, least: int) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and number >= least

    tests = {
        "segment_average": (lambda: all(whole(size, 1) for size in value), "lengths in tokens"),
        "bm25": (lambda: isinstance(value, bool), "true or false"),
        "prompts": (lambda: value in get_args(Prompts), " or ".join(get_args(Prompts))),
        "max_length": (lambda: value is None or whole(value, 1), "a number of tokens"),
        "resamples": (lambda: whole(value, 1), "a whole number of at least 1"),
        "seed": (lambda: whole(value, 0), "a whole number"),
    }
    if key in tests and not tests[key][0]():
        raise InvalidInput(f'{path}, "{key}" is {value!r}; it must be {tests[key][1]}.')


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model and the settings it is evaluated with, as the options of `jaxcal.load`."""

    model: str
    revision: str | None = None
    dtype: str = "float32"
    max_length: int | None = None


def read_model(name: str) -> ModelConfig:
    """A hub id or a folder as it is, or what a YAML file (configs/models) says.

    Raises:
        InvalidInput: the file cannot be read, or has keys without a meaning.
    """
    if Path(name).suffix not in (".yaml", ".yml") or not Path(name).is_file():
        return ModelConfig(name)
    values = read_yaml(Path(name))
    known = [field.name for field in dataclasses.fields(ModelConfig)]
    if not isinstance(values, dict) or "model" not in values or set(values) - set(known):
        raise InvalidInput(f"{name} must be a mapping with the key model, and perhaps {', '.join(known[1:])}.")
    return ModelConfig(**values)
