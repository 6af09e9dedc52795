"""`python -m analysis.fit`: from runs to scaling laws, `fit.json`, a tidy `runs.csv`, figures and `report.html`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import arguments, source
from analysis.arguments import Key
from analysis.plain import to_json
from analysis.results import Block, Check, Cloud, Dropped, Fit, Fits, Frontier, Kinds, Runs, Valleys, save

if TYPE_CHECKING:
    import pandas as pd

    from analysis import engine
    from analysis.rows import Rows
    from analysis.surface import Surface

PURPOSE = "From runs to scaling laws with intervals, checks, a backtest and a recommendation."
EXAMPLES = (
    "python -m analysis.fit runs=runs/isoflop",
    "python -m analysis.fit runs=table.csv columns=params:N,tokens:D,loss:val_loss flop_rule=6ND form=kaplan_floor",
)
APPROACHES = ("1", "2", "3")
INTERVALS = ("bootstrap", "delta", "sandwich", "profile")
CLUSTERS = ("auto", "sizes", "runs", "rows", "seeds", "residuals")
COVERED = {"flops_not_6nd", "clustered_rows"}
"""Findings of a law that the checks of the rows and of the surface say already, with what to do in a study."""
LOSSES = ("huber", "student_t", "l1", "squared")


def _approach(key: Key, text: str) -> tuple[str, ...]:
    """Read all, or some of 1, 2, 3."""
    named = {"envelope": "1", "valleys": "2", "isoflop": "2", "surface": "3", "parametric": "3"}
    found = tuple(named.get(part.strip(), part.strip()) for part in text.split(","))
    if found == ("all",):
        return APPROACHES
    bad = [part for part in found if part not in APPROACHES]
    if bad:
        raise ValueError(f"approach={text}: {bad[0]!r} is none of 1, 2, 3, all ({key.help})")
    return found


def _delta(key: Key, text: str) -> str:
    if text != "squared":
        arguments.number(key, text)
    return text


KEYS = (
    *source.KEYS,
    Key("form", "law of the loss, by name, by paper or as text (analysis.compare lists them)", "chinchilla"),
    Key("approach", "1 (envelope of learning curves), 2 (isoFLOP valleys), 3 (surface), or all", APPROACHES, _approach),
    Key("loss", "loss function on log residuals", "huber", choices=LOSSES),
    Key("delta", "Huber's delta on log residuals; squared: least squares", "0.001", _delta),
    Key("interval", "how the law's intervals are made", "bootstrap", choices=INTERVALS),
    Key("cluster", "what a resample draws; auto: model sizes where they repeat, else runs", "auto", choices=CLUSTERS),
    Key("fix", "constants held: E:1.7,alpha:0.34", {}, arguments.constants),
    Key("tie", "constants made equal: beta:alpha", {}, arguments.names),
    Key("budget", "FLOPs to recommend a run for (default 10 times the largest run)", None, arguments.number),
    Key("resamples", "bootstrap resamples; 0: no intervals from them", 1000, arguments.resamples),
    Key("seed", "seed of the resamples", 0, arguments.whole),
    Key("workers", "threads; the numbers do not depend on it", 1, arguments.whole),
    Key("sensitivity", "the table of what other choices would give", True, arguments.switch),
    Key("report", "write report.html and the figures", True, arguments.switch),
    Key("out", "folder for fit.json, runs.csv and the report (default reports/STUDY)"),
)  # fmt: skip


def parse(given: Sequence[str]) -> dict[str, Any]:
    """Return the options of `key=value` arguments; ValueError names an unknown key's nearest, or a bad value."""
    from analysis.formnames import resolve

    options = arguments.parse(given, KEYS)
    options["form"] = resolve(options["form"])
    return options


def load_frame(options: Mapping[str, Any]) -> pd.DataFrame:
    """Return the tidy frame that `runs=` names; a file has to have the columns that the form reads."""
    from analysis.forms import FORMS
    from analysis.frame import REQUIRED

    form = FORMS[options["form"]]
    reads = (*form.inputs, form.target)
    surface = {"params", "tokens"} <= set(form.inputs)
    return source.load(options, need=tuple(dict.fromkeys((*REQUIRED, *reads) if surface else reads)))


