"""Buckets, batches and padding: every text once, no batch too large, little padding, few shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcal.batching import Batch, Statistics, bucket, pad, plan_batches


def test_the_grid_of_buckets():
    assert [bucket(n) for n in (1, 8, 9, 64, 65, 72, 73, 128, 129, 144, 145, 512, 513, 1000, 1024, 1025)] == [
        *(8, 8, 16, 64, 72, 72, 80, 128, 144, 144, 160, 512, 576, 1024, 1024, 1152)
    ]


def test_buckets_never_cut_never_fall_and_stay_close():
    before = 0
    for length in range(1, 9000):
        found = bucket(length)
        assert length <= found and before <= found and found % 8 == 0
        assert found - length < max(8, length / 8)
        assert bucket(found) == found  # a bucket is its own bucket
        before = found
    octaves = [len({bucket(length) for length in range(low + 1, 2 * low + 1)}) for low in (64, 512, 4096)]
    assert octaves == [8, 8, 8]


@pytest.mark.parametrize("limit", [1, 7, 8, 100, 512, 514, 1200])
def test_buckets_respect_the_limit_of_the_model(limit):
    for length in range(1, limit + 1):
        assert length <= bucket(length, limit) <= limit
        assert bucket(length, limit) in (bucket(length), limit)


@given(
    st.lists(st.integers(1, 3000), max_size=60),
    st.integers(1, 20000),
    st.sampled_from([None, 3000, 3001]),
)
@settings(max_examples=200, deadline=None)
def test_plans(lengths, batch_tokens, limit):
    batches = plan_batches(lengths, batch_tokens, limit)
    placed = [text for batch in batches for text in batch.texts]
    assert sorted(placed) == list(range(len(lengths)))  # every text exactly once
    assert [lengths[text] for text in placed] == sorted(lengths, reverse=True)
    for batch in batches:
        rows, length = batch.shape
        assert len(batch.texts) <= rows < 2 * len(batch.texts)
        assert max(lengths[text] for text in batch.texts) <= length <= (limit or 10**9)
        assert rows * length <= batch_tokens or rows == 1
    assert len({batch.shape for batch in batches}) <= len({bucket(length, limit) for length in lengths}) + 1


def test_equal_lengths_keep_their_order():
    assert [batch.texts for batch in plan_batches([5, 5, 5, 5, 5], 16)] == [(0, 1), (2, 3), (4,)]


def test_no_texts_make_no_batches():
    assert plan_batches([], 100) == []


def log_normal_lengths(count, rng):
    return np.clip(np.exp(rng.normal(4.2, 0.8, count)), 5, 512).astype(int).tolist()


@pytest.mark.parametrize(("batch_tokens", "count"), [(2048, 2000), (32768, 32000)])
@pytest.mark.parametrize("seed", range(3))
def test_padding_on_a_corpus_of_mixed_lengths(batch_tokens, count, seed):
    """The budgets on texts of 5 to 512 tokens: at most 8 % padding, at most one shape per bucket.

    A batch spans a range of lengths, so batches sixteen times larger need a corpus sixteen times larger for it.
    """
    lengths = log_normal_lengths(count, np.random.default_rng(seed))
    batches = plan_batches(lengths, batch_tokens, 512)
    computed = sum(batch.shape[0] * batch.shape[1] for batch in batches)
    padding = 1 - sum(lengths) / computed
    print(f"{batch_tokens}: padding {padding:.3f}, {len({batch.shape for batch in batches})} shapes")
    assert padding <= 0.08
    assert len({batch.shape for batch in batches}) <= len({bucket(length, 512) for length in lengths})


def test_padding_puts_real_tokens_first():
    ids = [np.array([5, 6, 7]), np.array([8])]
    tokens, mask = pad(ids, Batch((1, 0), (4, 5)), pad_token=1)
    assert tokens.dtype == np.int32 and mask.dtype == bool
    assert tokens.tolist() == [[8, 1, 1, 1, 1], [5, 6, 7, 1, 1], [1] * 5, [1] * 5]
    # A row that stands for no text has one token, so that nothing divides by zero.
    assert mask.astype(int).tolist() == [[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]


def test_share_of_padding():
    run = Statistics(texts=2, tokens=90, computed_tokens=120)
    assert run.padding == 0.25
    assert Statistics().padding == 0.0
