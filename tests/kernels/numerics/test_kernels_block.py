"""A decoder block through the kernels, eager and compiled, beside the same block through plain torch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernels
from tests.kernels.oracle import DEVICE, INTERPRETED
from train.model.attention.masks import make_masks
from train.model.rope import rotations
from train.model.transformer import Block
from train.spec.config import ModelConfig

LENGTH = 6


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_a_block_by_kernels_is_the_block_by_torch(normed: bool, half: bool) -> None:
    config = ModelConfig(width=32, layers=1, head_dim=8, kv_heads=2, mlp_width=48, qk_norm=normed, norm_eps=1e-5)
    generator = torch.Generator().manual_seed(0)
    block = Block(config)
    for weight in block.parameters():
        nn.init.normal_(weight, 1.0 if weight.dim() == 1 else 0.0, 0.2, generator=generator)
    block.to(DEVICE)
    turns = rotations(config, LENGTH)
    assert turns is not None
    turns = torch.view_as_real(turns).to(DEVICE)
    masks = make_masks(((LENGTH, LENGTH),), [None], None, torch.device(DEVICE))[None]
    stream = torch.randn(2, LENGTH, config.width, generator=generator).to(
        DEVICE, torch.bfloat16 if half else torch.float32
    )

    def run(forward: Any) -> list[Tensor]:
        x = stream.clone().requires_grad_()
        with torch.autocast(DEVICE, torch.bfloat16) if half else nullcontext():
            out = forward(x, turns, masks)
        grads = torch.autograd.grad(out.float().square().sum(), [x, *block.parameters()])
        return [out.detach(), *grads]

    with kernels.use("reference"):
        wanted = run(block)
    with kernels.use("triton"):
        torch._dynamo.reset()
        backend = "aot_eager" if INTERPRETED else "inductor"
        ways = [run(block), run(torch.compile(block.forward, fullgraph=True, backend=backend))]
    bound = 3e-2 if half else 2e-6  # a few roundings of either format, one after the other
    for got in ways:
        for name, a, b in zip(["output", "input", *dict(block.named_parameters())], got, wanted, strict=True):
            assert float((a.double() - b.double()).norm()) <= bound * float(b.double().norm()), name
