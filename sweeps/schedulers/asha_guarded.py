"""ASHA that first asks whether early values tell anything: until its probes say so, trials run to the end.

On real curves of large models successive halving can be worse than random search: where the rank correlation between
the value at a rung and the final one is low, it keeps the wrong trials and never sees the right ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from sweeps.correlation import spearman
from sweeps.events import Event, Reported, Started, Unit
from sweeps.schedulers.asha_promotion import AshaPromotion


class AshaGuarded(AshaPromotion):
    """Promotion ASHA while the probes' rank correlation is at least `threshold`, else full runs without selection.

    A probe is a trial that is trained to R whatever its values: the first `probes` trials, and later ones so that
    probes keep `share` of the resource. The correlation is between the final value and that at each of the `upper`
    rungs below R, averaged; it is asked again whenever a probe ends, so that a wrong verdict does not last.
    In full runs the trials that were paused at a rung go on in the order in which they came, so what they have had
    is not lost.
    """

    def __init__(
        self,
        r: int,
        R: int,
        eta: int = 3,
        *,
        limit: int | None = None,
        probes: int = 8,
        threshold: float = 0.6,
        share: float = 0.25,
        upper: int = 2,
    ) -> None:
        super().__init__(r, R, eta, limit=limit)
        if probes < 3 or not -1 <= threshold <= 1 or not 0 <= share <= 1 or upper < 1:
            raise ValueError(
                f"probes={probes}, threshold={threshold}, share={share}, upper={upper}: at least 3 probes, "
                "a threshold from -1 to 1, a share from 0 to 1 and at least 1 rung are needed"
            )
        self.probes = probes
        self.threshold = threshold
        self.share = share
        self.upper = upper
        self.probing: dict[int, None] = {}
        self.given = 0
        self.given_to_probes = 0
        self.trusted = False

    def apply(self, event: Event) -> None:
        """Take notice of an event."""
        if isinstance(event, Started) and event.unit.trial not in self.trials.lost:
            more = event.unit.until - self.trials.at.get(event.unit.trial, 0)
            self.given += more
            if event.unit.probe:
                self.probing[event.unit.trial] = None
                self.given_to_probes += more
        super().apply(event)
        if isinstance(event, Reported) and event.resource >= self.levels[-1] and event.trial in self.probing:
            self.trusted = self._trust()

    def candidates(self) -> Iterator[Unit]:
        """Yield what was lost, then probes where one is due or the rungs are not trusted, then what ASHA wants."""
        yield from self.trials.resumed()
        if not self.trusted or self.given_to_probes < self.share * self.given:
            yield from self._probes()
        yield from super().candidates()

    def correlations(self) -> list[tuple[int, float | None, int]]:
        """Return for every rung below R: its level, the rank correlation with the final value, over how many probes."""
        last = self.rungs[-1].of
        done = [trial for trial in self.probing if trial in last]
        final = [last[trial][0] for trial in done]
        return [
            (rung.level, spearman([rung.of[trial][0] for trial in done], final), len(done)) for rung in self.rungs[:-1]
        ]

    def _trust(self) -> bool:
        found = self.correlations()[-self.upper :]
        known = [value for _, value, _ in found if value is not None]
        enough = bool(found) and found[0][2] >= self.probes and len(known) == len(found)
        return enough and sum(known) / len(known) >= self.threshold

    def _probes(self) -> Iterator[Unit]:
        """Yield the next units of probes: those under way, then trials by how long they have waited, then a new one."""
        for trial in (*self.probing, *self.trials.at):
            at = self.trials.at[trial]
            if trial not in self.trials.running and trial not in self.trials.failed and at < self.levels[-1]:
                after = next(level for level in self.levels if level > at)
                yield Unit(trial, after, probe=True)
        for fresh in self.trials.fresh(self.levels[0]):
            yield Unit(fresh.trial, fresh.until, probe=True)
