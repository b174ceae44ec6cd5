"""`jaxcal demo`: a real encoder on real text, asked for answers at the beginning, in the middle and at the end.

The same queries are asked of the same documents three times; only the place of the answer differs. Whatever comes out
is reported as it is.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxcal.calibration import Calibration
from jaxcal.checkpoint.files import sha256, weight_files
from jaxcal.encoder import Encoder, load
from jaxcal.evaluation.datasets import PositionDataset, load_pydoc_posq
from jaxcal.evaluation.metrics import Summary, ndcg
from jaxcal.evaluation.minilm import MINILM, load_minilm
from jaxcal.evaluation.resampling import Interval, bootstrap, paired_bootstrap
from jaxcal.evaluation.search import retrieve
from jaxcal.io import atomic, check_writable, make_folder
from jaxcal.plots import plot_positions, require_matplotlib
from jaxcal.tables import environment, markdown_table

logger = logging.getLogger("jaxcal")

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

    scores: dict[str, Summary[Interval]]
    differences: dict[str, Summary[Interval]]
    truncated: int  # passages cut at the encoder's maximum length
    seconds: float


def demo(model: str | None = None, output: Path = Path("demo"), max_length: int | None = None) -> None:
    """Measure how an encoder finds answers by their position, without and with calibration.

    Prints a table and writes `demo.json` and `demo.png` into the output folder.

    Args:
        model: hub id or folder; by default all-MiniLM-L6-v2 at 512 tokens.
        output: folder for the results.
        max_length: longest text in tokens. Encoders that take 2,048 tokens or more get the long documents.
    """
    # Everything that could spoil the result is tried before minutes are spent on it.
    require_matplotlib()
    make_folder(output)
    figures, plot = output / "demo.json", output / "demo.png"
    check_writable(figures)
    check_writable(plot)
    encoder = (
        load_minilm(512 if max_length is None else max_length) if model is None else load(model, max_length=max_length)
    )
    name = MINILM if model is None else Path(model).name if Path(model).is_dir() else model
    dataset = load_pydoc_posq("long" if encoder.max_length >= _LONG_CONTEXT else "short")
    result = measure(encoder, dataset)
    heading = f"{name} on {dataset.name}: {len(dataset.queries)} queries, {len(dataset.pool)} documents"
    print(f"\n{heading}\nnDCG@10 in percent by where the answer stands; PSI = 1 - worst / best, 0 is fair\n")
    print(report(result))
    if result.truncated:
        print(
            f"\n{result.truncated} of {len(dataset.passages)} documents are longer than the {encoder.max_length} "
            "tokens that were encoded: what is cut off cannot be found, calibrated or not."
        )
    with atomic(figures) as path:
        path.write_text(json.dumps(_record(name, encoder, dataset, result), indent=2) + "\n", encoding="utf-8")
    with atomic(plot) as path:
        plot_positions(path, heading, result.scores, result.differences)
    print(f"\nwrote {figures} and {plot} after {result.seconds:.0f} s")


def measure(encoder: Encoder, dataset: PositionDataset) -> DemoResult:
    """Encode queries once and passages once per setting, and score every setting by group."""
    started = time.perf_counter()
    logger.info("encoding %d queries", len(dataset.queries))
    queries = encoder.encode_query(dataset.queries, show_progress=True)
    scores: dict[str, dict[str, np.ndarray]] = {}
    for name, calibration in SETTINGS.items():
        logger.info("encoding %d passages, %s", len(dataset.passages), name)
        passages = encoder.encode_document(dataset.passages, calibration=calibration, show_progress=True)
        run = retrieve(dataset, queries, passages)
        ranks = run.ranks(dataset.topics.gold)
        scores[name] = dataset.by_group(ndcg(ranks, 10)[dataset.topics.of_judgement])
    baseline = next(iter(scores))
    same = dataset.same_queries
    return DemoResult(
        {name: bootstrap(groups, same_queries=same) for name, groups in scores.items()},
        {
            name: paired_bootstrap(groups, scores[baseline], same_queries=same)
            for name, groups in scores.items()
            if name != baseline
        },
        encoder.last_run.truncated,
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


def _named(summary: Summary[Interval]) -> dict:
    return {
        "groups": {group: interval._asdict() for group, interval in summary.groups.items()},
        "mean": summary.mean._asdict(),
        "harmonic_mean": summary.harmonic_mean._asdict(),
        "psi": summary.psi._asdict(),
    }


def _record(name: str, encoder: Encoder, dataset: PositionDataset, result: DemoResult) -> dict:
    described = {setting: encoder.describe(calibration) for setting, calibration in SETTINGS.items()}
    calibrations = {setting: description.pop("calibration") for setting, description in described.items()}
    assert encoder.checkpoint is not None
    weights = {path.name: sha256(path) for path in weight_files(encoder.checkpoint.weights_folder).paths}
    return {
        "model": {**next(iter(described.values())), "model": name, "sha256": weights},
        "dataset": {
            "name": dataset.name,
            "queries": len(dataset.queries),
            "documents": len(dataset.pool),
            "truncated_passages": result.truncated,
            "groups": list(dataset.groups),
        },
        "metric": "nDCG@10, one relevant document a query; 95 % bootstrap percentiles, 10,000 draws of queries, seed 0",
        "calibrations": calibrations,
        "scores": {setting: _named(summary) for setting, summary in result.scores.items()},
        "differences": {setting: _named(summary) for setting, summary in result.differences.items()},
        "seconds": round(result.seconds, 1),
        "environment": environment(),
    }
