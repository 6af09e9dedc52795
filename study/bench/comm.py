"""`python -m study bench comm`: collectives over message sizes, the links fitted to them, and a GPU's ceilings."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from analysis.text.commandline import Key
from study.bench.comm_ranks import measure
from study.bench.comm_report import as_csv, device_lines, draw, fit_rows, profile_of, rows, table
from study.bench.comm_results import Fits, Results, fits_of, results_of
from study.bench.comm_settings import CommSettings, Wanted, gpu_count, wanted
from study.bench.scratch import scratch_folder
from study.storage.files import write_atomic
from study.storage.mounts import check_folder
from train.spec.communication.cluster import write_profile

PURPOSE = "Time collectives between ranks of this machine, fit links to them, and measure a GPU where there is one."
KEYS = tuple(
    Key(one.name, one.metadata["help"], one.default, kind=str(one.type).removesuffix(" | None").replace("str", "text"))
    for one in fields(CommSettings)
)


def run(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Measure, fit and save; return it as lines of text and as fields of the JSON object.

    Where Ctrl-C ended it, what was measured until then, and `interrupted`. ValueError names key, value and what is
    allowed.
    """
    asked = wanted(words, gpu_count())
    if asked.profile is not None and asked.profile.exists() and not asked.force:
        raise ValueError(f"profile={asked.profile} is there already: force=true replaces it, or choose another file")
    check_folder(f"out={asked.out}", asked.out)
    if asked.profile is not None:
        check_folder(f"profile={asked.profile}", asked.profile.parent)
    results, interrupted = _results(asked)
    fits = fits_of(results.points)
    files = _save(asked, results, fits) if results.points or results.device else {}
    lines = _lines(results, fits, files)
    if interrupted:
        count, of = len(results.points), results.about.get("wanted", "?")
        none = ", without the profile" if asked.profile is not None else ""
        lines.append(f"interrupted: {count} of {of} messages were measured, and are kept{none}")
    return lines, as_fields(results, fits, files) | {"interrupted": interrupted}


def as_fields(results: Results, fits: Fits, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the JSON object."""
    about = {name: results.about.get(name) for name in ("machine", "versions", "backend", "ranks")}
    return {
        "what": "comm",
        **about,
        "complete": results.complete,
        "points": rows(results, fits),
        "fits": fit_rows(fits),
        "unfitted": [{"level": where, "collective": name, "why": why} for (where, name), why in fits.why.items()],
        "device": None if results.device is None else asdict(results.device),
        "files": dict(files),
    }


def _results(asked: Wanted) -> tuple[Results, bool]:
    """Return what was measured, now or before, and whether Ctrl-C ended it."""
    if asked.results is not None:
        results = results_of(asked.results)
        if not results.points and results.device is None:
            raise ValueError(
                f"results={asked.results} holds no measurement: give what a measurement wrote, or leave it out"
            )
        return results, False
    messages = len(asked.collectives) * len(asked.sizes)
    alone = "one GPU, without messages: its ceilings, about half a minute"
    _log(alone if asked.ranks == 1 else f"{asked.ranks} ranks over {asked.backend}: {messages} messages")
    with scratch_folder() as folder:
        file = folder / "results.jsonl"
        whole = measure(asked, file, _log)
        return (results_of(file) if file.is_file() else Results({}, (), None, False)), not whole


def _log(line: str) -> None:
    """Tell of progress: results alone are on stdout."""
    print(line, file=sys.stderr, flush=True)


def _save(asked: Wanted, results: Results, fits: Fits) -> dict[str, str]:
    profile = None
    if asked.profile is not None and results.complete:  # half a measurement is no profile
        profile = profile_of(results, fits, asked.profile.stem, datetime.datetime.now(datetime.UTC).date())
    files = {}
    if results.points:
        asked.out.mkdir(parents=True, exist_ok=True)
        files = {"csv": asked.out / "comm.csv", "picture": asked.out / "comm.png"}
        write_atomic(files["csv"], as_csv(results, fits))
        draw(results, fits, files["picture"])
    if profile is not None and asked.profile is not None:
        asked.profile.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(asked.profile, write_profile(profile))
        files["profile"] = asked.profile
    return {name: str(path) for name, path in files.items()}


def _lines(results: Results, fits: Fits, files: Mapping[str, str]) -> list[str]:
    if not results.points and results.device is None:
        return ["nothing was measured"]
    about = f"{results.about.get('machine', 'unknown machine')}; {results.about.get('versions', 'unknown versions')}"
    measured = table(results, fits) if results.points else device_lines(results.device)[1:]
    return [about, "", *measured, *([""] if files else []), *(f"wrote {path}" for path in files.values())]
