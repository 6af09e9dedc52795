"""Quantiles of Student's t, F and chi squared, by what scipy.stats calls itself: to import that takes a second."""

from __future__ import annotations

import numpy as np

from analysis.inputs.dataset import Array


def t_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t with `df` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution."""
    from scipy.special import ndtri

    return float(ndtri(probability))


def f_quantile(probability: float, above: float, below: float) -> float:
    """Return the quantile of F with `above` and `below` degrees of freedom of numerator and denominator."""
    from scipy.special import fdtri

    return float(fdtri(above, below, probability))


def f_tail(ratio: float, above: float, below: float) -> float:
    """Return the probability that F with these degrees of freedom exceeds a ratio."""
    from scipy.special import fdtrc

    return float(fdtrc(above, below, ratio))


def chi2_quantiles(probability: Array | float, df: float) -> Array:
    """Return quantiles of chi squared with `df` degrees of freedom, in the shape of the probabilities."""
    from scipy.special import gammaincinv

    return np.asarray(2.0 * gammaincinv(df / 2.0, probability))


def chi2_tail(value: float, df: float) -> float:
    """Return the probability that chi squared with `df` degrees of freedom exceeds a value."""
    from scipy.special import chdtrc

    return float(chdtrc(df, value))
