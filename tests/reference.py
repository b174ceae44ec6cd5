"""What jaxcal is compared with: models of transformers, and the calibration rule written out token by token.

Nothing here uses jaxcal. `calibrated` follows arXiv 2606.02737 on softmax rows that are at hand, and
`reference_vectors` runs a torch model whose attention rows are edited by it.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from checkpoints import Written, to_torch

ATTENTION = "edited-eager"


def units(valid: Sequence[bool], size: int, isolate: Sequence[str]) -> tuple[list[int], list[list[int]], list[int]]:
    """Token numbers: the isolated first one, the content baskets in order, the isolated last one."""
    real = [token for token, flag in enumerate(valid) if flag]
    front, back = [], []
    if "first" in isolate and real:
        front, real = real[:1], real[1:]
    if "last" in isolate and real:
        real, back = real[:-1], real[-1:]
    baskets: list[list[int]] = []
    for token in real:
        if not baskets or len(baskets[-1]) == size:
            baskets.append([])
        baskets[-1].append(token)
    return front, baskets, back


def calibrated(
    rows: np.ndarray, valid: Sequence[bool], size: int, strength: Any, isolate: Sequence[str], special_tokens: str
) -> np.ndarray:
    """Softmax rows [..., T] blended with their calibrated ones, in float64; `strength` is broadcast to [..., 1]."""
    rows = np.where(valid, np.asarray(rows, np.float64), 0.0)
    front, baskets, back = units(valid, size, isolate)
    equal = 1 / max(len(front) + len(baskets) + len(back), 1)
    shares = [np.full(rows.shape[:-1], equal) for _ in (*front, *baskets, *back)]
    if special_tokens == "keep" and front:
        own = rows[..., front[0]]
        rest = np.maximum(1 - own - (equal if back else 0), 0) / max(len(baskets), 1)
        shares = [own, *(rest for _ in baskets), *shares[1 + len(baskets) :]]
    target = np.zeros_like(rows)
    for unit, share in zip(([token] for token in front), shares[: len(front)], strict=True):
        target[..., unit] = _share_out(rows[..., unit], share)
    for unit, share in zip([*baskets, *([token] for token in back)], shares[len(front) :], strict=True):
        target[..., unit] = _share_out(rows[..., unit], share)
    total = target.sum(-1, keepdims=True)
    target = np.divide(target, total, out=np.zeros_like(target), where=total > 0)
    strength = np.asarray(strength, np.float64)
    return (1 - strength) * rows + strength * target


def _share_out(part: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Bring a unit to its share, proportions inside kept; a unit without mass stays empty."""
    mass = part.sum(-1, keepdims=True)
    return np.divide(part * share[..., None], mass, out=np.zeros_like(part), where=mass > 0)


def default_isolation(pooling: str) -> tuple[str, ...]:
    return () if pooling == "mean" else ("first", "last")


