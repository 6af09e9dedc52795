"""What a rule of recommendation costs: best sizes of simulated isoFLOP studies, by what the runs identify.

`python -m benchmarks.advice_rule [--seeds 40]` simulates studies of 20 runs at four budgets: three laws, runs that
differ by 0.3, 0.5 or 1 %, so many seeds of each. Every study is asked for N* at ten times its largest budget. The table
sorts the studies by what they identify and has, for each answer, the root mean square of ln N* less the truth, and how
many 95 % intervals contain the true N* and the true loss. docs/analysis-choices.md rests its rule on this.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from analysis.approaches import compute_optimal, frontier, parametric, valleys
from analysis.diagnostics import qualify
from analysis.inference.fit_law import fit_law
from analysis.planning import advice, recommend
from analysis.values.blocks import Block
from analysis.values.study_result import Proposal
from tests.analysis import studies
from train.spec.command_line import Parser

LAWS = {
    "small": ((1.9, 60.0, 110.0, 0.33, 0.30), (4e11, 1.2e12, 4e12, 1.3e13)),
    "big": ((1.7, 400.0, 900.0, 0.34, 0.28), (1e17, 3e17, 1e18, 3e18)),
    "steep": ((1.8, 120.0, 900.0, 0.30, 0.38), (1e17, 3e17, 1e18, 3e18)),
}
"""By name: E, A, B, alpha and beta, and the budgets [FLOPs]."""
NOISES = (0.003, 0.005, 0.01)
RESAMPLES = 200
FEWER = "chinchilla_tied"
"""A law of fewer constants, which looks identified where the chosen one is not."""


@dataclass(frozen=True)
class Answer:
    """One answer of one study: what the study identifies, who answers, ln N* less the truth, what intervals contain."""

    study: str
    by: str
    error: float
    size_held: bool | None
    loss_held: bool | None


def best_size(law: tuple[float, ...], budget: float) -> float:
    """Return N* of a Chinchilla law where C = 6 N D (Hoffmann et al., 2022, equation 4)."""
    _, a, b, alpha, beta = law
    return float((alpha * a / (beta * b)) ** (1 / (alpha + beta)) * (budget / 6) ** (beta / (alpha + beta)))


def answers(name: str, noise: float, seed: int) -> Iterator[Answer]:
    """Yield the answers of one simulated study."""
    law, budgets = LAWS[name]
    middle = math.sqrt(budgets[0] * budgets[-1])
    ratio = middle / 6 / best_size(law, middle) ** 2
    ratios = tuple(ratio * factor for factor in (1 / 16, 1 / 4, 1, 4, 16))
    rows = studies.as_rows(studies.isoflop(seed, noise=noise, law=law, budgets=budgets, ratios=ratios))
    surface, fit = parametric.surface(rows, {**parametric.PLAIN, "resamples": RESAMPLES})
    assert fit is not None and not isinstance(surface, Block), "twenty runs of five sizes give a surface"
    minima = valleys.fit(rows, resamples=RESAMPLES, seed=0)
    budget = 10 * budgets[-1]
    truth = best_size(law, budget)
    loss = float(studies.loss(law, truth, budget / 6 / truth))

    lacks, valleys_lack = qualify.lacking(fit, rows), advice.valleys_lack(minima)
    study = "every constant identified"
    if lacks:
        study = "not identified, valleys identified" if not valleys_lack else "neither identified"

    def answer(study: str, by: str, found: Proposal | None) -> Iterator[Answer]:
        if found is not None:
            ends, losses = found.intervals["params"], found.intervals["loss"]
            yield Answer(
                study,
                by,
                math.log(found.params / truth),
                None if ends is None else ends[0] < truth < ends[1],
                None if losses is None else losses[0] < loss < losses[1],
            )

    yield from answer(study, "law", recommend.by_surface(surface, rows, budget))
    if lacks:
        if not valleys_lack:
            by_valleys = recommend.by_valleys(minima, frontier.fit(rows, minima), None, budget)
            yield from answer(study, "valleys", by_valleys)
        fewer = fit_law(rows, FEWER, resamples=RESAMPLES // 2)
        if not qualify.lacking(fewer, rows):
            priced, price, sizes = compute_optimal.priced(fewer, rows)
            of_fewer = compute_optimal.by_law(priced, price, budget, sizes)
            yield from answer(f"not identified, {FEWER} qualifies", FEWER, of_fewer)


def share(values: list[bool | None]) -> str:
    """Return how many of the intervals there are hold, as a percentage."""
    known = [value for value in values if value is not None]
    return f"{100 * sum(known) / len(known):.0f} %" if known else "-"


def main() -> None:
    """Print the table."""
    parser = Parser(prog="python -m benchmarks.advice_rule", description=__doc__)
    parser.add_argument("--seeds", type=int, default=40, help="studies of each law and noise, default 40")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    groups: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    for name in LAWS:
        for noise in NOISES:
            for seed in range(options.seeds):
                for found in answers(name, noise, seed):
                    groups[found.study, found.by].append(found)
    print(f"{'studies':<46}{'answer':<18}{'number':>7}{'error of N*':>13}{'N* held':>9}{'loss held':>11}")
    for (study, by), group in sorted(groups.items()):
        error = math.sqrt(np.mean([one.error**2 for one in group]))
        sizes, losses = share([one.size_held for one in group]), share([one.loss_held for one in group])
        print(f"{study:<46}{by:<18}{len(group):>7}{error:>13.0%}{sizes:>9}{losses:>11}")


if __name__ == "__main__":
    main()
