"""Exactly once, whatever dies when: every call of a sync is cut off before and after its effect."""

import json
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from study.records.metric_names import DERIVED
from study.storage.secrets import redactor
from study.tracking.all_sent import is_all_sent, lacks_report
from study.tracking.metrics_reader import Value
from study.tracking.store import ENTITIES, PARAMS, StoreAwayError
from study.tracking.syncer import Synced, Syncer
from study.watch.sync_process import SyncProcess
from tests.study.support.fake_store import FakeRun, FakeStore, Killed
from tests.study.support.made import (
    T0,
    Made,
    append,
    complete,
    end_attempt,
    expected,
    lines_of,
    make_study,
    record,
    rolled_back,
    start_run,
)

Params = Sequence[tuple[str, str]]
Tags = Mapping[str, str] | None


def syncer(made: Made, store: FakeStore, name: str = "http://h", report: Path | None = None) -> Syncer:
    return Syncer(made.folder, store, name, redactor({}), report)


def populate(path: Path) -> Made:
    """Four points: completed with more values than a call takes, failed, running, not started."""
    made = make_study(path, 4)
    for index, steps in ((0, 400), (1, 7), (2, 12)):
        start_run(made.run(index))
        append(made.run(index), 1, steps)
    complete(made.run(0))
    end_attempt(made.run(1), "failed", error="RuntimeError: https://me:hunter22@host broke")
    made.folder.study.write_text("tracking: {uri: 'http://me:hunter22@host'}\n")
    return made


def test_a_study_becomes_a_parent_and_a_run_for_each_started_point(tmp_path: Path) -> None:
    made, store = populate(tmp_path / "runs" / "s"), FakeStore()
    report = tmp_path / "reports" / "s"
    report.mkdir(parents=True)
    (report / "report.html").write_text("<html>")
    done = syncer(made, store).sync()
    assert store.names() == sorted([*made.keys[:3], "study"])
    assert store.rows() == expected(made)
    assert (done.points, done.started, done.created, done.values) == (4, 3, 3, len(expected(made)))
    runs = {run.tags.get("point_key", "study"): run for run in store.runs.values()}
    parent = next(name for name, run in store.runs.items() if run.tags["role"] == "study")
    assert {run.tags.get("mlflow.parentRunId") for run in runs.values()} == {None, parent}
    assert [runs[key].status for key in made.keys[:2]] == ["FINISHED", "FAILED"]
    assert runs["study"].status == "RUNNING"
    assert runs[made.keys[0]].params["model.width"] == "64"
    assert runs[made.keys[0]].params["data.fingerprint"] == '"123456789012"'
    assert json.loads(runs[made.keys[0]].tags["outcome"])["loss"]["validation_nats_per_token"] == 2.5
    assert runs[made.keys[0]].artifacts["./config.yaml"] == made.run(0).config.read_bytes()
    assert runs["study"].artifacts["report/report.html"] == b"<html>"
    everything = repr(store.runs) + made.folder.tracking.read_text()
    assert "hunter22" not in everything
    assert "https://***@host broke" in everything


def test_a_second_sync_writes_nothing(tmp_path: Path) -> None:
    made, store = populate(tmp_path / "runs" / "s"), FakeStore()
    one = syncer(made, store)
    one.sync()
    before, stamp = store.calls, made.folder.tracking.stat().st_mtime_ns
    assert one.sync().calls == 0
    assert store.calls == before
    assert made.folder.tracking.stat().st_mtime_ns == stamp
    assert syncer(made, store).sync().calls == 0
    assert store.calls == before + 1  # a new process looks whether the study's own run is there


