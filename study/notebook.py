"""What a notebook does with studies: submit a sweep, see how its points stand.

>>> from study.notebook import words
>>> words("study=isoflop", "cluster=slurm", sweep={"model.width": [512, 768], "optim.name": ["adamw"]})
['study=isoflop', 'cluster=slurm', 'model.width=512,768', 'optim.name=adamw', '-m']
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports, which take their time
    from train.spec.interrupts import no_command

    no_command(
        "study.notebook",
        "in Python, study.submit(...) and study.points(...); in a shell, python -m study.sweep and python -m study",
    )

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.storage.layout import StudyFolder
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd

WRONG = 2
"""Exit code of `python -m study.sweep` for what a person got wrong."""

ERRORS = ("study.sweep: ", "error: ")
"""How an error begins that a person can put right, of this command and of the one that prepares data."""
ERROR_LINES = 2
"""Of an error, which is the last that is printed."""


@dataclass(frozen=True)
class Submitted:
    """A study that was submitted: its name, its folder, and what the command printed."""

    study: str
    folder: Path
    output: str

    def points(self) -> pd.DataFrame:
        """Return how its points stand: see `study.points`."""
        return points(str(self.folder))

    def __repr__(self) -> str:
        """Return the study in one line."""
        return f"Submitted({self.study!r}, folder={str(self.folder)!r})"


@calls.answered(dry_run=calls.truth)
def submit(
    *overrides: str,
    sweep: Mapping[str, Sequence[object]] | None = None,
    dry_run: bool = False,
    show: Callable[[str], object] | None = print,
) -> Submitted:
    """Submit a study, as `python -m study.sweep` does, and return when that command does.

    On a cluster the jobs are then in its queue; on this machine (`cluster=local`) the points have been trained. What is
    submitted already is not submitted again. Ctrl-C stops points of this machine, which a second call resumes.

    Parameters
    ----------
    *overrides : str
        As on the command line: "study=isoflop", "cluster=slurm", "budget.flops=1e18".
    sweep : mapping, optional
        Keys and their values: one point is made for each combination.
    dry_run : bool
        Only show the points, their cost and what would be submitted.
    show : callable, optional
        Called with each line that the command prints; None prints nothing.

    Returns
    -------
    Submitted
        The study's name, its folder and what was printed; `points()` is a frame of how its points stand.

    Raises
    ------
    ValueError
        What the command says is wrong with the overrides.
    RuntimeError
        The command failed otherwise; the message ends with what it printed.

    Examples
    --------
    >>> import study
    >>> made = study.submit("study=isoflop", sweep={"seed": [0, 1]}, dry_run=True, show=None)
    >>> made.study, "40 points" in made.output
    ('isoflop', True)
    """
    given = words(*overrides, sweep=sweep)
    name, runs = _named([word for word in given if word != "-m" and word.partition("=")[0] not in (sweep or {})])
    output = _run([*given, "dry_run=true"] if dry_run else given, show)
    return Submitted(name, (runs / name).absolute(), output)


def words(*overrides: str, sweep: Mapping[str, Sequence[object]] | None = None) -> list[str]:
    """Return the words of the command line; ValueError for what is no word, or a key without values."""
    for override in overrides:
        if not isinstance(override, str):
            raise ValueError(f"{override!r} is no override: give texts, such as 'study=isoflop'")
    if sweep is not None and not isinstance(sweep, Mapping):
        raise ValueError(f"sweep={calls.shown(sweep)}: keys with lists are needed, such as sweep={{'seed': [0, 1]}}")
    lists = []
    for key, values in (sweep or {}).items():
        listed = [] if isinstance(values, str) or not isinstance(values, Iterable) else [*map(_word, values)]
        if not listed:
            raise ValueError(f"sweep: {key}={values!r} is no list of values: give one or more in [ ]")
        lists.append(f"{key}={','.join(listed)}")
    return [*overrides, *lists, *(["-m"] if lists and "-m" not in overrides else [])]


def _word(value: object) -> str:
    """Return a value as it is typed on the command line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


