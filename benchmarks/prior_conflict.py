"""What dropping a prior that runs contradict does to forecasts, where published laws hold and where they do not.

`python -m benchmarks.prior_conflict [--studies 40]` simulates isoFLOP studies of 20 and of 9 runs with a scatter of
0.4 %. Their laws are drawn from the prior of `analysis.next`, or have exponents far from it. Each study forecasts the
loss of the best size at ten times its largest budget: with the prior whatever the runs say, and by the rule, which
drops a prior that the runs contradict. The table has the share of studies with the finding `prior_conflict`, the median
error of the loss, and how many 95 % intervals contain the true loss. docs/analysis-choices.md rests on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.estimation import fit_problem, multistart
from analysis.estimation.objectives import Huber
from analysis.laws.sum_of_powers import SURFACE
from analysis.planning import posterior, priors
from tests.analysis import studies
from train.spec.command_line import Parser

DESIGNS = {
    "20 runs": ((5.2e11, 1.1e12, 2e12, 5.6e12), (5.0, 10.0, 22.0, 46.0, 97.0)),
    "9 runs": ((1e12, 3e12, 1e13), (8.0, 20.0, 50.0)),
}
"""By name: budgets [FLOPs] and tokens per parameter."""
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
    """ln loss less the truth, and whether the 95 % interval contains the truth."""

    error: float
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


def study(exponent: float | None, design: str, generator: np.random.Generator) -> Study:
    """Return one simulated study."""
    budgets, ratios = DESIGNS[design]
    law = law_of(exponent, budgets[-1], generator)
    seed = int(generator.integers(1 << 30))
    table = studies.isoflop(seed, noise=NOISE, law=law, budgets=budgets, ratios=ratios)
    _, a, b, alpha, beta = law
    budget = FARTHER * budgets[-1] / 6
    params = (alpha * a / (beta * b)) ** (1 / (alpha + beta)) * budget ** (beta / (alpha + beta))
    columns = (table["params"].to_numpy(), table["tokens"].to_numpy())
    problem = fit_problem.problem(SURFACE, columns, table["loss"].to_numpy(), Huber())
    return Study(problem, params, budget / params, math.log(studies.loss(law, params, budget / params)))


def forecast(one: Study, given: priors.Prior) -> Forecast:
    """Return the forecast of a study with this prior."""
    found = posterior.posterior(one.problem, 8, given=given)
    mean, sd = posterior.forecast(found, found.to_logs(([one.params], [one.tokens])))
    error = float(mean[0]) - one.truth
    return Forecast(error, abs(error) < 1.96 * float(sd[0]))


def said(every: list[Forecast]) -> str:
    """Return the median error and the share of intervals that hold, as columns."""
    error = 100 * float(np.median([abs(one.error) for one in every]))
    return f"{error:>12.2f} % {100 * float(np.mean([one.held for one in every])):>6.0f} %"


def main() -> None:
    """Print the table."""
    parser = Parser(prog="python -m benchmarks.prior_conflict", description=__doc__)
    parser.add_argument("--studies", type=int, default=40, help="studies of each design and law, default 40")
    options = parser.parse_args()
    print(f"{'':<30}{'':>9}{'with the prior':>23}{'by the rule':>23}")
    print(f"{'study':<10}{'alpha, beta':<20}{'finding':>9}{'error':>14}{'held':>9}{'error':>14}{'held':>9}")
    for design in DESIGNS:
        for exponent in TRUTHS:
            generator = np.random.default_rng(0)
            fired, before, after = [], [], []
            for _ in range(options.studies):
                one = study(exponent, design, generator)
                theta = multistart.fit_point(one.problem).theta
                met = priors.met(one.problem, theta)
                fired.append(met.chance < priors.RARE)
                before.append(forecast(one, priors.prior(one.problem, theta)))
                after.append(forecast(one, met))
            truth = "from the prior" if exponent is None else f"{exponent:g}"
            print(f"{design:<10}{truth:<20}{np.mean(fired):>7.0%}  {said(before)} {said(after)}", flush=True)


if __name__ == "__main__":
    main()
