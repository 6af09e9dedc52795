"""The GPU of this process, as decisions want it (train.spec.device_choices)."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping

import torch

from train.spec.device_choices import Gpu

COMPILERS = ("cc", "gcc", "clang")


def gpu_of(device: torch.device) -> Gpu | None:
    """Return what is to be known of a CUDA device; None: it is a CPU."""
    if device.type != "cuda":
        return None
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    return Gpu(name, capability, obstacle(os.environ, shutil.which, importlib.util.find_spec("triton") is not None))


def obstacle(environment: Mapping[str, str], which: Callable[[str], str | None], triton: bool) -> str | None:
    """Return why nothing can be compiled for a GPU, None: it can. Triton builds what launches its kernels in C."""
    if not triton:
        return "torch.compile needs Triton, which is not installed"
    given = environment.get("CC")
    if given is None and not any(which(name) for name in COMPILERS):
        return "no C compiler was found, which torch.compile needs: install gcc, or set CC"
    return None
