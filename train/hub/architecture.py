"""Our model section as a config.json of Llama, Mistral or Qwen3, and back; what these cannot express is refused.

Llama is the plain decoder; Mistral is Llama with a sliding window in all blocks; Qwen3 is Llama with QK-norm, and may
have windows in some of the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from train.spec import calls
from train.spec.config import ModelConfig
from train.spec.counts import head_dim, kv_heads, mlp_width, window_of

ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen3": "Qwen3ForCausalLM"}
EXPRESSED = frozenset({
    *("width", "layers", "head_dim", "kv_heads", "mlp_width", "qk_norm", "tied_embeddings", "position", "norm_eps"),
    *("rope_theta", "rope_scaling", "rope_factor", "rope_original_length", "window", "global_every"),
    *("attention_softcap", "logit_softcap"),
})  # fmt: skip
"""Keys that config.json says, or whose values it refuses."""
WEIGHTS_ONLY = frozenset({"init_from", "init_std", "init_std_at", "mup_base_width", "mup_base_head_dim"})
"""Keys that config.json has no place for: initialisation, and muP's factors, which export multiplies in."""
_NO_FORMER = object()


def check_known(model: ModelConfig) -> None:
    """Raise ValueError for a key that this module does not know, unless it has the value that models had before it."""
    for spec in fields(model):
        value, former = getattr(model, spec.name), spec.metadata.get("former", _NO_FORMER)
        if spec.name in EXPRESSED | WEIGHTS_ONLY or value == former:
            continue
        only = "" if former is _NO_FORMER else f"; model.{spec.name}={former} can"
        raise ValueError(
            f"model.{spec.name}={value!r} cannot be exported: Llama, Mistral and Qwen3, which are what an export can "
            f"write, have nothing like it{only}"
        )


def to_hub(model: ModelConfig, vocab_size: int, length: int, separator: int, dtype: str) -> dict[str, Any]:
    """Return config.json of a resolved model; ValueError that names the key which none of the three can express."""
    check_known(model)
    kind = _kind(model)
    theta = model.rope_theta
    if model.rope_scaling == "ntk":  # nothing but a larger base
        theta *= model.rope_factor ** (head_dim(model) / (head_dim(model) - 2))
    found: dict[str, Any] = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.width // head_dim(model),
        "num_key_value_heads": kv_heads(model),
        "head_dim": head_dim(model),
        "intermediate_size": mlp_width(model),
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": theta,
        "rope_scaling": _scaling(model),
        "max_position_embeddings": length,
        "vocab_size": vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": separator,
        "eos_token_id": separator,
        "torch_dtype": dtype,
        "use_cache": True,
    }
    if kind == "llama":
        found["mlp_bias"] = False
    if kind == "mistral":
        found["sliding_window"] = model.window
    if kind == "qwen3":
        windows = [window_of(model, layer) for layer in range(model.layers)]
        found["use_sliding_window"] = model.window is not None
        found["sliding_window"] = model.window
        found["max_window_layers"] = 0
        found["layer_types"] = ["sliding_attention" if window else "full_attention" for window in windows]
    return found


def _kind(model: ModelConfig) -> str:
    for key, meaning in (("attention_softcap", "caps on scores"), ("logit_softcap", "caps on logits")):
        if getattr(model, key):
            raise ValueError(
                f"model.{key}={getattr(model, key)} cannot be exported: Llama, Mistral, Qwen3 have no {meaning}"
            )
    if model.position != "rope":
        raise ValueError(f"model.position={model.position} cannot be exported: Llama, Mistral and Qwen3 are rotary")
    if model.qk_norm:
        return "qwen3"
    if model.window is None:
        return "llama"
    if model.global_every:
        raise ValueError(
            f"model.global_every={model.global_every} cannot be exported without model.qk_norm: Mistral has its window "
            "in all blocks, and Qwen3, which may have it in some, normalises queries and keys"
        )
    return "mistral"


