"""The retry policy: submit a failed point again (as it is, on other nodes, with more memory) or stop. Pure.

It counts the failures that the ledger holds of a point since a person last retried it. An attempt that leaves a newer
checkpoint than all before it resets the count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeVar

from study.failures.kinds import FAILURES, AttemptState, Counts, Kind


class Action(StrEnum):
    """What to do about an end."""

    AGAIN = "again"
    """As it is."""
    ELSEWHERE = "elsewhere"
    """Without nodes that there is evidence against."""
    MORE = "more"
    """With more memory."""
    STOP = "stop"
    """Somebody has to look."""


TOLD = "told to stop"
TAKEN = "another attempt still has the run"
ENDED_BADLY: frozenset[str] = frozenset({AttemptState.FAILED, AttemptState.INTERRUPTED, AttemptState.TIME_LIMIT})
"""States of points that something may follow from."""
BAD_NODES = ("down", "drain", "fail", "error", "unknown", "not_responding", "reboot", "maint", "inval", "future")


@dataclass(frozen=True)
class Rule:
    """What to do after one kind of end, at most `cap` times for one point."""

    action: Action
    cap: int = 0


@dataclass(frozen=True)
class RetryRules:
    """The retry rules of a study. failures: cap on consecutive failures; the rest is about nodes and memory."""

    kinds: Mapping[str, Rule]
    failures: int = 6
    memory_factor: float = 1.5
    exclude_after: int = 2
    exclude_most: int = 4
    exclude_hours: float = 24.0

    def here(self) -> RetryRules:
        """Return the rules for runs of this machine, which has no other node and no more memory: `again` instead."""
        kinds = {
            kind: Rule(Action.AGAIN, rule.cap) if rule.action in (Action.ELSEWHERE, Action.MORE) else rule
            for kind, rule in self.kinds.items()
        }
        return replace(self, kinds=kinds)


@dataclass(frozen=True)
class RecordedFailure:
    """One failed or interrupted attempt as the ledger holds it. memory_gb: memory of the run on each node [GB].

    action: what was decided. saved: tokens of the run's newest checkpoint then; 0: none, or not recorded.
    """

    key: str
    batch: str
    attempt: int
    kind: Kind
    nodes: tuple[str, ...] = ()
    time: float = 0.0
    action: Action = Action.STOP
    why: str = ""
    memory_gb: float | None = None
    saved: int = 0

    @property
    def of(self) -> tuple[str, int]:
        """Which attempt it is of: an attempt may be recorded twice, and the later record counts."""
        return self.batch, self.attempt


@dataclass(frozen=True)
class Verdict:
    """What to do about a failure, and why in words.

    stops_all: every other run would fail the same way, so that nothing more is started at all.
    """

    action: Action
    why: str
    stops_all: bool = False

    @property
    def gives_up(self) -> bool:
        """Whether this point, or trial, is not tried again by itself, and the others go on."""
        return self.action == Action.STOP and not self.stops_all


@dataclass(frozen=True)
class Change:
    """What differs when a point is submitted again: nodes not to use, memory of one run on each node [GB]."""

    exclude: tuple[str, ...] = ()
    memory_gb: float | None = None


class Asks(Protocol):
    """What a submission asks of SLURM, as far as a change concerns it (a frozen dataclass)."""

    @property
    def exclude(self) -> str | None:
        """Nodes not wanted."""

    @property
    def mem_gb(self) -> float | None:
        """Memory of one run on each node [GB]."""


A = TypeVar("A", bound=Asks)


class EndedPoint(Protocol):
    """A point that ended badly, as study.status.states.PointStatus says it."""

    @property
    def key(self) -> str:
        """The point."""

    @property
    def state(self) -> str:
        """One of study.status.states.PointState."""

    @property
    def kind(self) -> Kind:
        """Of which kind its end was."""

    @property
    def batch(self) -> str | None:
        """Its batch in the ledger."""

    @property
    def attempt(self) -> int | None:
        """The latest attempt's number."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where that ran."""


