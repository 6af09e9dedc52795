"""Which runs to do next: those that tell most about the forecast, for their compute.

The posterior is a mixture over the basins of the multi-start, each a Gaussian; the acquisition is the expected drop of
the variance of ln L at the target, within basins (V-optimal) and between them (arXiv 2604.22753).

>>> from analysis import frame
>>> from analysis.planning.next_runs import next_runs
>>> from pathlib import Path
>>> found = next_runs(frame.from_csv(Path("docs/example-runs.csv")), count=2)
>>> len(found.runs), found.sd_after < found.sd_now
(2, True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from analysis.estimation import fit_problem
from analysis.planning.larger import BARELY, Larger, larger
from analysis.text import numbers
from analysis.text.preformatted import Preformatted

if TYPE_CHECKING:
    import pandas as pd

    from analysis.approaches.cost import Cost
    from analysis.approaches.loss_laws import Law
    from analysis.inputs.dataset import Array, Rows
    from analysis.planning.candidates import Candidates
    from analysis.planning.posterior import Choice, Posterior
    from analysis.values.blocks import Check, Interval


TELLS = 0.9
"""A grid tells something where it narrows the forecast to this share of what it is now, or less."""


@dataclass(frozen=True)
class Proposed:
    """A run to do: parameters, tokens, FLOPs, shape; the forecast's sd of ln loss at the target before and after it.

    `drop_per_flop` is the drop of the variance of ln loss per FLOP.
    """

    params: float
    tokens: float
    flops: float
    width: int | None
    layers: int | None
    before: float
    after: float
    drop_per_flop: float


@dataclass(frozen=True)
class Expected:
    """An error that the forecast expects: its sd of ln loss by the runs and its prior, and the prior in words."""

    sd: float
    prior: str


@dataclass(frozen=True)
class Share:
    """What a simulation found: the chosen runs reach the grid's interval with `share` of its FLOPs (None: not at all).

    `sd_now`, `sd_grid`, `sd_chosen`: sd of ln loss at the target over simulated studies.
    """

    share: float | None
    runs: int
    grid_runs: int
    grid_flops: float
    sd_now: float
    sd_grid: float
    sd_chosen: float
    studies: int


@dataclass(frozen=True, repr=False)
class Next(Preformatted):
    """The proposal: runs in order of choice, target [FLOPs], its loss, the sd of ln of that now and after.

    `print` shows it as `python -m analysis.next` does.

    `loss` is that of the law through the runs, which analysis.plan gives for this budget too; `expected` is the mean of
    the forecast, which priors from published laws draw to their own exponents: `prior` names them in words ("" where
    there are none, or the runs contradict them). Intervals lie around `expected`, as the sd does: around the law of a
    few runs they would miss the truth. `scatter` is the error of a run, from seeds and rounding, and `form_error` that
    of the law's form: both have a prior also where `prior` is empty. `without` is the 95 % interval of the loss by
    resamples of the runs alone, as analysis.plan gives it for this budget (None where it has none). `larger` is the
    smallest single run that would narrow the forecast much, looked for where the proposed ones barely do; `checks` are
    findings about the rows and the prior.
    """

    runs: tuple[Proposed, ...]
    target: float
    target_params: float
    loss: float
    sd_now: float
    sd_after: float
    basins: int
    simulation: Share | None
    expected: float = math.nan
    prior: str = ""
    target_ratio: float = math.nan
    done_ratios: tuple[float, float] = (math.nan, math.nan)
    loss_unit: str = "nats per token"
    larger: Larger | None = None
    without: Interval | None = None
    checks: tuple[Check, ...] = ()
    unadvised: str = ""
    scatter: Expected | None = None
    form_error: Expected | None = None

    @property
    def barely(self) -> bool:
        """Whether the proposed runs leave the interval about as wide as it is."""
        return bool(self.runs) and self.sd_after > BARELY * self.sd_now

    @property
    def middle(self) -> float:
        """The loss that intervals lie around: that of the forecast, where there is one."""
        return self.expected if math.isfinite(self.expected) else self.loss

    def between(self, sd: float) -> tuple[float, float]:
        """Return the 95 % interval of the loss for this sd of ln loss."""
        return self.middle * math.exp(-1.96 * sd), self.middle * math.exp(1.96 * sd)

    def half_width(self, sd: float) -> float:
        """Return half the width of the 95 % interval of the loss, in its unit, for this sd of ln loss."""
        return self.middle * math.sinh(1.96 * sd)

    @property
    def frame(self) -> pd.DataFrame:
        """The runs as a table, in order of choice: the fields of `Proposed`."""
        import pandas as pd

        return pd.DataFrame([asdict(run) for run in self.runs], columns=[one.name for one in fields(Proposed)])

    def __repr__(self) -> str:
        """Return how many runs, their compute and what they bring, in one line."""
        from analysis.planning.next_text import line

        return line(self)

    def __str__(self) -> str:
        """Return the proposal as lines for a terminal."""
        from analysis.planning.next_text import text

        return text(self)


def next_runs(
    frame: pd.DataFrame,
    *,
    target: float | None = None,
    budget: float | None = None,
    largest: float | None = None,
    count: int = 8,
    power: float | None = None,
    form: str = "chinchilla",
    simulate: int = 0,
    seed: int = 0,
    ratios: tuple[float, float] | None = None,
) -> Next:
    """Return the runs that tell most about the loss at a target budget, in the order in which they are chosen.

    Parameters
    ----------
    frame : DataFrame
        A tidy frame of the runs done (see :mod:`analysis.inputs.frame`).
    target, budget, largest : float, optional
        Budget to forecast, above every run's compute; compute of all next runs and of the largest one [FLOPs].
    count : most runs to propose
    power : candidates are ranked by drop / FLOPs^power; without it the best of several powers is taken
    ratios : least and most tokens per parameter of candidates; without them 1 to 3000, and what the runs have
    simulate : simulated studies for the share of a grid's budget that reaches the same interval

    Raises
    ------
    ValueError
        The target is not beyond the runs, there are too few of them or more than 2,500, all have one loss, or no
        candidate fits into the budget.
    """
    from analysis.diagnostics import at_rows
    from analysis.inputs.frame import used
    from analysis.inputs.large import refuse_weighed
    from analysis.planning import grid_share, posterior, priors, run_noise, without_prior

    if count < 1:
        raise ValueError(f"count={count}: the most runs to propose, 1 or more")
    refuse_weighed(frame, 1)
    rows = used(frame)
    top = float(rows.flops.max())
    setting = _setting(frame, rows, form, _target(target, top), largest or budget or top, ratios=ratios)
    found, pool, aims = setting.posterior, setting.candidates, setting.aims
    places = found.to_logs((pool.params, pool.tokens))
    choices = posterior.batch(found, places, aims, pool.flops, budget=budget or 2 * top, count=count, power=power)
    mean, spread = posterior.forecast(found, aims[:, :1])
    now = choices[0].before if choices else float(spread[0]) ** 2
    checks = at_rows.findings(frame, form)
    without, unadvised = without_prior.interval(frame, rows, form, setting.target, checks)
    given = found.prior
    assert given is not None, "a posterior of runs has one"
    reached = math.sqrt(choices[-1].after if choices else now)
    return Next(
        runs=tuple(_proposed(pool, choice) for choice in choices),
        target=setting.target,
        target_params=setting.target_params,
        loss=setting.loss,
        sd_now=math.sqrt(now),
        sd_after=reached,
        basins=len(found.basins),
        simulation=grid_share.simulated(setting, rows, simulate, seed) if simulate else None,
        expected=np_exp(float(mean[0])),
        prior="" if given.dropped else priors.words(form, float(rows.loss.min())),
        target_ratio=setting.target_tokens / setting.target_params,
        loss_unit=str(frame.loc[frame["used"], "loss_unit"].iloc[0]),
        done_ratios=(float((rows.tokens / rows.params).min()), float((rows.tokens / rows.params).max())),
        checks=(*checks, *priors.findings(given, setting.constants)),
        without=without,
        unadvised=unadvised,
        scatter=Expected(found.noise, run_noise.words()),
        form_error=Expected(found.misfit, posterior.form_words()),
        larger=None
        if reached <= BARELY * math.sqrt(now)
        else larger(
            found,
            aims,
            lambda level: _offered(frame, setting, level),
            between=(float(pool.flops.max()), setting.target),
            now=math.sqrt(now),
        ),
    )


def _offered(frame: pd.DataFrame, setting: Setting, level: float) -> Candidates:
    """Return the candidates of one budget [FLOPs], which may be larger than was asked for."""
    import numpy as np

    from analysis.planning import candidates

    best = _best(setting.law, setting.price, level, setting.sizes, setting.own_ratio)
    sizes = candidates.family(frame, setting.params_kind, best * candidates.FACTOR)
    return candidates.cross(sizes, setting.price, np.array([level]), np.array([best]), setting.ratios)


def _target(asked: float | None, top: float) -> float:
    """Return the budget to forecast [FLOPs], by default ten times that of the largest run; ValueError below it."""
    if asked is not None and asked <= top:
        raise ValueError(
            f"target={asked:g}: runs reach {numbers.scientific(top, 3)} FLOPs already, and next runs are chosen for a "
            f"forecast beyond them; give target= above that (default {numbers.scientific(10 * top, 3)}), or ask "
            f"python -m analysis.plan budget={asked:g} what the law says there"
        )
    return asked or 10 * top


def _proposed(pool: Candidates, choice: Choice) -> Proposed:
    size = pool.sizes[choice.index]
    return Proposed(
        float(pool.params[choice.index]), float(pool.tokens[choice.index]), choice.cost, size.width, size.layers,
        math.sqrt(choice.before), math.sqrt(choice.after), (choice.before - choice.after) / choice.cost,
    )  # fmt: skip


def np_exp(value: float) -> float:
    """Return e to this power, infinity where that overflows."""
    return math.exp(value) if value < 700 else math.inf


@dataclass(frozen=True)
class Setting:
    """What is asked: the posterior, candidates, places of the target (k, t), and the grid that a study would run.

    `law`, `price`, `sizes` (least and most parameters run), `params_kind`, `ratios` and `own_ratio` (tokens per
    parameter of runs that cannot tell the best size) make further candidates. `constants` are those of the law.
    """

    posterior: Posterior
    problem: Any
    candidates: Candidates
    grid: Candidates
    aims: Array
    target: float
    target_params: float
    target_tokens: float
    loss: float
    law: Law
    price: Cost
    sizes: tuple[float, float]
    params_kind: str
    ratios: tuple[float, float]
    own_ratio: float | None = None
    constants: Mapping[str, float] = field(default_factory=dict)


def _setting(
    frame: pd.DataFrame, rows: Rows, form: str, target: float, largest: float, *, ratios: tuple[float, float] | None
) -> Setting:
    import numpy as np

    from analysis.approaches import loss_laws
    from analysis.approaches.cost import cost
    from analysis.estimation import multistart
    from analysis.estimation.objectives import Huber
    from analysis.inference import refusals
    from analysis.laws.registry import FORMS
    from analysis.planning import candidates, posterior

    if len(rows) < 4 or len(np.unique(rows.size)) < 2:
        raise ValueError(
            f"{numbers.counted(len(rows), 'run')} of {numbers.counted(len(np.unique(rows.size)), 'size')}: the "
            "posterior needs at least 4 runs of 2 sizes; begin with a small isoFLOP study (study=smoke)"
        )
    refusals.refuse_constant("loss", rows.loss)
    law = FORMS[form]
    problem = fit_problem.problem(law, (rows.params, rows.tokens), rows.loss, Huber())
    found = posterior.posterior(problem)
    price, sizes = cost(rows), (float(rows.params.min()), float(rows.params.max()))
    point = multistart.fit_point(problem)
    on = loss_laws.Fitted(law, point.theta[None], problem.centres, price)
    low = float(rows.flops.min())
    if largest < low / 30:
        raise ValueError(
            f"no candidate fits into {numbers.flops(largest, 3)}, less than a thirtieth of the smallest run "
            f"({numbers.scientific(low, 3)}): give a larger budget= or largest="
        )
    levels = np.geomspace(min(low, largest / 2), largest, candidates.LEVELS)
    own = _own_ratio(rows, len(law.names))
    best = np.array([_best(on, price, float(level), sizes, own) for level in levels])
    middle = _best(on, price, target, sizes, own)
    around = middle * np.array([1.0, 0.5, 2.0])
    tokens = target / np.exp(price.log_per_token(np.log(around))[0])
    kind = str(frame.loc[frame["used"], "params_kind"].iloc[0])
    offered = candidates.family(frame, kind, float(best.max()) * candidates.FACTOR)
    limits = ratios or candidates.ratios(frame)
    every = candidates.cross(offered, price, levels, best, limits)
    if not len(every):
        raise ValueError(
            f"no size that can be built comes within {candidates.FACTOR:g} times of the best at up to "
            f"{numbers.flops(largest, 3)}, at {limits[0]:.3g} to {limits[1]:.3g} tokens per parameter: give another "
            "largest=, budget= or ratios="
        )
    four = np.geomspace(max(low, largest / 300), largest, 5)
    middles = np.array([_best(on, price, float(level), sizes, own) for level in four])
    grid = candidates.grid(offered, price, four, middles, limits if ratios is None else candidates.ratios(frame))
    loss = _loss(on, price, target, middle)
    return Setting(
        found, problem, every, grid, found.to_logs((around, tokens)), target, middle, float(tokens[0]), loss,
        on, price, sizes, kind, limits, own, dict(zip(law.names, map(float, point.constants), strict=True)),
    )  # fmt: skip


def _loss(on: Law, price: Any, budget: float, size: float) -> float:
    """Return the law's loss for this size at this budget [FLOPs]: what analysis.plan says of it too."""
    import numpy as np

    at = np.array([math.log(size)])
    return float(on.loss(at, math.log(budget) - price.log_per_token(at)[0])[0])


def _own_ratio(rows: Rows, constants: int) -> float | None:
    """Return the runs' tokens per parameter where they cannot tell the best size: too few, or all at one ratio."""
    import numpy as np

    from analysis.inputs.dataset import one_ratio

    few = float(np.median(rows.tokens / rows.params)) if len(rows) <= constants else None
    return few or one_ratio(rows.params, rows.tokens)


def _best(on: Law, price: Any, budget: float, sizes: tuple[float, float], own: float | None = None) -> float:
    """Return the law's best size of a budget; where it has none, that of 20 tokens per parameter, or of the `own`."""
    import numpy as np

    from analysis.approaches import optimum

    rule = math.sqrt(budget / 6.0 / (own or 20.0))
    if own is not None:
        return rule
    found = float(np.exp(optimum.training_only(on, price, budget, sizes).log_params[0]))
    return found if math.isfinite(found) and rule / 30 < found < rule * 30 else rule
