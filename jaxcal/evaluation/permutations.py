"""The permutation protocol: how much of each segment is left in a document's vector, by where the segment stands.

A document is made of n segments in all n! orders. The cosine of a segment's own vector with the document's vector,
averaged over orders, depends on the segment's place alone, because every segment stands everywhere equally often
(Schuhmacher et al., arXiv 2601.16934, experiment 1). Segments by themselves stay uncalibrated: they are the control.

Axis letters: R segment sets, O orders, S segments (and positions) of a document, D width.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation.datasets.pydoc import read_pydoc_posq
from jaxcal.evaluation.datasets.rows import BadField, Refusals, list_of, read_rows, text_of
from jaxcal.evaluation.position_statistics import Statistics, statistics
from jaxcal.plots import require_matplotlib
from jaxcal.tables import markdown_table

SEPARATOR = "\n\n"
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

    @property
    def by_segment(self) -> np.ndarray:
        """[R, S, S]: the mean cosine of each segment at each position, over the orders that put it there."""
        count = self.segment.shape[1]
        table = np.empty((len(self.cosines), count, count))
        for position in range(count):
            for segment in range(count):
                table[:, segment, position] = self.cosines[:, self.segment[:, position] == segment, position].mean(1)
        return table

    def statistics(self, permutations: int = 10_000, seed: int = 42) -> Statistics:
        """The statistics of the protocol; see `position_statistics`."""
        return statistics(self.cosines, self.by_segment, permutations, seed)


def read_segment_sets(path: Path) -> list[SegmentSet]:
    """Read segment sets from JSON lines: {"id": "...", "segments": ["...", ...]}.

    Raises:
        InvalidInput: a malformed row, or sets of different sizes; names file, row and field.
    """
    refusals, sets = Refusals(None), []
    for number, row in read_rows(path):
        with refusals.row(path, number):
            segments = tuple(list_of(row, "segments", str))
            if not 2 <= len(segments) <= _MOST_SEGMENTS:
                raise BadField("segments", f"has {len(segments)}; 2 to {_MOST_SEGMENTS} can be put in all orders")
            if sets and len(segments) != len(sets[0].segments):
                raise BadField("segments", f"has {len(segments)}, the first set {len(sets[0].segments)}")
            sets.append(SegmentSet(text_of(row, "id"), segments))
    if len(sets) < 2:
        raise InvalidInput(f"{path} has {len(sets)} segment sets; statistics need at least two.")
    return sets


def pydoc_segment_sets(size: int = 3, variant: str = "long") -> list[SegmentSet]:
    """Segment sets made of PyDoc-PosQ: each document's sections in `size` stretches of about the same length.

    A stretch ends with the section whose end is nearest to its share of the document; documents with fewer sections
    than stretches are left out.

    Raises:
        InvalidSetting: fewer than 2 or more than 6 segments, or no such variant.
    """
    if isinstance(size, bool) or not isinstance(size, int) or not 2 <= size <= _MOST_SEGMENTS:
        raise InvalidSetting(f"segments is {size!r}; 2 to {_MOST_SEGMENTS} can be put in all orders.")
    sets = []
    for document in read_pydoc_posq(variant)[0]:
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
    return sets


def documents(sets: Sequence[SegmentSet]) -> list[str]:
    """The documents of all sets, [R x O]: the orders of a set in lexicographic order of its segments' numbers."""
    orders = list(itertools.permutations(range(len(sets[0].segments))))
    return [SEPARATOR.join(one.segments[i] for i in order) for one in sets for order in orders]


def measure(sets: Sequence[SegmentSet], encode_segments: Encode, encode_documents: Encode) -> PositionProfile:
    """Measure cosines by position.

    Args:
        sets: of the same size each.
        encode_segments: gives vectors of segments by themselves; uncalibrated in the protocol.
        encode_documents: gives vectors of documents.
    """
    size = len(sets[0].segments)
    orders = np.array(list(itertools.permutations(range(size))))
    segments = _normalised(encode_segments([text for one in sets for text in one.segments]))
    whole = _normalised(encode_documents(documents(sets)))
    own = segments.reshape(len(sets), size, -1)[:, orders]  # [R, O, S, D]
    return PositionProfile(np.einsum("rosd,rod->ros", own, whole.reshape(len(sets), len(orders), -1)), orders)


def _normalised(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


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
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
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
    figure.savefig(path, format="png", dpi=144, metadata={"Software": None})
