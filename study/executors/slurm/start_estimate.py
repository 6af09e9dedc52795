"""When SLURM would start a job, by `sbatch --test-only`."""

from __future__ import annotations

import re
import tempfile

from study.executors.base import Answer, Runner


def estimate(script: str, runner: Runner) -> str:
    """Ask SLURM when a script's first job would start, without submitting it."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as file:
        file.write(script)
        file.flush()
        answer = runner(["sbatch", "--test-only", file.name])
    return in_words(answer)


def in_words(answer: Answer) -> str:
    """Return sbatch's estimate in words; what it says instead where it has none."""
    if answer.code is None:
        return f"no estimate of the start: {answer.error}"
    said = f"{answer.out}\n{answer.error}"
    found = re.search(r"to start at (\S+)(?:.* on nodes? (\S+))?", said)
    if found:
        where = f" on {found[2]}" if found[2] else ""
        return f"SLURM would start the first job at {found[1].replace('T', ' ')}{where}"
    if "fatal" in said or "Unable to contact" in said or "timed out" in said:
        return f"no estimate of the start: {said.strip().splitlines()[-1]}"
    lines = [line.removeprefix("sbatch: error: ") for line in said.splitlines() if line.strip()]
    why = lines[-1].removeprefix("allocation failure: ") if lines else "it does not say why"
    return f"SLURM would not start it: {why}"
