"""`python -m analysis.fit`: from runs to scaling laws, `fit.json`, `metrics.json`, `runs.csv` and `report.html`.

In Python, `analysis.fit(runs)` is the function :func:`analysis.notebook.fit`, which returns what the command finds.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from analysis.text.start import start

    start("analysis.fit")

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.results.fit_keys import EXAMPLES, KEYS, PURPOSE, parse
from analysis.results.fitted import fitted, write
from analysis.results.load import load_frame
from analysis.results.predicted import with_prediction
from analysis.text import commandline, files
from analysis.values.study_result import Fit

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KEYS", "fit", "load_frame", "main", "parse", "with_prediction", "write"]


def fit(frame: pd.DataFrame, options: Mapping[str, Any] | None = None, **given: Any) -> Fit:
    """Return all fits, the backtest and the recommendation for a tidy frame.

    Parameters
    ----------
    frame : DataFrame
        A tidy frame (see :mod:`analysis.inputs.frame`).
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
    return fitted(frame, {key.name: key.default for key in KEYS} | dict(options or {}) | given)[0]


def act(options: Mapping[str, Any]) -> int:
    """Fit, write and print."""
    from analysis.inputs import large
    from analysis.laws.registry import resolve

    options = {**options, "form": resolve(options["form"], curves=True)}
    if options["out"]:
        files.check_folder("out", Path(options["out"]))
    frame = load_frame(options)
    large.told(len(frame))
    large.log.info("%d rows read, %d of them are fitted", len(frame), int(frame["used"].sum()))
    result = fit(frame, options)
    folder = Path(options["out"] or Path("reports") / result.study)
    write(result, frame, folder)
    page = None
    if options["report"]:
        from analysis.report.write import write as write_report

        runs = Path(options["runs"])
        page = write_report(folder / "fit.json", folder, runs if runs.is_dir() else None).report
    _print(result, folder, page)
    return commandline.code(result.checks)


def _print(result: Fit, folder: Path, page: Path | None) -> None:
    """Print the findings, what was written, and last the law and the recommendation."""
    from analysis.report import sentences
    from analysis.report.terminal import summary, used
    from analysis.text import terminal

    for check in result.checks:
        terminal.show(str(check))
    also = "" if page is None else f", {page.name}"
    print(f"wrote    {folder / 'fit.json'}, runs.csv{also} ({used(result)})\n")
    terminal.show(summary(sentences.read(result), told=True))


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return 0, 2 with a message where the arguments or the runs are wrong, 3 without an answer.

    Without an answer all is written and printed, but nothing is recommended.
    """
    return commandline.run("analysis.fit", PURPOSE, KEYS, act, given, examples=EXAMPLES)
