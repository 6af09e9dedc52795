"""What a run leaves behind in its process: undone before another one begins here, or told, so that none begins."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from kernels.core.multi_tensor import forget

GPU_BYTES = 64 << 20
"""What libraries may keep of a GPU's memory without being a run's."""
THREADS = ("torch", "triton", "tqdm", "concurrent.futures")
"""Whose threads wait for more to do, in every process that has used them."""


class Before:
    """This process as it was before a run."""

    def __init__(self, handlers: Mapping[int, Any]) -> None:
        """handlers: of stop signals, while no run is there to be told of them."""
        self._environment, self._folder, self._handlers = dict(os.environ), Path.cwd(), handlers
        self._random = random.getstate()
        self._generator = torch.get_rng_state()
        self._values = [(put, get()) for get, put in _settings()]

    def restore(self, run: Path) -> str | None:
        """Undo what a run in this folder changed; return what is left of it all the same, None where nothing is."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(self._environment)
        os.chdir(self._folder)
        random.setstate(self._random)
        torch.set_rng_state(self._generator)
        for put, value in self._values:
            put(value)
        for module in list(sys.modules.values()):  # what was warned of once is news to the next run
            vars(module).get("__warningregistry__", {}).clear()
        _end_compilers()
        gc.unfreeze()
        gc.collect()
        forget()
        return next(filter(None, (_threads(), _files(run), _children(), _memory())), None)


def _settings() -> list[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Return how each of torch's settings that a run may change is read and set."""
    found: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order),
    ]
    for owner, name in (
        (torch.utils.deterministic, "fill_uninitialized_memory"),
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cudnn, "deterministic"),
    ):
        found.append((lambda o=owner, n=name: getattr(o, n), lambda value, o=owner, n=name: setattr(o, n, value)))  # type: ignore[misc]
    return found


def _end_compilers() -> None:
    """End the processes that torch compiles in: the next compilation starts them again."""
    compilers = sys.modules.get("torch._inductor.async_compile")
    if compilers is not None:
        compilers.shutdown_compile_workers()


def _threads() -> str | None:
    """Return which thread is still there, unless it is a library's."""
    for thread in threading.enumerate():
        target = getattr(getattr(thread, "_target", None), "__module__", None) or type(thread).__module__
        if thread is not threading.main_thread() and not target.startswith(THREADS):
            return f"thread {thread.name} of {target}"
    return None


def _files(run: Path) -> str | None:
    """Return which file of a run is still open."""
    folder = f"{run.resolve()}{os.sep}"
    for entry in Path("/proc/self/fd").iterdir():
        try:
            place = str(entry.readlink())
        except OSError:  # that of the listing itself
            continue
        if place.startswith(folder):
            return f"open file {place}"
    return None


def _children() -> str | None:
    """Return which process is still there."""
    for task in Path("/proc/self/task").iterdir():
        try:
            found = (task / "children").read_text(encoding="ascii").split()
        except OSError:  # the thread has ended, or this kernel does not tell
            continue
        if found:
            return f"process {found[0]}"
    return None


def _memory() -> str | None:
    """Give back what is free; return how much of a GPU's memory is not."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        if (kept := torch.cuda.memory_allocated()) > GPU_BYTES:
            return f"{kept:,} bytes of GPU memory"
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return None
