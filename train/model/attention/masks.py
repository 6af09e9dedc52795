"""Which keys a query sees: those before it, within a sliding window, within its own document.

Masks are made once a forward pass, outside the blocks, and shared by all blocks with the same window. On a CPU they are
dense; on CUDA they are FlexAttention's BlockMask, which skips blocks of 128 by 128 that no query sees. Which these are
follows from the blocks' first and last positions and documents, so no tensor has an entry for each pair of positions.
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

BLOCK = 128
"""Queries and keys of a block of FlexAttention."""


def make_masks(
    sizes: Iterable[Sizes],
    windows: Iterable[int | None],
    documents: Tensor | None,
    device: torch.device,
    plain: bool = True,
) -> dict[int | None, Masks]:
    """Return the masks of every window for all pieces; queries are the last positions of a piece's keys.

    documents (batch, length) numbers the document of every position of the whole row; None: one document. plain:
    whether scores are neither capped nor biased (train.model.attention.sdpa.Rule); if they are, FlexAttention computes
    them on CUDA and wants a mask in any case.
    """
    make = block_mask if device.type == "cuda" else dense_mask
    every = device.type == "cuda" and not plain

    def mask(queries: int, keys: int, window: int | None) -> Mask:
        window = None if window is not None and window >= keys else window
        if window is None and documents is None and not every:
            return None
        return make(queries, keys, window, documents, device)

    sizes = tuple(sizes)
    return {window: {size: mask(*size, window) for size in sizes} for window in set(windows)}


def mask_of(masks: Masks, queries: int, keys: int) -> Mask:
    """Return the mask of a piece; ValueError for sizes that no mask was made for (None is a mask: plain causal)."""
    if (queries, keys) not in masks:
        raise ValueError(
            f"no mask was made for {queries} queries of {keys} keys, only for (queries, keys) of "
            f"{', '.join(map(str, masks)) or 'nothing'}: Transformer.pieces says which sizes attention runs on"
        )
    return masks[queries, keys]


def dense_mask(queries: int, keys: int, window: int | None, documents: Tensor | None, device: torch.device) -> Tensor:
    """Return the mask as booleans, (batch or 1, 1, queries, keys)."""
    at = torch.arange(keys, device=device)
    distance = at[keys - queries :, None] - at
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    if documents is None:
        return seen[None, None]
    same = documents[:, keys - queries : keys, None] == documents[:, None, :keys]
    return (seen & same)[:, None]


def block_mask(queries: int, keys: int, window: int | None, documents: Tensor | None, device: torch.device) -> Any:
    """Return the mask as FlexAttention's BlockMask: empty blocks are skipped, full ones need no mask within.

    A block is empty where none of its queries sees any of its keys, by position or by the range of its documents'
    numbers, whatever their order; it is full where each query sees all keys. In the others `seen` decides. The largest
    tensors have 8 bytes a block (and row, with documents).
    """
    from torch.nn.attention.flex_attention import BlockMask

    offset = keys - queries
    first, last = _ends(torch.arange(offset, keys, device=device))
    begin, end = _ends(torch.arange(keys, device=device))
    nearest, farthest = first[:, None] - end, last[:, None] - begin  # distances of the pairs in a block
    some, every = farthest >= 0, nearest >= 0
    # FlexAttention looks at positions beyond the row's end in blocks that are not whole alone.
    every &= (last - first == BLOCK - 1)[:, None] & (end - begin == BLOCK - 1)
    if window is not None:
        some, every = some & (nearest < window), every & (farthest < window)
    some, every = some[None, None], every[None, None]
    if documents is not None:
        low, high = (x[:, None, :, None] for x in _ends(documents[:, offset:keys]))
        least, most = (x[:, None, None, :] for x in _ends(documents[:, :keys]))
        some = some & (low <= most) & (least <= high)
        every = every & (low == high) & (least == most) & (low == least)

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query + offset - key
        result = distance >= 0
        if window is not None:
            result = result & (distance < window)
        if documents is not None:
            result = result & (documents[batch, query + offset] == documents[batch, key])
        return result

    return BlockMask.from_kv_blocks(
        *_listed(some & ~every), *_listed(every), BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(queries, keys)
    )


def _ends(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and largest of each run of `BLOCK` numbers (…, length); the last run may be shorter."""
    short = -numbers.shape[-1] % BLOCK
    if short:
        numbers = torch.cat((numbers, numbers[..., -1:].expand(*numbers.shape[:-1], short)), -1)
    low, high = numbers.view(*numbers.shape[:-1], -1, BLOCK).aminmax(dim=-1)
    return low, high


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks of keys are chosen for each block of queries, and the numbers of all, the chosen first."""
    order = torch.argsort(chosen.byte(), dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)
