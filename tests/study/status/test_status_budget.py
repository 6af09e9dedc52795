"""Budgets of device time by hand: what is left, what fits to the last digit, what a refusal says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from study.config.schema import StudySection
from study.executors.base import Answer
from study.executors.job_spec import JobSpec
from study.records import ledger
from study.status import budget
from study.status.budget import Balance, RemainingBudget
from study.storage.layout import StudyFolder

HALF_HOUR = JobSpec(gpus_per_node=4, cpus_per_task=3, time_minutes=30)
"""Two GPU-hours, or one and a half core-hours."""


def balance(limit: float = 100.0, used: float = 30.0, reserved: float = 20.0, asked: float = 10.0) -> Balance:
    return Balance("GPU-hours", limit, used, reserved, asked, jobs=5, each=asked / 5)


@pytest.mark.parametrize(
    ("limit", "used", "reserved", "left"),
    [(100.0, 30.0, 20.0, 50.0), (50.0, 30.0, 20.0, 0.0), (49.5, 30.0, 20.0, 0.0), (50.5, 30.0, 20.0, 0.5)],
)
def test_left_is_what_is_neither_used_nor_reserved(limit: float, used: float, reserved: float, left: float) -> None:
    assert balance(limit, used, reserved).left == left


@pytest.mark.parametrize(
    ("asked", "fits"),
    [(0.0, True), (49.9, True), (50.0, True), (50.0 * (1 + 1e-9), True), (50.0 * (1 + 3e-9), False), (50.1, False)],
)
def test_what_is_asked_fits_up_to_all_that_is_left(asked: float, fits: bool) -> None:
    assert balance(asked=asked).fits is fits


def test_nothing_asked_fits_where_nothing_is_left() -> None:
    assert balance(limit=50.0, asked=0.0).fits is True and balance(limit=50.0, asked=1e-6).fits is False


def test_a_balance_is_said_with_its_key() -> None:
    assert str(balance(used=1234.5678)) == (
        "study.gpu_hours=100: 1235 GPU-hours used, 20 reserved by jobs that wait or run, 0 left"
    )
    assert str(replace(balance(), unit="core-hours", limit=2.5e6)).startswith("study.core_hours=2.5e+06: 30 core-hours")


@pytest.mark.parametrize(
    ("each", "jobs", "said"),
    [
        (20.0, 3, "3 jobs, up to the time limit, would ask for 60: 2 of them would fit; ask"),
        (25.0, 3, "3 jobs, up to the time limit, would ask for 75: 2 of them would fit; ask"),
        (50.0, 2, "2 jobs, up to the time limit, would ask for 100: 1 of them would fit; ask"),
        (50.1, 1, "1 job, up to the time limit, would ask for 50.1: not one of them fits; ask"),
        (0.01, 9000, "9,000 jobs, up to the time limit, would ask for 90: 5,000 of them would fit; ask"),
        (0.0, 0, "0 jobs, up to the time limit, would ask for 0: not one of them fits; ask"),
    ],
)
def test_a_refusal_says_how_many_would_fit(each: float, jobs: int, said: str) -> None:
    refused = replace(balance(), asked=each * jobs, jobs=jobs, each=each).refusal()
    assert f"50 left: {said} for fewer points, a shorter cluster.time_minutes" in refused
    assert refused.endswith("or a larger study.gpu_hours")


def test_a_budget_is_taken_until_it_is_gone() -> None:
    remaining = RemainingBudget([balance(), replace(balance(), unit="core-hours", limit=62.0)])
    assert remaining.take(HALF_HOUR, 4) == "", "8 of 50 GPU-hours; jobs with GPUs cost no core-hours"
    cpu = replace(HALF_HOUR, gpus_per_node=0)
    assert remaining.take(cpu, 6) == "", "9 of 12 core-hours"
    assert remaining.take(cpu, 3) == (
        "the budget is spent: study.core_hours=62: 30 core-hours used, 20 reserved by jobs that wait or run, 12 left, "
        "and 4.5 are asked"
    )
    assert remaining.take(cpu, 2) == "", "what was refused was not taken: the last 3"
    assert remaining.take(cpu, 1) != ""
    assert remaining.take(HALF_HOUR, 21) == "", "42 of 42"
    assert "study.gpu_hours=100" in remaining.take(HALF_HOUR, 1)


def test_rounding_refuses_nobody_the_last_of_a_budget() -> None:
    thirds = RemainingBudget([replace(balance(), limit=50.0 + 0.1 * 3)])
    six_minutes = JobSpec(gpus_per_node=1, time_minutes=6)
    assert [thirds.take(six_minutes, 1) for _ in range(3)] == ["", "", ""]
    assert thirds.take(six_minutes, 1) != ""
    exact = RemainingBudget([replace(balance(), limit=50.0 + 2.0 * (1 - 5e-10))])
    assert exact.take(HALF_HOUR, 1) == ""
    short = RemainingBudget([replace(balance(), limit=50.0 + 2.0 * (1 - 1e-8))])
    assert short.take(HALF_HOUR, 1) != ""


def nobody(command: object) -> Answer:
    return Answer(1, error="no accounting")


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    made = StudyFolder(tmp_path / "s")
    made.path.mkdir()
    return made


def test_each_budget_that_is_set_has_its_balance(folder: StudyFolder) -> None:
    shapes = [(HALF_HOUR, 3), (replace(HALF_HOUR, gpus_per_node=0, time_minutes=60), 2)]
    both = StudySection(gpu_hours=0.5, core_hours=100.0)
    assert budget.balances(folder, both, shapes, ({}, []), nobody) == [
        Balance("GPU-hours", 0.5, 0.0, 0.0, asked=6.0, jobs=3, each=2.0),
        Balance("core-hours", 100.0, 0.0, 0.0, asked=6.0, jobs=2, each=3.0),
    ]
    (one,) = budget.balances(folder, StudySection(core_hours=7.0), (), ({}, []), nobody)
    assert one == Balance("core-hours", 7.0, 0.0, 0.0, asked=0.0, jobs=0, each=0.0)
    for limit in (0.0, -2.0):
        with pytest.raises(ValueError, match=rf"study\.core_hours={limit:g} is not allowed: above 0, or null"):
            budget.balances(folder, StudySection(gpu_hours=1.0, core_hours=limit), (), ({}, []), nobody)


def limited(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch, **limits: float) -> None:
    monkeypatch.setattr(budget, "section", lambda of: StudySection(**limits))  # type: ignore[arg-type]


@pytest.mark.parametrize("limits", [{"gpu_hours": 6.0}, {"gpu_hours": 6.0, "core_hours": 1.0}])
def test_a_submission_is_checked_against_the_gpu_hours(
    folder: StudyFolder, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float]
) -> None:
    limited(folder, monkeypatch, **limits)
    budget.check(folder, [(HALF_HOUR, 3)], (), ({}, []), nobody)
    with pytest.raises(ValueError, match=r"study\.gpu_hours=6: .* 4 jobs, up to the time limit, would ask for 8: 3 of"):
        budget.check(folder, [(HALF_HOUR, 4)], (), ({}, []), nobody)
    remaining = budget.remaining_budget(folder, nobody)
    assert remaining is not None and remaining.take(HALF_HOUR, 3) == "" and remaining.take(HALF_HOUR, 1) != ""


def test_a_submission_is_checked_against_the_core_hours_alone(
    folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(folder, monkeypatch, core_hours=3.0)
    cpu = replace(HALF_HOUR, gpus_per_node=0)
    budget.check(folder, [(cpu, 2)], (), ({}, []), nobody)
    with pytest.raises(ValueError, match=r"study\.core_hours=3: "):
        budget.check(folder, [(cpu, 3)], (), ({}, []), nobody)
    assert budget.remaining_budget(folder, nobody) is not None


def test_without_a_budget_nothing_is_asked_and_nothing_is_counted(
    folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(folder, monkeypatch)

    def never(command: object) -> Answer:
        raise AssertionError(command)

    budget.check(folder, [(HALF_HOUR, 10**6)], (), ({}, []), never)
    assert budget.remaining_budget(folder, never) is None


def test_points_share_jobs_and_waiting_points_count_with_those_that_ask_now(
    folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(HALF_HOUR, pack=2, pack_gpus="slices")
    said = shape.record()
    a, b, c = ledger.Waiting(said), ledger.Waiting(said), ledger.Waiting(dict(reversed(said.items())))
    assert budget._counted([a, c]) == [(shape, 2)]
    limited(folder, monkeypatch, gpu_hours=4.0)
    budget.check(folder, [(shape, 2)], [a, c], ({}, []), nobody)
    with pytest.raises(ValueError, match=r"3 jobs, up to the time limit, would ask for 6: 2 of them would fit"):
        budget.check(folder, [(shape, 2)], [a, b, c], ({}, []), nobody)
