"""Two gloo ranks run many cells in one start: `python -m tests.kernels.ranks`, see test_kernels_ranks."""

from __future__ import annotations

import functools
import itertools
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import kernels
from tests.kernels.oracle import OPTIONS, cross_entropy
from train.runtime.gloo import use_one_worker

RANKS = 2


def drawn(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(a: Tensor, b: Tensor, inputs: torch.dtype = torch.float32) -> None:
    tolerance = 1e-11 if inputs == torch.float64 else 2e-6
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, check_dtype=False)


def linear(rank: int, dtype: torch.dtype, vocabulary: int) -> None:
    """Vocabulary-parallel heads against one process: losses, both gradients, every way to sum that of hidden."""
    tokens, width = 8, 6
    rows = -(-vocabulary // RANKS)
    mine = slice(rank * rows, min((rank + 1) * rows, vocabulary))
    target = torch.randint(0, vocabulary, (tokens,), generator=torch.Generator().manual_seed(3))
    target[2] = -100
    ways = ("all_reduce", "partial", "reduce_scatter")
    for options, reduction, way, again in itertools.product(
        (OPTIONS[0], OPTIONS[-1]), ("mean", "sum", "none"), ways, (False, True)
    ):
        hidden = drawn(tokens, width, dtype=dtype, seed=1).requires_grad_()
        weight = drawn(vocabulary, width, dtype=dtype, seed=2).requires_grad_()
        whole = cross_entropy(hidden @ weight.t(), target, reduction=reduction, **options)
        up = drawn(*whole.shape, dtype=torch.float64, seed=4)
        expected = torch.autograd.grad(whole, (hidden, weight), up.to(whole.dtype))
        block = slice(rank * tokens // RANKS, (rank + 1) * tokens // RANKS) if way == "reduce_scatter" else slice(None)
        part = hidden.detach()[block].clone().requires_grad_()
        held = weight.detach()[mine].clone().requires_grad_()
        details: Any = kernels.linear_cross_entropy(
            part, held, target, reduction=reduction, group=dist.group.WORLD, vocabulary=(mine.start, vocabulary),
            hidden_gradient=way, recompute=again, details=True, **options,
        )  # fmt: skip
        loss = details.loss
        close(loss, whole, dtype)
        shape = {name: value for name, value in options.items() if name in {"softcap", "logit_scale"}}
        bare = cross_entropy(hidden @ weight.t(), target, reduction="none", **shape)
        close(details.cross_entropy, bare, dtype)
        grad_hidden, grad_weight = torch.autograd.grad(loss, (part, held), up.to(loss.dtype))
        if way == "partial":
            dist.all_reduce(grad_hidden)
        close(grad_hidden, expected[0][block], dtype)
        close(grad_weight, expected[1][mine], dtype)


def rows_of_layers() -> None:
    """Layers on DTensors stay where their rows are; the weight's gradient is summed over them."""
    mesh = init_device_mesh("cpu", (RANKS,))
    x, other = (drawn(4, 3, 8, dtype=torch.float32, seed=s) for s in (1, 2))
    weight = drawn(8, dtype=torch.float32, seed=3)
    calls: list[tuple[Any, list[Tensor], list[Any]]] = [
        (functools.partial(kernels.rms_norm, eps=1e-6), [x, weight], [Shard(0), Replicate()]),
        (functools.partial(kernels.rms_norm, eps=1e-6), [x, weight], [Shard(2), Replicate()]),
        (functools.partial(kernels.add_rms_norm, eps=1e-6), [x, other, weight], [Shard(1), Shard(1), Replicate()]),
        (kernels.swiglu, [x, other], [Shard(1), Shard(1)]),
        (kernels.swiglu, [x], [Shard(0)]),
    ]
    for call, inputs, placements in calls:
        leaves = [t.clone().requires_grad_() for t in inputs]
        pieces = [distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in zip(inputs, placements, strict=True)]
        plain, cut = call(*leaves), call(*pieces)
        outputs = [(plain, cut)] if isinstance(plain, Tensor) else list(zip(plain, cut, strict=True))
        for a, b in outputs:
            close(b.full_tensor(), a)
            if placements[0] != Shard(2):
                assert b.placements == (placements[0],)
        total = sum((a * a).sum() for a, _ in outputs)
        parallel = sum((b * b).sum() for _, b in outputs)
        for want, got in zip(
            torch.autograd.grad(total, leaves), torch.autograd.grad(parallel, pieces), strict=True  # type: ignore[arg-type]
        ):  # fmt: skip
            assert isinstance(got, DTensor)
            close(got.full_tensor(), want)
            assert not any(isinstance(p, Partial) for p in got.redistribute(placements=[Replicate()]).placements)


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("error", ".*is deprecated", FutureWarning)  # which users would see in every run
    use_one_worker()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with kernels.use("reference"):
        linear(rank, torch.float64, 11)
    with kernels.use("triton"):
        linear(rank, torch.float32, 10)
        rows_of_layers()
    dist.destroy_process_group()
    print("right")


if __name__ == "__main__":
    main()
