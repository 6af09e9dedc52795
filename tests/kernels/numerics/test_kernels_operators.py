"""The registered operators: torch's own checks, compilers, and offsets past 2^31."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import kernels
from kernels.adamw import triton as adamw
from kernels.core import multi_tensor
from kernels.core.launch_table import TABLE, Launch, launch_of, override
from kernels.cross_entropy.math import Options
from kernels.cross_entropy.triton import Kernels
from kernels.float8 import triton as fp8
from kernels.rms_norm import triton as rms_norm
from kernels.rope import triton as rope
from kernels.scale import triton as scaling
from kernels.swiglu import triton as swiglu
from tests.kernels.oracle import DEVICE, INTERPRETED, digest


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def backward(total: Any) -> None:
    total.backward()


def calls() -> dict[str, Callable[[], Any]]:
    """Every public function, on tensors that want gradients."""
    x, other, weight = (drawn(4, 16, seed=s).requires_grad_() for s in range(3))
    scale, target = drawn(16).requires_grad_(), torch.tensor([1, -100, 3, 0], device=DEVICE)
    q, k = drawn(1, 4, 2, 8).requires_grad_(), drawn(1, 4, 1, 8, seed=1).requires_grad_()
    joint, channels = drawn(1, 4, 2, 3, 8).requires_grad_(), drawn(8, seed=2).requires_grad_()
    table = torch.stack([torch.ones(4, 4), torch.zeros(4, 4)], -1).to(DEVICE)
    moments = [[drawn(4, 16, seed=5).square()], [drawn(4, 16, seed=6).square()]]
    numbers: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0, "step": 1}
    return {
        "rms_norm": lambda: backward(kernels.rms_norm(x, scale, 1e-6).sum()),
        "add_rms_norm": lambda: backward(sum(t.sum() for t in kernels.add_rms_norm(x, other, scale, 1e-6))),
        "fork_rms_norm": lambda: backward(sum(t.sum() for t in kernels.fork_rms_norm(x * 1, scale, 1e-6))),
        "swiglu": lambda: backward(kernels.swiglu(x, other).sum()),
        "swiglu packed": lambda: backward(kernels.swiglu(x).sum()),
        "rope": lambda: backward(kernels.rope(q, k, table)[0].sum()),
        "split_heads": lambda: backward(sum(t.sum() for t in kernels.split_heads(joint, table))),
        "split_heads normed": lambda: backward(kernels.split_heads(joint, table, (channels, channels), 1e-6)[0].sum()),
        "gated_mlp": lambda: backward(kernels.gated_mlp(x, drawn(2, 6, 16).requires_grad_(), drawn(8, 6)).sum()),
        "gated_mlp kept": lambda: backward(
            kernels.gated_mlp(x, drawn(2, 6, 16).requires_grad_(), drawn(8, 6), keep=True).sum()
        ),
        "cross_entropy": lambda: backward(kernels.cross_entropy(x, target)),
        "cross_entropy none": lambda: backward(cast(Tensor, kernels.cross_entropy(x, target, reduction="none")).sum()),
        "cross_entropy in place": lambda: backward(kernels.cross_entropy(x * 1, target, in_place=True)),
        "linear": lambda: backward(kernels.linear_cross_entropy(x, weight, target.clamp(max=3))),
        "linear again": lambda: backward(kernels.linear_cross_entropy(x, weight, target, recompute=True)),
        "gradient_norm": lambda: kernels.gradient_norm([x.detach(), other.detach()]),
        "cast_fp8": lambda: kernels.cast_fp8(x, transposed=True),
        "adamw_step": lambda: kernels.adamw_step([x.detach()], [other.detach()], *moments, **numbers),
    }


@pytest.mark.parametrize("name", list(calls()))
def test_torchs_checks_of_operators(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that a public function calls is checked with the very arguments that it gets."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[tuple[Any, Any, Any]] = []

    def copied(value: Any) -> Any:
        return torch.utils._pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), value)

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "scaling_kernels":
                seen.append((func, copied(args), copied(kwargs or {})))
            return func(*args, **(kwargs or {}))

    torch.use_deterministic_algorithms(False)
    with Recorder():  # type: ignore[no-untyped-call]
        calls()[name]()
    assert seen
    for operator, args, kwargs in seen:
        torch.library.opcheck(operator, args, kwargs, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", ["rms_norm", "swiglu", "cross_entropy", "linear"])
def test_compiled_whole_with_changing_sizes(name: str) -> None:
    weight, scale = drawn(30, 16).requires_grad_(), drawn(16).requires_grad_()

    def function(x: Tensor, target: Tensor) -> Any:
        if name == "rms_norm":
            return kernels.rms_norm(x, scale, 1e-6).square().sum()
        if name == "swiglu":
            return kernels.swiglu(x).square().sum()
        if name == "cross_entropy":
            return kernels.cross_entropy(x, target)
        return kernels.linear_cross_entropy(x, weight, target)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager" if INTERPRETED else "inductor")
    for rows in (5, 7, 12):
        results = []
        for way in (function, compiled):
            x = drawn(rows, 16, seed=rows).requires_grad_()
            loss = way(x, torch.arange(rows, device=DEVICE) % 16)
            results.append((loss.detach(), *torch.autograd.grad(loss, x)))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_a_launch_can_be_forced() -> None:
    x, weight = drawn(9, 64), torch.ones(64, device=DEVICE)
    before = kernels.rms_norm(x, weight, 1e-6)
    with override("rms_norm", Launch(rows=2, programs=1)):
        assert launch_of("rms_norm", 64).rows == 2
        torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-6), before, rtol=1e-6, atol=1e-6)
    assert launch_of("rms_norm", 64) == TABLE["rms_norm"][0][1]
    with pytest.raises(ValueError, match="must be one of adamw"), override("softmax", Launch()):
        pass


def hollow(path: Path, size: int) -> Tensor:
    """Return `size` zeros, fp32, in a file that takes a disk's block only where something is written."""
    path.touch()
    with path.open("r+b") as file:
        file.truncate(4 * size)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.float32)


