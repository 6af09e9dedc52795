"""Causal multi-head, grouped-query or multi-query attention, with optional QK-norm and rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn

from kernels.core.dtensor import local
from kernels.heads.api import split_heads
from train.model.attention import hub_layout
from train.model.attention.kv_cache import KVCache
from train.model.attention.masks import Masks, mask_of
from train.model.attention.sdpa import attend, rule_of
from train.model.norm import RMSNorm
from train.model.params import ParamSpec, parameter, same_tensor
from train.precision.product import Product, shaped
from train.spec import mup
from train.spec.config import ModelConfig
from train.spec.counts import head_dim, kv_heads

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of queries, which are the last positions, to keys and values; see train.model.attention.sdpa."""


class Attention(nn.Module):
    """Queries, keys and values from one matrix product, each group of query heads sharing a key/value head.

    The rows of `qkv` go by key/value head: its queries, its key, its value. So any run of whole key/value heads is a
    run of rows, and the same code computes all heads or, on a tensor-parallel rank, those whose rows it holds.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = head_dim(config)
        self.query_heads = config.width // self.head_dim
        self.kv_heads = kv_heads(config)
        self.group = self.query_heads // self.kv_heads
        # muP scales attention scores by another factor than the 1/sqrt(head_dim) that `attend` brings.
        self.query_scale = mup.query_scale(config)
        split = (self.group * self.head_dim, self.head_dim, self.head_dim)
        self.qkv = parameter(
            ParamSpec(
                "matrix",
                (self.kv_heads * sum(split), config.width),
                mup.matrix_std(config),
                tp_dim=0,
                muon_split=split,
                hub=hub_layout.separate_heads(config),
            )
        )
        std, out = mup.residual_std(config), same_tensor("self_attn.o_proj.weight")
        self.out = parameter(ParamSpec("matrix", (config.width, config.width), std, tp_dim=1, hub=out))
        gains = hub_layout.head_norm("q_norm", self.query_scale), hub_layout.head_norm("k_norm")
        self.query_norm = RMSNorm(self.head_dim, config.norm_eps, gains[0]) if config.qk_norm else None
        self.key_norm = RMSNorm(self.head_dim, config.norm_eps, gains[1]) if config.qk_norm else None
        self.rule = rule_of(config)
        """How scores are made; train.parallel.tensor says in it which of the model's heads are here."""
        self.linear: dict[str, Product] = {"qkv": F.linear, "out": F.linear}
        """How each weight is applied; set by train.precision.float8."""
        self.across: Callable[[Attend, Tensor, Tensor, Tensor], Tensor] | None = None
        """How attention runs where the sequence is cut over ranks; set by train.parallel.context."""

    def forward(self, x: Tensor, rope: Tensor | None, masks: Masks, cache: KVCache | None = None) -> Tensor:
        """Return attention's output for x (batch, length, width).

        rope: as train.model.rope.rotations gives, None: positions are not in queries and keys. masks: by the sizes of
        the pieces that attention runs on, see train.model.attention.masks. cache: of the positions before x, to which
        those of x are added.
        """
        batch, length, width = x.shape
        joint = self.linear["qkv"](x, shaped(self.qkv, -1, width)).view(
            batch, length, -1, self.group + 2, self.head_dim
        )
        norms, eps = None, 0.0
        if self.query_norm is not None and self.key_norm is not None:
            norms, eps = (local(self.query_norm.weight), local(self.key_norm.weight)), self.query_norm.eps
        q, k, v = split_heads(joint, rope, norms, eps)
        if self.query_scale != 1.0:
            q = q * self.query_scale
        if cache is not None:
            k, v = cache.append(k, v)

        def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(q, k, v, mask_of(masks, q.shape[1], k.shape[1]), self.rule)

        mixed = mix(q, k, v) if self.across is None else self.across(mix, q, k, v)
        return self.linear["out"](mixed.reshape(batch, length, -1), shaped(self.out, width, -1))
