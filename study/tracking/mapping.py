"""What a study looks like in MLflow: names, parameters, tags and statuses, as pure functions of its files."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from analysis.text import numbers
from analysis.text.colours import ramp
from study.config.dotted import flat
from study.records.point import Point
from study.search.view import TrialState
from study.status.states import ENDED, PointState
from study.storage.secrets import Redact
from study.text import scientific
from study.tracking.facts import Facts
from train.spec.config import DataConfig
from train.spec.manifest import folder

STATUS: Mapping[str, str] = {
    PointState.COMPLETED: "FINISHED",
    PointState.FAILED: "FAILED",
    PointState.DIVERGED: "FAILED",
    PointState.INTERRUPTED: "KILLED",
    PointState.TIME_LIMIT: "KILLED",
    PointState.CANCELLED: "KILLED",
    PointState.PENDING: "SCHEDULED",
    PointState.WAITING: "SCHEDULED",
    PointState.QUEUED: "SCHEDULED",
    PointState.RUNNING: "RUNNING",
    PointState.UNKNOWN: "RUNNING",
}
"""MLflow's status of each state. Absence is not evidence: what is unknown counts as running."""

RESULTS = frozenset({PointState.COMPLETED, PointState.DIVERGED})
"""States of a point that has its outcome: running it again would give the same."""

STOPPED = "stopped"
"""State of a run that its search took no further, and takes no further: MLflow calls it KILLED."""

PARENT = "mlflow.parentRunId"
"""The tag by which MLflow shows a run below another."""

NO_GIT, NO_COMMIT = "no-git", "no-commit"
"""What a code version begins with where the code was no git checkout, or one without a commit."""
PARAM_LENGTH = 6000
TAG_LENGTH = 8000
NAME_LENGTH = 120

_NAMED = frozenset(
    {"model.width", "model.layers", "seed", "schedule.parent"}
    | {f"budget.{kind}" for kind in ("flops", "tokens", "tokens_per_param")}
)
"""Overrides that a run's name has in other words, or that are what its parent is."""


@dataclass(frozen=True)
class RunSummary:
    """What a run shall show besides its metrics: tags, status, its end [unix milliseconds]."""

    tags: Mapping[str, str]
    status: str
    ended: int | None = None

    def digest(self) -> str:
        """Return a short hash: the same summary is not sent twice."""
        text = json.dumps([sorted(self.tags.items()), self.status, self.ended])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Corpus(NamedTuple):
    """A prepared corpus: its name, the digest of its tokens, where it lies and how it was made (both JSON)."""

    name: str
    digest: str
    source: str
    profile: str


def run_name(point: Point, redact: Redact) -> str:
    """Return the name of a point's run, `w60 L2 2.5e11 s0`: sizes, budget, what else a person set, seed; else its key.

    The budget is in FLOPs, or in tokens (`3e8tok`) where those were given.
    """
    config = point.raw
    model, budget = config.get("model") or {}, config.get("budget") or {}
    words = [f"{mark}{model[key]}" for mark, key in (("w", "width"), ("L", "layers")) if model.get(key) is not None]
    if budget.get("flops") is not None:
        words.append(_short(budget["flops"]))
    elif budget.get("tokens") is not None:
        words.append(f"{numbers.brief(budget['tokens'])}tok")
    more = [_named(override) for override in point.overrides if override.partition("=")[0].strip("+") not in _NAMED]
    seed = [f"s{config['seed']}"] if words and config.get("seed") is not None else []
    return _cut(redact(" ".join([*words, *more, *seed])).strip() or point.key, NAME_LENGTH)


def earlier_name(point: Point, redact: Redact) -> str:
    """Return the name that a point's run had in earlier versions: its overrides, else its key."""
    return _cut(redact(" ".join(point.overrides)).strip() or point.key, NAME_LENGTH)


def looks(point: Point, colours: Mapping[float, str]) -> dict[str, str]:
    """Return the tags by which MLflow's tables and charts draw a run: in the colour of its budget."""
    budget = (point.raw.get("budget") or {}).get("flops")
    colour = None if budget is None else colours.get(budget)
    return {"mlflow.runColor": colour} if colour else {}


