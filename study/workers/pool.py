"""The pool: starting a search's workers, on this machine or as one SLURM array, and staying with the local ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from study import executors
from study import text as terminal
from study.config.compose import Composed
from study.config.schema import ClusterConfig, StudyConfig, plain
from study.executors import job_spec_of, load, submitted
from study.executors.base import AnySite, JobRequest, batch_name
from study.executors.local import write_batch
from study.executors.prepare_data import gather
from study.planning import devices, sizing
from study.planning.estimate import rows, slots, speed
from study.planning.plan import common, folder_of
from study.planning.ranks import tasks
from study.planning.written import check_writable
from study.process import code_snapshot as frozen_code
from study.process.children import job_environment, python, spawn
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import LostUnits, Units, Workers
from study.reconcile.units import choose_code, withdraw
from study.records import ledger, outcomes
from study.records.corpus import corpus_of
from study.records.point import Point
from study.records.points import known_keys, one_budget, resolve_run
from study.records.settings import reference
from study.records.settings import settings as study_settings
from study.search import outlook, view
from study.search.course import Pace
from study.search.from_overrides import WORKERS, after_first_step, check_first_rung, enqueued, settings_of
from study.search.settings import Settings, as_begun, refuse_another, save
from study.search.settings import load as load_settings
from study.search.trial_point import trial_point
from study.search.trial_queue import TrialQueue
from study.status.copies import search_lines
from study.storage import locks
from study.storage.files import locked, write_atomic
from study.storage.layout import StudyFolder
from study.watch.follow import INTERRUPTED, StopSignal
from study.watch.sync_process import SyncProcess
from study.workers import unit_jobs, waiting
from study.workers.layout import lay_out
from sweeps.space import Condition, Domain
from train.spec.config import RunConfig

MODULE = "study.workers.worker"
TICK_SECONDS = 0.25
LINE_SECONDS = 10.0
DRIVER_SECONDS = 1.0
"""How long a command waits for another one that runs the same search here."""


def start(composed: Composed, space: dict[str, Domain], conditions: Mapping[str, Condition] | None = None) -> int:
    """Write down a search and start its workers; return the exit code. With `dry_run` nothing is written."""
    config = common([composed])
    if not space:
        raise ValueError(
            f"search={config.search.name} has nothing to search over: add -m with lists or ranges, for example "
            "'optim.lr=tag(log,interval(1e-4,1e-2))'"
        )
    folder = folder_of(config)
    check_writable(config)
    if not folder.search.exists() and (there := known_keys(folder)):
        raise ValueError(
            f"study.name={folder.name}: this study has points that no search made ({len(there):,}): take another name"
        )
    begun = load_settings(folder)
    composed, layout = lay_out(composed, space, begun)
    config, run = common([composed]), resolve_run(composed.config, composed.overrides)
    site = load(config.cluster.executor).site() if config.cluster.auto else AnySite()
    by_unit = (
        config.search.shape == "jobs"
    )  # of which each is sized; a worker of a pool takes one trial after the other
    devices.check([(sizing.layout(config.cluster, run, site) if by_unit else config.cluster, run)])
    # What cannot be is said before anything is done: preparing a corpus may take minutes.
    asked = config.search.min_tokens
    wanted = settings_of(config, run, _base(config, run, composed), space, conditions)
    wanted = as_begun(begun, wanted, asked)
    corners = [trial_point(wanted, {name: view.corner(d, high) for name, d in space.items()}) for high in (0, 1)]
    for point in corners:
        _check_ranks(config.cluster, point.config)
    if begun is None:  # one that has begun goes on with its rungs
        if asked is None:
            wanted = after_first_step(wanted, [point.config for point in corners])
        check_first_rung(wanted, [point.config for point in corners])
    manifest = gather([run], print, config.dry_run, config.cluster).get(corpus_of(run))
    if manifest is not None:
        run = replace(run, data=replace(run.data, fingerprint=manifest.fingerprint))
        made = settings_of(config, run, _base(config, run, composed), space, conditions)
        wanted = as_begun(begun, replace(made, r=wanted.r), asked)
    refuse_another(folder, wanted)
    count = config.search.workers or (slots(config.cluster, run) if _local(config) else WORKERS)
    print(view.plan_text(wanted, folder, count, config.cluster.executor))
    for line in (*_outlook(wanted, folder, config, corners, count), *filter(None, [layout])):
        print(line)
    if config.dry_run:
        if not _local(config):
            _show_job(config, folder, count)
        print("\ndry_run=true: nothing was submitted, nothing was written.")
        return 0
    if _local(config):
        with driving(folder):
            _begin(folder, config, wanted)
            return stay(folder, count, config.cluster.code, config.cluster.warm)
    _begin_and_submit(folder, config, wanted, count)
    return watch(folder) if config.wait else 0


@contextmanager
def driving(folder: StudyFolder) -> Iterator[None]:
    """Hold the lock of the one process that runs a search's workers here; TimeoutError names the present holder."""
    folder.path.mkdir(parents=True, exist_ok=True)
    stack = ExitStack()
    try:
        stack.enter_context(locked(folder.controller, DRIVER_SECONDS))
    except TimeoutError as error:
        raise TimeoutError(
            f"study {folder.name} is being searched by another command, and nothing was changed: {error}. To look at "
            f"it: python -m study status {reference(folder)}"
        ) from None
    with stack:
        yield


