"""Gloo's process groups: one worker thread each, and not wrapped for debugging."""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level


def use_one_worker() -> None:
    """Give every gloo group that this process makes from now on one worker thread instead of torch's two.

    The two note the name of the collective that ended last in one string, without a lock
    (`ProcessGroupGloo::runLoop`, torch up to 2.13). Names of more than 15 characters, such as the ALLGATHER_COALESCED
    of tensor parallelism, are on the heap: one thread writes to what the other has freed, and the rank is aborted
    ("malloc(): unaligned tcache chunk detected") or hangs. One worker is enough: a group's collectives begin in the
    same order on all ranks, and messages between two ranks do not go through it.
    """
    group: Any = dist.ProcessGroupGloo
    make = group.__init__
    if hasattr(make, "__wrapped__"):
        return

    # init_process_group and new_group have no parameter for gloo's options; they call this.
    @functools.wraps(make)
    def with_one_worker(self: Any, *place: Any, timeout: timedelta) -> None:
        options = group._Options()
        options._timeout, options._threads, options._devices = timeout, 1, devices()
        make(self, *place, options)

    group.__init__ = with_one_worker


def lower_debug_level() -> str | None:
    """Lower TORCH_DISTRIBUTED_DEBUG=DETAIL to INFO and return a line that says so; None if it is not DETAIL.

    At DETAIL torch wraps gloo's groups. The logger of DistributedDataParallel takes the wrapper for gloo's own group
    (`Logger::set_env_variables`, torch 2.11 to 2.13), and the rank dies with SIGSEGV. NCCL's groups bear it.
    """
    if get_debug_level() != DebugLevel.DETAIL:
        return None
    set_debug_level(DebugLevel.INFO)
    return "TORCH_DISTRIBUTED_DEBUG=DETAIL counts as INFO on CPUs: DistributedDataParallel over gloo dies at DETAIL"


def devices() -> list[Any]:
    """Return the network interfaces that gloo uses: those of GLOO_SOCKET_IFNAME, or the one of this host's name."""
    group = dist.ProcessGroupGloo
    names = os.environ.get("GLOO_SOCKET_IFNAME", "")
    return [group.create_device(interface=name) for name in names.split(",") if name] or [group.create_default_device()]
