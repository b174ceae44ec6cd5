"""An evaluation from texts to files: vectors, runs, figures, a table and plots.

Everything that is written depends on the data, the model and the configuration alone, not on the clock: a run that was
killed and started again writes the same bytes. What depends on the clock stands in log.jsonl, one line a run.
"""

import copy
import datetime
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxcal.encoder import Encoder
from jaxcal.errors import InvalidSetting
from jaxcal.evaluation import compare, figures
from jaxcal.evaluation.bm25 import SETTINGS as BM25_SETTINGS
from jaxcal.evaluation.bm25 import Bm25
from jaxcal.evaluation.config import UNCALIBRATED, EvaluationConfig, Method
from jaxcal.evaluation.datasets import Benchmark, PositionDataset, Task, load_benchmark
from jaxcal.evaluation.datasets.posir import POSIR_INSTRUCTION
from jaxcal.evaluation.scoring import Judgements, Scores, average, entry, pool_scores, score
from jaxcal.evaluation.search import Run, retrieve, retrieve_by_scores
from jaxcal.evaluation.trec import write_qrels, write_run
from jaxcal.evaluation.vectors import Encoded, VectorStore
from jaxcal.io import atomic, check_writable, exclusive, make_folder
from jaxcal.plots import require_matplotlib
from jaxcal.tables import environment

logger = logging.getLogger("jaxcal")

# Passages of a topic in run files: no figure looks deeper, and PosIR's thousand would take tens of gigabytes.
_WRITTEN = 100


def evaluate(
    config: EvaluationConfig,
    encoder: Encoder,
    output: Path,
    *,
    cache: Path | None = None,
    show_progress: bool = False,
) -> list[dict[str, Any]]:
    """Run an evaluation and write its files to `output`/<data set>/<model>.

    Args:
        config: data set and methods.
        encoder: the model.
        output: folder for results.
        cache: folder for vectors, to share between outputs; `output`/vectors by default.
        show_progress: show progress bars with estimates of the time left.

    Returns:
        The results, one a method, as they stand in the files.

    Raises:
        InvalidSetting: the folder holds results of another model, data set or configuration under the same names.
        InvalidInput, InvalidCalibration, MissingDependency: before anything is encoded.
    """
    started = time.perf_counter()
    require_matplotlib()
    encoder = limited(encoder, config.max_length)
    benchmark = load_benchmark(config.dataset["name"], config.options, encoder.count_tokens)
    evaluation = _Evaluation(config, encoder, benchmark, output, cache, show_progress)
    with exclusive(evaluation.folder):
        results = evaluation.run()
        evaluation.log(started)
    return results


