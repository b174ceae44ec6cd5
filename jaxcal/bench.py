"""`jaxcal bench`: the project's budgets, measured as ratios in one run on one machine.

Machines are shared and noisy, so the two sides of a ratio are run in turn and their medians compared; absolute times
are given for orientation only. Compilation happens before the clock starts.

Axis letters: N texts, T tokens, D model width, L layers.
"""

import dataclasses
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tqdm import tqdm

from jaxcal.batching import bucket
from jaxcal.calibration import Calibration, Pooling
from jaxcal.checkpoint.modules import EncoderSettings
from jaxcal.checkpoint.weights import build
from jaxcal.encoder import Encoder, load
from jaxcal.errors import InvalidSetting
from jaxcal.evaluation.datasets import PositionDataset, load_pydoc_posq, read_pydoc_posq
from jaxcal.evaluation.minilm import load_minilm
from jaxcal.evaluation.scoring import Judgements, entry, score
from jaxcal.evaluation.search import retrieve
from jaxcal.io import atomic, check_writable
from jaxcal.models import FAMILIES, EncoderConfig, bert, gte, qwen3
from jaxcal.models.config import Rope
from jaxcal.tables import environment, markdown_table

logger = logging.getLogger("jaxcal")

ROUNDS = 7


@dataclasses.dataclass(frozen=True)
class Row:
    """One measured figure: a ratio or a share unless `what` names a unit; `budget` is what it should keep."""

    bench: str
    what: str
    value: float
    budget: str
    kept: bool | None
    detail: dict[str, Any]


def bench(name: str = "all", output: Path | None = None) -> None:
    """Measure the budgets and print a table; with an output file, write the rows as JSON lines too.

    Args:
        name: one of the benchmarks, or "all".
        output: a `.jsonl` file.

    Raises:
        InvalidSetting: if there is no such benchmark.
    """
    if name != "all" and name not in BENCHES:
        raise InvalidSetting(f"there is no benchmark {name!r}; choose all, {', '.join(BENCHES)}.")
    if output is not None:
        check_writable(output)
    rows = []
    for each in BENCHES if name == "all" else (name,):
        logger.info("benchmark %s", each)
        rows += list(BENCHES[each]())
    cells = [
        [f"{row.bench}: {row.what}", f"{row.value:.4g}", row.budget, {True: "yes", False: "NO", None: ""}[row.kept]]
        for row in rows
    ]
    print(markdown_table(["what", "measured", "budget", "kept"], cells))
    if output is not None:
        lines = [json.dumps({**dataclasses.asdict(row), "environment": environment()}) for row in rows]
        with atomic(output) as path:
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"wrote {len(lines)} rows to {output}")


def interleaved(*runs: Callable[[], Any], rounds: int = ROUNDS, label: str = "") -> list[list[float]]:
    """Seconds of every run in every round, the runs taking turns after one call each to compile and warm up."""
    for run in runs:
        run()
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in tqdm(range(rounds), desc=label, leave=False):
        for times, run in zip(seconds, runs, strict=True):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
    return seconds


def _ratio(
    bench: str, what: str, over: list[float], under: list[float], least: float | None, most: float | None
) -> Row:
    """A row for median(over) / median(under), with the spread of the round-by-round ratios."""
    value = statistics.median(over) / statistics.median(under)
    rounds = sorted(a / b for a, b in zip(over, under, strict=True))
    budget = f">= {least}" if least is not None else f"<= {most}"
    kept = value >= least if least is not None else value <= (most or 0)
    detail = {
        "median_seconds": [statistics.median(over), statistics.median(under)],
        "round_ratios": [round(r, 4) for r in rounds],
    }
    return Row(bench, what, value, budget, kept, detail)


def random_encoder(model: type, config: EncoderConfig, pooling: Pooling, seed: int = 0) -> Encoder:
    """An encoder of a given shape with random weights and no tokenizer, for timing."""
    definition, state = nnx.split(model(config, jnp.float32, nnx.Rngs(seed)), nnx.Param)
    return Encoder(definition, nnx.to_pure_dict(state), config, EncoderSettings(pooling, True), None, config.max_tokens)


