"""`python -m study plan parallel`; with `measure=` the fastest layouts are also run, as points of a study of their own.

So what was measured stays, and the same command goes on where it was interrupted. A layout is no part of a point's key:
the seed is made from the layout, which tells the points apart and has no effect on speed.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from study.bench import made_up
from study.bench.comm_settings import gpu_count
from study.config.schema import ClusterConfig, StudyConfig
from study.config.single import composed
from study.executors import load
from study.executors.prepare_data import gather
from study.failures.kinds import Kind
from study.planning import devices
from study.planning.parallel import plan, profiles
from study.planning.parallel.answer import Answer, as_words, settings
from study.planning.parallel.measured import MEASURED, Measured, Measurement
from study.planning.parallel.question import Measuring, Question
from study.planning.parallel.space import Candidate
from study.planning.plan import StudyPlan, folder_of
from study.planning.reply import Reply
from study.planning.written import write
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import Submit
from study.records.last_sign import last_metrics
from study.records.points import absolute, to_point
from study.records.settings import reference
from study.status.observer import Observer
from study.status.states import ENDED, RESUMABLE, PointState, PointStatus
from study.storage.layout import RunFolder
from study.text import counted
from study.watch.follow import INTERRUPTED, follow
from train.spec import manifest
from train.spec.config import (
    BudgetConfig,
    DataConfig,
    EvalConfig,
    HealthConfig,
    ProfileConfig,
    RunConfig,
    ScheduleConfig,
    SpikesConfig,
)
from train.spec.resolve import resolve

STUDY = "layouts"
LEAST_TOKENS = 1 << 18
NEVER = 1e6
"""Seconds between checkpoints: a run of some steps has one at its end, which is removed."""
HAS_ENDED = frozenset({PointState.COMPLETED, PointState.DIVERGED, PointState.FAILED, PointState.CANCELLED})
"""States of runs with which the same command does not go on."""
OUT_OF_MEMORY = {Kind.GPU_MEMORY: "out of GPU memory", Kind.HOST_MEMORY: "out of host memory"}


def reply(words: Sequence[str]) -> Reply:
    """Return the answer to the words, with what was measured where they ask for it; ValueError for wrong ones."""
    found = plan.answered(words, _check_ranks)
    measuring = found.question.measuring
    if measuring is None or not found.best:
        return plan.reply(words, found)
    return plan.reply(words, found, measure(found, measuring))


def _check_ranks(question: Question) -> None:
    """Raise ValueError where layouts are to be run on ranks that cannot be had: a search may take a minute."""
    if question.measuring is not None:
        cluster_of(_study(question).cluster, question)


def measure(found: Answer, measuring: Measuring) -> Measurement:
    """Run the fastest layouts one after the other, the progress told on stderr; what there is already stays."""
    asked = planned(found, measuring)
    keys = [point.key for point in asked.points]
    write(asked)
    before = {key: status.state for key, status in _statuses(asked).items() if key in keys}
    done = [key for key, state in before.items() if state in HAS_ENDED]
    for key, state in before.items():
        if state in RESUMABLE:  # it begins again: what a run compiles after its return would be timed
            shutil.rmtree(asked.folder.run(key).checkpoints, ignore_errors=True)
            asked.folder.run(key).metrics.unlink(missing_ok=True)
    interrupted = False
    with redirect_stdout(sys.stderr):  # the answer alone is on stdout
        told = [f"measuring {counted(len(keys), 'layout')}, {measuring.steps} steps each: study {asked.folder.name}"]
        told += [f"{len(done)} have been run before"] if done else []
        print("; ".join(told), flush=True)
        try:
            step(asked.folder, Services(), Submit(keys, asked.clusters[0]))
            interrupted = follow(asked.folder, asked.clusters[0]) == INTERRUPTED
        except KeyboardInterrupt:
            interrupted = True
    rows = _rows(asked, keys, measuring.steps)
    return Measurement(reference(asked.folder), measuring.steps, rows, len(done), interrupted)


def planned(found: Answer, measuring: Measuring) -> StudyPlan:
    """Return the study whose points are the fastest layouts; ValueError where so many ranks cannot be had."""
    question = found.question
    config = _study(question)
    cluster = cluster_of(config.cluster, question)
    corpus = _corpus(question, config)
    runs = [run_of(one.candidate, measuring.steps, corpus, config) for one in found.best[: measuring.top]]
    devices.check((cluster, run) for run in runs)
    fingerprints = {read: there.fingerprint for read, there in gather(runs, print, False, cluster).items()}
    named = [(run, _named(one.candidate)) for run, one in zip(runs, found.best, strict=False)]
    points = tuple(to_point(run, fingerprints, words) for run, words in named)
    return StudyPlan(folder_of(config), replace(config, cluster=cluster), points, (cluster,) * len(points), len(points))


def run_of(candidate: Candidate, steps: int, data: DataConfig, config: StudyConfig) -> RunConfig:
    """Return the run of some steps of a layout on random tokens, of which the second half is timed."""
    laid_out = candidate.config
    assert laid_out.batch.tokens is not None, "the config is resolved"
    axes = candidate.axes
    run = replace(
        laid_out,
        model=replace(laid_out.model, init_from=None),
        data=data,
        batch=replace(laid_out.batch, ramp_from=None),
        budget=BudgetConfig(tokens=steps * laid_out.batch.tokens),
        schedule=ScheduleConfig(),
        spikes=SpikesConfig(threshold=0.0),
        eval=EvalConfig(sequences=axes.data * axes.pp, count=1),
        health=HealthConfig(),
        profile=ProfileConfig(),
        seed=int(hashlib.sha256(" ".join(_named(candidate)).encode()).hexdigest()[:7], 16),
        runtime=replace(
            laid_out.runtime,
            data_root=config.runtime.data_root,
            log_steps=steps // 2,
            checkpoint_seconds=NEVER,
            checkpoint_keep_steps=0,
        ),
    )
    return resolve(absolute(run))


def cluster_of(given: ClusterConfig, question: Question) -> ClusterConfig:
    """Return the cluster section that gives each layout its ranks, one run at a time; ValueError where it cannot."""
    gpus, on_gpu = question.gpus, question.device == "cuda"
    if not load(given.executor).allocates:
        there = gpu_count()
        if on_gpu and there < gpus:
            raise ValueError(
                f"measure= runs gpus={gpus} on this machine, which shows {there}: take cluster.executor=slurm with "
                "cluster.partition, or fewer GPUs, or a profile of this machine's CPUs (python -m study bench comm "
                "backend=gloo profile=FILE.yaml)"
            )
        return replace(given, nodes=1, tasks_per_node=gpus, gpus_per_node=0, slots=1, warm=False, auto=())
    each = given.gpus_per_node or min(gpus, profiles.innermost(question.profile))
    if gpus % each:
        raise ValueError(
            f"gpus={gpus} is not a multiple of cluster.gpus_per_node={each}: the nearest is "
            f"gpus={max(1, round(gpus / each)) * each}"
        )
    shaped = replace(given, nodes=gpus // each, tasks_per_node=each, gpus_per_node=each if on_gpu else 0)
    return replace(shaped, pack=1, points_per_job=None, array_parallelism=1, warm=False, auto=())


def _study(question: Question) -> StudyConfig:
    """Return the study's settings: nothing is tried again, as a layout that fails is a result."""
    words = [*question.words]
    words += [] if any(word.startswith("retry") for word in words) else ["retry=never"]
    config = composed(words)
    name = config.study.name
    if name == "default":
        run, profile = replace(question.config, parallel=RunConfig().parallel), question.profile.name
        about = f"{run} {profile} {question.gpus}"
        name = f"{STUDY}-{hashlib.sha256(about.encode()).hexdigest()[:6]}"
    tracking = replace(config.tracking, enabled=False)
    return replace(config, study=replace(config.study, name=name), tracking=tracking)


