"""Ranks as forks of one process that has imported what they need: `python -m tests.forked RANKS MODULE WORDS …`.

A path that ends in .py may stand for the module; before RANKS may stand `--compile`. Importing torch and its
distributed parts takes each process seconds of a core; here one does it for all. No thread may be left before the fork:
it would not be in the copies.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import re
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.slurm.settings import free_ports
from tests.warm import Warm, other_threads, warm

REPOSITORY = Path(__file__).resolve().parents[1]
SECONDS = 1800.0
SCHEDULE = re.compile(r"/pipelining/schedules\.py:\d+\] (Step |$)")
USED = (
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining.schedules",
    "torch.distributed.checkpoint.state_dict",
    "torch.nn.parallel.distributed",
    "torch._dynamo",
)
"""What set-ups of ranks import when they are built, which is after the fork."""
LOADED = ("tests.train.faults", "train.runtime.distributed", "train.checkpoint.manager", "train.trainer")
"""What every trainer imports once it runs."""


def trainers() -> Warm:
    """Return the process of this one that has imported torch and the trainer."""
    return warm(*USED, *LOADED)


def environments(size: int) -> list[dict[str, str]]:
    """Return what tells each of `size` ranks of this machine where it belongs, as torchrun does."""
    # Ranks bind it seconds later, when torch is loaded: no port that the kernel gives to others meanwhile.
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def run_ranks(size: int, module: str, *words: str | Path, compiling: bool = False, **environment: str) -> str:
    """Run `python -m module words…` as so many ranks; return what they printed. AssertionError where one fails.

    `compiling`: they use torch.compile. Variables of the environment are set before anything is imported.
    """
    process = (warm(*USED, module, **environment) if environment else trainers()).start(
        "tests.forked",
        *(["--compile"] if compiling else []),
        *(str(size), module, *map(str, words)),
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, out[-4000:] + of_the_failure(err)[-16_000:]
    return out


def of_the_failure(err: str) -> str:
    """Return standard error without the schedules that torch lists, a hundred lines a rank, where a peer has ended."""
    return "".join(line for line in err.splitlines(keepends=True) if not SCHEDULE.search(line))


def fork(size: int, module: str, words: Sequence[str], compiling: bool) -> int:
    """Run the module in `size` forks of this process; return how many of them failed."""
    gc.disable()
    for name in USED if module.endswith(".py") else (*USED, module):
        importlib.import_module(name)
    if compiling:
        load_compiler()
    sys.modules.pop(module, None)  # what is run is __main__
    # The collector of each fork would look through a million objects of modules, and have their memory copied.
    gc.freeze()
    gc.enable()
    children = []
    for place in environments(size):
        child = os.fork()
        if child == 0:
            os.environ.update(place)
            sys.argv = [module, *words]
            _end(module)
        children.append(child)
    return _wait(children)


def _wait(children: Sequence[int]) -> int:
    """Return how many children failed; where a signal ended one, the others, which would wait for it, are killed."""
    alive, failed = set(children), 0
    while alive:
        child, status = os.wait()
        if child not in alive:
            continue
        alive.remove(child)
        failed += status != 0
        if os.WIFSIGNALED(status) and failed == 1:
            name = signal.Signals(os.WTERMSIG(status)).name
            print(f"rank {children.index(child)} was ended by {name}", file=sys.stderr, flush=True)
            for other in alive:
                os.kill(other, signal.SIGKILL)
    return failed


def load_compiler() -> None:
    """Compile a function both ways: torch.compile loads its parts and patterns, three seconds of a core, with that.

    What is compiled takes one number after the other: of vectors, torch writes and compiles each loop twice.
    """
    import torch
    from torch._inductor import config

    # Or a progress bar of torch's, where its cache is empty, leaves a thread.
    importlib.import_module("tqdm").tqdm.monitor_interval = 0
    torch.set_num_threads(1)
    config.cpp.simdlen = 1
    tensor = torch.ones(8, requires_grad=True)
    torch.compile(lambda x: x.sin().sum())(tensor).backward()
    torch.compiler.reset()
    assert not other_threads(), other_threads()


def _end(module: str) -> None:
    """Run the module in this copy of the process, and end it without what the first one would do at its end."""
    code = 1
    faulthandler.enable()  # where each thread was that a signal ends
    with contextlib.suppress(BaseException):
        try:
            if module.endswith(".py"):
                runpy.run_path(module, run_name="__main__")
            else:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = int(bool(end.code))
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word != "--compile"]
    failed = fork(int(given[0]), given[1], given[2:], "--compile" in sys.argv[1:])
    os._exit(int(failed > 0))  # without what the process that this is a fork of would do at its end
