"""Attention's weights as Hugging Face's Llama has them.

Ours has queries, keys and values in one matrix by key/value head and turns neighbouring channels; theirs has three
matrices and turns channel i with channel i + head_dim / 2. Reordering the rows of queries and keys (and of their norms)
by `halves` makes the same scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from train.model.params import HubTensors
from train.spec import mup
from train.spec.config import ModelConfig
from train.spec.counts import head_dim, kv_heads


def separate_heads(config: ModelConfig) -> HubTensors:
    """Return queries, keys and values as three matrices, for `Attention.qkv`."""
    dim, groups = head_dim(config), kv_heads(config)
    scale = 1.0 if config.qk_norm else mup.query_scale(config)

    def split(ours: Tensor) -> Sequence[Tensor]:
        by_group = ours.view(groups, -1, dim, ours.shape[-1])
        q, k, v = by_group[:, :-2], by_group[:, -2], by_group[:, -1]
        order = halves(dim)
        return q[:, :, order].flatten(0, 2) * scale, k[:, order].flatten(0, 1), v.flatten(0, 1)

    def join(theirs: Sequence[Tensor]) -> Tensor:
        back = torch.argsort(halves(dim))
        q, k, v = (one.reshape(groups, -1, dim, one.shape[-1]) for one in theirs)
        return torch.cat((q[:, :, back], k[:, :, back], v), 1).flatten(0, 2)

    return HubTensors(tuple(f"self_attn.{name}_proj.weight" for name in "qkv"), split, join)


def head_norm(name: str, factor: float = 1.0) -> HubTensors:
    """Return the gains of a head's channels in their order, times `factor` when they are exported."""
    return HubTensors(
        (f"self_attn.{name}.weight",),
        lambda ours: (ours[halves(len(ours))] * factor,),
        lambda theirs: theirs[0][torch.argsort(halves(len(theirs[0])))],
    )


def halves(dim: int) -> Tensor:
    """Return the order of a head's channels that puts the first of every pair in the first half."""
    return torch.cat((torch.arange(0, dim, 2), torch.arange(1, dim, 2)))
