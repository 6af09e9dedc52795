"""Files that a function reads for itself: damaged, cut off or hostile, they are named or absent, and no traceback."""

from __future__ import annotations

import io
import json
import warnings
import zlib
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import study as package
from study.bench import strategies
from study.bench.comm_results import results_of
from study.bench.pipeline_measured import about_of, size_of
from study.bench.pipeline_measured import earlier as earlier_pairs
from study.bench.pipeline_table import Asked as Pairs
from study.bench.pipeline_table import Found as Pair
from study.bench.strategies_runs import Records, Row
from study.bench.strategies_settings import asked_of
from study.cleanup.checkpoints import needs
from study.commands import completion, reproduce
from study.config.single import composed
from study.diagnosis.step_times import read_step_times
from study.doctor import probe, trial
from study.executors.base import RankInfo
from study.job import hang_watch
from study.job.attempt import Pauses
from study.process import code_snapshot, code_version
from study.records.heartbeats import read_beat
from study.records.last_sign import last_metrics
from study.search import settings
from study.search.labels import Labels
from study.search.trial_queue import TrialQueue
from study.storage.layout import RunFolder, StudyFolder
from study.storage.shapes import DamagedRecord
from study.tracking import fit_file, state, study_note
from study.tracking.law import law_metrics, law_words
from study.workers.rank_sync import Decision, RankSync
from tests.study.support.searches import advance, make_search
from tests.study.support.spoilt import spoilt

TIME = 1_760_000_000.0
MOST = 100
"""Of all wrong values of a file so many are taken, by a seed."""


def as_it_is(text: bytes) -> bytes:
    return text


def a_line(text: bytes) -> bytes:
    return text.replace(b"\n", b" ") + b"\n"


def an_event(text: bytes) -> bytes:
    return b"%08x %08x %s\n" % (len(text), zlib.crc32(text), text)


@dataclass(frozen=True)
class Case:
    """Where a record lies below a folder, one that is whole, what reads it, and what that returns of none.

    refused: what is no record is refused, with the file's name. silent: that it is absent is not said, for it is read
    again in a moment, or is of no weight.
    """

    path: str
    record: Mapping[str, Any]
    read: Callable[[Path], Any]
    absent: Any = None
    refused: bool = False
    silent: bool = False
    wrapped: Callable[[bytes], bytes] = as_it_is

    def write(self, folder: Path, text: bytes) -> Path:
        path = folder / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.wrapped(text))
        return path


def found_elsewhere(folder: Path) -> str | None:
    run = RunFolder(folder)
    return hang_watch.Watch(run, run.attempt(1), 2, hang_watch.Bounds())._found_elsewhere({0: None})


def meeting(folder: Path) -> tuple[str, int] | None:
    try:
        return probe._meet(folder, RankInfo("local", "7", rank=1, world=2))
    except TimeoutError:
        return None


def surroundings(folder: Path) -> bool | None:
    return bool(probe.surroundings(folder)["sees_letter"]) or None


def checked(folder: Path) -> list[Any]:
    found = trial._read(folder, 1)
    trial.checks_of(trial.Trial(found, "7"), "login")
    return found


def home(folder: Path) -> Path | None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(package, "__file__", str(folder / "copy" / "study" / "__init__.py"))
        code_snapshot.ran(StudyFolder(folder), "v", "frozen")
        found = code_version.home()
    return None if found == folder / "copy" else found


def measured_earlier(folder: Path) -> list[Row]:
    rows, failures = strategies.earlier(replace(ASKED, out=folder))
    assert rows or not failures
    return rows


def shown(folder: Path) -> Mapping[str, Any] | None:
    fit = fit_file.read_fit(folder / "fit.json")
    study = study_note.Study("1", "p", [], "2 completed", fit)
    assert study_note.note(study) and study_note.headline(study)
    json.dumps([law_metrics(fit or {}), law_words(fit or {})])
    return fit


def answered(folder: Path) -> dict[str, Any] | None:
    run = RunFolder(folder)
    answer = run.attempt(1).pause.with_name("pause.answer")
    answer.unlink(missing_ok=True)
    Pauses(run.attempt(1), lambda: 8192).look()
    return None if not answer.exists() else json.loads(answer.read_text(encoding="utf-8"))


def followed(folder: Path) -> int:
    labels = Labels(StudyFolder(folder / "s"))
    labels.refresh()
    return len(TrialQueue.of(StudyFolder(folder / "s")).search.trials)


def steps(folder: Path) -> int:
    try:
        return read_step_times(folder / "metrics.jsonl").records
    except ValueError as error:
        assert "has no timed step yet" in str(error)
        return 0


def recorded(folder: Path) -> Mapping[int, Any]:
    records = Records(folder)
    records.look()
    return records.train


def locked(folder: Path) -> bool:
    reproduce.forget_the_dead(folder / "rwlock")
    return (folder / "rwlock").exists()


def decided(folder: Path) -> Decision:
    return RankSync(StudyFolder(folder), RankInfo("slurm", "7", world=2)).read()


