"""The micro-batch of a run: chosen for the GPU's memory, made smaller where that runs out, remembered for later runs.

What was found lies beside the compiled code, one small file for each shape of run and kind of GPU, so that the next
job of a study need not find it again. Nothing of a run's numbers depends on it.
"""

from __future__ import annotations

import gc
import getpass
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from train.runtime import gpu_share
from train.runtime.console import say
from train.spec import micro_batch as decide
from train.spec.config import RunConfig
from train.spec.footprint import footprint, micro_batch_sequences
from train.spec.mesh import Axes, strategy
from train.spec.micro_batch import Seen, even

T = TypeVar("T")
Agree = Callable[[torch.Tensor], torch.Tensor]
"""Replaces a tensor by its minimum over all ranks and returns it."""
MEASURED_STEP = 2
"""The step after which memory is measured: the first one makes the optimizer's moments."""


class Memory(Protocol):
    """What is asked of a GPU's memory; all numbers are bytes."""

    name: str
    """The kind of GPU."""
    total: int
    """All that this process may have, whoever uses it now."""

    def room(self) -> int:
        """Return what this process has and what is free."""

    def peak(self) -> int:
        """Return the most that tensors took so far, beside what they take now."""

    def recording(self) -> bool:
        """Say whether work is recorded for a CUDA graph, where nothing can be done anew."""

    def release(self) -> None:
        """Give back what no tensor holds any more."""

    def filled_to(self, states: int) -> AbstractContextManager[object]:
        """Take as much as is missing until so much is taken, for as long as the context lasts."""


