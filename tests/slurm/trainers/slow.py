"""The real trainer, but from its third step on it waits, as many seconds a step as the file named by SLOW says.

Without that file it runs at its normal speed: the waiting ends when the file is removed.
"""

from __future__ import annotations

import itertools
import os
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

backward: Callable[..., None] = torch.autograd.backward
steps = itertools.count(1)


def slow_backward(*arguments: Any, **options: Any) -> None:
    backward(*arguments, **options)
    if next(steps) <= 2:
        return
    began = time.monotonic()
    while time.monotonic() - began < wanted_seconds():
        time.sleep(0.05)


def wanted_seconds() -> float:
    try:
        return float(Path(os.environ["SLOW"]).read_text(encoding="utf-8") or 0)
    except FileNotFoundError:
        return 0.0


torch.autograd.backward = slow_backward
runpy.run_module("train.run", run_name="__main__", alter_sys=True)
