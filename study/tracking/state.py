"""`tracking.json`: how far each store has been brought. An optimisation: without it the store itself is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from study.storage.files import read_json, write_atomic
from study.storage.shapes import COUNT, FLAG, LOSS, TEXT, WHOLE, Shape, object_of, values_of, wrong
from study.tracking.metrics_reader import Position

FORMAT = 2
"""Metrics have had their grouped names since 2: a study of the earlier format is sent anew under these."""

_POSITION = Shape(
    "how far a spool was read",
    {"offset": COUNT, "steps": values_of(WHOLE, "an object of steps"), "end": TEXT, "path": COUNT},
    ("offset", "steps", "end"),
)
_RUN = Shape(
    "a run in a store",
    {
        **dict.fromkeys(("id", "sent", "state", "logs"), TEXT),
        **dict.fromkeys(("params", "config", "done", "error"), FLAG),
        "position": object_of(_POSITION),
        "totals": values_of(LOSS, "an object of numbers"),
        "ended": COUNT,
    },
    ("id", "position"),
)
_STORE = Shape(
    "a store",
    {
        **dict.fromkeys(("experiment", "parent", "parent_sent", "shown", "noted", "told"), TEXT),
        "files": values_of(TEXT, "an object of texts"),
        "runs": values_of(object_of(_RUN), "an object of runs"),
    },
    ("runs",),
)
SHAPE = Shape(
    "how far stores have been brought",
    {"owner": TEXT, "study_id": TEXT, "stores": values_of(object_of(_STORE), "an object of stores")},
    ("owner", "study_id", "stores"),
)
"""It may be deleted, so nobody is told where it is damaged."""


@dataclass(frozen=True)
class RunState:
    """One run in a store: its id there, what has been read of its spool, what has been sent besides.

    totals: what it is and came to (study.tracking.run_totals), as far as it was sent. ended: when, in unix
    milliseconds, 0 before. logs: the attempt whose output was sent, and whether the outcome was. error: whether an
    error was sent, which a later attempt that goes well has to empty.
    """

    id: str
    position: Position = field(default_factory=Position)
    params: bool = False
    config: bool = False
    sent: str = ""
    state: str = ""
    done: bool = False
    totals: Mapping[str, float] = field(default_factory=dict)
    ended: int = 0
    logs: str = ""
    error: bool = True  # as in files of earlier versions, whatever they sent


@dataclass
class StoreState:
    """One store: the experiment, the parent run, the runs by point key, and the report's files that were sent.

    shown: digest of how the experiment was told to show the study. noted: digest of what the parent run says of it.
    told: digest of the parent run's parameters.
    """

    experiment: str = ""
    parent: str = ""
    parent_sent: str = ""
    shown: str = ""
    noted: str = ""
    told: str = ""
    files: dict[str, str] = field(default_factory=dict)
    runs: dict[str, RunState] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        """When the last of its runs ended, in unix milliseconds; 0 before."""
        return max((run.ended for run in self.runs.values()), default=0)


@dataclass
class TrackingState:
    """The whole file: which syncer wrote it last, the study's identity, the stores by address without credentials."""

    owner: str = ""
    study_id: str = ""
    stores: dict[str, StoreState] = field(default_factory=dict)


def load(path: Path) -> TrackingState:
    """Return the state in the file; an empty one where it is absent, damaged or of another format."""
    value = read_json(path)
    if value is None or value.get("format") != FORMAT or wrong(value, SHAPE):
        return TrackingState()
    try:
        stores = {name: _store(entry) for name, entry in value["stores"].items()}
    except (KeyError, TypeError, AttributeError):
        return TrackingState()
    return TrackingState(value["owner"], value["study_id"], stores)


def save(path: Path, state: TrackingState) -> None:
    """Replace the file atomically."""
    write_atomic(path, json.dumps({"format": FORMAT, **asdict(state)}, separators=(",", ":")) + "\n")


def _store(entry: Mapping[str, Any]) -> StoreState:
    runs = {key: RunState(**{**run, "position": Position(**run["position"])}) for key, run in entry["runs"].items()}
    return StoreState(**{**entry, "runs": runs})
