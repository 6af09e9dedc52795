"""A study done in three ways, each from its command to a fitted law: ours, hydra-submitit's launcher, torchtitan."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.commands import Sampler, Shell, WayError, last_lines
from benchmarks.peers.points import StudyPoint, script_settings, shards, titan_settings, write_table
from train.runtime.compile_cache import INDUCTOR, TRITON
from train.spec.yamlfile import dump

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
LAW_ANSWERS = (0, 3)
"""Exit codes of analysis.fit that come with a fit.json: 3 recommends nothing."""


@dataclass(frozen=True)
class Study:
    """What all ways are given: the design's words and points, and what a job asks SLURM for.

    seconds: time that each way has [s]. ours: further words for our command. minutes: time limit of the others' jobs.
    """

    words: tuple[str, ...]
    points: tuple[StudyPoint, ...]
    folder: Path
    environment: Mapping[str, str]
    gpus: int
    cpus: int
    mem_gb: float | None
    seconds: float
    ours: tuple[str, ...] = ()
    minutes: int = 60


@dataclass(frozen=True)
class Done:
    """What became of a way; seconds are from its command on, None: it did not get there.

    busy: GPU-seconds in which a kernel ran. training: seconds of training steps, of all runs together, compiling
    included. law, parabolas: exponents of N* and D* by its own law (ours only), and by the same parabolas for all.
    """

    way: str
    runs_end: float | None = None
    returned: float | None = None
    fitted: float | None = None
    busy: float | None = None
    training: float | None = None
    points: int = 0
    law: tuple[float, float] | None = None
    parabolas: tuple[float, float] | None = None
    left_out: int = 0
    lost: tuple[str, ...] = ()
    failure: str = ""
    losses: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """What a way's runs left: rows for the fit, when the last one ended (epoch) [s], seconds of steps, losses."""

    rows: list[dict[str, Any]]
    ended: float | None
    training: float
    lost: tuple[str, ...]


def do(name: str, study: Study) -> Done:
    """Do the study in this way, in its folder; whatever goes wrong is in what it returns."""
    study.folder.mkdir(parents=True)
    shell = Shell(study.folder, environment(study, name), time.monotonic() + study.seconds)
    began, clock, done = time.time(), time.monotonic(), Done(name)
    with Sampler(study.folder / "nvidia-smi.csv") as sampler:
        try:
            WAYS[name].submit(study, shell)
            done = replace(done, returned=time.monotonic() - clock)
            done = fitted(collected(done, study, began), study, shell, clock)
        except Exception as error:
            known = isinstance(error, WayError)
            done = replace(collected(done, study, began), failure=str(error) if known else repr(error))
        finally:
            WAYS[name].stop(study, shell)
    return replace(done, busy=sampler.busy(time.monotonic() - clock))


def collected(done: Done, study: Study, began: float) -> Done:
    """Add what the way's runs have left, and write the table for the fit; `began`: the command's time (epoch) [s]."""
    results = WAYS[done.way].collect(study)
    rows = [row for row in results.rows if math.isfinite(row["loss"])]
    write_table(rows, study.folder / "runs.csv")
    return replace(
        done,
        runs_end=None if results.ended is None else results.ended - began,
        training=results.training,
        points=len(rows),
        lost=results.lost,
        losses={str(row["name"]): float(row["loss"]) for row in rows},
    )


def fitted(done: Done, study: Study, shell: Shell, clock: float) -> Done:
    """Fit as users of the way do, and note when that was done; then the parabolas, for all ways the same."""
    if not done.points:
        log = max(study.folder.glob("*.log"), key=lambda path: path.stat().st_mtime, default=study.folder)
        raise WayError(f"no run has a result: {last_lines(log)}")
    ours = done.way == "ours"
    if ours:
        words = (f"runs=runs/{_study_name(study)}", "out=report")
        shell.run("fit", sys.executable, "-m", "analysis.fit", *words, good=LAW_ANSWERS)
        done = replace(done, fitted=time.monotonic() - clock, law=law_of(study.folder / "report" / "fit.json"))
    log = shell.run("parabolas", sys.executable, str(HERE / "parabolas.py"), "runs.csv")
    found = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    return replace(
        done,
        fitted=done.fitted if ours else time.monotonic() - clock,
        parabolas=None if found["N"] is None else (found["N"], found["D"]),
        left_out=len(found["left_out"]),
    )


