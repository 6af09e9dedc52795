"""A processor whose logarithms are rounded coarsely: NumPy's with AVX-512 are known to four units of the last place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np

from analysis.estimation.optimizer import Array
from analysis.laws.base import Form, Pull

UNIT = float(np.finfo(np.float64).eps)


@contextmanager
def rounded_logs(form: Form, units: float, seed: int) -> Iterator[None]:
    """Let the logs that a form predicts be off by up to so many units of the last place, drawn anew at every call."""
    generator, exact = np.random.default_rng(seed), type(form).log_value_and_pull

    def rounded(self: Form, theta: Array, x: Array) -> tuple[Array, Pull]:
        value, pull = exact(self, theta, x)
        return value * (1.0 + generator.uniform(-units * UNIT, units * UNIT, value.shape)), pull

    with mock.patch.object(type(form), "log_value_and_pull", rounded):
        yield