def gte_shape(layers: int = 12) -> gte.GteConfig:
    """gte-multilingual-base, with a small vocabulary (which no layer sees) and as many layers as asked for."""
    return gte.GteConfig(
        vocab_size=1000,
        width=768,
        feed_forward=3072,
        layers=layers,
        heads=12,
        kv_heads=12,
        head_width=64,
        max_tokens=8192,
        pad_token=1,
        norm_eps=1e-12,
        token_types=1,
        rope=Rope(160_000.0, 8 ** (1 / 32)),
    )


def minilm_shape() -> bert.BertConfig:
    """all-MiniLM-L6-v2 with a small vocabulary."""
    return bert.BertConfig(
        vocab_size=1000,
        width=384,
        feed_forward=1536,
        layers=6,
        heads=12,
        kv_heads=12,
        head_width=32,
        max_tokens=512,
        pad_token=0,
        norm_eps=1e-12,
        token_types=2,
        positions=512,
    )


def qwen3_shape() -> qwen3.Qwen3Config:
    """The first 4 layers of Qwen3-Embedding-0.6B with a small vocabulary."""
    return qwen3.Qwen3Config(
        vocab_size=1000,
        width=1024,
        feed_forward=3072,
        layers=4,
        heads=16,
        kv_heads=8,
        head_width=128,
        max_tokens=32768,
        pad_token=0,
        norm_eps=1e-6,
        rope=Rope(1e6),
        causal=True,
    )


