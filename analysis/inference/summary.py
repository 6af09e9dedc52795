"""Summaries of fits: the table as text, HTML, LaTeX and CSV, and the machine-readable record."""

from __future__ import annotations

import html
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.text import numbers
from analysis.values.blocks import Block, Check
from analysis.values.json_values import to_json

if TYPE_CHECKING:
    from analysis.inference.inferred_law import InferredLaw

Table = tuple[tuple[str, ...], ...]
CORRELATED = 0.9
_TEX = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "^": r"\^{}", "$": r"\$"}


@dataclass(frozen=True)
class Summary:
    """A titled table of facts, a table of constants (first row its head), and numbered notes."""

    title: str
    facts: Table
    constants: Table
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return self.as_text()

    def _repr_html_(self) -> str:
        return self.as_html()

    def as_text(self) -> str:
        """Return it for a terminal."""
        facts = _aligned([f"{name}:", value] for name, value in self.facts)
        table = _aligned(self.constants)
        width = max(len(line) for line in (*facts, *table))
        rule = "=" * width
        notes = [f"[{i}] {note}" for i, note in enumerate(self.notes, start=1)]
        head = (self.title.center(width).rstrip(), rule, *facts, rule)
        return "\n".join((*head, table[0], "-" * width, *table[1:], rule, *notes))

    def as_html(self) -> str:
        """Return it as a fragment of HTML."""
        rows = "".join(f"<tr><th scope='row'>{_h(n)}</th><td>{_h(v)}</td></tr>" for n, v in self.facts)
        head = "".join(f"<th scope='col'>{_h(c)}</th>" for c in self.constants[0])
        body = "".join("<tr>" + "".join(f"<td>{_h(c)}</td>" for c in row) + "</tr>" for row in self.constants[1:])
        notes = "".join(f"<li>{_h(note)}</li>" for note in self.notes)
        return (
            f"<table class='facts'><caption>{_h(self.title)}</caption><tbody>{rows}</tbody></table>"
            f"<table class='constants'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><ol>{notes}</ol>"
        )

    def as_latex(self) -> str:
        """Return it as two tabulars and an enumeration."""
        facts = " \\\\\n".join(f"{_t(n)} & {_t(v)}" for n, v in self.facts)
        body = " \\\\\n".join(" & ".join(_t(c) for c in row) for row in self.constants[1:])
        head = " & ".join(_t(c) for c in self.constants[0])
        items = "\n".join(f"\\item {_t(note)}" for note in self.notes)
        listed = f"\n\\begin{{enumerate}}\n{items}\n\\end{{enumerate}}" if self.notes else ""
        columns = "l" + "r" * (len(self.constants[0]) - 1)
        return (
            f"\\begin{{tabular}}{{ll}}\n\\multicolumn{{2}}{{c}}{{{_t(self.title)}}} \\\\\n\\hline\n"
            f"{facts} \\\\\n\\end{{tabular}}\n\n\\begin{{tabular}}{{{columns}}}\n\\hline\n{head} \\\\\n\\hline\n"
            f"{body} \\\\\n\\hline\n\\end{{tabular}}{listed}"
        )

    def as_csv(self) -> str:
        """Return the table of constants as CSV."""
        quoted = ([f'"{c}"' if "," in c else c for c in row] for row in self.constants)
        return "\n".join(",".join(row) for row in quoted)


