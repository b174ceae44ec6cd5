"""How a checkpoint wants to be used: pooling, normalisation, prompts, length limit.

The facts stand in the files that sentence-transformers writes beside a model: modules.json, one folder with a
config.json per module, sentence_bert_config.json and config_sentence_transformers.json. Spellings changed over its
versions; all of them are read. What jaxcal does not implement is refused by name, because a vector pooled in another
way than the model was trained for looks healthy and is wrong.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jaxcal.checkpoint.files import SENTENCE_CONFIGS, module_configs, os_errors, read_json, read_json_if_present
from jaxcal.errors import CorruptCheckpoint, UnsupportedCheckpoint

logger = logging.getLogger("jaxcal")

Pooling = Literal["first", "last", "mean"]

POOLING_BY_FAMILY: dict[str, Pooling] = {
    "bert": "mean",
    "roberta": "mean",
    "xlm-roberta": "mean",
    "new": "mean",
    "gte": "mean",
    "qwen3": "last",
}
"""Pooling assumed, without normalisation, where there is no modules.json; the default of sentence-transformers."""

_POOLINGS: dict[str, Pooling] = {"cls": "first", "lasttoken": "last", "mean": "mean"}
_OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_SENSIBLE_LENGTH = 1_000_000_000  # tokenizers without a limit store 1e30


@dataclass(frozen=True)
class EncoderSettings:
    """How to turn token vectors into one vector per text.

    `max_length` is the smallest limit the files give (None if they give none), special tokens included, and
    `max_length_source` the place it comes from. `prompts` maps names to texts; `default_prompt_name`, if any, is one
    of them. With `include_prompt` false the prompt's tokens do not take part in pooling: jaxcal cannot leave them out,
    so such a checkpoint is loaded only if its own prompts are empty, and a caller's prompt must be refused. `lowercase`
    asks for lower-casing on top of what the tokenizer does. `truncate_dim` is the number of leading dimensions the
    checkpoint wants kept.
    """

    pooling: Pooling
    normalize: bool
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    include_prompt: bool = True
    max_length: int | None = None
    max_length_source: str | None = None
    lowercase: bool = False
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] = "cosine"
    truncate_dim: int | None = None


@os_errors()
def read_modules(
    folder: str | os.PathLike[str], config: Mapping[str, Any], *, position_limit: int | None = None
) -> EncoderSettings:
    """Read the module files of a checkpoint.

    `config` is its config.json: the model type decides where there is no modules.json, the width is checked against
    the pooling module. `position_limit` is the longest input that the model's position table allows.

    Raises `UnsupportedCheckpoint` for modules, poolings and options that jaxcal does not implement,
    `CheckpointNotFound` for a listed module without its configuration, `CorruptCheckpoint` for files that are not
    JSON or hold values of the wrong kind.
    """
    folder = Path(folder)
    if not (folder / "modules.json").is_file():
        return _assumed(folder, config, position_limit)
    pooling_path, normalize = _chain(folder)
    pooling, include_prompt = _read_pooling(folder / pooling_path / "config.json", config)
    transformer_file, transformer = _read_transformer(folder)
    options_file = folder / "config_sentence_transformers.json"
    options = read_json_if_present(options_file)
    prompts, default_prompt_name = _read_prompts(options_file, options)
    spoken = sorted(name for name, text in prompts.items() if text)
    if not include_prompt and pooling != "last" and spoken:
        raise UnsupportedCheckpoint(
            f"{folder / pooling_path}: include_prompt is false, so prompt tokens take no part in {pooling} pooling."
            f" jaxcal cannot leave them out, and there are prompts ({', '.join(spoken)}); use another implementation."
        )
    limit = _whole(transformer_file, transformer, "max_seq_length")
    max_length, source = _effective_length(folder, transformer_file.name, limit, position_limit)
    return EncoderSettings(
        pooling=pooling,
        normalize=normalize,
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        include_prompt=include_prompt,
        max_length=max_length,
        max_length_source=source,
        lowercase=_flag(transformer_file, transformer, "do_lower_case", False),
        similarity=_read_similarity(options_file, options),
        truncate_dim=_whole(options_file, options, "truncate_dim"),
    )


def _assumed(folder: Path, config: Mapping[str, Any], position_limit: int | None) -> EncoderSettings:
    family = config.get("model_type")
    if family not in POOLING_BY_FAMILY:
        raise UnsupportedCheckpoint(
            f"{folder} has no modules.json, and for model type {family!r} no pooling is known; add a modules.json that"
            f" names it, or use one of: {', '.join(POOLING_BY_FAMILY)}."
        )
    pooling = POOLING_BY_FAMILY[family]
    unread = [name for name in (*SENTENCE_CONFIGS, "config_sentence_transformers.json") if (folder / name).is_file()]
    doubt = f" {', '.join(unread)} there not read: an incomplete copy?" if unread else ""
    guess = f"assuming {pooling} pooling without normalisation, as is usual for model type {family!r}."
    logger.warning("%s has no modules.json: %s%s", folder, guess, doubt)
    max_length, source = _effective_length(folder, "", None, position_limit)
    return EncoderSettings(pooling, normalize=False, max_length=max_length, max_length_source=source)


def _chain(folder: Path) -> tuple[str, bool]:
    """The pooling module's path, and whether a Normalize follows, from a chain Transformer, Pooling[, Normalize]."""
    file = folder / "modules.json"
    entries = read_json(file, list)
    module_configs(file)  # refuses entries without a path, and paths that leave the folder
    kinds = []
    for entry in entries:
        kind = str(entry.get("type"))
        package, _, name = kind.rpartition(".")
        if package.split(".")[0] != "sentence_transformers":
            raise UnsupportedCheckpoint(f"{file} asks for code of its own, {kind}; jaxcal runs no code of checkpoints.")
        if name not in ("Transformer", "Pooling", "Normalize"):
            raise UnsupportedCheckpoint(
                f"{file} lists a module {name} ({kind}); jaxcal implements Transformer, Pooling and Normalize only."
            )
        kinds.append(name)
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedCheckpoint(
            f"{file} chains {' -> '.join(kinds) or 'nothing'}; jaxcal implements Transformer -> Pooling, then"
            " Normalize or nothing."
        )
    if entries[0]["path"].strip("./"):
        raise UnsupportedCheckpoint(
            f"{file} keeps the encoder in the subfolder {entries[0]['path']}; move its files beside modules.json and"
            ' set its "path" to "".'
        )
    if len(entries) == 3:
        _check_normalize(folder / entries[2]["path"] / "config.json")
    return entries[1]["path"], len(entries) == 3