def calibrated_layers(layers: Any, total: int) -> int:
    """How many layers at the end are meant."""
    return {"last-50%": max(total // 2, 1), "last": 1, "all": total}.get(layers, layers)


def torch_model(written: Written) -> Any:
    """The model of transformers with a checkpoint's tensors, in float32."""
    import torch

    model = empty_model(written.config)
    model.load_state_dict({name: to_torch(tensor) for name, tensor in written.tensors.items()}, strict=True)
    return model.to(torch.float32).eval()


def empty_model(config: Mapping[str, Any]) -> Any:
    """A model of transformers, headless, that computes attention the plain way and lets rows be edited."""
    import transformers
    from transformers.masking_utils import eager_mask

    # Without a mask function of the same name the attention function would get no mask at all.
    transformers.AttentionInterface.register(ATTENTION, _attention)
    transformers.AttentionMaskInterface.register(ATTENTION, eager_mask)
    classes = {"bert": "Bert", "xlm-roberta": "XLMRoberta", "roberta": "Roberta", "gte": "Gte", "qwen3": "Qwen3"}
    name = classes[config["model_type"]]
    settings = getattr(transformers, f"{name}Config")(**config, attn_implementation=ATTENTION)
    # The embedding models have no pooler head.
    options = {} if name == "Qwen3" else {"add_pooling_layer": False}
    return getattr(transformers, f"{name}Model")(settings, **options)


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
    import torch

    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    assert attention_mask is not None or not module.is_causal or query.shape[2] == 1
    edit = getattr(module, "edit", None)
    if edit is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        weights = edit(torch.softmax(scores.double(), dim=-1)).to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


@contextlib.contextmanager
def _edited(model: Any, mask: np.ndarray, pooling: str, rule: Mapping[str, Any] | None) -> Iterator[None]:
    """Let the last layers of a model calibrate their rows, for one batch with this mask."""
    attentions = [module for module in model.modules() if hasattr(module, "scaling") and hasattr(module, "is_causal")]
    assert len(attentions) == model.config.num_hidden_layers
    if rule is None:
        yield
        return
    count = calibrated_layers(rule.get("layers", "last-50%"), len(attentions))
    heads = model.config.num_attention_heads
    strengths = np.asarray(rule["strength"], np.float64)
    strengths = np.broadcast_to(strengths.reshape(strengths.shape + (1,) * (2 - strengths.ndim)), (count, heads))
    isolate = rule.get("isolate")
    isolate = default_isolation(pooling) if isolate is None else isolate
    for module, strength in zip(attentions[-count:], strengths, strict=True):
        module.edit = _row_editor(mask, pooling, strength[:, None], rule, isolate)
    try:
        yield
    finally:
        for module in attentions:
            module.edit = None


def _row_editor(mask: np.ndarray, pooling: str, strength: np.ndarray, rule: Mapping[str, Any], isolate: Sequence[str]):
    def edit(weights):
        rows = weights.numpy()
        for text, valid in enumerate(mask):
            real = np.flatnonzero(valid)
            if len(real) - len(isolate) < rule["basket_size"]:
                continue  # too short: as if there were no calibration
            at = {"first": real[:1], "last": real[-1:], "mean": real}[pooling]
            edited = calibrated(
                rows[text][:, at],
                valid,
                rule["basket_size"],
                strength[..., None],
                isolate,
                rule.get("special_tokens", "equal"),
            )
            rows[text][:, at] = edited
        return weights

    return edit


def pad_ids(ids: Sequence[Sequence[int]], pad: int, side: str = "right", to: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and mask [N, T] of a padded batch."""
    length = max(to, *(len(text) for text in ids))
    tokens = np.full((len(ids), length), pad, np.int32)
    mask = np.zeros((len(ids), length), bool)
    for row, text in enumerate(ids):
        at = slice(length - len(text), None) if side == "left" else slice(0, len(text))
        tokens[row, at], mask[row, at] = text, True
    return tokens, mask


def reference_vectors(
    model: Any,
    ids: Sequence[Sequence[int]],
    pooling: str,
    *,
    rule: Mapping[str, Any] | None = None,
    side: str | None = None,
    normalize: bool = True,
) -> np.ndarray:
    """Vectors [N, D] of a torch model: each text alone, without any padding, or all in one batch padded on a side."""
    if side is None:
        return np.concatenate(
            [reference_vectors(model, [t], pooling, rule=rule, side="right", normalize=normalize) for t in ids]
        )
    import torch

    tokens, mask = pad_ids(ids, model.config.pad_token_id or 0, side)
    options = {}
    if model.config.model_type == "bert" and side == "left":  # its positions know nothing of padding
        options["position_ids"] = torch.from_numpy(np.maximum(np.cumsum(mask, 1) - 1, 0))
    with torch.no_grad(), _edited(model, mask, pooling, rule):
        hidden = model(
            input_ids=torch.from_numpy(tokens).long(), attention_mask=torch.from_numpy(mask).long(), **options
        ).last_hidden_state.numpy()
    hidden = np.asarray(hidden, np.float64)
    rows = []
    for states, valid in zip(hidden, mask, strict=True):
        real = states[valid]
        rows.append({"first": real[0], "last": real[-1], "mean": real.mean(0)}[pooling])
    vectors = np.stack(rows)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize else vectors
