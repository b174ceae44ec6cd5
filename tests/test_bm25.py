"""BM25 by its formula, and words of scripts with and without spaces."""

import math

import numpy as np
import pytest

from jaxcal.evaluation.bm25 import Bm25, words

pytest.importorskip("bm25s")

PASSAGES = ["the cat sat", "a dog and a cat", "dog dog dog", "", "zebra cat"]


@pytest.mark.parametrize("query", ["cat dog", "cat cat", "zebra sat unknown"])
def test_scores_by_the_formula(query):
    documents = [words(passage) for passage in PASSAGES]
    average = np.mean([len(document) for document in documents])
    expected = np.zeros(len(PASSAGES))
    for word in words(query):
        count = sum(word in document for document in documents)
        idf = math.log(1 + (len(PASSAGES) - count + 0.5) / (count + 0.5))
        for row, document in enumerate(documents):
            times = document.count(word)
            expected[row] += idf * times / (times + 1.5 * (1 - 0.75 + 0.75 * len(document) / average))
    np.testing.assert_allclose(Bm25(PASSAGES).scores(query), expected, rtol=1e-5)


def test_a_query_without_a_known_word_scores_nothing():
    assert Bm25(PASSAGES).scores("???").tolist() == [0] * 5
    assert Bm25(["", ""]).scores("cat").tolist() == [0, 0]


def test_words_of_many_scripts():
    assert words("The Cat's 3.5 naïve") == ["the", "cat", "s", "3", "5", "naïve"]
    assert words("中文 test字") == ["中", "文", "test", "字"]
    assert words("かな한국어 кот") == ["か", "な", "한국어", "кот"]
