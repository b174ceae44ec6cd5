"""Tables that read well on a terminal and in Markdown alike, and the environment block every result carries."""

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

_PACKAGES = ("jaxcal", "jax", "jaxlib", "flax", "numpy", "tokenizers")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An aligned Markdown table: the first column to the left, all others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cells[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)),
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(header), line(rule), *map(line, rows)])


def environment() -> dict[str, Any]:
    """Versions and device of this run, for result files."""
    import jax

    device = jax.devices()[0]
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
