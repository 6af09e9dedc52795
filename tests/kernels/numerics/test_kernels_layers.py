"""RMSNorm, RoPE and SwiGLU by Triton, against float64."""

from __future__ import annotations

import functools
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from kernels.core.launch_table import Launch, override
from kernels.rope.api import reference as plain_rope
from kernels.swiglu.triton_product import fits
from tests.kernels.oracle import DEVICE, DTYPES, INTERPRETED, compare

SHAPES = [(1, 33), (3, 5, 64), (7, 127), (2, 4097), (0, 64)]


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), 1e-6)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return total, norm(total, weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = drawn(*shape, dtype=dtype), drawn(shape[-1], dtype=torch.float32, seed=1)
    other = drawn(*shape, dtype=dtype, seed=2)
    # The slow interpreter adds up a long weight's gradient in 9 programs, not 513; shorter ones have many, too.
    few = override("column_sums", Launch(block=512, rows=8)) if INTERPRETED and shape[-1] > 4096 else nullcontext()
    # A row's scale is rounded once for all of the row: with a single row that does not average out.
    factor = 3.0 if shape[0] == 1 else 1.5
    with few:
        compare(functools.partial(kernels.rms_norm, eps=1e-6), norm, [x, weight], ulps=8, factor=factor)
        compare(functools.partial(kernels.add_rms_norm, eps=1e-6), add_norm, [x, other, weight], ulps=8, factor=factor)
        forked = functools.partial(kernels.fork_rms_norm, eps=1e-6)
        compare(forked, lambda x, weight: (x * 1, norm(x, weight)), [x, weight], ulps=8, factor=factor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_of_one_number(dtype: torch.dtype) -> None:
    """The norm is the number's sign, so its gradient cancels: g · weight · rstd times 1 - n² = eps / (x² + eps).

    Right is what is off by a few roundings of the terms that cancel, not of the 3e-7 that they leave.
    """
    x = drawn(1, 1, dtype=dtype).to(DEVICE).requires_grad_()
    weight = drawn(1, dtype=torch.float32, seed=1).to(DEVICE).requires_grad_()
    out = kernels.rms_norm(x, weight, 1e-6)
    grads = torch.autograd.grad(out, (x, weight))
    number, factor = x.detach().double(), weight.detach().double()
    rstd = (number.square() + 1e-6).rsqrt()
    epsilon = torch.finfo(dtype).eps
    slack = 2.0 if INTERPRETED and dtype == torch.bfloat16 else 1.0  # stores there cut off instead of rounding
    fp32 = torch.finfo(torch.float32).eps  # what the computation itself is right to, a few times
    torch.testing.assert_close(out.double(), number * rstd * factor, rtol=slack * epsilon + 2 * fp32, atol=0.0)
    torch.testing.assert_close(grads[1].double(), (number * rstd)[0], rtol=4 * fp32, atol=0.0)
    cancelling = float((factor * rstd).abs())
    exact = factor * rstd * 1e-6 / (number.square() + 1e-6)
    torch.testing.assert_close(grads[0].double(), exact, rtol=slack * epsilon, atol=4 * fp32 * cancelling)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_rms_norm_of_tiny_and_large_rows(scale: float) -> None:
    x, weight = drawn(4, 200, dtype=torch.float32, scale=scale), drawn(200, dtype=torch.float32, seed=1)
    compare(functools.partial(kernels.rms_norm, eps=1e-6), norm, [x, weight], ulps=8)


def test_rms_norm_reads_rows_apart_and_writes_another_format() -> None:
    x = drawn(6, 200, dtype=torch.float32).to(DEVICE)[:, :100].requires_grad_()
    weight = drawn(100, dtype=torch.float32, seed=1).to(DEVICE)
    apart = kernels.rms_norm(x, weight, 1e-6)
    assert torch.equal(apart, kernels.rms_norm(x.contiguous(), weight, 1e-6))
    assert kernels.rms_norm(x, weight, 1e-6, dtype=torch.float16).dtype == torch.float16
    upstream = torch.randn(100, 6, device=DEVICE).t()
    got = torch.autograd.grad(apart, x, upstream)[0]
    again = torch.autograd.grad(kernels.rms_norm(x, weight, 1e-6), x, upstream.contiguous())[0]
    assert torch.equal(got, again)


def test_add_rms_norm_of_two_formats_and_with_one_gradient_missing() -> None:
    x, residual = drawn(3, 64, dtype=torch.float16).to(DEVICE), drawn(3, 64, dtype=torch.float32, seed=3).to(DEVICE)
    x.requires_grad_()
    residual.requires_grad_()
    weight = torch.ones(64, device=DEVICE)
    total, normed = kernels.add_rms_norm(x, residual, weight, 1e-6)
    assert total.dtype == normed.dtype == torch.float32
    assert [g.dtype for g in torch.autograd.grad(normed.sum(), (x, residual), retain_graph=True)] == [
        torch.float16, torch.float32,
    ]  # fmt: skip
    alone = torch.autograd.grad(total.sum(), (x, residual))
    assert all((g == 1).all() for g in alone)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), *SHAPES], ids=str)
