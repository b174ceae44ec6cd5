"""The store of vectors: nothing is encoded twice, an interrupted run goes on with the same bits, damage is told."""

import numpy as np
import pytest

import jaxcal
from jaxcal import Calibration
from jaxcal.errors import InvalidInput, InvalidSetting
from jaxcal.evaluation import vectors
from jaxcal.evaluation.segments import encode_segments, special_tokens
from jaxcal.evaluation.vectors import VectorStore, fingerprint

RNG = np.random.default_rng(0)
TEXTS = [" ".join(f"w{word}" for word in RNG.integers(0, 70, length)) for length in RNG.integers(1, 60, 40)]
SMALL = Calibration(basket_size=16)


@pytest.fixture
def encoder(loaded):
    return loaded("xlm-roberta", "first", max_position_embeddings=90)


@pytest.fixture
def counted(encoder, monkeypatch):
    """How many texts each call encodes."""
    calls = []
    encode = type(encoder).encode

    def counting(self, texts, **options):
        calls.append(len(texts))
        return encode(self, texts, **options)

    monkeypatch.setattr(type(encoder), "encode", counting)
    return calls


@pytest.fixture
def chunks(monkeypatch):
    monkeypatch.setattr(vectors, "_CHUNK", 400)


def bits(encoded):
    return [array.tobytes() for array in encoded]


def test_vectors_are_those_of_the_encoder_in_the_given_order(encoder, tmp_path, chunks):
    store = VectorStore(tmp_path, encoder)
    texts = [*TEXTS, TEXTS[3], ""]
    for calibration in (None, SMALL):
        got = store.encode(texts, prompt="w1 w2 ", calibration=calibration)
        expected = encoder.encode(texts, prompt="w1 w2 ", calibration=calibration)
        np.testing.assert_allclose(got.vectors, expected, rtol=0, atol=5e-6)
        np.testing.assert_array_equal(got.tokens, encoder.last_run.lengths)
        assert not got.cut.any()
    assert got.vectors.dtype == np.float32


def test_nothing_is_encoded_twice(encoder, tmp_path, counted, chunks):
    first = VectorStore(tmp_path, encoder).encode(TEXTS[:30])
    assert sum(counted) == len(set(TEXTS[:30])) and len(counted) > 3
    counted.clear()
    again = VectorStore(tmp_path, encoder).encode(TEXTS[:30][::-1])
    assert counted == []
    np.testing.assert_array_equal(again.vectors, first.vectors[::-1])
    VectorStore(tmp_path, encoder).encode(TEXTS)
    assert sum(counted) == len(set(TEXTS)) - len(set(TEXTS[:30])), "only what is new"


def test_the_order_of_a_data_set_changes_no_bit(encoder, tmp_path, chunks):
    forth = VectorStore(tmp_path / "forth", encoder).encode(TEXTS)
    back = VectorStore(tmp_path / "back", encoder).encode(TEXTS[::-1])
    np.testing.assert_array_equal(back.vectors[::-1], forth.vectors)
    names = [path.name for path in sorted((tmp_path / "forth").rglob("*.npy"))]
    for name in names:
        (one,), (other,) = (list((tmp_path / place).rglob(name)) for place in ("forth", "back"))
        assert one.read_bytes() == other.read_bytes()


def test_texts_below_one_basket_keep_their_plain_vectors(encoder, tmp_path, counted):
    store = VectorStore(tmp_path, encoder)
    plain = store.encode(TEXTS)
    counted.clear()
    calibrated = store.encode(TEXTS, calibration=SMALL)
    short = plain.tokens < 16 + 2
    assert 0 < short.sum() < len(TEXTS)
    assert sum(counted) == (~short).sum()
    np.testing.assert_array_equal(calibrated.vectors[short], plain.vectors[short])
    assert (calibrated.vectors[~short] != plain.vectors[~short]).any(axis=1).all()


def test_what_changes_a_vector_makes_a_space(encoder, loaded, tmp_path):
    def spaces():
        return len(list(tmp_path.glob("*/space.json")))

    other = loaded("xlm-roberta", "mean", max_position_embeddings=90)
    for count, (which, options) in enumerate(
        [
            (encoder, {}),
            (encoder, {"prompt": "w1 "}),
            (encoder, {"segment": 8}),
            (encoder, {"segment": 9}),
            (other, {}),
        ],
        start=1,
    ):
        VectorStore(tmp_path, which).encode(TEXTS[:3], **options)
        assert spaces() == count
    long = [text for text in TEXTS if len(text.split()) > 30][:2]
    VectorStore(tmp_path, encoder).encode(long)
    changes = [
        {},
        {"strength": 0.4},
        {"basket_size": 17},
        {"layers": 2},
        {"isolate": ("first",)},
        {"special_tokens": "keep"},
    ]
    for count, change in enumerate(changes, start=6):
        VectorStore(tmp_path, encoder).encode(long, calibration=SMALL.replace(**change))
        assert spaces() == count, change
    VectorStore(tmp_path, encoder).encode(long, calibration=SMALL.replace(layers="last-50%"))
    assert spaces() == 11, "the same calibration"


def test_a_shorter_limit_is_another_space_and_tells_what_was_cut(written, tmp_path):
    folder = written("xlm-roberta", "first", max_position_embeddings=90).folder
    whole, short = jaxcal.load(folder), jaxcal.load(folder, max_length=10)
    assert fingerprint(whole) == fingerprint(short)
    VectorStore(tmp_path, whole).encode(TEXTS)
    got = VectorStore(tmp_path, short).encode(TEXTS)
    np.testing.assert_array_equal(got.cut, [len(text.split()) > 8 for text in TEXTS])
    assert got.tokens.max() == 10


