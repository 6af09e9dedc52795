"""A scheduler in one small file, for tests of submission that kill its users thousands of times.

Its answers have SLURM's form. Requests may be refused for limits, get lost, be accepted without an answer, or arrive
long after whoever made them was killed. Every change is one step under a lock, as a controller's is.
"""

from __future__ import annotations

import fcntl
import json
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.executors.base import Answer

TIMEOUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
FULL = (
    "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting policy"
)
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


@dataclass(frozen=True)
class PretendSlurm:
    """The scheduler whose state is a file. `most`: jobs that the user may have; `array`: MaxArraySize."""

    path: Path
    most: int
    array: int
    calm: bool = False
    """Whether every request arrives and is answered."""

    def start(self) -> None:
        """Begin with no jobs."""
        self.path.write_text(json.dumps({"next": 1, "jobs": {}, "late": []}), encoding="utf-8")

    def run(self, command: Sequence[str], chance: random.Random) -> Answer:
        """Answer a command, sometimes badly."""
        name = command[0]
        if name == "sbatch":
            return self._sbatch(Path(command[-1]).read_text(encoding="utf-8"), chance)
        fixed = {
            "scontrol": f"AccountingStorageEnforce = limits\nMaxArraySize = {self.array}\nMaxJobCount = 10000\n",
            "sacctmgr": f"root|root|||normal|{self.most}||||\n" if "assoc" in command else "normal|||||||||\n",
            "sdiag": "",
        }
        if name in fixed:
            return Answer(0, fixed[name])
        if name == "squeue" and (self.calm or chance.random() >= 0.03):
            return Answer(0, "".join(self._lines(command)))
        said = {"squeue": DOWN, "sacct": "Slurm accounting storage is disabled"}
        return Answer(1, error=said.get(name, f"{name}: not here"))

    def begin(self, chance: random.Random) -> tuple[str, str, int] | None:
        """Start one of the jobs that wait; return its array's id, name and index."""
        with self._state() as state:
            waiting = [
                (i, k) for i, job in state["jobs"].items() for k, s in enumerate(job["states"]) if s == "PENDING"
            ]
            if not waiting:
                return None
            job_id, index = chance.choice(waiting)
            state["jobs"][job_id]["states"][index] = "RUNNING"
            return job_id, state["jobs"][job_id]["name"], index

    def end(self, job_id: str, index: int, word: str) -> None:
        """End a job."""
        with self._state() as state:
            state["jobs"][job_id]["states"][index] = word

    def deliver(self, share: float, chance: random.Random) -> int:
        """Let requests arrive that were on their way; return how many did."""
        with self._state() as state:
            arrive = [request for request in state["late"] if chance.random() < share]
            state["late"] = [request for request in state["late"] if request not in arrive]
            for request in arrive:
                self._accept(state, *request)
            return len(arrive)

    def jobs(self) -> dict[str, Any]:
        """Return all jobs there ever were."""
        with self._state() as state:
            return dict(state["jobs"])

    def _sbatch(self, script: str, chance: random.Random) -> Answer:
        name, last = (re.search(rf"^#SBATCH --{o}=(\S+)", script, re.MULTILINE) for o in ("job-name", "array"))
        assert name and last, script
        count = int(last[1].partition("%")[0].partition("-")[2] or 0) + 1
        assert count <= self.array, f"array of {count}"
        with self._state() as state:
            fate = 1.0 if self.calm else chance.random()
            if fate < 0.08:  # lost on the way
                return Answer(1, error=TIMEOUT)
            if fate < 0.16:  # on its way for longer than anybody waits
                state["late"].append([name[1], count])
                return Answer(1, error=TIMEOUT)
            job_id = self._accept(state, name[1], count)
            if job_id is None:
                return Answer(1, error=FULL)
            return Answer(1, error=TIMEOUT) if fate < 0.24 else Answer(0, f"Submitted batch job {job_id}\n")

    def _accept(self, state: dict[str, Any], name: str, count: int) -> str | None:
        alive = sum(s in ("PENDING", "RUNNING") for job in state["jobs"].values() for s in job["states"])
        if alive + count > self.most:
            return None
        job_id = str(state["next"])
        state["next"] += 1
        state["jobs"][job_id] = {"name": name, "states": ["PENDING"] * count}
        return job_id

    def _lines(self, command: Sequence[str]) -> Iterator[str]:
        named = next((w.partition("=")[2] for w in command if w.startswith("--name=")), None)
        ids = next((w.partition("=")[2].split(",") for w in command if w.startswith("--jobs=")), None)
        for job_id, job in self.jobs().items():
            if (named is None or job["name"] == named) and (ids is None or job_id in ids):
                for index, word in enumerate(job["states"]):
                    yield f"{job_id}|{index}|{word}|None|{job['name']}\n"

    @contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        with self.path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads(self.path.read_text(encoding="utf-8"))
            yield state
            staged = self.path.with_suffix(".new")
            staged.write_text(json.dumps(state), encoding="utf-8")
            staged.rename(self.path)