class _Evaluation:
    """One run: what its methods share."""

    def __init__(
        self,
        config: EvaluationConfig,
        encoder: Encoder,
        benchmark: Benchmark,
        output: Path,
        cache: Path | None,
        show_progress: bool,
    ):
        self.config, self.encoder, self.benchmark, self.show_progress = config, encoder, benchmark, show_progress
        self.methods = config.methods
        check_names([method.name for method in self.methods])
        self.folder = output / slug(benchmark.name) / slug(model_name(self.encoder))
        for part in ("runs", "qrels", "plots"):
            make_folder(self.folder / part)
        self.prompts = prompts(config, encoder)
        self.store = VectorStore(cache or output / "vectors", encoder)
        self.results = {method.name: self._result(method) for method in self.methods}
        for method in self.methods:
            _check_same(self._path(method), self.results[method.name])
        if config.bm25:
            Bm25(["a missing package is told now"])

    def run(self) -> list[dict[str, Any]]:
        for task in self.benchmark.tasks:
            self._run_task(task)
        for name, subsets in self.benchmark.averages.items():
            for result in self.results.values():
                self._average(result, name, subsets)
        results = list(self.results.values())
        for method in self.methods:
            with atomic(self._path(method)) as path:
                path.write_text(as_json(self.results[method.name]), encoding="utf-8")
        table = compare.table(results)
        with atomic(self.folder / "table.md") as path:
            path.write_text(table + "\n", encoding="utf-8")
        print(f"\n{table}\n\nwrote {self.folder}")
        return results

    def _run_task(self, task: Task) -> None:
        parts = task.load()
        judgements = Judgements.pool(parts)
        _print_counts(self.benchmark.name, task.subset, parts)
        prefixes = [f"{part.name}/" if len(parts) > 1 else "" for part in parts]
        with atomic(self.folder / "qrels" / f"{task.subset}.trec") as path, path.open("w", encoding="utf-8") as file:
            for part, prefix in zip(parts, prefixes, strict=True):
                write_qrels(file, part, prefix)
        queries = [self._encode(part.queries, "query", "queries") for part in parts]
        baseline: Scores | None = None
        entries = {}
        for method in self.methods:
            scores, facts = self._score(method, task, parts, prefixes, queries)
            found = entry(judgements, scores, baseline, resamples=self.config.resamples, seed=self.config.seed)
            named = {"hf_subset": task.subset, "languages": list(task.languages)}
            if len(parts) > 1:
                named["parts"] = [part.name for part in parts]
            entries[method.name] = {**named, **found, **facts}
            self.results[method.name]["scores"][self.benchmark.split].append(entries[method.name])
            baseline = baseline or scores
        self._plot(task.subset, entries)

    def _score(
        self,
        method: Method,
        task: Task,
        parts: Sequence[PositionDataset],
        prefixes: Sequence[str],
        queries: Sequence[Encoded],
    ) -> tuple[Scores, dict[str, int]]:
        """Retrieve with one method in each part, write the run, and score it."""
        benchmark, scores = self.benchmark, []
        facts = {"queries": 0, "passages": 0}
        place = self.folder / "runs" / slug(method.name)
        make_folder(place)
        with atomic(place / f"{task.subset}.trec") as path, path.open("w", encoding="utf-8") as file:
            for part, prefix, asked in zip(parts, prefixes, queries, strict=True):
                run, counts = self._retrieve(method, part, asked)
                write_run(file, part, Run(*(array[:, :_WRITTEN] for array in run)), method.name, prefix)
                scores.append(score(part, run, benchmark.ties, benchmark.depth))
                counts |= {"queries": len(part.queries), "passages": len(part.passages)}
                facts = {key: facts.get(key, 0) + count for key, count in counts.items()}
        return pool_scores(scores), facts

    def _retrieve(self, method: Method, part: PositionDataset, queries: Encoded) -> tuple[Run, dict[str, int]]:
        """The run of one method, with how many passages were cut, and how many stayed as they were."""
        label, depth = f"{part.name}, {method.name}", self.benchmark.depth
        logger.info("%s: %d queries, %d passages", label, len(part.queries), len(part.passages))
        if method.bm25:
            index = Bm25(part.passages)
            run = retrieve_by_scores(
                part, lambda query: index.scores(part.queries[query]), depth, show_progress=self.show_progress
            )
            return run, {}
        passages = self._encode(
            part.passages, "document", label, calibration=method.calibration, segment=method.segment
        )
        counts = {"truncated_queries": int(queries.cut.sum()), "truncated_passages": int(passages.cut.sum())}
        if method.calibration is not None:
            least = method.calibration.least_tokens(self.encoder.settings.pooling)
            counts["passages_below_one_basket"] = int((passages.tokens < least).sum())
        run = retrieve(part, queries.vectors, passages.vectors, depth, show_progress=self.show_progress)
        return run, counts

    def _encode(self, texts: Sequence[str], kind: str, label: str, **options: Any) -> Encoded:
        return self.store.encode(
            texts, prompt=self.prompts[kind], label=label, show_progress=self.show_progress, **options
        )

    def _average(self, result: dict[str, Any], name: str, subsets: Sequence[str]) -> None:
        entries = result["scores"][self.benchmark.split]
        chosen = [one for one in entries if one["hf_subset"] in subsets]
        languages = sorted({language for one in chosen for language in one["languages"]})
        entries.append({"hf_subset": name, "languages": languages, **average(chosen)})

    def _plot(self, subset: str, entries: Mapping[str, Any]) -> None:
        title = f"{model_name(self.encoder)} on {self.benchmark.name}" + (f", {subset}" if subset != "default" else "")
        draw = figures.plot_bins if "buckets" in entries[UNCALIBRATED] else figures.plot_groups
        with atomic(self.folder / "plots" / f"{subset}.png") as path:
            draw(path, title, entries)

    def _result(self, method: Method) -> dict[str, Any]:
        model, calibration = describe(self.store, method)
        retrieval: dict[str, Any] = {"bm25": BM25_SETTINGS} if method.bm25 else {"similarity": "inner product, float32"}
        if method.segment is not None:
            retrieval["segment_tokens"] = method.segment
        return {
            "task_name": self.benchmark.name,
            "dataset_revision": self.benchmark.revision,
            "mteb_version": None,
            "evaluation_time": None,
            "kg_co2_emissions": None,
            "date": None,
            "scores": {self.benchmark.split: []},
            "method": method.name,
            "calibration": calibration,
            "model": None if method.bm25 else model,
            "data": {"source": dict(self.benchmark.source), "options": _jsonable(self.config.dataset)},
            "protocol": {
                "metric": "nDCG@10 with linear gain, one relevant passage a judgement",
                "ties": self.benchmark.ties,
                "depth": self.benchmark.depth,
                "prompts": None if method.bm25 else self.prompts,
                "retrieval": retrieval,
                "intervals": f"95 % bootstrap percentiles, {self.config.resamples} resamples, seed {self.config.seed}",
                "p": f"paired permutation test, two-sided, {self.config.resamples} exchanges, seed {self.config.seed}",
            },
            "environment": environment(),
        }

    def _path(self, method: Method) -> Path:
        return self.folder / f"{slug(method.name)}.json"

    def log(self, started: float) -> None:
        """Append what depends on the clock."""
        line = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - started, 1),
            "methods": [method.name for method in self.methods],
            "compilations": self.encoder.compilations,
        }
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def limited(encoder: Encoder, max_length: int | None) -> Encoder:
    """The encoder with at most so many tokens a text; it shares weights and compiled programs with the given one."""
    if max_length is None or max_length >= encoder.max_length:
        return encoder
    other = copy.copy(encoder)
    other.max_length = max_length
    return other