def test_a_call_carries_parameters_and_as_many_values_as_it_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call is several transactions: a thousand values and the parameters of a run are two of them."""
    made, store = make_study(tmp_path / "runs" / "s", 1), FakeStore()
    start_run(made.run(0))
    append(made.run(0), 1, 210)
    complete(made.run(0))
    sizes, log = [], store.log

    def counted(run: str, values: Sequence[Value], params: Params = (), tags: Tags = None) -> None:
        if "point_key" in store.runs[run].tags:
            sizes.append((len(values), len(params)))
        log(run, values, params, tags)

    monkeypatch.setattr(store, "log", counted)
    syncer(made, store).sync()
    (first, among), (second, rest) = sizes
    assert among == PARAMS
    assert 0 < rest < PARAMS
    assert ENTITIES - 5 <= first + among <= ENTITIES
    assert first + second >= len(expected(made))


def test_whether_all_is_sent_is_known_without_asking_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    made, store = make_study(tmp_path / "runs" / "s", 2, "http://h"), FakeStore()

    def sent() -> bool:
        before = store.calls
        answer = is_all_sent(made.folder)
        assert store.calls == before
        with SyncProcess(made.folder, if_needed=True) if answer else nullcontext() as process:
            assert process is None or process.ended, "nothing is started"
        return answer

    def send() -> None:
        syncer(made, store).sync()

    for index in (0, 1):
        assert not sent(), "a point has not ended"
        start_run(made.run(index))
        append(made.run(index), 1, 3)
        send()
        assert not sent(), "it runs"
        complete(made.run(index), ("completed", "diverged")[index])
        assert not sent(), "its end is not sent"
        send()
    assert sent()
    report = tmp_path / "reports" / "s" / "report.html"
    report.parent.mkdir(parents=True)
    report.write_text("<html>")
    assert not sent()
    send()
    assert sent()
    made.folder.study.write_text(made.folder.study.read_text() + "\n")
    assert not sent()
    send()
    text = made.folder.study.read_text()
    made.folder.study.write_text(text.replace("http://h", "http://elsewhere"))
    assert not sent(), "another store has nothing"
    made.folder.study.write_text(text)
    send()
    assert sent()
    made.folder.tracking.write_text("{")
    assert not sent()
    send()
    made.folder.search.write_text("{}")
    assert not sent(), "a search may make points yet"


def test_a_report_that_is_written_anew_as_it_was_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by DVC, which touches what a stage made after the stage has sent it."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    made, store = make_study(tmp_path / "runs" / "s", 1, "http://h"), FakeStore()
    start_run(made.run(0))
    page = tmp_path / "reports" / "s" / "report.html"
    page.parent.mkdir(parents=True)
    page.write_text("<html>")
    assert lacks_report(made.folder)
    syncer(made, store).sync()
    os.utime(page, (T0, T0))
    assert not lacks_report(made.folder)
    assert syncer(made, store).sync().calls == 0
    page.write_text("<HTML>")
    assert lacks_report(made.folder)
    syncer(made, store).sync()
    (parent,) = (run for run in store.runs.values() if run.tags["role"] == "study")
    assert parent.artifacts["report/report.html"] == b"<HTML>"
    assert not lacks_report(made.folder)
    made.folder.study.write_text("tracking: {enabled: false}\n")
    assert not lacks_report(made.folder), "it is sent nowhere"


def test_two_processes_in_turns_read_each_others_progress(tmp_path: Path) -> None:
    made, store = populate(tmp_path / "runs" / "s"), FakeStore()
    one, two = syncer(made, store), syncer(made, store)
    one.sync()
    assert two.sync().calls == 0
    append(made.run(2), 13, 14)
    assert two.sync().calls == 1
    assert one.sync().calls == 0


@pytest.mark.parametrize("forgetful", [False, True], ids=["state kept", "state lost"])
@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
def test_killed_at_every_call(tmp_path: Path, after: bool, forgetful: bool) -> None:
    count = FakeStore()
    syncer(populate(tmp_path / "0" / "s"), count).sync()
    assert count.calls > 20
    for call in range(1, count.calls + 1):
        made = populate(tmp_path / str(call) / "s")
        store = FakeStore(die_at=call, die_after=after)
        with pytest.raises(Killed):
            syncer(made, store).sync()
        if forgetful:
            made.folder.tracking.unlink()
        syncer(made, store).sync()
        assert store.names() == sorted([*made.keys[:3], "study"])
        assert store.rows() == expected(made)
        assert syncer(made, store).sync().calls == 0


def test_lost_answer_then_the_same_process_goes_on(tmp_path: Path) -> None:
    """The server did it and the answer was lost, at every call: nothing is made twice."""
    count = FakeStore()
    syncer(populate(tmp_path / "0" / "s"), count).sync()
    for call in range(1, count.calls + 1):
        made = populate(tmp_path / str(call) / "s")
        store = FakeStore(die_at=call, die_after=True, error=lambda: StoreAwayError("gone"))
        one = syncer(made, store)
        with pytest.raises(StoreAwayError):
            one.sync()
        one.sync()
        assert store.names() == sorted([*made.keys[:3], "study"])
        assert store.rows() == expected(made)


@pytest.mark.parametrize("seed", range(4))
def test_growing_study_with_two_syncers_that_die(tmp_path: Path, seed: int) -> None:
    """Files grow in torn pieces while two processes sync in turns and die at random: the store ends up equal."""
    dice = random.Random(seed)
    made, store = make_study(tmp_path / "s", 5), FakeStore()
    texts = {i: "".join(record("train", s, loss=dice.random()) for s in range(1, 60)).encode() for i in range(5)}
    written = dict.fromkeys(texts, 0)
    both = [syncer(made, store), syncer(made, store)]
    while any(written[i] < len(texts[i]) for i in texts):
        i = dice.randrange(5)
        if not made.run(i).path.exists():
            start_run(made.run(i))
        size = dice.randrange(900)
        with made.run(i).metrics.open("ab") as file:
            file.write(texts[i][written[i] : written[i] + size])
        written[i] += size
        store.die_at = store.calls + dice.randrange(1, 12)
        store.die_after = dice.random() < 0.5
        which = dice.randrange(2)
        try:
            both[which].sync()
        except Killed:
            both[which] = syncer(made, store)
        if dice.random() < 0.05:
            made.folder.tracking.unlink(missing_ok=True)
    store.die_at = -1
    both[0].sync()
    assert store.names() == sorted([*made.keys, "study"])
    assert store.rows() == expected(made)


def test_another_store_starts_from_zero_and_the_first_is_remembered(tmp_path: Path) -> None:
    made, one, two = populate(tmp_path / "s"), FakeStore(), FakeStore()
    syncer(made, one, "http://one").sync()
    syncer(made, two, "http://two").sync()
    assert one.rows() == two.rows() == expected(made)
    assert syncer(made, one, "http://one").sync().calls == 0
    assert {run.tags["study_id"] for run in one.runs.values()} == {run.tags["study_id"] for run in two.runs.values()}


def test_an_emptied_store_is_filled_again(tmp_path: Path) -> None:
    made, store = populate(tmp_path / "s"), FakeStore()
    syncer(made, store).sync()
    fresh = FakeStore()
    syncer(made, fresh).sync()
    assert fresh.rows() == expected(made)
    key = next(name for name, run in fresh.runs.items() if run.tags.get("point_key") == made.keys[2])
    del fresh.runs[key]
    append(made.run(2), 13, 14)
    syncer(made, fresh).sync()
    assert fresh.rows() == expected(made)


@pytest.mark.parametrize("gone", [False, True])
def test_a_parent_removed_while_following_is_made_anew_and_its_runs_follow(tmp_path: Path, gone: bool) -> None:
    made, store = populate(tmp_path / "runs" / "s"), FakeStore()
    one = syncer(made, store)
    one.sync()
    first = next(name for name, run in store.runs.items() if run.tags["role"] == "study")
    if gone:
        del store.runs[first]
        store.runs["spare"] = FakeRun("other", {"study_id": "x", "role": "study"}, 0)  # keeps the fake's ids apart
    else:
        store.delete(first)
    complete(made.run(2))  # the study's own run changes with it
    with pytest.raises(StoreAwayError, match="own run"):
        one.sync()
    one.sync()
    live = {name: run for name, run in store.runs.items() if not run.deleted and name != "spare"}
    parent = next(name for name, run in live.items() if run.tags["role"] == "study")
    assert parent != first
    assert {run.tags["mlflow.parentRunId"] for run in live.values() if run.tags["role"] == "run"} == {parent}
    assert store.rows() == expected(made)


def test_a_run_made_twice_becomes_one(tmp_path: Path) -> None:
    """A server that made the run after all, long after the request was given up."""
    made, store = populate(tmp_path / "s"), FakeStore()
    syncer(made, store).sync()
    first = next(name for name, run in store.runs.items() if run.tags.get("point_key") == made.keys[2])
    store.runs["late"] = type(store.runs[first])("late", dict(store.runs[first].tags), store.runs[first].started)
    made.folder.tracking.unlink()
    start_run(made.run(3))
    syncer(made, store).sync()
    assert store.names() == sorted([*made.keys, "study"])
    assert store.rows() == expected(made)


def test_one_refused_run_does_not_stop_the_others(tmp_path: Path) -> None:
    made, store = populate(tmp_path / "s"), FakeStore()
    one = syncer(made, store)
    one.sync()
    gone = next(run for run in store.runs.values() if run.tags.get("point_key") == made.keys[1])
    gone.deleted = True  # by a person, in the UI
    for index in (1, 2):
        append(made.run(index), 20, 22)
    done = one.sync()
    assert [text.partition(":")[0] for text in done.refused] == [made.keys[1]]
    rows = [row for row in expected(made) if row[0] != made.keys[1]]
    assert store.rows() == rows


def test_a_run_at_which_the_server_fails_does_not_hold_up_the_others(tmp_path: Path) -> None:
    made, store = make_study(tmp_path / "runs" / "s", 6), FakeStore()
    for index in range(6):
        start_run(made.run(index))
        append(made.run(index), 1, 5)
    store.fails_at = {made.keys[1], made.keys[4]}
    one = syncer(made, store)
    for _ in range(2):
        with pytest.raises(StoreAwayError):
            one.sync()
    assert store.rows() == [row for row in expected(made) if row[0] not in store.fails_at]
    store.fails_at = set()
    one.sync()
    assert store.rows() == expected(made)
    assert store.names() == sorted([*made.keys, "study"])


def test_a_store_that_fails_at_everything_is_left_in_peace(tmp_path: Path) -> None:
    made, store = make_study(tmp_path / "runs" / "s", 20), FakeStore()
    for index in range(20):
        start_run(made.run(index))
        append(made.run(index), 1, 5)
    store.fails_at = set(made.keys)
    with pytest.raises(StoreAwayError):
        syncer(made, store).sync()
    assert store.calls < 18, "a pass that leads nowhere is short"


def test_a_study_run_again_under_the_same_name_is_another_one(tmp_path: Path) -> None:
    store = FakeStore()
    for time in (1.0, 2.0):
        made = populate(tmp_path / str(time) / "s")
        event = json.loads(made.folder.ledger.read_text())
        made.folder.ledger.write_text(json.dumps({**event, "time": time}) + "\n")
        syncer(made, store).sync()
    assert store.names().count("study") == 2
    assert store.names().count(made.keys[0]) == 2


def test_states_follow_the_files(tmp_path: Path) -> None:
    made, store = make_study(tmp_path / "s", 1), FakeStore()
    one = syncer(made, store)

    def look() -> tuple[str, str]:
        one.sync()
        run = next(run for run in store.runs.values() if run.tags["role"] == "run")
        return run.tags["state"], run.status

    start_run(made.run(0))
    assert look() == ("unknown", "RUNNING")  # it runs on another machine
    end_attempt(made.run(0), "interrupted")
    assert look() == ("interrupted", "KILLED")
    start_run(made.run(0), attempt=2)
    assert look() == ("unknown", "RUNNING")
    end_attempt(made.run(0), "failed", attempt=2, error="boom")
    assert look() == ("failed", "FAILED")
    complete(made.run(0), "diverged")
    assert look() == ("diverged", "FAILED")
    parent = next(run for run in store.runs.values() if run.tags["role"] == "study")
    assert (parent.status, parent.tags["states"]) == ("FAILED", "1 diverged")


def test_only_runs_that_failed_once_have_an_error(tmp_path: Path) -> None:
    made, store = make_study(tmp_path / "s", 2), FakeStore()
    for index in (0, 1):
        start_run(made.run(index))
    complete(made.run(0))
    end_attempt(made.run(1), "failed", error="boom")
    syncer(made, store).sync()

    def errors() -> list[str | None]:
        named = {run.tags.get("point_key"): run.tags.get("error") for run in store.runs.values()}
        return [named[key] for key in made.keys]

    assert errors() == [None, "boom"]
    start_run(made.run(1), attempt=2)
    complete(made.run(1), attempt=2)
    syncer(made, store).sync()
    assert errors() == [None, ""], "MLflow deletes no tag together with other writes"


@pytest.mark.parametrize("lost", [True, False])
def test_an_error_that_was_sent_last_before_the_end_is_emptied(tmp_path: Path, lost: bool) -> None:
    made, store = make_study(tmp_path / "s", 1), FakeStore()
    start_run(made.run(0))
    syncer(made, store).sync()
    before = {path: path.read_bytes() for path in made.folder.path.rglob("*") if path.is_file()}
    end_attempt(made.run(0), "failed", error="boom")
    syncer(made, store).sync()
    for path, held in before.items() if lost else ():
        path.write_bytes(held)  # as if killed between the call and the note of it
    start_run(made.run(0), attempt=2)
    complete(made.run(0), attempt=2)
    syncer(made, store).sync()
    run = next(run for run in store.runs.values() if run.tags["role"] == "run")
    assert run.tags["error"] == ""


def test_a_study_lasts_from_the_first_start_to_the_last_end_of_its_runs(tmp_path: Path) -> None:
    """However late it is sent, and whatever is sent again."""
    made, store = make_study(tmp_path / "s", 2), FakeStore()
    start_run(made.run(0))
    job = made.run(0).attempt(1).job
    job.write_text(json.dumps({**json.loads(job.read_text()), "started": T0 + 30}))
    start_run(made.run(1))

    def times() -> tuple[int, int | None]:
        syncer(made, store).sync()
        study = next(run for run in store.runs.values() if run.tags["role"] == "study")
        return study.started, study.ended

    started = (T0 + 1) * 1000
    complete(made.run(0))
    assert times() == (started, None)
    complete(made.run(1))
    last = made.run(1).attempt(1).outcome
    last.write_text(json.dumps({**json.loads(last.read_text()), "ended": T0 + 950}))
    assert times() == (started, (T0 + 950) * 1000)
    made.folder.tracking.unlink()
    assert times() == (started, (T0 + 950) * 1000)
    store.runs.clear()
    assert times() == (started, (T0 + 950) * 1000)


def test_nothing_submitted_is_nothing_to_sync(tmp_path: Path) -> None:
    made, store = make_study(tmp_path / "s", 1), FakeStore()
    made.folder.points.write_text("")
    made.folder.ledger.unlink()
    assert syncer(made, store).sync() == Synced()
    assert store.runs == {}


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1, "owner": "", "study_id": "", "stores": {"a": 1}}'])
def test_a_damaged_state_file_costs_nothing_but_time(tmp_path: Path, text: str) -> None:
    made, store = populate(tmp_path / "s"), FakeStore()
    syncer(made, store).sync()
    made.folder.tracking.write_text(text)
    syncer(made, store).sync()
    assert store.names() == sorted([*made.keys[:3], "study"])
    assert store.rows() == expected(made)


@pytest.mark.parametrize("forgetful", [False, True], ids=["state kept", "state lost"])
@pytest.mark.parametrize("sent", [0, 7, 12, 700])
def test_a_row_that_was_sent_cut_and_written_again_is_there_once(tmp_path: Path, sent: int, forgetful: bool) -> None:
    """A crashed node loses the end of a file, and the run that goes on writes it again, at another time of day."""
    made, store = make_study(tmp_path / "runs" / "s", 1), FakeStore()
    run = made.run(0)
    start_run(run)
    append(run, 1, sent)
    syncer(made, store).sync()
    kept = run.metrics.read_text().splitlines(keepends=True)[: sent // 2] if sent else []
    again = [json.loads(line) for step in range(1, sent + 6) for line in lines_of(step).splitlines()][len(kept) :]
    later = [json.dumps({**entry, "time": entry["time"] + 1000.5}) + "\n" for entry in again]
    run.metrics.write_text("".join([*kept, *later]))
    if forgetful:
        made.folder.tracking.unlink()
    syncer(made, store).sync()
    steps = [(name, step) for _, name, _, _, step in store.rows()]
    assert len(steps) == len(set(steps)), "each metric has each step once"
    wanted = {(name, step) for _, name, _, _, step in expected(made)}
    assert set(steps) == wanted


def test_what_a_rollback_makes_anew_is_sent_also_where_the_state_was_lost(tmp_path: Path) -> None:
    made, store = make_study(tmp_path / "runs" / "s", 1), FakeStore()
    run, lines = made.run(0), rolled_back()
    start_run(run)
    run.metrics.write_text("".join(lines[:9]))
    syncer(made, store).sync()
    made.folder.tracking.unlink()
    run.metrics.write_text("".join(lines))
    syncer(made, store).sync()
    losses = {(step, value) for _, name, value, _, step in store.rows() if name == "train/loss"}
    assert {(step, float(step)) for step in range(1, 9)} <= losses


@pytest.mark.parametrize("forgetful", [False, True], ids=["state kept", "state lost"])
@pytest.mark.parametrize("sent", range(0, len(rolled_back()) + 1, 3))
def test_rows_of_a_run_that_went_back_are_there_once_though_cut_and_written_again(
    tmp_path: Path, sent: int, forgetful: bool
) -> None:
    """However much was sent and cut, the records of rollbacks included; a step comes again on each path."""
    lines = rolled_back()

    def rows(kept: int, forgetful: bool, late: float) -> Counter[tuple[str, float, int]]:
        made, store = make_study(tmp_path / f"{kept}-{late}" / "runs" / "s", 1), FakeStore()
        run = made.run(0)
        start_run(run)
        run.metrics.write_text("".join(lines[:sent]))
        syncer(made, store).sync()
        again = [json.loads(line) for line in lines[kept:]]
        later = [json.dumps({**entry, "time": entry["time"] + late}) + "\n" for entry in again]
        run.metrics.write_text("".join([*lines[:kept], *later]))
        if forgetful:
            made.folder.tracking.unlink()
        for _ in range(2):
            syncer(made, store).sync()
        return Counter((name, value, step) for _, name, value, _, step in store.rows())

    wanted = rows(sent, False, 0.0)
    assert {("train/loss", float(step), step) for step in range(1, 9)} <= set(wanted)
    for kept in range(sent + 1):
        assert rows(kept, forgetful, 1000.5) == wanted, kept


def test_every_run_has_what_it_is_and_came_to(tmp_path: Path) -> None:
    made, store = populate(tmp_path / "runs" / "s"), FakeStore()
    one = syncer(made, store)
    one.sync()
    one.sync()
    runs = {run.tags["point_key"]: run for run in store.runs.values() if "point_key" in run.tags}
    derived = [[value for value in run.values if value.name in DERIVED - {"log10_flops"}] for run in runs.values()]
    finished, failed, running = [{value.name: value.value for value in values} for values in derived]
    assert [len(values) for values in derived] == [len(finished), len(failed), len(running)], "each of them once"
    assert (finished["final_loss"], finished["best_loss"], finished["flops"]) == (2.5, 0.0275, 123456789)
    assert finished["tokens_per_param"] == pytest.approx(12800 / 9, rel=1e-4)
    assert finished["params_active"] == finished["params_total"] > finished["params_matmul"] > 0
    assert finished["core_hours"] == failed["core_hours"] == pytest.approx((900 - 1) / 3600, rel=1e-4)
    assert set(running) == {"params_matmul", "params_total", "params_active", "log10_params_matmul"}
    assert set(failed) == {*running, "core_hours", "best_loss", "flops", "tokens_per_param"}, "so far"
    assert failed["best_loss"] == 2.2
    assert failed["tokens_per_param"] * failed["params_matmul"] == pytest.approx(5 * 128, rel=1e-4), "at step 5"
    assert failed["flops"] > 6 * failed["params_matmul"] * 5 * 128


def test_a_run_that_diverged_after_its_last_record_has_its_tokens(tmp_path: Path) -> None:
    """Its skipped steps have no record: the column of tokens would else fall short of its FLOPs and its description."""
    made = make_study(tmp_path / "runs" / "s", 1)
    start_run(made.run(0))
    append(made.run(0), 1, 5)
    complete(made.run(0), "diverged")
    store = FakeStore()
    one = syncer(made, store)
    one.sync()
    one.sync()
    (run,) = (run for run in store.runs.values() if "point_key" in run.tags)
    tokens = sorted((value.step, value.value) for value in run.values if value.name == "tokens")
    assert tokens == [*((step, 128.0 * step) for step in range(1, 6)), (100, 12800.0)], "each of them once"


def test_a_study_of_the_earlier_names_gets_the_grouped_ones_too(tmp_path: Path) -> None:
    """Parameters cannot change in a store, and values cannot be taken back; a name that a person gave stays."""
    made, store = populate(tmp_path / "runs" / "s"), FakeStore()
    syncer(made, store).sync()
    first, second, *_ = [run for run in store.runs.values() if "point_key" in run.tags]
    for run in store.runs.values():
        run.values = {value._replace(name=value.name.replace("/", "_")): 1 for value in run.values}
        run.params |= {name: "64.0" for name, value in run.params.items() if value == "64"}
    first.name, second.name = "seed=0 model.width=64", "my best"
    made.folder.tracking.write_text(made.folder.tracking.read_text().replace('"format":2', '"format":1'))
    done = syncer(made, store).sync()
    assert done.refused == ()
    assert done.created == 0
    assert set(expected(made)) <= set(store.rows())
    assert (first.name, second.name) == ("w64 L2 s0", "my best")
    assert first.params["model.width"] == "64.0"


def test_the_rank_that_an_attempt_failed_of_has_its_output_in_mlflow(tmp_path: Path) -> None:
    made, store = make_study(tmp_path / "runs" / "s", 1), FakeStore()
    run = made.run(0)
    start_run(run)
    for rank, said in enumerate(("Connection closed by peer", "ZeroDivisionError: none left", "Connection closed")):
        run.attempt(1).stderr(rank).write_text(said)
    end_attempt(run, "failed", error="rank 1: ZeroDivisionError: none left")
    ended = json.loads(run.attempt(1).outcome.read_text())
    run.attempt(1).outcome.write_text(json.dumps({**ended, "rank": 1}))
    syncer(made, store).sync()
    (found,) = [run for run in store.runs.values() if "point_key" in run.tags]
    sent = {name: text for name, text in found.artifacts.items() if "stderr" in name}
    assert sent == {
        "logs/attempt-1/stderr.txt": b"Connection closed by peer",
        "logs/attempt-1/stderr-rank-1.txt": b"ZeroDivisionError: none left",
    }
    assert "/artifacts/logs/attempt-1/stderr-rank-1.txt?" in found.tags["mlflow.note.content"]


def test_a_run_has_its_outcome_what_it_printed_last_and_its_corpus(tmp_path: Path) -> None:
    made, store = make_study(tmp_path / "runs" / "s", 1), FakeStore()
    run = made.run(0)
    start_run(run)
    run.attempt(1).stdout(0).write_text("line\n" * 400_000)
    one = syncer(made, store)
    one.sync()
    (found,) = [run for run in store.runs.values() if "point_key" in run.tags]
    assert set(found.artifacts) == {"./config.yaml"}, "logs are sent when an attempt has ended"
    end_attempt(run, "preempted")
    one.sync()
    assert len(found.artifacts["logs/attempt-1/stdout.txt"]) <= 1 << 20
    assert found.artifacts["logs/attempt-1/stdout.txt"].startswith(b"line\n")
    assert "./outcome.json" not in found.artifacts
    start_run_again = run.attempt(2)
    start_run_again.path.mkdir()
    start_run_again.job.write_text(run.attempt(1).job.read_text())
    start_run_again.stderr(0).write_text("warned")
    run.outcome.write_text(json.dumps({"state": "completed", "step": 3, "tokens": 384}))
    one.sync()
    assert found.artifacts["logs/attempt-2/stderr.txt"] == b"warned"
    note = found.tags["mlflow.note.content"]
    assert "/artifacts/logs/attempt-2/stderr.txt?" in note and "/artifacts/config.yaml?" in note
    assert "stdout" not in note, "what is empty is not sent, nor named"
    assert json.loads(found.artifacts["./outcome.json"])["step"] == 3
    assert {corpus.digest for corpus in found.datasets} == {"123456789012"}
    calls = store.calls
    one.sync()
    assert store.calls == calls
