"""Compiles what a launcher launches for sm_90, on a machine without a GPU, and reads the machine code."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.core import launch

TARGET = GPUTarget("cuda", 90, 32)
INSTRUCTION = 16
"""What one takes [bytes]."""
TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int64: "*i64", torch.int32: "*i32",
    torch.int16: "*i16",
    torch.float8_e4m3fn: "*fp8e4nv", torch.float8_e5m2: "*fp8e5",
}  # fmt: skip


@dataclass
class Compiled:
    """One compiled kernel: its name, assembly (PTX), object file (cubin), and machine code (SASS) once read."""

    name: str
    ptx: str
    cubin: bytes
    flags: dict[str, Any] = field(default_factory=dict)
    code: list[tuple[int, str]] = field(default_factory=list)
    """Each instruction and where it stands [bytes]."""

    def resources(self, folder: Path) -> dict[str, int]:
        """Return registers (REG), stack frame (STACK), local memory (LOCAL) … a thread [bytes]."""
        file = folder / "kernel.cubin"
        file.write_bytes(self.cubin)
        found = dict(re.findall(r"([A-Z]+):(\d+)", _read("cuobjdump", "-res-usage", file)))
        return {name: int(value) for name, value in found.items()}

    def spills_in_loops(self) -> list[str]:
        """Return the instructions that move registers to or from the stack between a loop's start and its end."""
        jumps = [(at, re.search(r"\bBRA\S* .*?(0x[0-9a-f]+)", text)) for at, text in self.code]
        loops = [(int(goal[1], 16), at) for at, goal in jumps if goal and int(goal[1], 16) < at]
        assert all(goal or "BRA" not in self.code[i][1] for i, (_, goal) in enumerate(jumps)), "an unknown jump"
        moved = [(at, text) for at, text in self.code if re.search(r"\b(LDL|STL)\b", text)]
        return [text for at, text in moved if any(first <= at <= last for first, last in loops)]


def read_code(kernels: Sequence[Compiled], folder: Path) -> None:
    """Disassemble the kernels one behind the other, at one go: each start of the disassembler takes half a second."""
    parts = [_instructions(kernel.cubin) for kernel in kernels]
    file = folder / "code.bin"
    file.write_bytes(b"".join(parts))
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", _read("nvdisasm", "-b", "SM90a", file))
    every, start = [(int(at, 16), text) for at, text in lines], 0
    assert len(every) == sum(map(len, parts)) // INSTRUCTION
    for kernel, part in zip(kernels, parts, strict=True):
        kernel.code = every[start // INSTRUCTION : (start + len(part)) // INSTRUCTION]
        start += len(part)


def _instructions(cubin: bytes) -> bytes:
    """Return the machine code of an object file (ELF, 64 bits) of one kernel."""
    (table,), (size, count, names) = struct.unpack_from("<Q", cubin, 0x28), struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + number * size) for number in range(count)]
    code = [one[4:6] for one in sections if cubin[sections[names][4] + one[0] :].startswith(b".text.")]
    assert len(code) == 1
    return cubin[code[0][0] : sum(code[0])]


def _read(program: str, *words: str | Path) -> str:
    binary = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / program
    return subprocess.run([binary, *words], check=True, capture_output=True, text=True).stdout


def _compile(kernel: Any, arguments: tuple[Any, ...], meta: dict[str, Any]) -> Compiled:
    names = kernel.arg_names
    values = dict(zip(names, arguments, strict=False)) | {k: v for k, v in meta.items() if k in names}
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr or (type(value) is int and value == 1):
            signature[parameter.name] = "constexpr"
            constants[(i,)] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[value.dtype]
            if value.data_ptr() % 16 == 0:
                attributes[(i,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                attributes[(i,)] = [["tt.divisibility", 16]]
    options = {k: v for k, v in meta.items() if k.startswith("num_")}
    done = triton.compile(ASTSource(kernel, signature, constants, attributes), target=TARGET, options=options)
    return Compiled(
        kernel.__name__, done.asm["ptx"], done.asm["cubin"], {k: v for k, v in values.items() if k.isupper()}
    )


@contextmanager
def compiling() -> Iterator[list[Compiled]]:
    """Compile instead of launching inside the with block; yields the list of what was compiled."""
    found: list[Compiled] = []
    patch = pytest.MonkeyPatch()
    patch.setattr(
        launch,
        "launch",
        lambda kernel, grid, *a, **meta: found.append(_compile(kernel, a, meta)) if 0 not in grid else None,
    )
    try:
        yield found
    finally:
        patch.undo()
