"""The throwaway SLURM cluster to play with: `python -m tests.slurm`, or `python -m tests.slurm COMMAND …` inside it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from tests.slurm.cluster import ThrowawayCluster
from tests.slurm.install import unavailable


def main(command: list[str]) -> int:
    """Start the cluster; run the command on it, or stay until Ctrl-C; stop it."""
    reason = unavailable()
    if reason:
        print(f"no throwaway SLURM cluster here: {reason}", file=sys.stderr)
        return 1
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    print("starting slurmctld, slurmdbd on MariaDB, munged and 4 slurmd …", flush=True)
    with ThrowawayCluster() as cluster:
        print(f"a SLURM cluster of 4 nodes (n1 … n4) runs, started in {cluster.start_seconds:.1f} s\n")
        if command:
            return subprocess.run(command, check=False, env=cluster.full_environment()).returncode
        print("use it from another terminal:\n")
        print(f"  export SLURM_CONF={cluster.settings.slurm_conf}")
        print("  sinfo")
        print("  python -m study.sweep study=smoke cluster=slurm wait=true\n")
        print(f"logs: {cluster.settings.logs}")
        print("stop it: Ctrl-C here (jobs are killed, nothing stays behind)", flush=True)
        ended.wait()
        print("\nstopping …", flush=True)
    print("stopped, nothing is left of it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
