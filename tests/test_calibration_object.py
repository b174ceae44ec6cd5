"""`Calibration` as an object: defaults, forms, refusals, and a pytree whose strength and basket size may be traced."""

import dataclasses
import functools
import pickle

import jax
import numpy as np
import pytest

import jaxcal
from jaxcal import Calibration, calibrate_rows
from jaxcal.errors import InvalidCalibration


def test_calibration_is_a_pytree():
    calibration = Calibration(0.25, 64, layers=2, special_tokens="keep", isolate={"first"})
    leaves, structure = jax.tree_util.tree_flatten(calibration)
    assert leaves == [0.25, 64]
    assert jax.tree_util.tree_unflatten(structure, leaves) == calibration
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(calibration)]
    assert paths == [".strength", ".basket_size"]
    # Static parts belong to the structure: another choice is another program, another strength is not.
    assert jax.tree.structure(calibration.replace(strength=0.5)) == structure
    assert jax.tree.structure(calibration.replace(layers=3)) != structure
    assert jax.tree.map(lambda leaf: leaf * 2, calibration) == calibration.replace(strength=0.5, basket_size=128)
    assert jax.tree.map(lambda leaf: None, calibration).strength is None


def test_calibration_passes_through_jit_and_grad():
    traced = []

    @jax.jit
    def halve(calibration):
        traced.append(calibration)
        return calibration.replace(strength=calibration.strength / 2)

    for strength in (0.5, 1.0):
        assert float(halve(Calibration(strength)).strength) == strength / 2
    assert len(traced) == 1
    gradient = jax.grad(lambda calibration: calibration.strength**2, allow_int=True)(Calibration(0.5))
    assert isinstance(gradient, Calibration) and float(gradient.strength) == 1.0


def test_defaults_are_those_of_the_paper():
    calibration = Calibration()
    assert (calibration.strength, calibration.basket_size, calibration.layers) == (0.5, 128, "last-50%")
    assert (calibration.special_tokens, calibration.isolate) == ("equal", None)
    assert [calibration.number_of_layers(total) for total in (1, 2, 3, 6, 12, 24, 28)] == [1, 1, 1, 3, 6, 12, 14]
    assert calibration.isolated("first") == calibration.isolated("last") == {"first", "last"}
    assert calibration.isolated("mean") == frozenset()


def test_values_are_brought_to_one_form():
    assert Calibration(isolate="first").isolate == Calibration(isolate=["first"]).isolate == frozenset({"first"})
    assert type(Calibration(basket_size=16.0).basket_size) is int
    assert type(Calibration(strength=np.float32(0.5)).strength) is float
    assert Calibration(layers=np.int64(3)).layers == 3
    assert Calibration(strength=[0.5, 1]).strength.dtype == np.float32
    assert Calibration(strength=1).is_identity is False
    assert Calibration(strength=[0, 0]).is_identity is True
    assert Calibration(isolate=()).isolated("first") == frozenset()


def test_equality_by_value():
    assert Calibration([0.1, 0.2]) == Calibration(np.array([0.1, 0.2], np.float32))
    assert Calibration([0.1, 0.2]) != Calibration([0.1, 0.3]) and Calibration([0.5, 0.5]) != Calibration(0.5)
    assert Calibration(basket_size=64) != Calibration() != "calibration"
    assert len({Calibration(), Calibration(), Calibration(layers=2)}) == 2


def test_frozen_replaceable_and_picklable():
    calibration = Calibration()
    with pytest.raises(dataclasses.FrozenInstanceError):
        calibration.strength = 1.0
    assert calibration.replace(strength=1.0) == Calibration(strength=1.0)
    with pytest.raises(InvalidCalibration):
        calibration.replace(strength=2.0)
    assert pickle.loads(pickle.dumps(calibration)) == calibration


REFUSED = {
    "basket_size": [0, -1, 2.5, True, float("nan"), float("inf"), "128", None, [3], np.array([3, 4]), 2**31],
    "strength": [
        -0.1,
        1.1,
        1 + 1e-9,
        float("nan"),
        "0.5",
        None,
        True,
        [0.5, 1.5],
        [[0.5], [0.1, 0.2]],
        0.5j,
        [True, False],
    ],
    "layers": [0, -1, "half", True, 2.5, None, "LAST", [1], ""],
    "special_tokens": ["Keep", "", None, True, ["equal"]],
    "isolate": ["middle", {"first", "end"}, True, 1, [1], [["first"]], ""],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_refusals(unchecked, name, value):
    with pytest.raises(InvalidCalibration, match=name):
        Calibration(**{name: value})


def test_every_refusal_shows_the_value():
    with pytest.raises(InvalidCalibration, match=r"strength is 1\.1; every value must lie in \[0, 1\]"):
        Calibration(strength=1.1)
    assert issubclass(InvalidCalibration, ValueError) and issubclass(InvalidCalibration, jaxcal.errors.JaxcalError)


def test_layers_and_strengths_that_a_model_does_not_have():
    with pytest.raises(InvalidCalibration, match="asks for 7 layers, but the model has 6"):
        Calibration(layers=7).number_of_layers(6)
    for strength in (np.ones(2), np.ones((3, 3)), np.ones((3, 2, 1)), np.ones((1, 2))):
        with pytest.raises(InvalidCalibration, match=r"must be a number, \(3,\) or \(3, 2\)"):
            Calibration(strength=strength).strengths(3, 2)
    got = Calibration(strength=[0.1, 0.2, 0.3]).strengths(3, 2)
    np.testing.assert_allclose(got, [[0.1] * 2, [0.2] * 2, [0.3] * 2])


@pytest.mark.parametrize(
    ("attention", "mask", "options", "message"),
    [
        ((2, 3, 8), (2, 8), {"pooling": "cls"}, "pooling is 'cls'"),
        ((2, 3, 8), (2, 8), {"pooling": "mean"}, r"must be \(2, 3, 8, 8\)"),
        ((2, 3, 8, 8), (2, 8), {"pooling": "first"}, r"must be \(2, 3, 8\)"),
        ((2, 3, 8), (2, 9), {}, r"must be \(2, 3, 9\)"),
        ((1, 3, 8), (2, 8), {}, r"must be \(2, 3, 8\)"),
        ((2, 3, 8), (2, 8), {"strength": [0.5, 0.5]}, "a number or one per head"),
        ((8,), (2, 8), {}, "attention has the shape"),
        ((2, 8), (2, 8), {}, "attention has the shape"),
        ((2, 3, 8), (8,), {}, "mask has the shape"),
    ],
)
def test_rows_that_do_not_fit(unchecked, attention, mask, options, message):
    calibration = Calibration(options.pop("strength", 0.5), 4)
    with pytest.raises(InvalidCalibration, match=message):
        calibrate_rows(np.ones(attention, np.float32), np.ones(mask, bool), calibration, **options)


def test_the_public_names_are_the_ones_of_the_package():
    assert jaxcal.Calibration is Calibration and jaxcal.calibrate_rows is calibrate_rows
    assert functools.reduce(lambda found, name: found and hasattr(jaxcal, name), jaxcal.__all__, True)


def test_rows_of_whole_numbers_are_refused(unchecked):
    with pytest.raises(InvalidCalibration, match="floating point"):
        calibrate_rows(np.ones((1, 1, 4), np.int32), np.ones((1, 4), bool), Calibration(0.5, 2))
