"""The calibrated forward pass against a torch model whose attention rows are edited by a rule written out in numpy.

The grid covers families, poolings, special-token policies, isolation, layers, strengths (one number, per layer, per
layer and head) and basket sizes, on texts around every boundary of the rule: content of B - 1, B and B + 1 tokens, a
partial last basket, one token, texts of one basket and of many.
"""

import jax
import numpy as np
import pytest

pytest.importorskip("torch")

from reference import calibrated, default_isolation, pad_ids, reference_vectors, torch_model

import jaxcal

TOLERANCE = 1e-5
SHAPE = (8, 640)  # one shape for every batch: one program per static choice

ENCODERS = {
    "bert first": ("bert", "first", {}),
    "bert mean": ("bert", "mean", {}),
    "xlm-roberta first": ("xlm-roberta", "first", {}),
    "gte-original first": ("gte-original", "first", {}),
    "gte mean": ("gte", "mean", {}),
    "qwen3 last": ("qwen3", "last", {}),
    "qwen3 mean": ("qwen3", "mean", {"num_hidden_layers": 3}),
}
# special_tokens, isolate, layers; the models have 4 layers, or 3.
PAPER = ("equal", None, "last-50%")
STATIC = [
    PAPER,
    ("keep", None, "all"),
    ("equal", ("first",), "all"),
    ("keep", ("first",), "last"),
    ("equal", (), 2),
    ("keep", ("last",), 1),
    ("keep", (), "all"),
]
FULL, SOME = STATIC, [PAPER, STATIC[1], STATIC[3]]
GRID = [
    (name, *static)
    for name in ENCODERS
    for static in (FULL if name in ("bert first", "bert mean", "qwen3 last") else SOME)
]
# Basket size and strength; "layers" and "heads" stand for arrays made to the number of calibrated layers and heads.
TRACED = [(3, 0.5), (16, "heads"), (32, 1), (32, "layers"), (128, 0.3), (700, 1.0)]


@pytest.fixture(scope="session")
def models(written):
    made = {}

    def model(name):
        if name not in made:
            kind, pooling, options = ENCODERS[name]
            made[name] = torch_model(written(kind, pooling, **options))
        return made[name]

    return model


def lengths_around(basket_size, isolated):
    """Eight lengths: the boundaries of the rule, one full text, a partial last basket, one or two tokens."""
    edge = min(basket_size, 128) + isolated
    return [600, 1 + basket_size % 2, edge - 1, edge, edge + 1, 2 * edge + 3, 200, 5]


def strength_of(kind, layers, heads):
    rng = np.random.default_rng(layers)
    if kind == "heads":
        return rng.uniform(0, 1, (layers, heads)).astype(np.float32)
    return rng.uniform(0, 1, layers).astype(np.float32) if kind == "layers" else kind


