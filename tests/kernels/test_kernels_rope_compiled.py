"""The rotation inside a compiled function: torch 2.11 once gave it no gradient at all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.rope.api import rope


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [True, False])
def test_compiled_gradients_are_those_of_eager(dtype: torch.dtype, interleaved: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    turns = torch.polar(torch.ones(8, 2), torch.randn(8, 2, generator=generator))
    values = [torch.randn(2, 8, heads, 4, generator=generator, dtype=dtype) for heads in (2, 1)]

    def cubes(q: Tensor, k: Tensor) -> Tensor:
        turned = rope(q, k, turns, interleaved=interleaved)
        return sum((x.float() ** 3).sum() for x in turned)  # type: ignore[return-value]

    def gradients(function: object) -> tuple[Tensor, ...]:
        inputs = [value.clone().requires_grad_() for value in values]
        return torch.autograd.grad(function(*inputs), inputs)  # type: ignore[operator]

    torch.compiler.reset()
    compiled = torch.compile(cubes, backend="aot_eager", fullgraph=True)
    for ours, wanted in zip(gradients(compiled), gradients(cubes), strict=True):
        bound = 1e-5 if dtype is torch.float32 else 2e-2
        assert (ours.double() - wanted.double()).norm() <= bound * wanted.double().norm()
