"""Every kernel compiles for sm_90 without a GPU: no spills, no fp64 instruction, 16-byte accesses to memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.adamw import triton as adamw
from kernels.adamw import triton_gradient_norm as gradient_norm
from kernels.cross_entropy.math import Options, Rows, whole
from kernels.cross_entropy.triton import Kernels
from kernels.float8 import triton as fp8
from kernels.heads import triton as heads
from kernels.rms_norm import triton as rms_norm
from kernels.rope import triton as rope
from kernels.scale import triton as scaling
from kernels.swiglu import triton as swiglu
from kernels.swiglu import triton_product
from tests.kernels.compiled import compiling, read_code

BF16, FP32, ROWS = torch.bfloat16, torch.float32, 64
EVERYTHING = Options(z_loss=1e-4, label_smoothing=0.1, softcap=30.0, logit_scale=0.5)


def room(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def losses(columns: int, options: Options) -> None:
    logits, target, numbers = room(ROWS, columns), torch.zeros(ROWS, dtype=torch.int64), room(ROWS, dtype=FP32)
    engine, rows = Kernels(), Rows(numbers, numbers, numbers, numbers)
    engine.fused(logits, target, options, logits, torch.ones(()))
    engine.statistics(logits, target, options, whole(columns))
    engine.gradient(logits, target, rows, numbers, options, whole(columns), logits)


def norms(columns: int) -> None:
    x, weight, rstd = room(ROWS, columns), room(columns, dtype=FP32), room(ROWS, dtype=FP32)
    for residual in (None, x):
        rms_norm.forward(x, residual, weight, 1e-6, x, x, rstd)
        rms_norm.backward(x, residual, x, weight, rstd, x)


def gates() -> None:
    x, packed = room(ROWS, 14336), room(ROWS, 28672)
    gate, up = packed.chunk(2, -1)
    swiglu.forward(gate, up, x)
    swiglu.backward(x, gate, up, gate, up)
    swiglu.backward(x, x, x, x, x)
    swiglu.backward(x, gate, up, gate, up, x)


def turns(interleaved: bool) -> None:
    q, k, table = room(1, ROWS, 32, 128), room(1, ROWS, 8, 128), room(ROWS, 64, 2, dtype=FP32)
    rope.rope(q, k, table, None, (q, k), interleaved, False)
    rope.rope(q, k, table, torch.zeros(ROWS, dtype=torch.int64), (q, k), interleaved, True)


def splits(kv_heads: int, group: int, width: int, normed: bool) -> None:
    joint, table = room(1, ROWS, kv_heads, group + 2, width), room(ROWS, width // 2, 2, dtype=FP32)
    outs = room(1, ROWS, kv_heads * group, width), room(1, ROWS, kv_heads, width), room(1, ROWS, kv_heads, width)
    weights = (room(width, dtype=FP32), room(width, dtype=FP32)) if normed else None
    heads.forward(joint, table, weights, 1e-6, outs)
    heads.backward(outs, joint, table, weights, 1e-6, room(*joint.shape))


def gates_behind_a_product(tokens: int, hidden: int) -> None:
    joint = room(tokens, 2 * hidden)
    triton_product.gradient(room(tokens, 256), room(256, hidden), joint, room(*joint.shape))


def steps(weight: torch.dtype, moment: torch.dtype, master: bool) -> None:
    arrays = [[room(4096, dtype=dtype)] for dtype in (weight, weight, moment, moment)]
    seed = 5 if weight == BF16 and not master else None
    adamw.adamw(arrays + [[room(4096, dtype=FP32)]] * master, torch.ones(()), torch.zeros(()), None, (1.0,) * 7, seed)


def norm_of(dtype: torch.dtype) -> None:
    gradient_norm.squares([room(4096, dtype=dtype)])


def casts(by_row: bool) -> None:
    x, out = room(ROWS, 4096), room(ROWS, 4096, dtype=torch.float8_e4m3fn)
    copy, scale = room(4096, ROWS, dtype=torch.float8_e4m3fn), torch.ones(ROWS)
    if by_row:
        fp8.rowwise(x, out, scale, 1e-12)
        fp8.tiles(x, scale, torch.ones(4096), out, copy)
    else:
        fp8.tiles(x, torch.ones(()), None, out, None)


def products() -> None:
    scaling.scaled(room(4096, dtype=FP32), torch.ones(()), room(4096))


CASES: dict[str, Callable[[], None]] = {
    "losses": lambda: losses(128256, Options()),
    "losses, every option": lambda: losses(128256, EVERYTHING),
    "losses of a small vocabulary": lambda: losses(512, Options()),
    "norms of 128": lambda: norms(128),
    "norms of 1024": lambda: norms(1024),
    "norms of 4096": lambda: norms(4096),
    "norms of 8192": lambda: norms(8192),
    "gates": gates,
    "turns of neighbours": lambda: turns(True),
    "turns of halves": lambda: turns(False),
    "splits of 64": lambda: splits(12, 1, 64, False),
    "splits of groups": lambda: splits(8, 4, 128, False),
    "splits with norms": lambda: splits(16, 1, 128, True),
    "splits of small heads with norms": lambda: splits(16, 1, 32, True),
    "splits of wide groups with norms": lambda: splits(4, 4, 128, True),
    "gates behind a product": lambda: gates_behind_a_product(256, 704),
    "gates behind a product, ragged": lambda: gates_behind_a_product(200, 688),
    "steps in fp32": lambda: steps(FP32, FP32, False),
    "steps in bf16": lambda: steps(BF16, BF16, False),
    "steps with masters": lambda: steps(BF16, FP32, True),
    "norm of fp32": lambda: norm_of(FP32),
    "norm of bf16": lambda: norm_of(BF16),
    "casts by row": lambda: casts(True),
    "casts by tensor": lambda: casts(False),
    "products": products,
}


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("name", CASES)
def test_machine_code(name: str, tmp_path: Path) -> None:
    with compiling() as found:
        CASES[name]()
    assert found
    read_code(found, tmp_path)
    for kernel in found:
        used, code = kernel.resources(tmp_path), "\n".join(text for _, text in kernel.code)
        assert used["REG"] > 0
        # ptxas 12.8 (Triton 3.6) keeps one register of the fused loss on the stack, once a row, so that a third block
        # fits on the multiprocessor. Inside a loop that would be memory traffic for every block of columns.
        assert used["LOCAL"] == 0, f"{kernel.name} has arrays in local memory: {used}"
        assert used["STACK"] <= 8, f"{kernel.name} spills: {used}"
        assert not kernel.spills_in_loops(), kernel.name
        assert ".f64" not in kernel.ptx
        assert not re.search(r"\bD(ADD|MUL|FMA|SETP|MNMX)\b", code), kernel.name
        assert re.search(r"LDG(STS)?\S*\.128", code), f"{kernel.name} has no 16-byte load"
