"""From checked configs to submitted points: prepare the data, freeze, show the table, then hand over to execution."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from study.config.compose import Composed
from study.config.schema import ClusterConfig, StudyConfig
from study.config.tracking_uri import resolve
from study.executors import load
from study.executors.base import Executor, Site
from study.executors.prepare_data import gather
from study.planning import devices, sizing
from study.planning.estimate import ENDED, RowState, rows, slots, speed
from study.planning.plan import StudyPlan, check_apart, common, folder_of, make_plan
from study.planning.ranks import local_world, tasks
from study.planning.written import check_writable, write
from study.records import lineage, other_code
from study.records.corpus import corpus_of, remarks
from study.records.point import Point
from study.records.points import load_points, resolve_run
from study.records.settings import reference
from study.records.shapes import RUN_OUTCOME
from study.storage.secrets import refuse_secrets
from study.storage.shapes import read_record
from study.sweep.layouts import lay_out
from study.sweep.table import table
from study.text import counted
from train.spec.config import RunConfig

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_COMMANDS = 3
Batch = tuple[ClusterConfig, list[Point]]
"""Points with the cluster section that they go to."""


def submit(composed: Sequence[Composed]) -> int:
    """Show the points and submit them; return the exit code. With `dry_run` nothing is submitted or written."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 140
    # Paths and overrides are printed as they are: [ and : in them are not markup.
    console = Console(soft_wrap=False, width=width, highlight=False, markup=False, emoji=False)
    config = common(composed)
    # Wrong input is refused before anything is written or submitted.
    refuse_secrets({**asdict(config), "overrides": sorted({o for one in composed for o in one.overrides})}, os.environ)
    resolve(config.tracking.uri, Path.cwd())
    most = slots(config.cluster, config.run())
    _check_folder(config)
    sites = {name: load(name).site() for name in {one.config.cluster.executor for one in composed}}
    asked = [resolve_run(one.config, one.overrides) for one in composed]
    check_apart(composed, asked)
    found = lay_out(composed, asked, console.print)
    composed, resolved = found.composed, found.resolved
    wanted = [(one.config.cluster, run) for one, run in zip(composed, resolved, strict=True)]
    laid_out = [(sizing.layout(cluster, run, sites[cluster.executor]), run) for cluster, run in wanted]
    devices.check(laid_out)
    for cluster, run in laid_out:
        sizing.check_ranks(cluster, run, _world(cluster, run))
    if any(corpus.find() is None for corpus in set(map(corpus_of, resolved))):  # preparing it may take minutes
        unprepared = make_plan(composed, resolved, {})
        _check_weights(unprepared)
        _sized(unprepared.batches(), unprepared, sites)
    corpora = gather(resolved, console.print, config.dry_run, config.cluster)
    plan = make_plan(composed, resolved, {corpus: manifest.fingerprint for corpus, manifest in corpora.items()})
    known = load_points(plan.folder)
    lineage.check(plan.points, known if lineage.parents(plan.points) else {})
    _check_weights(plan)
    states = _states(plan, known)
    left = _left(plan, states)
    sized = _sized(left, plan, sites)
    at_once = _at_once(most, sized, sites)
    _show(plan, states, at_once, console, sites)
    unread = other_code.lines(known.values())
    for line in (*remarks(resolved, corpora), *devices.slow(laid_out), *found.said, *unread):
        console.print(line, soft_wrap=True)
    if config.dry_run:
        for name, jobs in sized.items():
            _show_scripts(plan, load(name), jobs, console, sites[name])
        _show_processes(plan, left, console)
        return 0
    write(plan)
    return _execute(plan, console)


def _check_folder(config: StudyConfig) -> None:
    """Raise ValueError where the study's folder cannot be written to, or holds a search, which makes its own points."""
    folder = folder_of(config)
    check_writable(config)
    if folder.search.exists():
        raise ValueError(
            f"study.name={folder.name}: that study is a search, which makes its own points: take another name"
        )


def _check_weights(plan: StudyPlan) -> None:
    """Raise ValueError where the weights or the checkpoint that runs start from do not exist.

    Checkpoints lie in studies, on a disk that this process sees. Weights may lie on a disk that only nodes see, so they
    are checked for local runs only.
    """
    configs = [point.config for point in plan.points]
    parents = {one.schedule.parent for one in configs if one.schedule.parent and lineage.parent_of(one) is None}
    weights = {one.model.init_from for one in configs if not load(plan.config.cluster.executor).allocates}
    for key, places in (("schedule.parent", parents), ("model.init_from", weights)):
        for place in places - {None}:
            if not Path(place or "").expanduser().is_dir():
                raise ValueError(f"{key}={place}: there is no such folder")


def _world(cluster: ClusterConfig, run: RunConfig) -> int:
    """Return how many processes a run gets."""
    count = tasks(cluster)
    return count if load(cluster.executor).allocates else local_world(asdict(run.parallel), count)


def _states(plan: StudyPlan, known: Collection[str]) -> dict[str, RowState]:
    """Return what is known of the points already: how they ended, or that the study, of keys `known`, holds them."""
    found = {}
    for key in set(known).intersection(point.key for point in plan.points):
        outcome = read_record(plan.folder.run(key).outcome, RUN_OUTCOME)
        ended = RowState.DIVERGED if outcome and outcome.get("state") == "diverged" else RowState.COMPLETED
        found[key] = RowState.KNOWN if outcome is None else ended
    return found