def check_names(names: Sequence[str]) -> None:
    """Refuse methods whose files would have the same name.

    Raises:
        InvalidSetting: names two of them.
    """
    taken: dict[str, str] = {}
    for name in names:
        other = taken.setdefault(slug(name).lower(), name)  # some file systems ignore case
        if list(names).count(name) > 1 or other != name:
            raise InvalidSetting(f"the methods '{other}' and '{name}' would be written to one file; rename one.")


def slug(name: str) -> str:
    """A name as part of a path: "BAAI/bge-m3" becomes "BAAI__bge-m3"."""
    return re.sub(r"[^\w.=+-]+", "-", name.replace("/", "__")).strip("-.") or "unnamed"


def model_name(encoder: Encoder) -> str:
    """The model's hub id, or the name of its folder: where a folder stands is nobody's business."""
    name = encoder.checkpoint.name if encoder.checkpoint else "model"
    return Path(name).resolve().name if Path(name).is_dir() else name


def describe(store: VectorStore, method: Method) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The "model" and "calibration" blocks of a result."""
    described = store.encoder.describe(method.calibration)
    calibration = described.pop("calibration")
    return {**described, **store.model, "model": model_name(store.encoder)}, calibration


def prompts(config: EvaluationConfig, encoder: Encoder) -> dict[str, str]:
    """What is put before queries and documents."""
    if config.prompts == "posir":
        return {"query": POSIR_INSTRUCTION, "document": ""}
    return {"query": encoder.prompt("query"), "document": encoder.prompt("document")}


def _check_same(path: Path, result: Mapping[str, Any]) -> None:
    """Refuse to replace results that something else was measured for."""
    check_writable(path)
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        before = {}
    for key in ("task_name", "dataset_revision", "method", "model", "calibration", "protocol"):
        if not isinstance(before, dict) or before.get(key, result[key]) != result[key]:
            raise InvalidSetting(
                f"{path} holds a result with another '{key}' ({json.dumps(before.get(key))}, now "
                f"{json.dumps(result[key])}); give another --output, or remove it."
            )


def _print_counts(name: str, subset: str, parts: Sequence[PositionDataset]) -> None:
    counts: dict[str, int] = {}
    for part in parts:
        for key, count in part.counts.items():
            counts[key] = counts.get(key, 0) + count
    listed = ", ".join(f"{count} {key}" for key, count in counts.items())
    print(f"{name} {subset}: {listed}", flush=True)


def _jsonable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they were given; of files only the names, because their content is known by its digest."""
    hidden = {"files", "folder", "positions"}
    return {key: value for key, value in options.items() if key not in hidden}


def as_json(result: Mapping[str, Any]) -> str:
    """A result as it is written."""
    return json.dumps(result, indent=1, ensure_ascii=False) + "\n"
