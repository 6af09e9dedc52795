"""Filling the device with activations: as few blocks computed again as its memory allows, found by measuring.

The first step makes gradients and moments, the second is measured: one block keeps everything, one keeps its matrix
products, the others their input. What they hold after their forward pass and the peak of the whole step say how many of
the others can keep more. The numbers of the run do not depend on it.
"""

from __future__ import annotations

import functools
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from train.memory.activation_checkpointing import FULL, NONE, SELECTIVE, wrap
from train.runtime import gpu_share

SHARE = 0.92
"""Part of a device's memory that is filled; the rest is for fragments and for what others need on it."""

Agree = Callable[[Tensor], Tensor]
"""Replaces a tensor by its minimum over all ranks and returns it."""


def fill(free: int, blocks: int, kept: Mapping[str, int]) -> list[str]:
    """Return each block's mode: with `free` bytes beyond all blocks FULL, first SELECTIVE for as many as possible.

    kept: what one block holds by mode [bytes]. Going from full to selective saves a block's matrix products for its
    bytes, from selective to none only elementwise work, so all blocks go to selective before one goes to none. The
    later blocks keep more: theirs is the memory that the backward pass gives back first.
    """
    steps = [(SELECTIVE, max(1, kept[SELECTIVE] - kept[FULL])), (NONE, max(1, kept[NONE] - kept[SELECTIVE]))]
    if kept[SELECTIVE] >= kept[NONE]:  # nothing elementwise is kept, as in a compiled block: one step
        steps = [(NONE, max(1, kept[NONE] - kept[FULL]))]
    modes = [FULL] * blocks
    for mode, cost in steps:
        count = max(0, min(blocks, free // cost))
        modes[blocks - count :] = [mode] * count
        free -= count * cost
        if count < blocks:
            break
    return modes


class Filler:
    """Chooses the modes of a run's blocks in its first steps. Call `after_step` at the end of each."""

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        device: torch.device,
        limit: int | None,
        agree: Agree,
        use: Callable[[list[str]], None] | None = None,
    ) -> None:
        """`limit` is the memory to fill [bytes]; None: `SHARE` of the device's. ValueError where that is not known.

        `use` gives the blocks their modes; None: `train.memory.activation_checkpointing.wrap`.
        """
        if limit is None and device.type != "cuda":
            raise ValueError("memory.checkpointing=budget needs memory.budget_gib on a CPU, whose memory is shared")
        self.blocks = list(blocks)
        self.device = device
        self.limit = limit if limit is not None else int(SHARE * gpu_share.memory(device))
        self.agree = agree
        self.kept: dict[str, int] = {}
        self.modes = [FULL] * len(self.blocks)
        self.steps = 0
        self._hooks: list[Any] = []
        self._apply = use or functools.partial(wrap, self.blocks)
        self._use(self.modes)

    @property
    def chosen(self) -> bool:
        """Whether the modes are final."""
        return self.steps >= 2

    def after_step(self) -> None:
        """Go on by one step: measure in the second, choose after it."""
        self.steps += 1
        if self.steps == 1:
            self._measure()
        elif self.steps == 2:
            self._choose()

    def _measure(self) -> None:
        probes = dict(zip((NONE, SELECTIVE, FULL), reversed(range(len(self.blocks))), strict=False))
        modes = [FULL] * len(self.blocks)
        for mode, index in probes.items():
            modes[index] = mode
            self._hooks += _watch(self.blocks[index], self.device, mode, self.kept)
        self._use(modes)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def _choose(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        largest = max(self.kept.values(), default=0)
        kept = {mode: self.kept.get(mode, largest) for mode in (NONE, SELECTIVE, FULL)}
        # The block that is computed again holds all it needs while its backward pass runs: that is in the peak already.
        spent = kept[NONE] + kept[SELECTIVE] - 2 * kept[FULL] if len(self.blocks) > 1 else 0
        numbers = [self.limit - _peak(self.device) + spent, *(-kept[mode] for mode in (NONE, SELECTIVE, FULL))]
        free, *negative = self.agree(torch.tensor(numbers, dtype=torch.int64)).tolist()
        self._use(fill(free, len(self.blocks), dict(zip((NONE, SELECTIVE, FULL), (-n for n in negative), strict=True))))

    def _use(self, modes: list[str]) -> None:
        self.modes = modes
        self._apply(modes)


def _peak(device: torch.device) -> int:
    """Return the most memory in use since the peak was reset (CPU: of the whole process so far) [bytes]."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _watch(block: nn.Module, device: torch.device, mode: str, into: dict[str, int]) -> list[Any]:
    """Let the block write into `into[mode]` what it holds after its forward pass [bytes]; return handles to undo it."""
    probe = _Allocated(device) if device.type == "cuda" else _Alive()

    def before(module: nn.Module, args: Any) -> None:
        probe.begin()

    def after(module: nn.Module, args: Any, output: Any) -> None:
        into[mode] = max(into.get(mode, 0), probe.end())

    return [block.register_forward_pre_hook(before), block.register_forward_hook(after)]


class _Allocated:
    """Bytes that a CUDA device has allocated in between."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.began = device, 0

    def begin(self) -> None:
        self.began = torch.cuda.memory_allocated(self.device)

    def end(self) -> int:
        return torch.cuda.memory_allocated(self.device) - self.began


class _Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages made in between that are still alive, on any device; not through a compiled block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in given:  # no view of an input
                storage = leaf.untyped_storage()
                self.made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
        return result

    def begin(self) -> None:
        self.made = {}
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> int:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        alive = [size for reference, size in self.made.values() if not reference.expired()]  # type: ignore[no-untyped-call]
        return sum(alive)
