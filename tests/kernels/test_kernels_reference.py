"""The references on a CPU, which are also what trains there, against torch and their formulas."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from kernels.core.multi_tensor import BLOCK, PROGRAMS, SHORTEST, span_of
from kernels.cross_entropy import linear
from kernels.cross_entropy.linear import chunk_rows
from kernels.rms_norm.api import rms_norm
from kernels.rope.api import rope
from kernels.swiglu.api import swiglu
from tests.kernels import oracle

IGNORED = -100
linear_cross_entropy: Any = functools.partial(kernels.linear_cross_entropy, reduction="sum")


def drawn(tokens: int, width: int, vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens * 7919 + vocabulary)
    hidden = torch.randn(tokens, width, generator=generator, dtype=dtype)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=dtype)
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 300])
@pytest.mark.parametrize("scale", [1.0, 1 / 512])
def test_loss_and_gradients_are_those_of_cross_entropy(
    tokens: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(linear.CHUNK_BYTES, "cpu", 64 * 4 * 50)  # chunks of 64 tokens
    assert chunk_rows(50, "cpu") == 64
    hidden, weight, targets = drawn(tokens, 8, 50, torch.float64)
    ours = linear_cross_entropy(hidden, weight, targets) * scale
    reference = scale * F.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    torch.testing.assert_close(ours, reference, rtol=1e-12, atol=0)
    for mine, theirs in zip(
        torch.autograd.grad(3 * ours, (hidden, weight)),
        torch.autograd.grad(3 * reference, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-13)


def test_fp32_is_as_close_to_fp64_as_torch_is() -> None:
    hidden, weight, targets = drawn(500, 64, 4096, torch.float32)
    exact = F.cross_entropy(hidden.double() @ weight.double().t(), targets, reduction="sum")
    theirs = F.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    ours = linear_cross_entropy(hidden, weight, targets)
    assert abs(ours - exact) <= max(2 * abs(theirs - exact), 1e-6 * exact)


def test_hopeless_targets_neither_overflow_nor_underflow() -> None:
    hidden = torch.tensor([[1.0], [1.0]], requires_grad=True)
    weight = torch.tensor([[500.0], [-500.0], [0.0]], requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, torch.tensor([1, 0]))
    assert loss.item() == 1000.0
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, (hidden, weight)))


def test_a_nan_shows_in_the_loss() -> None:
    hidden, weight, targets = drawn(5, 4, 10, torch.float32)
    with torch.no_grad():
        hidden[3, 2] = float("nan")
    assert torch.isnan(linear_cross_entropy(hidden, weight, targets))


def test_under_autocast_products_are_bf16_and_gradients_fp32() -> None:
    hidden, weight, targets = drawn(200, 64, 256, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = linear_cross_entropy(hidden, weight, targets)
    reference = F.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    assert abs(ours - reference) / reference < 5e-3
    assert ours.item() != reference.item()
    grads = torch.autograd.grad(ours, (hidden, weight))
    exact = torch.autograd.grad(reference, (hidden, weight))
    for mine, theirs in zip(grads, exact, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - theirs).norm() / theirs.norm() < 2e-2


def test_without_gradients_the_weight_gradient_is_not_made() -> None:
    hidden, weight, targets = drawn(100, 8, 50, torch.float32)
    with torch.no_grad():
        bare = linear_cross_entropy(hidden, weight, targets)
    assert not bare.requires_grad
    assert bare.item() == linear_cross_entropy(hidden, weight, targets).item()


@pytest.mark.parametrize("ignored", [0, 5, 130])
def test_ignored_targets_have_neither_loss_nor_gradient(ignored: int) -> None:
    hidden, weight, targets = drawn(130, 8, 50, torch.float64)
    targets[:ignored] = IGNORED
    ours = linear_cross_entropy(hidden, weight, targets)
    reference = F.cross_entropy(hidden @ weight.t(), targets, reduction="sum", ignore_index=IGNORED)
    torch.testing.assert_close(ours, reference, rtol=1e-12, atol=0)
    for mine, theirs in zip(
        torch.autograd.grad(ours, (hidden, weight)), torch.autograd.grad(reference, (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-13)


def test_rms_norm_and_its_gradients_are_the_formula() -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 5, 48, requires_grad=True)
    weight = torch.randn(48, requires_grad=True)
    grad = torch.randn(7, 5, 48)
    ours = rms_norm(x, weight, 1e-6)
    x64, w64 = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    wanted = x64 / torch.sqrt((x64**2).mean(-1, keepdim=True) + 1e-6) * w64
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-6)
    mine = torch.autograd.grad(ours, (x, weight), grad)
    theirs = torch.autograd.grad(wanted, (x64, w64), grad.double())
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


def test_swiglu_and_its_gradient_are_the_formula() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 20, requires_grad=True)
    grad = torch.randn(3, 4, 10)
    x64 = x.detach().double().requires_grad_()
    wanted = x64[..., :10] * torch.sigmoid(x64[..., :10]) * x64[..., 10:]
    ours = swiglu(x)
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-6)
    (mine,) = torch.autograd.grad(ours, x, grad)
    (theirs,) = torch.autograd.grad(wanted, x64, grad.double())
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-6)


def inputs(tokens: int = 9, width: int = 4, vocabulary: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight, target = drawn(tokens, width, vocabulary, torch.float64)
    target[::4] = IGNORED
    return hidden, weight, target


@pytest.mark.parametrize("options", oracle.OPTIONS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_of_the_losses_are_those_of_finite_differences(options: dict[str, Any], reduction: Any) -> None:
    hidden, weight, target = inputs()
    for recompute in (False, True):
        linear: Callable[..., Any] = functools.partial(
            kernels.linear_cross_entropy, target=target, reduction=reduction, recompute=recompute, **options
        )
        torch.testing.assert_close(
            linear(hidden, weight), oracle.cross_entropy(hidden @ weight.t(), target, reduction=reduction, **options)
        )
        assert torch.autograd.gradcheck(linear, (hidden, weight))
    direct = functools.partial(kernels.cross_entropy, target=target, reduction=reduction, **options)
    assert torch.autograd.gradcheck(direct, ((hidden @ weight.t()).detach().requires_grad_(),))


@pytest.mark.parametrize("options", oracle.OPTIONS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_details_have_the_cross_entropy_without_what_the_loss_adds(options: dict[str, Any], reduction: Any) -> None:
    hidden, weight, target = inputs()
    logits = (hidden @ weight.t()).detach().requires_grad_()
    shape = {name: value for name, value in options.items() if name in {"softcap", "logit_scale"}}
    wanted = oracle.cross_entropy(logits, target, reduction="none", **shape)
    given = {"reduction": reduction, "details": True, **options}
    for details in (
        *(kernels.linear_cross_entropy(hidden, weight, target, recompute=again, **given) for again in (False, True)),
        *(kernels.cross_entropy(logits * 1, target, in_place=there, **given) for there in (False, True)),
    ):
        assert isinstance(details, kernels.Details)
        torch.testing.assert_close(details.cross_entropy, wanted)
        assert not details.cross_entropy.requires_grad
        loss = oracle.cross_entropy(logits, target, reduction=reduction, **options)
        torch.testing.assert_close(details.loss, loss)


@pytest.mark.parametrize("interleaved", [True, False])
def test_gradients_of_the_layers_are_those_of_finite_differences(interleaved: bool) -> None:
    x, other, weight = (torch.randn(3, 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    scale = weight[0].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, w: rms_norm(a, w, 1e-3), (x, scale))
    assert torch.autograd.gradcheck(lambda a, b, w: kernels.add_rms_norm(a, b, w, 1e-3), (x, other, scale))
    assert torch.autograd.gradcheck(swiglu, (x, other))
    assert torch.autograd.gradcheck(swiglu, (x,))
    q, k = (torch.randn(1, 2, heads, 4, dtype=torch.float64, requires_grad=True) for heads in (3, 1))
    angles = torch.rand(2, 2, dtype=torch.float64)
    turns = torch.polar(torch.ones_like(angles), angles)
    assert torch.autograd.gradcheck(lambda a, b: rope(a, b, turns, interleaved=interleaved), (q, k))


def test_switch_and_refusals_name_what_is_wrong() -> None:
    hidden, weight, target = inputs()
    with pytest.raises(ValueError, match="one of auto, reference, triton"), kernels.use("cuda"):
        pass
    with kernels.use("triton"), pytest.raises(ValueError, match="Triton is forced but does not take this"):
        kernels.linear_cross_entropy(hidden, weight, target)
    wrong = target.clone()
    wrong[3] = 12
    for call, match in (
        (lambda: kernels.linear_cross_entropy(hidden, weight, wrong), "target: 12 is neither"),
        (lambda: kernels.linear_cross_entropy(hidden, weight[:, :2], target), "weight"),
        (lambda: kernels.linear_cross_entropy(hidden, weight, target[:2]), "one number for each token"),
        (lambda: kernels.linear_cross_entropy(hidden, weight, target.int()), "must be int64"),
        (lambda: kernels.linear_cross_entropy(hidden, weight, target, reduction="all"), "reduction='all'"),  # type: ignore[arg-type]
        (lambda: kernels.cross_entropy(hidden, target, label_smoothing=1.5), "label_smoothing=1.5"),
        (lambda: kernels.rms_norm(hidden, weight, 1e-6), "weight"),
        (lambda: kernels.swiglu(hidden[:, :3]), "even last axis"),
        (lambda: kernels.rope(hidden, weight, hidden), "q "),
        (lambda: kernels.gradient_norm([]), "at least one, all on one"),
        (lambda: kernels.cast_fp8(hidden, dtype=torch.float16), "dtype=torch.float16"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


@pytest.mark.parametrize("shape", [(1 << 22,), (3000, 1001), (65537,)])
def test_the_norm_of_long_gradients_is_exact_to_fp32(shape: tuple[int, ...]) -> None:
    """A plain sum of so many squares in fp32 is 8e-5 off, one of a gradient in shards less: clipping would differ."""
    long = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    short = torch.ones(3)
    exact = torch.cat([long.double().flatten(), short.double()]).norm()
    for gradients in ([short, long], [long.T if long.ndim > 1 else long, short]):
        found = kernels.gradient_norm(gradients)
        assert found.dtype == torch.float32 and abs(found.double() / exact - 1.0) < 1.2e-7
    brief = [long.bfloat16(), long.half()]
    exact = torch.cat([x.double().flatten() for x in brief]).norm()
    assert abs(kernels.gradient_norm(brief).double() / exact - 1.0) < 2e-6
    long.view(-1)[-1] = torch.inf
    assert kernels.gradient_norm([short, long]).isinf()


@pytest.mark.parametrize("elements", [0, 1, 7_400_000, 14_600_000, 150_000_000, 10**9])
def test_blocks_of_many_tensors_keep_every_multiprocessor_busy(elements: int) -> None:
    span = span_of(elements, 132)
    assert SHORTEST <= span <= BLOCK
    assert span & (span - 1) == 0
    assert span == SHORTEST or elements // span >= PROGRAMS * 132
    assert span == BLOCK or elements // (2 * span) < PROGRAMS * 132, "no shorter than that takes"