def summary(fit: InferredLaw, checks: Sequence[Check]) -> Summary:
    """Return the summary of a fit and its findings."""
    evidence = fit.optimizer
    facts = (
        ("law", fit.form.text),
        ("reference", str(getattr(fit.form, "reference", ""))),
        ("loss function", fit.loss_function),
        ("objective (summed)", f"{fit.objective:.12g}"),
        ("rows, residual df", f"{fit.nobs}, {fit.df_resid}"),
        ("log likelihood", f"{fit.llf:.4f}"),
        ("AICc, AIC, BIC", f"{fit.aicc:.2f}, {fit.aic:.2f}, {fit.bic:.2f}"),
        ("starts that agree", f"{numbers.percent(evidence.agree_share)} of {evidence.starts}"),
        ("basins", str(len(evidence.basins))),
        ("relative gradient", numbers.scientific(evidence.gradient_norm)),
        ("intervals", f"{100 * fit.confidence:g} %, {fit.interval_method}"),
    )
    ends, spread = fit.conf_int(), fit.bse
    low, high = (f"{100 * q:.3g} %" for q in (0.5 - fit.confidence / 2, 0.5 + fit.confidence / 2))
    rows = [("", "value", "std err", f"[{low}", f"{high}]", "")]
    values = {**fit.params.to_dict(), **fit.derived.to_dict()}
    for key, value in values.items():
        name = str(key)
        mark = "held" if name in fit.held else "" if fit.identified[name].identified else "not identified"
        error = spread.get(name, float(fit.draws[name].std()) if len(fit.thetas) else np.nan)
        rows.append((name, _n(value), _n(error), _n(ends[0][name]), _n(ends[1][name]), mark))
    notes = tuple(f"{check.code}: {check.message}; {check.advice}." for check in checks)
    return Summary(f"{fit.form.name}: {fit.form.target}", facts, tuple(rows), (*notes, *_correlations(fit)))


def record(fit: InferredLaw, block: Block) -> dict[str, Any]:
    """Return what a report of the fit and its block has to say, down to seeds and versions."""
    return {
        **to_json(block),
        "name": fit.form.name,
        "reference": str(getattr(fit.form, "reference", "")),
        "constraints": dict(fit.constraints),
        "residual": "predicted - observed" if fit.problem.plain else "ln predicted - ln observed",
        "nobs": fit.nobs,
        "df_resid": fit.df_resid,
        "llf": fit.llf,
        "aicc": fit.aicc if np.isfinite(fit.aicc) else None,
        "aic": fit.aic,
        "bic": fit.bic,
        "bse": to_json(fit.bse.to_dict()),
        "kinds": dict(fit.kinds),
        "interval_method": fit.interval_method,
        "confidence": fit.confidence,
        "resamples": len(fit.thetas),
        "undefined_draws": {name: share for name, share in fit.undefined.items() if share > 0},
        "seed": fit.seed,
        "model_sizes": len(np.unique(fit.data.size)),
        "ranges": {
            name: [float(values.min()), float(values.max())]
            for name, values in ((name, fit.data.columns[name]) for name in fit.form.inputs)
        },
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in ("scaling-study", "numpy", "scipy", "pandas"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _correlations(fit: InferredLaw) -> tuple[str, ...]:
    """Return a note on pairs of constants, on the scale that they are fitted on, that move together."""
    if len(fit.thetas) < 20:
        return ()
    names = [name for name in fit.form.names if name not in fit.held]
    draws = np.log(np.maximum(fit.draws[names].to_numpy(), 1e-300))
    with np.errstate(invalid="ignore", divide="ignore"):
        table = np.atleast_2d(np.corrcoef(draws, rowvar=False))
    pairs = [
        f"{names[i]} {names[j]} {table[i, j]:+.3f}"
        for i in range(len(names))
        for j in range(i)
        if np.isfinite(table[i, j]) and abs(table[i, j]) > CORRELATED
    ]
    return (f"correlations beyond {CORRELATED}: {', '.join(pairs)}.",) if pairs else ()


def _aligned(rows: Any) -> list[str]:
    table: Sequence[Sequence[str]] = [list(row) for row in rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = []
    for row in table:
        left = len(row) == 2
        cells = (c.ljust(w) if left or not i else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        lines.append("  ".join(cells).rstrip())
    return lines


def _n(value: Any) -> str:
    number = float(value)
    return numbers.number(number, 5) if np.isfinite(number) else "inf" if number > 0 else "-inf" if number < 0 else "-"


def _h(text: str) -> str:
    return html.escape(text)


def _t(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)
