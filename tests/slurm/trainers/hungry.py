"""The real trainer, slow, that needs more memory in its sixth step: with less than HUNGRY megabytes it fails.

With HUNGRY_TAKES it takes it, until the kernel kills it; else the limit of its address space makes the allocation
fail, and torch says so.
"""

from __future__ import annotations

import itertools
import os
import resource
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

backward: Callable[..., None] = torch.autograd.backward
steps = itertools.count(1)


def hungry_backward(*arguments: Any, **options: Any) -> None:
    backward(*arguments, **options)
    step = next(steps)
    if step > 2 and Path(os.environ["SLOW"]).exists():
        time.sleep(0.5)
    given = float(os.environ.get("SLURM_MEM_PER_NODE") or os.environ.get("SLURM_MEM_PER_CPU") or "inf")
    if step == 6 and given < float(os.environ["HUNGRY"]):
        if os.environ.get("HUNGRY_TAKES"):
            torch.ones(256 << 20).sum()
        used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        torch.ones(256 << 20)


torch.autograd.backward = hungry_backward
runpy.run_module("train.run", run_name="__main__", alter_sys=True)