def stay(folder: StudyFolder, count: int, mode: str = "live", warm: bool = True) -> int:
    """Run `count` workers on this machine until nothing is left; Ctrl-C lets them save and end. Within :func:`driving`.

    mode, warm: `cluster.code` and `cluster.warm`. Returns 0 when the search is over, 130 after Ctrl-C, 1 where
    every worker ended and work is left, or no trial was trained to the end.
    """
    with suppress(TimeoutError):  # whoever looks at the search does it as well
        step(folder, Services(), LostUnits())
    queue = TrialQueue.of(folder)
    version = frozen_code.take(folder, mode)
    copy = frozen_code.source(folder, mode, version.id)
    name = write_batch(folder, [], version.id, {"code": mode, "warm": warm})
    with StopSignal() as stop, SyncProcess(folder) as syncer:
        workers = [_spawn(folder, name, copy) for _ in range(count)]
        shown, told = 0.0, 0
        while any(worker.poll() is None for worker in workers):
            if stop.requests > told:
                told = stop.requests
                print("stopping: the workers save their checkpoints (Ctrl-C again to leave at once)", flush=True)
                for worker in workers:
                    worker.terminate() if told == 1 else worker.kill()
            if time.monotonic() - shown >= LINE_SECONDS:
                shown = time.monotonic()
                queue.refresh()
                terminal.show(view.line(queue.note_silent().search))
                if said := syncer.trouble():
                    terminal.show(said)
            time.sleep(TICK_SECONDS)
        queue.refresh()
        outcomes.export(folder)
        terminal.show(view.text(queue.search, folder, time.time()))
        if stop.requests:
            print(f"The same command continues it; to look at it:  python -m study status {reference(folder)}")
            return INTERRUPTED
        syncer.finish(stop)
    if queue.search.why_stopped:
        print(f"the search is stopped: {queue.search.why_stopped}", file=sys.stderr)
        return 1
    if queue.search.over:
        return 1 if outlook.nothing_finished(queue.search) else 0
    print(f"all workers have ended, but work is left: see {folder.jobs / 'workers.log'}", file=sys.stderr)
    return 1


def watch(folder: StudyFolder) -> int:
    """Print a line every ten seconds until the search is over; 130 after Ctrl-C, 1 where it has finished no trial.

    Why SLURM does not start its jobs is said once, and again where that changes.
    """
    queue, noted = TrialQueue.of(folder), list[str]()
    with StopSignal() as stop:
        shown = 0.0
        while not queue.search.over and not queue.search.stopped and not stop.requests:
            if time.monotonic() - shown >= LINE_SECONDS:
                shown = time.monotonic()
                unit_jobs.advance_quietly(folder)
                terminal.show(view.line(search := queue.note_silent().search))
                if noted != (noted := waiting.lines(folder) or waiting.idle(search, folder)) and noted:
                    terminal.show("\n".join(noted))
            time.sleep(TICK_SECONDS)
            queue.refresh()
    terminal.show(view.text(queue.note_silent().search, folder, time.time()))
    if stop.requests:
        return INTERRUPTED
    return 1 if outlook.nothing_finished(queue.search) else 0


def cancel(folder: StudyFolder) -> str:
    """Hand nothing out any more and tell the workers to save and end; return what was done.

    A search that is over stays as it is.
    """
    queue = TrialQueue.of(folder)
    if queue.search.over and not queue.search.stopped:
        return f"{folder.name}: the search is over, there is nothing to stop; jobs that still wait end as they start"
    queue.record_control("stopped")
    withdraw(folder)
    known = ledger.read(folder)
    batches = submitted(known.batches.values())
    arrays = executors.stop(batches)
    told = sum(_signal(lease, folder) for lease in (folder.leases.glob("[0-9]*") if folder.leases.exists() else ()))
    where = f"{arrays} job arrays and {told} workers of this machine" if batches else f"{told} workers of this machine"
    said = f"{folder.name}: stopped; {where} were told to save and end. The same command continues it"
    return "\n".join([said, *search_lines(known, folder.name)])


