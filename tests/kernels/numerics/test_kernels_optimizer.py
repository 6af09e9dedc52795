"""AdamW and the gradient norm by Triton, against float64 and torch; casts to 8 bits against torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels
from kernels.core import multi_tensor
from kernels.core.launch_table import Launch, override
from kernels.float8.api import scale_of
from tests.kernels.oracle import DEVICE, INTERPRETED, check, digest, error
from train.model.params import ParamSpec
from train.optim.adamw import fused
from train.optim.build import make_optimizer
from train.spec.config import ModelConfig, OptimConfig

SHAPES = [(3,), (37, 11), (1,), (0,), (64, 5)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors of a few hundred elements span several blocks, each of several steps and a ragged end."""
    monkeypatch.setattr(multi_tensor, "BLOCK", 256)
    with override("adamw", Launch(block=128)), override("gradient_norm", Launch(block=128)):
        yield


def drawn(dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(scale * torch.randn(shape, generator=generator)).to(DEVICE, dtype) for shape in SHAPES]


NUMBERS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


def test_adamw_follows_torch_over_steps() -> None:
    mine, theirs = drawn(), [w.double().requires_grad_() for w in drawn()]
    means, squares = ([torch.zeros_like(w) for w in mine] for _ in range(2))
    optimizer = torch.optim.AdamW(theirs, foreach=False, **NUMBERS)
    fp32 = [w.clone().requires_grad_() for w in mine]
    plain = torch.optim.AdamW(fp32, foreach=False, **NUMBERS)
    for step in range(1, 4):
        grads = drawn(seed=step)
        for w, other, g in zip(theirs, fp32, grads, strict=True):
            w.grad, other.grad = 0.5 * g.double(), 0.5 * g
        optimizer.step()
        plain.step()
        scale = torch.tensor(0.5, device=DEVICE)
        kernels.adamw_step(mine, grads, means, squares, step=step, grad_scale=scale, **NUMBERS)
    ours, others, exact = (torch.cat([w.detach().flatten() for w in weights]) for weights in (mine, fp32, theirs))
    check(ours, others, exact, ulps=4)


def test_a_scale_in_the_step_is_that_of_gradients_multiplied_before() -> None:
    results = []
    for folded in (True, False):
        weights, grads, means, squares = drawn(), drawn(seed=1), drawn(seed=2), [x.square() for x in drawn(seed=3)]
        scale = torch.tensor(0.3, device=DEVICE)
        if not folded:
            torch._foreach_mul_(grads, scale)
        options = NUMBERS | {"grad_scale": scale if folded else None}
        kernels.adamw_step(weights, grads, means, squares, step=2, **options)
        results.append([*weights, *means, *squares])
    if INTERPRETED:
        assert digest(results[0]) == digest(results[1])
    for once, twice in zip(*results, strict=True):  # a compiler joins the product with the sum: one rounding fewer
        assert error(once, twice) <= torch.finfo(torch.float32).eps


def test_the_trainers_optimizer_clips_in_the_same_pass() -> None:
    model, optim = ModelConfig(width=16, layers=1), OptimConfig(lr=1e-2)
    results = []
    for kernel in (None, fused):
        named = {f"blocks.{i}.mlp.down": torch.nn.Parameter(w) for i, w in enumerate(drawn())}
        specs = {name: ParamSpec("matrix", tuple(weight.shape), 1.0) for name, weight in named.items()}
        optimizer = make_optimizer(named.items(), specs, model, optim, kernel=kernel)
        for step in range(3):
            for weight, grad in zip(named.values(), drawn(seed=1 + step), strict=True):
                weight.grad = grad
            skip = torch.full((), float(step == 1), device=DEVICE)
            optimizer.update(skip, torch.tensor(0.3, device=DEVICE))
        assert all(weight.grad is None for weight in named.values())
        results.append(torch.cat([w.detach().flatten() for w in named.values()]))
    assert error(*results) < 1e-7  # moments and weights are rounded a few times in another order


@pytest.mark.parametrize("master", [False, True])
def test_lr_and_step_on_the_device_are_the_same_step(master: bool) -> None:
    results = []
    for lr, step in ((1e-2, 7), (torch.tensor(1e-2, device=DEVICE), torch.tensor(7, device=DEVICE))):
        weights = drawn(torch.bfloat16 if master else torch.float32)
        masters = [w.float() for w in weights] if master else None
        means, squares = drawn(seed=1), [x.square() for x in drawn(seed=2)]
        numbers = NUMBERS | {"lr": lr}
        kernels.adamw_step(weights, drawn(seed=3), means, squares, step=step, masters=masters, **numbers)
        results.append([*(masters or weights), *means, *squares])
        if masters is not None and not INTERPRETED:  # the interpreter cuts off where a GPU rounds
            assert all(torch.equal(w, m.bfloat16()) for w, m in zip(weights, masters, strict=True))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_skipped_step_changes_no_bit(dtype: torch.dtype) -> None:
    weights, means = drawn(dtype), drawn(dtype, 1)
    squares = [x.square() for x in drawn(dtype, 2)]
    before = digest([*weights, *means, *squares])
    grads = [g.fill_(torch.nan) for g in drawn(dtype, 3)]
    arguments = (weights, grads, means, squares)
    kernels.adamw_step(*arguments, step=1, skip=torch.ones((), device=DEVICE), seed=3, **NUMBERS)
    assert digest([*weights, *means, *squares]) == before
    kernels.adamw_step(*arguments, step=1, skip=torch.zeros((), device=DEVICE), seed=3, **NUMBERS)
    assert digest([*weights, *means, *squares]) != before


