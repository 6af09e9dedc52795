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


CPU = torch.device("cpu")


@torch.no_grad()
def initialise(model: Transformer, seed: int, *, on_device: bool = False) -> None:
    """Fill the weights, or this rank's parts of them, from `seed`, as `ParamSpec.init_std` says; buffers are 0.

    on_device: draw each weight where it is, by the device's own generator. On a GPU that takes a small part of the
    time and gives other numbers, the same in every layout on GPUs of one kind; on a CPU it changes nothing.
    """
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
                device = part.device if on_device else CPU
                part.copy_(draw(name, spec.shape, region, seed, device).mul_(spec.init_std))


def draw(name: str, shape: Iterable[int], region: tuple[slice, ...], seed: int, device: torch.device = CPU) -> Tensor:
    """Return `region` of the standard normal values that belong to (seed, name): fp32, on the device that draws."""
    *leading, width = shape
    total = torch.Size(leading).numel()
    rows = torch.arange(total).view(leading)[region[:-1]]
    columns = region[-1]
    out = torch.empty(*rows.shape, len(range(width)[columns]), device=device)
    flat, wanted = out.view(-1, out.shape[-1]), rows.flatten()
    height = max(1, BLOCK // width)
    first, last = int(wanted[0]), int(wanted[-1])
    in_a_run = last - first + 1 == len(wanted)
    for block in torch.unique(wanted // height).tolist():
        begin = block * height
        end = min(begin + height, total)
        generator = torch.Generator(device).manual_seed(_block_seed(seed, name, block))
        if in_a_run and first <= begin and end <= last + 1 and out.shape[-1] == width:
            flat[begin - first : end - first].normal_(generator=generator)  # the whole block, where it goes
            continue
        values = torch.empty(end - begin, width, device=device).normal_(generator=generator)
        if in_a_run:
            low, high = max(first, begin), min(last + 1, end)
            flat[low - first : high - first] = values[low - begin : high - begin, columns]
        else:
            mine = (wanted // height == block).nonzero().flatten()
            flat[mine.to(device)] = values[(wanted[mine] - begin).to(device)][:, columns]
    return out


def _block_seed(seed: int, name: str, block: int) -> int:
    digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
