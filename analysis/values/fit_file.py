"""Reading `fit.json`: what is no JSON is said in words of ours, and what its record holds is looked at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.values.blocks import CurveScore
from analysis.values.json_values import from_json

RECORD: Mapping[str, Any] = {
    "options": dict[str, Any],
    "law": dict[str, Any],
    "approaches": tuple[dict[str, Any], ...],
    "optima": tuple[dict[str, Any], ...],
    "curves": tuple[CurveScore, ...],
}
"""What those entries of `record` are that the report and the summary read."""


def read(path: Path) -> dict[str, Any]:
    """Return the object that a file holds as JSON; ValueError says why there is none."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"fit={path} does not exist; run python -m analysis.fit runs=... out={path.parent}") from None
    except IsADirectoryError:
        raise ValueError(f"fit={path} is a folder: give the fit in it, fit={path / 'fit.json'}") from None
    except OSError as error:
        raise ValueError(f"fit={path} cannot be read: {error.strerror}; correct that, or give another fit=") from None
    except (ValueError, RecursionError) as error:
        why = _no_json(error)
        raise ValueError(f"fit={path} is no fit.json ({why}); python -m analysis.fit writes one") from None
    if not isinstance(value, dict):
        raise ValueError(f"fit={path} is no fit.json (it holds no object); python -m analysis.fit writes one")
    return value


def _no_json(error: ValueError | RecursionError) -> str:
    """Return why a text is no JSON, in words of ours."""
    if isinstance(error, json.JSONDecodeError):
        if not error.doc.strip():
            return "it is empty"
        cut = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
        return "it breaks off" if cut else f"line {error.lineno}, column {error.colno} is no JSON"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    return "it is nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


def check_record(record: Mapping[str, Any], where: str) -> None:
    """Raise ValueError where an entry is not what it is shown as; those of other names may be anything."""
    for name, hint in RECORD.items():
        if record.get(name) is not None:
            from_json(hint, record[name], f"{where}.{name}")
