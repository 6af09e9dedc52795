from __future__ import annotations

from typing import Any

import pytest

from study.executors.jobs import Lookup, LookupAnswer
from study.reconcile.decide import Abandon, Confirm, Leave, Submit, decide
from study.records.ledger import fold

OLD = 0.0
FRESH = 95.0
NOW = 100.0


def intent(*keys: str, name: str = "b", executor: str = "slurm", at: float = OLD) -> dict[str, Any]:
    return {"event": "intent", "time": at, "name": name, "executor": executor, "keys": list(keys)}


def submitted(name: str = "b") -> dict[str, Any]:
    return {"event": "submitted", "time": OLD, "name": name, "job_id": "7"}


CANCELLED = {"event": "cancelled", "time": OLD, "keys": ["k"]}
RETRY = {"event": "retry", "time": OLD, "keys": ["k"]}
FOUND = {"b": Lookup(LookupAnswer.FOUND, "7")}
ABSENT = {"b": Lookup(LookupAnswer.ABSENT)}
SILENT = {"b": Lookup(LookupAnswer.UNANSWERED, why="squeue: no answer in 30 s")}
SUBMIT = Submit(("k",))


@pytest.mark.parametrize(
    ("events", "state", "lookups", "expected"),
    [
        # never submitted
        ([], "pending", {}, [SUBMIT]),
        ([], "completed", {}, []),
        ([], "diverged", {}, []),
        ([], "running", {}, []),
        # submitted: only what was interrupted is submitted again
        ([intent("k"), submitted()], "queued", {}, []),
        ([intent("k"), submitted()], "running", {}, []),
        ([intent("k"), submitted()], "unknown", {}, []),
        ([intent("k"), submitted()], "completed", {}, []),
        ([intent("k"), submitted()], "failed", {}, []),
        ([intent("k"), submitted()], "diverged", {}, []),
        ([intent("k"), submitted()], "pending", {}, []),
        ([intent("k"), submitted()], "interrupted", {}, [SUBMIT]),
        ([intent("k"), submitted()], "time_limit", {}, [SUBMIT]),
        # asked for again, or not wanted
        ([intent("k"), submitted(), RETRY], "pending", {}, [SUBMIT]),
        ([intent("k"), submitted(), CANCELLED], "interrupted", {}, []),
        ([intent("k"), submitted(), CANCELLED], "cancelled", {}, []),
        ([intent("k"), submitted(), CANCELLED, RETRY], "pending", {}, [SUBMIT]),
        # meant to be submitted, and nobody knows
        ([intent("k")], "unknown", FOUND, [Confirm("b", "7")]),
        ([intent("k")], "interrupted", FOUND, [Confirm("b", "7")]),
        ([intent("k")], "unknown", ABSENT, [Abandon("b", "the scheduler does not know its name"), SUBMIT]),
        (
            [intent("k", at=FRESH)],
            "unknown",
            ABSENT,
            [Leave("b", "it was meant to be submitted 5 s ago and may still be on its way")],
        ),
        (
            [intent("k")],
            "unknown",
            SILENT,
            [Leave("b", "it is not known whether it was submitted (squeue: no answer in 30 s)")],
        ),
        (
            [intent("k")],
            "unknown",
            {},
            [Leave("b", "it is not known whether it was submitted (the scheduler was not asked)")],
        ),
        ([intent("k")], "completed", ABSENT, [Abandon("b", "the scheduler does not know its name")]),
        # local intents have no scheduler to ask
        ([intent("k", executor="local")], "pending", {}, [Confirm("b", "local")]),
    ],
)
def test_decide(events: list[dict[str, Any]], state: str, lookups: dict[str, Lookup], expected: list[Any]) -> None:
    assert decide(["k"], fold(events), {"k": state}, lookups, NOW) == expected


def test_what_is_wanted_twice_is_submitted_once_and_in_order() -> None:
    known = fold([intent("b"), submitted()])
    assert decide(["c", "b", "a", "c"], known, {"b": "running"}, {}, NOW) == [Submit(("c", "a"))]


def test_an_unwanted_ambiguous_batch_is_settled_too() -> None:
    known = fold([intent("other"), submitted("never")])
    assert decide([], known, {}, FOUND, NOW) == [Confirm("b", "7")]
