"""`python -m analysis.score`: how well a fit foresees runs that it has not seen."""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from analysis.text.start import start

    start("analysis.score")

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.diagnostics import at_rows
from analysis.results import load
from analysis.text import commandline, numbers, terminal
from analysis.text.commandline import Key
from analysis.values.json_values import to_json
from analysis.values.study_result import BacktestRun

if TYPE_CHECKING:
    import pandas as pd

    from analysis.approaches.optimum import Repeats
    from analysis.inputs.same_runs import Same
    from analysis.values.blocks import Check, Kinds
    from analysis.values.study_result import Fit

PURPOSE = "The errors of a fit's law on runs that it has not seen: the rows that it was fitted to are left out."
EXAMPLES = ("python -m analysis.score fit=reports/isoflop/fit.json runs=runs/larger",)
KEYS = (
    Key("fit", "fit.json as analysis.fit wrote it, with runs.csv beside it", required=True),
    *load.KEYS,
    Key("unique_tokens", "predict for text of so many distinct tokens, which wear out as they are repeated", None,
        commandline.number),
    Key("repeats", "R_D:..,R_N:.. half-lives of repeated data (default 15.4 and 5.31, Muennighoff et al. 2023)", {},
        commandline.constants),
    Key("show", "largest number of rows to print, the largest runs first", 20, commandline.whole),
    Key("out", "folder for score.json (default: none is written)"),
)  # fmt: skip
FEWEST_SIDED = 5


@dataclass(frozen=True)
class Score:
    """Errors on unseen runs, by falling compute; `seen` rows were left out, `factor` is the farthest extrapolation.

    other_corpora: how the runs' corpora or tokenizers differ from the fit's, where losses are per token. rounded: how
    many of the `seen` rows agree with a fitted one only once losses are rounded; perhaps_seen: how many of the unseen
    ones do to fewer than three decimals.
    """

    lines: tuple[BacktestRun, ...]
    seen: int
    mean_abs_relative_error: float
    mean_relative_error: float
    worst: float
    factor: float
    one_sided: bool
    other_corpora: tuple[str, ...] = ()
    rounded: int = 0
    perhaps_seen: int = 0


def score(
    fit: Fit,
    frame: pd.DataFrame,
    fitted: pd.DataFrame | None = None,
    *,
    unique_tokens: float | None = None,
    repeats: Repeats | None = None,
) -> Score:
    """Return the errors of a fit's law on the used rows of a tidy frame that are not among the `fitted` ones.

    With `unique_tokens`, the law is read for text of so many distinct tokens, which wear out as they are repeated.
    Raises ValueError where the fit has no law of the loss, no row is used, the rows' kinds are others than the fit's,
    or all are known.
    """
    import numpy as np

    from analysis.approaches import optimum
    from analysis.inputs.frame import none_left
    from analysis.results.predicted import with_prediction, with_repeats

    good = frame[frame["used"]].reset_index(drop=True)
    if not len(good):
        raise ValueError(none_left(frame, "score"))
    _refuse_kinds(fit.kinds, good)
    agree = _known(good, fitted)
    known = agree.exactly | agree.rounded
    if unique_tokens is None:
        new = with_prediction(fit, good[~known])
    else:
        new = with_repeats(fit, good[~known], unique_tokens, repeats or optimum.Repeats())
    new = new[np.isfinite(new["predicted"])].sort_values("flops", ascending=False, kind="stable")
    if not len(new):
        why = "the fit has seen all of them" if known.all() else "its law gives no loss for them"
        raise ValueError(f"{numbers.counted(len(good), 'row')} to score and {why}: give runs that it was not fitted to")
    names = ("params", "tokens", "flops", "predicted", "loss")
    columns = [new["key"].astype(str), *(new[name].astype(float) for name in names)]
    lines = tuple(
        BacktestRun(k, n, d, c, said, seen, said / seen - 1.0) for k, n, d, c, said, seen in zip(*columns, strict=True)
    )
    errors = np.array([line.relative_error for line in lines])
    largest = fit.runs.largest_flops or math.nan
    return Score(
        lines, int(known.sum()), float(np.abs(errors).mean()), float(errors.mean()),
        float(errors[np.argmax(np.abs(errors))]), float(new["flops"].max()) / largest,
        len(errors) >= FEWEST_SIDED and bool((errors > 0).all() or (errors < 0).all()),
        () if fitted is None else _other_corpora(fitted[fitted["used"]], new),
        int(agree.rounded.sum()), int(agree.perhaps.sum()),
    )  # fmt: skip


