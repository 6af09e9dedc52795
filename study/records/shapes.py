"""The shapes of what jobs and trainers write into a run's folder, and of what is read from a study's beside it."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache

from study.config.executors import EXECUTORS
from study.failures.kinds import AttemptState
from study.failures.retry_policy import Action
from study.storage.shapes import (
    COUNT,
    FLAG,
    LOSS,
    NUMBER,
    NUMBERS,
    OBJECT,
    SECONDS,
    TEXT,
    TEXTS,
    TIME,
    WHOLE,
    Form,
    Shape,
    list_of,
    object_later,
    object_of,
    one_of,
    values_of,
)

EXECUTOR = Form("an executor's name", lambda value: isinstance(value, str) and value in EXECUTORS)
"""One that is registered later is one, too."""

RUN_OUTCOME = Shape(
    "the outcome of a run",
    {
        "state": one_of(AttemptState.COMPLETED, AttemptState.DIVERGED),
        "step": COUNT,
        "tokens": COUNT,
        "flops": NUMBER,
        "flops_own": NUMBER,
        "epochs": NUMBER,
        "params": NUMBERS,
        "loss": values_of(LOSS, "an object of numbers"),
        "health": NUMBERS,
        "seconds": values_of(SECONDS, "an object of seconds"),
        "device": TEXT,
        "device_name": TEXT,
        "torch": TEXT,
        "world_size": COUNT,
        "gpu_share": NUMBER,
    },
    ("state",),
    "restore it from a backup, or remove it and go on with python -m train.run --config {folder}/config.yaml",
)
JOB = Shape(
    "what a job says of its attempt",
    {
        "name": TEXT,
        "executor": EXECUTOR,
        "job_id": TEXT,
        "restart": COUNT,
        "nodes": TEXTS,
        "pid": COUNT,
        "start_time": NUMBER,
        "process": TEXT,
        "host": TEXT,
        "started": TIME,
        "code": TEXT,
        "source": TEXT,
        "world": COUNT,
        "unit": COUNT,
        "memory_gb": NUMBER,
        "address": TEXT,
        "port": COUNT,
        "round": COUNT,
    },
    remedy="restore it from a backup, or leave it: the attempt is passed over",
)
ATTEMPT_END = Shape(
    "the end of an attempt",
    {
        "state": TEXT,
        "kind": TEXT,
        "exit_code": WHOLE,
        "signal": WHOLE,
        "ended": TIME,
        "seconds": SECONDS,
        "headline": TEXT,
        "error": Form("text", lambda value: isinstance(value, str) or TEXTS.fits(value)),  # a list in earlier versions
        "rank": COUNT,
    },
    ("state",),
    "restore it from a backup, or leave it: the attempt counts as one that was killed outright",
)
RANK_END = Shape(
    "the end of a rank",
    ATTEMPT_END.fields,
    ("state", "ended", "rank", "error"),
    "the other ranks' count",
)
LEFT_TO = Shape(
    "a job's note that it left its run to another",
    {"name": TEXT, "job_id": TEXT, "time": TIME},
    ("name", "time"),
    "remove it",
)
BEAT = Shape(
    "a rank's heartbeat",
    {
        "beats": COUNT,
        "step": COUNT,
        "phase": TEXT,
        "allow": SECONDS,
        "median": SECONDS,
        "own": SECONDS,
        "where": TEXT,
        "time": TIME,
    },
    ("beats", "step", "phase", "allow"),
    "remove it",
)
PAUSE = Shape("a question of a trainer that has paused", {"number": COUNT, "tokens": COUNT}, ("number",))
HANG = Shape("what the watch over a rank found", {"why": TEXT, "time": TIME}, ("why",), "remove it")
PROGRESS = Shape(
    "an object of step, tokens, losses and seconds",
    {"step": COUNT, "tokens": COUNT, "validation_loss": LOSS, "seconds": values_of(SECONDS, "an object of seconds")},
)
MANIFEST = Shape(
    "a checkpoint's manifest",
    {"progress": object_of(PROGRESS), "files": OBJECT},
    remedy="restore it from a backup, or remove the checkpoint {folder}",
)
QUEUE_NOTE = Shape(
    "a note of when the scheduler was asked", {"time": TIME, "why": TEXT, "waiting": COUNT}, remedy="remove it"
)
SCHEDULER_ANSWERS = Shape(
    "what the scheduler said of its limits",
    {"time": TIME, "answers": values_of(TEXT, "an object of texts")},
    remedy="remove it",
)
_SETTLED_POINT = Form("", lambda value: isinstance(value, list) and list(map(type, value)) == [int, int, list])
SETTLED = Shape(
    "what earlier looks found",
    {"fields": TEXTS, "points": list_of(_SETTLED_POINT, "a list of a size, a time and fields each")},
    remedy="remove it",
)

METRICS = Shape(
    "a row of metrics",
    {
        "kind": TEXT,
        "step": COUNT,
        "tokens": COUNT,
        "time": TIME,
        "path": COUNT,
        "metrics": values_of(LOSS, "an object of numbers"),
    },
    ("kind", "metrics"),
)
TIMED = Shape("a row with its time", {"time": TIME}, ("time",))
TARGET = Shape("where a rollback leads", {"to_step": NUMBER, "to_tokens": NUMBER})
_FORMS = {"int": COUNT, "float": NUMBER, "str": TEXT, "bool": FLAG, "tuple[str, ...]": TEXTS}
"""By type of a key; a key of another has a form of its own."""


@cache
def resources() -> Shape:
    """Return what a job asks: keys of the section `cluster`, what it waits for, and of a local run its processes.

    Options of sbatch are pairs. Made when first asked for: a job's process has no need of the config's schema.
    """
    from study.config.schema import ClusterConfig

    kinds = {one.name: str(one.type).removesuffix(" | None") for one in fields(ClusterConfig)}
    pair = Form("a pair", lambda value: isinstance(value, list) and len(value) == 2)
    return Shape(
        "what a job asks",
        {
            **{name: _FORMS[kind] for name, kind in kinds.items() if kind in _FORMS},
            "nice": WHOLE,
            "sbatch": list_of(pair, "a list of pairs"),
            "dependency": TEXT,
            "tasks": COUNT,
        },
    )


JOB_ID = Form("a job's id", lambda value: isinstance(value, str) and bool(re.fullmatch(r"[0-9A-Za-z][\w.-]*", value)))
"""What may be passed to SLURM's commands: never an option."""
EVENT = Shape(
    "an event",
    {"event": TEXT, "time": NUMBER, "job_id": JOB_ID},
    ("event", "time"),
)
_KEYS = Shape("an event on points", {"keys": TEXTS, "why": TEXT}, ("keys",))
_ASKED = {
    "keys": TEXTS,
    "resources": object_later(resources, "what a job asks"),
    "code": TEXT,
    "executor": EXECUTOR,
    "name": TEXT,
    "folder": TEXT,
}
EVENTS = {
    "waiting": Shape("points that wait", {**_ASKED, "parallel": COUNT, "why": TEXT, "needs": COUNT}, ("keys",)),
    "intent": Shape(
        "a submission",
        {**_ASKED, "throttle": COUNT, "array": FLAG},
        ("name", "executor", "keys"),
    ),
    "submitted": Shape(
        "a confirmation",
        {"name": TEXT},
        ("name", "job_id"),
    ),
    "abandoned": Shape(
        "a submission's end",
        {"name": TEXT, "why": TEXT, "final": FLAG},
        ("name", "why"),
    ),
    "cancelled": _KEYS,
    "refused": _KEYS,
    "retry": _KEYS,
    "ended": Shape(
        "a bad end",
        {
            "key": TEXT,
            "name": TEXT,
            "attempt": COUNT,
            "kind": TEXT,
            "nodes": TEXTS,
            "action": one_of(*Action),
            "why": TEXT,
            "memory_gb": NUMBER,
            "saved": COUNT,
        },
        ("key", "name", "attempt", "kind"),
    ),
    "code": Shape("a code version", {"code": TEXT}),
    "excluded": Shape("nodes left out", {"nodes": values_of(TEXT, "an object of texts")}, ("nodes",)),
}
"""Of a ledger's events, by their word; those of a later version are passed over."""