def test_swiglu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    gate, up = (drawn(*shape, dtype=dtype, seed=i, scale=3) for i in range(2))
    # In fp32 the kernel's exponential is right to two units in the last place, torch's to one.
    factor = 2.5 if dtype == torch.float32 else 1.5
    compare(kernels.swiglu, lambda g, u: F.silu(g) * u, [gate, up], ulps=4, factor=factor)
    both = torch.cat([gate, up], -1)
    compare(kernels.swiglu, lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], [both], ulps=4, factor=factor)


def turns(positions: int, width: int) -> Tensor:
    angles = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    return torch.stack([angles.cos(), angles.sin()], -1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("width", [2, 24, 64])
def test_rope(width: int, interleaved: bool, dtype: torch.dtype) -> None:
    q, k = drawn(2, 3, 3, width, dtype=dtype), drawn(2, 3, 1, width, dtype=dtype, seed=1)
    table = turns(40, width)
    for positions in (None, torch.tensor([3, 39, 0]), torch.randint(0, 40, (2, 3))):
        ours = functools.partial(kernels.rope, interleaved=interleaved)
        theirs = functools.partial(plain_rope, interleaved=interleaved)
        compare(ours, theirs, [q, k], ulps=3, rest=[table, positions])


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_on_slices_and_in_place(interleaved: bool) -> None:
    heads = drawn(2, 5, 6, 16, dtype=torch.float32).to(DEVICE).requires_grad_()
    table = turns(5, 16).to(DEVICE)
    q, k, _ = torch.split(heads, [3, 1, 2], 2)
    out = kernels.rope(q, k, table, interleaved=interleaved)
    dense = kernels.rope(q.contiguous(), k.contiguous(), table, interleaved=interleaved)
    assert all(torch.equal(a, b) for a, b in zip(out, dense, strict=True))
    mine = (q * 1, k * 1)
    there = kernels.rope(*mine, table, interleaved=interleaved, in_place=True)
    assert all(a.data_ptr() == b.data_ptr() and torch.equal(b, c) for a, b, c in zip(mine, there, out, strict=True))
    upstream = [torch.randn_like(x) for x in out]
    assert torch.equal(torch.autograd.grad(out, heads, upstream)[0], torch.autograd.grad(there, heads, upstream)[0])


def test_rope_of_grouped_heads_with_angles_of_their_own() -> None:
    heads = drawn(2, 5, 2, 5, 16, dtype=torch.float16).to(DEVICE).requires_grad_()  # groups of 3 queries, key, value
    q, k = heads[..., :3, :], heads[..., 3, :]
    positions = torch.randint(0, 9, (2, 5), device=DEVICE)
    table = turns(9, 16).to(DEVICE)
    grouped = kernels.rope(q, k, table[positions])
    flat = kernels.rope(q.flatten(2, 3), k, table, positions)
    assert grouped[0].shape == q.shape
    assert torch.equal(grouped[0].flatten(2, 3), flat[0])
    assert torch.equal(grouped[1], flat[1])
    upstream = [torch.randn_like(x) for x in grouped]
    mine = torch.autograd.grad(grouped, heads, upstream)[0]
    assert torch.equal(mine, torch.autograd.grad(flat, heads, [upstream[0].flatten(2, 3), upstream[1]])[0])


def test_angles_turn_back() -> None:
    q = drawn(1, 4, 2, 8, dtype=torch.float32).to(DEVICE).requires_grad_()
    table = turns(4, 8).to(DEVICE)
    turned, _ = kernels.rope(q, q.detach()[:, :, :1], table)
    back = torch.autograd.grad(turned, q, turned.detach())[0]  # the transpose of a rotation is its inverse
    torch.testing.assert_close(back, q.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("kv_heads", "group", "width"), [(2, 3, 8), (3, 1, 24), (20, 1, 4)])
def test_split_heads(kv_heads: int, group: int, width: int, normed: bool, dtype: torch.dtype) -> None:
    joint = drawn(2, 3, kv_heads, group + 2, width, dtype=dtype)
    weights = [drawn(width, dtype=torch.float32, seed=s) for s in (1, 2)] if normed else []
    table = turns(40, width)
    for angles in (table, table[torch.randint(0, 40, (2, 3))]):

        def split(x: Tensor, *norms: Tensor, angles: Tensor = angles) -> tuple[Tensor, ...]:
            pair = (norms[0].to(x.dtype), norms[1].to(x.dtype)) if norms else None
            return kernels.split_heads(x, angles.to(x.device), pair, 1e-6)

        # Torch's norms round what they hand on to the rotation, and their weights' gradients differ by these roundings.
        compare(split, split, [joint, *weights], ulps=8, factor=3.0 if normed else 1.5)


def test_heads_that_lie_apart_come_out_as_the_parts_that_they_are() -> None:
    joint = drawn(2, 5, 2, 5, 16, dtype=torch.float32).to(DEVICE).requires_grad_()
    table = turns(5, 16).to(DEVICE)
    q, k, v = kernels.split_heads(joint, table)
    turned = kernels.rope(joint[..., :3, :].flatten(2, 3), joint[..., 3, :], table)
    assert torch.equal(q, turned[0])
    assert torch.equal(k, turned[1])
    assert torch.equal(v, joint[..., 4, :])
    apart = joint.detach().transpose(0, 1).contiguous().transpose(0, 1)
    assert all(torch.equal(a, b) for a, b in zip(kernels.split_heads(apart, table), (q, k, v), strict=True))
    upstream = torch.randn(5, 2, 2, 16, device=DEVICE).transpose(0, 1)  # a gradient that is not dense
    (grad,) = torch.autograd.grad(v, joint, upstream)
    assert torch.equal(grad[..., 4, :], upstream)
    assert not grad[..., :4, :].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "hidden", "out"), [((3, 5, 16), 24, 16), ((7, 8), 5, 12)])
