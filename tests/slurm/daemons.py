"""Killing daemons of a throwaway cluster and starting them again, as operators and accidents do."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field, replace

import psutil

from study.process.children import die_with_parent
from tests.slurm.cluster import ClusterError, ThrowawayCluster, wait_for
from tests.slurm.lab import TRAINERS, Lab
from tests.slurm.supervisor import MARK


@dataclass
class Daemons:
    """The daemons of a cluster; those that were started again here end with :meth:`close`."""

    cluster: ThrowawayCluster
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def pid(self, name: str, node: str = "") -> int:
        """Return the process id of a daemon, of a node where that is given."""
        for process in psutil.process_iter(["name"]):
            try:
                if process.name() == name and self._is_ours(process) and process.cmdline()[-1].endswith(node):
                    return process.pid
            except (psutil.Error, IndexError):
                continue
        raise ProcessLookupError(f"{name} {node} does not run")

    def kill(self, name: str, node: str = "") -> None:
        """Kill a daemon outright."""
        psutil.Process(self.pid(name, node)).kill()

    def start(self, *command: str) -> None:
        """Start a daemon again."""
        environment = self.cluster.full_environment(**{MARK: str(self.cluster.folder)})
        with (self.cluster.settings.logs / "again.out").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - SIGTERM should the tests be killed
            )
        self.started.append(process)

    def save_state(self, job_id: str) -> None:
        """Have slurmctld write down what it knows, by a change to this job.

        It does so seconds late. Killed before, it gives the same numbers to new jobs, and nodes that meet them drain.
        """
        state = self.cluster.folder / "state" / "job_state"
        before = state.stat().st_mtime_ns if state.exists() else 0
        self.cluster.call("scontrol", "update", f"jobid={job_id}", "comment=seen")
        wait_for("slurmctld to save its state", lambda: state.exists() and state.stat().st_mtime_ns > before)

    def start_controller(self) -> None:
        """Start slurmctld with the state that it left, and wait until it answers."""
        self.start("slurmctld", "-D")
        wait_for("slurmctld to answer", self._answers, every=0.5)

    def close(self) -> None:
        """End those that were started again."""
        for process in self.started:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        try:
            return "UP" in self.cluster.call("scontrol", "ping")
        except (ClusterError, subprocess.TimeoutExpired):
            return False

    def _is_ours(self, process: psutil.Process) -> bool:
        variables = process.environ()
        mine = variables.get(MARK) == str(self.cluster.folder) and "SLURM_JOB_ID" not in variables
        return mine and process.status() != psutil.STATUS_ZOMBIE


def hasty(lab: Lab) -> Lab:
    """Return a lab whose commands wait 2 s for a slurmctld that does not answer, not 10 s."""
    usual = lab.cluster.settings.slurm_conf
    hasty = usual.with_name("hasty.conf")
    hasty.write_text(usual.read_text(encoding="utf-8") + "MessageTimeout=2\n", encoding="utf-8")
    return replace(lab, variables=(*lab.variables, ("SLURM_CONF", str(hasty))))


def killing_as_sbatch_is_called(lab: Lab, pid: int) -> Lab:
    """Return a lab whose sbatch first kills this process."""
    victim = lab.folder / "victim"
    victim.write_text(str(pid), encoding="utf-8")
    path = f"{TRAINERS}:{lab.environment['PATH']}"
    more = {"PATH": path, "MOMENT": "late", "LATE": "0", "VICTIM": str(victim)}
    return replace(lab, variables=(*lab.variables, *more.items()))
