"""What a job finds out about an interruption."""

from __future__ import annotations

import signal
from threading import Timer

import pytest

from study.executors import load
from study.failures.kinds import Ending, Kind
from study.job.attempt import TrainerExit
from study.job.interruption import ask_scheduler, wait_for_signal
from study.process.children import Signals


class Waits(Signals):
    """Notes that it was to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = False

    def wait(self, seconds: float) -> None:
        self.waited = True


@pytest.mark.parametrize(
    ("executor", "code", "waits"),
    [
        ("slurm", 75, True),
        ("slurm", -signal.SIGUSR2, True),
        ("slurm", -signal.SIGTERM, True),
        ("slurm", -signal.SIGKILL, False),
        ("slurm", -signal.SIGSEGV, False),
        ("slurm", 0, False),
        ("slurm", 1, False),
        ("slurm", 3, False),
        ("local", 75, False),
    ],
)
def test_a_signal_is_waited_for_where_a_trainer_ended_of_one(executor: str, code: int, waits: bool) -> None:
    signals = Waits()
    wait_for_signal(TrainerExit(code), signals, load(executor))
    assert signals.waited is waits


def test_a_signal_that_comes_later_ends_the_waiting() -> None:
    signals = Signals()
    later = Timer(0.1, signals.received.append, [signal.SIGUSR2])
    later.start()
    signals.wait(600)
    assert signals.received == [signal.SIGUSR2]
    later.join()


def test_a_signal_that_never_comes_is_not_waited_for_for_ever() -> None:
    signals = Signals()
    signals.wait(0.05)
    assert not signals.received


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind != Kind.INTERRUPTED])
def test_the_scheduler_is_asked_of_interruptions_alone(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = load("slurm")
    monkeypatch.setattr(type(slurm), "preempts", lambda *_: True)
    assert ask_scheduler(Ending(kind, 75), slurm, "7").kind == kind
    assert ask_scheduler(Ending(Kind.INTERRUPTED, 75), slurm, "7") == Ending(Kind.PREEMPTED, 75)
    assert ask_scheduler(Ending(Kind.INTERRUPTED, 75), load("local"), "7").kind == Kind.INTERRUPTED
