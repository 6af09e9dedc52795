"""Device time of a study: from recorded sacct output, from attempts' clocks, and against budgets."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from study.commands.cost import text
from study.config.schema import StudySection
from study.executors.base import Answer
from study.executors.job_spec import JobSpec
from study.records import ledger
from study.status import budget, cost
from study.status.observer import observe
from study.status.states import PointState, PointStatus
from study.storage.layout import StudyFolder
from tests.study.support.studies import make_study

START = "2026-11-21T10:00:00"
BEGAN = time.mktime(time.strptime(START, "%Y-%m-%dT%H:%M:%S"))
TRES = "billing=4,cpu=4,gres/gpu=2,mem=1G,node=1"
SACCT = "\n".join(
    [
        f"7_0|s.b|REQUEUED|600|{TRES}|{START}",
        f"7_0|s.b|COMPLETED|3000|{TRES}|2026-11-21T10:20:00",
        f"7_1|s.b|FAILED|1200|{TRES}|{START}",
        f"7_2|s.b|RUNNING|60|{TRES}|2026-11-21T11:00:00",
        "7_3|s.b|PENDING|0||Unknown",
        f"7_4|other|COMPLETED|99999|{TRES}|{START}",
        "",
    ]
)


def study(folder: Path, keys: str = "abcd", **shape: object) -> StudyFolder:
    made = StudyFolder(folder)
    asked = replace(JobSpec(gpus_per_node=2, cpus_per_task=4, time_minutes=120), **shape).record()  # type: ignore[arg-type]
    ledger.append(made, "intent", name="s.b", executor="slurm", keys=list(keys), resources=asked)
    ledger.append(made, "submitted", name="s.b", job_id="7")
    return made


def attempt(made: StudyFolder, where: tuple[str, int, str], begin: float, seconds: float, state: str) -> None:
    key, number, job = where
    folder = made.run(key).attempt(number)
    folder.path.mkdir(parents=True)
    about = {"name": "s.b", "job_id": job, "restart": number - 1, "started": BEGAN + begin}
    folder.job.write_text(json.dumps(about))
    folder.outcome.write_text(json.dumps({"state": state, "ended": BEGAN + begin + seconds}))


def seen(**states: str) -> list[PointStatus]:
    return [PointStatus(key=key, state=PointState(state), batch="s.b") for key, state in states.items()]


def test_every_run_of_a_requeued_job_counts_and_no_other_studys(tmp_path: Path) -> None:
    made = study(tmp_path / "s")
    attempt(made, ("a", 1, "7_0"), 10, 580, "preempted")
    attempt(made, ("a", 2, "7_0"), 1200 + 10, 2980, "completed")
    attempt(made, ("b", 1, "7_1"), 10, 1180, "failed")
    asked: list[list[str]] = []

    def runner(command: object) -> Answer:
        asked.append(list(command))  # type: ignore[call-overload]
        return Answer(0, SACCT)

    statuses = seen(a="completed", b="failed", c="running", d="queued")
    (one,) = cost.measure(made, dict.fromkeys("abcd"), statuses, runner)  # type: ignore[arg-type]
    assert "--duplicates" in asked[0]
    assert one.unit == "GPU-hours"
    assert one.used == pytest.approx(2 * (600 + 3000 + 1200 + 60) / 3600)
    assert one.spent == pytest.approx(2 * (600 + 3000 + 1200) / 3600)
    assert one.lost == pytest.approx(2 * 1180 / 3600)
    assert one.idle == pytest.approx(2 * (20 + 20 + 20 + 60) / 3600)
    assert (one.asked, one.reserved) == (4 * 4.0, 2 * 4.0)
    assert (one.jobs, one.runs, one.clocks) == (3, 4, 0)


def test_more_used_than_asked_is_explained(tmp_path: Path) -> None:
    """A job asks its limit once; SLURM starts it anew at each requeue."""
    made = study(tmp_path / "s", "a")
    requeued = f"7_0|s.b|REQUEUED|7100|{TRES}|{START}\n7_0|s.b|COMPLETED|7000|{TRES}|2026-11-21T12:20:00\n"
    (one,) = cost.measure(made, {"a": None}, seen(a="completed"), lambda command: Answer(0, requeued))  # type: ignore[dict-item]
    assert (one.asked, one.runs, one.jobs) == (4.0, 2, 1)
    assert one.used == pytest.approx(2 * 14100 / 3600)
    assert "more was used than asked: a job that SLURM requeues has its whole time limit anew" in text("s", one)
    assert "more was used" not in text("s", replace(one, used=3.9))
    assert "nodes are not shared" in text("s", replace(one, runs=1))


def test_without_sacct_the_attempts_own_clocks_count(tmp_path: Path) -> None:
    made = study(tmp_path / "s")
    attempt(made, ("a", 1, "7_0"), 0, 600, "preempted")
    attempt(made, ("a", 2, "7_0"), 1200, 3000, "completed")
    attempt(made, ("b", 1, "7_1"), 0, 1200, "failed")
    (one,) = cost.measure(
        made,
        dict.fromkeys("abcd"),  # type: ignore[arg-type]
        seen(a="completed", b="failed"),
        lambda command: Answer(1, error="Slurm accounting storage is disabled"),
    )
    assert one.used == pytest.approx(2 * 4800 / 3600)
    assert one.lost == pytest.approx(2 * 1200 / 3600)
    assert one.idle is None
    assert one.clocks == one.jobs == 2
    assert "disabled" in one.problems[0]


def killed(made: StudyFolder, where: tuple[str, int, str], seconds: float) -> None:
    """An attempt that wrote no end; its last sign of life is its metrics."""
    key, number, _ = where
    attempt(made, where, 0, seconds, "failed")
    made.run(key).attempt(number).outcome.unlink()
    row = {"kind": "train", "step": 1, "time": BEGAN + seconds, "metrics": {}}
    made.run(key).metrics.write_text(json.dumps(row) + "\n")


SILENT = Answer(1, error="Slurm accounting storage is disabled")
LAGS = Answer(0, f"7_0|s.b|RUNNING|600|{TRES}|{START}\n")


@pytest.mark.parametrize("answer", [SILENT, LAGS])
def test_a_job_of_unknown_end_is_reserved_until_its_point_is_retried_or_cancelled(
    tmp_path: Path, answer: Answer
) -> None:
    made = study(tmp_path / "s", "a")
    killed(made, ("a", 1, "7_0"), 600)

    def balance(statuses: list[PointStatus]) -> tuple[bool, float]:
        (one,) = cost.measure(made, {"a": None}, statuses, lambda command: answer)  # type: ignore[dict-item]
        assert one.used == pytest.approx(2 * 600 / 3600) and one.spent in (0.0, one.used)
        return one.spent > 0, one.reserved

    assert balance(seen(a="unknown")) == (False, 4.0)
    ledger.append(made, "cancelled", keys=["a"])
    assert balance(seen(a="running")) == (False, 4.0), "it may run on until its checkpoint is written"
    assert balance(seen(a="unknown")) == (True, 0.0)
    ledger.append(made, "retry", keys=["a"])
    assert balance([PointStatus("a", PointState.PENDING)]) == (True, 0.0)


def test_a_job_stays_reserved_as_long_as_one_of_its_points_may_run(tmp_path: Path) -> None:
    made = study(tmp_path / "s", "abcd", pack=2)
    statuses = seen(a="unknown", b="unknown", c="unknown", d="unknown")
    for again, reserved in ("", 8.0), ("a", 8.0), ("ab", 4.0), ("abd", 4.0), ("abcd", 0.0):
        left = [PointStatus(one.key, PointState.PENDING) if one.key in again else one for one in statuses]
        (found,) = cost.measure(made, {}, left, lambda command: SILENT)
        assert found.reserved == 2 * reserved, again


@pytest.mark.parametrize("unit", [False, True])
def test_the_jobs_of_a_search_that_wait_are_reserved(tmp_path: Path, unit: bool) -> None:
    """Accounting has no run of a job that waits; and one that was killed outright wrote no end."""
    made, keys = StudyFolder(tmp_path / "s"), ["u0", "u1", "u2"] if unit else []
    asked = JobSpec(gpus_per_node=2, time_minutes=120).record() | ({ledger.UNIT: True} if unit else {})
    ledger.append(made, "intent", name="s.b", executor="slurm", keys=keys, resources=asked)
    ledger.append(made, "submitted", name="s.b", job_id="7")
    killed(made, ("a", 1, "7_2"), 600)

    def reserved(squeue: Answer, sacct: Answer) -> float:
        (one,) = cost.measure(made, {"a": None}, [], lambda said: squeue if said[0] == "squeue" else sacct)  # type: ignore[dict-item]
        return one.reserved

    waits = Answer(0, "7|0|RUNNING|None|s.b\n7|1|PENDING|Priority|s.b\n")
    runs = Answer(
        0, f"7_0|s.b|RUNNING|600|{TRES}|{START}\n7_1|s.b|PENDING|0||Unknown\n7_2|s.b|NODE_FAIL|600|{TRES}|{START}\n"
    )
    gone, unclear = Answer(1, error="Invalid job id specified"), Answer(None, error="squeue: no answer in 30 s")
    assert reserved(waits, SILENT) == 8.0
    assert reserved(gone, SILENT) == 0.0
    assert reserved(unclear, SILENT) == 4.0, "the one that wrote no end may run"
    assert reserved(unclear, runs) == 4.0 and reserved(waits, runs) == 8.0


@pytest.mark.parametrize("days", [1, -2])
def test_an_attempt_cost_what_it_took_where_the_clock_was_set_meanwhile(tmp_path: Path, days: int) -> None:
    made = study(tmp_path / "s")
    attempt(made, ("a", 1, "7_0"), 0, 600, "failed")
    outcome = made.run("a").attempt(1).outcome
    outcome.write_text(json.dumps({"state": "failed", "ended": BEGAN + 600 + 86400 * days, "seconds": 600.0}))
    (one,) = cost.measure(made, {"a": None}, seen(a="failed"), lambda _: Answer(1, "", "off"))  # type: ignore[dict-item]
    assert one.used == one.lost == pytest.approx(2 * 600 / 3600)


def test_points_that_share_a_job_hold_it_together(tmp_path: Path) -> None:
    made = study(tmp_path / "s", "ab", pack=2, gpus_per_node=1)
    attempt(made, ("a", 1, "7_0"), 0, 600, "completed")
    attempt(made, ("b", 1, "7_0"), 0, 300, "failed")
    sacct = f"7_0|s.b|FAILED|600|{TRES}|{START}\n"
    (one,) = cost.measure(made, {}, [], lambda command: Answer(0, sacct))
    (two,) = cost.measure(made, dict.fromkeys("ab"), [], lambda command: Answer(0, sacct))  # type: ignore[arg-type]
    assert one.used == two.used == pytest.approx(2 * 600 / 3600)
    assert one.lost == pytest.approx(one.used), "a job that failed and of which nothing more is known"
    assert two.lost == pytest.approx(300 / 3600)
    assert two.idle == pytest.approx(300 / 3600), "one place was empty for half of the time"


def test_lines_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    made = study(tmp_path / "s")
    (one,) = cost.measure(made, {}, [], lambda command: Answer(0, f"{SACCT}7_9|s.b|??\n7_8|s.b|COMPLETED|x|y|z\n"))
    assert one.problems == ("sacct: 2 line(s) could not be read",)


def test_quick_adds_earlier_attempts_to_what_the_status_knows(tmp_path: Path) -> None:
    made = study(tmp_path / "s")
    attempt(made, ("a", 1, "7_0"), 0, 600, "failed")
    attempt(made, ("a", 2, "7_0"), 1200, 3000, "completed")
    status = PointStatus(key="a", state=PointState.COMPLETED, batch="s.b", attempt=2, seconds=3000.0)
    one = cost.measure_by_clocks(made, {}, [status])
    assert one.used == pytest.approx(2 * 3600 / 3600)
    assert one.lost == pytest.approx(2 * 600 / 3600)


def test_an_attempt_that_was_killed_outright_ran_until_its_last_word(tmp_path: Path) -> None:
    made, keys = make_study(tmp_path / "s", [1])
    run = made.run(keys[1])
    run.attempt(1).path.mkdir(parents=True)
    run.attempt(1).job.write_text(json.dumps({"name": "s.b", "job_id": "7_0", "started": BEGAN}))
    run.metrics.write_text(json.dumps({"kind": "train", "step": 3, "time": BEGAN + 25, "metrics": {}}) + "\n")
    (status,) = observe(made)
    assert status.state != "running" and status.seconds == pytest.approx(25.0), "not until now"


def test_jobs_without_gpus_are_counted_in_core_hours(tmp_path: Path) -> None:
    made = study(tmp_path / "s", gpus_per_node=0)
    sacct = f"7_0|s.b|COMPLETED|3600|cpu=8,node=1|{START}\n"
    (one,) = cost.measure(made, {}, [], lambda command: Answer(0, sacct))
    assert one.unit == "core-hours"
    assert one.used == pytest.approx(8.0)


def test_a_budget_counts_what_was_used_what_waits_and_what_is_asked(tmp_path: Path) -> None:
    made = study(tmp_path / "s")
    statuses = seen(a="completed", b="failed", c="running", d="queued")
    shapes = [(JobSpec(gpus_per_node=2, time_minutes=60), 3)]
    (balance,) = budget.balances(
        made, StudySection(gpu_hours=16.0), shapes, ({}, statuses), lambda command: Answer(0, SACCT)
    )
    assert balance.used == pytest.approx(2 * 4800 / 3600)
    assert balance.reserved == pytest.approx(8.0), "the running job to its limit, and the waiting one"
    assert balance.left == pytest.approx(16 - 8 - 8 / 3)
    assert not balance.fits
    assert "3 jobs, up to the time limit, would ask for 6: 2 of them would fit" in balance.refusal()
    remaining = budget.RemainingBudget([balance])
    assert remaining.take(shapes[0][0], 2) == ""
    assert "the budget is spent" in remaining.take(shapes[0][0], 1)
    assert remaining.take(JobSpec(), 100) == "", "cores are no GPUs"


def test_no_budget_asks_nobody(tmp_path: Path) -> None:
    def never(command: object) -> Answer:
        raise AssertionError(command)

    assert budget.balances(study(tmp_path / "s"), StudySection(), (), ({}, []), never) == []
    with pytest.raises(ValueError, match=r"study\.gpu_hours=-1 is not allowed"):
        budget.balances(study(tmp_path / "t"), StudySection(gpu_hours=-1.0), (), ({}, []), never)


def test_a_shared_gpu_counts_once_and_each_point_for_its_lanes_part_of_it(tmp_path: Path) -> None:
    """Two lanes on one GPU, four points in turn: 600 and 250 s in one, 300 and 600 s in the other; a job of 900 s."""
    made = study(tmp_path / "s", pack=2, pack_gpus="slices", points_per_job=4, gpus_per_node=1)
    attempt(made, ("a", 1, "7_0"), 0, 600, "completed")
    attempt(made, ("b", 1, "7_0"), 0, 300, "failed")
    attempt(made, ("c", 1, "7_0"), 300, 600, "completed")
    attempt(made, ("d", 1, "7_0"), 600, 250, "completed")
    sacct = f"7_0|s.b|FAILED|900|{TRES.replace('gpu=2', 'gpu=1')}|{START}\n"
    points = dict.fromkeys("abcd")
    (one,) = cost.measure(made, points, [], lambda command: Answer(0, sacct))  # type: ignore[arg-type]
    assert one.asked == pytest.approx(2), "one job of one GPU for 120 minutes"
    assert one.used == pytest.approx(900 / 3600)
    assert one.lost == pytest.approx(300 / 2 / 3600)
    assert one.idle == pytest.approx((900 - (600 + 300 + 600 + 250) / 2) / 3600)
    took = {"a": (600.0, "completed"), "b": (300.0, "failed"), "c": (600.0, "completed"), "d": (250.0, "completed")}
    statuses = [
        PointStatus(key=key, state=PointState(state), batch="s.b", attempt=1, seconds=seconds)
        for key, (seconds, state) in took.items()
    ]
    quick = cost.measure_by_clocks(made, {}, statuses)
    assert quick.used == pytest.approx(1750 / 2 / 3600), "what its lanes were busy, as no clock runs between points"
    assert quick.lost == pytest.approx(300 / 2 / 3600) and quick.jobs == 1
    own = study(tmp_path / "own", pack=2, points_per_job=4, gpus_per_node=1)
    assert cost.measure_by_clocks(own, {}, statuses).used == pytest.approx(1750 / 3600), "a GPU for each lane"


def test_hours_below_ten_have_the_same_decimals() -> None:
    """What was idle is read against what was used: 0.0003 of 0.0178, not 0.0002842 of 0.0178."""
    one = cost.Cost("core-hours", asked=12.5, used=0.0178, lost=0.00001, idle=0.0002842)
    words = {line[:20].strip(): line[20:].split()[0] for line in text("s", one).splitlines()[1:6]}
    assert words == {
        "asked": "12.50", "waiting or running": "0", "used": "0.0178", "lost to failures": "<0.0001", "idle": "0.0003",
    }  # fmt: skip
