"""What importing and using jaxcal does not pull in: devices, torch, transformers."""

import subprocess
import sys
from pathlib import Path

import pytest

import jaxcal

ROOT = Path(__file__).parents[1]


def test_importing_jaxcal_is_light():
    """No device is initialised; torch, transformers and flax stay out, also after the calibration of a row."""
    program = """
import sys
import jaxcal
from jax._src import xla_bridge
assert not xla_bridge._backends, "a device was initialised"
jaxcal.Calibration()
heavy = [name for name in ("torch", "transformers", "flax", "sentence_transformers", "datasets") if name in sys.modules]
assert not heavy, heavy
assert not xla_bridge._backends, "a device was initialised"
import numpy
jaxcal.calibrate_rows(numpy.ones((1, 1, 4), "float32") / 4, numpy.ones((1, 4), bool), jaxcal.Calibration(1.0, 2))
heavy = [name for name in ("torch", "transformers", "flax") if name in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_loading_and_encoding_import_neither_torch_nor_transformers(written):
    program = """
import sys
import jaxcal
vector = jaxcal.load(sys.argv[1]).encode("w1 w2")
assert vector.ndim == 1
heavy = [name for name in ("torch", "transformers", "sentence_transformers", "datasets") if name in sys.modules]
assert not heavy, heavy
"""
    command = [sys.executable, "-c", program, str(written("bert", "first").folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_unknown_names_of_the_package():
    assert set(jaxcal.__all__) >= {"Calibration", "Encoder", "calibrate_rows", "errors", "load"}
    with pytest.raises(AttributeError, match="no attribute 'encode'"):
        jaxcal.encode  # noqa: B018
