"""ASHA that first asks whether early values tell anything: until probes say so, it selects late in training only.

On real curves of large models successive halving can be worse than random search: where the order at a rung is not
that at the end, it keeps the wrong trials and never sees the right ones. Two thirds into training the order has mostly
settled on such curves too, so that there selection pays before anything is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sweeps.correlation import at_least, spearman, top_down
from sweeps.events import Event, Reported, Started, Unit
from sweeps.rungs import Rung, levels
from sweeps.schedulers.asha_promotion import AshaPromotion

KEPT = 0.1
"""Trust lasts while both bounds are above their thresholds less this: a verdict that flickers is the worst of both."""


@dataclass(frozen=True)
class Agreement:
    """What is known of early rungs. Correlations are None where they cannot be told, bounds -1.

    early: top-down correlation of the two highest early rungs over `passed` trials; 1 where there is only one.
    outcome: the lesser of their rank correlations with the outcome over `finished` probes.
    """

    early: float | None
    early_least: float
    passed: int
    outcome: float | None
    outcome_least: float
    finished: int


def guarded_levels(r: int, R: int, eta: int) -> tuple[int, ...]:
    """Return the rungs of ASHA up to R/2, one at 2R/3 and R [resource]; where r is above 2R/3: those of ASHA.

    Where r is above R/2 the one at 2R/3 is the first.
    """
    plain, late = levels(r, R, eta), -(-2 * R // 3)
    return (*(level for level in plain if 2 * level <= R), late, R) if r <= late < R else plain


class AshaGuarded(AshaPromotion):
    """Promotion ASHA whose rungs up to R/2 let everyone pass until they are trusted; a rung at 2R/3 always selects.

    A probe is a trial that passed those early rungs unselected. Once `probes` of them have got to the rung at 2R/3, two
    things are asked, each less `doubt` standard errors, and again whenever a probe gets on. Does the order last: the
    top-down correlation of the two highest early rungs, over all trials that came to the upper one unselected, has to
    be at least `threshold`. Is it that of the outcome: the rank correlation of each of the two with it has to be at
    least `outcome`. The outcome is the final value, and behind all of these, for those not selected, the one at 2R/3.
    Of what is given out while the rungs are trusted, `share` goes to new probes, so that a wrong verdict does not last.
    """

    def __init__(
        self,
        r: int,
        R: int,
        eta: int = 3,
        *,
        limit: int | None = None,
        probes: int = 8,
        threshold: float = 0.75,
        outcome: float = 0.3,
        doubt: float = 1.3,
        share: float = 0.0,
    ) -> None:
        super().__init__(r, R, eta, limit=limit)
        bounds_are_right = 0 <= threshold < 1 and 0 <= outcome < 1
        if probes < 4 or not bounds_are_right or doubt < 0 or not 0 <= share <= 1:
            raise ValueError(
                f"probes={probes}, threshold={threshold}, outcome={outcome}, doubt={doubt}, share={share}: at least 4 "
                "probes, a threshold and an outcome from 0 to below 1, a doubt of 0 or more and a share from 0 to 1 "
                "are needed"
            )
        self.levels = guarded_levels(r, R, eta)
        self.rungs = [Rung(level) for level in self.levels]
        self.early = sum(2 * level <= R for level in self.levels)
        self.probes, self.threshold, self.outcome, self.doubt, self.share = probes, threshold, outcome, doubt, share
        self.trusted = False
        self.selected: dict[int, int] = {}
        self.probing: dict[int, None] = {}
        self.given = 0
        self.given_to_probes = 0

    def apply(self, event: Event) -> None:
        """Take notice of an event."""
        if isinstance(event, Started) and event.unit.trial not in self.trials.lost:
            self._start(event.unit)
        super().apply(event)
        if isinstance(event, Reported) and self.early and event.resource >= self.levels[self.early - 1]:
            self._ask()

    def candidates(self) -> Iterator[Unit]:
        """Yield what was lost, probes that are due, then what ASHA wants; early rungs not trusted let all pass."""
        yield from self.trials.resumed()
        if self.trusted and self.given_to_probes < self.share * self.given:
            yield from self._due()
        for k in reversed(range(len(self.rungs) - 1)):
            passes = k < self.early and not self.trusted
            for trial in self.rungs[k].promotables(1 if passes else self.eta):
                yield Unit(trial, self.levels[k + 1], probe=passes)
        for fresh in self.trials.fresh(self.levels[0]):
            yield Unit(fresh.trial, fresh.until, probe=not self.trusted)

    def agreement(self) -> Agreement:
        """Return how far the early rungs, of which there is at least one, agree with each other and the outcome."""
        rungs = self.rungs[max(0, self.early - 2) : self.early]
        upper = rungs[-1]
        passed = [t for t in upper.of if t in rungs[0].of and self.selected.get(t, upper.level) >= upper.level]
        finished = [t for t in self.rungs[self.early].of if t not in self.selected]
        early: float | None = 1.0
        if len(rungs) > 1:
            early = top_down(*([rung.of[t][0] for t in passed] for rung in rungs))
        ranks = self._outcomes(finished)
        found = [spearman([rung.of[t][0] for t in finished], ranks) for rung in rungs]
        known = [one for one in found if one is not None]
        outcome = min(known) if len(known) == len(found) else None
        return Agreement(
            early,
            -1.0 if early is None else at_least(early, len(passed), self.doubt),
            len(passed),
            outcome,
            -1.0 if outcome is None else at_least(outcome, len(finished), self.doubt),
            len(finished),
        )

    def _outcomes(self, trials: list[int]) -> list[float]:
        """Return the rank of each of these trials' outcomes: by the final value, behind these by the one at 2R/3."""
        late, last = self.rungs[self.early].of, self.rungs[-1].of

        def outcome(trial: int) -> tuple[int, float]:
            if trial not in last:
                return (1, late[trial][0])
            final = last[trial][0]
            return (0 if math.isfinite(final) else 2, final)

        ranks = {found: rank for rank, found in enumerate(sorted({outcome(trial) for trial in trials}))}
        return [float(ranks[outcome(trial)]) for trial in trials]

    def _start(self, unit: Unit) -> None:
        """Note at which early rung [resource] a trial is first selected, and what is given out under trust."""
        at = self.trials.at.get(unit.trial, 0)
        if 0 < at < self.levels[self.early] and not unit.probe:
            self.selected.setdefault(unit.trial, at)
        if unit.probe:
            self.probing[unit.trial] = None
        if self.trusted:
            self.given += unit.until - at
            self.given_to_probes += unit.until - at if unit.probe else 0

    def _ask(self) -> None:
        """Trust the early rungs or not; what was given out is counted anew when trust begins."""
        seen = self.agreement()
        kept = KEPT if self.trusted else 0.0
        lasts, tells = seen.early_least >= self.threshold - kept, seen.outcome_least >= self.outcome - kept
        trusted = seen.finished >= self.probes and lasts and tells
        if trusted and not self.trusted:
            self.given = self.given_to_probes = 0
        self.trusted = trusted

    def _due(self) -> Iterator[Unit]:
        """Yield the next units of probes on their way through the early rungs, then the first one of a new probe."""
        for trial in self.probing:
            at = self.trials.at[trial]
            waits = trial not in self.trials.running and trial not in self.trials.failed
            if waits and trial not in self.selected and 0 < at < self.levels[self.early]:
                yield Unit(trial, next(level for level in self.levels if level > at), probe=True)
        for fresh in self.trials.fresh(self.levels[0]):
            yield Unit(fresh.trial, fresh.until, probe=True)
