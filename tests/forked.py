"""Ranks as forks of one process that has imported what they need: `python -m tests.forked RANKS MODULE WORDS …`.

A path that ends in .py may stand for the module. Importing torch and its distributed parts takes each process seconds
of a core; here one does it for all. Nothing is computed before the fork: a library's threads are not in the copies.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.slurm.settings import free_ports

REPOSITORY = Path(__file__).resolve().parents[1]
SECONDS = 1000.0
USED = (
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining.schedules",
    "torch.distributed.checkpoint.state_dict",
    "torch.nn.parallel.distributed",
    "torch._dynamo",
)
"""What set-ups of ranks import when they are built, which is after the fork."""


def environments(size: int) -> list[dict[str, str]]:
    """Return what tells each of `size` ranks of this machine where it belongs, as torchrun does."""
    # Ranks bind it seconds later, when torch is loaded: no port that the kernel gives to others meanwhile.
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def run_ranks(size: int, module: str, *words: str | Path) -> str:
    """Run `python -m module words…` as so many ranks; return what they printed. AssertionError where one fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.forked", str(size), module, *map(str, words)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout


def fork(size: int, module: str, words: Sequence[str]) -> int:
    """Run the module in `size` forks of this process; return how many of them failed."""
    gc.disable()
    for name in USED if module.endswith(".py") else (*USED, module):
        importlib.import_module(name)
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
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


def _end(module: str) -> None:
    """Run the module in this copy of the process, and end it without what the first one would do at its end."""
    code = 1
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
    sys.exit(fork(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
