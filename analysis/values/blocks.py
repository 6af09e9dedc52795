"""One approach's law and all that is needed to judge it, as frozen values: the blocks that `fit.json` is made of.

The fields are described in :mod:`analysis.values.study_result`, where they stand together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from analysis.text import numbers

Interval = tuple[float, float]


@dataclass(frozen=True)
class Check:
    """A finding about the fit: a stable code, what was found, what to do about it."""

    code: str
    message: str
    advice: str
    level: str = "warning"

    def __str__(self) -> str:
        """Return the finding in one line: level, code, what was found, what to do."""
        return f"{self.level:<8} {self.code}: {self.message}. {self.to_do}"

    @property
    def to_do(self) -> str:
        """The advice as a sentence; an option that it begins with stays as it is typed."""
        advice = self.advice.strip().rstrip(".")
        if "=" not in advice.split(" ", 1)[0]:
            advice = advice[:1].upper() + advice[1:]
        return f"{advice}." if advice else ""


NOT_DECAYED = "the learning rate was constant to the end, so the loss has not come down"
"""Why a run at a constant learning rate takes no part in a fit: the trunk of `search=trunk_and_branch`, as a rule."""


@dataclass(frozen=True)
class Dropped:
    """A row that took no part in a fit, and why."""

    key: str
    code: str
    reason: str


@dataclass(frozen=True)
class Identified:
    """Whether the data identify a constant; if not, the one-sided limit (`side` "upper": at most `limit`)."""

    identified: bool
    reason: str = ""
    side: str | None = None
    limit: float | None = None

    def sentence(self, name: str) -> str:
        """Return what is said of a constant that is not: "E is not identified: at most 1.3 (its profile is flat)"."""
        return f"{name} is not identified{self._bound(': ')} ({self.reason})"

    def phrase(self, name: str) -> str:
        """Return the same among several constants: "E, at most 1.3 (its profile is flat)"."""
        return f"{name}{self._bound(', ')} ({self.reason})"

    def _bound(self, before: str) -> str:
        limit = numbers.one_sided(self.side, self.limit, lambda value: f"{value:.4g}")
        return f"{before}{limit}" if limit else ""


@dataclass(frozen=True)
class Basin:
    """A distinct local minimum: summed objective, share of the starts that ended in it, constants."""

    objective: float
    share: float
    params: dict[str, float]


@dataclass(frozen=True)
class Optimizer:
    """Evidence of convergence; `gradient_norm` is relative to the objective's own scale."""

    method: str
    starts: int
    agree_share: float
    gradient_norm: float
    converged: bool
    basins: tuple[Basin, ...] = ()


def agreement(found: Optimizer) -> str:
    """Return how many starts ended at the lowest minimum, and how many distinct ones there are."""
    many = f"{numbers.percent(found.agree_share)} of {found.starts} starts agree"
    if not found.agree_share:
        many = f"none of {found.starts} starts ended at the lowest minimum that was found"
    return f"{many}; {len(found.basins)} basins"


@dataclass(frozen=True)
class Kinds:
    """What the numbers mean; a fit refuses to mix kinds."""

    params: str
    flops: str
    loss: str
    tokens: str = "training tokens"
    tokenizer: str = ""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One approach's law and all that is needed to judge it; see the module's text for the fields."""

    form: str
    approach: str
    loss_function: str
    status: str = "ok"
    reason: str = ""
    objective: float | None = None
    params: dict[str, float] = field(default_factory=dict)
    derived: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, Interval | None] = field(default_factory=dict)
    identified: dict[str, Identified] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    rows_used: int = 0
    rows_dropped: tuple[Dropped, ...] = ()
    optimizer: Optimizer | None = None


STATUS = {
    "minimum": "minimum inside the sizes swept",
    "edge": "no minimum inside",
    "inverted": "curves downward",
    "flat": "too flat",
    "negative": "falls below zero",
    "too_few": "too few runs",
}
"""What became of a budget's valley, in words."""


@dataclass(frozen=True)
class Valley:
    """The runs of one budget and the parabola of their losses over ln N."""

    flops_budget: float
    flops: float
    status: str
    reason: str
    points: int
    keys: tuple[str, ...]
    params_range: Interval
    center: float
    coefficients: tuple[float, ...] = ()
    params_opt: float | None = None
    params_interval: Interval | None = None
    tokens_opt: float | None = None
    tokens_interval: Interval | None = None
    loss_opt: float | None = None
    loss_interval: Interval | None = None


@dataclass(frozen=True)
class PowerLaw:
    """y(C) = coefficient * (C / reference_flops)^exponent, from a log-log regression over the valleys."""

    coefficient: float
    exponent: float
    reference_flops: float
    coefficient_interval: Interval | None
    exponent_interval: Interval | None
    bse: float | None
    points: int
    df_resid: int


@dataclass(frozen=True, kw_only=True)
class Valleys(Block):
    """isoFLOP valleys: a parabola per budget, and the exponents of their minima."""

    valleys: tuple[Valley, ...] = ()
    exponents: dict[str, PowerLaw] = field(default_factory=dict)


@dataclass(frozen=True)
class FrontierPoint:
    """The lowest loss that a budget buys."""

    flops: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Frontier(Block):
    """L(C) = L_inf + a * (C / reference_flops)^-alpha along the compute-optimal frontier."""

    reference_flops: float | None = None
    points: tuple[FrontierPoint, ...] = ()
    points_are: str = "minima of the valleys"


@dataclass(frozen=True)
class Fits:
    """One block for each approach."""

    valleys: Valleys
    surface: Block
    frontier: Frontier
    law: Block | None = None
    envelope: Block | None = None


@dataclass(frozen=True)
class CurveScore:
    """How well a law says a curve: R2, mean absolute error, mean and worst relative error; `fitted` if it was seen."""

    run: str
    size: str
    fitted: bool
    points: int
    r2: float
    mae: float
    mean_relative: float
    worst_relative: float
    final_relative: float


@dataclass(frozen=True)
class Clash:
    """A budget [FLOPs] that was run, its best size and interval by its valley, and the best size by the surface."""

    budget: float
    valley: float
    interval: Interval
    surface: float
