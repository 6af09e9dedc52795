import json
from pathlib import Path

import numpy as np
import pytest

from sweeps.replay.__main__ import main
from sweeps.replay.curves import read_table
from sweeps.replay.policies import POLICIES
from sweeps.replay.simulate import Cluster, replay
from sweeps.schedulers.asha_auto import AshaAuto
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.base import SchedulerOptions
from sweeps.schedulers.random import FullRuns

CURVES = Path(__file__).parents[3] / "shared" / "data" / "curves"
recorded = pytest.mark.skipif(not CURVES.exists(), reason=f"no recorded curves at {CURVES}")


def made(tmp_path: Path, **arrays: object) -> Path:
    path = tmp_path / "curves.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


@recorded
@pytest.mark.parametrize(
    ("scheduler", "means"),
    [
        ("random", [0.6558, 0.3231, 0.0996, 0.0497]),
        ("asha_promotion", [0.0412, 0.0184, 0.0095, 0.0038]),
        ("asha_stopping", [0.0544, 0.0271, 0.0109, 0.0046]),
    ],
)
def test_published_rows_come_out(scheduler: str, means: list[float], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main([f"curves={CURVES / 'digits_mlp_1000x81.npz'}", f"scheduler={scheduler}", f"out={out}"]) == 0
    regrets = json.loads(out.read_text())[scheduler]
    assert list(regrets) == ["5", "10", "20", "40"]
    assert [round(float(np.mean(regrets[b])), 4) for b in regrets] == means
    assert all(len(regrets[b]) == 50 for b in regrets)


@recorded
def test_stopping_is_optunas_pruner_run_by_run(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = [f"curves={CURVES / 'algoperf_wmt.npz'}", "scheduler=asha_stopping,optuna_halving", "r=3", "seeds=3"]
    assert main([*words, "budgets=8,16,32", f"out={out}"]) == 0
    both = json.loads(out.read_text())
    assert both["asha_stopping"] == both["optuna_halving"]


@recorded
def test_choosing_by_settings_beats_choosing_blindly(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = [f"curves={CURVES / 'digits_mlp_1000x81.npz'}", "scheduler=asha_promotion,asha_density", "seeds=20"]
    assert main([*words, "budgets=10", f"out={out}"]) == 0
    both = json.loads(out.read_text())
    assert np.mean(both["asha_density"]["10"]) < np.mean(both["asha_promotion"]["10"])


def test_all_runs_what_the_curves_allow_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without settings there is nothing for the density to choose by; what comes to grief costs only itself."""
    path, out = made(tmp_path, val_loss=np.random.default_rng(0).random((12, 9))), tmp_path / "out.json"
    words = [f"curves={path}", "seeds=1", "budgets=2", "workers=3", f"out={out}"]
    assert main([*words, "scheduler=all"]) == 0
    assert "asha_density      skipped: needs the array `config`" in capsys.readouterr().out
    assert "asha_density" not in json.loads(out.read_text()) and "optuna_median" in json.loads(out.read_text())
    out.unlink()
    assert main([*words, "scheduler=random,asha_density,asha"]) == 2
    assert "scheduler='asha_density' needs the array `config`" in capsys.readouterr().err
    assert list(json.loads(out.read_text())) == ["random"]
    assert main([*words, "scheduler=pbt"]) == 2
    assert "scheduler='pbt' is not replayed: a copy goes on from another one's weights" in capsys.readouterr().err


def test_asha_by_its_name_chooses_by_what_starts_cost() -> None:
    curves = np.random.default_rng(1).random((40, 27))

    def parts(make: type[AshaPromotion], startup: float) -> list[tuple[int, int]]:
        run = replay(make(1, 27, 3, limit=40), curves, lambda t: t, 200.0, cluster=Cluster(2, startup=startup))
        return [(part.trial, part.last) for part in run.segments]

    assert parts(AshaAuto, 0.1) == parts(AshaPromotion, 0.1)
    assert parts(AshaAuto, 5.0) != parts(AshaPromotion, 5.0)
    assert isinstance(POLICIES["asha"](SchedulerOptions(1, 27, trials=40)), AshaAuto)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("out.csv", "out.csv is not allowed: what is written is JSON: name a file that ends in .json"),
        ("/proc/x/out.json", "out=/proc/x/out.json cannot be written (No such file or directory): name another file"),
        ("folder.json", "folder.json is a folder: name a file in it"),
    ],
)
def test_where_nothing_can_be_written_is_said_before_the_replay(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.json").mkdir()
    path = made(tmp_path, val_loss=np.random.default_rng(0).random((12, 9)))
    assert main([f"curves={path}", "scheduler=random", "seeds=1", f"out={tmp_path / name}"]) == 2
    answer = capsys.readouterr()
    assert said in answer.err and not answer.out


def test_rows_whose_beginning_nobody_knows_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = np.random.default_rng(0).random((6, 9))
    losses[1, :4] = losses[2, 4:] = losses[3] = np.nan  # began late, diverged late, diverged at once
    table = read_table(made(tmp_path, val_loss=losses, epoch_cost=np.arange(6.0), config=np.arange(6.0)[:, None]))
    assert (table.losses.shape, table.left_out) == ((5, 9), 1)
    assert table.cost is not None and table.cost.tolist() == [0.0, 2.0, 3.0, 4.0, 5.0]
    assert main([f"curves={tmp_path / 'curves.npz'}", "scheduler=random", "seeds=1", "budgets=2"]) == 0
    assert "1 rows without a value in the first columns are left out" in capsys.readouterr().out


def test_the_clock_bills_start_up_only_to_a_worker_that_changes_trials() -> None:
    curves = np.linspace(1.0, 0.0, 9)[None].repeat(3, axis=0)
    run = replay(FullRuns(9, limit=3), curves, lambda t: t, 100.0, cluster=Cluster(1, startup=2.0))
    assert [part.begin for part in run.segments] == [2.0, 13.0, 24.0]
    alone = replay(AshaPromotion(1, 9, 3, limit=1), curves, lambda t: t, 100.0, cluster=Cluster(1, startup=2.0))
    assert [part.begin for part in alone.segments] == [2.0]


def test_only_epochs_that_are_over_are_seen() -> None:
    curves = np.array([[3.0, 1.0, 2.0, 0.5]])
    run = replay(FullRuns(4), curves, lambda t: 0, 4.0, cluster=Cluster(1))
    assert [run.best_seen(curves, t) for t in (0.5, 1.0, 2.5, 3.9, 4.0)] == [float("inf"), 3.0, 1.0, 1.0, 0.5]


def test_tables_with_divergence_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    losses = rng.random((30, 9))
    losses[::3, 4:] = np.nan
    path = made(tmp_path, val_loss=losses, config=rng.random((30, 2)))
    out = tmp_path / "a" / "out.json"
    assert main([f"curves={path}", "scheduler=all", "seeds=2", "budgets=2", "workers=3", f"out={out}"]) == 0
    assert all(len(by["2"]) == 2 for by in json.loads(out.read_text()).values())
    assert "asha_guarded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scheduler=random"], "curves=FILE.npz is missing"),
        (["curves=nowhere.npz"], "does not exist"),
        (["curves=x.npz", "schedule=random"], "keys are curves"),
        (["curves=x.npz", "scheduler=ashes"], "ashes unknown, allowed are random, asha"),
        (["curves=x.npz", "seeds=0"], "seeds=0 is not allowed"),
        (["curves=x.npz", "budgets=1,-2"], "positive"),
        (["curves=x.npz", "r=abc"], "r='abc' does not fit"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_pickles_are_not_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = made(tmp_path, val_loss=np.array([{"a": 1}], dtype=object))
    assert main([f"curves={path}"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    path.write_text("lr,loss\n")
    assert main([f"curves={path}"]) == 2
    said = capsys.readouterr().err
    assert "it is not a NumPy file of numbers; python -m study export-curves STUDY FILE.npz writes one" in said
    assert "allow_pickle" not in said


def test_lost_units_begin_again_and_cost_their_time() -> None:
    curves = np.linspace(1.0, 0.1, 9)[None].repeat(40, axis=0)

    def finished(failures: float, seed: int = 0) -> list[tuple[int, int, int]]:
        cluster = Cluster(workers=2, failures=failures, seed=seed)
        run = replay(AshaPromotion(1, 9, 3, limit=40), curves, lambda trial: trial, 200.0, cluster=cluster)
        return [(part.trial, part.first, part.last) for part in run.segments]

    assert finished(0.3) == finished(0.3) != finished(0.3, seed=1)
    calm, rough = finished(0.0), finished(0.3)
    assert len(rough) > len(calm)
    whole = {(trial, first, last) for trial, first, last in rough if last in (1, 3, 9)}
    assert {trial for trial, _, _ in whole} == {trial for trial, _, _ in calm}
    for trial, first, _ in rough:  # a unit that was lost begins again where it began
        assert first in (0, 1, 3), trial
