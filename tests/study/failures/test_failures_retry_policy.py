"""The policy table: what follows from each kind of end, its caps, the evidence against nodes, and more memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.config.schema import RetryConfig
from study.executors.job_spec import JobSpec
from study.failures.kinds import FAILURES, Counts, Kind
from study.failures.retry_policy import (
    Action,
    Change,
    RecordedFailure,
    RetryRules,
    Rule,
    adapt,
    change,
    due,
    evidence,
    is_bad,
    is_failure,
    new_ends,
    parse_rule,
    verdict,
)
from study.records import ledger
from study.records.bad_ends import end_fields

RULES = RetryConfig().rules()


def policy(**said: Any) -> RetryRules:
    return RetryConfig(**said).rules()


NEVER = policy(preempted="stop", time_limit="stop", hang="stop")


@dataclass(frozen=True)
class Evidence:
    """A point as status says it."""

    key: str = "k"
    state: str = "failed"
    kind: Kind = Kind.HANG
    batch: str | None = "b"
    attempt: int | None = 1
    nodes: tuple[str, ...] = ("n1",)


def had(*kinds: str) -> list[RecordedFailure]:
    return [RecordedFailure("k", "b", number, Kind(kind)) for number, kind in enumerate(kinds, 1)]


@pytest.mark.parametrize(
    ("kind", "before", "action"),
    [
        ("preempted", [], "again"),
        ("preempted", ["preempted"] * 99, "again"),
        ("preempted", ["preempted"] * 100, "stop"),
        ("time_limit", ["preempted"] * 100, "again"),
        ("time_limit", ["time_limit"] * 100, "stop"),
        ("node_failure", [], "elsewhere"),
        ("hang", ["hang"] * 2, "elsewhere"),
        ("hang", ["hang"] * 3, "stop"),
        ("hang", ["communication"] * 3, "elsewhere"),
        # failures of all kinds together have a cap of their own; preemptions and time limits do not count for it
        ("killed", ["hang", "hang", "communication", "node_failure", "node_failure"], "again"),
        ("killed", ["hang", "hang", "communication", "node_failure", "node_failure", "no_outcome"], "stop"),
        ("killed", ["preempted", "time_limit"] * 20, "again"),
        ("time_limit", ["hang"] * 9, "again"),
        ("host_memory", ["host_memory"], "more"),
        ("host_memory", ["host_memory"] * 2, "stop"),
        ("gpu_memory", [], "again"),
        ("gpu_memory", ["gpu_memory"], "stop"),
        ("disk_full", [], "stop"),
        ("bad_config", [], "stop"),
        ("code_error", [], "stop"),
        ("interrupted", [], "stop"),
        ("unknown", [], "stop"),
        ("a kind of a later version", [], "stop"),
        ("cancelled", [], "stop"),
    ],
)
def test_verdict(kind: str, before: list[str], action: str) -> None:
    assert verdict(Kind(kind), had(*before), RULES).action == action


def test_what_is_never_tried_again_is_not_said_to_have_been() -> None:
    none_at_all = replace(RULES, failures=0)
    assert verdict(Kind.HANG, [], none_at_all).why == "retry.failures is 0"
    assert verdict(Kind.PREEMPTED, [], none_at_all).action == "again", "no failure"
    no_hang = replace(RULES, kinds={**RULES.kinds, Kind.HANG: Rule(Action.AGAIN, 0)})
    assert verdict(Kind.HANG, [], no_hang).why == "retry.hang is again 0"


@pytest.mark.parametrize(
    ("kind", "before", "saved", "action"),
    [
        # (kind, tokens of the newest checkpoint) of the ends so far, and what is saved now
        ("killed", [("killed", 10), ("killed", 10)], 10, "stop"),  # two in a row on the same checkpoint
        ("killed", [("killed", 10), ("killed", 10)], 20, "again"),  # it got further
        ("killed", [("killed", 10), ("killed", 20), ("killed", 30)], 30, "again"),  # the first on this checkpoint
        ("killed", [("killed", 10), ("killed", 20), ("killed", 20)], 20, "stop"),
        ("killed", [("killed", 20), ("killed", 10)], 10, "stop"),  # a torn checkpoint is no way forward
        ("killed", [("killed", 0)] * 2, 0, "stop"),  # none was ever saved
        ("hang", [(kind, n) for n in range(1, 9) for kind in ("hang", "killed")], 9, "elsewhere"),
        ("hang", [("communication", 5)] * 3 + [("killed", 5)] * 2 + [("no_outcome", 5)], 5, "stop"),
        ("hang", [("communication", 5)] * 3 + [("killed", 5)] * 2 + [("no_outcome", 5)], 6, "elsewhere"),
        # memory grows each time, whatever was saved; the others that are no failures count all
        ("host_memory", [("host_memory", 10), ("host_memory", 20)], 30, "stop"),
        ("preempted", [("preempted", n) for n in range(100)], 100, "stop"),
        ("held", [("held", n) for n in range(5)], 9, "stop"),
        ("code_error", [], 10, "stop"),
    ],
)
def test_failures_count_while_the_run_gets_no_further(
    kind: str, before: list[tuple[str, int]], saved: int, action: str
) -> None:
    ends = [RecordedFailure("k", "b", number, Kind(of), saved=tokens) for number, (of, tokens) in enumerate(before, 1)]
    assert verdict(Kind(kind), ends, RULES, saved).action == action


def test_on_one_machine_elsewhere_and_more_are_as_it_is() -> None:
    here = RULES.here()
    assert [verdict(Kind(kind), [], here).action for kind in ("hang", "host_memory", "killed", "code_error")] == [
        "again",
        "again",
        "again",
        "stop",
    ]
    assert verdict(Kind.HANG, had(*["hang"] * 3), here).action == "stop"


def test_every_kind_has_a_rule_or_is_never_tried_again() -> None:
    good = {Kind.NONE, Kind.COMPLETED, Kind.PAUSED, Kind.CANCELLED}
    assert set(Kind) - good == set(RULES.kinds)
    assert all(rule.action in list(Action) for rule in RULES.kinds.values())


def test_a_stop_says_which_key_would_change_it() -> None:
    assert "retry.hang" in verdict(Kind.HANG, had(*["hang"] * 3), RULES).why
    assert "retry.failures" in verdict(Kind.KILLED, had(*["hang"] * 6), RULES).why
    assert "retry.code_error" in verdict(Kind.CODE_ERROR, [], RULES).why


@pytest.mark.parametrize("text", ["again", "again x", "maybe 3", "stop 3", "", "again 3 4", "again -1"])
def test_a_rule_that_is_none_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(ValueError, match=r"retry\.hang="):
        policy(hang=text)
    assert parse_rule("retry.hang", "elsewhere 3") == Rule(Action.ELSEWHERE, 3)


@pytest.mark.parametrize(
    ("ends", "states", "left_out"),
    [
        ([RecordedFailure("k", "b", 1, Kind.HANG, ("n1",), 0.0)], {}, []),
        ([RecordedFailure("k", "b", 1, Kind.HANG, ("n1",), 0.0)], {"n1": "idle"}, []),
        # a node's own state is enough, but only of one that was blamed
        ([RecordedFailure("k", "b", 1, Kind.NODE_FAILURE, ("n1",), 0.0)], {"n1": "down*", "n2": "down"}, ["n1"]),
        (
            [
                RecordedFailure("k", "b", 1, Kind.HANG, ("n1",), 0.0),
                RecordedFailure("k", "b", 2, Kind.HANG, ("n1", "n2"), 0.0),
            ],
            {},
            ["n1"],
        ),
        # the same attempt twice is one attempt
        (
            [
                RecordedFailure("k", "b", 1, Kind.HANG, ("n1",), 0.0),
                RecordedFailure("k", "b", 1, Kind.NODE_FAILURE, ("n1",), 0.0),
            ],
            {},
            [],
        ),
        # errors of the code are not the node's
        ([RecordedFailure("k", "b", n, Kind.CODE_ERROR, ("n1",), 0.0) for n in range(9)], {}, []),
        ([RecordedFailure("k", "b", n, Kind.PREEMPTED, ("n1",), 0.0) for n in range(9)], {}, []),
        # old evidence counts no more
        ([RecordedFailure("k", "b", n, Kind.HANG, ("n1",), -3600.0 * 25) for n in range(9)], {"n1": "down"}, []),
        # at most so many, the best evidence first
        (
            [RecordedFailure("k", "b", n, Kind.HANG, tuple(f"n{i}" for i in range(n, 9)), 0.0) for n in range(9)],
            {},
            ["n5", "n6", "n7", "n8"],
        ),
    ],
)
def test_evidence(ends: list[RecordedFailure], states: dict[str, str], left_out: list[str]) -> None:
    assert sorted(evidence(ends, states, RULES, now=0.0)) == left_out


@pytest.mark.parametrize(
    ("state", "bad"),
    [("idle", False), ("mixed", False), ("allocated", False), ("completing", False), ("down", True), ("down*", True),
     ("idle*", True), ("drained", True), ("draining", True), ("fail", True), ("not_responding", True), ("", False),
     ("maint", True), ("idle$", True), ("idle~", False), ("down~", True), ("planned", False), ("inval", True)],
)  # fmt: skip
def test_states_of_nodes(state: str, bad: bool) -> None:
    assert is_bad(state) is bad


def test_a_change_is_made_to_what_is_asked() -> None:
    shape = JobSpec(exclude="n[1-3]", mem_gb=4.0)
    assert adapt(shape, Change()) is shape
    assert adapt(shape, Change(("n7", "n9"))).exclude == "n[1-3],n7,n9"
    assert adapt(shape, Change((), 6.0)).mem_gb == 6.0
    assert adapt(shape, Change((), 2.0)).mem_gb == 4.0, "never less than the config says now"


def test_memory_stays_once_it_was_found_too_small() -> None:
    short = [RecordedFailure("k", "b", 1, Kind.HOST_MEMORY, memory_gb=4.0, action=Action.MORE)]
    assert change(short, (), RULES) == Change((), 6.0)
    assert (
        change([*short, RecordedFailure("k", "c", 2, Kind.TIME_LIMIT, action=Action.AGAIN)], (), RULES).memory_gb == 6.0
    )
    twice = [*short, RecordedFailure("k", "c", 2, Kind.HOST_MEMORY, memory_gb=6.0, action=Action.MORE)]
    assert change(twice, (), RULES).memory_gb == 9.0
    assert change([replace(short[0], memory_gb=None)], (), RULES).memory_gb is None


ELSEWHERE = ("node_failure", "elsewhere")


@pytest.mark.parametrize(
    ("seen", "known", "found"),
    [
        (Evidence(), [], [("hang", "elsewhere")]),
        (Evidence(state="time_limit", kind=Kind.TIME_LIMIT), [], [("time_limit", "again")]),
        (Evidence(state="unknown"), [], []),
        (Evidence(state="running"), [], []),
        (Evidence(state="queued"), [], []),
        (Evidence(state="cancelled"), [], []),
        (Evidence(state="waiting", batch=None), [], []),
        (Evidence(batch=None), [], []),
        # written down already
        (Evidence(), [RecordedFailure("k", "b", 1, Kind.HANG, action=Action.ELSEWHERE)], []),
        (Evidence(kind=Kind.CODE_ERROR), [RecordedFailure("k", "b", 1, Kind.HANG, action=Action.ELSEWHERE)], []),
        # SLURM knows better what became of an attempt that only knew that it was killed
        (
            Evidence(kind=Kind.NODE_FAILURE),
            [RecordedFailure("k", "b", 1, Kind.KILLED, action=Action.AGAIN)],
            [("node_failure", "elsewhere")],
        ),
        (
            Evidence(attempt=2, kind=Kind.NODE_FAILURE),
            [RecordedFailure("k", "b", 1, Kind.HANG), RecordedFailure("k", "b", 2, Kind.KILLED)],
            [("node_failure", "elsewhere")],
        ),
        (Evidence(attempt=4), [RecordedFailure("k", "b", n, Kind.HANG) for n in (1, 2, 3)], [("hang", "stop")]),
        # a job that ended before its attempt began
        (Evidence(kind=Kind.KILLED, attempt=None), [], [("killed", "again")]),
    ],
)
def test_new_ends(seen: Evidence, known: list[RecordedFailure], found: list[tuple[str, str]]) -> None:
    ends = new_ends([seen], {"k": known}, RULES, now=5.0)
    assert [(end.kind, end.action) for end in ends] == found
    again = {"k": [*(e for e in known if e.of not in [end.of for end in ends]), *ends]}
    assert not new_ends([seen], again, RULES, now=6.0), "an end is written down once"
    wanted = bool(found and found[0][1] != "stop") or (not found and bool(known) and seen.state in ("failed",))
    assert bool(due([seen], again)) == wanted


def test_the_ledger_keeps_ends_until_somebody_asks_for_another_try() -> None:
    def event(**fields: object) -> dict[str, object]:
        return {"event": "ended", "time": 3.0, "key": "k", "name": "b", "attempt": 1, "kind": "killed", **fields}

    better = event(kind="node_failure", action="elsewhere", nodes=["n1"])
    state = ledger.fold([event(), better, event(attempt=2, kind="hang")])
    assert [(e.kind, e.attempt) for e in state.ends["k"]] == [("node_failure", 1), ("hang", 2)]
    again = ledger.fold([event(), {"event": "retry", "time": 4.0, "keys": ["k"]}])
    assert not again.ends, "the counters begin anew"
    assert [end.kind for end in again.history] == ["killed"], "what is known of nodes stays"
    end = RecordedFailure("k", "b", 3, Kind.HOST_MEMORY, ("n1", "n2"), 3.0, Action.MORE, "why", 4.0, 128)
    assert ledger.fold([{"event": "ended", "time": 3.0, **end_fields(end)}]).ends["k"] == (end,)


@given(st.lists(st.tuples(st.sampled_from(sorted(FAILURES)), st.booleans()), max_size=300))
def test_nothing_is_tried_again_for_ever(course: list[tuple[Kind, bool]]) -> None:
    ends: list[RecordedFailure] = []
    saved = 0
    for number, (kind, further) in enumerate(course):
        saved += further
        said = verdict(kind, ends, RULES, saved)
        if said.action == "stop":
            continue
        ends.append(RecordedFailure("k", "b", number, kind, action=said.action, saved=saved))
    counts = Counter(Counts.FAILURE if is_failure(end.kind) else end.kind for end in ends)
    assert counts[Counts.FAILURE] <= RULES.failures * (1 + saved), "so many on each checkpoint, of which a run has some"
    assert counts[Kind.PREEMPTED] <= RULES.kinds["preempted"].cap
    assert counts[Kind.TIME_LIMIT] <= RULES.kinds["time_limit"].cap
    assert all(verdict(kind, ends, NEVER).action == "stop" for kind in (Kind.PREEMPTED, Kind.TIME_LIMIT, Kind.HANG))