def parse_rule(key: str, text: str) -> Rule:
    """Return the rule in words such as `again 3` or `stop`. ValueError that names the key."""
    words = text.split()
    if words == [Action.STOP]:
        return Rule(Action.STOP)
    if len(words) == 2 and words[0] in (Action.AGAIN, Action.ELSEWHERE, Action.MORE) and words[1].isdigit():
        return Rule(Action(words[0]), int(words[1]))
    raise ValueError(
        f"{key}={text!r} is not allowed: it takes again N, elsewhere N, more N (at most N times for a point) or stop"
    )


def is_failure(kind: Kind) -> bool:
    """Whether an end counts as a failure of its point."""
    return FAILURES[kind].counts == Counts.FAILURE


def in_a_row(ends: Sequence[RecordedFailure], saved: int) -> Sequence[RecordedFailure]:
    """Return the latest failures without progress in between: from the last one with a newer checkpoint on.

    `saved`: tokens of the run's newest checkpoint now. None are left where that is newer than at any of them.
    """
    first, furthest = 0, 0
    for place, end in enumerate(ends):
        if end.saved > furthest:
            first, furthest = place, end.saved
    return [] if saved > furthest else ends[first:]


def verdict(kind: Kind, ends: Sequence[RecordedFailure], rules: RetryRules, saved: int = 0) -> Verdict:
    """Return what to do about an end of this kind of a point that has had these ends before.

    `saved`: tokens of the run's newest checkpoint. Failures count as :func:`in_a_row` says; preemptions and time limits
    count all, and so does what is answered with more memory, for that grows each time.
    """
    rule = rules.kinds.get(kind, Rule(Action.STOP))
    stop = partial(Verdict, Action.STOP, stops_all=kind in FAILURES and FAILURES[kind].every_run)
    if rule.action == Action.STOP:
        return stop(f"retry.{kind} is stop" if kind in rules.kinds else f"{kind} is never tried again")
    if not rule.cap:
        return stop(f"retry.{kind} is {rule.action} 0")
    if is_failure(kind) and not rules.failures:
        return stop("retry.failures is 0")
    row = in_a_row(ends, saved)
    before = sum(end.kind == kind for end in (row if is_failure(kind) and rule.action != Action.MORE else ends))
    if before >= rule.cap:
        return stop(f"tried again {before} times after {kind}: that is the cap (retry.{kind})")
    failures = sum(is_failure(end.kind) for end in row)
    if is_failure(kind) and failures >= rules.failures:
        return stop(f"tried again after {failures} failures: that is the cap (retry.failures)")
    words = {Action.AGAIN: "as it is", Action.MORE: "with more memory"}.get(rule.action, rule.action)
    return Verdict(rule.action, f"{kind}: tried again {words}, {before + 1} of {rule.cap}")


def unit_verdict(kind: Kind, ends: Sequence[RecordedFailure], rules: RetryRules, saved: int = 0) -> Verdict:
    """Return what to do about an end of this kind of a search's unit whose run had these ends before.

    The rules are those of points. A retried unit goes to the next worker that asks: `elsewhere` means `again` here, and
    so does `more`, except where each unit is a job of its own, which then asks for more memory (study.reconcile.units).
    A worker that was asked to stop is no failure of its trial.
    """
    if not is_counted(kind):
        return Verdict(Action.AGAIN, TAKEN if kind == Kind.HELD else TOLD)
    return verdict(kind, ends, rules.here(), saved)


def is_counted(kind: Kind) -> bool:
    """Whether a search counts an end: not where its worker was told to stop, or found the run taken."""
    return bool(kind) and FAILURES[kind].counts != Counts.NOTHING


