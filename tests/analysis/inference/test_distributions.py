"""Quantiles are those of scipy.stats to the last bit, and no command imports scipy.stats for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from analysis.inference import distributions

ROOT = Path(__file__).parents[3]
PROBABILITIES = (0.005, 0.1, 0.5, 0.9, 0.95, 0.975, 0.9999)


@pytest.mark.parametrize("df", [1, 2, 7.5, 40, 1e6])
def test_they_are_those_of_scipy_stats(df: float) -> None:
    from scipy import stats

    for probability in PROBABILITIES:
        assert distributions.t_quantile(probability, df) == stats.t.ppf(probability, df)
        assert distributions.normal_quantile(probability) == stats.norm.ppf(probability)
        for below in (1, 5, 33.3):
            assert distributions.f_quantile(probability, df, below) == stats.f.ppf(probability, df, below)
    for ratio in (0.0, 0.3, 1.0, 12.5):
        assert distributions.f_tail(ratio, df, 9) == stats.f.sf(ratio, df, 9)
    ours = distributions.chi2_quantiles(np.array(PROBABILITIES), df)
    np.testing.assert_array_equal(ours, stats.chi2.ppf(PROBABILITIES, df))


def test_a_fit_imports_no_scipy_stats(tmp_path: Path) -> None:
    words = ["runs=docs/example-runs.csv", f"out={tmp_path}", "resamples=20", "sensitivity=no", "report=no"]
    program = f"import sys; from analysis.fit import main; main({words}); assert 'scipy.stats' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
