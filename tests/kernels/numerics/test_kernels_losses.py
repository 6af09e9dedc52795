"""Cross-entropy on logits and on a linear head, by Triton, against float64."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels
from kernels.core.launch_table import Launch, override
from kernels.cross_entropy import linear
from kernels.scale.api import scale_
from tests.kernels import oracle
from tests.kernels.oracle import DEVICE, DTYPES, INTERPRETED, OPTIONS, check, compare, digest

KINDS = ("random", "confident", "ignored", "minus infinity", "huge")


def drawn(kind: str, rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, columns, generator=generator)
    target = torch.randint(0, columns, (rows,), generator=generator)
    if kind == "confident":
        logits[torch.arange(rows), target] = logits.amax(1) + torch.linspace(2, 12, rows)
    elif kind == "minus infinity":
        logits[:, ::3] = -torch.inf
        logits[torch.arange(rows), target] = 1.0
    elif kind == "huge":
        logits *= 3000
    target[rows // 2] = -100
    if kind == "ignored":
        target[:] = -100
    return logits.to(dtype), target


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_logits(kind: str, dtype: torch.dtype) -> None:
    logits, target = drawn(kind, 6, 127, dtype)
    for reduction in ("mean", "none"):
        ours = functools.partial(kernels.cross_entropy, reduction=reduction)
        theirs = functools.partial(oracle.cross_entropy, reduction=reduction)
        # Where p is near 1, p - 1 and log(1 + a little) keep few digits, here as in torch; and from short formats the
        # kernels take exponentials to 2e-6 of themselves, torch to 1e-7, which losses near 0 show.
        # Of fp32, a GPU's exponential is right to two units in the last place, torch's to one.
        hard, allowed = kind == "confident", 2.5 if dtype == torch.float32 else 1.5
        compare(ours, theirs, [logits], ulps=200 if hard else 8, factor=12.0 if hard else allowed, rest=[target])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_options(options: dict[str, Any], reduction: Any) -> None:
    logits, target = drawn("random", 5, 300, torch.float32)
    ours = functools.partial(kernels.cross_entropy, reduction=reduction, **options)
    theirs = functools.partial(oracle.cross_entropy, reduction=reduction, **options)
    compare(ours, theirs, [logits], ulps=16, factor=2.0, rest=[target])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_cross_entropy_beside_the_loss(options: dict[str, Any]) -> None:
    logits, target = drawn("random", 5, 300, torch.float32)
    shape = {name: value for name, value in options.items() if name in {"softcap", "logit_scale"}}
    details = kernels.cross_entropy(logits.to(DEVICE), target.to(DEVICE), details=True, **options)
    assert isinstance(details, kernels.Details)
    plain, exact = (oracle.cross_entropy(x, target, reduction="none", **shape) for x in (logits, logits.double()))
    check(details.cross_entropy, plain, exact, ulps=16, factor=2.0)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 127), (2, 4097), (2, 9000), (0, 17)])
def test_ragged_sizes(rows: int, columns: int) -> None:
    logits, target = drawn("random", max(rows, 1), columns, torch.float32)
    # Few rows, and exponentials right to two units in the last place where torch's are to one.
    compare(kernels.cross_entropy, oracle.cross_entropy, [logits[:rows]], ulps=8, factor=2.5, rest=[target[:rows]])


def test_rows_that_lie_apart_and_gradients_in_place() -> None:
    logits, target = (x.to(DEVICE) for x in drawn("random", 5, 100, torch.float32))
    wide = torch.full((5, 160), torch.nan, device=DEVICE)
    wide[:, :100] = logits
    leaf = wide[:, :100].detach().requires_grad_()
    expected = torch.autograd.grad(kernels.cross_entropy(logits.requires_grad_(), target), logits)[0]
    got = torch.autograd.grad(kernels.cross_entropy(leaf, target), leaf)[0]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-8)  # other strides, other order of sums
    for reduction in ("mean", "none"):
        plain: Any = kernels.cross_entropy(logits, target, reduction=reduction)
        want = torch.autograd.grad(plain.sum(), logits)[0]
        copy = logits.detach().clone().requires_grad_()
        inner = copy * 1
        loss: Any = kernels.cross_entropy(inner, target, reduction=reduction, in_place=True)
        got = torch.autograd.grad(loss.sum(), inner)[0]
        assert torch.equal(got, want)
        assert got.data_ptr() == inner.data_ptr()


def test_whoever_needs_overwritten_logits_hears_of_it() -> None:
    logits, target = (x.to(DEVICE) for x in drawn("random", 3, 20, torch.float32))
    squares = (inner := logits.requires_grad_() * 1).square().sum()
    loss: Any = kernels.cross_entropy(inner, target, in_place=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (loss + squares).backward()


def test_scaling_in_place_covers_everything() -> None:
    x = torch.arange(1000.0, device=DEVICE)
    with override("scaled", Launch(block=64, warps=1, programs=1)):  # in the interpreter 4 programs for 16 blocks
        scale_(x, torch.tensor(1.0, device=DEVICE))
        assert torch.equal(x.cpu(), torch.arange(1000.0))
        scale_(x, torch.tensor(0.5, device=DEVICE))
    assert torch.equal(x.cpu(), torch.arange(1000.0) / 2)


def test_the_second_backward_pass_is_right_or_refused() -> None:
    logits, target = (x.to(DEVICE) for x in drawn("random", 3, 20, torch.float32))
    logits.requires_grad_()
    losses: Any = kernels.cross_entropy(logits, target, reduction="none")
    first, second = (torch.autograd.grad(losses.sum(), logits, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    loss = kernels.cross_entropy(logits, target)
    torch.autograd.grad(loss, logits, retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass"):
        torch.autograd.grad(loss, logits)


def exact_linear(hidden: Tensor, weight: Tensor, target: Tensor, **options: Any) -> Tensor:
    return oracle.cross_entropy(hidden @ weight.t(), target, **options)


# The slow interpreter sees fp16 in the cross-entropy on logits, whose kernel this one's chunks go through.
LINEAR_DTYPES = tuple(dtype for dtype in DTYPES if not (INTERPRETED and dtype == torch.float16))


@pytest.mark.parametrize("dtype", LINEAR_DTYPES, ids=str)
@pytest.mark.parametrize("mode", [{}, {"recompute": True}, {"reduction": "none"}, {"reduction": "sum"}], ids=str)
@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[-1]], ids=["plain", "options"])
def test_linear(
    mode: dict[str, Any], options: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "TRITON_CHUNK_BYTES", 1)  # chunks of 64 tokens, evened out
    generator = torch.Generator().manual_seed(1)
    tokens = 70 if INTERPRETED else 1000
    hidden = torch.randn(tokens, 16, generator=generator).to(dtype)
    weight = torch.randn(129, 16, generator=generator).to(dtype)
    target = torch.randint(0, 129, (tokens,), generator=generator)
    target[::9] = -100
    plain = {k: v for k, v in mode.items() if k == "reduction"}
    compare(
        functools.partial(kernels.linear_cross_entropy, **mode, **options),
        functools.partial(exact_linear, **plain, **options), [hidden, weight], ulps=16, rest=[target],
        # bf16 sums, a chunk at a time: the first rounding is torch's only one. 70 tokens in the interpreter: the sum of
        # their logits' roundings is luck.
        factor=3.0 if INTERPRETED else 1.5,
    )  # fmt: skip


def test_linear_twice_backward_and_two_micro_batches() -> None:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(20, 8, generator=generator).to(DEVICE).requires_grad_()
    weight = torch.randn(50, 8, generator=generator).to(DEVICE).requires_grad_()
    target = torch.randint(0, 50, (20,), generator=generator).to(DEVICE)
    loss: Any = kernels.linear_cross_entropy(hidden, weight, target, reduction="sum")
    first = torch.autograd.grad(3 * loss, (hidden, weight), retain_graph=True)
    assert digest(first) == digest(torch.autograd.grad(3 * loss, (hidden, weight)))
    for part in (slice(0, 7), slice(7, 20)):
        of_part: Any = kernels.linear_cross_entropy(hidden[part], weight, target[part], reduction="sum")
        (3 * of_part).backward()
    assert hidden.grad is not None and weight.grad is not None
    for whole, summed in zip(first, (hidden.grad, weight.grad), strict=True):
        check(summed, whole, whole.double(), ulps=8, factor=4.0)


def test_linear_all_ignored_and_without_gradients() -> None:
    hidden, weight = torch.randn(5, 8, device=DEVICE), torch.randn(30, 8, device=DEVICE)
    target = torch.full((5,), -100, device=DEVICE)
    hidden.requires_grad_()
    loss: Any = kernels.linear_cross_entropy(hidden, weight, target)
    assert loss.item() == 0
    assert torch.autograd.grad(loss, hidden)[0].abs().max() == 0
    with torch.no_grad():
        details = kernels.linear_cross_entropy(hidden, weight, target.clamp(min=3), details=True)
    assert isinstance(details, kernels.Details)
    check(details.lse, details.lse, (hidden.double() @ weight.double().t()).logsumexp(1), ulps=8)
