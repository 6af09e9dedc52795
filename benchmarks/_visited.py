"""Which modules of ours a process runs through: every Python process that starts with HOUSE_TRACE=FOLDER notes its own.

The file that :func:`hook` writes is called sitecustomize.py, which Python imports by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("study", "train", "kernels", "sweeps", "analysis")
HOOK = """
import atexit, json, os, sys, threading
ROOT, PACKAGES, ROOTS = {root!r}, {packages!r}, {roots!r}
everything, inside, depth = set(), {{name: set() for name in ROOTS}}, dict.fromkeys(ROOTS, 0)

def module_of(code):
    file = code.co_filename
    if not file.startswith(ROOT):
        return None
    name = file[len(ROOT) + 1 : -3].replace("/", ".").removesuffix(".__init__")
    is_function = code.co_flags & 1 and (code.co_name[0] != "<" or code.co_name == "<lambda>")  # nor a class's body
    return name if is_function and name.partition(".")[0] in PACKAGES else None

def profile(frame, event, argument):
    if event not in ("call", "return"):
        return
    module = module_of(frame.f_code)
    if module is None:
        return
    name = frame.f_code.co_name
    if name in depth:
        depth[name] += 1 if event == "call" else -1
    if event == "call":
        everything.add(module)
        for root, open_calls in depth.items():
            if open_calls > 0:
                inside[root].add(module)

def write():
    sys.setprofile(None)
    found = dict(argv=sys.orig_argv, all=sorted(everything), inside={{k: sorted(v) for k, v in inside.items()}})
    with open(os.path.join(os.environ["HOUSE_TRACE"], f"{{os.getpid()}}.json"), "w") as file:
        json.dump(found, file)

if "HOUSE_TRACE" in os.environ:
    sys.setprofile(profile)
    threading.setprofile(profile)
    atexit.register(write)
"""
SBATCH = "#!/bin/sh\necho Submitted batch job 1\n"
FAILING = f"{sys.executable} -c \"import sys; sys.exit('RuntimeError: NCCL error: unhandled system error')\""


def traced(folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Run `python -m words…` in a folder; return what each of its processes ran through."""
    notes = Path(tempfile.mkdtemp(dir=folder))
    places = os.pathsep.join([str(folder / "hook"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "OMP_NUM_THREADS": "1", "HOUSE_TRACE": str(notes), "PYTHONPATH": places, **environment}
    subprocess.run([sys.executable, "-m", *words], cwd=folder, env=given, check=False, stdout=subprocess.DEVNULL)
    return [json.loads(path.read_text("utf-8")) for path in notes.glob("*.json")]


def union(found: Sequence[dict[str, Any]], module: str, inside: str = "") -> set[str]:
    """Return the modules of the processes whose command line names `module`; only those run through in `inside`."""
    here: set[str] = set()
    for one in found:
        if any(module in str(word) for word in one["argv"]):
            here |= set(one["inside"][inside] if inside else one["all"])
    return here


def walks() -> dict[str, set[str]]:
    """Return the modules on each of the four ways of docs/architecture.md, of one run each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "hook").mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(
            HOOK.format(root=str(ROOT), packages=PACKAGES, roots=("train_step", "conclude", "step"))
        )
        for program in ("sbatch", "squeue", "sacct", "scontrol", "sinfo", "sacctmgr"):
            path = folder / "bin" / program
            path.parent.mkdir(exist_ok=True)
            path.write_text(SBATCH if program == "sbatch" else "#!/bin/sh\n")
            path.chmod(0o755)
        (folder / "text").mkdir()
        for number in range(40):
            (folder / "text" / f"{number}.txt").write_text(f"Sentence {number} after another. " * 400)
        common = ["study.sweep", "data=text", f"data.source={folder / 'text'}", "data.tokenizer=bytes"]
        common += ["data.validation_fraction=0.3", "budget.tokens=12800", "eval.sequences=8", "tracking.enabled=false"]
        common += ["model.width=32", "model.layers=1", "data.sequence_length=64", "batch.tokens=1280"]
        search = ["search=random", "search.trials=1", "search.workers=1", "-m", "optim.lr=tag(log,interval(1e-3,1e-2))"]
        trial = traced(folder, [*common, "study.name=searched", *search], {})
        failed = traced(folder, [*common, "study.name=failed", "-m", "seed=1"], {"STUDY_TRAINER": FAILING})
        slurm = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        words = [
            *common,
            "study.name=submitted",
            "cluster=slurm",
            "cluster.prepare=here",
            "cluster.mem_gb=1",
            "-m",
            "seed=1",
        ]
        point = traced(folder, words, slurm)
    return {
        "a point, from command to sbatch": union(point, "study.sweep"),
        "a failed job, to its retry": union(failed, "study.job", "conclude") | union(failed, "study.sweep", "step"),
        "a trial, command and worker": union(trial, "study.sweep") | union(trial, "study.workers"),
        "a batch, from disk to update": union(trial, "train.serve", "train_step"),
    }
