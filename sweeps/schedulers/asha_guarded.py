"""ASHA that first asks whether early values tell anything: until probes say so, it selects late in training only.

On real curves of large models successive halving can be worse than random search: where the order at a rung is not
that at the end, it keeps the wrong trials and never sees the right ones. Two thirds into training the order has mostly
settled on such curves too, so that there selection pays before anything is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from sweeps.correlation import spearman
from sweeps.events import Event, Reported, Started, Unit
from sweeps.rungs import Rung, levels
from sweeps.schedulers.asha_promotion import AshaPromotion

PAIRS_FROM = 2
"""Early rungs, the highest ones, whose orders are compared with each other and with the outcome."""


def guarded_levels(r: int, R: int, eta: int) -> tuple[int, ...]:
    """Return the rungs of ASHA up to R/2, one at 2R/3 and R [resource]; where r is above 2R/3: those of ASHA.

    Where r is above R/2 the one at 2R/3 is the first.
    """
    plain, late = levels(r, R, eta), -(-2 * R // 3)
    return (*(level for level in plain if 2 * level <= R), late, R) if r <= late < R else plain


class AshaGuarded(AshaPromotion):
    """Promotion ASHA whose rungs up to R/2 let everyone pass until they are trusted; a rung at 2R/3 always selects.

    A probe is a trial that passed those early rungs unselected; once `probes` of them have got to the rung at 2R/3, the
    orders at the two highest early rungs and that of the outcome are compared: the mean of the rank correlations of
    each pair, less `doubt` standard errors (Fisher's z), has to be at least `threshold`. The outcome is the final
    value, and behind all of these, for those not selected, the one at 2R/3. It is asked again whenever a probe gets on;
    of what is given out while the rungs are trusted, `share` goes to new probes, so that a wrong verdict does not last.
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
        doubt: float = 0.67,
        share: float = 0.0,
    ) -> None:
        super().__init__(r, R, eta, limit=limit)
        if probes < 4 or not 0 <= threshold < 1 or doubt < 0 or not 0 <= share <= 1:
            raise ValueError(
                f"probes={probes}, threshold={threshold}, doubt={doubt}, share={share}: at least 4 probes, a threshold "
                "from 0 to below 1, a doubt of 0 or more and a share from 0 to 1 are needed"
            )
        self.levels = guarded_levels(r, R, eta)
        self.rungs = [Rung(level) for level in self.levels]
        self.early = sum(2 * level <= R for level in self.levels)
        self.probes, self.threshold, self.doubt, self.share = probes, threshold, doubt, share
        self.trusted = False
        self.selected: set[int] = set()
        self.probing: dict[int, None] = {}
        self.given = 0
        self.given_to_probes = 0

    def apply(self, event: Event) -> None:
        """Take notice of an event."""
        if isinstance(event, Started) and event.unit.trial not in self.trials.lost:
            self._start(event.unit)
        super().apply(event)
        if isinstance(event, Reported) and event.resource >= self.levels[self.early]:
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

    def agreement(self) -> tuple[float | None, float | None, int]:
        """Return the probes' mean rank correlation, what it is at least, and of how many; None: cannot be told."""
        late, last = self.rungs[self.early].of, self.rungs[-1].of
        done = [trial for trial in late if trial not in self.selected]

        def outcome(trial: int) -> tuple[int, float]:
            if trial not in last:
                return (1, late[trial][0])
            final = last[trial][0]
            return (0 if math.isfinite(final) else 2, final)

        ranks = {found: rank for rank, found in enumerate(sorted({outcome(trial) for trial in done}))}
        highest = self.rungs[max(0, self.early - PAIRS_FROM) : self.early]
        orders = [[rung.of[trial][0] for trial in done] for rung in highest]
        orders.append([float(ranks[outcome(trial)]) for trial in done])
        pairs = [spearman(a, b) for number, a in enumerate(orders) for b in orders[:number]]
        known = [found for found in pairs if found is not None]
        if len(done) < 4 or not known or len(known) < len(pairs):
            return None, None, len(done)
        mean = sum(known) / len(known)
        error = self.doubt / math.sqrt(len(done) - 3)
        return mean, math.tanh(math.atanh(min(max(mean, -0.9999), 0.9999)) - error), len(done)

    def _start(self, unit: Unit) -> None:
        """Note who is selected at an early rung, and what is given out while the rungs are trusted."""
        at = self.trials.at.get(unit.trial, 0)
        if 0 < at < self.levels[self.early] and not unit.probe:
            self.selected.add(unit.trial)
        if unit.probe:
            self.probing[unit.trial] = None
        if self.trusted:
            self.given += unit.until - at
            self.given_to_probes += unit.until - at if unit.probe else 0

    def _ask(self) -> None:
        """Trust the early rungs or not; what was given out is counted anew when trust begins."""
        _, least, count = self.agreement()
        trusted = least is not None and count >= self.probes and least >= self.threshold
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
