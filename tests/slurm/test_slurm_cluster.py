"""The throwaway cluster itself: it schedules, it accounts, and nothing of it outlives its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.slurm.cluster import REPOSITORY, ThrowawayCluster, wait_for
from tests.slurm.settings import on_loopback
from tests.slurm.supervisor import MARK

pytestmark = pytest.mark.slurm

START_SECONDS = 600.0


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of all living processes that belong to the cluster in this folder, jobs included."""
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            ours = variables.get(MARK) == str(folder) or (
                variables.get("SLURM_CONF") == f"{folder}/slurm.conf" and "SLURM_JOB_ID" in variables
            )
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def submit_escapee(cluster: ThrowawayCluster, folder: Path) -> None:
    """Run a job that leaves its session and its parent, and wait until it lives."""
    pid_file = folder / "pid"
    inner = f"echo $$ > {pid_file}; exec sleep 1000"
    cluster.call("sbatch", "--output=/dev/null", f"--wrap=setsid -f sh -c '{inner}'; sleep 1000")
    wait_for("the job's own daemon", lambda: pid_file.exists() and pid_file.read_text().strip() != "")


def test_four_idle_nodes_in_well_under_a_minute(cluster: ThrowawayCluster) -> None:
    print(f"start to four idle nodes with accounting: {cluster.start_seconds:.1f} s")
    assert cluster.start_seconds < START_SECONDS
    assert cluster.call("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N").split() == [
        "n1",
        "n2",
        "n3",
        "n4",
    ]


def test_array_of_ten_runs_on_several_nodes_and_is_accounted_for(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    job = cluster.call(
        "sbatch",
        "--parsable",
        "--array=0-9",
        f"--output={tmp_path}/%a",
        "--wrap=sleep 0.5; echo $SLURMD_NODENAME; exit $((SLURM_ARRAY_TASK_ID == 7))",
    ).strip()
    wait_for("ten ended tasks", lambda: sum(one.end for one in cluster.jobs(f"--jobs={job}")) == 10)
    states = {one.job_id: (one.state, one.exit_code) for one in cluster.jobs(f"--jobs={job}")}
    assert states == {f"{job}_{task}": ("FAILED", "1:0") if task == 7 else ("COMPLETED", "0:0") for task in range(10)}
    assert len({(tmp_path / str(task)).read_text() for task in range(10)}) > 1


def test_the_daemons_listen_on_loopback_only(cluster: ThrowawayCluster) -> None:
    settings = cluster.settings
    if not on_loopback(settings.host):
        pytest.skip(f"SLURM binds to the host's name, and {settings.host} is not 127.0.0.1")
    ports = {settings.controller_port, settings.accounting_port, settings.database_port, *settings.node_ports}
    heard = [one.laddr for one in psutil.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    ours = {(address.ip, address.port) for address in heard if address and address.port in ports}
    assert ours == {("127.0.0.1", port) for port in ports}


@pytest.mark.parametrize(("address", "keep"), [("127.0.0.1", True), ("127.0.1.1", False), ("192.0.2.7", False)])
def test_daemons_keep_to_loopback_where_a_step_finds_srun_there(
    monkeypatch: pytest.MonkeyPatch, address: str, keep: bool
) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda host: address)
    assert on_loopback("a-host") is keep


def test_one_job_spans_all_nodes(cluster: ThrowawayCluster) -> None:
    ranks = cluster.call("srun", "--nodes=4", "--ntasks-per-node=2", "sh", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME")
    seen = dict(line.split() for line in ranks.splitlines())
    assert {int(rank) for rank in seen} == set(range(8))
    assert set(seen.values()) == {"n1", "n2", "n3", "n4"}


def test_stop_leaves_no_process_and_no_folder(slurm_here: None, tmp_path: Path) -> None:
    with ThrowawayCluster(nodes=2) as own:
        folder = own.folder
        submit_escapee(own, tmp_path)
        assert len(processes_of(folder)) > 6
    assert processes_of(folder) == []
    assert not folder.exists()


def test_killed_owner_takes_its_cluster_along(slurm_here: None, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests.slurm.cluster import ThrowawayCluster\n"
        "own, named = ThrowawayCluster(nodes=1).start(), Path(sys.argv[1])\n"
        "named.with_suffix('.new').write_text(str(own.folder)); named.with_suffix('.new').rename(named)\n"
        "time.sleep(1000)\n"
    )
    named = tmp_path / "folder"
    owner = subprocess.Popen([sys.executable, "-c", script, str(named)], cwd=REPOSITORY)
    wait_for("a cluster of its own", named.exists)
    folder = Path(named.read_text())
    assert processes_of(folder) != []
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    wait_for("nothing left", lambda: not folder.exists() and processes_of(folder) == [])


def test_stop_cleans_up_after_a_killed_supervisor(slurm_here: None, tmp_path: Path) -> None:
    own = ThrowawayCluster(nodes=1).start()
    folder = own.folder
    submit_escapee(own, tmp_path)
    os.kill(own.supervisor_pid, signal.SIGKILL)
    own.stop()
    assert processes_of(folder) == []
    assert not folder.exists()


def test_make_slurm_runs_a_command_or_waits_for_ctrl_c(slurm_here: None) -> None:
    start = [sys.executable, "-m", "tests.slurm"]
    done = subprocess.run([*start, "sinfo", "--version"], check=False, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0
    assert "slurm" in done.stdout
    staying = subprocess.Popen(start, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert staying.stdout is not None
    export = next(line for line in staying.stdout if "export SLURM_CONF=" in line)
    folder = Path(export.strip().partition("=")[2]).parent
    assert processes_of(folder) != []
    staying.send_signal(signal.SIGINT)
    said, _ = staying.communicate(timeout=START_SECONDS)
    assert staying.returncode == 0
    assert "nothing is left of it" in said
    assert processes_of(folder) == []
    assert not folder.exists()
