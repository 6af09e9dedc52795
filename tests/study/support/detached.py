"""A third executor: an array is a detached process; `python -m tests.study.support.detached MODULE …` knows it."""

from __future__ import annotations

import os
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from study.config.executors import EXECUTORS
from study.executors.base import Executor, JobRequest, RankInfo, Runner, SubmitError
from study.executors.jobs import Job, JobState, Lookup, LookupAnswer, QueueView
from tests.processes import has_ended

MODULE = __spec__.name
SPOOL = Path(os.environ.get("SPOOL", "spool"))
JOB = "echo $$ > $SPOOL/$JOB.$1.pid; {command} >> {log} 2>&1; echo $? > $SPOOL/$JOB.$1.exit"


class Detached(Executor):
    name, title = "detached", "the spool"

    def render(self, request: JobRequest) -> str:
        command = shlex.join([sys.executable, "-m", MODULE, *request.command])
        job = JOB.format(command=command, log=f"{request.folder.jobs.absolute()}/${{JOB}}_${{1}}_0_log.out")
        loop = f"for INDEX in $(seq 0 {(request.count or 1) - 1}); do export INDEX"
        return f"{loop}; sh -c {shlex.quote(job)} - $INDEX; done\n"

    def submit(self, request: JobRequest, script: str) -> str:
        request.folder.jobs.mkdir(parents=True, exist_ok=True)
        job_id = str(1 + sum(1 for _ in SPOOL.glob("*.name")))
        if not SPOOL.is_dir():
            raise SubmitError(f"there is no folder {SPOOL}", ambiguous=False)
        told = {**os.environ, "SPOOL": str(SPOOL), "JOB": job_id}
        process = subprocess.Popen(["sh", "-c", script], env=told, start_new_session=True)
        (SPOOL / f"{job_id}.name").write_text(f"{request.name} {(request.count or 1) - 1} {process.pid}")
        return job_id

    def find(self, name: str, since: float) -> Lookup:
        found = [path.stem for path in SPOOL.glob("*.name") if path.read_text().startswith(f"{name} ")]
        return Lookup(LookupAnswer.FOUND, found[0]) if found else Lookup(LookupAnswer.ABSENT)

    def query(self, ids: Sequence[str]) -> QueueView:
        return QueueView({name: job for job_id in ids for name, job in self._jobs(job_id)})

    def _jobs(self, job_id: str) -> Iterator[tuple[str, Job]]:
        name, last, pid = (SPOOL / f"{job_id}.name").read_text().split()
        over = has_ended(int(pid))
        for index in range(int(last) + 1):
            path = SPOOL / f"{job_id}.{index}.exit"
            code = int(path.read_text() or 0) if path.exists() else 137 if over else None
            alive = JobState.RUNNING if path.with_suffix(".pid").exists() else JobState.QUEUED
            state = alive if code is None else JobState.FAILED if code else JobState.COMPLETED
            yield f"{job_id}_{index}", Job(state, state.upper(), "" if code is None else f"exit code {code}:0", name)

    def cancel(self, indices: Mapping[str, Iterable[int]]) -> None:
        for job_id in indices:
            os.killpg(int((SPOOL / f"{job_id}.name").read_text().split()[2]), signal.SIGTERM)

    def rank_info(self, environment: Mapping[str, str], world: int = 1) -> RankInfo:
        index = int(environment.get("INDEX", "0"))
        return RankInfo(self.name, f"{environment['JOB']}_{index}", world=world, index=index, starts_ranks=True)


def executor(runner: Runner | None = None) -> Executor:
    return Detached()


if __name__ == "__main__":
    EXECUTORS["detached"] = MODULE
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