def _left(plan: StudyPlan, states: Mapping[str, RowState]) -> list[Batch]:
    """Return the points that have not ended, grouped by cluster section."""
    left = [(cluster, [p for p in points if states.get(p.key) not in ENDED]) for cluster, points in plan.batches()]
    return [(cluster, points) for cluster, points in left if points]


def _sized(batches: Sequence[Batch], plan: StudyPlan, sites: Mapping[str, Site]) -> dict[str, list[sizing.Sized]]:
    """Return the jobs of each scheduler, by shape; ValueError for a job that could never start."""
    found: dict[str, list[sizing.Sized]] = {}
    for cluster, points in batches:
        if load(cluster.executor).detached:
            jobs = sizing.job_specs(plan.folder, points, cluster, sites[cluster.executor])
            found.setdefault(cluster.executor, []).extend(jobs)
    return found


def _at_once(most: int, sized: Mapping[str, Sequence[sizing.Sized]], sites: Mapping[str, Site]) -> int:
    """Return how many points run at once on devices of their own: at most `most`, and what jobs and nodes allow."""
    jobs, room = 0, 0
    for name, arrays in sized.items():
        for one in arrays:
            lanes = one.shape.pack if one.shape.pack_gpus == "own" else 1
            there = sites[name].jobs_at_once(one.shape)
            jobs += lanes * one.shape.jobs(len(one.keys))
            room = max(room, most if there is None else lanes * there)
    return max(1, min(most, jobs, room)) if sized else most


def _show(
    plan: StudyPlan,
    states: Mapping[str, RowState],
    at_once: int,
    console: Console,
    sites: Mapping[str, Site],
) -> None:
    first = plan.clusters[0]
    cluster = sizing.layout(first, plan.points[0].config, sites[first.executor])
    shown = rows(plan.points, states)
    title = f"Study {plan.config.study.name}: {counted(len(plan.points), 'point')} on {cluster.executor}"
    console.print(table(shown, speed(plan.folder, plan.config.run(), cluster), at_once, title, console.width))
    new = sum(row.state == RowState.NEW for row in shown)
    done, diverged = (sum(row.state == state for row in shown) for state in ENDED)
    ended = f"{done} completed" + (f", {diverged} diverged" if diverged else "")
    text = f"{new} new, {len(shown) - new} already in {plan.folder.path} ({ended})"
    twice = plan.asked - len(plan.points)
    console.print(text + (f"; {counted(twice, 'duplicate')} dropped." if twice else "."), soft_wrap=True)


def _show_scripts(
    plan: StudyPlan, executor: Executor, sized: Sequence[sizing.Sized], console: Console, site: Site
) -> None:
    """Print the exact scripts that would be submitted, with what the scheduler says of them."""
    from study.sweep import dry_run

    texts = dry_run.scripts(plan.folder, executor, sized, plan.config.cluster.array_parallelism, site.array_limit)
    scripts = "This script" if len(texts) == 1 else "These scripts"
    console.print(f"\n{scripts} would be submitted with {executor.command}:\n")
    if not site.array_limit:
        console.print(f"{executor.title} takes no arrays here: once for each job.\n")
    sys.stdout.write("\n".join(text.rstrip() + "\n" for text in texts) + "\n")
    sys.stdout.write("\n".join([dry_run.asked(sized), *dry_run.outlook(plan, executor, sized, texts)]) + "\n")


def _show_processes(plan: StudyPlan, left: Sequence[Batch], console: Console) -> None:
    """Print the commands that would be started on this machine."""
    for cluster, points in left:
        if load(cluster.executor).detached:
            continue
        at_once = min(slots(cluster, plan.config.run()), len(points))
        ranks = _world(cluster, points[0].config)
        each = f", {ranks} ranks each" if ranks > 1 else ""
        console.print(f"\nThese processes would be started, {at_once} at once{each}:\n", style="bold")
        for point in points[:SHOWN_COMMANDS]:
            sys.stdout.write(f"python -m train.run --config {plan.folder.run(point.key).config}\n")
        if len(points) > SHOWN_COMMANDS:
            sys.stdout.write(f"… and {len(points) - SHOWN_COMMANDS} more\n")
    sys.stdout.write("\ndry_run=true: nothing was submitted, nothing was written.\n")


def _execute(plan: StudyPlan, console: Console) -> int:
    from study.reconcile.services import Services
    from study.reconcile.step import step
    from study.reconcile.triggers import Submit
    from study.watch.follow import follow

    batches = plan.batches()
    triggers = [Submit([p.key for p in points], cluster) for cluster, points in batches]
    submitted = sum(step(plan.folder, Services(), trigger).submitted for trigger in triggers)
    # One call follows the whole study. It also starts the local runs, as slots become free.
    stays = sorted(
        (c for c, _ in batches if plan.config.wait or not load(c.executor).detached), key=lambda c: c.executor
    )
    if stays:
        return follow(plan.folder, stays[0])
    _next_commands(plan, submitted, console)
    return 0


def _next_commands(plan: StudyPlan, submitted: int, console: Console) -> None:
    from rich.text import Text

    study = reference(plan.folder)
    head = "Submitted; the jobs no longer need this process." if submitted else "Nothing new to submit."
    console.print(f"{head} Next:")
    for command, what in (("status", "what each point is doing"), ("watch", "the same, live"), ("logs", "the output")):
        key = f" {plan.points[0].key}" if command == "logs" else ""
        line = Text(f"  python -m study {command} {study}{key}  ").append(f"# {what}", style="dim")
        console.print(line, soft_wrap=True)
