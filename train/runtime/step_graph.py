"""A step as one CUDA graph: all that it does on the device is recorded once and launched at once from then on.

A small model's step is hundreds of kernels of a few microseconds each, and the host launches them more slowly than a
GPU runs them. A graph replays fixed kernels on fixed addresses: what changes from step to step (tokens, learning rate)
is copied to where the graph reads it, and everything else has to stay where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from kernels.core.multi_tensor import filled_after
from train.runtime import gpu_share

Value: TypeAlias = Any
"""A tensor, a number, or None."""
Values: TypeAlias = tuple[Value, ...]
Outputs: TypeAlias = tuple[Tensor, Tensor]
Compute: TypeAlias = Callable[[Values], Outputs]

WARM_STEPS = 3
"""Steps of one shape before its graph is recorded: they compile, tune and allocate what a recording may not."""


class Recording(Protocol):
    """Work that was recorded, and where its results appear."""

    outputs: Outputs
    bytes: int
    """Memory on the device that it keeps to itself."""

    def replay(self) -> None:
        """Do the work again, on the same addresses."""


class CudaRecording:
    """Work recorded by a CUDA graph; its intermediate tensors live in memory that nothing else uses."""

    def __init__(self, work: Callable[[], Outputs], device: torch.device) -> None:
        """Record `work` without running it; RuntimeError where it does something that a graph cannot."""
        self._graph = torch.cuda.CUDAGraph()
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.current_stream(device)
        try:
            # Relaxed: the thread that reads batches ahead allocates page-locked memory meanwhile.
            with filled_after(device), torch.cuda.graph(self._graph, pool=pool, capture_error_mode="relaxed"):
                before = torch.cuda.memory_reserved(device)
                self.outputs = work()
                self.bytes = torch.cuda.memory_reserved(device) - before
        except RuntimeError:
            # Where the end of a capture fails, torch stays in its stream, and frees no cached memory while it takes the
            # capture's pool to be in use.
            torch.cuda.set_stream(stream)
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(stream.device_index, pool)
                torch._C._cuda_releasePool(stream.device_index, pool)
            raise

    def replay(self) -> None:
        """Launch the graph."""
        self._graph.replay()


def free_bytes(device: torch.device) -> int:
    """Return what this process may still take of a GPU, with what torch has cached there, graphs' too [bytes]."""
    return gpu_share.room(device) - torch.cuda.memory_allocated(device)


class StepGraph:
    """Calls `compute`, and replays it as a graph once its inputs have had the same shapes for `WARM_STEPS` calls.

    compute: changes the tensors of `held` in place and returns tensors; whatever else it does on the host happens when
    it is recorded, and no more. It is given tensors on the device and numbers; when recorded, numbers are scalars of
    fp64 there. held: every tensor that it reads or changes besides its inputs. Where one of them has moved, as after a
    checkpoint was loaded, the graph is dropped and recorded anew. What cannot be recorded goes on without a graph.
    """

    def __init__(
        self,
        compute: Compute,
        held: Callable[[], Iterable[Tensor]],
        device: torch.device,
        say: Callable[[str], None],
        *,
        record: Callable[[Callable[[], Outputs], torch.device], Recording] = CudaRecording,
        room: Callable[[torch.device], int] = free_bytes,
    ) -> None:
        """`say` is told why there is no graph, if so; record, room (as `free_bytes`): those of another device."""
        self._compute, self._held, self._device, self._say = compute, held, device, say
        self._record, self._room = record, room
        self._shapes: tuple[object, ...] = ()
        self._alike = 0
        self._possible = True
        self._recorded: Recording | None = None
        self._inputs: tuple[Tensor | None, ...] = ()
        self._kept: list[Tensor] = []
        self._places: list[int] = []

    @property
    def recorded(self) -> bool:
        """Whether the last call has been a graph's."""
        return self._recorded is not None

    def __call__(self, values: Values) -> Outputs:
        """Return what `compute` returns of the values; a graph's results are overwritten by the next call."""
        shapes = tuple((v.shape, v.dtype) if isinstance(v, Tensor) else v is None for v in values)
        if shapes != self._shapes:
            self._shapes, self._alike = shapes, 0
            self._drop()
        if self._recorded is not None and self._moved():
            self._alike = 0
            self._drop()
        self._alike += 1
        if self._recorded is None and self._possible and self._alike > WARM_STEPS:
            self._begin(values)
        if self._recorded is None:
            return self._compute(tuple(self._there(v) for v in values))
        self._fill(values)
        self._recorded.replay()
        return self._recorded.outputs

    def make_room(self) -> None:
        """Drop the graph where what it keeps would not fit on the device a second time, as a step without it needs.

        Between replays torch counts the graph's memory as cached, which nothing else can have.
        """
        if self._recorded is not None and 2 * self._recorded.bytes > self._room(self._device):
            self._alike = 0
            self._drop()

    def _there(self, value: Value) -> Value:
        return value.to(self._device, non_blocking=True) if isinstance(value, Tensor) else value

    def _begin(self, values: tuple[Value, ...]) -> None:
        """Record `compute` on inputs of these shapes."""
        self._inputs = tuple(None if v is None else self._static(v) for v in values)
        self._fill(values)
        try:
            self._recorded = self._record(lambda: self._compute(self._inputs), self._device)
        except RuntimeError as error:
            self._possible, self._inputs = False, ()
            first = error.__context__ or error  # what the end of a capture complains of
            reason = str(first).strip().splitlines() or [repr(first)]
            self._say(f"steps run without a CUDA graph: {reason[0]}")
            return
        self._kept = list(self._held())
        self._places = [tensor.data_ptr() for tensor in self._kept]

    def _static(self, value: Tensor | float) -> Tensor:
        if isinstance(value, Tensor):
            return torch.empty(value.shape, dtype=value.dtype, device=self._device)
        return torch.empty((), dtype=torch.float64, device=self._device)

    def _fill(self, values: tuple[Value, ...]) -> None:
        for place, value in zip(self._inputs, values, strict=True):
            if isinstance(value, Tensor):
                assert place is not None
                place.copy_(value, non_blocking=True)
            elif value is not None:
                assert place is not None
                place.fill_(value)

    def _moved(self) -> bool:
        """Say whether a tensor lies elsewhere than when the graph was recorded; those are kept, so none is reused."""
        now = list(self._held())
        return len(now) != len(self._places) or any(
            tensor.data_ptr() != place for tensor, place in zip(now, self._places, strict=True)
        )

    def _drop(self) -> None:
        self._recorded, self._inputs, self._kept, self._places = None, (), [], []