def test_gated_mlp(shape: tuple[int, ...], hidden: int, out: int, dtype: torch.dtype) -> None:
    x = drawn(*shape, dtype=dtype)
    gate_up, down = drawn(2, hidden, shape[-1], dtype=dtype, seed=1), drawn(out, hidden, dtype=dtype, seed=2)
    for keep in (False, True):
        layer = functools.partial(kernels.gated_mlp, keep=keep)
        compare(layer, layer, [x, gate_up / 4, down / 4], ulps=8, factor=2.0)


@pytest.mark.parametrize(("tokens", "width", "hidden"), [(32, 64, 32), (37, 32, 32), (32, 96, 40)])
def test_a_gated_mlps_gradient_behind_its_product(tokens: int, width: int, hidden: int) -> None:
    x, gate_up, down = (
        drawn(*shape, dtype=torch.float16, seed=seed, scale=0.25)
        for seed, shape in enumerate([(tokens, width), (2, hidden, width), (width, hidden)])
    )
    with override("gated_mlp_backward", Launch(block=16, rows=16, warps=4)):
        assert fits(x, down, torch.empty(tokens, 2 * hidden, dtype=torch.float16))
        layer = functools.partial(kernels.gated_mlp, keep=True)
        compare(layer, layer, [x, gate_up, down], ulps=8, factor=2.0)