def _check_normalize(file: Path) -> None:
    settings = read_json_if_present(file)  # old versions write none
    for key in ("module_input_name", "module_output_name"):
        value = settings.get(key)
        if value not in (None, "sentence_embedding"):
            raise UnsupportedCheckpoint(f"{file}: {key} is {value!r}; jaxcal normalises the pooled vector only.")


def _read_pooling(file: Path, config: Mapping[str, Any]) -> tuple[Pooling, bool]:
    settings = read_json(file)
    width = settings.get("embedding_dimension", settings.get("word_embedding_dimension"))
    hidden = config.get("hidden_size")
    if width is not None and hidden is not None and width != hidden:
        raise UnsupportedCheckpoint(f"{file} pools vectors of width {width}, but config.json has hidden_size {hidden}.")
    mode = _pooling_mode(file, settings)
    if mode not in _POOLINGS:
        raise UnsupportedCheckpoint(
            f"{file} asks for {mode!r} pooling; jaxcal implements {', '.join(_POOLINGS)} (first token, last, mean)."
        )
    widths = {"embedding_dimension", "word_embedding_dimension"}
    _warn_unknown(file, settings, {*_OLD_POOLINGS, *widths, "pooling_mode", "include_prompt"})
    return _POOLINGS[mode], _flag(file, settings, "include_prompt", True)


def _pooling_mode(file: Path, settings: Mapping[str, Any]) -> str:
    """The one mode that is on: pooling_mode if it is there, as the newer writer puts it, else the old switches."""
    modes = settings.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_POOLINGS.items() if _flag(file, settings, key, False)]
        if not modes:
            logger.warning("%s switches no pooling mode on; taking mean, as sentence-transformers does.", file)
            return "mean"
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(isinstance(mode, str) for mode in modes):
        raise CorruptCheckpoint(f"{file}: pooling_mode is {modes!r}; it must be the name of a mode.")
    if len(modes) > 1:
        raise UnsupportedCheckpoint(f"{file} concatenates several poolings, {' + '.join(modes)}; jaxcal does one.")
    return modes[0]


