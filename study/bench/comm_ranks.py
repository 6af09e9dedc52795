"""Ranks of this machine that time collectives, followed while they do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from study.bench.comm_results import results_of
from study.bench.comm_settings import Wanted
from study.process.children import interpreter, job_environment, kill, spawn
from study.process.ports import meeting_port
from study.storage.files import last_lines

MODULE = "train.measure"
POLL_SECONDS = 0.2
GRACE_SECONDS = 10.0
"""How long other ranks may go on once one has failed: what they say of it may be more."""


def measure(wanted: Wanted, out: Path, log: Callable[[str], None]) -> bool:
    """Run the ranks, which add what they measure to the file `out`; return False if Ctrl-C ended them before.

    ValueError with the ranks' own words where one fails.
    """
    command = [*interpreter(), "-m", MODULE, "--out", str(out), "--backend", wanted.backend]
    command += ["--sizes", ",".join(map(str, wanted.sizes)), "--collectives", ",".join(wanted.collectives)]
    command += ["--seconds", str(wanted.seconds)]
    command += ["--ceilings"] if wanted.profile is not None else []
    base = job_environment(os.environ) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting_port())}
    base |= {"WORLD_SIZE": str(wanted.ranks)}
    processes = {}
    output = out.with_suffix(".log")
    try:
        for rank in range(wanted.ranks):
            mine = base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes[rank] = spawn(command, mine, output, output)
        _follow(processes, out, log)
    except KeyboardInterrupt:
        return False
    finally:
        kill(processes)
        for process in processes.values():
            process.wait()
    failed = [rank for rank, process in processes.items() if process.returncode != 0]
    if failed:
        raise ValueError(f"rank {failed[0]} failed: {' / '.join(last_lines(output)[-2:]) or 'it said nothing'}")
    return True


def _follow(processes: Mapping[int, Any], out: Path, log: Callable[[str], None]) -> None:
    """Wait for all ranks, or some seconds longer than the first that fails, and say what is measured meanwhile."""
    said, limit = 0, None
    while any(process.poll() is None for process in processes.values()):
        said = _log_new(out, said, log)
        if limit is None and any(process.poll() not in (None, 0) for process in processes.values()):
            limit = time.monotonic() + GRACE_SECONDS
        if limit is not None and time.monotonic() > limit:
            return
        time.sleep(POLL_SECONDS)
    _log_new(out, said, log)


def _log_new(out: Path, said: int, log: Callable[[str], None]) -> int:
    from study.bench.comm_report import in_words

    if not out.is_file():
        return said
    results = results_of(out)
    for place, point in enumerate(results.points[said:], said + 1):
        log(f"{place:>4} of {results.about.get('wanted', '?')}  {in_words(point)}")
    return len(results.points)