def law_of(path: Path) -> tuple[float, float] | None:
    """Return the exponents of N* and D* that fit.json recommends; None where it recommends nothing."""
    recommendation = json.loads(path.read_text(encoding="utf-8"))["recommendation"]
    if recommendation is None:
        return None
    growth = recommendation["growth"]
    return growth["params"]["exponent"], growth["tokens"]["exponent"]


def environment(study: Study, way: str) -> dict[str, str]:
    """Return a way's variables: caches of compiled code of its own, empty at its start, where each looks for them."""
    cache = study.folder / "cache"
    kept = {name: value for name, value in study.environment.items() if name not in (INDUCTOR, TRITON)}
    theirs = {} if way == "ours" else {INDUCTOR: str(cache / "inductor"), TRITON: str(cache / "triton")}
    own = {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(study.cpus)}
    return {**kept, **own, **theirs}


def need(module: str, package: str) -> None:
    """Raise WayError where a module that a way's jobs import is not there."""
    if importlib.util.find_spec(module) is None:
        raise WayError(f"the package {package} is not installed: see python -m benchmarks.study_peers --help")


def submit_ours(study: Study, shell: Shell) -> None:
    """Give the command of the README and stay with it."""
    words = (*study.words, "cluster=slurm", "wait=true", *study.ours)
    shell.run("sweep", sys.executable, "-m", "study.sweep", *words, good=(0, 1))


def stop_ours(study: Study, shell: Shell) -> None:
    """Cancel what has not ended."""
    shell.said(sys.executable, "-m", "study", "cancel", _study_name(study))


def collect_ours(study: Study) -> Results:
    """Read what the study's runs left."""
    runs = study.folder / "runs" / _study_name(study)
    if not (runs / "points.jsonl").is_file():
        return Results([], None, 0.0, ("nothing was submitted",))
    by_design = {(point.budget, point.config.model.width, point.config.model.layers): point for point in study.points}
    rows, lost, ended, training = [], [], [], 0.0
    for line in (runs / "points.jsonl").read_text(encoding="utf-8").splitlines():
        key, config = (record := json.loads(line))["key"], record["config"]
        point = by_design[config["budget"]["flops"], config["model"]["width"], config["model"]["layers"]]
        attempts = [_read(path) for path in sorted((runs / key).glob("attempts/*/outcome.json"))]
        outcome = _read(runs / key / "outcome.json")
        bad = [one for one in attempts if one and one.get("state") != "completed"]
        lost += [f"{point.name}: {one.get('kind')}, {one.get('headline')}" for one in bad]
        if outcome.get("state") != "completed":
            lost.append(f"{point.name}: no result")
            continue
        ended.append((runs / key / "outcome.json").stat().st_mtime)
        training += float(outcome["seconds"]["train"])
        rows.append(point.row(outcome["tokens"], outcome["loss"]["validation_nats_per_token"]))
    return Results(rows, max(ended, default=None), training, tuple(lost))


