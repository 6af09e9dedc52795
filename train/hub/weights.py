"""Weights by our names and layouts as those of Llama, and back.

Ours has queries, keys and values in one matrix by key/value head and turns neighbouring channels; theirs has three
matrices and turns channel i with channel i + head_dim / 2. Reordering the rows of queries and keys (and of their norms)
by `halves` makes the same scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from train.spec import mup
from train.spec.config import ModelConfig
from train.spec.counts import head_dim, kv_heads


def groups(model: ModelConfig) -> list[list[str]]:
    """Return our names of all weights, in groups that are converted together: embedding, each block, the rest."""
    block = ["attention_norm.weight", "attention.qkv", "attention.out", "mlp_norm.weight", "mlp.gate_up", "mlp.down"]
    if model.qk_norm:
        block += ["attention.query_norm.weight", "attention.key_norm.weight"]
    last = ["norm.weight"] if model.tied_embeddings else ["norm.weight", "output.weight"]
    return [["embedding.weight"], *([f"blocks.{n}.{name}" for name in block] for n in range(model.layers)), last]


def to_hub(ours: Mapping[str, Tensor], model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield their names and tensors for one of our groups, muP's factors multiplied in."""
    for name, value in ours.items():
        if name == "embedding.weight":
            yield "model.embed_tokens.weight", value
        elif name == "output.weight":
            yield "lm_head.weight", value
        elif name == "norm.weight":
            yield "model.norm.weight", value * mup.output_scale(model)
        else:
            _, number, part = name.split(".", 2)
            for own, tensor in _block_to_hub(part, value, model):
                yield f"model.layers.{number}.{own}.weight", tensor


def _block_to_hub(part: str, value: Tensor, model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    dim, scale = head_dim(model), mup.query_scale(model)
    order = halves(dim)
    if part == "attention.qkv":
        by_group = value.view(kv_heads(model), -1, dim, value.shape[-1])
        q, k, v = by_group[:, :-2], by_group[:, -2], by_group[:, -1]
        yield "self_attn.q_proj", q[:, :, order].flatten(0, 2) * (1.0 if model.qk_norm else scale)
        yield "self_attn.k_proj", k[:, order].flatten(0, 1)
        yield "self_attn.v_proj", v.flatten(0, 1)
    elif part == "attention.query_norm.weight":
        yield "self_attn.q_norm", value[order] * scale
    elif part == "attention.key_norm.weight":
        yield "self_attn.k_norm", value[order]
    elif part == "mlp.gate_up":
        yield "mlp.gate_proj", value[0]
        yield "mlp.up_proj", value[1]
    else:
        yield _SAME[part], value


_SAME = {
    "attention_norm.weight": "input_layernorm",
    "mlp_norm.weight": "post_attention_layernorm",
    "attention.out": "self_attn.o_proj",
    "mlp.down": "mlp.down_proj",
}


def theirs_of(name: str) -> list[str]:
    """Return which of their tensors one of our weights is made from."""
    whole = {"embedding.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
    whole |= {"norm.weight": "model.norm.weight"}
    if name in whole:
        return [whole[name]]
    _, number, part = name.split(".", 2)
    several = {
        "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "mlp.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
        "attention.query_norm.weight": ["self_attn.q_norm"],
        "attention.key_norm.weight": ["self_attn.k_norm"],
    }
    return [f"model.layers.{number}.{own}.weight" for own in several.get(part) or [_SAME[part]]]


def from_hub(name: str, theirs: list[Tensor], model: ModelConfig) -> Tensor:
    """Return one of our weights from the tensors that `theirs_of` names."""
    dim, part = head_dim(model), name.split(".", 2)[-1]
    back = torch.argsort(halves(dim))
    if part == "attention.qkv":
        q, k, v = (one.reshape(kv_heads(model), -1, dim, one.shape[-1]) for one in theirs)
        return torch.cat((q[:, :, back], k[:, :, back], v), 1).flatten(0, 2)
    if part in ("attention.query_norm.weight", "attention.key_norm.weight"):
        return theirs[0][back]
    return torch.stack(theirs) if part == "mlp.gate_up" else theirs[0]


def halves(dim: int) -> Tensor:
    """Return the order of a head's channels that puts the first of every pair in the first half."""
    return torch.cat((torch.arange(0, dim, 2), torch.arange(1, dim, 2)))
