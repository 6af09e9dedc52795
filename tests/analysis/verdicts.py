"""Verdicts on a constant and what is said of them."""

from __future__ import annotations

from analysis.values.blocks import Identified

UNIDENTIFIED = [
    (Identified(False, "why"), "E is not identified (why)"),
    (Identified(False, "why", "upper", 1.23456), "E is not identified: at most 1.235 (why)"),
    (Identified(False, "why", "lower", 3.0), "E is not identified: at least 3 (why)"),
    (Identified(False, "why", "upper", None), "E is not identified (why)"),
    (Identified(False, "why", None, 3.0), "E is not identified (why)"),
]
