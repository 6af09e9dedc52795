import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from study.config.schema import ClusterConfig, StudyConfig
from study.planning.estimate import RowState, Speed, rows, slots, speed
from study.records.point import Point
from study.records.points import resolve_run, to_point
from study.storage.layout import StudyFolder
from study.sweep.table import FULL_ROWS, table
from study.text import estimate, human
from train.spec.config import BudgetConfig, ModelConfig, RunConfig, RuntimeConfig
from train.spec.counts import flops_per_token, params

ASSUMED = Speed((), 1e10, "assuming")


def points(count: int, budget: float = 1e11) -> list[Point]:
    configs = [StudyConfig(seed=seed, budget=BudgetConfig(flops=budget)) for seed in range(count)]
    return [to_point(resolve_run(one), {}, (f"seed={one.seed}", "study=x")) for one in configs]


def text(shown: object, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(shown)
    out = console.file
    assert isinstance(out, io.StringIO)
    return out.getvalue()


def test_an_estimate_of_years_is_told_in_years() -> None:
    assert [estimate(s) for s in (9000, 354_000, 5.2e9, 4e11)] == ["2.5 h", "4.1 days", "160 years", "13,000 years"]


def test_a_row_has_the_exact_counts() -> None:
    (point,) = points(1)
    (row,) = rows([point], {point.key: RowState.COMPLETED})
    model, data = point.config.model, point.config.data
    assert row.state == "completed"
    assert row.params == params(model, data.vocab_size).matmul
    assert row.tokens == point.config.budget.tokens
    assert row.flops == row.tokens * flops_per_token(model, data.vocab_size, data.sequence_length)
    assert row.flops == pytest.approx(1e11, rel=0.01)


def test_every_point_is_shown_with_what_tells_it_apart() -> None:
    made = points(3)
    shown = text(table(rows(made, {}), ASSUMED, 2, "Study x"))
    for point in made:
        assert point.key in shown
    assert "seed=2" in shown
    assert "study=x" not in shown
    assert "64 x 2" in shown


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_table_has_whole_keys_and_states_where_it_is_narrow(width: int) -> None:
    made = [to_point(resolve_run(StudyConfig(budget=BudgetConfig(flops=1e11))), {})]
    shown = text(table(rows(made, {made[0].key: RowState.COMPLETED}), ASSUMED, 2, "Study x", width), width=width)
    assert made[0].key in shown
    assert "completed" in shown
    assert "…" not in shown


def test_many_points_are_condensed_by_budget() -> None:
    made = points(FULL_ROWS, 1e11) + points(2, 2e11)
    shown = text(table(rows(made, {}), ASSUMED, 2, "Study x"))
    assert made[0].key not in shown
    assert "1e11 FLOPs" in shown
    assert "2e11 FLOPs" in shown
    assert "42 points" in shown


def test_totals_and_the_assumption_are_in_the_caption() -> None:
    made = points(4)
    shown = text(table(rows(made, {made[0].key: RowState.COMPLETED}), ASSUMED, 2, "Study x"))
    assert "4 points: 3.99e11 FLOPs" in shown
    assert "40 s of runs (30 s left)" in shown
    assert "20 s with 2 at once" in shown
    assert "assuming" in shown


def test_a_long_run_bounds_the_time_however_many_run_at_once() -> None:
    made = points(1, 1e12) + points(3, 1e11)
    assert "100 s with 4 at once" in text(table(rows(made, {}), Speed((), 1e10, ""), 256, "")).replace(
        "1.7 min", "100 s"
    )


def outcome(folder: StudyFolder, key: str, device: str, flops: float) -> None:
    folder.run(key).path.mkdir(parents=True)
    folder.run(key).outcome.write_text(
        json.dumps(
            {
                "state": "completed",
                "device": device,
                "params": {"matmul": 1000},
                "flops": flops,
                "seconds": {"total": 2.0},
            }
        )
    )


def test_speed_is_measured_by_finished_runs_of_that_device(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    outcome(folder, "a", "cpu", 6e9)
    outcome(folder, "b", "cuda (some GPU)", 6e15)
    folder.run("c").path.mkdir()
    folder.run("c").outcome.write_text("{torn")
    found = speed(folder, RunConfig(), ClusterConfig())
    assert found.measured == ((1000, 3e9),)
    assert "1 finished run of" in found.why
    gpu = speed(folder, RunConfig(runtime=RuntimeConfig(device="cuda")), ClusterConfig())
    assert gpu.measured == ((1000, 3e15),)


def test_the_runs_nearest_in_size_tell_the_time() -> None:
    measured = tuple((size, rate) for size, rate in ((10**3, 1e9), (10**6, 5e9), (2 * 10**6, 6e9), (3 * 10**6, 7e9)))
    config = StudyConfig(model=ModelConfig(width=128, layers=4), budget=BudgetConfig(flops=6e11))
    (row,) = rows([to_point(resolve_run(config), {})], {})
    assert Speed(measured, 0.0, "").seconds(row) == pytest.approx(row.flops / 6e9)


def test_without_finished_runs_it_is_an_assumption_per_core_or_gpu(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    cpu = speed(folder, RunConfig(runtime=RuntimeConfig(threads=2)), ClusterConfig())
    gpus = speed(folder, RunConfig(), ClusterConfig(nodes=2, gpus_per_node=8))
    assert "a core with nothing else to do (small models on a busy one take up to seven times as long)" in cpu.why
    assert "a GPU, until" in gpus.why, "nobody shares a GPU that a job was given"
    assert gpus.assumed / 16 > cpu.assumed / 2


def test_slots() -> None:
    assert slots(ClusterConfig(slots=3), RunConfig()) == 3
    assert slots(ClusterConfig(), RunConfig(runtime=RuntimeConfig(threads=10**6))) == 1
    assert slots(ClusterConfig(executor="slurm", array_parallelism=7), RunConfig()) == 7


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (999, "999"), (999_999, "1.00M"), (144_000, "144K"), (1.5e9, "1.50B"), (6.4e12, "6.40T")],
)
def test_counts_are_readable(value: float, shown: str) -> None:
    assert human(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.5, "0.5 s"), (59, "59 s"), (600, "10 min"), (9000, "2.5 h"), (864000, "10 days")]
)
def test_durations_are_readable(seconds: float, shown: str) -> None:
    assert estimate(seconds) == shown
