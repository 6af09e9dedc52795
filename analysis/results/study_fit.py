"""One fit in the making: the surface, the valleys, the law asked for and all that stands beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.approaches import compute_optimal, parametric
from analysis.estimation import objectives
from analysis.results.fit_keys import APPROACHES
from analysis.text import numbers
from analysis.values.blocks import Block, Check, Dropped, Fits, Kinds, PowerLaw, Valleys
from analysis.values.findings import FINDINGS
from analysis.values.json_values import to_json
from analysis.values.study_result import Cloud, Fit, Proposal, Recommendation, Runs

if TYPE_CHECKING:
    import pandas as pd

    from analysis.approaches.surface import Surface
    from analysis.inference.law_result import LawFit
    from analysis.inputs.dataset import Rows
    from analysis.planning.advice import Advice, Candidate, Judged


class Parts:
    """One fit in the making: each part is computed once, in the order in which the others need it."""

    def __init__(self, frame: pd.DataFrame, rows: Rows, asked: Mapping[str, Any]) -> None:
        from analysis.approaches import frontier, surface, valley_options, valleys
        from analysis.diagnostics import at_rows, backtest, findings
        from analysis.inputs import large
        from analysis.planning import recommend

        self.frame, self.rows, self.asked = frame, rows, asked
        resamples, seed = int(asked["resamples"]), int(asked["seed"])
        self.loss: objectives.Loss = criterion(asked)
        self.dropped = dropped(frame)
        self.at_rows = at_rows.findings(frame, asked["form"])
        large.log.info("surface, with %d resamples", resamples)
        found, self.law = parametric.surface(rows, asked)
        large.log.info("valleys and frontier")
        self.surface = found if isinstance(found, surface.Surface) else None
        chosen = valley_options.of(asked)
        self.valleys = valleys.fit(rows, resamples=resamples, seed=seed, choices=chosen)
        self.frontier = frontier.fit(rows, self.valleys)
        self.budget = float(asked["budget"] or 10.0 * float(rows.labels.max()))
        self.other, self.extra, self.other_fit = self._other_law()
        self.envelope, self.envelope_laws = _envelope(frame, asked)
        large.log.info("recommendation and backtest")
        self.rolling = backtest.rolling(rows, self.loss, form=asked["form"], **held(asked))
        self.drawn, self.no_size = self._drawn()
        self.judged = self._judged(found)
        self.plan, self.why = self.recommended(self.budget)
        far = self.plan.extrapolation_factor if self.plan else self.budget / float(rows.flops.max())
        self.test = backtest.backtest(
            rows, self.loss, asked["form"], factor=far, of=self.plan.loss_from if self.plan else None, choices=chosen,
            **held(asked),
        )  # fmt: skip
        block = found.block if isinstance(found, surface.Surface) else found
        at_surface = findings.surface(
            block, rows, recommend.clash(rows, self.valleys, self.surface), at_rows.alone(frame)
        )
        said = {check.code for check in at_surface}
        more = [check for check in block.checks if check.code not in said and not FINDINGS[check.code].of_study]
        self.block = dataclasses.replace(block, checks=(*at_surface, *more))

    def result(self) -> Fit:
        """Return everything as what fit.json holds."""
        from analysis.approaches import frontier
        from analysis.diagnostics import findings
        from analysis.inference import resampling
        from analysis.inference.summary import versions
        from analysis.inputs import large
        from analysis.planning import recommend

        frame, rows, asked = self.frame, self.rows, self.asked
        kinds, waiting = kinds_of(frame), int(frame.attrs.get("not_started", 0))
        at_data = (*self.at_rows, *findings.data(rows, self.dropped, flop_rule=kinds.flops, waiting=waiting))
        law, extra, envelope = self.other, self.extra, self.envelope
        valleys = dataclasses.replace(self.valleys.block, rows_dropped=outside(rows, self.valleys.block))
        front = self.frontier.block if isinstance(self.frontier, frontier.FrontierFit) else self.frontier
        top = self._top(law, envelope, valleys)
        large.log.info("approaches side by side, profiles, sensitivity (sensitivity=no leaves these out)")
        beside, found = self._approaches(), self._evidence()
        sizes = recommend.sizes(self.plan, beside.get("approaches", ())) if self.plan else {}
        plan = recommend.compared(self.plan, sizes)
        outlook = findings.outlook(
            plan, self.test, self.why, "note" if self.why and self.why == self.no_size else "error", sizes,
            cure=self.judged.at_all.cure,
        )  # fmt: skip
        if top is self.block:
            outlook += findings.choices(found.get("sensitivity", ()), top.intervals.get("a"))
        own = () if top is self.block or top is valleys else self.block.checks
        if (
            law is not None and law.status == "ok"
        ):  # the surface only stands beside it: its constants are not the answer
            own = tuple(check for check in own if FINDINGS[check.code].of_runs)
        every = once((*at_data, *valleys.checks, *top.checks, *own, *outlook))
        shared = {f.name: getattr(top, f.name) for f in dataclasses.fields(Block)}
        return Fit(
            **{**shared, "checks": every, "rows_dropped": self.dropped},
            study=study_name(asked, frame),
            source=str(asked.get("runs") or "a frame"),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            kinds=kinds,
            interval_method=f"{'law' if law else 'surface'}: {extra.get('interval', 'none')}; "
            "valleys: residual bootstrap, pooled over budgets",
            confidence=resampling.CONFIDENCE,
            resamples=int(asked["resamples"]),
            seed=int(asked["seed"]),
            versions=versions(),
            runs=self._runs(),
            fits=Fits(valleys, self.block, front, law, envelope),
            backtest=self.test,
            recommendation=plan,
            **found,
            record=record_of(asked, extra, frame) | beside,
        )

    def _runs(self) -> Runs:
        done, largest = int((self.frame["state"] == "completed").sum()), float(self.rows.flops.max())
        return Runs(len(self.frame), len(self.rows), len(self.dropped), done, len(self.rows.labels), largest)

    def _approaches(self) -> dict[str, Any]:
        """Return the approaches side by side, with the other ways of finding a valley's minimum."""
        from analysis.results import evidence

        if not (self.asked["sensitivity"] or self.asked["approach"] == APPROACHES):
            return {}
        fits: dict[str, LawFit | None] = {"chinchilla": self.law}
        if self.other is not None:
            fits[self.asked["form"]] = self.other_fit
        return {
            "approaches": evidence.approaches(
                self.frame, self.rows, self.budget, self.asked, fits, judged=self.valleys.block.valleys
            )
        }

    def _top(self, law: Block | None, envelope: Block | None, valleys: Valleys) -> Block:
        """Return the block that stands for the fit: the law asked for, or the one approach asked for."""
        approach = self.asked["approach"]
        if law is not None and "3" in approach:
            return law
        if "3" in approach:
            return self.block
        return valleys if "2" in approach or envelope is None else envelope

    def _other_law(self) -> tuple[Block | None, dict[str, Any], LawFit | None]:
        """Return block, record and fit of another law than the surface; no block where none was asked for."""

        if self.asked["form"] not in parametric.FAMILY:
            return parametric.law_and_fit(self.frame, self.rows, self.asked)
        if self.law is None:
            return None, {}, None
        return None, {"interval": self.law.interval_method, "law": to_json(self.law.record())}, None

    def _drawn(self) -> tuple[Candidate | None, str]:
        """Return the law asked for with its draws, None where it was not fitted; and why its form has no best size."""
        from analysis.planning.advice import Candidate

        fit = self.law if self.other is None else self.other_fit
        if fit is None:
            return None, ""
        try:
            return Candidate(fit, *compute_optimal.priced(fit, self.rows)), ""
        except ValueError as error:
            return None, str(error)

    def _judged(self, surface: Surface | Block) -> Judged:
        """Return what these rows let be advised of what was asked for."""
        from analysis.planning import advice

        why = self.other.reason if self.other is not None else getattr(surface, "reason", "")
        candidate: Candidate | str = self.drawn or self.no_size or f"it was not fitted: {why}"
        return advice.judge(
            self.frame, self.rows, self.asked["form"], candidate, self.valleys, checks=self.at_rows, cuts=self.rolling,
            only="" if "3" in self.asked["approach"] else advice.VALLEYS,
        )  # fmt: skip

    def recommended(self, budget: float) -> tuple[Recommendation | None, str]:
        """Return what is recommended for a budget [FLOPs], None where nothing is; and why the law is not followed."""
        from analysis.planning import recommend

        approach, why, said = self._followed(budget)
        if not approach:
            return None, why
        if approach == "envelope":
            return recommend.by_envelope_only(self.envelope_laws, self.rows, budget), why
        if approach == "law":
            assert self.drawn is not None and self.other is not None, "it is followed"
            on = self.drawn
            plan = recommend.by_other_law(
                on.law, on.price, on.sizes, block=self.other, valley_fit=self.valleys, rows=self.rows, budget=budget,
                said=said,
            )  # fmt: skip
        else:
            plan = recommend.recommend(
                self.rows, self.valleys, self.frontier, surface=self._surface_asked(), budget=budget, said=said
            )
        return plan, why

    def _followed(self, budget: float) -> tuple[str, str, Advice]:
        """Return which approach a budget [FLOPs] follows, if any, why not the law or why none, and what is advised."""
        from analysis.planning import advice

        said = self.judged.at(budget)
        if self.no_size and "3" in self.asked["approach"]:
            return "", self.no_size, said
        if self.asked["approach"] == ("1",):
            why = said.wrong or self._envelope_lacks()
            return "" if why else "envelope", why, said
        if said.follows == advice.LAW:
            return "surface" if self.other is None else "law", said.why, said
        return said.follows, said.why, said

    def _envelope_lacks(self) -> str:
        from analysis.planning import advice

        if not self.envelope_laws:
            return self.envelope.reason if self.envelope else "there is no envelope"
        lacks = advice.envelope_lacks(self.envelope_laws, int(self.asked["resamples"]) > 0)
        return lacks and f"the envelope does not qualify ({lacks})"

    def proposal(self, budget: float) -> tuple[str, Proposal | None, str]:
        """Return what a budget [FLOPs] follows, its best run by that, and why there is none, by the rule of plans."""
        from analysis.planning import recommend

        approach, why, said = self._followed(budget)
        if not approach:
            return approach, None, why
        if approach == "envelope":
            found: Proposal | None = recommend.by_envelope(self.envelope_laws, budget)
        elif approach == "law":
            assert self.drawn is not None, "it is followed"
            found = compute_optimal.by_law(self.drawn.law, self.drawn.price, budget, self.drawn.sizes)
        else:
            makers = recommend.proposers(self.rows, self.valleys, self.frontier, self._surface_asked(), said)
            found = makers[approach](budget)
        return approach, found, "" if found else f"the {approach} has none near the sizes swept"

    def _surface_asked(self) -> Surface | None:
        """Return the surface where it may be read: not where a law of another form was asked for."""
        return self.surface if self.other is None else None

    def _evidence(self) -> dict[str, Any]:
        """Return profiles, cloud, rolling backtest and sensitivity: what the report draws besides."""
        from analysis.results import evidence

        rolling = self.rolling
        if self.other is not None:
            asked = self.other_fit
            return {
                "profiles": () if asked is None else evidence.profiles(asked),
                "cloud": self._cloud(),
                "rolling": rolling,
            }
        if self.surface is None or self.law is None:
            return {"rolling": rolling}
        fitted = self.block.intervals.get("a")
        return {
            "profiles": evidence.profiles(self.law),
            "cloud": self._cloud(),
            "rolling": rolling,
            "sensitivity": evidence.sensitivity(self.frame, self.asked, fitted) if self.asked["sensitivity"] else (),
        }

    def _cloud(self) -> Cloud | None:
        import numpy as np

        from analysis.approaches import optimum
        from analysis.approaches.cost import cost

        other = self.drawn if self.other is not None else None
        if other is not None:
            found = optimum.training_only(other.law, other.price, self.budget, other.sizes)
        elif self.surface is not None and self.other is None:
            sizes = (float(self.rows.params.min()), float(self.rows.params.max()))
            found = optimum.training_only(self.surface.draws[:400], cost(self.rows), self.budget, sizes)
        else:
            return None
        good = np.isfinite(found.log_params)
        good[:1] &= other is None  # the first row of a law is the point, not a draw
        if not good.any():
            return None
        params, tokens = (np.exp(values[good]) for values in (found.log_params, found.log_tokens))
        return Cloud(self.budget, tuple(map(float, params)), tuple(map(float, tokens)))


