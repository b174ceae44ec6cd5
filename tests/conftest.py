"""Shared by all tests: JAX on the CPU, no network."""

import functools
import os

import jaxtyping
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Random checkpoints, each written once a session: written(kind, pooling, **options of write_checkpoint)."""
    from checkpoints import write_checkpoint

    @functools.cache
    def write(kind, pooling, **options):
        return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), kind, pooling, **options)

    return write


@pytest.fixture(scope="session")
def loaded(written):
    """Their encoders, each loaded once a session, so that what it compiled is compiled once."""
    import jaxcal

    @functools.cache
    def load(kind, pooling, **options):
        return jaxcal.load(written(kind, pooling, **options).folder)

    return load


@pytest.fixture
def unchecked():
    """Call jaxcal as its users do: the type checks of this suite are off, so that jaxcal's own refusals answer."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
