"""The model section: which decoders there are, and what does not fit together."""

from __future__ import annotations

from dataclasses import replace

from train.spec import mup
from train.spec.config import ModelConfig
from train.spec.counts import head_dim, kv_heads, mlp_width
from train.spec.experts import resolve_experts

SCALED_FROM_A_LENGTH = ("yarn", "llama3")
MOST_LAYERS = 10_000
"""Far above any model; costs are summed layer by layer."""


def resolve_model(model: ModelConfig, sequence_length: int) -> ModelConfig:
    """Return the model section with every derivable None filled; ValueError where values contradict each other."""
    for name in ("width", "layers", "mlp_width", "rope_theta", "init_std"):
        if (value := getattr(model, name)) is not None:
            _check_positive(name, value)
    check_depth(model.layers)
    if model.norm_eps < 0:  # 0 is a matter of train.spec.deprecated
        _check_positive("norm_eps", model.norm_eps)
    head = head_dim(model)
    _check_positive("head_dim", head)
    if head % 2 and model.position == "rope":
        raise ValueError(f"model.head_dim={head} is odd: rotary embedding turns pairs of channels: give an even one")
    if model.width % head:
        raise ValueError(
            f"model.width={model.width} is not a multiple of model.head_dim={head}: "
            f"take width {max(1, round(model.width / head)) * head} or another head_dim"
        )
    heads, groups = model.width // head, kv_heads(model)
    _check_positive("kv_heads", groups)
    if heads % groups:
        allowed = ", ".join(str(count) for count in range(1, heads + 1) if heads % count == 0)
        raise ValueError(
            f"model.kv_heads={groups} does not divide the {heads} query heads (width / head_dim): it may be {allowed}"
        )
    for name in ("attention_softcap", "logit_softcap"):
        if getattr(model, name) < 0:
            raise ValueError(f"model.{name}={getattr(model, name)} is not allowed: a positive cap, or 0 for none")
    _check_window(model)
    model = resolve_experts(model)
    # What is derived is for this width, and at the base width both are the same: two ways of saying one run.
    at = "width" if model.init_std is None or mup.ratio(model) == 1 else model.init_std_at
    std = model.init_std if model.init_std is not None else float(f"{model.width**-0.5:.6g}")
    return replace(
        model,
        head_dim=head,
        kv_heads=groups,
        mlp_width=mlp_width(model),
        init_std=std,
        init_std_at=at,
        mup_base_head_dim=None if model.mup_base_width is None else mup.base_head_dim(model),
        rope_original_length=_original_length(model, sequence_length),
    )


def _check_window(model: ModelConfig) -> None:
    if model.window is not None:
        _check_positive("window", model.window)
    if model.global_every < 0:
        raise ValueError(f"model.global_every={model.global_every} is not allowed: every n-th block, or 0 for none")
    if model.global_every and model.window is None:
        raise ValueError(
            f"model.global_every={model.global_every} needs model.window: without it all blocks see all keys"
        )


def _original_length(model: ModelConfig, sequence_length: int) -> int | None:
    """Return the length before stretching, checked against the other rotary keys."""
    scaling, factor = model.rope_scaling, model.rope_factor
    if scaling != "none" and model.position != "rope":
        raise ValueError(
            f"model.rope_scaling={scaling} but model.position={model.position} has no rotation: set it to none"
        )
    if factor < 1 or (factor != 1 and scaling == "none"):
        raise ValueError(
            f"model.rope_factor={factor} is not allowed with model.rope_scaling={scaling}: "
            + ("choose how to scale, or leave it 1" if scaling == "none" else "texts can only become longer, 1 or more")
        )
    if scaling == "ntk" and head_dim(model) < 4:
        raise ValueError("model.rope_scaling=ntk needs model.head_dim of 4 or more: it spares the shortest wavelength")
    if scaling not in SCALED_FROM_A_LENGTH:
        if model.rope_original_length is not None:
            raise ValueError(
                f"model.rope_original_length={model.rope_original_length} has no meaning with "
                f"model.rope_scaling={scaling}: leave it null"
            )
        return None
    if model.rope_original_length is not None:
        _check_positive("rope_original_length", model.rope_original_length)
        return model.rope_original_length
    return max(1, round(sequence_length / factor))


def check_depth(layers: int) -> None:
    """Raise ValueError for a number of layers that no model has."""
    if layers > MOST_LAYERS:
        raise ValueError(f"model.layers={layers} is not allowed: 1 to {MOST_LAYERS}")


def _check_positive(name: str, value: float) -> None:
    if value <= 0:
        raise ValueError(f"model.{name}={value} is not allowed: it must be positive")
