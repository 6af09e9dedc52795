"""Several laws on the same runs, side by side: what `python -m analysis.compare` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.diagnostics import at_rows
from analysis.estimation.losses import LOSSES
from analysis.results import load
from analysis.text import commandline, numbers, terminal
from analysis.text.commandline import Key
from analysis.values.findings import FINDINGS, finding
from analysis.values.json_values import to_json

if TYPE_CHECKING:
    import pandas as pd

PURPOSE = "Several laws on the same runs: information criteria, held-out error, and what is wrong with each."
DEFAULT = "chinchilla,chinchilla_tied,chinchilla_interaction,kaplan,kaplan_floor,farseer"
KEYS = (
    *load.KEYS,
    Key("forms", "laws by name, separated by commas; list prints them all", DEFAULT),
    Key("loss", "loss function on log residuals; squared: a likelihood that all laws share; linear: on plain ones",
        "squared", choices=tuple(LOSSES)),
    Key("resamples", "bootstrap resamples of each law", 0, commandline.resamples),
    Key("seed", "seed of the resamples", 0, commandline.whole),
    Key("out", "folder for compare.json (default: none is written)"),
)  # fmt: skip
LONG = 5_000
"""More runs than this take long enough for lines that say how far it is."""
COLUMNS = ("rank", "aicc", "delta_aicc", "weight", "aic", "bic", "k", "objective", "error", "warning")


def compare(
    frame: pd.DataFrame,
    forms: Sequence[str],
    *,
    loss: str = "squared",
    tell: Callable[[str], None] | None = None,
    **given: Any,
) -> pd.DataFrame:
    """Return one row a law: rank, AICc, its lead and weight, AIC, BIC, constants, objective, held-out error, warning.

    Parameters
    ----------
    frame : DataFrame
        A tidy frame (see :mod:`analysis.inputs.frame`).
    forms : sequence of str
        Laws by name (see `analysis.laws.registry.FORMS`), by paper or as text.
    loss : str
        Loss function on log residuals.
    tell : callable, optional
        Called, of more than 5,000 runs, with a line before each law is fitted and before they are judged.
    **given
        Further arguments of :func:`analysis.fit_law`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from analysis import frame
    >>> runs = frame.from_csv(Path("docs/example-runs.csv"))
    >>> table = compare(runs, ["chinchilla", "kaplan"], resamples=0)
    >>> list(table.index)
    ['chinchilla', 'kaplan']
    """
    from analysis.inference.fit_law import fit_law
    from analysis.inference.selection import compare as side_by_side
    from analysis.inputs.frame import used
    from analysis.laws.registry import resolve

    rows = used(frame)
    tell = tell if len(rows) > LONG else None
    fits, failed = [], {}
    names = list(dict.fromkeys(resolve(form, key="forms") for form in forms))
    for number, name in enumerate(names, 1):
        if tell is not None:
            tell(f"fitting law {number} of {len(names)} to {len(rows)} runs: {name}")
        try:
            fits.append(fit_law(rows, form=name, loss=loss, **given))
        except ValueError as error:
            failed[name] = str(error)
    if not fits:
        raise ValueError("; ".join(f"{name}: {why}" for name, why in failed.items()))
    if tell is not None:
        tell("judging them: which constants the runs identify, and the largest fifth of the runs from the others")
    table = side_by_side(fits)
    for name, why in failed.items():
        table.loc[name, "warning"] = f"not fitted: {why}"
    return table


EXPLAINED = (
    "behind    AICc above the best law's; weight: Akaike's, of AICc; k: fitted constants",
    "held out  mean |error| of the largest fifth of the runs, predicted from the others",
)
"""What the columns are that AIC's name does not say."""


def listing() -> str:
    """Return all laws by name, with their text and what they read."""
    from analysis.laws.registry import FORMS

    width = max(map(len, FORMS))
    return "\n".join(
        f"{name:<{width}}  {form.text}  [{form.target} of {', '.join(form.inputs)}]" for name, form in FORMS.items()
    )


def text(table: pd.DataFrame) -> str:
    """Return the comparison as lines for a terminal: a row a law, then what each code means and what to do."""
    width = max(len(str(name)) for name in table.index)
    head = f"{'':<{width}} {'AICc':>8} {'behind':>7} {'weight':>7} {'AIC':>8} {'BIC':>8} {'k':>3} {'held out':>9}"
    lines = [head]
    for name, row in table.iterrows():
        lines.append(
            f"{name:<{width}} {_criterion(row.get('aicc')):>8} "
            f"{numbers.number(row.get('delta_aicc')):>7} {numbers.number(row.get('weight'), 2):>7} "
            f"{_criterion(row.get('aic')):>8} {_criterion(row.get('bic')):>8} "
            f"{_whole(row.get('k')):>3} {numbers.percent(row.get('error')):>9}"
        )
        warning = str(row.get("warning") or "")
        lines += [f"{'':<{width}}   {warning}"] if warning and warning != "nan" else []
    lines += ["", *EXPLAINED]
    if found := table.attrs.get("findings"):
        lines += [
            "",
            *(str(finding(code, FINDINGS[code].means, check.advice, check.level)) for code, check in found.items()),
        ]
    return "\n".join(lines).translate(numbers.ASCII)


def act(options: Mapping[str, Any]) -> int:
    """Print the comparison, and write compare.json where a folder is given."""
    if options["forms"] == "list":
        print(listing())
        return 0
    frame = load.load(options)
    names = [part.strip() for part in options["forms"].split(",") if part.strip()]
    table = compare(
        frame, names, loss=options["loss"], tell=terminal.complain, resamples=options["resamples"], seed=options["seed"]
    )  # fmt: skip
    checks = at_rows.findings(frame, str(table.index[0]))
    for check in checks:
        terminal.show(str(check))
    terminal.show(text(table))
    if options["out"]:
        path = Path(options["out"]) / "compare.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"form": str(name), **row.to_dict()} for name, row in table.iterrows()]
        path.write_text(json.dumps(to_json({"loss": options["loss"], "laws": lines}), indent=1) + "\n")
        print(f"wrote {path}")
    return commandline.code((*checks, *table.attrs.get("findings", {}).values()))


def _criterion(value: Any) -> str:
    number = numbers.finite(to_json(value))
    return numbers.MISSING if number is None else f"{number:.2f}"


def _whole(value: Any) -> str:
    number = numbers.finite(to_json(value))
    return numbers.MISSING if number is None else f"{number:.0f}"


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return commandline.run("analysis.compare", PURPOSE, KEYS, act, given)
