"""Stands in for the trainer: writes down its environment, with no scontrol to be had."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

run = Path(sys.argv[sys.argv.index("--config") + 1]).parent
if os.environ.get("RANK", "0") == "0":
    text = "".join(f"{name}={value}\n" for name, value in os.environ.items() if "\n" not in value)
    (run / "environment.new").write_text(text, encoding="utf-8")
    (run / "environment.new").rename(run / "environment")
    outcome = {"format": 1, "state": "completed", "step": 1, "tokens": 1, "loss": {}}
    (run / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
