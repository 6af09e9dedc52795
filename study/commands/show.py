"""`python -m study show STUDY POINT`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from study import text
from study.cleanup import checkpoints
from study.commands import add_json, add_point, add_study, emit
from study.commands.gc import size
from study.config.dotted import flat
from study.failures.words import Words
from study.records import lineage
from study.records.lost_rows import lost_rows
from study.records.point import Point
from study.records.settings import find_study, load_section, load_submission, reference
from study.records.shapes import ATTEMPT_END, JOB, RUN_OUTCOME
from study.status.filters import as_typed
from study.status.observer import Observer
from study.status.selection import by_key, one_point
from study.status.states import PointState, PointStatus
from study.storage.layout import RunFolder, StudyFolder
from study.storage.shapes import read_record
from study.text import duration, recognised
from train.spec.later import read_run
from train.spec.resolve import resolve

SHOWN_CHECKPOINTS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_point(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Show one point; 1 if it failed."""
    folder = find_study(options.study, options.runs)
    observer = Observer(folder)
    observer.refresh()
    status = by_key(observer.statuses(), one_point(options))
    found = describe(folder, observer.points, status)
    if options.json:
        emit("show", folder, found)
    else:
        text.show("\n".join(as_text(folder, status, found)))
    return 1 if status.state == PointState.FAILED else 0


def describe(folder: StudyFolder, points: Mapping[str, Point], status: PointStatus) -> dict[str, Any]:
    """Return all that is known of a point. Losses in nats per token, times in seconds, sizes in bytes."""
    point, place = points[status.key], folder.run(status.key)
    return {
        "point": status.as_json(),
        "run": str(place.path),
        "differs": differences(folder, point),
        "parent": point.config.schedule.parent,
        "branches": lineage.branches(points.values(), status.key),
        "attempts": attempts(place),
        "checkpoints": [
            {"step": c.step, "tokens": c.tokens, "loss": c.loss, "bytes": c.bytes, "whole": c.whole, "pinned": c.pinned}
            for c in checkpoints.stored(place)
        ],
        "missing": [{"from_step": first, "to_step": last} for first, last in lost_rows(place)],
        "outcome": read_record(place.outcome, RUN_OUTCOME),
        "mlflow": mlflow(folder, status.key),
    }


def differences(folder: StudyFolder, point: Point) -> dict[str, dict[str, Any]]:
    """Return the values of a point's config that are not the base's, as key -> {base, point}.

    The base is the first config that the study's latest command composed (of a list or a design its first point; of a
    search what its trials share), resolved as a point is; a value of None that the point derives is shown where the
    base cannot be resolved.
    """
    defaults = load_section(folder, "run_defaults")
    if not defaults:
        return {}
    base = read_run(defaults, "run_defaults")
    with suppress(ValueError):  # the base alone need not be a run: each point may bring what is missing
        base = resolve(base)
    before, after = flat(asdict(base)), flat(asdict(point.config))
    hidden = ("data.source", "data.fingerprint", "runtime.data_root")
    return {
        key: {"base": before.get(key), "point": value}
        for key, value in after.items()
        if key not in hidden and before.get(key) != value
    }


def attempts(run: RunFolder) -> list[dict[str, Any]]:
    """Return every attempt of a run, the first one first: its job, nodes, times and how it ended (None: it has not)."""
    numbers = sorted(int(p.name) for p in run.attempts.glob("*") if p.name.isdigit())
    found = []
    for number in numbers:
        attempt = run.attempt(number)
        job, ended = read_record(attempt.job, JOB) or {}, read_record(attempt.outcome, ATTEMPT_END)
        words = Words.of_end(ended)
        found.append(
            {
                "number": number,
                "job_id": job.get("job_id"),
                "nodes": list(job.get("nodes") or ()),
                "host": job.get("host"),
                "world": job.get("world"),
                "restart": job.get("restart"),
                "code": job.get("code"),
                "source": job.get("source"),
                "started": job.get("started"),
                "seconds": None if ended is None else ended.get("seconds"),
                "ended": None if ended is None else ended.get("state"),
                "kind": None if ended is None else ended.get("kind"),
                "exit_code": None if ended is None else ended.get("exit_code"),
                "headline": words.headline or None,
                "error": words.lines[-1] if words.lines else None,
            }
        )
    return found


def mlflow(folder: StudyFolder, key: str) -> dict[str, Any] | None:
    """Return where MLflow shows a run, by what the syncer wrote down; None where it has not been sent."""
    from study.config.tracking_uri import is_server
    from study.tracking import state
    from study.tracking.mlflow_view import run_page

    for store, entry in state.load(folder.tracking).stores.items():
        run = entry.runs.get(key)
        if run is not None:
            page = run_page(entry.experiment, run.id)
            link = f"{store.rstrip('/')}/{page}" if is_server(store) else None
            return {"store": store, "experiment": entry.experiment, "run": run.id, "page": page, "link": link}
    return None