def make_rule(static, traced, layers, heads):
    special_tokens, isolate, which = static
    count = {"last-50%": layers // 2, "last": 1, "all": layers}.get(which, which)
    rule = {"special_tokens": special_tokens, "isolate": isolate, "layers": which, "basket_size": traced[0]}
    return {**rule, "strength": strength_of(traced[1], count, heads)}


def texts_for(written, rule, seed=0):
    isolate = default_isolation(written.pooling) if rule["isolate"] is None else rule["isolate"]
    rng = np.random.default_rng(seed)
    return [written.ids(rng, length) for length in lengths_around(rule["basket_size"], len(isolate))]


@pytest.mark.parametrize(("name", "special_tokens", "isolate", "layers"), GRID)
def test_grid(written, loaded, models, name, special_tokens, isolate, layers):
    kind, pooling, options = ENCODERS[name]
    checkpoint, encoder = written(kind, pooling, **options), loaded(kind, pooling, **options)
    worst, moved, before = 0.0, 0.0, encoder.compilations
    for traced in TRACED:
        rule = make_rule((special_tokens, isolate, layers), traced, encoder.config.layers, encoder.config.heads)
        ids = texts_for(checkpoint, rule)
        expected = reference_vectors(models(name), ids, pooling, rule=rule)
        got = encoder.encode_ids(ids, calibration=jaxcal.Calibration(**rule), batch_tokens=SHAPE[0] * SHAPE[1])
        assert encoder.last_run.computed_tokens == SHAPE[0] * SHAPE[1]
        difference = np.abs(got - expected).max(axis=1)
        assert difference.max() <= TOLERANCE, (traced, difference)
        worst = max(worst, difference.max())
        if traced[0] in (3, 700):  # 700: larger than every text
            plain = encoder.encode_ids(ids, batch_tokens=SHAPE[0] * SHAPE[1])
            moved = max(moved, np.abs(plain - got).max())
            assert traced[0] == 3 or np.abs(got - plain).max() <= 1e-6
    print(f"largest difference {worst:.2e}; calibration moves vectors by {moved:.2e}")
    assert moved > 100 * TOLERANCE  # else the comparison would say nothing
    assert encoder.compilations - before <= 2  # one for the plain program, one for all strengths and basket sizes


@pytest.mark.parametrize(
    ("name", "static"),
    [
        ("qwen3 last", PAPER),
        ("gte-original first", PAPER),
        ("bert mean", PAPER),
        ("qwen3 mean", ("keep", ("first", "last"), "all")),
    ],
)
def test_left_padding(written, loaded, models, name, static):
    """A reference that runs on a left-padded batch, and our pure function on left-padded input with odd padding."""
    kind, pooling, options = ENCODERS[name]
    checkpoint, encoder = written(kind, pooling, **options), loaded(kind, pooling, **options)
    calibrate = jax.jit(encoder.embed)
    for traced in ((16, 0.7), (32, 0.5)):
        rule = make_rule(static, traced, encoder.config.layers, encoder.config.heads)
        ids = texts_for(checkpoint, rule)
        expected = reference_vectors(models(name), ids, pooling, rule=rule, side="left")
        assert np.abs(expected - reference_vectors(models(name), ids, pooling, rule=rule)).max() <= TOLERANCE
        tokens, mask = pad_ids(ids, encoder.config.pad_token, "left", to=611)
        got = np.asarray(calibrate(encoder.params, tokens, mask, jaxcal.Calibration(**rule)))
        assert np.abs(got - expected).max() <= TOLERANCE


@pytest.mark.parametrize("name", ["bert first", "gte-original first", "qwen3 last", "bert mean"])
def test_half_precision(written, loaded, models, name):
    """Calibration is float32 whatever the compute type: half precision stays near the float32 reference."""
    kind, pooling, options = ENCODERS[name]
    checkpoint = written(kind, pooling, **options)
    config = loaded(kind, pooling, **options).config
    rule = make_rule(PAPER, (16, 1.0), config.layers, config.heads)
    ids = texts_for(checkpoint, rule)
    half = jaxcal.load(checkpoint.folder, dtype="bfloat16")
    got = half.encode_ids(ids, calibration=jaxcal.Calibration(**rule), batch_tokens=SHAPE[0] * SHAPE[1])
    cosines = np.sum(got * reference_vectors(models(name), ids, pooling, rule=rule), axis=1)
    print(f"smallest cosine {cosines.min():.5f}")
    assert np.isfinite(got).all() and cosines.min() >= 0.999


def test_one_layer_model(tmp_path):
    """Half of one layer is one layer, and it is the last, of which only the pooled row is computed."""
    from checkpoints import write_checkpoint

    checkpoint = write_checkpoint(tmp_path, "gte", "first", num_hidden_layers=1)
    rule = {"strength": 1.0, "basket_size": 16, "layers": "last-50%"}
    ids = texts_for(checkpoint, {**rule, "isolate": None})
    got = jaxcal.load(tmp_path).encode_ids(ids, calibration=jaxcal.Calibration(**rule), batch_tokens=10**6)
    assert np.abs(got - reference_vectors(torch_model(checkpoint), ids, "first", rule=rule)).max() <= TOLERANCE


def test_the_reference_itself(written, models):
    """Strength 0 is the plain torch model, in transformers' own attention too; a strength moves what is long enough."""
    checkpoint, model = written("bert", "first"), models("bert first")
    rng = np.random.default_rng(0)
    ids = [checkpoint.ids(rng, length) for length in (17, 18, 100)]
    model.set_attn_implementation("sdpa")
    plain = reference_vectors(model, ids, "first")
    model.set_attn_implementation("edited-eager")
    none = reference_vectors(model, ids, "first", rule={"strength": 0.0, "basket_size": 16})
    some = reference_vectors(model, ids, "first", rule={"strength": 0.5, "basket_size": 16})
    assert np.abs(none - plain).max() < 1e-6
    moved = np.abs(some - plain).max(axis=1)
    assert moved[0] < 1e-6 and moved[1:].min() > 1e-3  # 17 tokens have 15 of content


def test_the_written_out_rule():
    """Rows that can be checked by eye: four content tokens in baskets of two and one partial, padding at the left."""
    row = np.array([0.0, 0.5, 0.1, 0.1, 0.2, 0.0, 0.1])
    valid = np.array([False, True, True, True, True, False, True])

    def share(**options):
        settings = {"size": 2, "strength": 1.0, "isolate": (), "special_tokens": "equal", **options}
        return calibrated(row, valid, **settings).round(9).tolist()

    third = round(1 / 3, 9)
    assert share(isolate=("first", "last")) == [0, 0.25, 0.125, 0.125, 0.25, 0, 0.25]
    assert share(isolate=("first",)) == [
        0,
        third,
        round(1 / 6, 9),
        round(1 / 6, 9),
        round(2 / 9, 9),
        0,
        round(1 / 9, 9),
    ]
    assert share(isolate=("first",), special_tokens="keep") == [
        0,
        0.5,
        0.125,
        0.125,
        round(1 / 6, 9),
        0,
        round(1 / 12, 9),
    ]
    assert share(isolate=("first", "last"), special_tokens="keep") == [0, 0.5, 0.0625, 0.0625, 0.125, 0, 0.25]
    assert share(strength=0.0) == row.tolist()
