"""Ranks that begin in a moment: what stands for `study.process.children.spawn` where that would import torch each time.

Each is a fork of the process that tests of the trainer use, with a pid, a session, memory and signals of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.forked import trainers
from tests.warm import Started


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdout: Path,
    stderr: Path,
    *,
    orphaned: signal.Signals = signal.SIGTERM,
) -> Started:
    """Start `python … -m MODULE WORDS …`, its output added to a file; it ends with this process, however that is."""
    del orphaned
    assert stdout == stderr
    module, *words = command[command.index("-m") + 1 :]
    process = trainers().start(__name__, str(stdout), module, *words, cwd=Path.cwd(), env=environment)
    while process.poll() is None and os.getpgid(process.pid) != process.pid:
        time.sleep(0.001)  # who started it may end its group from here on
    return process


def main() -> None:
    """Run a module in this process."""
    import runpy

    os.setsid()
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for end in (1, 2):
        os.dup2(log, end)
    sys.argv = sys.argv[2:]
    sys.modules.pop(sys.argv[0], None)  # what is run is __main__
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