def _texts(encoder: Encoder, count: int, length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(length)
    return list(rng.integers(2, encoder.config.vocab_size, (count, length), dtype=np.int32))


def calibration() -> Iterator[Row]:
    """What calibration costs: calibrated over plain encode time, the same texts, by text length."""
    half = random_encoder(gte.Gte, gte_shape(layers=6), "first")
    shapes: list[tuple[str, Encoder, tuple[int, ...], float]] = [
        ("gte shape, 6 of 12 layers, first token", half, (256, 512, 1024, 2048, 4096), 1.03),
        (
            "qwen3 shape, 4 of 28 layers, last token",
            random_encoder(qwen3.Qwen3, qwen3_shape(), "last"),
            (512, 2048),
            1.03,
        ),
        ("MiniLM shape, mean", random_encoder(bert.Bert, minilm_shape(), "mean"), (256, 512), 1.15),
    ]
    for name, encoder, lengths, most in shapes:
        for length in lengths:
            ids = _texts(encoder, max(2048 // length, 1), length)
            basket = Calibration(basket_size=min(128, length // 4))
            plain, calibrated = interleaved(
                lambda encoder=encoder, ids=ids: encoder.encode_ids(ids),
                lambda encoder=encoder, ids=ids, basket=basket: encoder.encode_ids(ids, calibration=basket),
                label=f"{name}, {length} tokens",
            )
            yield _ratio("calibration", f"calibrated / plain, {name}, {length} tokens", calibrated, plain, None, most)


def memory() -> Iterator[Row]:
    """Extra memory of calibration at 8,192 tokens in the shape of gte-multilingual-base, as XLA counts it."""
    config = dataclasses.replace(gte_shape(), vocab_size=250048)
    definition, shapes = build(FAMILIES["gte"], config, jnp.float32)
    encoder = Encoder(definition, shapes, config, EncoderSettings("first", True), None, config.max_tokens)
    tokens = jax.ShapeDtypeStruct((1, 8192), jnp.int32)
    mask = jax.ShapeDtypeStruct((1, 8192), bool)
    sizes = []
    for calibration in (None, Calibration()):
        analysis = jax.jit(encoder.embed).lower(shapes, tokens, mask, calibration).compile().memory_analysis()
        assert analysis is not None
        sizes.append((analysis.argument_size_in_bytes, analysis.temp_size_in_bytes))
    whole = [arguments + temporary for arguments, temporary in sizes]
    where = "gte-multilingual-base, 8,192 tokens"
    extra = whole[1] / whole[0] - 1
    detail = {"bytes of arguments and temporaries": sizes}
    yield Row("memory", f"extra memory, weights included, {where}", extra, "< 0.01", extra < 0.01, detail)
    yield Row("memory", f"extra temporary memory alone, {where}", sizes[1][1] / sizes[0][1] - 1, "", None, detail)


def batching() -> Iterator[Row]:
    """Padding and compilations over a corpus of mixed lengths, by real encoding."""
    narrow = {"width": 48, "heads": 4, "kv_heads": 4, "head_width": 12, "feed_forward": 96, "layers": 2}
    encoder = random_encoder(bert.Bert, dataclasses.replace(minilm_shape(), **narrow), "mean")
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4.5, 0.9, 4000).astype(int), 5, 512)
    corpus = [rng.integers(2, 1000, length, dtype=np.int32) for length in lengths]
    encoder.encode_ids(corpus, show_progress=True)
    run = encoder.last_run
    counts = {key: value for key, value in dataclasses.asdict(run).items() if not isinstance(value, np.ndarray)}
    what, detail = "4,000 texts of 5 to 512 tokens", counts
    yield Row("batching", f"padded tokens, {what}", run.padding, "<= 0.08", run.padding <= 0.08, detail)
    buckets = len({bucket(int(length), 512) for length in lengths})
    compiled = run.compilations
    yield Row("batching", f"programs compiled, {what}", compiled, f"<= {buckets}", compiled <= buckets, detail)
    encoder.encode_ids(corpus)
    again = encoder.last_run.compilations
    yield Row("batching", "programs compiled by a second pass", again, "0", again == 0, {})


def accuracy() -> Iterator[Row]:
    """What must not change a vector: strength zero, and the texts that are encoded beside it."""
    for name, encoder in (
        ("gte shape, 2 layers, first token", random_encoder(gte.Gte, gte_shape(layers=2), "first")),
        ("MiniLM shape, mean", random_encoder(bert.Bert, minilm_shape(), "mean")),
    ):
        ids = [_texts(encoder, 1, length)[0] for length in (1, 2, 17, 100, 130, 500)]
        together = encoder.encode_ids(ids)
        zero = encoder.encode_ids(ids, calibration=Calibration(strength=0.0, basket_size=16))
        changed = int((zero != together).sum())
        yield Row("accuracy", f"values that strength 0 changes, {name}", changed, "0", changed == 0, {})
        alone = np.concatenate([encoder.encode_ids([text]) for text in ids])
        largest = float(np.abs(alone - together).max())
        yield Row("accuracy", f"a text alone against in a batch, {name}", largest, "<= 5e-06", largest <= 5e-6, {})


# passages, queries, width, most seconds or None, most memory in GB
_SEARCHES = ((20_000, 90_000, 384, 120, 4), (1_000_000, 10_000, 1024, None, 8))


def search() -> Iterator[Row]:
    """Exact retrieval, metrics and intervals on random vectors, each in a fresh process whose peak memory counts.

    The first has SQuAD-PosQ's size and includes 10,000 bootstrap resamples and permutations against a second system.
    """
    for passages, queries, width, most_seconds, most_memory in _SEARCHES:
        program = f"import jaxcal.bench as b; b.search_once({passages}, {queries}, {width}, {most_seconds is not None})"
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        measured = json.loads(done.stdout.splitlines()[-1])
        what = f"{passages:,} passages, {queries:,} queries, width {width}"
        memory, seconds = measured["peak_gb"], measured["search"] + measured["scoring"]
        kept = None if most_seconds is None else seconds <= most_seconds
        budget = "" if most_seconds is None else f"<= {most_seconds}"
        yield Row("search", f"{what}: seconds", seconds, budget, kept, measured)
        yield Row("search", f"{what}: peak memory (GB)", memory, f"<= {most_memory}", memory <= most_memory, measured)


def search_once(passages: int, queries: int, width: int, intervals: bool) -> None:
    """Print one measurement of `search` as JSON: seconds, and the peak memory of this process, vectors included."""
    rng = np.random.default_rng(0)
    corpus = rng.standard_normal((passages, width), np.float32)
    asked = rng.standard_normal((queries, width), np.float32)
    gold = rng.integers(0, passages, queries)
    dataset = PositionDataset(
        name="random",
        queries=("",) * queries,
        passages=("",) * passages,
        groups=("beginning", "middle", "end"),
        query=np.arange(queries),
        gold=gold,
        group=rng.integers(0, 3, queries),
    )
    # Queries near their passages, so that there is something to score.
    asked += 0.1 * np.linalg.norm(asked, axis=1, keepdims=True) / np.sqrt(width) * corpus[gold]
    started = time.perf_counter()
    run = retrieve(dataset, asked, corpus, 100)
    searched = time.perf_counter()
    judgements = Judgements.pool([dataset])
    scores = score(dataset, run, "average", 100)
    other = dataclasses.replace(scores, ndcg=rng.permutation(scores.ndcg))
    found = entry(judgements, scores, other if intervals else None, resamples=10_000 if intervals else 10)
    ended = time.perf_counter()
    # Kilobytes on Linux, bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "linux" else 2**30)
    measured = {"search": searched - started, "scoring": ended - searched, "peak_gb": peak, "ndcg": found["ndcg_at_10"]}
    print(json.dumps(measured))


def startup() -> Iterator[Row]:
    """Seconds that `import jaxcal` takes beyond `import jax`, each in a fresh process."""

    def importing(module: str) -> None:
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    jax_only, ours = interleaved(lambda: importing("jax"), lambda: importing("jaxcal"), label="import")
    extra = statistics.median(ours) - statistics.median(jax_only)
    yield Row(
        "startup", "import jaxcal beyond import jax (s)", extra, "<= 0.6", extra <= 0.6, {"seconds": [ours, jax_only]}
    )


def peers() -> Iterator[Row]:
    """Throughput against sentence-transformers (SDPA attention): the same real texts, weights and threads, float32."""
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError:
        logger.warning("benchmark peers needs torch and sentence-transformers: install jaxcal[parity]; skipped")
        return
    torch.set_num_threads(os.cpu_count() or 1)
    minilm = load_minilm(512)
    assert minilm.checkpoint is not None
    folder = minilm.checkpoint.folder
    texts = _mixed_texts(96)
    yield from _against("MiniLM", minilm, SentenceTransformer(str(folder), device="cpu"), texts, 512)
    with tempfile.TemporaryDirectory() as scratch:
        _write_gte(Path(scratch), folder)
        long_texts = list(load_pydoc_posq("long").passages[:2])
        ours, theirs = load(scratch), SentenceTransformer(scratch, device="cpu")
        yield from _against("gte shape, 12 layers", ours, theirs, texts[::6], 8192)
        yield from _against("gte shape, 12 layers, long documents", ours, theirs, long_texts, 8192)


def _against(name: str, ours: Encoder, theirs: Any, texts: list[str], length: int) -> Iterator[Row]:
    theirs.max_seq_length = length
    vectors, reference = ours.encode(texts), theirs.encode(texts)
    difference = float(np.abs(vectors - reference).max())
    their_seconds, our_seconds = interleaved(lambda: theirs.encode(texts), lambda: ours.encode(texts), label=name)
    run = ours.last_run
    size = f"{len(texts)} texts of {run.tokens // len(texts)} tokens on average"
    row = _ratio("peers", f"throughput / sentence-transformers, {name}, {size}", their_seconds, our_seconds, 1.0, None)
    row.detail["tokens_per_second"] = run.tokens / statistics.median(our_seconds)
    yield row
    yield Row("peers", f"largest difference of a value, {name}", difference, "<= 1e-05", difference <= 1e-5, {})


def _mixed_texts(count: int) -> list[str]:
    """Real texts of mixed length: queries, single docstrings and whole documents of PyDoc-PosQ."""
    documents, queries = read_pydoc_posq("short")
    sections = [section for document in documents for section in document["sections"]]
    whole = ["\n\n".join(document["sections"]) for document in documents]
    portion = count // 4
    return [query["text"] for query in queries[:portion]] + sections[: 2 * portion] + whole[:portion]


def _write_gte(folder: Path, tokenizer_folder: Path) -> None:
    """A random checkpoint in the shape of gte-multilingual-base, but for a BERT vocabulary, with module files."""
    import shutil

    import torch
    from transformers import GteConfig, GteModel

    torch.manual_seed(0)
    GteModel(GteConfig(vocab_size=30522, pad_token_id=0)).save_pretrained(folder)
    shutil.copy(tokenizer_folder / "tokenizer.json", folder)
    settings = json.loads((tokenizer_folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 8192}))
    kinds = ("Transformer", "Pooling", "Normalize")
    paths = ("", "1_Pooling", "2_Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "2_Normalize").mkdir()
    pooling = {"word_embedding_dimension": 768, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8192, "do_lower_case": False}))


BENCHES: dict[str, Callable[[], Iterator[Row]]] = {
    "startup": startup,
    "batching": batching,
    "accuracy": accuracy,
    "memory": memory,
    "calibration": calibration,
    "peers": peers,
    "search": search,
}