@calls.answered(study=calls.path("isoflop"), runs=calls.path("runs"))
def points(study: str | Path, runs: str | Path = "runs") -> pd.DataFrame:
    """Return how a study's points stand, as `python -m study status` does: one row a point, by key.

    Columns: state, why, one for each key that the points differ in, attempt, step, tokens, budget_tokens, loss [nats
    per token], seconds, job_id, nodes. A study that is a search has a row for each trial. Raises ValueError where
    there is no such study.

    Parameters
    ----------
    study : str or Path
        Its name, or its folder.
    runs : str or Path
        The folder of the studies.

    Examples
    --------
    >>> import study
    >>> study.points("isoflop").groupby("state").size()  # doctest: +SKIP
    """
    from study.records.settings import find_study

    folder = find_study(str(study), Path(runs))
    return _trials(folder) if folder.search.exists() else _points(folder)


def _points(folder: StudyFolder) -> pd.DataFrame:
    from study.reconcile.observe import observe

    return frame([status.as_json() for status in observe(folder).statuses])


def _trials(folder: StudyFolder) -> pd.DataFrame:
    import time

    from study.search import view
    from study.search.trial_queue import TrialQueue

    said = view.as_json(TrialQueue.of(folder).note_silent().search, folder, time.time())
    return frame([{**trial, **trial["config"]} for trial in said["trials"]], ("verdict", "number", "bracket"))


def frame(records: Sequence[Mapping[str, Any]], first: Sequence[str] = ("state", "why")) -> pd.DataFrame:
    """Return points as a frame by key, their overrides as columns; pure."""
    import pandas as pd

    last = ("attempt", "step", "tokens", "budget_tokens", "loss", "seconds", "job_id", "nodes")
    rows = []
    for record in records:
        overrides = dict(text.partition("=")[::2] for text in record.get("overrides", ()))
        own = {name: record[name] for name in (*first, *last) if name in record}
        swept = {name: _value(value) for name, value in {**overrides, **record.get("config", {})}.items()}
        rows.append({"key": record["key"], **own, **swept})
    keys = dict.fromkeys(name for row in rows for name in row)
    swept_keys = [name for name in keys if name not in ("key", *first, *last)]
    columns = [name for name in (*first, *swept_keys, *last) if name in keys]
    return pd.DataFrame(rows, columns=["key", *columns]).set_index("key")


def _value(text: object) -> object:
    """Return an override's value: a number where it is one."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _named(overrides: Sequence[str]) -> tuple[str, Path]:
    """Return the name of the study that these overrides compose, and the folder of its runs."""
    import yaml

    found: dict[str, Any] = yaml.safe_load(_run(["--cfg", "job", *overrides], None))
    return str(found["study"]["name"]), Path(str(found["paths"]["runs"]))


def _run(given: Sequence[str], show: Callable[[str], object] | None) -> str:
    """Run the command, show its lines as they come, and return them; errors as :func:`submit` says.

    What may be the error is shown once it turns out that it is none: what is raised is not printed as well.
    """
    command = [sys.executable, "-u", "-m", "study.sweep", *given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines: list[str] = []
        held: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            held.append(line.rstrip("\n"))
            while held and show is not None and not (held[0].startswith(ERRORS) and len(held) <= ERROR_LINES):
                show(held.pop(0))
        code = process.wait()
    output = "".join(lines)
    while held and show is not None and code != WRONG:
        show(held.pop(0))
    if code == WRONG:
        begins = [place for place, line in enumerate(lines) if line.startswith("study.sweep: ")]
        said = lines[begins[-1] :] if begins else lines[-1:]
        raise ValueError("".join(said).removeprefix("study.sweep: ").strip())
    if code > 1 or code < 0:
        raise RuntimeError(f"python -m study.sweep {' '.join(given)} ended with {code}:\n{output[-2000:]}")
    return output