def _scaling(model: ModelConfig) -> dict[str, Any] | None:
    factor, original = model.rope_factor, model.rope_original_length
    if model.rope_scaling == "linear":
        return {"rope_type": "linear", "factor": factor}
    if model.rope_scaling == "yarn":
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    if model.rope_scaling == "llama3":
        ramp = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        return {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": original, **ramp}
    return None


def from_hub(config: Mapping[str, Any]) -> ModelConfig:
    """Return the model section of a config.json; ValueError that names what we have no key for."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ValueError(f"model_type={kind!r} cannot be imported: {', '.join(ARCHITECTURES)} can")
    for key, allowed in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if config.get(key, allowed) != allowed:
            raise ValueError(f"{key}={config[key]!r} cannot be imported: only {allowed!r} can")
    width, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    head = width // heads if config.get("head_dim") is None else count(config, "head_dim")
    if head * heads != width:
        raise ValueError(
            f"head_dim={head} times num_attention_heads={heads} is not hidden_size={width}: attention of another width "
            "than the residual stream cannot be imported"
        )
    rope = config.get("rope_parameters") or {}
    window, every = _window(config, kind)
    return ModelConfig(
        width=width,
        layers=count(config, "num_hidden_layers"),
        head_dim=head,
        kv_heads=heads if config.get("num_key_value_heads") is None else count(config, "num_key_value_heads"),
        mlp_width=count(config, "intermediate_size"),
        qk_norm=kind == "qwen3",
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        norm_eps=_positive(config, "rms_norm_eps"),
        window=window,
        global_every=every,
        **_scaled(rope or config.get("rope_scaling") or {}),
    )


def count(config: Mapping[str, Any], key: str) -> int:
    """Return a whole number from 1 on of a config.json; ValueError that names it."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json: {key}={value!r}: a whole number from 1 on is needed")
    return value


def _positive(config: Mapping[str, Any], key: str) -> float:
    """Return a positive number of a config.json; ValueError that names it."""
    calls.positive(f"config.json: {key}", config.get(key))
    return float(config[key])


def _scaled(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return our keys of rotary scaling."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor={rope['partial_rotary_factor']} cannot be imported: only 1 can")
    if kind == "default":
        return {}
    sharpening = ("attention_factor", "mscale", "mscale_all_dim")
    usual: dict[str, dict[str, Any]] = {
        "linear": {},
        "yarn": {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, **dict.fromkeys(sharpening)},
        "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    }
    if kind not in usual:
        raise ValueError(f"rope_type={kind!r} cannot be imported: default, {', '.join(usual)} can")
    for key, value in usual[kind].items():
        if rope.get(key, value) not in (value, None):
            raise ValueError(f"rope_scaling.{key}={rope[key]} cannot be imported: only {value} can")
    original = rope.get("original_max_position_embeddings")
    return {
        "rope_scaling": kind,
        "rope_factor": _positive(rope, "factor"),
        "rope_original_length": int(original) if kind != "linear" and original is not None else None,
    }


def _window(config: Mapping[str, Any], kind: str) -> tuple[int | None, int]:
    """Return window and global_every."""
    window = config.get("sliding_window")
    layers = count(config, "num_hidden_layers")
    if window is None or kind == "llama" or (kind == "qwen3" and not config.get("use_sliding_window", False)):
        return None, 0
    # Qwen3 without a list of layers counts those at the start that have no window.
    without = int(config.get("max_window_layers", 28)) if kind == "qwen3" else 0
    types = config.get("layer_types") or [
        "full_attention" if n < without else "sliding_attention" for n in range(layers)
    ]
    if "sliding_attention" not in types:
        return None, 0
    for every in range(layers + 1):
        wanted = ["full_attention" if every and (n + 1) % every == 0 else "sliding_attention" for n in range(layers)]
        if wanted == types:
            return int(window), every
    raise ValueError("layer_types cannot be imported: windows in all blocks, or in all but every n-th, can")
