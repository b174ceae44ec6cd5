"""Every error a user of jaxcal can meet.

Each message says what is wrong, where, and what to do about it. All of them derive from `JaxcalError`, and from the
built-in exception a Python programmer would expect, so `except ValueError` works where one would try it. The command
line prints the message alone and exits with status 2.
"""


class JaxcalError(Exception):
    """Base class of all errors raised on purpose by jaxcal."""


class InvalidCalibration(JaxcalError, ValueError):
    """A calibration without meaning: a strength outside [0, 1], a basket below one token, layers the model lacks."""


class InvalidInput(JaxcalError, ValueError):
    """Texts, token ids or input files that cannot be encoded; names the offending item by its index or row."""


class InvalidSetting(JaxcalError, ValueError):
    """An argument or configuration value that is not one of the possible ones."""


class CheckpointNotFound(JaxcalError, FileNotFoundError):
    """A checkpoint, or a file it needs, is neither at the given place nor (when offline) in the local cache."""


class UnsupportedCheckpoint(JaxcalError, ValueError):
    """An architecture, configuration field, pooling or file format that jaxcal does not implement."""


class WeightMismatch(JaxcalError, ValueError):
    """Weights that do not fill the model exactly: missing, extra, misshapen, not finite; lists all offenders."""


class CorruptCheckpoint(JaxcalError, ValueError):
    """A checkpoint file that cannot be read: truncated, not JSON, not safetensors."""


class NotFinite(JaxcalError, ArithmeticError):
    """Vectors came out as NaN or infinity, as float16 activations of some checkpoints do."""


class MissingDependency(JaxcalError, ImportError):
    """An optional package is needed for this; the message names the extra that installs it."""


class UnexpectedCompilation(JaxcalError, RuntimeError):
    """A program was compiled after warm-up although the caller forbade it."""