def _read(path: Path) -> dict[str, Any]:
    """Return a file's JSON object, an empty one where it is not there."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _study_name(study: Study) -> str:
    named = [word.partition("=")[2] for word in (*study.words, *study.ours) if word.startswith("study.name=")]
    return named[-1] if named else "isoflop_gpu"


def submit_script(study: Study, shell: Shell) -> None:
    """Write the script's configs, one a point, and launch them as hydra-submitit's users do, which waits for all."""
    need("hydra_plugins.hydra_submitit_launcher", "hydra-submitit-launcher")
    _write_configs(study, shell.folder)
    launcher = {
        "gpus_per_node": study.gpus or None,
        "cpus_per_task": study.cpus,
        "mem_gb": None if study.mem_gb is None else math.ceil(study.mem_gb),
        "timeout_min": study.minutes,
        "name": _job_name(study),
    }
    words = [f"hydra.launcher.{name}={value}" for name, value in launcher.items() if value is not None]
    shell.run(
        "launch",
        *(sys.executable, str(HERE / "script.py"), "--config-dir", "conf", "--config-name", "config", "-m"),
        *("hydra/launcher=submitit_slurm", "point=glob(*)", *words),
        good=(0, 1),  # 1: a run failed
    )


def _write_configs(study: Study, folder: Path) -> None:
    (folder / "conf" / "point").mkdir(parents=True)
    config = study.points[0].config
    common = {
        "defaults": ["_self_", {"point": "???"}],
        "out": str(folder / "runs"),
        "train": [str(file) for file in shards(config, "train")],
        "validation": [str(file) for file in shards(config, "validation")],
        "compile": study.gpus > 0,
    }
    (folder / "conf" / "config.yaml").write_text(dump(common), encoding="utf-8")
    for number, point in enumerate(study.points):
        path = folder / "conf" / "point" / f"p{number:02}.yaml"
        path.write_text(dump(script_settings(point)), encoding="utf-8")


def _job_name(study: Study) -> str:
    """Return the name of a way's jobs: one that no other job of this user has."""
    return f"{study.folder.name}-{study.folder.parent.name}-{os.getpid()}"


def submit_titan(study: Study, shell: Shell) -> None:
    """Submit one job a point with sbatch, and look into the queue until all have ended."""
    if study.gpus == 0:
        raise WayError("torchtitan trains on GPUs only: gpus=1")
    need("torchtitan", "torchtitan")
    for point in study.points:
        folder = shell.folder / "runs" / point.name
        folder.mkdir(parents=True)
        (folder / "point.json").write_text(json.dumps(titan_settings(point, folder)), encoding="utf-8")
        (folder / "job.sh").write_text(titan_script(study, folder), encoding="utf-8")
        shell.run(f"sbatch-{point.name}", "sbatch", str(folder / "job.sh"))
    shell.wait(f"--name={_job_name(study)}")


def titan_script(study: Study, folder: Path) -> str:
    """Return the batch script of one torchtitan job."""
    options = {
        "job-name": _job_name(study),
        "gpus-per-node": study.gpus,
        "cpus-per-task": study.cpus,
        "time": study.minutes,
        "output": folder / "log",
        **({} if study.mem_gb is None else {"mem": f"{round(study.mem_gb * 1024)}M"}),
    }
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    command = [sys.executable, *torchrun, "-m", "benchmarks.peers.titan_point", str(folder / "point.json")]
    lines = [f"#SBATCH --{name}={value}" for name, value in options.items()]
    path = f"export PYTHONPATH={shlex.quote(str(REPOSITORY))}${{PYTHONPATH:+:$PYTHONPATH}}"
    allocator = "export PYTORCH_ALLOC_CONF=expandable_segments:True  # as torchtitan's own launch script"
    return "\n".join(["#!/bin/bash", *lines, path, allocator, shlex.join(command), ""])


def collect_results(study: Study) -> Results:
    """Read the result.json of every point."""
    rows, lost, ended, training = [], [], [], 0.0
    for point in study.points:
        run = study.folder / "runs" / point.name
        result = _read(run / "result.json")
        if not result:
            lost.append(f"{point.name}: no result. {last_lines(run / 'log', 1)}".strip())
            continue
        if not math.isfinite(result["loss"]):
            lost.append(f"{point.name}: loss {result['loss']}")
        ended.append((run / "result.json").stat().st_mtime)
        training += result["seconds"]
        rows.append(point.row(result["tokens"], result["loss"]))
    return Results(rows, max(ended, default=None), training, tuple(lost if rows else ["all points"]))


def stop_named(study: Study, shell: Shell) -> None:
    """Cancel the way's jobs by their name."""
    name = f"--name={_job_name(study)}"
    shell.cancel(name, name)


@dataclass(frozen=True)
class Steps:
    """The three things that a way does beside its fit: submit and wait; read what its runs left; cancel the rest."""

    submit: Callable[[Study, Shell], None]
    collect: Callable[[Study], Results]
    stop: Callable[[Study, Shell], None]


WAYS = {
    "ours": Steps(submit_ours, collect_ours, stop_ours),
    "hydra_submitit": Steps(submit_script, collect_results, stop_named),
    "torchtitan": Steps(submit_titan, collect_results, stop_named),
}
