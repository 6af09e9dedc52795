"""Whether forecasts hold, by how much runs scatter, and where they contradict the prior of `analysis.next`.

`python -m benchmarks.prior_conflict [--studies 40] [--scatter-studies 200]` simulates isoFLOP studies whose form holds.
Each forecasts the loss of the best size at ten times its largest budget, and there are two tables of them:

- laws drawn from the prior, or with exponents far from it, and runs that scatter by 0.4 %: forecasts with the prior
  whatever the runs say, and by the rule, which drops a prior that the runs contradict;
- laws drawn from the prior, and 6 to 40 runs that scatter by 0.2 to 2 %: forecasts that take the scatter as the 0.2 %
  of seeds, and that let the runs tell it.

They have the share of studies with the finding `prior_conflict`, the median error of the loss, half the width of the
95 % intervals, and how many of these contain the true loss. docs/analysis-choices.md rests on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from analysis.estimation import fit_problem, multistart
from analysis.estimation.objectives import Huber
from analysis.laws.sum_of_powers import SURFACE
from analysis.planning import posterior, priors, run_noise
from tests.analysis import studies
from train.spec.command_line import Parser

DESIGNS = {
    "20 runs": ((5.2e11, 1.1e12, 2e12, 5.6e12), (5.0, 10.0, 22.0, 46.0, 97.0)),
    "9 runs": ((1e12, 3e12, 1e13), (8.0, 20.0, 50.0)),
    "6 runs": ((1e12, 1e13), (8.0, 20.0, 50.0)),
    "40 runs": ((5.2e11, 1.1e12, 2e12, 5.6e12), (5.0, 7.0, 9.7, 13.0, 19.0, 26.0, 36.0, 50.0, 70.0, 97.0)),
}
"""By name: budgets [FLOPs] and tokens per parameter."""
CONFLICTS, SCATTERING = ("20 runs", "9 runs"), ("6 runs", "9 runs", "20 runs", "40 runs")
SCATTERS = (0.002, 0.005, 0.01, 0.02)
"""Standard deviations of ln loss from run to run."""
STARTS = 8
TRUTHS = (None, 0.2, 0.5, 0.65)
"""alpha and beta of the true law; None: drawn from the prior."""
NOISE, FARTHER, BEST_RATIO, FLOOR = 0.004, 10.0, 20.0, 1.7


@dataclass(frozen=True)
class Study:
    """A simulated study: its fit problem, the size and tokens of the target, and the true ln loss there."""

    problem: fit_problem.Problem
    params: float
    tokens: float
    truth: float


@dataclass(frozen=True)
class Forecast:
    """ln loss less the truth, half the width of the 95 % interval of ln loss, and whether that contains the truth."""

    error: float
    half: float
    held: bool


def law_of(exponent: float | None, top: float, generator: np.random.Generator) -> tuple[float, ...]:
    """Return E, A, B, alpha and beta of a law whose best ratio at the budget `top` [FLOPs] is 20."""
    alpha, beta, share = exponent, exponent, priors.FLOOR_SHARE[0]
    if alpha is None or beta is None:
        alpha, beta = (float(generator.normal(*priors.KNOWN[name])) for name in ("alpha", "beta"))
        share = min(share * math.exp(priors.FLOOR_SHARE[1] * generator.normal()), 0.95)
    params = math.sqrt(top / 6 / BEST_RATIO)
    rest = FLOOR * (1 / share - 1) / (alpha + beta)
    return FLOOR, rest * beta * params**alpha, rest * alpha * (top / 6 / params) ** beta, alpha, beta


def study(exponent: float | None, design: str, generator: np.random.Generator, noise: float = NOISE) -> Study:
    """Return one simulated study whose ln losses scatter by `noise`."""
    budgets, ratios = DESIGNS[design]
    law = law_of(exponent, budgets[-1], generator)
    seed = int(generator.integers(1 << 30))
    table = studies.isoflop(seed, noise=noise, law=law, budgets=budgets, ratios=ratios)
    _, a, b, alpha, beta = law
    budget = FARTHER * budgets[-1] / 6
    params = (alpha * a / (beta * b)) ** (1 / (alpha + beta)) * budget ** (beta / (alpha + beta))
    columns = (table["params"].to_numpy(), table["tokens"].to_numpy())
    problem = fit_problem.problem(SURFACE, columns, table["loss"].to_numpy(), Huber())
    return Study(problem, params, budget / params, math.log(studies.loss(law, params, budget / params)))


def forecast(one: Study, found: posterior.Posterior) -> Forecast:
    """Return the forecast of a study by its posterior."""
    mean, sd = posterior.forecast(found, found.to_logs(([one.params], [one.tokens])))
    error, half = float(mean[0]) - one.truth, 1.96 * float(sd[0])
    return Forecast(error, half, abs(error) < half)


def of_seeds(one: Study, found: posterior.Posterior) -> posterior.Posterior:
    """Return a posterior for the scatter of seeds: what the residuals are beyond that is an error of the form."""
    theta = found.basins[0].theta
    error = priors.misfit(priors.squares(one.problem, theta), one.problem.y.size, len(theta))
    return replace(found, noise=run_noise.SEEDS, misfit=max(posterior.FLOOR, error))


def said(every: list[Forecast]) -> str:
    """Return the median error and the share of intervals that hold, as columns."""
    error = 100 * float(np.median([abs(one.error) for one in every]))
    return f"{error:>12.2f} % {_held(every):>8.0%}"


def _held(every: list[Forecast]) -> float:
    return float(np.mean([one.held for one in every]))


def conflicts(count: int) -> None:
    """Print the table of laws that the prior knows and does not know."""
    print(f"{'':<30}{'':>9}{'with the prior':>23}{'by the rule':>23}")
    print(f"{'study':<10}{'alpha, beta':<20}{'finding':>9}{'error':>14}{'held':>9}{'error':>14}{'held':>9}")
    for design in CONFLICTS:
        for exponent in TRUTHS:
            generator = np.random.default_rng(0)
            fired: list[bool] = []
            before: list[Forecast] = []
            after: list[Forecast] = []
            for _ in range(count):
                one = study(exponent, design, generator)
                theta = multistart.fit_point(one.problem).theta
                met = priors.met(one.problem, theta)
                fired.append(met.chance < priors.RARE)
                for found, given in ((before, priors.prior(one.problem, theta)), (after, met)):
                    found.append(forecast(one, posterior.posterior(one.problem, STARTS, given=given)))
            truth = "from the prior" if exponent is None else f"{exponent:g}"
            print(f"{design:<10}{truth:<20}{np.mean(fired):>7.0%}  {said(before)} {said(after)}", flush=True)


def scatters(count: int) -> None:
    """Print the table of runs that scatter as seeds do, and more."""
    print(f"{'':<46}{'scatter of 0.2 %':>20}{'scatter of the runs':>30}")
    head = f"{'study':<10}{'scatter':<11}{'finding':>9}{'error':>14}"
    print(f"{head}{'half width':>13}{'held':>9}{'scatter':>10}{'half width':>13}{'held':>9}")
    for design in SCATTERING:
        for k, scatter in enumerate(SCATTERS):
            generator = np.random.default_rng([int(design.split()[0]), k])
            fired, noises, fixed, told = [], [], [], []
            for _ in range(count):
                one = study(None, design, generator, scatter)
                found = posterior.posterior(one.problem, STARTS)
                assert found.prior is not None, "a posterior of runs has one"
                fired.append(found.prior.dropped)
                noises.append(found.noise)
                told.append(forecast(one, found))
                fixed.append(forecast(one, of_seeds(one, found)))
            error = 100 * float(np.median([abs(each.error) for each in told]))
            print(
                f"{design:<10}{100 * scatter:.1f} %{'':<6}{np.mean(fired):>9.0%}{error:>12.2f} %{_wide(fixed)}"
                f"{100 * np.median(noises):>8.2f} %{_wide(told)}",
                flush=True,
            )


def _wide(every: list[Forecast]) -> str:
    return f"{100 * float(np.median([one.half for one in every])):>11.2f} %{_held(every):>9.1%}"


def main() -> None:
    """Print the tables."""
    parser = Parser(prog="python -m benchmarks.prior_conflict", description=__doc__)
    parser.add_argument("--studies", type=int, default=40, help="studies of each design and law, default 40; 0: none")
    parser.add_argument(
        "--scatter-studies", type=int, default=200, help="studies of each design and scatter, default 200; 0: none"
    )
    options = parser.parse_args()
    if options.studies:
        conflicts(options.studies)
    if options.scatter_studies:
        scatters(options.scatter_studies)


if __name__ == "__main__":
    main()
