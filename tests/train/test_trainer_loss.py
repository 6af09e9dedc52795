"""The chunked loss against torch's cross_entropy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from train import loss as module
from train.loss import IGNORED, chunk_rows, linear_cross_entropy


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
    monkeypatch.setitem(module.CHUNK_BYTES, "cpu", 64 * 4 * 50)  # chunks of 64 tokens
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