def _corpus(question: Question, config: StudyConfig) -> DataConfig:
    """Write random tokens, enough for a sequence of each rank, where they are not there; return how to read them."""
    data = question.config.data
    needed = (question.gpus + 1) * data.sequence_length + 1
    size = max(LEAST_TOKENS, 1 << needed.bit_length())
    found = DataConfig(name=f"{made_up.NAME}-{size}", vocab_size=data.vocab_size, sequence_length=data.sequence_length)
    root = Path(config.runtime.data_root).expanduser().absolute()
    there = manifest.folder(found, str(root))
    if not (there / manifest.FILE).exists():
        shutil.rmtree(there, ignore_errors=True)  # begun, and not ended
        made_up.write_corpus(root, data.vocab_size, size, size, found.name)
    return found


def _named(candidate: Candidate) -> tuple[str, ...]:
    return tuple(as_words(settings(candidate)))


def _statuses(asked: StudyPlan) -> dict[str, PointStatus]:
    return {status.key: status for status in Observer(asked.folder).statuses()}


def _rows(asked: StudyPlan, keys: Sequence[str], steps: int) -> list[Measured]:
    statuses = _statuses(asked)
    rows = [_row(number, asked.folder.run(key), statuses[key], steps) for number, key in enumerate(keys, 1)]
    for row, key in zip(rows, keys, strict=True):
        if row.state == MEASURED:  # of a large model it is large, and nobody goes on from it
            shutil.rmtree(asked.folder.run(key).checkpoints, ignore_errors=True)
    return rows


def _row(number: int, run: RunFolder, status: PointStatus, steps: int) -> Measured:
    about = Measured(number, status.key, str(run.path), _state(status))
    if status.state in (PointState.COMPLETED, PointState.DIVERGED) and (timed := _timed(run, steps)):
        peak = timed.get("peak_memory_gib")
        return replace(
            about,
            state=MEASURED,
            seconds=timed["seconds_step"],
            tokens_per_second=timed["tokens_per_second"],
            peak=None if peak is None else round(peak * 2**30),
        )
    return replace(about, error=(status.headline or status.why) if status.state == PointState.FAILED else "")


def _timed(run: RunFolder, steps: int) -> dict[str, float] | None:
    """Return the metrics of the second half of a run's steps; None where they are not there."""
    record = last_metrics(run) or {}
    if record.get("step") != steps:
        return None
    return {name: float(value) for name, value in record["metrics"].items()}


def _state(status: PointStatus) -> str:
    """Return in words why a layout was not measured."""
    if status.state == PointState.FAILED:
        return OUT_OF_MEMORY.get(status.kind, "failed")
    return str(status.state) if status.state in ENDED else "not run yet"