def fit(frame: pd.DataFrame, options: Mapping[str, Any] | None = None, **given: Any) -> Fit:
    """Return all fits, the backtest and the recommendation for a tidy frame.

    Parameters
    ----------
    frame : DataFrame
        A tidy frame (see :mod:`analysis.frame`).
    options : mapping, optional
        Options of the command by name, as `parse` returns them; those that are not there have their defaults.
    **given
        Single options by name: form, approach, loss, interval, budget, resamples, seed, ...

    Returns
    -------
    Fit
        What `fit.json` holds.

    Examples
    --------
    >>> from analysis import frame
    >>> from pathlib import Path
    >>> found = fit(frame.from_csv(Path("docs/example-runs.csv")), resamples=100, sensitivity=False)
    >>> found.form, found.rows_used, sorted(found.params)
    ('E + A/N^alpha + B/D^beta', 25, ['A', 'B', 'E', 'alpha', 'beta'])
    """
    asked = {key.name: key.default for key in KEYS} | dict(options or {}) | given
    from analysis.frame import used

    complete = frame[frame["used"]][["params", "tokens", "flops", "loss"]].notna().all(axis=None)
    if not complete:
        return _law_only(frame, asked)
    rows = used(frame)
    parts = _Parts(frame, rows, asked)
    return parts.result()


class _Parts:
    """One fit in the making: each part is computed once, in the order in which the others need it."""

    def __init__(self, frame: pd.DataFrame, rows: Rows, asked: Mapping[str, Any]) -> None:
        from analysis import backtest, checks, engine, evidence, frontier, recommend, surface, valleys
        from analysis.losses import Squared

        self.frame, self.rows, self.asked = frame, rows, asked
        resamples, seed = int(asked["resamples"]), int(asked["seed"])
        squared = asked["delta"] == "squared" or asked["loss"] == "squared"
        self.loss: engine.Loss = Squared() if squared else engine.Huber(float(asked["delta"]))
        self.dropped = dropped(frame)
        found, self.law = evidence.surface(rows, asked)
        self.surface = found if isinstance(found, surface.Surface) else None
        self.valleys = valleys.fit(rows, resamples=resamples, seed=seed)
        self.frontier = frontier.fit(rows, self.valleys)
        self.budget = float(asked["budget"] or 10.0 * float(rows.labels.max()))
        self.plan = recommend.recommend(rows, self.valleys, self.frontier, surface=self.surface, budget=self.budget)
        self.test = backtest.backtest(rows, self.loss)
        block = found.block if isinstance(found, surface.Surface) else found
        at_surface = checks.surface(block, rows, recommend.clash(rows, self.valleys, self.surface))
        said = {check.code for check in at_surface}
        more = [check for check in block.checks if check.code not in said | COVERED]
        self.block = dataclasses.replace(block, checks=(*at_surface, *more), rows_dropped=self.dropped)

    def result(self) -> Fit:
        """Return everything as what fit.json holds."""
        from analysis import bootstrap, checks, frontier
        from analysis.tables import versions

        frame, rows, asked = self.frame, self.rows, self.asked
        kinds, waiting = _kinds(frame), int(frame.attrs.get("not_started", 0))
        at_data = (*checks.data(rows, self.dropped, flop_rule=kinds.flops, waiting=waiting), *_settings(frame))
        law, extra = self._other_law()
        envelope = _envelope(frame, asked)
        valleys = dataclasses.replace(self.valleys.block, rows_dropped=self.dropped)
        front = self.frontier.block if isinstance(self.frontier, frontier.FrontierFit) else self.frontier
        top = self._top(law, envelope, valleys)
        outlook = checks.outlook(self.plan, self.test)
        own = () if top is self.block or top is valleys else self.block.checks
        every = _once((*at_data, *valleys.checks, *top.checks, *own, *outlook))
        shared = {f.name: getattr(top, f.name) for f in dataclasses.fields(Block)}
        return Fit(
            **{**shared, "checks": every, "rows_dropped": self.dropped},
            study=_name(asked, frame),
            source=str(asked.get("runs") or "a frame"),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            kinds=kinds,
            interval_method=f"{'law' if law else 'surface'}: {extra.get('interval', 'none')}; "
            "valleys: residual bootstrap, pooled over budgets",
            confidence=bootstrap.CONFIDENCE,
            resamples=int(asked["resamples"]),
            seed=int(asked["seed"]),
            versions=versions(),
            runs=Runs(
                len(frame), len(rows), len(self.dropped), int((frame["state"] == "completed").sum()), len(rows.labels)
            ),
            fits=Fits(valleys, self.block, front, law, envelope),
            backtest=self.test,
            recommendation=self.plan,
            **self._evidence(),
            record=_record(asked, extra) | self._approaches(),
        )

    def _approaches(self) -> dict[str, Any]:
        """Return the approaches side by side, with the other ways of finding a valley's minimum."""
        from analysis import evidence

        wanted = self.asked["sensitivity"] or self.asked["approach"] == APPROACHES
        found = evidence.approaches(self.frame, self.budget, self.asked) if wanted else []
        return {"approaches": found} if found else {}

    def _top(self, law: Block | None, envelope: Block | None, valleys: Valleys) -> Block:
        """Return the block that stands for the fit: the law asked for, or the one approach asked for."""
        approach = self.asked["approach"]
        if law is not None and "3" in approach:
            return law
        if "3" in approach:
            return self.block
        return valleys if "2" in approach or envelope is None else envelope

    def _other_law(self) -> tuple[Block | None, dict[str, Any]]:
        """Return the block of another law than the surface, None where none was asked for, and its record."""
        from analysis import evidence

        if self.asked["form"] not in evidence.FAMILY:
            return evidence.law(self.frame, self.rows, self.asked)
        if self.law is None:
            return None, {}
        return None, {"interval": self.law.interval_method, "law": to_json(self.law.record())}

    def _evidence(self) -> dict[str, Any]:
        """Return profiles, cloud, rolling backtest and sensitivity: what the report draws besides."""
        from analysis import backtest, evidence

        rolling = backtest.rolling(self.rows, self.loss, form=self.asked["form"])
        if self.surface is None or self.law is None:
            return {"rolling": rolling}
        return {
            "profiles": evidence.profiles(self.law),
            "cloud": self._cloud(self.surface),
            "rolling": rolling,
            "sensitivity": evidence.sensitivity(self.frame) if self.asked["sensitivity"] else (),
        }

    def _cloud(self, surface: Surface) -> Cloud | None:
        import numpy as np

        from analysis import plans
        from analysis.cost import cost

        sizes = (float(self.rows.params.min()), float(self.rows.params.max()))
        found = plans.training_only(surface.draws[:400], cost(self.rows), self.budget, sizes)
        good = np.isfinite(found.log_params)
        if not good.any():
            return None
        params, tokens = (np.exp(values[good]) for values in (found.log_params, found.log_tokens))
        return Cloud(self.budget, tuple(map(float, params)), tuple(map(float, tokens)))


