"""jaxcal: position-fair dense retrieval in JAX, by attention calibration at inference time."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxcal import errors

if TYPE_CHECKING:
    from jaxcal.calibration import Calibration, calibrate_rows
    from jaxcal.encoder import Encoder, load

__version__ = "0.1.0"
__all__ = ["Calibration", "Encoder", "calibrate_rows", "errors", "load"]

# Imported at first use: the command line answers --help without JAX, and calibrating rows needs no Flax.
_HOMES = {
    "Calibration": "jaxcal.calibration",
    "calibrate_rows": "jaxcal.calibration",
    "Encoder": "jaxcal.encoder",
    "load": "jaxcal.encoder",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'jaxcal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
