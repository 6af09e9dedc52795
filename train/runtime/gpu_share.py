"""What this process may take of a GPU that it has with others (train.spec.gpu_share).

Each sizes its micro-batch for its part, and one that wants more runs out of memory alone.
"""

from __future__ import annotations

import os

import torch

from train.spec.gpu_share import part, share


def memory(device: torch.device) -> int:
    """Return what the tensors of this process may take of a CUDA device [bytes]."""
    return part(torch.cuda.get_device_properties(device).total_memory, share(os.environ))


def room(device: torch.device) -> int:
    """Return what this process has of a CUDA device, with what is free there, and no more than its part [bytes]."""
    free, _ = torch.cuda.mem_get_info(device)
    return min(free + torch.cuda.memory_reserved(device), memory(device))


def keep_to_it(device: torch.device) -> None:
    """Have torch refuse this process more than its part of a CUDA device, as where memory has run out."""
    if share(os.environ) < 1:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(memory(device) / total, device)
