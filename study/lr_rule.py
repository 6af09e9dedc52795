"""Which rule of the learning rate a command takes: that of the study, where one of an earlier version began it.

A frozen config holds a learning rate, whatever rule gave it. But a command that is given again derives it anew, and by
another rule it would make other points beside those that are there. So a study goes on with the rule that it was begun
with, unless the command names one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from study.layout import StudyFolder
from study.submission import load_section

KEY = "optim.lr_rule"


def carried_on(plain: Mapping[str, Any], lines: Sequence[str]) -> tuple[str, ...]:
    """Return the override that keeps the rule of the study which a composed config names; none where none is needed.

    lines: the overrides of the command.
    """
    if (plain.get("optim") or {}).get("lr") is not None or any(_name(line) == KEY for line in lines):
        return ()
    folder = StudyFolder(Path(plain["paths"]["runs"]).expanduser().absolute() / str(plain["study"]["name"]))
    return (f"{KEY}=null",) if _began_before(folder) else ()


def in_words(study: str) -> str:
    """Return what a person is told of it."""
    return (
        f"Study {study} was begun by a version whose rule for optim.lr=null took N with the output head. It goes on so:"
        " its points stay the same. The rule as published has N without the head: a new study takes it, and "
        f"{KEY}=step_law makes other points beside those of this one."
    )


def _began_before(folder: StudyFolder) -> bool:
    """Say whether the study has points and derived the learning rate when there was no choice of a rule."""
    if not folder.points.exists():
        return False
    optim = load_section(folder, "run_defaults").get("optim") or {}
    return "lr" in optim and optim["lr"] is None and optim.get("lr_rule") is None


def _name(line: str) -> str:
    return line.lstrip("+").partition("=")[0]