def _signal(lease: Path, folder: StudyFolder) -> bool:
    """Tell the worker of a lease to end if it runs on this machine; a lease may go or be renewed at any moment."""
    try:
        host, _, pid = lease.read_text(encoding="utf-8").strip().partition(" ")
        if host != os.uname().nodename or not pid.isdigit() or not _is_worker(int(pid), folder):
            return False
        os.kill(int(pid), signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True


def _is_worker(pid: int, folder: StudyFolder) -> bool:
    import psutil

    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return MODULE in words and str(folder.path) in words


def _show_job(config: StudyConfig, folder: StudyFolder, count: int) -> None:
    """Print the sbatch script that would be submitted, or that of each job where they go out one by one."""
    executor = load(config.cluster.executor)
    single = config.search.shape == "jobs"
    arrays = not single and executor.site().array_limit
    name = batch_name(folder.name, "dryrun")
    shape, copy = job_spec_of(config.cluster), frozen_code.would_be(folder, config.cluster.code)
    request = JobRequest(folder, shape, name, count if arrays else None, module=MODULE, copy=copy)
    print(f"\nThis script would be submitted with {executor.command}:\n")
    if single:
        print("Once for each step of a trial.\n")
    elif not arrays:
        print(f"{executor.title} takes no arrays here: once for each of {count} workers.\n")
    print(executor.render(request).rstrip())


def _begin_and_submit(folder: StudyFolder, config: StudyConfig, wanted: Settings, count: int) -> None:
    """Write a search down and submit its workers, or the jobs of its first units.

    Under one lock: a command that is refused because another one submits has changed nothing.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    as_jobs = config.search.shape == "jobs"

    def begin() -> None:
        _begin(folder, config, wanted)
        if as_jobs:
            choose_code(folder, config.cluster.code)

    done = step(folder, Services(), Units(begin) if as_jobs else Workers(count, config.cluster, begin))
    if as_jobs:
        print(f"submitted {done.submitted} jobs")
    _say_next(folder)


def _say_next(folder: StudyFolder) -> None:
    print(f"Submitted; the workers no longer need this process. Next:\n  python -m study status {reference(folder)}")


def _spawn(folder: StudyFolder, name: str, copy: Path | None) -> subprocess.Popen[bytes]:
    folder.jobs.mkdir(parents=True, exist_ok=True)
    log = folder.jobs / "workers.log"
    command = [*python(copy), "-m", MODULE, str(folder.path.absolute()), "--name", name]
    return spawn(command, job_environment(os.environ, copy), log, log)


def _begin(folder: StudyFolder, config: StudyConfig, wanted: Settings) -> None:
    """Store a search, or its new limits; enqueue the user's points; resume it where it was stopped."""
    _write(folder, config, wanted)
    queue = TrialQueue.of(folder)
    queue.enqueue([enqueued(point, queue.search.space) for point in config.search.enqueue])
    queue.record_control("resumed")


def _outlook(
    wanted: Settings, folder: StudyFolder, config: StudyConfig, corners: Sequence[Point], count: int
) -> list[str]:
    """Return what a search will come to, in words; ValueError where no trial can be trained to the end.

    Of one that has begun how far it is: what it has reached counts as well.
    """
    if load_settings(folder) is not None and (there := TrialQueue.of(folder).search).trials:
        return [f"  begun: {view.line(there)}; what is left:  python -m study status {reference(folder)}"]
    made = rows(corners, {})
    tokens = [row.flops / row.tokens for row in made]
    fast = speed(folder, corners[-1].config, config.cluster)
    rate = sum(row.own for row in made) / sum(fast.seconds(row) for row in made)
    found = outlook.outlook(wanted, tokens, count, Pace(rate, outlook.START_SECONDS))
    outlook.refuse_the_hopeless(wanted, found, fast.why)
    return outlook.lines(wanted, found, rate, fast.why)


def _write(folder: StudyFolder, config: StudyConfig, wanted: Settings) -> None:
    from train.spec.yamlfile import dump

    locks.choose(folder.path, config.paths.locks)
    save(folder, wanted)
    folder.points.touch()
    write_atomic(folder.study, dump(study_settings(config, folder)))


def _base(config: StudyConfig, run: RunConfig, composed: Composed) -> dict[str, Any]:
    """Return the config without the space as plain values: what every trial starts from, its paths absolute."""
    said = plain(asdict(composed.config.run()))
    said["budget"] = asdict(one_budget(config.budget, composed.overrides))
    said["data"] |= {"fingerprint": run.data.fingerprint, "source": run.data.source}
    said["runtime"]["data_root"] = run.runtime.data_root
    assert isinstance(said, dict)
    return said


def _local(config: StudyConfig) -> bool:
    return not load(config.cluster.executor).detached


def _check_ranks(cluster: ClusterConfig, run: RunConfig) -> None:
    """Refuse a mesh whose size is not the worker's number of tasks; a worker of one task starts the ranks itself."""
    count = tasks(cluster)
    if load(cluster.executor).allocates and count > 1:
        sizing.check_ranks(cluster, run, count)
