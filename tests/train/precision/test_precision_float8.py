"""Products in fp8: close to the exact ones forward and backward, scaled by what they are given."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from kernels.float8.api import cast_fp8
from train.parallel.float8_all_gather import Float8Shard
from train.precision.float8 import BACKWARD, FORWARD, Received, convert, rowwise, tensorwise
from train.precision.product import Product
from train.spec.config import PrecisionConfig

FP8 = PrecisionConfig(name="fp8")


def error(got: Tensor, wanted: Tensor) -> float:
    return float((got.detach().double() - wanted.detach().double()).norm() / wanted.detach().double().norm())


@pytest.mark.parametrize("product", [tensorwise, rowwise])
def test_product_and_its_gradients_are_near_the_exact_ones(product: object) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 24, 64), torch.randn(48, 64) / 8
    upstream = torch.randn(2, 24, 48)
    exact = [t.double().requires_grad_() for t in (x, weight)]
    F.linear(*exact).backward(upstream.double())  # type: ignore[no-untyped-call]
    ours = [t.requires_grad_() for t in (x, weight)]
    y = product(*ours)  # type: ignore[operator]
    y.backward(upstream)
    # One rounding to 3 bits of mantissa is off by 2 to 3 % (e5m2: 5 %) of a normal number; a product has two.
    assert 1e-3 < error(y, F.linear(*exact)) < 0.05
    assert error(ours[0].grad, exact[0].grad) < 0.08  # type: ignore[arg-type]
    assert error(ours[1].grad, exact[1].grad) < 0.08  # type: ignore[arg-type]
    assert y.dtype is torch.float32 and ours[1].grad.shape == weight.shape  # type: ignore[union-attr]


def test_rowwise_is_finer_where_one_token_is_an_outlier() -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(32, 64), torch.randn(48, 64)
    x[0] *= 1e5
    exact = F.linear(x, weight)
    assert error(rowwise(x, weight)[1:], exact[1:]) < 0.06
    assert error(tensorwise(x, weight)[1:], exact[1:]) > 0.15


def test_under_autocast_the_product_comes_out_in_its_format() -> None:
    x, weight = torch.randn(16, 32), nn.Parameter(torch.randn(32, 32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = tensorwise(x, weight)
    y.float().sum().backward()  # type: ignore[no-untyped-call]
    assert y.dtype is torch.bfloat16
    assert weight.grad is not None and weight.grad.dtype is torch.float32


@pytest.mark.parametrize("by", ["row", "tensor"])
@pytest.mark.parametrize("dtype", [FORWARD, BACKWARD])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_largest_magnitude_fills_the_format(by: Any, dtype: torch.dtype, scale: float) -> None:
    x = torch.tensor([[-3.0, 1.5, 0.0]]) * scale
    values, factor, _, _ = cast_fp8(x, dtype=dtype, by=by)
    if scale > 1e-20:  # below, the factor ends at its smallest so that zeros do not divide by zero
        assert float(values.float().abs().max()) == torch.finfo(dtype).max
        torch.testing.assert_close(values.float() * factor, x, rtol=1e-6, atol=0)
    assert torch.isfinite(values.float()).all()


def test_rows_are_narrowed_by_the_expression_that_runs_began_with() -> None:
    x = torch.randn(50, 96, generator=torch.Generator().manual_seed(5)) * torch.logspace(-6, 6, 50)[:, None]
    for given in (x, x.bfloat16(), x.t().contiguous()):
        factor = given.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / 448.0
        values = (given.float() / factor).clamp(-448.0, 448.0).to(FORWARD)
        ours = cast_fp8(given)
        assert torch.equal(ours.scale, factor)
        assert torch.equal(ours.values.view(torch.uint8), values.view(torch.uint8))


def test_zeros_stay_zeros() -> None:
    assert not tensorwise(torch.zeros(16, 32), torch.randn(16, 32)).any()


class Layer(nn.Module):
    linear: dict[str, Product]

    def __init__(self) -> None:
        super().__init__()
        self.linear = {"a": F.linear, "b": F.linear}


def test_blocks_at_the_ends_keep_their_products() -> None:
    layers = [(Layer(), Layer()) for _ in range(4)]
    blocks = [nn.Sequential(*pair) for pair in layers]
    assert convert(dict(enumerate(blocks)), 4, replace(FP8, fp8_keep_blocks=1)) == 8
    assert [first.linear["b"] is tensorwise for first, _ in layers] == [False, True, True, False]
    assert convert(dict(enumerate(blocks)), 4, replace(FP8, fp8_scaling="rowwise")) == 16
    assert all(layer.linear == {"a": rowwise, "b": rowwise} for pair in layers for layer in pair)


def test_a_stage_of_a_pipeline_keeps_only_the_ends_of_the_model() -> None:
    last = {2: Layer(), 3: Layer()}
    assert convert(last, 4, replace(FP8, fp8_keep_blocks=1)) == 2
    assert set(last[2].linear.values()) == {tensorwise} and set(last[3].linear.values()) == {F.linear}


@pytest.mark.parametrize("keep", [-1, 2])
def test_keeping_all_blocks_is_refused_with_what_would_do(keep: int) -> None:
    with pytest.raises(ValueError, match=rf"fp8_keep_blocks={keep} of 4 blocks.*use 0 to 1"):
        convert({0: Layer()}, 4, replace(FP8, fp8_keep_blocks=keep))


def test_a_weight_that_comes_in_fp8_gives_the_same_bits_as_one_narrowed_here() -> None:
    torch.manual_seed(2)
    weight = torch.randn(40, 32).bfloat16()
    narrow = cast_fp8(weight, by="tensor")
    results = []
    for product, stand in ((Received(), torch.empty_like(weight)), (tensorwise, weight)):
        if isinstance(product, Received):
            product.values, product.factor = narrow.values, narrow.scale
            stand.untyped_storage().resize_(0)  # its numbers are not read
        x = torch.arange(48 * 32.0).view(48, 32).sin().bfloat16().requires_grad_()
        stand.requires_grad_()
        y = product(x, stand)
        y.backward(y.detach().square())  # type: ignore[no-untyped-call]
        results.append((y, x.grad, stand.grad))
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None and theirs is not None and torch.equal(ours, theirs)


@pytest.mark.parametrize("rows", [(14, 14, 12), (1, 1, 0)])
def test_shards_of_different_sizes_are_sent_alike_and_come_as_one_weight(rows: tuple[int, ...]) -> None:
    whole = torch.randn(sum(rows), 16, generator=torch.Generator().manual_seed(3))
    largest = whole.bfloat16().abs().amax().float()
    policy, mesh = MixedPrecisionPolicy(param_dtype=torch.bfloat16), SimpleNamespace(size=lambda: len(rows))
    product, sent = Received(), []
    for shard in torch.split(whole, list(rows)):
        way = Float8Shard(product, shard, 16)
        way.start(largest, torch.ones(()))
        (part,), size = shard.fsdp_pre_all_gather(mesh, whole.shape, whole.stride(), nn.Identity(), policy)  # type: ignore[attr-defined]
        assert part.dtype is torch.uint8 and part.shape == (rows[0], 16)
        sent.append(part)
    stand, inner = shard.fsdp_post_all_gather((torch.cat(sent),), size, torch.bfloat16)  # type: ignore[attr-defined]
    wanted = cast_fp8(whole.bfloat16(), by="tensor").values
    assert product.values is not None and torch.equal(product.values.view(torch.uint8), wanted.view(torch.uint8))
    weight = torch.as_strided(stand, whole.shape, whole.stride(), storage_offset=0)
    assert weight.shape == whole.shape and weight.dtype is torch.bfloat16 and not weight.untyped_storage().size()
    assert inner == []
