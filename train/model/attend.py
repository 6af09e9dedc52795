"""Attention proper: every query mixes the values of its own and earlier positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention's output, shaped as q: (batch, queries, heads, head_dim).

    k and v are (batch, keys, kv_heads, head_dim); each key/value head serves a run of neighbouring query heads. The
    queries are the last positions of the keys, so with fewer queries than keys the first query sees keys - queries + 1.
    """
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    queries, keys = q.shape[2], k.shape[2]
    mask = None if queries == keys else _lower_right(queries, keys, q.device)
    mixed = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )
    return mixed.transpose(1, 2)


def _lower_right(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return which keys each query sees, as a mask; on CUDA in the form that its fused kernels know."""
    if device.type == "cuda":
        from torch.nn.attention.bias import causal_lower_right

        bias: Tensor = causal_lower_right(queries, keys)
        return bias
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