ASKED = asked_of(["steps=8", "model.width=64", "model.layers=2", "data.sequence_length=32"], 0, composed)
MEASURED = Row("ddp", seconds_step=0.25, messages=6, sent=2e7, losses=(6.0, 5.0), traces=("a",))
KEPT = {
    **strategies._about(ASKED),
    "machine": strategies.machine(ASKED),
    "versions": strategies.versions(),
    "interrupted": True,
    "rows": [asdict(MEASURED)],
    "failures": [],
}
PAIRS = Pairs(2, (4,), ("1f1b",), stages=2, forward_ms=1.0, backward_ms=2.0)
ABOUT = about_of(PAIRS, "gloo", size_of("gloo", None, None, None))
PAIR = Pair("1f1b", 4, 0.25, 0.23, 0.2, 0.2, step_ms=61.0, simulated_ms=60.0)
BEAT = {"beats": 3, "step": 1, "phase": "train", "allow": 1.0, "median": 0.1, "own": 0.1, "where": "n", "time": TIME}
STEP = {
    "kind": "train", "step": 8, "tokens": 64, "time": TIME, "path": 0,
    "metrics": {"loss": 3.0, "seconds_step": 0.5, "seconds_data": 0.1, "mfu": 0.3},
}  # fmt: skip
SAW = {
    "host": "h", "node": "n", "type": "nfs", "torch_code": 0, "torch_error": "", "sees_letter": True,
    "lock_held": True, "scontrol": True, "py_spy": True, "tracking": "", "rank": 0, "world": 1, "time": TIME,
    "torch": {"torch": "2.9", "device": "cpu", "ranks": 2, "backend": "gloo", "gb_per_s": 1.5},
}  # fmt: skip
INTERVAL = {"params": [1e4, 3e4]}
FIT = {
    "form": "E + A/N^alpha + B/D^beta", "status": "ok", "reason": "", "confidence": 0.95,
    "interval_method": "bootstrap",
    "params": {"E": 2.25, "A": 265.0, "B": 15.0, "alpha": 0.88, "beta": 0.33}, "derived": {"a": 0.27},
    "intervals": {"E": [2.1, 2.45], "A": [6.4, None]},
    "identified": {"B": {"identified": False, "side": "upper", "limit": 20.0}},
    "runs": {"used": 11, "total": 12, "largest_flops": 1e12},
    "recommendation": {
        "budget_flops": 3.2e11, "params": 20427.0, "tokens": 1.64e6, "intervals": INTERVAL, "approach": "surface",
        "growth": {"params": {"value": 1e4, "reference_flops": 1e11, "exponent": 0.5, "interval": [0.4, 0.6]}},
        "optima": [{"budget_flops": 1e11, "params": 1e4, "tokens": 1e6, "loss": 2.0, "intervals": INTERVAL}],
    },
    "backtest": {"relative_error": 0.018, "held_out_budget": 1.6e10, "predicted": 2.0},
    "checks": [{"level": "warning", "message": "few sizes", "advice": "add some"}],
}  # fmt: skip
POINT = {"key": "a", "config": {"schedule": {"parent": "/elsewhere/s/k/checkpoints/step-000000001"}}}
DECISION = {"number": 1, "key": "k", "claim": 0, "until": 100, "ended": False, "over": None}
SOURCES = {"times": "t", "content": "c"}
CASES = {
    "pause": Case("attempts/1/pause.asked", {"number": 1, "tokens": 4096}, answered),
    "hang": Case("attempts/1/hang.json", {"why": "rank 1 stands", "time": TIME}, found_elsewhere),
    "beat": Case("beat.0", BEAT, lambda at: read_beat(at / "beat.0"), silent=True),
    "metrics": Case(
        "metrics.jsonl", STEP, lambda at: last_metrics(RunFolder(at)), silent=True, wrapped=a_line
    ),
    "pace": Case(
        "metrics.jsonl", STEP, lambda at: hang_watch._records(at / "metrics.jsonl")[1],
        silent=True, wrapped=lambda text: 2 * a_line(text),
    ),
    "timed step": Case("metrics.jsonl", STEP, steps, 0, silent=True, wrapped=a_line),
    "step of a benchmark": Case("metrics.jsonl", STEP, recorded, {}, silent=True, wrapped=a_line),
    "letter": Case("letter.json", {"from": "login", "tracking": ""}, surroundings),
    "meeting": Case("meeting.json", {"address": "127.0.0.1", "port": 29500}, meeting),
    "surroundings": Case("rank-0.json", SAW, checked, []),
    "marker": Case("copy/.frozen.json", {"format": 1, "id": "v", "home": "/h", "time": TIME}, home),
    "marker of ours": Case(
        "copy/.frozen.json", {"id": "copy", "home": "/h"}, lambda at: code_snapshot.is_ours(at / "copy") or None
    ),
    "code": Case(
        "code/v.json", {"format": 1, "dirty": True, "sha": "a", "sources": SOURCES},
        lambda at: code_snapshot.ran(StudyFolder(at), "v", "live"),
    ),
    "decision": Case("crews/7.0.json", DECISION, decided, Decision(0)),
    "strategies": Case("strategies.json", KEPT, measured_earlier, []),
    "pairs": Case(
        "measured.json", {"about": ABOUT, "ended": False, "measured": [asdict(PAIR)]},
        lambda at: earlier_pairs(at, ABOUT), [],
    ),
    "links": Case(
        "links.jsonl", {"about": {"host": "h"}}, lambda at: results_of(at / "links.jsonl"), refused=True, wrapped=a_line
    ),
    "fit": Case("fit.json", FIT, shown),
    "fit of a pipeline": Case(
        "reports/s/fit.json", FIT, lambda at: reproduce._answer(at, Path("reports/s")), refused=True
    ),
    "sent": Case(
        "tracking.json", {"format": state.FORMAT, "owner": "o", "study_id": "i", "stores": {}},
        lambda at: state.load(at / "tracking.json"), state.TrackingState(), silent=True,
    ),
    "lock of DVC": Case("rwlock", {"write": {"a": {"pid": 1, "cmd": "c"}}, "read": {}}, locked, False, silent=True),
    "neighbour": Case(
        "t/points.jsonl", POINT, lambda at: needs(StudyFolder(at / "s"), {}).folders, refused=True, wrapped=a_line
    ),
    "point to complete": Case("points.jsonl", POINT, completion.points, [], silent=True, wrapped=a_line),
}  # fmt: skip