def test_stochastic_rounding_is_right_on_average_and_repeats_with_its_seed() -> None:
    def step(seed: int) -> Tensor:
        weight = torch.full((512,), 1.0, dtype=torch.bfloat16, device=DEVICE)
        grad, mean, square = (torch.zeros(512, dtype=torch.bfloat16, device=DEVICE) for _ in range(3))
        numbers = NUMBERS | {"weight_decay": 0.1, "lr": 0.01}  # 1 → 0.999, a quarter of the way to the next number
        kernels.adamw_step([weight], [grad], [mean], [square], step=1, seed=seed, **numbers)
        return weight

    drawn_ = torch.stack([step(seed) for seed in range(8)]).double()
    assert set(drawn_.flatten().tolist()) == {1.0, 1.0 - 2**-8}
    assert abs(drawn_.mean() - 0.999) < 5 * 0.5 * 2**-8 / drawn_.numel() ** 0.5
    assert torch.equal(step(5), step(5))
    assert not torch.equal(step(5), step(6))


def test_norm_of_many_tensors() -> None:
    tensors = drawn(scale=10.0) + drawn(torch.float16, 1)
    exact = torch.cat([x.double().flatten() for x in tensors]).norm()
    assert error(kernels.gradient_norm(tensors), exact) < 2e-7
    assert error(kernels.gradient_norm(tensors, squared=True), exact.square()) < 4e-7
    assert digest([kernels.gradient_norm(tensors)]) == digest([kernels.gradient_norm(tensors)])
    tensors[1][3, 4] = torch.inf
    assert kernels.gradient_norm(tensors).isinf()


def test_views_that_start_between_16_bytes() -> None:
    flat = torch.randn(1000, device=DEVICE)
    parts = [flat[1:300], flat[301:1000]]
    assert error(kernels.gradient_norm(parts), torch.cat(parts).double().norm()) < 2e-7


@pytest.mark.parametrize("mode", ["reference", "triton"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_by_row_transposed_is_the_transposed_by_row(mode: str, dtype: torch.dtype) -> None:
    """The backward pass of the trainer's row-wise products takes the one for the other: not one bit may differ."""
    for kind in (torch.float32, torch.bfloat16):
        x = torch.randn(33, 70, generator=torch.Generator().manual_seed(0)).to(DEVICE, kind)
        x[:, 4], x[5] = 0.0, x[5] * 1e4
        with kernels.use(mode), override("fp8_tiles", Launch(block=32, rows=16)):
            both = kernels.cast_fp8(x, dtype=dtype, transposed=True)
            alone = kernels.cast_fp8(x.t().contiguous(), dtype=dtype)
        assert both.transposed is not None
        assert both.transposed_scale is not None
        assert torch.equal(both.transposed.view(torch.uint8), alone.values.view(torch.uint8))
        assert digest([both.transposed_scale]) == digest([alone.scale])


@pytest.mark.parametrize("by", ["row", "tensor"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8(by: Any, transposed: bool, dtype: torch.dtype) -> None:
    x = torch.randn(33, 70, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    x[4] = 0.0
    x[5] *= 1e4
    with override("fp8_tiles", Launch(block=32, rows=16)):
        for largest in (None, torch.tensor(4.5, device=DEVICE)) if by == "tensor" else (None,):
            ours = kernels.cast_fp8(x, dtype=dtype, by=by, transposed=transposed, largest=largest)
            with kernels.use("reference"):
                theirs = kernels.cast_fp8(x, dtype=dtype, by=by, transposed=transposed, largest=largest)
            if by == "row" and INTERPRETED:  # on a CPU torch divides where a GPU multiplies by the inverse
                theirs = theirs._replace(scale=scale_of(x.abs().amax(1, True).clamp(min=1e-12), dtype))
                if transposed:
                    columns = x.t().abs().amax(1, True).clamp(min=1e-12)
                    theirs = theirs._replace(transposed_scale=scale_of(columns, dtype))
            for a, b in zip(ours, theirs, strict=True):
                assert (a is None) == (b is None)
                if a is None or b is None:
                    continue
                if a.dtype == torch.float32:
                    assert torch.equal(a, b)
                elif INTERPRETED:  # its casts to 8 bits are a few percent off
                    assert error(a.float(), b.float()) < 0.3
                else:
                    assert digest([a]) == digest([b])