def _read_transformer(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file with the encoder module's options, under any of its names, and its content (empty if there is none)."""
    file = next((folder / name for name in SENTENCE_CONFIGS if (folder / name).is_file()), folder / SENTENCE_CONFIGS[0])
    options = read_json_if_present(file)
    expected = {
        "transformer_task": ("feature-extraction",),
        "module_output_name": ("token_embeddings",),
        "query_length": (),
        "document_length": (),
        "query_expansion": (),
        "processing_kwargs": ({},),
    }
    for key, values in expected.items():
        value = options.get(key)
        if value is not None and value not in values:
            raise UnsupportedCheckpoint(f"{file}: {key} is {value!r}, which jaxcal does not implement; remove it.")
    ways = options.get("modality_config", {"text": {}})
    text = ways.get("text") if isinstance(ways, dict) else None
    if not isinstance(text, dict) or text.get("method_output_name", "last_hidden_state") != "last_hidden_state":
        raise UnsupportedCheckpoint(f"{file}: modality_config does not take the last hidden state of text ({ways!r}).")
    # unpad_inputs chooses between two ways to compute the same thing.
    _warn_unknown(file, options, {*expected, "modality_config", "max_seq_length", "do_lower_case", "unpad_inputs"})
    return file, options


def _read_prompts(file: Path, options: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    """Prompts by name, null ones as "", and the default's name.

    A null prompt is a place that the caller may fill; left alone it means no prompt, like a deliberate "". The names
    query and document are known to every model, so a default may point to them although the file does not list them.
    """
    kind = options.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise UnsupportedCheckpoint(f"{file}: model_type is {kind!r}; jaxcal loads models of type SentenceTransformer.")
    prompts = options.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(text is None or isinstance(text, str) for text in prompts.values()):
        raise CorruptCheckpoint(f"{file}: prompts must map names to texts, not {prompts!r}.")
    prompts = {name: text or "" for name, text in prompts.items()}
    default = options.get("default_prompt_name")
    if default in ("query", "document"):
        prompts.setdefault(default, "")
    if default is not None and default not in prompts:
        names = ", ".join(prompts) or "none"
        raise CorruptCheckpoint(f"{file}: default_prompt_name {default!r} is not one of its prompts ({names}).")
    known = {"model_type", "__version__", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"}
    _warn_unknown(file, options, {*known, "requirements"})
    return prompts, default


def _read_similarity(file: Path, options: Mapping[str, Any]) -> Any:
    name = options.get("similarity_fn_name") or "cosine"
    if name not in _SIMILARITIES:
        raise UnsupportedCheckpoint(f"{file}: similarity_fn_name is {name!r}; jaxcal knows {', '.join(_SIMILARITIES)}.")
    return name


def _effective_length(
    folder: Path, transformer_file: str, limit: int | None, position_limit: int | None
) -> tuple[int | None, str | None]:
    file = folder / "tokenizer_config.json"
    stored = read_json_if_present(file).get("model_max_length")
    if stored is not None and (isinstance(stored, bool) or not isinstance(stored, int | float) or not stored >= 1):
        raise CorruptCheckpoint(f"{file}: model_max_length is {stored!r}; it must be a positive number.")
    limits = [
        (limit, f"max_seq_length in {transformer_file}"),
        (int(stored) if stored is not None and stored < _SENSIBLE_LENGTH else None, "model_max_length in " + file.name),
        (position_limit, "the model's position table"),
    ]
    known = [(length, source) for length, source in limits if length is not None]
    if not known:
        return None, None
    return min(known, key=lambda pair: pair[0])


def _whole(file: Path, options: Mapping[str, Any], key: str) -> int | None:
    value = options.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise CorruptCheckpoint(f"{file}: {key} is {value!r}; it must be a positive whole number or null.")
    return value


def _flag(file: Path, options: Mapping[str, Any], key: str, default: bool) -> bool:
    value = options.get(key, default)
    if not isinstance(value, bool):
        raise CorruptCheckpoint(f"{file}: {key} is {value!r}; it must be true or false.")
    return value


def _warn_unknown(file: Path, options: Mapping[str, Any], known: Iterable[str]) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        logger.warning("%s has fields that jaxcal does not know and does not apply: %s.", file, ", ".join(unknown))
