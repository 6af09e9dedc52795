"""Several ranks of one worker: the first decides, and publishes its decision to the others in a file.

The study's folder is what all nodes share anyway, so no connection has to be set up and none can break; a decision is
needed once a unit, which lasts minutes. The file holds the latest decision only: a rank that comes late joins it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from study.executors.base import RankInfo
from study.storage.files import write_json
from study.storage.layout import StudyFolder
from study.storage.shapes import COUNT, FLAG, TEXT, WHOLE, Shape, read_record

POLL_SECONDS = 0.2
DECISION = Shape(
    "a decision of a worker's first rank",
    {"number": COUNT, "key": TEXT, "claim": COUNT, "until": COUNT, "ended": FLAG, "over": WHOLE},
    ("number", "key", "claim", "ended"),
    "the next decision replaces it",
)


@dataclass(frozen=True)
class Decision:
    """A unit that all ranks of a worker advance together.

    number: counted from 1 in a job. claim: its number in the event log. ended: the first rank is done with it.
    over: the worker ends with this exit code.
    """

    number: int
    key: str = ""
    claim: int = 0
    until: int | None = None
    ended: bool = False
    over: int | None = None


class RankSync:
    """The ranks of one job; restarts of a job do not read each other's decisions."""

    def __init__(self, folder: StudyFolder, rank_info: RankInfo) -> None:
        self._file: Path = folder.rank_sync / f"{rank_info.job_id}.{rank_info.restart}.json"
        self._latest = Decision(0)
        self.alone = rank_info.world == 1

    def begin(self, key: str, claim: int, until: int | None) -> None:
        """Tell the others what to advance."""
        self._write(Decision(self._latest.number + 1, key, claim, until))

    def end(self) -> None:
        """Tell the others that the unit is over, also where they did not see it begin."""
        self._write(Decision(self._latest.number, ended=True))

    def leave(self, code: int) -> None:
        """Tell the others to end with this exit code."""
        self._write(Decision(self._latest.number + 1, over=code))

    def read(self) -> Decision:
        """Return the first rank's latest decision."""
        found = read_record(self._file, DECISION)
        if found is None:
            return self._latest
        told: dict[str, Any] = {name: found.get(name) for name in DECISION.fields}
        return Decision(**told)

    def next(self, stopped: Callable[[], bool]) -> Decision | None:
        """Wait for a decision that this rank has not joined, and return it; None once `stopped`."""
        while not stopped():
            decision = self.read()
            if decision.number > self._latest.number:
                self._latest = decision
                if not decision.ended:
                    return decision
            time.sleep(POLL_SECONDS)
        return None

    def given_up(self, decision: Decision) -> bool:
        """Return whether the first rank has gone on from a decision."""
        now = self.read()
        return now.number > decision.number or (now.number == decision.number and now.ended)

    def _write(self, decision: Decision) -> None:
        self._latest = decision
        if not self.alone:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, asdict(decision))
