"""Run and qrels files: names, ids that hold white space, and similarities that lose nothing."""

import io

import numpy as np
import pytest

from jaxcal.evaluation.datasets import PositionDataset
from jaxcal.evaluation.search import Run
from jaxcal.evaluation.trec import topic_ids, write_qrels, write_run


def dataset(**changes):
    fields = {
        "name": "d",
        "queries": ("a", "b"),
        "passages": ("x", "y", "z"),
        "groups": ("all",),
        "query": [0, 0, 1],
        "gold": [0, 2, 1],
        "group": [0, 0, 0],
        "query_ids": ("q one", "q2"),
        "passage_ids": ("x%", "y\ty", "zé"),
    }
    return PositionDataset(**(fields | changes))


def test_a_query_with_several_passages_is_a_topic_for_each():
    assert list(topic_ids(dataset())) == ["q%20one/x%25", "q%20one/z\u00e9", "q2"]
    assert list(topic_ids(dataset(), "law/")) == ["law/q%20one/x%25", "law/q%20one/z\u00e9", "law/q2"]


def test_the_lines_of_both_files():
    qrels, run = io.StringIO(), io.StringIO()
    write_qrels(qrels, dataset())
    assert qrels.getvalue() == "q%20one/x%25 0 x%25 1\nq%20one/z\u00e9 0 z\u00e9 1\nq2 0 y%09y 1\n"
    similarities = np.array([[0.5, 0.25], [1 / 3, -0.1], [0.7, -np.inf]], np.float32)
    write_run(run, dataset(), Run(np.array([[1, 0], [2, 1], [1, -1]]), similarities), "my method")
    assert run.getvalue().splitlines() == [
        "q%20one/x%25 Q0 y%09y 1 0.5 my%20method",
        "q%20one/x%25 Q0 x%25 2 0.25 my%20method",
        "q%20one/z\u00e9 Q0 z\u00e9 1 0.333333343 my%20method",
        "q%20one/z\u00e9 Q0 y%09y 2 -0.100000001 my%20method",
        "q2 Q0 y%09y 1 0.699999988 my%20method",
    ]


def test_similarities_come_back_bit_for_bit():
    pytest.importorskip("pytrec_eval")
    values = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    run = io.StringIO()
    write_run(run, dataset(), Run(np.tile([0, 1, 2], (3, 1)), values), "m")
    read = [float(line.split()[4]) for line in run.getvalue().splitlines()]
    np.testing.assert_array_equal(np.array(read, np.float32), values.ravel())
