"""The permutation protocol as an evaluation: the same configuration, vectors and folders as retrieval."""

import dataclasses
from pathlib import Path
from typing import Any

from jaxcal.encoder import Encoder
from jaxcal.errors import InvalidSetting
from jaxcal.evaluation.config import EvaluationConfig
from jaxcal.evaluation.permutations import (
    SegmentSet,
    documents,
    measure,
    plot_profiles,
    pydoc_segment_sets,
    read_segment_sets,
    report,
)
from jaxcal.evaluation.runner import as_json, describe, limited, model_name, prompts, slug
from jaxcal.evaluation.vectors import VectorStore
from jaxcal.io import atomic, exclusive, make_folder
from jaxcal.plots import require_matplotlib
from jaxcal.tables import environment

SEGMENT_ORDERS = "segment-orders"
_NAME = "Segment orders"


def evaluate_orders(
    config: EvaluationConfig,
    encoder: Encoder,
    output: Path,
    *,
    cache: Path | None = None,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Measure by position how much of a segment a document's vector holds, and write the files of the protocol.

    Args and errors as in `runner.evaluate`. The options of the data set are "file", with segment sets in JSON lines, or
    "segments" and "variant", for sets made of PyDoc-PosQ.

    Returns:
        The result, as it stands in result.json.
    """
    require_matplotlib()
    if config.bm25:
        raise InvalidSetting(f"{SEGMENT_ORDERS} compares vectors, and BM25 has none; leave bm25 out.")
    encoder = limited(encoder, config.max_length)
    sets = _sets(**config.options)
    folder = output / slug(_NAME) / slug(model_name(encoder))
    make_folder(folder)
    store = VectorStore(cache or output / "vectors", encoder)
    options: dict[str, Any] = {"prompt": prompts(config, encoder)["document"], "show_progress": show_progress}
    with exclusive(folder):
        whole = documents(sets)
        plain = store.encode(whole, label="documents", **options)
        found, methods = {}, {}
        for method in config.methods:
            profile = measure(
                sets,
                lambda texts: store.encode(texts, label="segments", **options).vectors,
                lambda texts, method=method: (
                    store.encode(
                        texts, calibration=method.calibration, segment=method.segment, label=method.name, **options
                    ).vectors
                ),
            )
            found[method.name] = profile.statistics(config.resamples)
            calibration = describe(store, method)[1]
            methods[method.name] = {"calibration": calibration, **dataclasses.asdict(found[method.name])}
        size = len(sets[0].segments)
        counts = {"sets": len(sets), "segments": size, "documents": len(whole), "truncated": int(plain.cut.sum())}
        result = {
            "task_name": _NAME,
            "methods": methods,
            "model": describe(store, config.methods[0])[0],
            "data": counts,
            "permutations": config.resamples,
            "environment": environment(),
        }
        for name, text in (("result.json", as_json(result)), ("table.md", report(found) + "\n")):
            with atomic(folder / name) as path:
                path.write_text(text, encoding="utf-8")
        with atomic(folder / "profile.png") as path:
            plot_profiles(path, f"{model_name(encoder)}: {len(whole)} documents in all orders", found)
    print(f"{_NAME}: {', '.join(f'{count} {key}' for key, count in counts.items())}")
    print(f"\n{report(found)}\n\nwrote {folder}")
    return result


def _sets(file: str | None = None, segments: int = 3, variant: str = "long", **unknown: Any) -> list[SegmentSet]:
    if unknown:
        raise InvalidSetting(f"{SEGMENT_ORDERS} has no option {next(iter(unknown))!r}; it has file, segments, variant.")
    return read_segment_sets(Path(file)) if file is not None else pydoc_segment_sets(segments, variant)
