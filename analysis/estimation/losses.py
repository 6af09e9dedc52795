"""The loss functions by the name that a user gives: each the name of its class in `objectives`.

Names alone, for help texts that wait for no numerical package.
"""

from __future__ import annotations

from collections.abc import Mapping

LOSSES: Mapping[str, str] = {
    "huber": "Huber",
    "student_t": "StudentT",
    "l1": "Absolute",
    "squared": "Squared",
    "linear": "Linear",
}
