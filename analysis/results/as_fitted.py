"""What a fit was asked for: functions that are given the fit for its runs go on with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.text import numbers

USUAL: Mapping[str, Any] = {"form": "chinchilla", "loss": "huber", "delta": 1e-3, "fix": {}, "tie": {}}
"""The options that say which law is fitted, and how, where nothing else is asked."""


def options_of(runs: object) -> dict[str, Any]:
    """Return the options of a fit that is given for its runs; none of anything else."""
    found = getattr(runs, "options", None)
    return dict(found) if isinstance(found, Mapping) and hasattr(runs, "frame") else {}


def asked(runs: object, **given: Any) -> dict[str, Any]:
    """Return form, loss, delta, fix and tie: as `given` (None: not), else as the fit has them, else the usual ones.

    A delta that is given is Huber's. Constants are held by name: another form than the fit's has none of them held.
    """
    from analysis.laws.registry import resolve

    own = {**USUAL, **{name: value for name, value in options_of(runs).items() if name in USUAL}}
    named = {name: value for name, value in given.items() if value is not None}
    form = resolve(named.get("form", own["form"]))
    if form != own["form"]:
        own |= {"fix": {}, "tie": {}}
    if "delta" in named:
        own["loss"] = "huber"
    elif "loss" in named and own["delta"] == "squared":
        own["delta"] = USUAL["delta"]
    return {**own, **named, "form": form}


def told(options: Mapping[str, Any], names: tuple[str, ...] = ("loss", "delta", "fix", "tie")) -> str:
    """Return the options that are not the usual ones, as keys: loss=squared, fix=E:1.6; empty where all are."""
    unusual = {name: options[name] for name in names if name in options and not _usual(name, options[name])}
    return ", ".join(f"{name}={_typed(value)}" for name, value in unusual.items())


def _usual(name: str, value: Any) -> bool:
    if name == "delta" and value != "squared":
        return bool(numbers.read(str(value)) == USUAL["delta"])
    return bool(value == USUAL[name])


def _typed(value: Any) -> str:
    return ",".join(f"{name}:{held}" for name, held in value.items()) if isinstance(value, Mapping) else str(value)