def as_text(folder: StudyFolder, status: PointStatus, found: Mapping[str, Any]) -> list[str]:
    """Return it for a person, in 80 columns where paths allow that."""
    state = status.state + (f": {status.why}" if status.why else "")
    lines = [f"{status.key}  {state}", f"  {recognised(status.overrides)}".rstrip(), f"  {found['run']}"]
    done = f"{status.tokens:,} of {status.budget_tokens:,} tokens"
    lines.append(f"  {done}" + ("" if status.loss is None else f", loss {status.loss:.4f} nats per token"))
    lines += ["", _differs(found["differs"])]
    lines += [f"  {key}: {as_typed(v['base'])} -> {as_typed(v['point'])}" for key, v in found["differs"].items()]
    if found["parent"]:
        lines.append(f"goes on from {found['parent']}")
    if found["branches"]:
        lines.append(f"{len(found['branches'])} points continue from it: {' '.join(found['branches'][:6])}")
    lines += ["", *_attempts(found["attempts"], status.state == PointState.RUNNING)]
    lines += ["", *_checkpoints(found["checkpoints"])]
    lines += [f"lost from metrics.jsonl: {_steps(one)}; a run does not write them again" for one in found["missing"]]
    lines += [*(f"  | {line}" for line in status.told(6))]
    where = found["mlflow"]
    if where is None and load_submission(folder).tracking.enabled:
        lines += ["", _not_in_mlflow(folder, bool(found["attempts"]))]
    elif where is not None:
        address = where["link"] or f"http://127.0.0.1:5000/{where['page']}"
        hint = "" if where["link"] else f"    (first: python -m study dashboard {reference(folder)})"
        lines += ["", f"MLflow: {address}{hint}"]
    return [line for line in lines if line is not None]


def _steps(lost: Mapping[str, int]) -> str:
    first, last = lost["from_step"], lost["to_step"]
    return f"steps {first:,} to {last:,}" if first < last else f"step {last:,}"


def _not_in_mlflow(folder: StudyFolder, begun: bool) -> str:
    """Return why MLflow does not show a point: it has a run from its first attempt on, once that was sent."""
    if not begun:
        return "MLflow shows a point from its first attempt on"
    return f"MLflow does not have it yet: python -m study sync {reference(folder)}"


def _differs(found: Mapping[str, Any]) -> str:
    """Return the heading of what a point has otherwise than the base."""
    said = "differs from {}:" if found else "no difference from {}"
    return said.format("the first config of the study's latest command")


def _attempts(found: Sequence[Mapping[str, Any]], running: bool) -> list[str]:
    if not found:
        return ["no attempt yet"]
    lines, rows = ["attempts:"], []
    for one in found:
        took = one["seconds"]
        if took is None and one["started"] is not None:
            took = max(0.0, time.time() - float(one["started"]))
        end = one["ended"] or ("running" if running and one is found[-1] else "no end recorded")
        end += f" ({one['kind'].replace('_', ' ')})" if one["kind"] and one["kind"] != one["ended"] else ""
        nodes = ",".join(one["nodes"][:4]) + ("…" if len(one["nodes"]) > 4 else "")
        spent = "" if took is None else duration(float(took))
        rows.append((f"job {one['job_id'] or '?'}", f"on {nodes or '?'}", spent, end))
    for one, row in zip(found, text.aligned(rows, right=[2]), strict=True):
        lines.append(f"  {one['number']:>3}  {row}")
        if one["source"] == "other":
            lines.append(f"       | ran other code than was recorded for it ({one['code']})")
        if one["headline"]:
            lines.append(text.cut(f"       | {one['headline']}"))
    return lines


def _checkpoints(found: Sequence[Mapping[str, Any]]) -> list[str]:
    if not found:
        return ["no checkpoint"]
    total = sum(one["bytes"] for one in found)
    lines = [f"checkpoints: {len(found)}, {size(total)}"]
    rows = []
    for one in found[-SHOWN_CHECKPOINTS:]:
        marks = [] if one["whole"] else ["not whole"]
        marks += ["pinned"] if one["pinned"] else []
        loss = "" if one["loss"] is None else f"loss {one['loss']:.4f}"
        mark = f"({', '.join(marks)})" if marks else ""
        rows.append((f"step {one['step']:,}", f"{one['tokens']:,} tokens", size(one["bytes"]), loss, mark))
    return lines + [f"  {row}" for row in text.aligned(rows, right=[0, 1, 2])]
