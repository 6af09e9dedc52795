"""A tensor times one number that lies on the device: out of place with a change of format, or in place.

Bytes: reads and writes every element once; in place nothing at all if the number is 1, which is found on the device.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.core import launch
from kernels.core.launch_table import launch_of, multiprocessors


@triton.jit
def scaled_kernel(x, factor, out, size, SAME: tl.constexpr, BLOCK: tl.constexpr):
    """Write out = x · factor; with SAME, out is x and a factor of 1 ends the program at once."""
    scale = tl.load(factor).to(tl.float32)
    needed = True
    if SAME:
        needed = scale != 1.0
    if needed:
        first = tl.program_id(0).to(tl.int64) * BLOCK
        for start in range(first, size, tl.num_programs(0).to(tl.int64) * BLOCK):
            offset = start + tl.arange(0, BLOCK)
            inside = offset < size
            value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32) * scale
            tl.store(out + offset, value.to(out.dtype.element_ty), mask=inside)


def scaled(x: Tensor, factor: Tensor, out: Tensor) -> None:
    """Write x * factor to `out`, of the same shape and strides, dense; factor () fp32."""
    assert x.stride() == out.stride()
    chosen = launch_of("scaled", x.numel())
    same = out.data_ptr() == x.data_ptr()
    programs = triton.cdiv(x.numel(), chosen.block)
    if same and chosen.programs:  # the usual factor is 1: half a million programs that end at once would take 0.3 ms
        programs = min(programs, chosen.programs * multiprocessors(x.device))
    launch.launch(
        scaled_kernel, (programs,), x, factor, out, x.numel(), SAME=same, BLOCK=chosen.block, num_warps=chosen.warps
    )