def text(found: Score, unit: str, show: int) -> str:
    """Return the score as lines for a terminal."""
    lines = [f"  {'run':<16} {'params':>9} {'tokens':>9} {'FLOPs':>9} {'predicted':>10} {'observed':>9} {'error':>9}"]
    for line in found.lines[:show]:
        lines.append(
            f"  {line.key[:16]:<16} {numbers.count(line.params):>9} {numbers.count(line.tokens):>9} "
            f"{numbers.scientific(line.flops):>9} {numbers.number(line.predicted, 4):>10} "
            f"{numbers.number(line.observed, 4):>9} {100 * line.relative_error:>+7.2f} %"
        )
    if len(found.lines) > show:
        lines.append(f"  ... and {len(found.lines) - show} smaller ones")
    side = "high" if found.mean_relative_error > 0 else "low"
    bias = f", all too {side}" if found.one_sided else ""
    far = numbers.finite(found.factor)
    lines += [
        "",
        f"unseen     {numbers.counted(len(found.lines), 'run')} in {unit}"
        + (f"; {numbers.counted(found.seen, 'row')} that the fit has seen left out" if found.seen else "")
        + (f" ({found.rounded} with the loss to other decimals)" if found.rounded else "")
        + (f"; up to {numbers.factor(far)} its largest run" if far is not None else ""),
        f"error      {numbers.percent(found.mean_abs_relative_error)} on average, {100 * found.worst:+.2f} % at worst",
        f"bias       {100 * found.mean_relative_error:+.2f} % on average{bias}",
        *(
            [
                f"note       {numbers.counted(found.perhaps_seen, 'run')} may have been fitted: size, tokens and loss, "
                "as far as it is written, are those of a fitted one"
            ]
            if found.perhaps_seen
            else []
        ),
        *(
            f"note       {what}: losses per token of two corpora; bits per byte depend less on it"
            for what in found.other_corpora
        ),
    ]
    return "\n".join(lines).translate(numbers.ASCII)


def _other_corpora(fitted: pd.DataFrame, new: pd.DataFrame) -> tuple[str, ...]:
    """Return how tokenizer, corpus and validation set of the rows differ from the fit's; nothing in bits per byte."""
    from analysis.inputs.columns import BITS_PER_BYTE, COMPARABLE_IN_BITS, empty

    if (new["loss_unit"] == BITS_PER_BYTE).all():
        return ()
    found = []
    for name in COMPARABLE_IN_BITS:
        if name in fitted and name in new:
            ours, theirs = ({str(one) for one in table[name] if not empty(one)} for table in (fitted, new))
            if ours and theirs - ours:
                found.append(f"{name} is {', '.join(sorted(ours))} in the fit and {', '.join(sorted(theirs))} here")
    return tuple(found)


def _refuse_kinds(kinds: Kinds, good: pd.DataFrame) -> None:
    """Raise ValueError where the rows count parameters or measure losses in another way than the fit's."""
    first = good.iloc[0]
    for name, own, theirs in (
        ("params", kinds.params, str(first["params_kind"])), ("loss_unit", kinds.loss, str(first["loss_unit"])),
    ):  # fmt: skip
        if own != theirs and "given" not in (own, theirs):
            raise ValueError(f"the fit has {name}={own} and these runs {theirs}: give {name}={own}")


def _known(good: pd.DataFrame, fitted: pd.DataFrame | None) -> Same:
    """Return which rows are fitted ones: their params, tokens and loss agree."""
    from analysis.inputs.same_runs import same

    ours, theirs = (
        table[["params", "tokens", "loss"]].to_numpy(dtype=float)
        for table in (good, good[:0] if fitted is None else fitted[fitted["used"]])
    )
    return same(ours, theirs)


def _half_lives(given: Mapping[str, float], unique: float | None) -> Repeats:
    """Return R_D and R_N as given; ValueError for other names, what is not positive, or without distinct tokens."""
    from analysis.approaches.optimum import Repeats

    if given and unique is None:
        raise ValueError("repeats= says how repeated tokens wear out: give unique_tokens=, the number of distinct ones")
    return Repeats.given(given)


def act(options: Mapping[str, Any]) -> int:
    """Print the score, and write score.json where a folder is given."""
    import pandas as pd

    from analysis.values import study_result

    path = Path(options["fit"])
    fit = study_result.load(path)
    beside = path.parent / "runs.csv"
    fitted = pd.read_csv(beside) if beside.is_file() else None
    unique, half = options["unique_tokens"], _half_lives(options["repeats"], options["unique_tokens"])
    frame = load.load(options)
    found = score(fit, frame, fitted, unique_tokens=unique, repeats=half)
    units = _units(found, fit.kinds.loss)  # the law knows which rows of two units are the wrong ones
    checks = [one for one in at_rows.findings(frame, _form(fit)) if one.code not in {unit.code for unit in units}]
    checks += units
    for check in checks:
        terminal.show(str(check))
    print(f"law        {fit.form}" + ("\n" if unique is None else f" of {numbers.count(unique)} distinct tokens\n"))
    terminal.show(text(found, fit.kinds.loss, options["show"]))
    if fitted is None:
        terminal.show(f"note       {beside} is not there: rows that the fit has seen could not be left out")
    if options["out"]:
        written = Path(options["out"]) / "score.json"
        written.parent.mkdir(parents=True, exist_ok=True)
        staged = written.with_suffix(".json.tmp")
        staged.write_text(json.dumps(to_json(found), indent=1, allow_nan=False) + "\n")
        staged.replace(written)
        print(f"wrote {written}")
    return commandline.code(checks)


def _units(found: Score, unit: str) -> list[Check]:
    """Return what the law says against the unit of the losses."""
    import numpy as np

    from analysis.diagnostics import foreseen

    observed, said = (np.array([getattr(line, name) for line in found.lines]) for name in ("observed", "predicted"))
    keys, other = [line.key for line in found.lines], bool(found.other_corpora)
    return foreseen.units(keys, observed, said, unit, other_corpus=other)


def _form(fit: Fit) -> str:
    """Return the law that a fit was asked for, by its name."""
    from analysis.laws.registry import CURVES, FORMS

    name = str((fit.record.get("options") or {}).get("form", ""))
    return name if name in FORMS or name == CURVES else "chinchilla"


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return commandline.run("analysis.score", PURPOSE, KEYS, act, given, examples=EXAMPLES)
