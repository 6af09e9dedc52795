"""Where the runs and the fit come from, as a section of the report: what the records say, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from analysis.inputs.provenance import Provenance
from analysis.report.figures.data import Row
from analysis.report.html import Html, join, tag
from analysis.results.fit_keys import KEYS
from analysis.text import numbers
from analysis.values.study_result import Fit

SCHEDULERS = {"slurm": "SLURM"}
"""How executors are spelt, where not by their names."""
UNKNOWN = {"no-git": "not a git checkout", "no-commit": "a git checkout without a commit"}


def section(fit: Fit, rows: Sequence[Row], found: Provenance | None) -> Html:
    """Return the section: a line for each thing that is known."""
    items: list[tuple[str, str]] = [("runs from", fit.source), *(_study(found) if found is not None else _table(rows))]
    again = command(fit)
    items += [("fit again", tag("code", again))] if again else []
    versions = ", ".join(f"{name} {version}" for name, version in sorted(fit.versions.items()))
    items += [("fitted with", versions)] if versions else []
    parts = [part for name, text in items for part in (tag("dt", name), tag("dd", text))]
    none = "The runs came as a table, which has no record of code, machines and time."
    return join(tag("dl", *parts, class_="method"), tag("p", none, class_="quiet") if found is None else "")


def command(fit: Fit) -> str:
    """Return the command line that gives this fit again, empty where its options are not recorded."""
    options: Mapping[str, Any] = fit.record.get("options") or {}
    if not options.get("runs"):
        return ""
    said = [f"runs={_quoted(str(options['runs']))}"]
    for key in KEYS:
        value = options.get(key.name)
        default = list(key.default) if isinstance(key.default, tuple) else key.default
        if key.name in ("runs", "out", "report") or value is None or value == default:
            continue
        said.append(f"{key.name}={_quoted(_text(value))}")
    return f"python -m analysis.fit {' '.join(said)}"


def _study(found: Provenance) -> list[tuple[str, str]]:
    """Return what a study's records say, as name and text."""
    out = [("code", "; ".join(_code(one.commit, one.changed) for one in found.code))]
    out.append(("machines", numbers.listed(found.machines)))
    out.append(("trained on", ", ".join(f"{name} ({n} runs)" for name, n in (found.devices or {}).items())))
    jobs = ", ".join(numbers.counted(n, f"{SCHEDULERS.get(name, name)} job") for name, n in (found.jobs or {}).items())
    out.append(("jobs", f"{jobs}, {numbers.counted(found.attempts, 'attempt')}" if jobs else ""))
    used = [(found.gpu_hours, "GPU-hours"), (found.core_hours, "core-hours")]
    spent = " and ".join(f"{numbers.number(value)} {unit}" for value, unit in used if value is not None)
    out.append(("used", f"{spent}, by the attempts' clocks" if spent else ""))
    out.append(("trained", _amount(found.tokens, found.flops)))
    if found.began is not None:
        day = datetime.fromtimestamp(found.began, UTC).strftime("%Y-%m-%d %H:%M UTC")
        lasted = "" if found.ended is None else f", {_duration(found.ended - found.began)} to the end of the last run"
        out.append(("began", f"{day}{lasted}"))
    out.append(("trained with", ", ".join(found.versions)))
    return [(name, text) for name, text in out if text]


def _table(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return what a table of runs says of their size."""
    good = [row for row in rows if math.isfinite(row.tokens) and math.isfinite(row.flops)]
    if not good:
        return []
    return [("trained", _amount(sum(row.tokens for row in good), sum(row.flops for row in good)))]


def _amount(tokens: float | None, flops: float | None) -> str:
    parts = [f"{numbers.count(tokens)} tokens"] if tokens is not None else []
    parts += [numbers.flops(flops)] if flops is not None else []
    return f"{', '.join(parts)} in all runs together" if parts else ""


def _code(commit: str, changed: str) -> str:
    if commit in UNKNOWN:
        return f"{UNKNOWN[commit]} (sources {changed})"
    return f"commit {commit}" + (f" with changes (patch {changed})" if changed else ", unchanged")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes / 60:.1f} h" if minutes < 2880 else f"{minutes / 1440:.1f} days"


def _text(value: object) -> str:
    """Return an option as it is typed."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{_text(one)}" for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)
