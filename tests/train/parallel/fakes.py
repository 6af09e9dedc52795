"""One rank of a layout of any size, built and stepped without memory: fake tensors, messages that go nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from kernels.core.dtensor import local
from train.build import build_mesh, build_model, build_optimizer
from train.data.batch import Batch
from train.parallel import pipeline
from train.parallel.experts import Exchange
from train.parallel.grad_norm import clip_factor, total_norm
from train.parallel.parallel_model import ParallelModel
from train.precision.loss_scaler import LossScaler
from train.runtime.distributed import World
from train.spec.config import RunConfig

STATIC = torch.ones(1)
"""The answer of all stages to whether they know the shapes of what they receive."""


class Fake(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Makes tensors without memory, but computes what follows from real ones alone: device meshes ask who they are."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Looking for the tensors takes as long as a fake operation; types are those of fakes and DTensors among them.
        if not types:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            if tensors and all(type(tensor) is Tensor and tensor.device.type != "meta" for tensor in tensors):
                return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


@dataclass(frozen=True)
class Stepped:
    """Bytes that a rank holds of weights, gradients and moments after a step, and the loss that it made."""

    weights: int
    gradients: int
    moments: int
    loss: Tensor


@contextmanager
def pretended(rank: int, ranks: int) -> Iterator[World]:
    """Be one of so many ranks, the others of which are not there."""
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    # Stages of newer versions of torch vote before their first step, and read the answer, which nobody has sent.
    try:
        with mock.patch.object(PipelineStage, "_warmup_backward_result", _agreed, create=True):
            yield World(rank, ranks)
    finally:
        dist.destroy_process_group()


def _agreed(stage: PipelineStage, received_result: Tensor | None) -> Tensor:
    return STATIC


@dataclass(frozen=True)
class Chunks:
    """What FSDP2 cuts a weight into for so many ranks, of which it looks at two: made when asked for."""

    tensor: Tensor
    count: int
    dim: int

    def __getitem__(self, place: int) -> Tensor:
        whole = self.tensor.shape[self.dim]
        size = -(-whole // self.count)
        start = place * size
        if start >= whole:
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, start, min(size, whole - start))


def _even(sent: Tensor, arriving: Tensor, rows: int) -> tuple[list[int], list[int]]:
    """Return that as many rows go to each rank of expert parallelism and come from it: nobody knows who chose what."""
    assert rows % len(sent) == 0
    return [rows // len(sent)] * len(sent), [rows // len(sent)] * len(sent)


def built(config: RunConfig, rank: int, ranks: int) -> dict[str, int]:
    """Return the bytes of each weight that one of so many ranks has, once it is built as the trainer does."""
    with _built(config, rank, ranks) as model:
        return {name: local(weight).nbytes for name, weight in model.named_parameters()}


def stepped(config: RunConfig, rank: int, ranks: int) -> Stepped:
    """Return what one of so many ranks holds once it has taken one step: forward, backward, clipping, update."""
    with _built(config, rank, ranks) as model:
        mesh, device = model.mesh, model.device
        optimizer = build_optimizer(config, model)
        assert config.batch.tokens is not None
        share = mesh.share(config.batch.tokens // config.data.sequence_length)
        tokens = torch.zeros((len(share), config.data.sequence_length // mesh.axes.cp), dtype=torch.int64)
        loss = model.forward_backward(Batch(tokens, tokens), float(tokens.numel()), LossScaler(device, 1.0, 1, False))
        weights = [weight for _, weight in model.named_parameters()]
        gradients = sum(local(weight.grad).nbytes for weight in weights if weight.grad is not None)
        # Without `skip`: a CPU reads that, and fakes have no value.
        optimizer.step(grad_scale=clip_factor(total_norm(weights, mesh), 1.0))
        state = optimizer.state
        return Stepped(
            sum(local(weight).nbytes for weight in weights),
            gradients,
            sum(local(value).nbytes for w in weights for key, value in state[w].items() if key != "step"),
            loss,
        )


@contextmanager
def _built(config: RunConfig, rank: int, ranks: int) -> Iterator[ParallelModel]:
    """Give a rank's part of the model, on a CPU, whose kernels are references; weights have no values to be given."""
    device = torch.device("cpu")
    config = replace(config, runtime=replace(config.runtime, device="cpu"))
    with pretended(rank, ranks) as world:
        mesh = build_mesh(config, world, device)
        even = mock.patch.object(Exchange, "sizes", staticmethod(_even))
        chunks = mock.patch.object(_fsdp_param, "_chunk_with_empty", Chunks)
        with even, chunks, Fake():
            yield build_model(config, mesh, device, fill=lambda module: None)


def schedules_made(config: RunConfig, rank: int, ranks: int, steps: int) -> list[int]:
    """Return the micro-batches of each schedule that one rank of a pipeline makes within so many steps, in order."""
    made: list[int] = []

    def counted(kind: type[Any]) -> Callable[..., Any]:
        def make(stages: Any, count: int, **rest: Any) -> Any:
            made.append(count)
            return kind(stages, count, **rest)

        return make

    kinds = {name: counted(kind) for name, kind in pipeline._CLASSES.items()}
    with _built(config, rank, ranks) as model, mock.patch.object(pipeline, "_CLASSES", kinds):
        assert config.batch.tokens is not None
        share = model.mesh.share(config.batch.tokens // config.data.sequence_length)
        tokens = torch.zeros((len(share), config.data.sequence_length // model.mesh.axes.cp), dtype=torch.int64)
        for _ in range(steps):
            model.forward_backward(
                Batch(tokens, tokens), float(tokens.numel()), LossScaler(model.device, 1.0, 1, False)
            )
    return made
