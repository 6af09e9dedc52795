"""Our model section as a config.json of a Hugging Face architecture, and back; what none of them has is refused.

Llama is the plain decoder; Mistral is Llama with a sliding window in all blocks; Qwen3 is Llama with QK-norm, and may
have windows in some of the blocks. Mixtral is Mistral with experts, its window optional, and Qwen3-MoE is Mixtral with
QK-norm. Both do as train.model.moe: a softmax over all experts in fp32, of which the largest are chosen and made to add
up to 1; no token is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from train.spec import calls
from train.spec.config import ModelConfig
from train.spec.counts import experts_per_token, head_dim, kv_heads, mlp_width, window_of

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
WITH_EXPERTS = ("mixtral", "qwen3_moe")
QWEN = ("qwen3", "qwen3_moe")
EXPRESSED = frozenset({
    *("width", "layers", "head_dim", "kv_heads", "mlp_width", "qk_norm", "tied_embeddings", "position", "norm_eps"),
    *("rope_theta", "rope_scaling", "rope_factor", "rope_original_length", "window", "global_every"),
    *("attention_softcap", "logit_softcap"),
    *("experts", "experts_per_token", "shared_experts", "router_score", "router_bias_speed"),
})  # fmt: skip
"""Keys that config.json says, or whose values it refuses."""
UNSAID = frozenset({"init_from", "init_std", "init_std_at", "mup_base_width", "mup_base_head_dim", "balance_weight"})
"""Keys that config.json has no place for: initialisation, muP's factors, which export multiplies in, and a loss that is
only trained on."""
_NO_FORMER = object()


def check_known(model: ModelConfig) -> None:
    """Raise ValueError for a key that this module does not know, unless it has the value that models had before it."""
    for spec in fields(model):
        value, former = getattr(model, spec.name), spec.metadata.get("former", _NO_FORMER)
        if spec.name in EXPRESSED | UNSAID or value == former:
            continue
        only = "" if former is _NO_FORMER else f"; model.{spec.name}={former} can"
        raise ValueError(
            f"model.{spec.name}={value!r} cannot be exported: {_families(model)}, which are what an export can write, "
            f"have nothing like it{only}"
        )


def _families(model: ModelConfig) -> str:
    return "Mixtral and Qwen3-MoE" if model.experts else "Llama, Mistral and Qwen3"


def to_hub(model: ModelConfig, vocab_size: int, length: int, separator: int, dtype: str) -> dict[str, Any]:
    """Return config.json of a resolved model; ValueError that names the key which none of them can express."""
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
    if kind in ("mistral", "mixtral"):
        found["sliding_window"] = model.window
    if kind in QWEN:
        found["use_sliding_window"] = model.window is not None
        found["sliding_window"] = model.window
        found["max_window_layers"] = 0
    if kind == "qwen3":
        windows = [window_of(model, layer) for layer in range(model.layers)]
        found["layer_types"] = ["sliding_attention" if window else "full_attention" for window in windows]
    if kind in WITH_EXPERTS:
        found |= _experts(model, kind)
    return found


def _experts(model: ModelConfig, kind: str) -> dict[str, Any]:
    """Return what config.json says of layers of experts alone."""
    both = {"num_experts_per_tok": experts_per_token(model), "output_router_logits": False}
    if kind == "mixtral":
        return both | {"num_local_experts": model.experts, "router_jitter_noise": 0.0}
    of_blocks = {"decoder_sparse_step": 1, "mlp_only_layers": list[int]()}  # experts in every block
    sizes = {"num_experts": model.experts, "moe_intermediate_size": mlp_width(model)}
    return both | sizes | of_blocks | {"norm_topk_prob": True}


def _kind(model: ModelConfig) -> str:
    for key, meaning in (("attention_softcap", "caps on scores"), ("logit_softcap", "caps on logits")):
        if getattr(model, key):
            raise ValueError(
                f"model.{key}={getattr(model, key)} cannot be exported: {_families(model)} have no {meaning}"
            )
    if model.position != "rope":
        raise ValueError(f"model.position={model.position} cannot be exported: {_families(model)} are rotary")
    if model.experts:
        _check_experts(model)
        return "qwen3_moe" if model.qk_norm else "mixtral"
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


def _check_experts(model: ModelConfig) -> None:
    """Raise ValueError for a key of experts, or of their blocks, that neither Mixtral nor Qwen3-MoE can express."""
    for key, allowed, why in (
        ("router_score", "softmax", "score experts by a softmax over them"),
        ("router_bias_speed", 0.0, "choose experts by the scores that weigh them, without a bias"),
        ("shared_experts", 0, "have no experts that every token goes through"),
        ("global_every", 0, "have their window in all blocks or in none"),
    ):
        if (value := getattr(model, key)) != allowed:
            raise ValueError(
                f"model.{key}={value} cannot be exported with model.experts={model.experts}: {_families(model)} {why}; "
                f"model.{key}={allowed} can"
            )


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
        _check_only(key, config.get(key, allowed), allowed)
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
        mlp_width=count(config, "moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size"),
        qk_norm=kind in QWEN,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or (1e6 if kind == "mixtral" else 1e4)),
        norm_eps=_positive(config, "rms_norm_eps"),
        window=window,
        global_every=every,
        **_scaled(rope or config.get("rope_scaling") or {}, config),
        **(_routed(config, kind) if kind in WITH_EXPERTS else {}),
    )


def _check_only(key: str, value: object, allowed: object) -> None:
    """Raise ValueError for a value of config.json of which we have only one."""
    if value != allowed:
        raise ValueError(f"{key}={value!r} cannot be imported: only {allowed!r} can")


def _routed(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return our keys of experts."""
    if kind == "qwen3_moe":
        _check_only("norm_topk_prob", config.get("norm_topk_prob", False), True)
        _check_only("decoder_sparse_step", config.get("decoder_sparse_step", 1), 1)
        _check_only("mlp_only_layers", config.get("mlp_only_layers") or [], [])
    # transformers 5 writes the one for both; Qwen3-MoE was published with the other.
    experts = "num_experts" if kind == "qwen3_moe" and "num_local_experts" not in config else "num_local_experts"
    return {"experts": count(config, experts), "experts_per_token": count(config, "num_experts_per_tok")}


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


def _scaled(rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return our keys of rotary scaling; transformers takes the model's length where it names no other."""
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
    length = "original_max_position_embeddings"
    found: dict[str, Any] = {"rope_scaling": kind, "rope_factor": _positive(rope, "factor")}
    if kind == "linear":
        return found
    said = count(config, "max_position_embeddings") if rope.get(length) is None else count(rope, length)
    return found | {"rope_original_length": said}


def _window(config: Mapping[str, Any], kind: str) -> tuple[int | None, int]:
    """Return window and global_every."""
    window = config.get("sliding_window")
    layers = count(config, "num_hidden_layers")
    if window is None or kind == "llama" or (kind in QWEN and not config.get("use_sliding_window", False)):
        return None, 0
    if kind in WITH_EXPERTS:  # in all blocks; transformers 4 left out the first of Qwen3-MoE, and 5 does not
        _check_only("max_window_layers", config.get("max_window_layers") or 0, 0)
        return int(window), 0
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
