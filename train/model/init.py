"""Initial weights: a function of seed and name alone, so that every layout starts from the same numbers.

Each weight is drawn on the CPU in blocks of rows, each with a generator of its own seeded by (seed, name, block). A
rank draws only the blocks that its shard touches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from train.model.regions import parts_of
from train.model.transformer import Transformer

BLOCK = 1 << 22
"""Most values of one block, which has at least one row: 16 MiB of fp32."""


@torch.no_grad()
def initialise(model: Transformer, seed: int) -> None:
    """Fill the weights, or this rank's parts of them, from `seed`, as `ParamSpec.init_std` says; buffers are 0."""
    for buffer in model.buffers():
        buffer.zero_()
    for name, weight in model.named_parameters():
        spec = model.specs[name]
        for region, part in parts_of(weight, spec.shape):
            if part.numel() == 0:
                continue
            if spec.init_std is None:
                part.fill_(1.0)
            else:
                part.copy_(draw(name, spec.shape, region, seed).mul_(spec.init_std))


def draw(name: str, shape: Iterable[int], region: tuple[slice, ...], seed: int) -> Tensor:
    """Return `region` of the standard normal values that belong to (seed, name): fp32, on the CPU."""
    *leading, width = shape
    rows = torch.arange(int(torch.Size(leading).numel())).view(leading)[region[:-1]]
    out = torch.empty(*rows.shape, len(range(width)[region[-1]]))
    flat, wanted = out.view(-1, out.shape[-1]), rows.flatten()
    height = max(1, BLOCK // width)
    total = torch.Size(leading).numel()
    for block in torch.unique(wanted // height).tolist():
        generator = torch.Generator().manual_seed(_block_seed(seed, name, block))
        values = torch.empty(min(height, total - block * height), width).normal_(generator=generator)
        mine = wanted // height == block
        flat[mine] = values[wanted[mine] - block * height][:, region[-1]]
    return out


def _block_seed(seed: int, name: str, block: int) -> int:
    digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