@pytest.mark.skipif(not INTERPRETED, reason="tests/gpu holds such tensors")
def test_heads_and_tokens_that_start_past_32_bits(tmp_path: Path) -> None:
    """Axes of heads, tokens or sequences 2^30 + 64 elements apart: their third begins past 2^31 elements."""
    gap, width = 2**30 + 64, 8
    table = torch.stack([drawn(3, width // 2).cos(), drawn(3, width // 2).sin()], -1)
    flat, out = (hollow(tmp_path / name, 2 * gap + 3 * width) for name in ("q", "out"))
    for shape, strides in (
        ((1, 1, 3, width), (3 * gap, 3 * gap, gap, width)),
        ((1, 3, 1, width), (3 * gap, gap, width, width)),
        ((3, 1, 1, width), (gap, width, width, width)),
        ((1, 1, 1, 3, width), (3 * gap, 3 * gap, 3 * gap, gap, width)),
    ):
        q, k = drawn(*shape), drawn(*shape, seed=1)
        steps = (*strides[:-1], 1)
        far, goal = flat.as_strided(shape, steps), out.as_strided(shape, steps)
        far.copy_(q)
        near, other = torch.empty_like(q), torch.empty_like(k)
        rope.rope(q, k, table, None, (near, other), True, False)
        rope.rope(far, k, table, None, (goal, other), True, False)
        assert torch.equal(goal, near), shape


@pytest.mark.skipif(not INTERPRETED, reason="tests/gpu holds such tensors")
def test_the_end_of_a_weight_of_more_than_2_to_the_31_elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last block of the tensor is launched; all others would do the same."""
    size, block = 2**31 + 128 + 37, 128
    columns = [[hollow(tmp_path / name, size)] for name in ("weight", "gradient", "mean", "square")]
    start = size // block * block
    last = [x[start:].copy_(drawn(size - start, seed=i).abs()).clone() for i, (x,) in enumerate(columns)]
    whole = multi_tensor.tables(columns)._replace(
        owners=torch.zeros(1, dtype=torch.int32), places=torch.tensor([size // block], dtype=torch.int32), span=block
    )
    numbers: dict[str, Any] = {"step": 3, "lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    kernels.adamw_step(*([x] for x in last), grad_scale=torch.tensor(0.5), **numbers)
    monkeypatch.setattr(adamw, "tables", lambda arrays, share: whole)
    with override("adamw", Launch(block=64)):
        kernels.adamw_step(*columns, grad_scale=torch.tensor(0.5), **numbers)
    assert all(torch.equal(x[start:], wanted) for (x,), wanted in zip(columns, last, strict=True))


@pytest.mark.skipif(not INTERPRETED, reason="tests/gpu holds such tensors")
def test_scaling_with_so_many_programs_that_their_step_passes_32_bits() -> None:
    """As many as 2^31 elements are scaled with, out of place, on a hundred of them."""
    x = drawn(100)
    out = torch.full_like(x, torch.nan)
    scaling.scaled_kernel[(2048,)](x, torch.tensor(2.0), out, len(x), SAME=False, BLOCK=1 << 20)
    assert torch.equal(out, 2 * x)


@pytest.mark.skipif(not INTERPRETED, reason="tests/gpu holds such tensors")
def test_rows_that_start_past_32_bits(tmp_path: Path) -> None:
    """Three rows 2^30 + 64 elements apart in a file without blocks: the third begins past 2^31 elements."""
    gap, width = 2**30 + 64, 64
    size = 2 * gap + width

    def apart(name: str, values: Tensor) -> Tensor:
        view = hollow(tmp_path / name, size).as_strided((3, width), (gap, 1))
        view.copy_(values)
        return view

    x, up, weight = drawn(3, width), drawn(3, width, seed=1), drawn(width, seed=2)
    far, far_up, out = apart("x", x), apart("up", up), apart("out", torch.full((3, width), torch.nan))
    near = torch.empty_like(x)
    target = torch.tensor([1, 5, 60])
    with override("cross_entropy", Launch(block=64)):
        for logits, goal in ((x, near), (far, out)):
            Kernels().fused(logits, target, Options(), goal, None)
    assert torch.equal(out, near)
    assert torch.equal(kernels.rms_norm(far, weight, 1e-6), kernels.rms_norm(x, weight, 1e-6))
    grads = torch.empty_like(x), torch.empty_like(x)
    rstd = torch.ones(3)
    assert torch.equal(rms_norm.backward(far_up, None, far, weight, rstd, grads[0]),
                       rms_norm.backward(up, None, x, weight, rstd, grads[1]))  # fmt: skip
    assert torch.equal(*grads)
    swiglu.backward(far_up, far, far_up, out, far)
    mine, theirs = torch.empty_like(x), torch.empty_like(x)
    swiglu.backward(up, x, up, mine, theirs)
    assert torch.equal(out, mine)
    assert torch.equal(far, theirs)
    values, scale = torch.empty(3, width, dtype=torch.float8_e4m3fn), torch.empty(3, 1)
    fp8.rowwise(far_up, values, scale, 1e-12)
    again, scale_again = torch.empty_like(values), torch.empty(3, 1)
    fp8.rowwise(up, again, scale_again, 1e-12)
    assert digest([values, scale]) == digest([again, scale_again])