def _envelope(frame: pd.DataFrame, asked: Mapping[str, Any]) -> Block | None:
    """Return approach 1 where learning curves are there; not possible, and why, where it alone was asked for."""
    from analysis import evidence

    if "1" not in asked["approach"]:
        return None
    return evidence.envelope(frame, asked, alone=asked["approach"] == ("1",))


def _law_only(frame: pd.DataFrame, asked: Mapping[str, Any]) -> Fit:
    """Return the fit of a law that does not read params, tokens and flops: no valleys, no recommendation."""
    from analysis import bootstrap, evidence
    from analysis.tables import versions

    block, extra = evidence.law(frame, None, asked)
    left = dropped(frame)
    block = dataclasses.replace(block, rows_dropped=left)
    why = "the runs do not have all of params, tokens, flops and loss"
    none = {"loss_function": "", "status": "not possible", "reason": why}
    shared = {f.name: getattr(block, f.name) for f in dataclasses.fields(Block)}
    surface = Block(form="E + A/N^alpha + B/D^beta", approach="surface", **none)  # type: ignore[arg-type]
    valleys = Valleys(form="", approach="valleys", **none)  # type: ignore[arg-type]
    front = Frontier(form="", approach="frontier", **none)  # type: ignore[arg-type]
    used = int(frame["used"].sum())
    return Fit(
        **{**shared, "checks": _once((*_settings(frame), *block.checks))},
        study=_name(asked, frame),
        source=str(asked.get("runs") or "a frame"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        kinds=_kinds(frame),
        interval_method=str(extra.get("interval", "")),
        confidence=bootstrap.CONFIDENCE,
        resamples=int(asked["resamples"]),
        seed=int(asked["seed"]),
        versions=versions(),
        runs=Runs(len(frame), used, len(left), int((frame["state"] == "completed").sum()), 0),
        fits=Fits(valleys, surface, front, block, None),
        record=_record(asked, extra),
    )


def _once(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return the findings, each code and message once."""
    return tuple({(check.code, check.message): check for check in reversed(checks)}.values())[::-1]


def _settings(frame: pd.DataFrame) -> list[Check]:
    """Return a finding for every text column of a file whose values are fitted together."""
    found = []
    for name, values in frame.attrs.get("settings", {}).items():
        text = f"{name} has {len(values)} values ({', '.join(values[:6])}), which are fitted together"
        found.append(Check("mixed_settings", text, f"where={name}:{values[0]} keeps one of them", "warning"))
    return found


def dropped(frame: pd.DataFrame) -> tuple[Dropped, ...]:
    """Return the rows that no fit uses, with their reasons."""
    bad = frame[~frame["used"]]
    columns = zip(bad["key"], bad["drop_code"], bad["drop_reason"], strict=True)
    return tuple(Dropped(str(k), str(c), str(r)) for k, c, r in columns)


def _kinds(frame: pd.DataFrame) -> Kinds:
    """Return what the numbers of the rows used mean."""
    first = frame[frame["used"]].iloc[0]
    tokenizer = f"{first['tokenizer']} {first['fingerprint']}".strip()
    return Kinds(first["params_kind"], first["flop_rule"], first["loss_unit"], tokenizer=tokenizer)


def _name(asked: Mapping[str, Any], frame: pd.DataFrame) -> str:
    return str(frame["study"].iloc[0]) or Path(str(asked.get("runs") or "study")).stem


def _record(asked: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked for, as plain values, and what the law itself says of how it was made."""
    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asked.items()
        if name not in ("workers", "out", "report", "uri")  # nothing that the numbers depend on
    }
    return {"options": options, **{name: value for name, value in extra.items() if name != "interval"}}


def write(result: Fit, frame: pd.DataFrame, folder: Path) -> None:
    """Write `runs.csv`, then `fit.json`, each by atomic rename."""
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / "runs.csv.tmp"
    with_prediction(result, frame).to_csv(staged, index=False)
    staged.replace(folder / "runs.csv")
    save(result, folder / "fit.json")


def with_prediction(result: Fit, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with the column `predicted`: the law's loss, empty where there is none."""
    import numpy as np

    from analysis.forms import FORMS

    out = frame.copy()
    out["predicted"] = np.nan
    form = next((f for f in FORMS.values() if f.text == result.form and set(f.names) <= set(result.params)), None)
    if form is None or form.target != "loss":
        return out
    with np.errstate(all="ignore"):
        x = np.log(np.stack([out[name].to_numpy(float) for name in form.inputs]))
    zeros = np.zeros(len(x))
    theta = form.internal(np.array([[result.params[name] for name in form.names]]), zeros)
    with np.errstate(all="ignore"):
        predicted = np.exp(form.log_value(theta, x)[0])
    out["predicted"] = np.where(out["used"], predicted, np.nan)
    return out


def act(options: Mapping[str, Any]) -> int:
    """Fit, write and print."""
    from analysis.formnames import resolve

    options = {**options, "form": resolve(options["form"])}
    frame = load_frame(options)
    result = fit(frame, options)
    folder = Path(options["out"] or Path("reports") / result.study)
    write(result, frame, folder)
    page = None
    if options["report"]:
        from analysis.report.write import write as write_report

        runs = Path(options["runs"])
        page = write_report(folder / "fit.json", folder, runs if runs.is_dir() else None).report
    _print(result, folder, page)
    return 0


def _print(result: Fit, folder: Path, page: Path | None) -> None:
    """Print the findings, what was written, and last the law and the recommendation."""
    from analysis.summary import summary

    for check in result.checks:
        option = "=" in check.advice.split(" ", 1)[0]  # what to type stays as it is typed
        advice = check.advice if option else check.advice[:1].upper() + check.advice[1:]
        print(f"{check.level:<8} {check.code}: {check.message}. {advice}.")
    also = "" if page is None else f", {page.name}"
    print(f"wrote    {folder / 'fit.json'}, runs.csv{also} ({result.runs.used} of {result.runs.total} runs used)\n")
    fields: Mapping[str, object] = to_json(result)
    print(summary(fields))


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 with a message where the arguments or the runs are wrong."""
    return arguments.run("analysis.fit", PURPOSE, KEYS, act, given, examples=EXAMPLES)


if __name__ == "__main__":
    sys.exit(main())