def test_other_weights_have_another_fingerprint(written, loaded):
    one, other = (loaded("xlm-roberta", "first", max_position_embeddings=90, seed=seed) for seed in (0, 1))
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize("stop", [1, 2, 5, 8])
def test_an_interrupted_run_goes_on_with_the_same_bits(encoder, tmp_path, chunks, monkeypatch, stop):
    """Stopped at each file it writes: the vectors of a chunk, its texts, and so on."""
    expected = VectorStore(tmp_path / "whole", encoder).encode(TEXTS, calibration=SMALL)
    save, written = np.save, []

    def failing(path, *arguments, **options):
        written.append(path)
        if len(written) == stop:
            path.write_bytes(b"half")
            raise KeyboardInterrupt
        save(path, *arguments, **options)

    monkeypatch.setattr(vectors.np, "save", failing)
    with pytest.raises(KeyboardInterrupt):
        VectorStore(tmp_path / "broken", encoder).encode(TEXTS, calibration=SMALL)
    monkeypatch.setattr(vectors.np, "save", save)
    space = next(iter((tmp_path / "broken").glob("*/space.json"))).parent
    (space / ".000000.vectors-0123456789abcdef.npy").write_bytes(b"of a killed run")
    again = VectorStore(tmp_path / "broken", encoder).encode(TEXTS, calibration=SMALL)
    assert bits(again) == bits(expected)
    assert {path.name for path in (tmp_path / "broken").glob("*/.*")} == {".lock"}


def test_two_runs_do_not_write_to_one_space(encoder, tmp_path):
    store = VectorStore(tmp_path, encoder)
    with store._space("", None, None), pytest.raises(InvalidSetting, match="another run"):
        VectorStore(tmp_path, encoder).encode(TEXTS[:2])
    VectorStore(tmp_path, encoder).encode(TEXTS[:2])


def test_damage_is_told_by_file(encoder, tmp_path, chunks):
    store = VectorStore(tmp_path, encoder)
    store.encode(TEXTS)
    space = next(tmp_path.glob("*/space.json")).parent
    vectors_file, texts_file = space / "000001.vectors.npy", space / "000001.texts.npy"
    good = vectors_file.read_bytes()
    vectors_file.write_bytes(good[:100])
    with pytest.raises(InvalidInput, match=r"000001.vectors.npy cannot be read.*delete"):
        store.encode(TEXTS)
    np.save(vectors_file, np.zeros((1, 2), np.float32))
    with pytest.raises(InvalidInput, match=r"000001.vectors.npy does not fit"):
        store.encode(TEXTS)
    vectors_file.write_bytes(good)
    np.save(texts_file, np.zeros(3))
    with pytest.raises(InvalidInput, match=r"000001.texts.npy is not of this version"):
        store.encode(TEXTS)
    texts_file.unlink()
    with pytest.raises(InvalidInput, match=r"000001.texts.npy is missing"):
        store.encode(TEXTS)


# --- segments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "pooling"), [("xlm-roberta", "first"), ("bert", "mean"), ("qwen3", "last")])
@pytest.mark.parametrize(("prompt", "normalize"), [("", True), ("w9 w8 ", False)])
def test_a_segment_average_by_its_definition(loaded, kind, pooling, prompt, normalize):
    """Segments written out as texts of their own: words are tokens here. Each counts alike, however long its vector."""
    encoder = loaded(kind, pooling, normalize=normalize)
    texts = [text for text in TEXTS if text][:12]
    got, tokens, cut = encode_segments(encoder, texts, 7, prompt)
    for row, text in enumerate(texts):
        words = text.split()
        parts = [" ".join(words[start : start + 7]) for start in range(0, len(words), 7)]
        each = encoder.encode(parts, prompt=prompt)
        mean = (each / np.linalg.norm(each, axis=1, keepdims=True)).mean(0)
        np.testing.assert_allclose(got[row], mean / np.linalg.norm(mean), rtol=0, atol=5e-6)
        assert tokens[row] == len(encoder.tokenize([text], prompt=prompt)[0]) and not cut[row]


def test_special_tokens_of_each_family(loaded):
    assert [len(part) for part in special_tokens(loaded("bert", "mean"))] == [1, 1]
    assert [len(part) for part in special_tokens(loaded("qwen3", "last"))] == [0, 1]


def test_empty_and_cut_texts_have_an_average_too(written):
    encoder = jaxcal.load(written("bert", "mean").folder, max_length=12)
    long = " ".join(f"w{n}" for n in range(30))
    got, tokens, cut = encode_segments(encoder, ["", long], 4)
    assert tokens.tolist() == [2, 12] and cut.tolist() == [False, True]
    np.testing.assert_allclose(got[0], encoder.encode(""), atol=5e-6)
    expected, _, _ = encode_segments(encoder, [" ".join(long.split()[:10])], 4)
    np.testing.assert_allclose(got[1], expected[0], atol=5e-6)


def test_segments_that_do_not_fit_are_refused(written):
    encoder = jaxcal.load(written("bert", "mean").folder, max_length=12)
    with pytest.raises(InvalidSetting, match="choose smaller segments"):
        encode_segments(encoder, ["w1"], 11)
    with pytest.raises(InvalidSetting, match="at least one"):
        encode_segments(encoder, ["w1"], 0)