def budget_colours(budgets: Iterable[float]) -> dict[float, str]:
    """Return a colour for each budget of a study, that of the report: dark for small ones, light for large ones."""
    found = sorted(set(budgets))
    return dict(zip(found, ramp(len(found)), strict=True))


def params(config: Mapping[str, Any], redact: Redact) -> list[tuple[str, str]]:
    """Return the flattened config, ``("model.width", "64")``: what json.loads takes is JSON, the rest is text."""
    return [(key, _cut(redact(_text(value)), PARAM_LENGTH)) for key, value in flat(config).items()]


def identity_tags(study_id: str, parent: str | None, key: str | None, user: str) -> dict[str, str]:
    """Return the tags that a run is born with and found again by."""
    tags = {"study_id": study_id, "role": "run" if key else "study", "mlflow.user": user}
    if key and parent:
        tags |= {"point_key": key, PARENT: parent}
    return tags


def run_summary(
    facts: Facts, cluster: str, code: str, redact: Redact, labels: Mapping[str, str] = MappingProxyType({})
) -> RunSummary:
    """Return what a point's run shall show for these facts; `labels`: what its search says of it."""
    job = facts.job or {}
    code = str(job.get("code") or code)
    tags = {
        "state": facts.state,
        "attempt": str(facts.attempt),
        "job_id": str(job.get("job_id") or ""),
        "cluster": str(job.get("executor") or cluster),
        "nodes": " ".join(map(str, job.get("nodes") or [])),
        "code": code,
        **_source(code, "python -m train.run", str(job.get("executor") or cluster)),
        "error": facts.error or facts.why,
        **labels,
    }
    if job.get("source") == "other":
        tags["code_changed"] = "true"
    if facts.outcome is not None:
        tags["outcome"] = json.dumps(facts.outcome, separators=(",", ":"))
    status = "KILLED" if facts.state == STOPPED else STATUS[facts.state]
    return RunSummary(_tags(tags, redact), status, facts.ended)


def of_search(facts: Facts, verdict: str, end: str) -> Facts:
    """Return a run's facts with the state that its search gives it; `verdict` of study.search.labels, `end` of its end.

    A search's runs belong to no batch of points: one that waits at a rung, has failed for good, or was replaced by a
    copy looks alike by its files.
    """
    if facts.state != PointState.PENDING or not verdict:
        return facts
    if verdict == TrialState.FAILED:
        return replace(facts, state=PointState.FAILED, error=facts.error or facts.failure)
    kept = not end and verdict != TrialState.REPLACED
    return facts if kept else replace(facts, state=STOPPED)


def study_summary(
    states: Sequence[str],
    pending: int,
    cluster: str,
    code: str,
    redact: Redact,
    *,
    search: str | None = None,
    ended: int = 0,
) -> RunSummary:
    """Return what the study's own run shall show: its points by state, and a status that sums them up.

    search: how a search has ended, "over" or "stopped", "" while it goes on; None: the study is none.
    ended: when the last of its runs ended [unix milliseconds], 0 before: its own end, however late that is sent.
    """
    counts = Counter[str]({PointState.PENDING: pending}) + Counter(states)
    tags = {
        "points": str(len(states) + pending),
        "states": ", ".join(f"{counts[state]} {state}" for state in sorted(counts)),
        "cluster": cluster,
        "code": code,
        **_source(code, "python -m study.sweep", cluster),
    }
    status = _study_status(frozenset(counts), search)
    return RunSummary(_tags(tags, redact), status, None if status == "RUNNING" else ended or None)


def _study_status(states: Collection[str], search: str | None) -> str:
    """Return MLflow's status of a study whose points are in these states; `search` as in `study_summary`.

    It is FINISHED once nothing is left to run and one point completed. A point that diverged has its result, as has
    every trial of a search that is over. A study's points that failed or were stopped lack theirs.
    """
    if not (set(states) <= ENDED and states if search is None else search):
        return "RUNNING"
    if search == "stopped":
        return "KILLED"
    lacking = {STATUS[state] for state in states if state not in RESULTS} if search is None else set[str]()
    if "FAILED" in lacking or (PointState.COMPLETED not in states and not lacking):
        return "FAILED"
    return "KILLED" if lacking else "FINISHED"


