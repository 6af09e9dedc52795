"""Which implementation runs: `KERNELS=reference|triton|auto` in the environment, or `with kernels.use("triton"):`.

`auto`, the default, takes Triton for tensors on a GPU of a shape and dtype that the kernel takes, else the reference.
`triton` raises where it cannot run: on a CPU it needs Triton's interpreter (`TRITON_INTERPRET=1`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

MODES = ("auto", "reference", "triton")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""The formats that the kernels read and write; anything else goes to the reference."""


def _checked(mode: str, source: str) -> str:
    if mode not in MODES:
        raise ValueError(f"{source}={mode!r}: must be one of {', '.join(MODES)}")
    return mode


class _Choice:
    """The mode in force; an attribute, so that torch.compile guards on it."""

    mode = _checked(os.environ.get("KERNELS", "auto"), "KERNELS")
    interpreted = os.environ.get("TRITON_INTERPRET", "0") == "1"


@contextmanager
def use(mode: str) -> Iterator[None]:
    """Force `mode` ("reference", "triton" or "auto") inside the with block; raises ValueError for another word."""
    before = _Choice.mode
    _Choice.mode = _checked(mode, "mode")
    try:
        yield
    finally:
        _Choice.mode = before


def use_triton(operation: str, *tensors: Tensor, refusal: str = "", fuse: bool = False) -> bool:
    """Say whether `operation` on these tensors goes to its Triton kernel.

    `refusal` is why the kernel does not take them although device and dtype would do, or empty. `fuse` says that a
    compiler makes as good a kernel of the reference, fused with what is around it: left alone, `auto` lets it. Raises
    ValueError if Triton is forced and cannot run.
    """
    mode = _Choice.mode
    if mode == "reference":
        return False
    if mode == "auto" and (not tensors[0].is_cuda or (fuse and torch.compiler.is_compiling())):
        return False
    if not refusal:
        refusal = _refusal(tensors)
    if not refusal:
        return True
    if mode == "triton":
        raise ValueError(f"kernels.{operation}: Triton is forced but does not take this: {refusal}. Use 'auto'")
    return False


def _refusal(tensors: tuple[Tensor, ...]) -> str:
    for tensor in tensors:
        if tensor.dtype not in FLOATS:
            return f"a tensor of {tensor.dtype}"
        if not tensor.is_cuda and not _Choice.interpreted:
            return f"a tensor on {tensor.device} without TRITON_INTERPRET=1"
    return ""
