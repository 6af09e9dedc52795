"""Pipeline parallelism: the layers cut into stages, micro-batches passing through them by one of torch's schedules.

Every rank calls `Pipeline.step` with the same batch; torch.distributed.pipelining runs forward and backward passes in
the schedule's order and sends activations and their gradients between neighbours. Which layers lie where is decided
in train.spec.pipeline_layout. A tied embedding is in the first stage and in the last: both copies get the sum of both
gradients, so they stay the same weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.profiler import record_function

from train.data.batch import Batch
from train.model.transformer import Part
from train.parallel.grad_norm import local_gradient
from train.parallel.mesh import Mesh
from train.parallel.model_part import ModelPart
from train.spec.config import ParallelConfig, RunConfig
from train.spec.micro_batch import even_parts
from train.spec.pipeline_layout import SCHEDULES, layers_of, micro_batches, rank_of, stages_of, stages_per_rank
from train.spec.pipeline_schedule.orders import Kind
from train.spec.pipeline_schedule.trace import mark

Context = Callable[[], AbstractContextManager[Any]]

_CLASSES: dict[str, type[Any]] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zb1p": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
}


def parts_of(config: RunConfig, rank: int) -> tuple[Part, ...]:
    """Return which parts of the model a rank of the pipeline holds, in the model's order."""
    sizes = layers_of(config)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(
        Part(ends[i] - sizes[i], ends[i], first=i == 0, last=i == len(sizes) - 1)
        for i in stages_of(config.parallel, rank)
    )


