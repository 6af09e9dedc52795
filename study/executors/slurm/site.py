"""What a site takes and how much room there is right now: asks SLURM, and remembers what seldom changes."""

from __future__ import annotations

import getpass
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from study.executors.base import Runner
from study.executors.slurm import limits, nodes, parse_limits
from study.executors.slurm.limits import Limits
from study.executors.slurm.nodes import Site
from study.executors.slurm.query import SQUEUE_FIELDS, run
from study.records.shapes import SCHEDULER_ANSWERS
from study.storage.files import write_json
from study.storage.shapes import read_record

MEMORY_SECONDS = 600.0
"""How long the answers about limits, which administrators set, serve without being asked again."""


def read_site(runner: Runner = run, memory: Path | None = None, now: float | None = None) -> Site:
    """Return what one job may ask here: nodes and partitions, and what associations and QOS allow it.

    memory: as for :func:`read_limits`; None: everything is asked now and nothing is written.
    """
    found = nodes.read_nodes(runner)
    if not found.nodes:
        return found
    ask = _Remembered(runner, memory, time.time() if now is None else now)
    seen = replace(found, allowed=_rules(runner, ask, getpass.getuser()))
    ask.save()
    return seen


def read_limits(runner: Runner, memory: Path, now: float, user: str | None = None) -> Limits:
    """Ask the scheduler what it takes: one squeue, one sdiag, one `scontrol show assoc_mgr` where limits are enforced.

    What administrators set comes from the file `memory` while that is younger than MEMORY_SECONDS.
    """
    user = user or getpass.getuser()
    said = runner(
        ["squeue", "--noheader", "--all", "--array", "--states=all", f"--user={user}", f"--format={SQUEUE_FIELDS}"]
    )
    queue = parse_limits.read_queue(said)
    if not queue.complete:
        return Limits(problem=said.error.splitlines()[-1] if said.error else "squeue's answer could not be read")
    ask = _Remembered(runner, memory, now)
    rules = _rules(runner, ask, user)
    ask.save()
    everybody = parse_limits.read_sdiag(runner(["sdiag"]).out) if rules.controller.max_jobs is not None else 0
    return replace(rules, queue=queue, everybody=everybody)


def _rules(runner: Runner, ask: _Remembered, user: str) -> Limits:
    """Return what the administrators' limits are, without a look at the queue."""
    controller = parse_limits.read_config(ask("scontrol", "show", "config"))
    accounts, partitions = limits.Accounts(), limits.Partitions()
    if controller.enforced:
        partitions = parse_limits.read_partitions(ask("scontrol", "show", "partition"))
        live = runner(["scontrol", "show", "assoc_mgr", f"users={user}", "flags=assoc,qos"])
        named = ask("sacctmgr", "-n", "-P", "show", "qos", f"format={parse_limits.QOS_FIELDS}")
        own = ask("sacctmgr", "-n", "-P", "show", "assoc", f"user={user}", f"format={parse_limits.ASSOC_FIELDS}")
        accounts = limits.merge(
            parse_limits.read_assoc_mgr(live.out if live.code == 0 else "", user),
            parse_limits.read_sacctmgr_assoc(own),
            parse_limits.read_sacctmgr_qos(named),
        )
    return Limits(controller, accounts, partitions, user=user)


class _Remembered:
    """Asks, unless the answer in the file is young enough. The file may be deleted at any time."""

    def __init__(self, runner: Runner, path: Path | None, now: float) -> None:
        self._runner = runner
        self._path = path
        self._now = now
        loaded = (read_record(path, SCHEDULER_ANSWERS) if path is not None else None) or {}
        answers, when = loaded.get("answers"), loaded.get("time")
        fresh = isinstance(when, int | float) and 0 <= now - when < MEMORY_SECONDS
        self._answers: dict[str, str] = dict(answers) if fresh and answers else {}
        self._new = not self._answers

    def __call__(self, *command: str) -> str:
        name = " ".join(command)
        if name not in self._answers:
            answer = self._runner(list(command))
            if answer.code != 0:
                return ""
            self._answers[name] = answer.out
            self._new = True
        return self._answers[name]

    def save(self) -> None:
        if self._path is not None and self._new and self._answers:
            with suppress(OSError):  # it is asked again next time
                write_json(self._path, {"time": self._now, "answers": self._answers})