class Gpu:
    """The memory of a CUDA device, as torch sees it."""

    def __init__(self, device: torch.device) -> None:
        """Begin to look at a device's memory: an earlier run of this process does not count."""
        self._device = device
        torch.cuda.reset_peak_memory_stats(device)
        found = torch.cuda.get_device_properties(device)
        self.name, self.total = f"{found.name}, {found.total_memory >> 20} MiB", gpu_share.memory(device)

    def room(self) -> int:
        """Return what this process has and what is free [bytes]."""
        return gpu_share.room(self._device)

    def peak(self) -> int:
        """Return the most that tensors took so far, beside what they take now [bytes]."""
        return torch.cuda.max_memory_allocated(self._device) - torch.cuda.memory_allocated(self._device)

    def recording(self) -> bool:
        """Say whether work is recorded for a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

    def release(self) -> None:
        """Give back what no tensor holds any more."""
        gc.collect()  # a failed pass leaves cycles of frames and graph nodes, which hold activations
        torch.cuda.empty_cache()

    @contextmanager
    def filled_to(self, states: int) -> Iterator[None]:
        """Take as much as is missing until so many bytes are taken, for as long as the context lasts."""
        missing = max(0, states - torch.cuda.memory_allocated(self._device))
        held = torch.empty(missing, dtype=torch.uint8, device=self._device)
        yield
        del held


@dataclass(frozen=True)
class SizeRecord:
    """What runs of one shape found, in a file."""

    path: Path

    def read(self) -> Seen | None:
        """Return what was found; None where there is nothing, or nothing that can be read."""
        try:
            return decide.read(json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def write(self, seen: Seen) -> None:
        """Keep what was found, if that can be."""
        staged = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            staged.write_text(json.dumps(asdict(seen)) + "\n", encoding="utf-8")
            staged.replace(self.path)


@dataclass(frozen=True)
class Watched:
    """What a micro-batch is fitted to: a GPU's memory, the record of its shape, a rank's share of a step [sequences].

    alone: there are no other ranks. apart: ranks tell each other nothing within a micro-batch that is not a step's
    last. states: what weights, gradients and moments take in the end [bytes]. compiled: blocks are, so that another
    size is compiled anew. replayed: as CUDA graphs, whose memory is theirs.
    """

    memory: Memory
    record: SizeRecord
    share: int
    alone: bool = True
    apart: bool = False
    states: int = 0
    compiled: bool = False
    replayed: bool = False


class MicroBatch:
    """The most sequences that go through the model at once, `size`."""

    def __init__(self, size: int, watched: Watched | None = None) -> None:
        """`watched`: what it may still be fitted to; None: it stays what it is."""
        self.size = size
        self._watched = watched
        self._steps = 0

    def fitted(self, attempt: Callable[[], T], anew: Callable[[], None]) -> T:
        """Return what `attempt` returns: forward and backward passes of a step, in micro-batches of `size`.

        Where memory runs out, gradients are begun `anew` and it is called again with smaller ones. Not where ranks wait
        for each other in the middle of it (but see `shrink_to_fit`): their next job begins smaller.
        torch.OutOfMemoryError where nothing helps.
        """
        context: AbstractContextManager[Any] = nullcontext()
        while True:
            try:
                with context:
                    return attempt()
            except torch.OutOfMemoryError as error:
                if not self._shrinks(error):
                    raise
            # Out of the handler, whose exception holds the frames of the pass and so its tensors.
            anew()
            assert self._watched is not None
            self._watched.memory.release()
            context = torch.compiler.set_stance("default") if self._watched.compiled else nullcontext()

    def shrink_to_fit(
        self,
        trial: Callable[[], object],
        forget: Callable[[], object],
        any_rank: Callable[[Sequence[bool]], list[bool]],
    ) -> None:
        """Go to smaller micro-batches until no rank runs out of memory in a `trial`, where several can try that apart.

        trial: a forward and backward pass of one micro-batch without messages; `forget` drops its gradients. any_rank:
        says for each flag whether a rank raised it. torch.OutOfMemoryError, on all ranks, where nothing helps.
        """
        watched = self._watched
        if watched is None or watched.alone or not watched.apart or self._steps:
            return
        while True:
            error: str | None = None
            try:
                with watched.memory.filled_to(watched.states):
                    trial()
            except torch.OutOfMemoryError as caught:
                error = str(caught)
            forget()
            watched.memory.release()
            if not any_rank([error is not None])[0]:
                return
            if error is not None:
                watched.record.write(decide.failed(watched.record.read(), self.size, watched.memory.room()))
            size = decide.smaller(watched.share, self.size)
            if size is None:
                raise torch.OutOfMemoryError(error or "the GPU of another rank is out of memory with one sequence")
            if error is not None:
                _say_smaller(self.size, size)
            self.size = size

    def after_step(self) -> None:
        """Note what micro-batches took, once they can be measured, where a step is cut for want of memory."""
        self._steps += 1
        watched = self._watched
        if watched is None or self._steps != MEASURED_STEP or self.size >= watched.share:
            return
        each = watched.memory.peak() // self.size
        watched.record.write(decide.ran(watched.record.read(), self.size, each))

    def _shrinks(self, error: torch.OutOfMemoryError) -> bool:
        """Remember that `size` was too large; go to a smaller one, if there is one and the pass can be done again."""
        watched = self._watched
        if watched is None or watched.memory.recording():
            return False
        next_size = decide.smaller(watched.share, self.size)
        watched.record.write(decide.failed(watched.record.read(), self.size, watched.memory.room()))
        if next_size is None or not watched.alone or watched.replayed:
            if next_size is not None:
                error.add_note(f"micro-batches of {self.size} sequences do not fit: the next job takes smaller ones")
            return False
        _say_smaller(self.size, next_size)
        self.size = next_size
        return True


def _say_smaller(size: int, smaller: int) -> None:
    say(f"micro-batches of {size} sequences do not fit the GPU: continuing with {smaller}")


def micro_batch_of(config: RunConfig, axes: Axes, share: int, device: torch.device, agree: Agree) -> MicroBatch:
    """Return the micro-batch of a run, whose fullest rank has `share` sequences of a step: as its config says, or made.

    On a GPU it is as large as memory allows; in a pipeline, which wants several, and on a CPU as planned.
    """
    given = config.parallel.micro_batch_sequences
    if given is not None:
        return MicroBatch(even(share, given))
    if device.type != "cuda" or axes.pp > 1:
        return MicroBatch(even(share, micro_batch_sequences(config, axes, device.type)))
    memory = Gpu(device)
    record = SizeRecord(folder(os.environ) / f"{key_of(config, axes, memory.name)}.json")
    watched = Watched(
        memory, record, share,
        alone=axes.size == 1,
        # A trial's gradients are of another size than a step's, which a history of fp8 would take for one.
        apart=strategy(config.parallel, axes) == "ddp" and not config.precision.fp8_history,
        states=footprint(config, axes, device.type).states,
        compiled=bool(config.compile.blocks), replayed=config.compile.cuda_graphs,
    )  # fmt: skip
    return MicroBatch(chosen(config, axes, watched, agree), watched)


def chosen(config: RunConfig, axes: Axes, watched: Watched, agree: Agree) -> int:
    """Return the size to begin with: what every rank has room for.

    A run that is to be the same bit for bit after a restart has the same size then: by all memory that there is.
    """
    if config.memory.checkpointing == "budget":  # which keeps less only where a micro-batch has no room without
        config = replace(config, memory=replace(config.memory, checkpointing="none"))
    room, seen = watched.memory.room(), watched.record.read()
    if config.runtime.deterministic:
        room, seen = watched.memory.total, None
    mine = decide.most(watched.share, decide.need(config, axes), room, seen)
    return even(watched.share, int(agree(torch.tensor([mine])).item()))


def key_of(config: RunConfig, axes: Axes, gpu: str) -> str:
    """Return the name of a shape of run on a kind of GPU, with this torch."""
    shape = {**decide.shape_of(config, axes, gpu), "torch": torch.__version__}
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


def folder(environment: Mapping[str, str]) -> Path:
    """Return where records lie: with the compiled code (`compile.cache`), or where torch keeps it by default."""
    place = environment.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(place or Path(tempfile.gettempdir()) / f"torchinductor_{_user()}") / "micro_batches"


def _user() -> str:
    """Return this user's name as torch has it in its folder's; a container may know none for the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid_{os.getuid()}"
