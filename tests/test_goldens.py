"""Calibrated rows against the golden numbers, in float64."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxcal

GOLDENS = Path(__file__).parent / "goldens"
CASES = json.loads((GOLDENS / "calibrated_rows.json").read_text())


@pytest.fixture(scope="module")
def arrays():
    with np.load(GOLDENS / "calibrated_rows.npz") as file:
        return dict(file)


@pytest.mark.parametrize("case", CASES, ids=[case["key"] for case in CASES])
def test_golden_case(case, arrays):
    attention, mask, expected = (arrays[f"{case['key']}_{part}"] for part in ("attention", "mask", "expected"))
    calibration = jaxcal.Calibration(
        strength=case["strength"],
        basket_size=case["basket_size"],
        special_tokens=case["special_tokens"],
        isolate={end for end in ("first", "last") if case[f"isolate_{end}"]},
    )
    with jax.enable_x64(True):
        got = np.asarray(jaxcal.calibrate_rows(attention, mask, calibration, pooling=case["pooling"]))
    assert got.dtype == np.float64
    if case["pooling"] == "mean":  # only rows of real tokens are specified
        got, expected = got[:, :, mask[0] == 1], expected[:, :, mask[0] == 1]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


def test_all_cases_are_there():
    assert len(CASES) == 80
