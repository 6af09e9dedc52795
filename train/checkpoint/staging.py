"""Copies of a run's tensors on the CPU, so that training goes on while they are written."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kernels.core.dtensor import local
from train.checkpoint.relaid import stored_of


class Staging:
    """Buffers that are kept from save to save; page-locked where they are copied from a GPU."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._stream: torch.cuda.Stream | None = None

    def copy(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this rank's parts of the tensors as CPU tensors; from a GPU they are on their way until `arrived`.

        The copy runs beside forward and backward passes, which only read the weights: call `before_update` before
        anything changes them.
        """
        parts = {name: local(stored_of(value)) for name, value in state.items()}
        gpu = next((v.device for v in parts.values() if v.device.type == "cuda"), None)
        if gpu is None:
            return {name: self._buffer(name, value).copy_(value) for name, value in parts.items()}
        if self._stream is None:
            self._stream = torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(gpu))
        with torch.cuda.stream(self._stream):
            return {name: self._buffer(name, v).copy_(v, non_blocking=True) for name, v in parts.items()}

    def arrived(self) -> None:
        """Wait until the copies are there."""
        if self._stream is not None:
            self._stream.synchronize()

    def before_update(self) -> None:
        """Make what the GPU does from now on wait for the copies; the CPU does not wait.

        While a CUDA graph is captured nothing: whoever replays it calls this before.
        """
        if self._stream is not None and not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def _buffer(self, name: str, value: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.device.type == "cuda")
            self._buffers[name] = buffer
        return buffer
