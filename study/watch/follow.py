"""Following a study until its runs have ended: starts local runs, watches the others, sends metrics meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from types import FrameType
from typing import Self

from study import text
from study.config.schema import ClusterConfig
from study.executors import detached, load
from study.executors.local import LOG, LocalSlots
from study.failures.kinds import FAILURES, HELD, Kind
from study.failures.retry_policy import ENDED_BADLY
from study.planning.ranks import estimated_flops, slot_count
from study.reconcile.disk import needed_for
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import LocalEnds, Look
from study.records import lineage, outcomes
from study.records.attempts import latest_attempt
from study.records.point import one_of_each
from study.records.settings import reference
from study.status.observer import Observer
from study.status.states import PointState, PointStatus
from study.storage import room_taken
from study.storage.files import last_lines, locked
from study.storage.layout import StudyFolder
from study.storage.mounts import may_write
from study.storage.room import is_full
from study.text import counted
from study.watch.progress import Display, JsonLines, Pace, closing, display, law_command
from study.watch.sync_process import SyncProcess

TICK_SECONDS = 0.25
MAX_TICK_SECONDS = 5.0
MAX_REST_SECONDS = 180.0
WATCHING_SHARE = 0.008
"""CPU time of a process that only watches, as a share of a core."""
MAX_POLL_SECONDS = 180.0
UNKNOWN_SECONDS = 600.0
CONTROL_SECONDS = 1.0
INTERRUPTED = 130
NOT_GOOD = frozenset({PointState.FAILED, PointState.INTERRUPTED, PointState.TIME_LIMIT, PointState.UNKNOWN})


class StopSignal:
    """Counts the requests to stop: Ctrl-C, SIGTERM, and the terminal going away.

    While `at_once`, Ctrl-C is not only counted: it raises KeyboardInterrupt.
    """

    def __init__(self, at_once: bool = False) -> None:
        self.requests = 0
        self.at_once = at_once
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requests += 1
        if self.at_once and number == signal.SIGINT:
            raise KeyboardInterrupt


class LocalRunner:
    """Starts the pending local runs of a study as slots become free."""

    def __init__(self, observer: Observer, slots: LocalSlots) -> None:
        self._observer = observer
        self.slots = slots
        self._broken: dict[tuple[str | None, str], int] = {}
        self._batches: dict[str, str | None] = {}
        self._adopted: set[str] = set()
        self._unbegun: dict[tuple[str | None, str], Kind] = {}
        self._held_back = ""
        self.full = False
        """A run ended on a full disk and is not tried again, so no other is started."""

    def step(
        self, statuses: Sequence[PointStatus], starting: bool, report: Callable[[str], None] = lambda text: None
    ) -> list[PointStatus]:
        """Reap ended runs and start others; return the statuses with what only this process knows."""
        for key, code in self.slots.reap().items():
            self._broken[self._batches[key], key] = code
            room_taken.give_back(self._observer.folder, key)
        seen = [self._amended(status) for status in statuses]
        busy = {s.key for s in seen if s.state == PointState.RUNNING and self._is_local(s)} | self.slots.running
        left = self._left_behind(seen, busy) if starting else []
        if starting and (again := self._retry(left, seen, busy, report)):
            seen = [replace(s, state=PointState.PENDING) if s.key in again else s for s in seen]
        if not left:  # otherwise failures are handled in the next step
            self._look_at_disk(seen, busy, report)
        free = 0 if self.full else self.slots.count - len(busy)
        held = lineage.waiting(self._observer.points, {s.key for s in seen if s.state == PointState.COMPLETED})
        waiting = [
            s for s in seen if s.state == PointState.PENDING and self._is_local(s) and s.key not in busy | held.keys()
        ]
        if starting and free > 0 and waiting:
            for status in sorted(waiting, key=self._rank)[:free]:
                self._start(status, report)
        going = self.slots.running
        return [replace(s, state=PointState.RUNNING) if s.key in going and not s.ended else s for s in seen]

    def stop(self, statuses: Sequence[PointStatus]) -> None:
        """Ask every local run to save a checkpoint and end, including those that an earlier process started."""
        self.slots.signal(signal.SIGTERM)
        terminate(
            [s for s in statuses if s.state == PointState.RUNNING and s.key not in self.slots.running], self._observer
        )

    def busy(self, statuses: Sequence[PointStatus]) -> int:
        """Return how many local runs are still running."""
        return len(
            {s.key for s in statuses if s.state == PointState.RUNNING and self._is_local(s)} | self.slots.running
        )

    def _start(self, status: PointStatus, report: Callable[[str], None]) -> None:
        batch = self._observer.known.batch(status.key)
        assert batch is not None
        why = room_taken.take(self._observer.folder, status.key, needed_for(self._observer.points[status.key]))
        if why and self._held_back != status.key:
            report(f"{status.key}: not started: {why}")
        self._held_back = status.key if why else ""
        if not why:
            self._batches[status.key] = batch.name
            self.slots.start(status.key, batch)

    def _left_behind(self, seen: Sequence[PointStatus], busy: AbstractSet[str]) -> list[str]:
        """Return the keys of runs that an earlier process started and that have been interrupted since."""
        self._adopted |= busy - self._batches.keys()
        left = [s.key for s in seen if s.key in self._adopted and s.key not in busy]
        self._adopted.difference_update(left)
        return [s.key for s in seen if s.key in left and s.state == PointState.INTERRUPTED]

    def _retry(
        self, left: Sequence[str], seen: Sequence[PointStatus], busy: AbstractSet[str], report: Callable[[str], None]
    ) -> Sequence[str]:
        """Record retries of these runs and of failed ones, as the policy has it; return the keys to start again."""
        ended = [s for s in seen if s.key not in busy and s.kind and (s.batch, s.key) not in self._unbegun]
        if not (left or ended):
            return []
        trigger = LocalEnds(self._observer.known, ended, left)
        return step(self._observer.folder, Services(report=report), trigger).retried

    def _look_at_disk(self, seen: Sequence[PointStatus], busy: AbstractSet[str], report: Callable[[str], None]) -> None:
        """Start no more runs once one has ended on a full disk, as all of them would end so.

        A run that is tried again does not count: the policy retries it, or a person has made room and run `retry`.
        """
        ended = [
            s for s in seen if s.kind and FAILURES[s.kind].every_run and s.state in ENDED_BADLY and s.key not in busy
        ]
        before, self.full = self.full, any(s.batch and self._batches.get(s.key) == s.batch for s in ended)
        if self.full and not before:
            called = reference(self._observer.folder)
            report(f"no new points are started: the disk was full; make room, then python -m study retry {called}")

    def _amended(self, status: PointStatus) -> PointStatus:
        """Return a run as failed if its job ended before an attempt began: it must not be started again and again."""
        code = self._broken.get((status.batch, status.key))
        if status.state != PointState.PENDING or code in (None, HELD):
            return status
        folder = self._observer.folder
        full = Kind.DISK_FULL if is_full(folder.path) else Kind.NONE  # others may make room later
        kind = self._unbegun.setdefault((status.batch, status.key), full)
        why = f"its job ended with exit code {code} before an attempt began: see {folder.jobs / LOG}"
        said = f"no space left in {folder.path}" if kind else ""
        error = tuple(last_lines(folder.jobs / LOG))
        return replace(status, state=PointState.FAILED, why=why, error=error, kind=kind, headline=said)

    def _rank(self, status: PointStatus) -> tuple[float, bool]:
        """Return the sort key of waiting points: longest first, and of equals those that have begun."""
        return -estimated_flops(self._observer.points[status.key]), status.attempt is None

    def _is_local(self, status: PointStatus) -> bool:
        batch = self._observer.known.batch(status.key)
        return batch is not None and not detached(batch)


def terminate(statuses: Sequence[PointStatus], observer: Observer) -> int:
    """Send SIGTERM to the local processes of these running points; return how many were signalled."""
    sent = 0
    for status in statuses:
        attempt = latest_attempt(observer.folder.run(status.key))
        if attempt is None or attempt.ended is not None or load(str(attempt.job["executor"])).detached:
            continue
        if observer.known.is_of_another(attempt.batch):
            continue
        try:
            os.kill(int(attempt.job["pid"]), signal.SIGTERM)
        except ProcessLookupError:
            continue
        sent += 1
    return sent


def follow(folder: StudyFolder, cluster: ClusterConfig, control: bool = True, machine: bool = False) -> int:
    """Show live progress until every submitted point ended; return the exit code.

    0: all that were submitted completed (or diverged, or were cancelled); 1: some did not; 130: stopped by Ctrl-C.
    Local runs are started by this process (with `control`): Ctrl-C lets them write a checkpoint and end, and calling
    it again carries on. SLURM jobs live on. `machine`: every line on stdout is a JSON object.
    """
    observer = Observer(folder)
    points = list(observer.points.values())
    pace = Pace({point.key: estimated_flops(point) for point in points})
    with ExitStack() as stack:
        # The first look at a large study takes a while; a process that only watches may leave at once.
        stop = stack.enter_context(StopSignal(at_once=not control))
        syncer = stack.enter_context(SyncProcess(folder, if_needed=True))
        controller = None
        if control and not all(map(detached, observer.known.batches.values())):
            try:
                stack.enter_context(locked(folder.controller, CONTROL_SECONDS))
                count = slot_count(cluster, (one.config for one in one_of_each(points, "runtime", "parallel")))
                controller = LocalRunner(observer, LocalSlots(folder, count))
                stack.callback(controller.slots.close)
            except TimeoutError:
                print(f"another process is running {folder.name}: this one only watches", flush=True)
        with JsonLines(pace, folder.name) if machine else display(pace, folder.name) as shown:
            statuses = _watch(observer, cluster, controller, shown, stop, trouble=syncer.trouble)
        if may_write(folder.path):
            outcomes.export(folder)
        with redirect_stdout(sys.stderr if machine else sys.stdout):
            for line in closing(statuses, folder.name, reference(folder), law_command(points, folder.path)):
                text.show(line)
            if stop.requests:
                print(_come_back(folder, statuses), flush=True)
                return INTERRUPTED
            syncer.finish(stop)
    return 1 if any(status.state in NOT_GOOD or _waits(status) for status in statuses) else 0


def _waits(status: PointStatus) -> bool:
    """Return whether a point was submitted and has not begun: the process that was to start it is gone."""
    return status.state == PointState.PENDING and status.batch is not None


def _watch(
    observer: Observer,
    cluster: ClusterConfig,
    controller: LocalRunner | None,
    shown: Display,
    stop: StopSignal,
    *,
    trouble: Callable[[], str | None],
) -> list[PointStatus]:
    poll, acts = Poll(observer, cluster.poll_seconds), may_write(observer.folder.path)
    told = 0
    first = True
    while True:
        began, used = time.monotonic(), time.process_time()
        asked = poll.maybe()
        statuses = observer.statuses()
        if (poll.note(statuses) or asked) and acts:
            look = Look(observer, statuses, quiet=True)
            statuses = list(step(observer.folder, Services(report=shown.report), look).statuses)
        if controller is not None:
            statuses = controller.step(statuses, not stop.requests, shown.report)
        shown.update(statuses)
        if said := trouble():
            shown.report(said)
        stop.at_once = False
        if stop.requests > told:
            told = stop.requests
            busy = controller.busy(statuses) if controller else 0
            if controller is None or not busy or told > 1:
                return statuses
            controller.stop(statuses)
            shown.report(
                f"stopping: waiting for the checkpoints of {counted(busy, 'run')} (Ctrl-C again to leave at once)"
            )
        if stop.requests and controller is not None and not controller.busy(statuses):
            return observer.statuses()
        # A run has its outcome a moment before its job writes the attempt's outcome.
        working = controller is not None and bool(controller.slots.running)
        if controller is not None and controller.full and not controller.busy(statuses) and not _elsewhere(statuses):
            return statuses
        live = _live(observer, statuses, controller)
        if not stop.requests and not working and _is_over(live, poll):
            return statuses
        if controller is not None:
            # Observing thousands of runs loads their file system: it takes at most a third of the time.
            time.sleep(max(TICK_SECONDS, min(MAX_TICK_SECONDS, 2 * (time.monotonic() - began))))
        elif first:
            time.sleep(TICK_SECONDS)  # the first look also imported modules: its CPU time says nothing of later ones
        else:
            _rest(pause(time.process_time() - used), stop, AllEnd(observer.folder, live))
        first = False


def _elsewhere(statuses: Sequence[PointStatus]) -> bool:
    """Return whether points are queued, running or waiting elsewhere."""
    return any(s.state in (PointState.QUEUED, PointState.RUNNING, PointState.WAITING) for s in statuses)


def pause(cpu_seconds: float) -> float:
    """Return how long to rest after a look that took this much CPU time [s], to use less than 1 % of a core. Pure."""
    return max(TICK_SECONDS, min(MAX_REST_SECONDS, cpu_seconds / WATCHING_SHARE))


class AllEnd:
    """Whether all points that lived at the last look have their outcome now: between looks, as a rule by one stat."""

    def __init__(self, folder: StudyFolder, live: Sequence[PointStatus]) -> None:
        self._left = [folder.run(status.key).outcome for status in live]

    def __call__(self) -> bool:
        """Look at the files of those that had none."""
        while self._left and self._left[-1].exists():
            self._left.pop()
        return not self._left


def _rest(seconds: float, stop: StopSignal, all_end: Callable[[], bool]) -> None:
    """Sleep, but not on through a request to stop, nor once nothing is left to watch."""
    end = time.monotonic() + seconds
    while not stop.requests and (left := end - time.monotonic()) > 0:
        time.sleep(min(TICK_SECONDS, left))
        if all_end():
            return


def _live(observer: Observer, statuses: Sequence[PointStatus], controller: LocalRunner | None) -> list[PointStatus]:
    """Return the points that can still end; pending local points cannot if no process starts them."""
    held = lineage.stranded(observer.points, {s.key for s in statuses if s.ended and s.state != PointState.COMPLETED})
    wanted = (s for s in statuses if s.batch is not None or s.state == PointState.WAITING)
    live = [s for s in wanted if not s.ended and s.key not in held]
    if controller is not None or not live or any(s.state != PointState.PENDING for s in live):
        return live
    try:
        with locked(observer.folder.controller, timeout=0):
            return []
    except TimeoutError:
        return live


def _is_over(live: Sequence[PointStatus], poll: Poll) -> bool:
    """Whether nothing is left to wait for: unknown points are waited for, but not for ever."""
    return not live or (all(s.state == PointState.UNKNOWN for s in live) and poll.quiet_seconds > UNKNOWN_SECONDS)


class Poll:
    """When to ask the scheduler: every `poll_seconds` while things change, backing off to 180 s while they do not."""

    def __init__(self, observer: Observer, poll_seconds: float) -> None:
        self._observer = observer
        self._shortest = self._wait = max(0.1, poll_seconds)
        self._next = 0.0
        self._states: Mapping[str, str] = {}
        self._changed = time.monotonic()

    @property
    def quiet_seconds(self) -> float:
        """How long nothing has changed."""
        return time.monotonic() - self._changed

    def maybe(self) -> bool:
        """Ask if it is time to, and return whether it was."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._observer.refresh()
        self._next = now + self._wait
        self._wait = min(MAX_POLL_SECONDS, self._wait * 1.5)
        return True

    def note(self, statuses: Sequence[PointStatus]) -> bool:
        """Take note of the states and return whether they changed; a change makes the next look soon."""
        states = {status.key: status.state for status in statuses}
        changed = states != self._states
        if changed:
            self._states, self._changed = states, time.monotonic()
            self._wait = self._shortest
            self._next = min(self._next, time.monotonic() + self._shortest)
        return changed


def _come_back(folder: StudyFolder, statuses: Sequence[PointStatus]) -> str:
    alive = sum(s.state in (PointState.RUNNING, PointState.QUEUED) for s in statuses)
    if alive:
        continues = f"{counted(alive, 'run')} continue{'s' if alive == 1 else ''}"
        return f"{continues}.  To come back:  python -m study watch {reference(folder)}"
    return f"Stopped; what ran is kept. The same command, or python -m study retry {reference(folder)}, carries on."
