"""Next runs: the expected drop against refitting, batches within budget, and configs that study.sweep takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import analysis as sa
from analysis.estimation import fit_problem
from analysis.estimation.objectives import Squared
from analysis.inputs.rows import from_csv
from analysis.laws.sum_of_powers import SURFACE
from analysis.next import main
from analysis.next import text as text_
from analysis.planning import next_runs as upcoming
from analysis.planning import posterior as design
from tests.analysis import studies


def posterior(noise: float = 0.003, misfit: float | None = None) -> design.Posterior:
    table = studies.isoflop(3, noise=noise)
    columns = [table["params"].to_numpy(), table["tokens"].to_numpy()]
    found = design.posterior(fit_problem.problem(SURFACE, columns, table["loss"].to_numpy(), Squared()))
    return found if misfit is None else design.Posterior(
        found.form, found.centres, found.x, found.basins, found.noise, misfit, found.root
    )  # fmt: skip


def test_without_misfit_the_drop_is_that_of_linear_regression() -> None:
    found = posterior(misfit=1e-9)
    theta = found.basins[0].theta
    assert found.root is not None
    targets, pool = found.to_logs(([1e8], [1e9])), found.to_logs((np.geomspace(1e5, 1e7, 5), np.full(5, 1e8)))
    seen = found.form.jacobian(theta[None], found.x)[0]
    aim = found.form.jacobian(theta[None], targets)[0][0]
    precision = seen.T @ seen / found.noise**2 + np.linalg.inv(found.root @ found.root.T)
    before = aim @ np.linalg.solve(precision, aim)
    for i, drop in enumerate(design._state(found, pool, targets).drops()):
        row = found.form.jacobian(theta[None], pool[:, [i]])[0]
        after = aim @ np.linalg.solve(precision + row.T @ row / found.noise**2, aim)
        assert drop == pytest.approx(before - after, rel=1e-4)


def test_a_run_at_the_target_tells_most_and_a_batch_stays_within_its_budget() -> None:
    found = posterior()
    params, tokens = np.array([3e5, 1e6, 3e6, 1e7]), np.array([1e8, 3e8, 1e9, 3e9])
    pool, targets = found.to_logs((params, tokens)), found.to_logs(([1e7], [3e9]))
    assert int(np.argmax(design._state(found, pool, targets).drops())) == 3
    costs = 6 * params * tokens
    for power in (None, 1.0, 0.0):
        chosen = design.batch(found, pool, targets, costs, budget=costs[:3].sum(), count=9, power=power)
        assert sum(c.cost for c in chosen) <= costs[:3].sum() * (1 + 1e-9)
        assert all(c.after < c.before for c in chosen)
        assert len({c.index for c in chosen}) == len(chosen)
    assert design.batch(found, pool, targets, costs, budget=1.0, count=3, power=None) == []


def test_basins_that_disagree_are_told_apart_where_they_differ() -> None:
    found = posterior(noise=0.002, misfit=1e-9)
    one = found.basins[0]
    other = one.theta.copy()
    other[0] -= 0.2  # another floor E: alike for small runs, apart for large ones
    both = design.Posterior(
        found.form,
        found.centres,
        found.x,
        (design.Basin(one.theta, 0.5), design.Basin(other, 0.5)),
        found.noise,
        1e-9,
        found.root,
    )
    pool, targets = found.to_logs(([1e4, 1e9], [1e5, 1e11])), found.to_logs(([1e10], [1e12]))
    means = both.means(targets)[:, 0]
    spread = float(np.var(means))
    single = design._state(found, pool, targets).drops()
    told = design._state(both, pool, targets).drops() - single
    assert told[1] > 0.9 * spread
    assert told[1] > told[0]


def test_the_choice_beats_random_runs_of_the_same_cost() -> None:
    found = posterior()
    generator = np.random.default_rng(0)
    flops = 10 ** generator.uniform(11, 13.5, 80)
    params = np.sqrt(flops / 6 / 10 ** generator.uniform(0.3, 2, 80))
    pool, targets = found.to_logs((params, flops / 6 / params)), found.to_logs(([2e7], [4e8]))
    budget = 0.1 * flops.sum()
    chosen = design.batch(found, pool, targets, flops, budget=budget, count=80, power=None)
    ends = []
    for _ in range(20):
        order = generator.permutation(80)
        kept = order[np.cumsum(flops[order]) <= budget]
        added = np.concatenate([found.x, pool[:, kept]], axis=1)
        after = design.Posterior(found.form, found.centres, added, found.basins, found.noise, found.misfit, found.root)
        ends.append(float(design.forecast(after, targets)[1][0]) ** 2)
    assert chosen[-1].after < np.quantile(ends, 0.1)


def test_the_command_writes_what_study_sweep_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The config folder is composed by Hydra as it is: every run of it is a point, with its shape and its tokens."""
    from study.sweep import __main__

    folder = tmp_path / "runs" / "isoflop"
    studies.write_study(folder, studies.isoflop(1, noise=0.003))
    out = tmp_path / "next"
    given = [f"runs={folder}", f"out={out}", "count=3", "simulate=8", "budget=4e13"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "simulated" in said
    assert f"--config-dir {out}" in said
    points = sorted((out / "point").glob("*.yaml"))
    assert 1 <= len(points) <= 3
    text = (out / "next.yaml").read_text()
    assert 'name: "isoflop"' in text
    assert "tokenizer: " in text, "what the study's points share is taken over"
    runs = [f"paths.runs={tmp_path / 'runs'}", "data=bytes", "data.name=bytes", "cluster=local", "dry_run=true"]
    # The made-up points hold only what the analysis reads; the schema's defaults stand in for the rest.
    head, _, tail = text.partition("data:")
    (out / "next.yaml").write_text(head + tail[tail.index("search:") :])
    assert __main__.main(["--config-dir", str(out), "--config-name", "next", *runs]) == 0
    shown = capsys.readouterr().out
    assert f"{len(points)} points" in shown or "1 point" in shown
    for path in points:
        width = next(line.split(": ")[1] for line in path.read_text().splitlines() if "width" in line)
        assert f"{width} x" in shown


@pytest.mark.parametrize(
    ("rows", "given", "message"),
    [
        (3, [], "at least 4 runs of 2 sizes"),
        (20, ["budget=1"], "no candidate fits"),
        (20, ["count=0"], "count=0: a whole number, 1 or more is needed"),
        (20, ["columns=params:params,tokens:tokens,flops:flops,loss:same"], "every row has the same loss, 2.5"),
        (20, ["form=kaplan"], "form=kaplan is not allowed: one of chinchilla"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, rows: int, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    studies.isoflop(1, noise=0.003).iloc[:rows].assign(same=2.5).to_csv(tmp_path / "a.csv", index=False)
    assert main([f"runs={tmp_path / 'a.csv'}", f"out={tmp_path}", "simulate=0", *given]) == 2
    assert message in capsys.readouterr().err


def test_the_forecast_names_the_priors_that_it_uses() -> None:
    table = from_csv(Path("docs/example-runs.csv"))
    said = text_(upcoming.next_runs(table, count=1))
    lowest = 0.65 * float(table["loss"].min())
    assert f"prior     alpha 0.34 +- 0.06, beta 0.32 +- 0.06, E {lowest:.3g} within a factor of 1.35" in said
    free = text_(upcoming.next_runs(table, count=1, form="farseer"))
    assert "\nprior  " not in free
    for each in (said, free):
        assert "from run to run (prior: what seeds do, 0.2 % within a factor of 4; the runs add to it)\n" in each
        assert "(prior: 1 %, counted as 3 runs and alike within a factor of 7 of N and D; the runs add to it)\n" in each


def test_a_target_that_the_runs_have_reached_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Next runs are chosen for a forecast: what was run already needs none."""
    table = from_csv(Path("docs/example-runs.csv"))
    top = float(table["flops"].max())
    for target in (top, 0.01 * top):
        with pytest.raises(ValueError, match=r"reach .* FLOPs already.*give target= above that.*plan budget="):
            upcoming.next_runs(table, target=target, count=1)
    asked = ["runs=docs/example-runs.csv", "target=1", "simulate=0"]
    assert main(asked) == 2
    assert "target=1: runs reach" in capsys.readouterr().err
    assert upcoming.next_runs(table, target=1.5 * top, count=1).target == pytest.approx(1.5 * top)


def test_the_same_question_has_the_same_answer(tmp_path: Path) -> None:
    studies.isoflop(4, noise=0.003).to_csv(tmp_path / "a.csv", index=False)
    runs = from_csv(tmp_path / "a.csv")
    found = [upcoming.next_runs(runs, count=3, simulate=4, seed=1) for _ in range(2)]
    assert found[0] == found[1]


def test_candidates_stay_within_the_ratios_asked_for() -> None:
    table = from_csv(Path("docs/example-runs.csv"))
    wide = upcoming.next_runs(table, count=6)
    found = upcoming.next_runs(table, count=6, ratios=(5.0, 80.0))
    assert all(5.0 <= run.tokens / run.params <= 80.0 for run in found.runs)
    assert not all(5.0 <= run.tokens / run.params <= 80.0 for run in wide.runs)
    assert found.target_ratio == wide.target_ratio
    ratio = table["tokens"] / table["params"]
    assert found.done_ratios == pytest.approx((ratio.min(), ratio.max()))


def test_runs_that_contradict_published_laws_are_forecast_without_them() -> None:
    """Their prior would draw the forecast below what every interval of the runs allows."""
    law = (1.18, 293.0, 2300.0, 0.655, 0.635)
    budgets, ratios = (5.2e11, 1.1e12, 2e12, 5.6e12), (5.0, 10.0, 22.0, 46.0, 97.0)
    runs = sa.load(studies.isoflop(1, noise=0.004, law=law, budgets=budgets, ratios=ratios))
    found = upcoming.next_runs(runs, target=5.6e13, count=1)
    size = np.geomspace(1e4, 1e8, 20_000)
    truth = float(studies.loss(law, size, 5.6e13 / 6 / size).min())
    low, high = found.between(found.sd_now)
    assert low < truth < high
    assert low < found.loss < high
    assert found.without is not None
    assert high - low > 0.5 * (found.without[1] - found.without[0])
    assert [check.code for check in found.checks] == ["prior_conflict"]
    said = text_(found)
    assert said.startswith("warning  prior_conflict: the runs contradict published laws: alpha 0.")
    assert "\nprior " not in said
    assert "\nresampled " in said
