"""Stand-ins for what submits points and for what follows them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLACES = {"step": "study.reconcile.step", "follow": "study.watch.follow"}


def stand_in(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    """Put functions in the place of `step` or `follow`, for what imports them when it is called.

    Modules that import them at the top are imported before: one that is first imported in the meantime would keep the
    stand-in for all tests that follow.
    """
    for name, function in functions.items():
        bound = re.compile(rf"^from {PLACES[name]} import .*\b{name}\b", re.MULTILINE)
        for file in sorted((ROOT / "study").rglob("*.py")):
            if bound.search(file.read_text(encoding="utf-8")) and file.stem != "__main__":
                importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        monkeypatch.setattr(f"{PLACES[name]}.{name}", function)