def _envelope(frame: pd.DataFrame, asked: Mapping[str, Any]) -> tuple[Block | None, Mapping[str, PowerLaw]]:
    """Return approach 1 and its laws; a block that says why where there are no learning curves."""
    from analysis.results import evidence

    if "1" not in asked["approach"]:
        return None, {}
    return evidence.envelope(frame, asked)


def criterion(asked: Mapping[str, Any]) -> objectives.Loss:
    """Return the loss function that was asked for."""
    from analysis.estimation import objectives

    if asked["delta"] == "squared":
        return objectives.Squared()
    return objectives.named(asked["loss"], numbers.read(str(asked["delta"])))


def held(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants that were asked to be held, at values and at others."""
    return {"fix": dict(asked["fix"]), "tie": dict(asked["tie"])}


def once(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return the findings, each code and message once."""
    return tuple({(check.code, check.message): check for check in reversed(checks)}.values())[::-1]


def dropped(frame: pd.DataFrame) -> tuple[Dropped, ...]:
    """Return the rows that no fit uses, with their reasons."""
    bad = frame[~frame["used"]]
    columns = zip(bad["key"], bad["drop_code"], bad["drop_reason"], strict=True)
    return tuple(Dropped(str(k), str(c), str(r)) for k, c, r in columns)


def kinds_of(frame: pd.DataFrame) -> Kinds:
    """Return what the numbers of the rows used mean."""
    first = frame[frame["used"]].iloc[0]
    tokenizer = f"{first['tokenizer']} {first['fingerprint']}".strip()
    return Kinds(first["params_kind"], first["flop_rule"], first["loss_unit"], tokenizer=tokenizer)


def study_name(asked: Mapping[str, Any], frame: pd.DataFrame) -> str:
    """Return the study's name, else that of the file."""
    return str(frame["study"].iloc[0]) or Path(str(asked.get("runs") or "study")).stem


def outside(rows: Rows, fit: Valleys) -> tuple[Dropped, ...]:
    """Return the runs of budgets that show no minimum: valleys rest on none of them."""
    why = {key: (v.status, v.reason) for v in fit.valleys if v.status != "minimum" for key in v.keys}
    inside = {key for v in fit.valleys if v.status == "minimum" for key in v.keys}
    alone = ("too_few", "no other size was run at its budget")
    return tuple(Dropped(key, *why.get(key, alone)) for key in rows.keys if key not in inside)


def schedule_of(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the schedules of the rows used, and how many rows were left out for an unfinished one."""
    good = frame[frame["used"]]
    if not {"schedule", "schedule_complete", "drop_code"} <= set(frame.columns):
        return {}
    return {
        "names": sorted({str(name) for name in good["schedule"] if str(name)}),
        "finished": int(good["schedule_complete"].sum()),
        "left_out_unfinished": int((frame["drop_code"] == "mid_schedule").sum()),
    }


def record_of(asked: Mapping[str, Any], extra: Mapping[str, Any], frame: pd.DataFrame) -> dict[str, Any]:
    """Return what was asked for, as plain values, what rows it took, and what the law says of how it was made."""
    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asked.items()
        if name not in ("workers", "out", "report", "uri")  # nothing that the numbers depend on
    }
    told = {name: value for name, value in extra.items() if name != "interval"}
    if "law" in told:
        told["law"] = {**told["law"], "kinds": to_json(kinds_of(frame))}
    best = asked.get("select") == "best"
    selection = "of equal N and D the learning rate and batch of the lowest loss" if best else "every run"
    return {"options": options, "schedule": schedule_of(frame), "selection": selection, **told}