def _source(code: str, program: str, executor: str) -> dict[str, str]:
    """Return the tags by which MLflow says what ran, and of which commit; `code` of study.process.code_version."""
    commit = "" if code.startswith((NO_GIT, NO_COMMIT)) else code.partition("-")[0]
    kind = "" if not executor else "LOCAL" if executor == "local" else "JOB"
    return {"mlflow.source.name": program, "mlflow.source.type": kind, "mlflow.source.git.commit": commit}


def _tags(tags: Mapping[str, str], redact: Redact) -> dict[str, str]:
    """Return the tags that say something."""
    return {name: _cut(redact(value), TAG_LENGTH) for name, value in tags.items() if value or name == "error"}


def _named(override: str) -> str:
    """Return an override as short as it can be told: `optim.lr=0.0200` is `lr=0.02`, `optim.name=muon` is `muon`."""
    key, _, value = override.partition("=")
    last = key.rpartition(".")[2]
    with suppress(ValueError, OverflowError):  # text, or infinite
        value = _short(float(value))
    return value if last == "name" else f"{last}={value}"


def _short(value: float) -> str:
    """Return a number in three digits, or all of a small whole one: 2.53e11, 0.035, 65536."""
    if value == round(value) and abs(value) < 1e6:
        return str(round(value))
    return numbers.brief(value)


def _text(value: Any) -> str:
    """Return text as it is, anything else as JSON; text that could be read as JSON is quoted, and so stays text.

    Numbers are as short as they can be: `4e+09`, `0.035`. They differ from what they were by rounding at most.
    """
    if isinstance(value, float) and math.isfinite(value) and math.isclose(value, float(f"{value:.12g}"), rel_tol=1e-15):
        text = f"{value:.12g}"
        return min(text, scientific(float(text)), key=len)
    if isinstance(value, str) and not _is_json(value):
        return value
    return json.dumps(value, separators=(",", ":"), default=str)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def corpus(config: Mapping[str, Any], redact: Redact) -> Corpus | None:
    """Return the corpus that a point's run reads, as MLflow's datasets have it; None where its digest is not known."""
    data, root = config.get("data") or {}, str((config.get("runtime") or {}).get("data_root") or "data")
    if not data.get("fingerprint"):
        return None
    named = {key: data[key] for key in ("name", "tokenizer", "vocab_size") if key in data}
    place = folder(DataConfig(**named), root)
    told = {name: data.get(name) for name in ("tokenizer", "vocab_size", "validation_fraction", "sequence_length")}
    source = json.dumps({"uri": str(place), **({"of": data["source"]} if data.get("source") else {})})
    return Corpus(place.name, str(data["fingerprint"]), redact(source), json.dumps(told))


def corpora(configs: Iterable[Mapping[str, Any]], redact: Redact) -> list[Corpus]:
    """Return the corpora that points read, each once, in the order of the points; those without a digest are left out.

    Of many points few corpora are made: points that name the same one are told by its name and fingerprint.
    """
    found: dict[tuple[str, str], Corpus | None] = {}
    for config in configs:
        data = config.get("data") or {}
        mark = (str(data.get("name")), str(data.get("fingerprint")))
        if mark not in found:
            found[mark] = corpus(config, redact)
    return [one for one in found.values() if one is not None]


def code_words(code: str) -> str:
    """Return a code version (study.process.code_version) for a person: the commit, and what is beside it.

    >>> code_words("1f32ef5b7050-clean"), code_words("no-git-8a7b6c")
    ('1f32ef5b7050', 'no git checkout (sources 8a7b6c)')
    >>> code_words("1f32ef5b7050-8a7b6c")
    '1f32ef5b7050 with uncommitted changes (patch 8a7b6c)'
    """
    commit, _, changes = code.rpartition("-")
    if commit == NO_GIT:
        return f"no git checkout (sources {changes})"
    if commit == NO_COMMIT:
        return f"no commit (patch {changes})"
    return commit if changes in ("clean", "none") else f"{commit} with uncommitted changes (patch {changes})"
