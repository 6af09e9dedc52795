"""Causal grouped-query attention with rotary positions and optional QK-norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.model.norm import RMSNorm
from train.model.rope import rotate
from train.spec.config import ModelConfig
from train.spec.counts import head_dim, kv_heads


class Attention(nn.Module):
    """Queries, keys and values from one matrix product, each group of query heads sharing a key/value head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = head_dim(config)
        self.query_heads = config.width // self.head_dim
        self.kv_heads = kv_heads(config)
        rows = (self.query_heads + 2 * self.kv_heads) * self.head_dim
        self.qkv = nn.Parameter(torch.empty(rows, config.width))
        self.out = nn.Parameter(torch.empty(config.width, config.width))
        self.query_norm = RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else None
        self.key_norm = RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Return attention's output for x (batch, length, width); turns as train.model.rope.rotations gives."""
        batch, length, _ = x.shape
        heads = F.linear(x, self.qkv).view(batch, length, -1, self.head_dim)
        q, k, v = torch.split(heads, [self.query_heads, self.kv_heads, self.kv_heads], dim=2)
        q, k = q.float(), k.float()
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k = rotate(q, turns).to(v.dtype), rotate(k, turns).to(v.dtype)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.kv_heads != self.query_heads,
        )
        return F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), self.out)
