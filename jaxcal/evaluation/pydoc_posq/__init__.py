"""PyDoc-PosQ: standard-library docstrings, each asked with its answer at the beginning, in the middle and at the end.

This package holds the frozen files and the three rules that turn them into texts. `build.py` writes the files,
`jaxcal.evaluation.datasets` loads them, and both use the functions below, so neither can drift from the other.
"""

from collections.abc import Sequence

GROUPS = ("beginning", "middle", "end")
VARIANTS = ("short", "long")
SEPARATOR = "\n\n"


def rotate(sections: Sequence[str], start: int) -> str:
    """Join the sections of a document into one text, beginning with section `start` and wrapping round."""
    return SEPARATOR.join([*sections[start:], *sections[:start]])


def section_third(lengths: Sequence[int], start: int, section: int, separator: int = len(SEPARATOR)) -> int:
    """Tell in which third (0, 1, 2) of a rotated document the centre of a section lies.

    Args:
        lengths: length of each section in source order, in characters (or in tokens, with `separator=0`).
        start: the section the rotation begins with.
        section: the section asked about.
        separator: length of what stands between two sections.

    The centre is (first character + one past the last) / 2 and the document is cut at 1/3 and 2/3 of its length; a
    centre on a cut belongs to the later third. Whole numbers only, so no rounding decides a case.
    """
    count = len(lengths)
    before = sum(lengths[(start + i) % count] + separator for i in range((section - start) % count))
    total = sum(lengths) + separator * (count - 1)
    return min(3 * (2 * before + lengths[section]) // (2 * total), 2)


def rotation_by_group(
    lengths: Sequence[int], rotations: Sequence[int], section: int, separator: int = len(SEPARATOR)
) -> list[int] | None:
    """Return, per third, the index of the rotation that puts the section there; None unless there is exactly one each.

    Args:
        lengths: length of each section in source order.
        rotations: the section each of the three rotations begins with.
        section: the section asked about.
        separator: length of what stands between two sections.
    """
    thirds = [section_third(lengths, start, section, separator) for start in rotations]
    return [thirds.index(third) for third in range(3)] if sorted(thirds) == [0, 1, 2] else None
