"""Scaled dot-product attention, by one of three implementations of the same numbers.

Torch's scaled_dot_product_attention where scores are plain or have a bias; on CUDA FlexAttention where scores are
capped or biased or masks are more than causal, as it skips blocks that no query sees; and eager code where neither
works (capped scores on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from train.model.alibi import slopes
from train.model.attention.masks import Mask, dense_mask
from train.spec.config import ModelConfig
from train.spec.counts import head_dim


@dataclass(frozen=True)
class Rule:
    """How scores are made: query · key / sqrt(head_dim), capped, less ALiBi's slope times distance.

    alibi_heads: query heads of the whole model, whose slopes differ; 0: no ALiBi. first_head: which of them is the
    first one here (a tensor-parallel rank has some of them).
    """

    softcap: float = 0.0
    alibi_heads: int = 0
    first_head: int = 0

    @property
    def plain(self) -> bool:
        """Whether scores are nothing but scaled products."""
        return not self.softcap and not self.alibi_heads


def rule_of(config: ModelConfig) -> Rule:
    """Return the rule of a model's attention."""
    heads = config.width // head_dim(config)
    return Rule(config.attention_softcap, heads if config.position == "alibi" else 0)


PLAIN = Rule()


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask = None, rule: Rule = PLAIN) -> Tensor:
    """Return causal attention's output, shaped as q: (batch, queries, heads, head_dim).

    k and v are (batch, keys, kv_heads, head_dim); each key/value head serves a run of neighbouring query heads. The
    queries are the last positions of the keys, so with fewer queries than keys the first query sees keys - queries + 1.
    mask: as `train.model.attention.masks` makes it, None: causal and nothing else (on CUDA for plain rules only).
    """
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    grouped = q.shape[1] != k.shape[1]
    if q.device.type == "cuda" and (mask is not None or not rule.plain):
        mixed = _flex(q, k, v, mask, rule)
    elif rule.softcap:
        mixed = _eager(q, k, v, mask, rule)
    elif rule.alibi_heads:
        bias = _bias(q, k, rule).masked_fill(~_seen(q, k, mask), float("-inf")).to(q.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=grouped)
    elif mask is None and q.shape[2] != k.shape[2] and q.device.type == "cuda":
        mixed = _last_queries(q, k, v)
    elif mask is not None or q.shape[2] != k.shape[2]:
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=_seen(q, k, mask), enable_gqa=grouped)
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    return mixed.transpose(1, 2)


def _last_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention of queries that are the last positions of the keys, by CUDA's fused kernels.

    The kernels know this mask, but scaled_dot_product_attention's `is_causal` aligns queries with the first keys, and
    torch's CausalVariant bias, which aligns them with the last, cannot be made within a compiled block.
    """
    size = q.shape[-1]
    if q.dtype.itemsize == 2 and size <= _FLASH_LARGEST and _has_flash():
        if size % 8:
            q, k, v = (F.pad(x, (0, -size % 8)) for x in (q, k, v))
        found: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, is_causal=True, return_debug_mask=False, scale=size**-0.5
        )[0]
        return found[..., :size] if size % 8 else found
    times = q.shape[1] // k.shape[1]
    k, v = (x if times == 1 else x.repeat_interleave(times, 1) for x in (k, v))
    mixed: Tensor = torch.ops.aten._efficient_attention_forward(
        # As the kernel lays out its gradients: a compiler expects those laid out as the inputs.
        *(x.transpose(1, 2).contiguous() for x in (q, k, v)),
        bias=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        dropout_p=0.0,
        custom_mask_type=_FROM_BOTTOM_RIGHT,
        compute_log_sumexp=torch.is_grad_enabled(),
    )[0]
    return mixed.transpose(1, 2)


_FLASH_LARGEST = 256
"""The widest head that FlashAttention takes."""
_FROM_BOTTOM_RIGHT = 2
"""The number of this mask among those of memory-efficient attention (as torch.nn.attention.bias.CausalVariant)."""


def _has_flash() -> bool:
    """Say whether this process's GPU is new enough for FlashAttention (compute capability 8.0)."""
    return torch.cuda.get_device_capability() >= (8, 0)


# As torch.compiler.assume_constant_result does, which would import the compiler for runs that have nothing compiled.
_has_flash._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _seen(q: Tensor, k: Tensor, mask: Mask) -> Tensor:
    assert mask is None or isinstance(mask, Tensor)
    return dense_mask(q.shape[2], k.shape[2], None, None, q.device) if mask is None else mask


def _bias(q: Tensor, k: Tensor, rule: Rule) -> Tensor:
    """Return what ALiBi adds to the scores, (heads, queries, keys) fp32."""
    queries, keys = q.shape[2], k.shape[2]
    at = torch.arange(keys, device=q.device)
    distance = (at[keys - queries :, None] - at).float()
    return -slopes(rule.alibi_heads, rule.first_head, q.shape[1], q.device)[:, None, None] * distance


def _eager(q: Tensor, k: Tensor, v: Tensor, mask: Mask, rule: Rule) -> Tensor:
    """Return attention by its formula, with all scores in memory as fp32."""
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    scores = (q @ k.transpose(2, 3)).float() * q.shape[-1] ** -0.5
    if rule.softcap:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    if rule.alibi_heads:
        scores = scores + _bias(q, k, rule)
    scores = scores.masked_fill(~_seen(q, k, mask), float("-inf"))
    return torch.softmax(scores, -1).to(v.dtype) @ v


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask, rule: Rule) -> Tensor:
    """Return attention by FlexAttention; `mask` is a BlockMask, which all layers share."""
    from torch.nn.attention.flex_attention import flex_attention

    if mask is None:
        raise ValueError(
            "FlexAttention is given no mask: make it with train.model.attention.masks.make_masks(…, plain=False)"
        )
    call = flex_attention if torch.compiler.is_compiling() or q.device.type != "cuda" else _compiled(flex_attention)
    mixed: Tensor = call(q, k, v, score_mod=score_mod(q, k, rule), block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return mixed


def score_mod(q: Tensor, k: Tensor, rule: Rule) -> Callable[..., Tensor] | None:
    """Return how FlexAttention changes the scores of q and k, (batch, heads, positions, head_dim); None: not at all."""
    if rule.plain:
        return None
    cap, offset = rule.softcap, k.shape[2] - q.shape[2]
    steep = slopes(rule.alibi_heads, rule.first_head, q.shape[1], q.device) if rule.alibi_heads else None

    def changed(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap:
            score = cap * torch.tanh(score / cap)
        if steep is not None:
            score = score - steep[head] * (query + offset - key)
        return score

    return changed


@cache
def _compiled(function: Any) -> Any:
    """Return the compiled function: FlexAttention that is not compiled keeps all scores in memory."""
    return torch.compile(function, dynamic=False)
