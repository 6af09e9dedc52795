"""A paused run waits for its launcher's answer and trains on if it gets a new target, without a restart.

The environment variable PAUSE names two files: the trainer writes where it stands to `<PAUSE>.asked`, the starter its
answer to `<PAUSE>.answer`, each with the number of the pause, so that neither takes an old one for a new one.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from train.runtime.console import warn
from train.runtime.distributed import World
from train.runtime.files import write_atomic
from train.runtime.signals import StopFlag

PAUSE = "PAUSE"
ANSWER_SECONDS = 60.0
POLL_SECONDS = 0.05


def further(number: int, tokens: int, world: World, flag: StopFlag) -> int | None:
    """Return the tokens to which a run that has paused at `tokens` goes on at once; None: it ends here.

    The same on every rank. number: of the pause, from 1. A stop signal ends the wait for an answer.
    """
    place = os.environ.get(PAUSE)
    if place is None:
        return None
    answer = _ask(Path(place), number, tokens, flag) if world.writes else None
    told: int | None = world.gather(answer)[0]
    return told


def _ask(place: Path, number: int, tokens: int, flag: StopFlag) -> int | None:
    asked, answer = place.with_name(f"{place.name}.asked"), place.with_name(f"{place.name}.answer")
    try:
        write_atomic(asked, json.dumps({"number": number, "tokens": tokens}) + "\n")
    except OSError as error:  # the run is saved: it can be started again as well
        warn(f"cannot ask whether to continue: {error}")
        return None
    limit = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < limit and not flag:
        try:
            said = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            said = {}
        if said.get("number") == number:
            until = said.get("until")
            return None if until is None else int(until)
        time.sleep(POLL_SECONDS)
    return None