def in_words(folder: Path, case: Case, text: bytes) -> tuple[Any, str]:
    """Return what is read of a file, and what is said of it: a warning or a refusal; no other error is let through."""
    path = case.write(folder, text)
    with warnings.catch_warnings(record=True) as caught, redirect_stderr(io.StringIO()):
        warnings.simplefilter("always", DamagedRecord)
        try:
            found = case.read(folder)
        except ValueError as error:
            assert path.name in str(error), error
            return None, str(error)
    said = [str(one.message) for one in caught if issubclass(one.category, DamagedRecord)]
    assert all(path.name in one for one in said)
    return found, "\n".join(said)


def texts(record: Any) -> dict[str, bytes]:
    """Return files that hold no record at all."""
    whole = json.dumps(record).encode()
    return {
        "empty": b"", "cut off": whole[: len(whole) // 2], "a list": b"[%s]" % whole, "text": b'"x"', "a number": b"3",
        "null": b"null", "deep": b"[" * 100_000, "bytes": b"\xff\xfe\x00{", "twice": whole + whole,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MEET_SECONDS", 0.01)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(reproduce, "_is_dvc", lambda pid: pid == 1)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.refused])
def test_a_record_is_read_and_what_is_none_is_named_and_absent(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    whole, said = in_words(tmp_path, case, json.dumps(case.record).encode())
    assert whole != case.absent and not said
    for kind, text in texts(case.record).items():
        found, said = in_words(tmp_path, case, text)
        assert found == case.absent and bool(said) is not case.silent, kind


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.refused])
def test_what_may_not_be_absent_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    for kind, text in texts(case.record).items():
        if kind == "empty" and case.wrapped is a_line:
            continue
        marked = text if name != "neighbour" or b'"parent": "/' in text else text + b'"parent":"/'
        found, said = in_words(tmp_path, case, marked.replace(b'"parent": "/', b'"parent":"/'))
        assert found is None and said, kind


@pytest.mark.parametrize("name", CASES)
def test_a_value_of_another_kind_ends_nothing_in_a_traceback(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    for record in spoilt(case.record, name, MOST):
        in_words(tmp_path, case, json.dumps(record).encode())


@pytest.mark.parametrize("file", ["search", "events"])
def test_a_search_that_is_damaged_is_named_and_never_taken_for_none(tmp_path: Path, file: str) -> None:
    folder = make_search(tmp_path / "s")
    advance(folder, 2)
    path = folder.search if file == "search" else folder.events
    whole = path.read_bytes()
    case = Case(f"s/{path.name}", {}, followed, refused=True)
    for kind, text in texts({"event": "stopped", "why": "w"}).items():
        later = an_event(b'{"event":"later"}')  # without one behind it, it is a torn end
        found, said = in_words(tmp_path, case, text if file == "search" else whole + an_event(text) + later)
        assert found is None and path.name in said, kind
        path.write_bytes(whole)
    assert followed(tmp_path) and settings.load(StudyFolder(tmp_path / "t")) is None


def test_an_event_with_values_of_another_kind_is_named(tmp_path: Path) -> None:
    folder = make_search(tmp_path / "s")
    queue = advance(folder, 2)
    whole = folder.events.read_bytes()
    case = Case(f"s/{folder.events.name}", {}, followed, refused=True)
    for number, record in enumerate(queue.log.records):
        for wrong in spoilt(record, str(number), 20):
            in_words(tmp_path, case, whole + an_event(json.dumps(wrong).encode()))