def evidence(
    ends: Iterable[RecordedFailure], states: Mapping[str, str], rules: RetryRules, now: float
) -> dict[str, str]:
    """Return the nodes not to use now, each with why.

    ends: every end that the ledger holds. states: what sinfo says of nodes (missing: not asked). A node is left out
    when its own state is bad, or when two attempts (`exclude_after`) failed on it within `exclude_hours`. At most
    `exclude_most` nodes are, those with the most failures first; older failures do not count.
    """
    blamed: dict[str, set[tuple[str, str, int]]] = defaultdict(set)
    for end in ends:
        if FAILURES[end.kind].blames_node and now - end.time < 3600 * rules.exclude_hours:
            for node in end.nodes:
                blamed[node].add((end.key, *end.of))
    why = {
        node: f"{len(attempts)} attempts ended badly on it"
        for node, attempts in sorted(blamed.items(), key=lambda item: -len(item[1]))
        if len(attempts) >= rules.exclude_after
    }
    bad = {node: f"its state is {state}" for node, state in states.items() if node in blamed and is_bad(state)}
    return dict(list({**bad, **{n: w for n, w in why.items() if n not in bad}}.items())[: rules.exclude_most])


def is_bad(state: str) -> bool:
    """Whether sinfo's word for a node means that work should not go there: down*, drained, not_responding, idle$.

    sinfo(1): `*` is a node that does not answer, `$` one that is reserved for maintenance.
    """
    word = state.lower()
    return word.endswith(("*", "$")) or any(word.startswith(bad) for bad in BAD_NODES)


def change(ends: Sequence[RecordedFailure], excluded: Iterable[str], rules: RetryRules) -> Change:
    """Return how a point is to be submitted again after these ends.

    It keeps the memory that it got after last running out of memory, whatever failed since.
    """
    grown = [e.memory_gb for e in ends if e.kind == Kind.HOST_MEMORY and e.action == Action.MORE]
    short = [memory_gb for memory_gb in grown if memory_gb is not None]
    return Change(tuple(sorted(excluded)), round(short[-1] * rules.memory_factor, 3) if short else None)


def adapt(asks: A, wanted: Change) -> A:
    """Return what is asked of SLURM with the change made: nodes are added to those that are excluded already."""
    fields: dict[str, object] = {}
    if wanted.exclude:
        fields["exclude"] = ",".join([*([asks.exclude] if asks.exclude else []), *wanted.exclude])
    if wanted.memory_gb is not None:
        fields["mem_gb"] = max(wanted.memory_gb, asks.mem_gb or 0.0)
    return replace(asks, **fields) if fields else asks  # type: ignore[type-var]


def new_ends(
    statuses: Iterable[EndedPoint],
    known: Mapping[str, Sequence[RecordedFailure]],
    rules: RetryRules,
    now: float,
    *,
    memory: Mapping[str, float] | None = None,
    saved: Callable[[str], int] = lambda key: 0,
) -> list[RecordedFailure]:
    """Return the failures that are not in the ledger yet, or there with another kind, and what follows from each.

    `known` are the ledger's ends of each point, `memory` what each was given [GB], `saved` says the tokens of a run's
    newest checkpoint. Only points that ended for certain are looked at, never unknown ones.
    """
    found = []
    for status in statuses:
        if status.state not in ENDED_BADLY or status.batch is None:
            continue
        ends = list(known.get(status.key, ()))
        this = (status.batch, status.attempt or 0)
        if ends and ends[-1].of == this:
            if ends[-1].kind == status.kind or not FAILURES[ends[-1].kind].unsure:
                continue
            ends.pop()
        reached = saved(status.key)
        said = verdict(status.kind, ends, rules, reached)
        gb = (memory or {}).get(status.key)
        found.append(
            RecordedFailure(status.key, *this, status.kind, status.nodes, now, said.action, said.why, gb, reached)
        )
    return found


def due(statuses: Iterable[EndedPoint], known: Mapping[str, Sequence[RecordedFailure]]) -> list[str]:
    """Return the points that are to be submitted again: they ended, and the ledger's decision is not to stop.

    `known` holds what :func:`new_ends` found as well.
    """
    keys = []
    for status in statuses:
        ends = known.get(status.key, ())
        judged = bool(ends) and ends[-1].of == (status.batch, status.attempt or 0)
        if status.state in ENDED_BADLY and judged and ends[-1].action != Action.STOP:
            keys.append(status.key)
    return keys