class Pipeline:
    """The stages of this rank and the schedules that run them.

    parts: in the model's order, a stage each. micro: most sequences of one micro-batch. width and dtype: those of the
    residual stream. forward: the context of forward passes (autocast).
    """

    def __init__(
        self,
        parallel: ParallelConfig,
        mesh: Mesh,
        parts: Sequence[ModelPart],
        device: torch.device,
        *,
        micro: int,
        width: int,
        dtype: torch.dtype,
        forward: Context,
        tied: bool,
    ) -> None:
        self._parallel, self._mesh, self._parts, self._device = parallel, mesh, tuple(parts), device
        self._micro, self._width, self._dtype, self._forward = micro, width, dtype, forward
        self._group = mesh.group("pp")
        self._numbers = stages_of(parallel, mesh.rank("pp"))
        self._count = parallel.pp * stages_per_rank(parallel)
        self._made_for: tuple[int, int] | None = None
        self._stages: list[_Stage] = []
        self._schedules: dict[int, Any] = {}
        self._divisor = torch.ones((), dtype=torch.float64, device=device)
        self._losses: list[Tensor] = []
        self._copies = _tied_copies(self._parts) if tied else []
        self._copies_group = _ends_group(mesh, rank_of(parallel, self._count - 1)) if tied else None
        # The first message of a group makes its communicator, for which all of its ranks have to be there.
        dist.all_reduce(torch.zeros(1, device=device), group=self._group)

    @property
    def last(self) -> bool:
        """Whether this rank has the last stage, and so the losses."""
        return self._numbers[-1] == self._count - 1

    def step(self, batch: Batch, valid: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """Add the gradients of the batch's loss / valid x scale to the weights'; return the sum of loss / valid.

        `valid` is the step's count of trained tokens over all ranks. An fp64 scalar on the device: the losses of this
        rank's batch on ranks with the last stage, 0 on the others.
        """
        self._divisor = valid.double() / scale
        self._losses = []
        for part in self._parts:  # stages before the last have no loss but that of balancing their experts
            part.module.routing.factor = part.loss_factor / self._divisor
        size, wanted = self._micro_batches(len(batch))
        together = self._parallel.pp_micro_batches or wanted
        start = 0
        for count in even_parts(wanted, together):
            chunk = batch.part(start, min(start + count * size, len(batch)))
            start += count * size
            self._pass(chunk, size, micro_batches(self._parallel, count))
        for part in self._parts:
            _make_contiguous(part.module)
            part.finish()
        self._sum_tied()
        return torch.stack(self._losses).sum() / valid if self._losses else self._zero()

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        """Return what the model makes of a batch: its summed loss [nats], an fp64 scalar, or where the modules' `each`
        is set each token's, (sequences, length) fp32. On ranks without the last stage zeros of the same shape.

        All ranks pass micro-batches through the stages in one order, so that no two wait for each other. With several
        stages a rank this is slower than the training schedule.
        """
        size, count = self._micro_batches(len(batch))
        padded, found = batch.padded(size * count), []
        for i in range(count):
            micro = padded.part(i * size, (i + 1) * size)
            hidden: Tensor | None = None
            for number, part in zip(self._numbers, self._parts, strict=True):
                out = self._forward_part(number, part, micro, hidden)
                hidden = None
                if number == self._count - 1:
                    found.append(out)
                elif rank_of(self._parallel, number + 1) == self._mesh.rank("pp"):
                    hidden = out
                else:
                    dist.send(out.contiguous(), self._peer(number + 1), group=self._group)
        if not self._parts[0].module.each:
            return torch.stack(found).sum() if found else self._zero()
        tokens = torch.zeros(batch.inputs.shape, dtype=torch.float32, device=self._device)
        return torch.cat(found)[: len(batch)] if found else tokens

    def _forward_part(self, number: int, part: ModelPart, micro: Batch, hidden: Tensor | None) -> Tensor:
        x = micro.inputs if number == 0 else hidden
        if x is None:
            x = torch.empty(self._shape(micro), dtype=self._dtype, device=self._device)
            dist.recv(x, self._peer(number - 1), group=self._group)
        with self._forward():
            out: Tensor = part.call(x, micro.targets, micro.positions, **_documents(micro))
        return out

    def _pass(self, chunk: Batch, size: int, count: int) -> None:
        """Run forward and backward passes of `count` micro-batches of `size` sequences."""
        chunk = chunk.padded(size * count)
        schedule = self._schedule(chunk.part(0, size), count)
        first = (chunk.inputs,) if self._numbers[0] == 0 else ()
        given = {"targets": chunk.targets, "positions": chunk.positions, **_documents(chunk)}
        kwargs = {name: value for name, value in given.items() if value is not None}
        target = chunk.targets if self.last else None
        schedule.step(*first, target=target, return_outputs=False, **kwargs)

    def _schedule(self, micro: Batch, count: int) -> Any:
        """Return the schedule for `count` micro-batches shaped as this one.

        Passes of a step may have unequal numbers of them. All schedules of one shape share the stages, and so one set
        of buffers.
        """
        sequences, length = micro.inputs.shape
        if self._made_for != (sequences, length):
            self._stages, self._schedules = self._make_stages(micro), {}
            self._made_for = (sequences, length)
        if count not in self._schedules:
            kind = _CLASSES[self._parallel.pp_schedule]
            single = SCHEDULES[self._parallel.pp_schedule].stages == 1
            stages = self._stages[0] if single else self._stages
            self._schedules[count] = kind(stages, count, loss_fn=self._scaled, scale_grads=False)
        for stage in self._stages:
            stage.chunks = count  # torch sets it where a schedule first runs
        return self._schedules[count]

    def _make_stages(self, micro: Batch) -> list[_Stage]:
        """Return the stages of this rank for micro-batches shaped as this one."""
        # Told the shapes, stages do not run a pass of their own to find them; gradients are received where asked for.
        stream = torch.empty(self._shape(micro), dtype=self._dtype, device="meta", requires_grad=True)
        loss = torch.empty((), dtype=torch.float64, device="meta", requires_grad=True)
        made = [
            _Stage(
                part.module,
                number,
                self._count,
                self._device,
                input_args=(micro.inputs.to("meta") if number == 0 else stream,),
                output_args=(loss if number == self._count - 1 else stream,),
                group=self._group,
            )
            for number, part in zip(self._numbers, self._parts, strict=True)
        ]
        for one in made:
            one.forward_context = self._forward
        return made

    def _scaled(self, loss: Tensor, target: Tensor) -> Tensor:
        """Return what a micro-batch's backward pass starts from; the loss itself is remembered."""
        self._losses.append(loss.detach())
        return loss * (self._parts[-1].loss_factor / self._divisor)

    def _micro_batches(self, sequences: int) -> tuple[int, int]:
        """Return size and number of the micro-batches of a batch; fewer, larger ones would leave stages idle."""
        given = self._parallel.micro_batch_sequences
        size = given or max(1, min(self._micro, sequences // self._count))
        return size, -(-sequences // size)

    def _shape(self, micro: Batch) -> tuple[int, int, int]:
        """Return the shape of the residual stream here; tensor-parallel ranks each have a run of its positions."""
        sequences, length = micro.inputs.shape
        return sequences, length // self._mesh.axes.tp, self._width

    def _zero(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self._device)

    def _peer(self, stage: int) -> int:
        return dist.get_global_rank(self._group, rank_of(self._parallel, stage))

    def _sum_tied(self) -> None:
        """Give both copies of a tied embedding the sum of their gradients."""
        if not self._copies:
            return
        grads = [local_gradient(copy) for copy in self._copies]
        if len(grads) == 2:  # stages in a V: both are here
            grads[0].add_(grads[1])
            grads[1].copy_(grads[0])
        else:
            dist.all_reduce(grads[0], group=self._copies_group)


class _Stage(PipelineStage):
    """A stage whose forward passes run in a context, and whose passes a trace of the profiler names."""

    forward_context: Context

    def _post_metadata_inference_cleanup(self) -> None:
        """Keep the gradients, which torch would clear: no pass has run to find shapes, and a step may have run others.

        A new schedule first runs within a step where its passes have unequal numbers of micro-batches.
        """

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module forward. Autocast belongs around this alone, not around the backward passes in between."""
        with self.forward_context():
            return super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run a micro-batch forward, which has arrived."""
        with record_function(mark(self.stage_index, Kind.FORWARD, fwd_chunk_id)):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Run a micro-batch backward, whose gradient has arrived: all of it, or for inputs."""
        kind = Kind.BACKWARD if full_backward else Kind.INPUT
        with record_function(mark(self.stage_index, kind, bwd_chunk_id)):
            super().backward_one_chunk(
                bwd_chunk_id, loss=loss, full_backward=full_backward, last_backward=last_backward
            )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Run a micro-batch backward for weights."""
        with record_function(mark(self.stage_index, Kind.WEIGHT, bwd_chunk_id)):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward=last_backward)


def _make_contiguous(module: nn.Module) -> None:
    """Give gradients the memory layout of their weights.

    A split backward pass leaves some of them as transposed views, where autograd would have copied them. Fused
    optimizers and collectives read memory in order, and would mix up the values.
    """
    for weight in module.parameters():
        if weight.grad is not None and weight.grad.stride() != weight.stride():
            weight.grad = weight.grad.contiguous()


def _tied_copies(parts: Sequence[ModelPart]) -> list[nn.Parameter]:
    """Return this rank's copies of the tied embedding, marked as being in two stages each."""
    copies = [part.module.embedding.weight for part in parts if part.module.embedding is not None]
    for copy in copies:
        copy.in_stages = 2  # type: ignore[attr-defined]  # read by train.parallel.grad_norm
    return copies


def _ends_group(mesh: Mesh, last: int) -> dist.ProcessGroup | None:
    """Return the group of this pipeline's first and last rank, None on other ranks and where they are one.

    Every rank of the job takes part in making every pipeline's group.
    """
    if last == 0:
        return None
    mine = dist.get_process_group_ranks(mesh.group("pp"))
    found = None
    for ranks in sorted({tuple(ranks) for ranks in mesh.world.gather(mine)}):
        ends = [ranks[0], ranks[last]]
        group = dist.new_group(ends)
        if mesh.world.rank in ends:
            found = group
    return found


def _documents(batch: Batch) -> dict[str, Tensor]:
    """Return the batch's document numbers as an argument of the model, if it has any."""
    return {} if batch.documents is None else {"documents": batch.documents}
