"""The last job of a study to end: it stays a while to submit what waits, for nobody comes after it."""

from __future__ import annotations

from collections.abc import Callable

from study.files import locked
from study.layout import StudyFolder
from study.settling import Outside

TRIES, SECONDS = 12, 3.0
HAND_OVER_SECONDS = 0.5
"""How long a last job waits for another one that is about to give up."""


def as_the_last(
    folder: StudyFolder,
    outside: Outside,
    is_last: Callable[[], bool],
    send: Callable[[], int | None],
    is_final: Callable[[ValueError], bool] = lambda error: False,
) -> int:
    """Submit what waits, by `send`, as the last job to end, which tries for a while; return how much went out.

    Jobs that end together may each be the last. One of them stays and the others leave: they count as alive until
    they do, and would wait for each other's room. Raises what `send` raised last, at once where that `is_final`.
    """
    folder.last.touch()  # tells the one that stays that there will be more room in a moment
    try:
        with locked(folder.last, HAND_OVER_SECONDS):
            left, heard = TRIES, folder.last.stat().st_mtime_ns
            while is_last():
                sent = 0
                problem: ValueError | None = None
                try:
                    sent = send() or 0
                except TimeoutError:
                    pass  # another process submits, with a view of before
                except ValueError as error:
                    if is_final(error):
                        raise
                    problem = error
                left, before, heard = left - 1, heard, folder.last.stat().st_mtime_ns
                if heard != before:  # also what came while this one slept
                    left = TRIES
                if problem is not None and left <= 0:
                    raise problem
                if sent or left <= 0:
                    return sent
                # Others that ended with this one still count as alive, or hold the lock with a view of before.
                outside.sleep(SECONDS)
    except TimeoutError:
        pass
    return 0
