"""Shared by all tests: JAX on the CPU, no network."""

import functools
import os
from types import SimpleNamespace

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


@pytest.fixture
def dataset_hub(tmp_path, monkeypatch):
    """A hub whose data set repositories are all one folder, at one commit; what is downloaded of which is listed."""
    import huggingface_hub
    from official_layouts import DATASET_COMMIT

    hub = SimpleNamespace(folder=tmp_path / "repository", fetched=[], repositories=set())

    def info(self, repository, revision, timeout):
        hub.repositories.add(repository)
        names = sorted(path.relative_to(hub.folder).as_posix() for path in hub.folder.rglob("*") if path.is_file())
        return SimpleNamespace(sha=DATASET_COMMIT, siblings=[SimpleNamespace(rfilename=name) for name in names])

    def download(repository, name, *, repo_type, revision):
        assert (repo_type, revision) == ("dataset", DATASET_COMMIT), "every file is of the resolved commit"
        hub.repositories.add(repository)
        hub.fetched.append(name)
        return str(hub.folder / name)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", info)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return hub
