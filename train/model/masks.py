"""Which keys a query sees: those before it, within a sliding window, within its own document.

Masks are made once a forward pass, outside the blocks, and shared by all blocks with the same window. On a CPU they are
written out; on CUDA they are FlexAttention's, which knows which blocks of 128 by 128 need no work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

Mask: TypeAlias = Any
"""bool (batch or 1, 1, queries, keys), true where seen; a BlockMask on CUDA; None: causal and nothing else."""

Sizes: TypeAlias = tuple[int, int]
Masks: TypeAlias = Mapping[Sizes, Mask]
"""Masks by (queries, keys): one, or one for each piece that context parallelism works on."""


def make_masks(
    sizes: Iterable[Sizes], windows: Iterable[int | None], documents: Tensor | None, device: torch.device
) -> dict[int | None, Masks]:
    """Return the masks of every window for all pieces; queries are the last positions of a piece's keys.

    documents (batch, length) numbers the document of every position of the whole row; None: one document.
    """
    sizes = tuple(sizes)
    return {window: {size: _mask(*size, window, documents, device) for size in sizes} for window in set(windows)}


def _mask(queries: int, keys: int, window: int | None, documents: Tensor | None, device: torch.device) -> Mask:
    window = None if window is not None and window >= keys else window
    if window is None and documents is None:
        return None
    make = blocks if device.type == "cuda" else dense
    return make(queries, keys, window, documents, device)


def dense(queries: int, keys: int, window: int | None, documents: Tensor | None, device: torch.device) -> Tensor:
    """Return the mask written out: bool (batch or 1, 1, queries, keys)."""
    at = torch.arange(keys, device=device)
    distance = at[keys - queries :, None] - at
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    if documents is None:
        return seen[None, None]
    same = documents[:, keys - queries : keys, None] == documents[:, None, :keys]
    return (seen & same)[:, None]


def blocks(queries: int, keys: int, window: int | None, documents: Tensor | None, device: torch.device) -> Any:
    """Return the mask as FlexAttention's BlockMask."""
    from torch.nn.attention.flex_attention import create_block_mask

    offset = keys - queries

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query + offset - key
        result = distance >= 0
        if window is not None:
            result = result & (distance < window)
        if documents is not None:
            result = result & (documents[batch, query + offset] == documents[batch, key])
        return result

    batch = None if documents is None else len(documents)
    return create_block_mask(seen, batch, None, queries, keys, device=str(device))
