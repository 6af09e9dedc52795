"""Stands in for the trainer: notes the text in train/said.py of the code that it imports, and on which start it is.

SAYS_DIES: starts that are killed outright.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from train import said  # type: ignore[attr-defined] # the test writes it


def main() -> None:
    run = Path(sys.argv[sys.argv.index("--config") + 1]).parent
    with (run / "said").open("a", encoding="utf-8") as note:
        note.write(f"{said.TEXT}\n")
    if len((run / "said").read_text(encoding="utf-8").split()) <= int(os.environ.get("SAYS_DIES", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    outcome = {"format": 1, "state": "completed", "step": 1, "tokens": 1, "loss": {"validation_nats_per_token": 1.0}}
    (run / "outcome.new").write_text(json.dumps(outcome), encoding="utf-8")
    (run / "outcome.new").rename(run / "outcome.json")


main()
