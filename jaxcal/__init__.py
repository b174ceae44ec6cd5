"""jaxcal: position-fair dense retrieval in JAX, by attention calibration at inference time."""

from typing import TYPE_CHECKING, Any

from jaxcal import errors
from jaxcal.calibration import Calibration, calibrate_rows

if TYPE_CHECKING:
    from jaxcal.encoder import Encoder, load

__version__ = "0.1.0"
__all__ = ["Calibration", "Encoder", "calibrate_rows", "errors", "load"]


def __getattr__(name: str) -> Any:
    # Flax and the checkpoint readers are imported at first use: a program that only calibrates rows never pays for them.
    if name in ("Encoder", "load"):
        from jaxcal import encoder

        return getattr(encoder, name)
    raise AttributeError(f"module 'jaxcal' has no attribute {name!r}")
