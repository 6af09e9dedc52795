"""Refusals and findings, each on both sides of its limit, from columns and stand-ins for fits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.estimation import observations
from analysis.inference import findings, refusals
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE
from analysis.values.blocks import Basin, Identified, Optimizer
from tests.analysis.verdicts import UNIDENTIFIED

N = np.array([1e6, 2e6, 4e6])
D = np.array([2e7, 4e7, 8e7])


def codes(found: Any) -> list[str]:
    return [check.code for check in found]


def read(**more: Any) -> Any:
    return observations.read({"params": N, "tokens": D, "loss": [3.0, 2.5, 2.0], **more}, SURFACE)


def test_a_target_that_never_changes_is_refused() -> None:
    refusals.refuse(SURFACE, read())
    with pytest.raises(ValueError, match=r"every row has the same loss, 2\.5: no law follows; map another column"):
        refusals.refuse(SURFACE, read(loss=[2.5] * 3))
    refusals.refuse(SURFACE, read(loss=[2.5] * 3).take(np.arange(3) < 1))
    with pytest.raises(ValueError, match="every row has the same loss"):
        refusals.refuse(SURFACE, read(loss=[2.5] * 3).take(np.arange(3) < 2))


def test_columns_are_those_of_the_fit_or_of_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "OF_A_LAW", (lambda fit: ["draws"], lambda fit: [], lambda fit: ["misfit"]))
    monkeypatch.setattr(findings, "columns", lambda extra: [sorted(extra)])
    found: Any = findings.findings(fit(data=SimpleNamespace(columns={"own": 1})))
    assert found == ("draws", "misfit", ["own"])
    found = findings.findings(fit(data=None), {"params": N, "tokens": D, "loss": [3.0, 2.5, 2.0], "lr": N})
    assert found == ("draws", "misfit", ["loss", "lr", "params", "tokens"])


@pytest.mark.parametrize(
    ("share", "refused"),
    [([1.0, 1.0, 1.0], 0), ([1.009, 1.0, 0.5], 0), ([1.011, 1.0, 1.0], 1), ([3.0, 1.2, 1.0], 2),
     ([np.nan, 3.0, 1.0], 1),
     ([-1.0, 1.0, 1.0], 0)],
)  # fmt: skip
def test_repeated_tokens_are_refused(share: Any, refused: int) -> None:
    data = read(unique_tokens=D / np.array(share))
    if not refused:
        refusals.refuse(SURFACE, data)
        return
    most = f"{np.nanmax(share):.3g}"
    with pytest.raises(ValueError, match=rf"{refused} of 3 runs .* more tokens than are unique \(up to {most} epochs"):
        refusals.refuse(SURFACE, data)
    repeats: Any = FORMS["repeats"]
    distinct = np.abs(D / np.nan_to_num(share, nan=1.0))
    columns = {"params": N, "tokens": D, "unique_tokens": distinct, "loss": [3.0, 2.5, 2.0]}
    refusals.refuse(repeats, observations.read(columns, repeats))
    compute: Any = FORMS["compute"]
    refusals.refuse(compute, observations.read({**columns, "flops": 6 * N * D}, compute))


def test_an_error_is_not_extrapolated_from_four_models() -> None:
    form: Any = FORMS["downstream"]
    loss = np.array([2.5, 2.8, 3.1, 3.4])
    data = observations.read({"loss": loss, "error": 1 - 1 / loss}, form)
    for inside in ([[2.5, 3.4]], [[2.5 * (1 - 5e-10), 3.4 * (1 + 5e-10)]]):
        refusals.refuse_far(form, data, np.array(inside))
    for outside in ([[2.5 * (1 - 2e-9)]], [[3.4 * (1 + 2e-9)]], [[3.0, 9.0]]):
        with pytest.raises(ValueError, match=r"rests on 4 models; outside their losses, 2\.5 to 3\.4, it is"):
            refusals.refuse_far(form, data, np.array(outside))
    five = observations.read({"loss": [*loss, 4.0], "error": [0.1, 0.2, 0.3, 0.4, 0.5]}, form)
    refusals.refuse_far(form, five, np.array([[9.0]]))
    refusals.refuse_far(SURFACE, read(), np.array([[9.0], [9.0]]))
    assert codes(findings._few_models(fit(form=form, nobs=4))) == ["few_models"]
    assert findings._few_models(fit(form=form, nobs=5)) == []
    assert findings._few_models(fit(nobs=4)) == []


def fit(**more: Any) -> Any:
    """Return a stand-in for a sound fit."""
    evidence = Optimizer("m", 8, 1.0, 1e-9, True, (Basin(0.0, 1.0, {}),))
    base: dict[str, Any] = {
        "optimizer": evidence, "flat": None, "nobs": 20, "df_resid": 15, "free": 5, "form": SURFACE, "identified": {},
        "data": SimpleNamespace(columns={"params": N, "tokens": D[::-1]}),
    }  # fmt: skip
    return SimpleNamespace(**(base | more))


def optimizer(**more: Any) -> Any:
    base = {"converged": True, "agree_share": 1.0, "starts": 8, "basins": (1, 2), "gradient_norm": 0.034}
    return fit(optimizer=SimpleNamespace(**(base | more)))


def test_convergence_and_basins() -> None:
    assert findings._optimizer(fit()) == []
    (found,) = findings._optimizer(optimizer(converged=False))
    assert (found.code, found.message) == ("not_converged", "the optimizer stopped at a relative gradient of 0.03")
    (found,) = findings._optimizer(optimizer(agree_share=0.49))
    assert (found.code, found.message) == ("basins", "49 % of 8 starts agree; 2 basins")
    assert findings._optimizer(optimizer(agree_share=0.5)) == []
    (found,) = findings._optimizer(fit(flat=SimpleNamespace(text="along x", exchanged=(), given="the first")))
    assert found.code == "flat_optimum"
    assert found.message == "laws along x, fit the rows equally well; of these the first is given"


def test_degrees_of_freedom() -> None:
    assert findings._freedom(fit(df_resid=5)) == []
    (found,) = findings._freedom(fit(df_resid=4, nobs=9))
    assert (found.code, found.message) == ("low_df", "4 residual degrees of freedom: 9 rows for 5 constants")
    (found,) = findings._freedom(fit(df_resid=1, nobs=6))
    assert found.message.startswith("1 residual degree of freedom")


@pytest.mark.parametrize(("verdict", "words"), UNIDENTIFIED)
def test_what_is_not_identified(verdict: Identified, words: str) -> None:
    (found,) = findings._unidentified(fit(identified={"A": Identified(True), "E": verdict}))
    assert (found.code, found.message) == ("not_identified", words)


@pytest.mark.parametrize(("widest", "said"), [(1.99, True), (2.01, False)])
def test_runs_of_one_ratio_hold_a_law_of_compute_alone(widest: float, said: bool) -> None:
    ladder = SimpleNamespace(columns={"params": N, "tokens": 20 * N * [1.0, 1.0, widest]})
    lost = {"A": Identified(False, "why")}
    (found,) = findings._unidentified(fit(identified=lost, data=ladder))
    whole = (
        "do not quote it; all runs have about 20 tokens per parameter, so that N and D cannot be told apart: add runs "
        "at other ratios, or fit the loss over compute alone (form=compute)"
    )
    assert (found.advice == whole) is said
    (other,) = findings._unidentified(fit(identified=lost, data=ladder, form=FORMS["compute"]))
    assert "ratio" not in other.advice, "it reads neither N nor D"


def test_several_constants_that_are_not_identified_are_one_finding_with_one_advice() -> None:
    lost = {"E": Identified(False, "why", "upper", 1.23456), "A": Identified(False, "how"), "B": Identified(True)}
    (found,) = findings._unidentified(fit(identified=lost))
    assert found.message == "2 constants are not identified: E, at most 1.235 (why); A (how)"
    assert found.advice == "do not quote them; add larger budgets or a wider range"
    (one,) = findings._unidentified(fit(identified={"E": lost["E"]}))
    assert one.advice == "do not quote it; add larger budgets or a wider range"
    assert findings._unidentified(fit(identified={"B": lost["B"]})) == []


def repeated(scale: float, noise: Any = (0.01, -0.01), plain: bool = False, free: int = 5) -> Any:
    """Return a fit of eight settings run twice: their means lie `scale` off the law, up and down."""
    away = np.repeat(np.resize([1.0, -1.0], 8), 2) * scale + np.tile(noise, 8)
    cells, problem = np.repeat(np.arange(8), 2), SimpleNamespace(plain=plain)
    return fit(cells=cells, observed=np.exp(1.0 + away), resid=away, free=free, problem=problem)


def test_noise_of_seeds_is_pooled_over_settings() -> None:
    noise = findings.seed_noise(np.exp([1.0, 1.2, 9.0, 2.0, 2.1, 2.2]), np.array([0, 0, 1, 3, 3, 3]))
    assert noise == pytest.approx(np.sqrt((2 * 0.01 + 2 * 0.01) / 3))
    assert np.isnan(findings.seed_noise(np.ones(3), np.arange(3)))


def test_repeats_that_are_copies_say_nothing_of_seeds() -> None:
    assert findings._lack_of_fit(repeated(0.01, noise=(0.0, 0.0))) == []
    assert findings._lack_of_fit(repeated(0.01, noise=(3e-16, 0.0))) == []
    assert codes(findings._lack_of_fit(repeated(0.01, noise=(1e-6, 0.0)))) == ["seed_noise", "lack_of_fit"]


def test_lack_of_fit_is_an_f_test_of_the_settings_means() -> None:
    """Within settings the mean square is 2e-4 over 8 degrees of freedom, between them 16 scale^2 over 8 - 5."""
    cut = float(stats.f.ppf(0.99, 3, 8))
    limit = np.sqrt(cut * 2e-4 * 3 / 16)
    for factor, said in ((0.98, False), (1.02, True)):
        found = findings._lack_of_fit(repeated(limit * factor))
        assert codes(found) == ["seed_noise", *["lack_of_fit"] * said]
    assert found[0].message == "repeats differ by a standard deviation of 1.4 % (8 degrees of freedom)"
    assert found[0].level == "note"
    ratio = cut * 1.02**2
    assert found[1].message.endswith(f"(F = {ratio:.3g}, p = {stats.f.sf(ratio, 3, 8):.1g})")
    assert codes(findings._lack_of_fit(repeated(9 * limit, plain=True))) == ["seed_noise"]
    assert codes(findings._lack_of_fit(repeated(9 * limit, free=8))) == ["seed_noise"]
    assert codes(findings._lack_of_fit(repeated(90 * limit, free=7))) == ["seed_noise", "lack_of_fit"]
    assert findings._lack_of_fit(fit(cells=np.array([0, 1, 3]), observed=np.ones(3))) == []
    cells, observed = np.array([0, 1, 1, 3]), np.exp([0.0, 0.1, 0.2, 0.3])
    few = fit(cells=cells, observed=observed, resid=np.zeros(4), problem=SimpleNamespace(plain=False))
    assert codes(findings._lack_of_fit(few)) == ["seed_noise"]


@pytest.mark.parametrize(
    ("extra", "found", "words"),
    [
        ({"params": N, "tokens": D}, [], ""),
        ({"params": N}, [], ""),
        ({"params": np.array([5.0, 1.9999e4]), "tokens": D[:2]}, ["units"], "the largest params is 2e4, too few"),
        ({"params": np.array([5.0, 2e4]), "tokens": D[:2]}, [], ""),
        ({"params": N, "tokens": np.array([5.0, 70.0])}, ["units"], "the largest tokens is 70, too few for a count"),
        ({"params": D, "tokens": N}, ["few_tokens"], "every run has fewer tokens than parameters"),
        ({"params": N, "tokens": N}, [], ""),
        ({"params": N, "tokens": np.array([1e5, 1e5, 8e7])}, [], ""),
    ],
)
def test_units(extra: Any, found: Any, words: str) -> None:
    checks = findings._units(extra)
    assert codes(checks) == found
    for check in checks:
        assert check.message.startswith(words)
        assert check.level == ("error" if check.code == "units" else "warning")


@pytest.mark.parametrize(
    ("ratio", "words"),
    [([1.0, 1.0499, 0.951], ""), ([1.0, 1.0501, 0.99], "by -1.0 to +5.0 %"), ([1.0, 0.94, 0.95], "by -6.0 to +0.0 %")],
)
def test_flops_beside_six_n_d(ratio: Any, words: str) -> None:
    found = findings._flops({"params": N, "tokens": D, "flops": 6 * N * D * np.array(ratio)})
    assert codes(found) == ["flops_not_6nd"] * bool(words)
    assert not found or found[0].message == f"FLOPs differ from 6 N D {words}"
    assert findings._flops({"params": N, "tokens": D}) == []


@pytest.mark.parametrize(
    ("epochs", "code", "words"),
    [
        ([1.0, 4.003, 2.0], "", ""),
        ([1.0, 4.005, 2.0], "many_epochs", "1 run repeat their tokens more than 4 times, up to 4 epochs"),
        ([5.0, 16.01, np.nan], "many_epochs", "2 runs repeat their tokens more than 4 times, up to 16 epochs"),
        ([5.0, 16.02, 4.1], "very_many_epochs", "3 runs repeat their tokens more than 4 times, up to 16 epochs"),
        ([np.nan] * 3, "", ""),
    ],
)
def test_epochs(epochs: Any, code: str, words: str) -> None:
    found = findings._epochs({"tokens": D, "unique_tokens": D / np.array(epochs)})
    assert codes(found) == [code] * bool(code)
    assert not found or found[0].message == words
    assert findings._epochs({"tokens": D}) == []
    assert findings._epochs({"unique_tokens": D}) == []


def test_epochs_of_a_column_count_where_distinct_tokens_are_not_known() -> None:
    of: Any = findings.epochs_of
    assert of({"tokens": D}) is None
    assert of({"epochs": np.full(3, np.nan)}) is None
    np.testing.assert_array_equal(of({"epochs": np.array([1.0, np.nan, 9.0])}), [1.0, np.nan, 9.0])
    both = {"tokens": D, "unique_tokens": D / np.array([2.0, np.nan, np.nan]), "epochs": np.array([7.0, 8.0, np.nan])}
    np.testing.assert_allclose(of(both), [2.0, 8.0, np.nan])
    (check,) = findings._epochs({"epochs": np.array([1.0, 8.54, np.nan])})
    assert check.message == "1 run repeat their tokens more than 4 times, up to 8.54 epochs"


@pytest.mark.parametrize(
    ("above", "epochs", "words"),
    [
        ([1.0, 1.0049, np.nan], None, ""),
        ([1.0, 1.0366, np.nan], None, "1 run ended above the lowest validation loss, 3.7 % at most"),
        (
            [1.0, 1.0366, 1.1],
            [1.0, 8.54, np.nan],
            "2 runs ended above the lowest validation loss, 10 % at most, after 8.54 epochs",
        ),
        (
            [1.0, 1.0366, 1.1],
            [1.0, 8.54, 20.0],
            "2 runs ended above the lowest validation loss, 10 % at most, after 8.54 to 20 epochs",
        ),
        ([1.0, 1.02, 1.0], [9.0, np.nan, 9.0], "1 run ended above the lowest validation loss, 2.0 % at most"),
    ],
)
def test_runs_that_end_above_their_lowest_loss(above: Any, epochs: Any, words: str) -> None:
    columns = {"loss": 2.0 * np.array(above), "lowest_loss": np.full(3, 2.0)}
    columns |= {} if epochs is None else {"epochs": np.array(epochs)}
    found = findings._past_lowest(columns)
    assert codes(found) == ["past_lowest"] * bool(words)
    assert not found or found[0].message == words
    assert findings._past_lowest({"loss": np.full(3, 2.0)}) == []


def test_warm_up() -> None:
    def found(*shares: float) -> Any:
        return findings._warmup({"tokens": D, "warmup_tokens": D * np.array(shares)})

    assert found(0.0999, 0.05, 0.0) == []
    (check,) = found(0.101, 0.05, 0.3)
    assert check.message == "2 runs warm up for more than 10 % of the tokens, up to 30 %"
    assert check.code == "long_warmup"
    assert found(np.nan, 0.05, 0.2)[0].message.startswith("1 run warm up")
    assert findings._warmup({"tokens": D}) == []


def test_one_rate_for_all_sizes() -> None:
    (check,) = findings._learning_rates({"params": N, "lr": np.full(3, 1e-3)})
    assert (check.code, check.message) == ("lr_not_tuned", "all 3 sizes train at the same learning rate 0.001")
    assert findings._learning_rates({"params": N[:2], "lr": np.full(2, 1e-3)}) == []
    assert findings._learning_rates({"params": N, "lr": np.array([1e-3, 1e-3, 2e-3])}) == []
    assert findings._learning_rates({"params": N, "lr": np.array([1e-3, np.nan, 1e-3])}) == []
    assert findings._learning_rates({"params": N}) == []
    assert findings._learning_rates({"params": N[[0, 0, 1]] * [1, 1.001, 1], "lr": np.full(3, 1e-3)}) == []


def sweep(rates: Any, losses: Any, **more: Any) -> Any:
    """Return two settings, each with these rates and losses."""
    count = len(rates)
    return {
        "params": np.repeat([1e6, 4e6], count), "tokens": np.full(2 * count, 1e8), "lr": np.tile(rates, 2),
        "loss": np.tile(losses, 2).astype(float), **more,
    }  # fmt: skip


def test_sweeps_within_settings() -> None:
    (check,) = findings._swept(sweep([1.0, 2.0, 4.0], [3, 2, 3]))
    assert check.code == "swept_settings"
    assert check.message == "2 of 2 settings of N and D hold a sweep of learning rate, and all their runs are fitted"
    assert findings._swept(sweep([1.0, 1.0], [3, 2])) == []
    batch = sweep([1.0, 1.0], [3, 2], batch_tokens=np.array([1.0, 2.0, 1.0, 1.0]))
    said = "1 of 2 settings of N and D hold a sweep of learning rate and batch size"
    assert findings._swept(batch)[0].message.startswith(said)
    assert findings._swept({"params": N, "lr": N}) == []
    apart = sweep([1.0, 2.0], [3, 2], setting_group=np.array([1.0, 2.0, 1.0, 2.0]))
    assert findings._swept(apart) == [], "other settings tell them apart"
    assert findings._settings(apart).tolist() == [0, 1, 2, 3]
    assert findings._settings(sweep([1.0, 2.0], [3, 2])).tolist() == [0, 0, 1, 1]
    near = {"params": np.array([1e6, 1e6 * (1 + 4e-7), 1e6 * (1 + 3e-6)]), "tokens": np.ones(3)}
    assert len(set(findings._settings(near).tolist())) == 2, "six digits of the logs"


@pytest.mark.parametrize(
    ("rates", "losses", "edge"),
    [
        ([1.0, 2.0, 4.0], [3, 2, 3], False),
        ([1.0, 2.0, 4.0], [2, 3, 3], True),
        ([1.0, 2.0, 4.0], [3, 3, 2], True),
        ([1.0, 1.009, 4.0], [3, 2, 3], True),  # within a per cent of the edge
        ([1.0, 1.011, 4.0], [3, 2, 3], False),
        ([1.0, 3.97, 4.0], [3, 2, 3], True),
        ([1.0, 3.95, 4.0], [3, 2, 3], False),
        ([1.0, 2.0], [2, 3], False),  # two are no sweep
        ([1.0, 2.0, 2.0], [2, 3, 3], False),
    ],
)
def test_optima_on_the_edge_of_their_sweep(rates: Any, losses: Any, edge: bool) -> None:
    found = findings._on_edge(sweep(rates, losses), "lr")
    assert codes(found) == ["optimum_on_edge"] * edge
    assert not found or found[0].message == "the best learning rate is on the edge of its sweep in 2 of 2 settings"
    batch = sweep(rates, losses)
    batch["batch_tokens"] = batch.pop("lr")
    named = findings._on_edge(batch, "batch_tokens")
    assert not named or named[0].message.startswith("the best batch size is on the edge of its sweep in 2 of 2")
    assert not named or named[0].advice.startswith("widen the sweep of batch_tokens")
    del batch["loss"]
    assert findings._on_edge(batch, "batch_tokens") == []


def test_some_settings_on_their_edge() -> None:
    one = sweep([1.0, 2.0, 4.0], [3, 2, 3])
    one["loss"][3] = 1.0
    assert findings._on_edge(one, "lr")[0].message.endswith("in 1 of 2 settings")
    assert codes(findings._learning_rates(one)) == ["swept_settings", "optimum_on_edge"]


def test_findings_of_columns_stand_together() -> None:
    extra = sweep([1.0, 2.0, 4.0], [3, 2, 1], warmup_tokens=np.full(6, 5e7), unique_tokens=np.full(6, 1e7))
    extra["flops"] = 9 * extra["params"] * extra["tokens"]
    extra["params"] = extra["params"] / 1e6
    assert codes(findings.columns(extra)) == [
        "units", "flops_not_6nd", "many_epochs", "long_warmup", "swept_settings", "optimum_on_edge",
    ]  # fmt: skip
