"""The permutation protocol: how much of each segment is left in a document's vector, by where the segment stands.

A document is made of n segments in all n! orders. The cosine of a segment's own vector with the document's vector,
averaged over orders, depends on the segment's place alone, because every segment stands everywhere equally often
(Schuhmacher et al., arXiv 2601.16934, experiment 1). Segments by themselves stay uncalibrated: they are the control.

Axis letters: R segment sets, O orders, S segments (and positions) of a document, D width.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.datasets.pydoc import read_pydoc_posq
from jaxcal.evaluation.datasets.rows import BadField, Refusals, list_of, read_rows, text_of
from jaxcal.evaluation.position_statistics import Statistics, statistics
from jaxcal.plots import new_figure, save
from jaxcal.tables import markdown_table

logger = logging.getLogger("jaxcal")

SEPARATOR = "\n\n"  # between the segments of a document
_MOST_SEGMENTS = 6  # 720 orders
Encode = Callable[[Sequence[str]], Float[np.ndarray, "n d"]]


@dataclasses.dataclass(frozen=True)
class SegmentSet:
    """Segments that documents are made of by ordering them."""

    id: str
    segments: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class PositionProfile:
    """Cosines of segments with documents.

    Attributes:
        cosines: [R, O, S] float64: of the segment at each position with its document.
        segment: [O, S] which segment of the set stands there.
    """

    cosines: np.ndarray
    segment: np.ndarray

    def statistics(self, permutations: int = 10_000, seed: int = 42) -> Statistics:
        """The statistics of the protocol; see `position_statistics`."""
        return statistics(self.cosines, permutations, seed)


def read_segment_sets(path: Path) -> list[SegmentSet]:
    """Read segment sets from JSON lines: {"id": "...", "segments": ["...", ...]}.

    Raises:
        InvalidInput: fewer than two sets, a malformed row, an id or, in a set, a segment that is there twice, a blank
            segment, sets of different sizes; names file, row and field.
    """
    refusals, sets = Refusals(None), {}
    for number, row in read_rows(path):
        with refusals.row(path, number):
            identity = text_of(row, "id")
            if identity in sets:
                raise BadField("id", f"is {identity!r} for the second time")
            segments = tuple(text_of({"segments": one}, "segments") for one in list_of(row, "segments", str))
            if not 2 <= len(segments) <= _MOST_SEGMENTS:
                raise BadField("segments", f"has {len(segments)}; 2 to {_MOST_SEGMENTS} can be put in all orders")
            if not all(map(str.strip, segments)):
                raise BadField("segments", "holds a blank segment")
            if len(set(segments)) != len(segments):
                raise BadField("segments", "holds a segment twice")
            if sets and len(segments) != (first := len(next(iter(sets.values())).segments)):
                raise BadField("segments", f"has {len(segments)}, the first set {first}; put them into files by size")
            sets[identity] = SegmentSet(identity, segments)
    if len(sets) < 2:
        raise InvalidInput(f"{path} has {len(sets)} segment sets; statistics need at least two.")
    return list(sets.values())


def pydoc_segment_sets(size: int = 3, variant: str = "long") -> list[SegmentSet]:
    """Segment sets made of PyDoc-PosQ: each document's sections in `size` stretches of about the same length.

    Stretch k ends with the section whose end is nearest to k / size of the document's characters, such that every
    stretch has a section; its sections are joined by a blank line. Documents with fewer sections than stretches are
    left out, which the log tells.

    Raises:
        InvalidSetting: fewer than 2 or more than 6 segments, or no such variant.
    """
    if isinstance(size, bool) or not isinstance(size, int) or not 2 <= size <= _MOST_SEGMENTS:
        raise InvalidSetting(f"segments is {size!r}; 2 to {_MOST_SEGMENTS} can be put in all orders.")
    records, sets = read_pydoc_posq(variant)[0], []
    for document in records:
        sections = document["sections"]
        if len(sections) < size:
            continue
        ends = np.cumsum([len(section) for section in sections])
        cuts = [0]
        for part in range(1, size):
            # Every stretch must be left a section.
            possible = np.arange(cuts[-1] + 1, len(sections) - (size - part) + 1)
            cuts.append(int(possible[np.abs(ends[possible - 1] - ends[-1] * part / size).argmin()]))
        stretches = itertools.pairwise([*cuts, len(sections)])
        segments = tuple(SEPARATOR.join(sections[start:end]) for start, end in stretches)
        sets.append(SegmentSet(document["id"], segments))
    if len(sets) < len(records):
        left_out = len(records) - len(sets)
        logger.warning("%d of %d documents have fewer than %d sections: left out", left_out, len(records), size)
    return sets


def documents(sets: Sequence[SegmentSet]) -> list[str]:
    """The documents of all sets, R x O: the orders of a set in lexicographic order of its segments' numbers.

    Raises:
        InvalidInput: there are no sets, or not all have the same 2 to 6 segments.
    """
    orders = _orders(sets)
    return [SEPARATOR.join(one.segments[i] for i in order) for one in sets for order in orders]


def _orders(sets: Sequence[SegmentSet]) -> np.ndarray:
    sizes = sorted({len(one.segments) for one in sets})
    if len(sizes) != 1:
        found = f"of {', '.join(map(str, sizes))} segments were put together" if sizes else "are missing"
        raise InvalidInput(f"segment sets {found}; measure sets of one size at a time.")
    if not 2 <= sizes[0] <= _MOST_SEGMENTS:
        raise InvalidInput(f"segment sets have {sizes[0]} segments; 2 to {_MOST_SEGMENTS} can be put in all orders.")
    return np.array(list(itertools.permutations(range(sizes[0]))))


def measure(sets: Sequence[SegmentSet], encode_segments: Encode, encode_documents: Encode) -> PositionProfile:
    """Measure cosines by position.

    Args:
        sets: of the same size each.
        encode_segments: gives the vectors, [N, D], of segments by themselves; uncalibrated in the protocol. Each text
            is given once, in the order of the sets.
        encode_documents: gives the vectors of documents, likewise.

    Raises:
        InvalidInput: sets that `documents` refuses, or vectors that are not one finite, nonzero row for each text.
    """
    orders = _orders(sets)
    segments = _unit_vectors(encode_segments, [text for one in sets for text in one.segments], "segments")
    whole = _unit_vectors(encode_documents, documents(sets), "documents")
    if segments.shape[1] != whole.shape[1]:
        raise InvalidInput(f"segments have {segments.shape[1]} dimensions and documents {whole.shape[1]}.")
    count, size = orders.shape
    similarity = whole.reshape(len(sets), count, -1) @ segments.reshape(len(sets), size, -1).swapaxes(1, 2)
    return PositionProfile(np.take_along_axis(similarity, orders[None], axis=2), orders)


def _unit_vectors(encode: Encode, texts: Sequence[str], called: str) -> np.ndarray:
    """[N, D] float64."""
    unique = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    vectors = np.asarray(encode(list(unique)), np.float64)
    if vectors.ndim != 2 or len(vectors) != len(unique):
        raise InvalidInput(f"{len(unique)} {called} got vectors of the shape {vectors.shape}; each needs one row.")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if wrong.size:
        raise InvalidInput(f"the vector of {called} [{wrong[0]}] is zero or not finite, and has no cosine.")
    return (vectors / lengths)[[unique[text] for text in texts]]


# --- reports ----------------------------------------------------------------------------------------------------------


def report(found: Mapping[str, Statistics]) -> str:
    """A Markdown table: mean cosine by position, and how uneven it is."""
    count = len(next(iter(found.values())).means)
    header = [
        "method",
        *(f"position {i + 1}" for i in range(count)),
        "first - last (relative)",
        "Gini",
        "p",
        "eta squared",
        "p",
    ]
    rows = []
    for method, one in found.items():
        difference = one.relative_difference
        change = f"{difference['estimate']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]"
        uneven = [f"{one.gini['value']:.3f}", _p(one.gini["p"])]
        effect = [f"{one.anova['generalised_eta_squared']:.3f}", _p(one.anova["p"])]
        rows.append([method, *(f"{mean:.3f}" for mean in one.means), change, *uneven, *effect])
    return markdown_table(header, rows)


def _p(value: float) -> str:
    return f"{value:.1g}" if value >= 1e-16 else "< 1e-16"


def plot_profiles(path: Path, title: str, found: Mapping[str, Statistics]) -> None:
    """Write the mean cosine by position of each method, with 95 % intervals over segment sets, as PNG.

    Raises:
        MissingDependency: if matplotlib is not installed.
    """
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    positions = range(1, len(next(iter(found.values())).means) + 1)
    for method, one in found.items():
        reach: Any = [1.96 * error for error in one.standard_errors]
        axes.errorbar(positions, one.means, yerr=reach, fmt="o-", capsize=3, label=method)
    axes.set_xticks(list(positions))
    axes.set_xlabel("position of the segment in the document")
    axes.set_ylabel("cosine of segment and document")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    figure.suptitle(title)
    save(figure, path)
