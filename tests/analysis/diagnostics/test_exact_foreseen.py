"""Losses in another unit than a fit's are told by its law, others are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.diagnostics import foreseen

SAID = np.array([3.0, 2.8, 2.6, 2.4, 2.2, 2.0])
KEYS = tuple(f"r{i}" for i in range(6))
NATS = "nats per token"


def codes(observed: Any, unit: str = NATS, **kinds: bool) -> list[tuple[str, str, str]]:
    checks = foreseen.units(KEYS, np.asarray(observed), SAID, unit, **kinds)
    return [(check.code, check.level, check.message) for check in checks]


@pytest.mark.parametrize("error", [-0.08, -0.02, 0.0, 0.02, 0.08])
@pytest.mark.parametrize("rows", [[0], [5], [1, 4], [0, 1, 2, 3, 4, 5]])
def test_losses_off_by_the_ratio_of_units_are_named(rows: list[int], error: float) -> None:
    off = SAID * (1 + error)
    for factor, text in ((1 / np.log(2), "1.44 times what the law says"), (np.log(2), "0.69 times what the law says")):
        observed = off.copy()
        observed[rows] *= factor
        ((code, level, message),) = codes(observed)
        assert (code, level) == ("mixed_units", "error")
        assert message.startswith(f"{len(rows)} loss{'es are' if len(rows) > 1 else ' is'} {text} (r{rows[0]} ")
        assert all(f"r{i} " in message for i in rows)
        assert not any(f"r{i} " in message for i in set(range(6)) - set(rows))
    perplexities = off.copy()
    perplexities[rows] = np.exp(perplexities[rows])
    ((code, level, message),) = codes(perplexities)
    assert (code, level) == ("perplexity", "error")
    assert all(f"r{i} " in message for i in rows)
    assert codes(perplexities, "bits per byte") == []


@pytest.mark.parametrize("factor", [0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 1.7])
def test_other_errors_are_no_unit(factor: float) -> None:
    assert codes(SAID * factor) == []


def test_runs_that_went_wrong_by_other_ratios_are_no_unit() -> None:
    assert codes(SAID * [1.0, 1.44, 1.9, 1.0, 1.0, 1.0]) == []
    assert len(codes(SAID * [1.0, 1.44, 1.44, 1.9, 1.0, 1.0])) == 1


def test_of_another_corpus_it_is_a_warning() -> None:
    (found,) = codes(SAID / np.log(2), other_corpus=True)
    assert found[1] == "warning"
    (found,) = codes(np.exp(SAID), other_corpus=True)
    assert found[1] == "warning"
