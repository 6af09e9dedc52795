"""The same numbers in any order of rows, under any BLAS kernel, with any number of threads."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis import fit_law
from tests.analysis import anywhere, studies


@pytest.mark.parametrize("cluster", ["residuals", "rows", "runs", "sizes", "seeds"])
def test_resamples_do_not_depend_on_the_order_of_the_rows(cluster: str) -> None:
    one, two = (studies.isoflop(seed, noise=0.004, law=anywhere.LAW) for seed in (0, 1))
    table = pd.concat((one.assign(run="a"), two.assign(run="b")), ignore_index=True)
    table["run"] += np.arange(len(table)).astype(str)
    shuffled = table.sample(frac=1.0, random_state=3)
    given, other = (fit_law(t, loss="squared", cluster=cluster, resamples=40).draws for t in (table, shuffled))
    np.testing.assert_allclose(given["a"], other["a"], rtol=1e-4)
