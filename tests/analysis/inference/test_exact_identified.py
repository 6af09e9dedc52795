"""Verdicts by hand: on stand-ins of fits whose draws are given, and on fits whose terms are needed or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.inference import identifiability
from analysis.inference.fit_law import fit_law
from analysis.values.blocks import Identified
from tests.analysis import studies

KNOWN = Identified(True)


def stand_in(draws: Any = None, *, value: float = 1.0, positive: bool = True, confidence: float = 0.9,
             name: str = "E", floor: Any = None, lowest: float = 2.0, undefined: float = 0.0) -> Any:  # fmt: skip
    """Return what the verdicts read of a fit with one constant."""
    drawn = np.array([]) if draws is None else np.asarray(draws, dtype=float)
    form = SimpleNamespace(names=(name,))
    if floor is not None:
        form.floor = floor
    return SimpleNamespace(
        form=form, params={name: value}, derived={name: value}, thetas=drawn, draws=pd.DataFrame({name: drawn}),
        confidence=confidence, observed=np.array([9.0, lowest, 5.0]), undefined={name: undefined},
        positive=lambda _: positive,
    )  # fmt: skip


def test_a_fit_at_its_floor_is_on_its_bound() -> None:
    """Below a thousandth of the lowest target, here 0.002."""
    assert identifiability._on_bound(stand_in(value=0.002), "E", KNOWN) is KNOWN
    found = identifiability._on_bound(stand_in(value=0.00199), "E", KNOWN)
    assert found == Identified(False, "the fit puts E on its bound 0", None, None)
    upper = Identified(False, "flat", "upper", 0.7)
    assert identifiability._on_bound(stand_in(value=0.001), "E", upper) == Identified(
        False, "the fit puts E on its bound 0", "upper", 0.7
    )
    half = np.concatenate((np.zeros(50), np.linspace(0.1, 0.2, 50)))
    both = identifiability._on_bound(stand_in(half, value=0.002), "E", KNOWN)
    assert both.reason == "50 % of the resamples put E on its bound 0"
    assert both.limit == pytest.approx(np.quantile(half, 0.9))
    lower = Identified(False, "flat", "lower", 0.7)
    assert identifiability._on_bound(stand_in(value=0.001), "E", lower).side is None


def test_half_of_alpha_of_the_resamples_at_zero_is_on_the_bound() -> None:
    """At 90 % five of a hundred are; the limit is the draws' 90 % quantile or the profile's, the higher one."""
    draws = np.concatenate((np.zeros(4), np.linspace(1, 2, 96)))
    assert identifiability._on_bound(stand_in(draws), "E", KNOWN) is KNOWN
    draws[4] = 0.0019
    found = identifiability._on_bound(stand_in(draws), "E", KNOWN)
    assert found.reason == "5.0 % of the resamples put E on its bound 0"
    assert (found.identified, found.side) == (False, "upper")
    assert found.limit == pytest.approx(np.quantile(draws, 0.9))
    high = identifiability._on_bound(stand_in(draws), "E", Identified(False, "", "upper", 5.0))
    assert high.limit == 5.0
    low = identifiability._on_bound(stand_in(draws), "E", Identified(False, "", "upper", 0.5))
    assert low.limit == pytest.approx(np.quantile(draws, 0.9))
    other = identifiability._on_bound(stand_in(draws), "E", Identified(False, "", "lower", 5.0))
    assert other.limit == pytest.approx(np.quantile(draws, 0.9))


def test_only_floors_have_a_bound() -> None:
    zero: Any = {"value": 0.0}
    assert not identifiability._on_bound(stand_in(**zero), "E", KNOWN).identified
    assert identifiability._on_bound(stand_in(**zero, positive=False), "E", KNOWN) is KNOWN
    assert identifiability._on_bound(stand_in(**zero, name="A"), "A", KNOWN) is KNOWN
    assert not identifiability._on_bound(stand_in(**zero, name="A", floor="A"), "A", KNOWN).identified
    assert identifiability._on_bound(stand_in(**zero, floor=""), "E", KNOWN) is KNOWN


def test_intervals_of_resamples_have_to_close() -> None:
    """Within a factor of a million, for positive constants."""
    assert identifiability._resampled(stand_in(), "E", KNOWN) is KNOWN
    refused = Identified(False, "flat")
    wide = np.exp(np.linspace(-20, 20, 400))
    assert identifiability._resampled(stand_in(wide), "E", refused) is refused
    assert identifiability._resampled(stand_in(wide, positive=False), "E", KNOWN) is KNOWN
    assert not identifiability._resampled(stand_in(wide), "E", KNOWN).identified
    for width, closed in ((13.7, True), (13.95, False)):
        ends = np.concatenate((np.full(200, -width / 2), np.full(200, width / 2)))
        found = identifiability._resampled(stand_in(np.exp(ends)), "E", KNOWN)
        assert found.identified == closed
    draws = np.full(100, np.nan)
    draws[:80] = 1.0
    lost = identifiability._resampled(stand_in(draws, undefined=0.2), "E", KNOWN)
    assert (lost.identified, lost.reason) == (False, "20 % of the resamples have no finite E")
    with np.errstate(all="raise"):
        zeros = identifiability._resampled(stand_in(np.where(np.arange(100) < 50, 0.0, 1.0)), "E", KNOWN)
    assert not zeros.identified


def test_which_side_is_open() -> None:
    draws = np.exp(np.linspace(-12, 30, 200) ** 3 / 900)
    above = identifiability._resampled(stand_in(draws, confidence=0.8), "E", KNOWN)
    assert (above.reason, above.side) == ("resamples leave E unbounded above", "lower")
    assert above.limit == pytest.approx(np.quantile(draws, 0.2))
    below = identifiability._resampled(stand_in(1 / draws, confidence=0.8), "E", KNOWN)
    assert (below.reason, below.side) == ("resamples leave E unbounded below", "upper")
    assert below.limit == pytest.approx(np.quantile(1 / draws, 0.8))
    both = identifiability._resampled(stand_in(np.exp(np.linspace(-30, 30, 200))), "E", KNOWN)
    assert both == Identified(False, "the resampled interval of E spans more than a factor of a million")


@pytest.mark.parametrize(
    ("low", "high", "side"),
    [(-6.8, 7.1, "lower"), (-7.1, 6.8, "upper"), (-7.0, 7.0, None), (-6.8, 6.8, None), (-7.0, 6.9, "upper"),
     (-6.9, 7.0, "lower")],
)  # fmt: skip
def test_half_of_a_millionfold_to_either_side(low: float, high: float, side: str | None) -> None:
    """ln(1e6) / 2 is 6.908; the constant itself is 2."""
    fit = stand_in(np.ones(10), value=2.0)
    found = identifiability._open(fit, "E", (np.log(2.0) + low, np.log(2.0) + high), np.ones(10))
    assert (found.identified, found.side) == (False, side)
    one, half = stand_in(np.ones(10)), float(identifiability.WIDEST / 2)
    for ends, open_side in (((-half, 8.0), "lower"), ((-8.0, half), "upper"), ((-half, half), None)):
        assert identifiability._open(one, "E", ends, np.ones(10)).side == open_side
    zero = stand_in(np.ones(10), value=0.0)
    assert identifiability._open(zero, "E", (-600.0, 3.0), np.ones(10)).side == "lower"


def test_exponents_of_sizes_lie_within_zero_and_one() -> None:
    good = [(0.3, 0.6), (0.1, 0.9), (0.05, 0.8)]
    bad = [(0.0, 0.5), (0.5, 1.0), (0.05, 0.9), (-0.1, 0.5), (0.6, 1.1), None]
    assert all(identifiability.ratio(ends, "a").identified for ends in good)
    for ends in bad:
        assert identifiability.ratio(ends, "b") == Identified(False, "the interval of b covers most of 0 to 1")


def test_derived_quantities_are_judged_by_their_draws() -> None:
    assert identifiability._derived(stand_in(name="a"), "a").identified
    wide, narrow = np.linspace(0.01, 0.99, 99), np.linspace(0.4, 0.5, 99)
    assert not identifiability._derived(stand_in(wide, value=0.5, name="a"), "a").identified
    assert not identifiability._derived(stand_in(wide, value=0.5, name="b"), "b").identified
    assert identifiability._derived(stand_in(narrow, value=0.45, name="a"), "a").identified
    assert identifiability._derived(stand_in(wide, value=0.5, name="c"), "c").identified


def test_limits_are_numbers() -> None:
    for limit in (np.inf, np.nan):
        given = Identified(False, "why", "upper", limit)
        assert identifiability._limited(given, 1.0) == Identified(False, "why", None, None)
    assert identifiability._limited(KNOWN, 1.0) is KNOWN


def test_limits_leave_the_estimate_within() -> None:
    for side, value, want in (("upper", 1.0, 2.0), ("upper", 3.0, 3.0), ("lower", 1.0, 1.0), ("lower", 3.0, 2.0)):
        assert identifiability._limited(Identified(False, "why", side, 2.0), value) == Identified(
            False, "why", side, want
        )


@pytest.mark.parametrize(("count", "df"), [(20, 15), (240, 235), (6, 1), (6, 0)])
def test_two_constants_have_to_bring_what_the_f_test_asks(count: int, df: int) -> None:
    free = max(df, 1)
    assert identifiability.drop_cut(count, df) == pytest.approx(
        count * np.log(1 + 2 / free * stats.f.ppf(0.95, 2, free))
    )


def test_a_term_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss that does not depend on tokens: B and beta fit noise."""
    table = studies.isoflop(1, noise=0.002, law=(1.9, 60.0, 1e-9, 0.33, 0.3))
    fit = fit_law(table, loss="squared", resamples=0, starts=3)
    needless = identifiability._needless(fit)
    assert set(needless) == {"B", "beta"}
    assert needless["B"].reason == "the law fits the runs as well without B/D^beta"
    flat = studies.isoflop(1).assign(loss=2.0 + 1e-3 * np.sin(np.arange(20)))
    assert (
        identifiability._needless(fit_law(flat, "compute", loss="squared", resamples=0, starts=2)) == {}
    )  # its only one
    monkeypatch.setitem(vars(fit), "_profiles", {name: SimpleNamespace(identified=KNOWN) for name in fit.form.names})
    verdicts = identifiability.Verdicts(fit)
    for name in ("B", "beta", "a", "b"):
        assert verdicts[name].reason == needless["B"].reason
        assert not verdicts[name].identified
    assert verdicts["alpha"].identified
    whole = fit_law(studies.isoflop(1, noise=0.002), loss="squared", resamples=0, starts=3)
    assert identifiability._needless(whole) == {}
    helds: list[Any] = [{"fix": {"B": 1e-9}}, {"fix": {"beta": 0.3}}]
    for held in helds:
        assert identifiability._needless(fit_law(table, loss="squared", resamples=0, starts=2, **held)) == {}
    tied = fit_law(table, loss="squared", resamples=0, starts=2, tie={"beta": "alpha"})
    assert identifiability._needless(tied) == {}
    for form in ("chinchilla_tied", "compute", "kaplan"):
        assert identifiability._needless(fit_law(table, form, loss="squared", resamples=0, starts=2)) == {}


