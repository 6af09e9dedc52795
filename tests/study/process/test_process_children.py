from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from study.executors import load
from study.executors.base import RankInfo
from study.job.rendezvous import first_free, rendezvous
from study.process.ports import FIRST_PORT, PORTS, meeting_port
from tests.processes import has_ended
from tests.study.support.studies import environment, wait_until


def test_a_child_gets_sigterm_when_its_parent_is_killed_outright(tmp_path: Path) -> None:
    child = "import signal, time; signal.signal(15, lambda *_: open('told', 'w').close() or exit()); "
    child += "open('ready', 'w').close(); time.sleep(600)"
    parent = f"""
import os, sys, time
from pathlib import Path
from study.process.children import spawn
process = spawn([sys.executable, "-c", {child!r}], os.environ, Path("out"), Path("out"))
Path("staged").write_text(str(process.pid))
Path("staged").rename("pid")
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path, env=environment())
    wait_until("the child is ready and known", lambda: (tmp_path / "ready").exists() and (tmp_path / "pid").exists())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until("the child was told", (tmp_path / "told").exists)
    pid = int((tmp_path / "pid").read_text())
    wait_until("the child ended", lambda: has_ended(pid))


def test_place_in_an_array_task_that_was_requeued() -> None:
    variables = {
        "SLURM_ARRAY_JOB_ID": "12",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_ID": "15",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_PROCID": "2",
        "SLURM_NTASKS": "4",
        "SLURM_LOCALID": "0",
        "SLURM_JOB_NODELIST": "n1,n2",
    }
    assert load("slurm").rank_info(variables) == RankInfo("slurm", "12_3", 1, 2, 4, 0, ("n1", "n2"), index=3)
    assert load("local").rank_info(variables).world == 1, "a local run inside an allocation is not one of its tasks"


def test_ports_come_from_the_job_and_avoid_those_in_use() -> None:
    assert first_free(5, lambda port: port != FIRST_PORT + 5) == FIRST_PORT + 6
    assert first_free(PORTS - 1, lambda port: port == FIRST_PORT) == FIRST_PORT
    with pytest.raises(OSError, match="no free port"):
        first_free(0, lambda port: False)
    one, other = rendezvous(RankInfo("slurm", "12_3"), "10.0.0.1"), rendezvous(RankInfo("slurm", "12_4"), "10.0.0.1")
    assert one[0] == "10.0.0.1"
    found = [meeting_port() for _ in range(5)]
    assert all(FIRST_PORT <= port < FIRST_PORT + PORTS for port in found) and len(set(found)) > 1
    assert one[1] != other[1]