def test_a_term_is_needed_where_it_gains_more_than_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of least squares the gain in 2 llf is n ln of the ratio of their sums."""
    fit = fit_law(studies.isoflop(1, noise=0.002), loss="squared", resamples=0, starts=2)
    cut = identifiability.drop_cut(20, 15)
    starts: list[int] = []
    for share, needless in ((0.999, True), (1.001, False)):

        def without(_: Any, count: int, share: float = share) -> Any:
            starts.append(count)
            return SimpleNamespace(objective=fit.objective * np.exp(share * cut / 20))

        monkeypatch.setattr("analysis.estimation.multistart.fit_point", without)
        found = identifiability._needless(fit)
        assert set(found) == ({"A", "alpha", "B", "beta"} if needless else set())
    assert starts == [4] * 4


def test_what_is_held_is_not_judged() -> None:
    fit = fit_law(studies.isoflop(1, noise=0.002), loss="squared", resamples=0, fix={"E": 1.9})
    found = identifiability.Verdicts(fit)
    assert list(found) == ["E", "A", "B", "alpha", "beta", "a", "b"]
    assert found["E"] == Identified(True, "held at a value")
    assert all(verdict.identified for verdict in found.values())


def test_laws_that_hold_no_constant_as_it_is_have_no_profile() -> None:
    """Of Farseer's constants the three exponents alone can be held at a value."""
    from analysis.inference.profile_likelihood import profile

    x = studies.isoflop(1, noise=0.002)
    fit = fit_law(x, "farseer", loss="squared", resamples=0, starts=2, fix={"q": 0.1, "b": 0.1, "a": 0.1})
    with pytest.raises(ValueError, match="has no profile"):
        profile(fit.problem, fit.point, "s")
    assert identifiability.Verdicts(fit)["s"] == Identified(True)
