"""The command line of a run: outcomes, exit codes, errors."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import Tensor

from tests.pressed import run_pressed
from tests.train.runs import LIMIT_SECONDS, REPOSITORY, finish, read_outcome, records, start, with_runtime, write_config
from train import run
from train.optim.optimizer import Optimizer
from train.parallel.parallel_model import ParallelModel
from train.runtime.signals import StopFlag
from train.spec import frozen_run
from train.spec.config import BudgetConfig, RunConfig, ScheduleConfig
from train.spec.counts import FLOP_RULE, flops_per_token, params

Main = Callable[[Path, int], str]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Run the command line on a config within this process; return what it printed."""
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)

    def call(config: Path, code: int = 0) -> str:
        assert run.main(["--config", str(config)]) == code
        return "".join(capsys.readouterr())

    return call


@pytest.mark.parametrize("lacking", ["no_such_module.part", "json"])
def test_a_package_that_is_not_installed_is_said_in_a_line(
    lacking: str, tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("the import failed", name=lacking)

    monkeypatch.setattr(run, "_prepared", failing)
    there = lacking == "json"
    said = main(write_config(tmp_path / "run", tiny), run.FAILED if there else run.REFUSED)
    if not there:
        assert said.startswith("error: it needs the module no_such_module, which is not installed here: run pip")
        assert said.count("\n") == 1
    else:  # the fault is another one
        assert said.startswith("Traceback")


def test_help_loads_no_torch() -> None:
    code = "import sys, train.run\ntry: train.run.main(['--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'numpy', 'yaml'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert "--until" in done.stdout


def test_ctrl_c_at_its_first_import_is_ctrl_c_as_later_on(tmp_path: Path, tiny: RunConfig) -> None:
    folder = tmp_path / "run"
    ended = run_pressed("train.run", "raised", "--config", str(write_config(folder, tiny)))
    assert ended.returncode == run.INTERRUPTED, ended.stderr
    assert "stopped by SIGINT at step" in ended.stdout
    assert [*(folder / "checkpoints").iterdir()] and not (folder / "outcome.json").exists()


def test_a_run_leaves_its_outcome_and_metrics(tmp_path: Path, tiny: RunConfig) -> None:
    folder = tmp_path / "run"
    config = write_config(folder, with_runtime(tiny, log_steps=7))
    out = finish(start(config))
    assert "step 30  tokens 3,760/3,760 (100 %)" in out
    outcome = read_outcome(folder)
    assert outcome["state"] == "completed"
    assert outcome["schedule_complete"] is True
    assert outcome["step"] == 30
    assert outcome["tokens"] == tiny.budget.tokens == (29 * 8 + 3) * 16
    assert outcome["flop_rule"] == FLOP_RULE
    assert outcome["flops"] == flops_per_token(tiny.model, 64, 16) * outcome["tokens"]
    assert outcome["params"]["matmul"] == params(tiny.model, 64).matmul
    assert (outcome["device"], outcome["world_size"]) == ("cpu", 1)
    seconds = outcome["seconds"]
    assert 0 < seconds["train"] < seconds["total"]
    assert seconds["train"] + seconds["validation"] + seconds["checkpoint"] <= seconds["total"] + 0.01

    rows = records(folder)
    assert [r["step"] for r in rows if r["kind"] == "train"] == [7, 14, 21, 28, 30]
    validation = [r for r in rows if r["kind"] == "validation"]
    assert [r["tokens"] for r in validation] == [1024, 1920, 2944, 3760]  # first boundaries at or past a quarter
    losses = [r["metrics"]["loss"] for r in validation]
    assert losses[0] > losses[-1]
    assert outcome["loss"]["validation_nats_per_token"] == losses[-1]
    bits = losses[-1] / math.log(2) / 4.0
    assert outcome["loss"]["validation_bits_per_byte"] == pytest.approx(bits, rel=1e-12)
    assert validation[-1]["metrics"]["bits_per_byte"] == pytest.approx(bits, rel=1e-12)

    before = (folder / "metrics.jsonl").read_bytes()
    assert "already completed" in finish(start(config))
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_losses_do_not_depend_on_the_micro_batch(tmp_path: Path, tiny: RunConfig, main: Main) -> None:
    losses = []
    for micro in (1, 3, 100):
        folder = tmp_path / str(micro)
        parallel = replace(tiny.parallel, micro_batch_sequences=micro)
        main(write_config(folder, replace(tiny, parallel=parallel)), 0)
        losses.append(read_outcome(folder)["loss"]["validation_nats_per_token"])
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)


def test_every_step_has_the_learning_rate_of_its_end(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten steps of which two warm up; then it falls to 0 in eight."""
    rates: list[float] = []
    step = Optimizer.step

    def noted(self: Optimizer, *given: Any, **more: Any) -> Any:
        rates.append(float(self.param_groups[0]["lr"] / self.param_groups[0]["lr_scale"]))
        return step(self, *given, **more)

    monkeypatch.setattr(Optimizer, "step", noted)
    assert tiny.batch.tokens is not None
    schedule = ScheduleConfig(name="linear", warmup_fraction=0.2, final_lr_fraction=0.0)
    budget = BudgetConfig(tokens=10 * tiny.batch.tokens)
    main(write_config(tmp_path / "run", replace(tiny, schedule=schedule, budget=budget)), 0)
    eighths = (4, 8, 7, 6, 5, 4, 3, 2, 1, 0)
    assert rates == pytest.approx([2e-3 * part / 8 for part in eighths], abs=1e-12)


def test_divergence_is_an_outcome(tmp_path: Path, tiny: RunConfig, main: Main) -> None:
    folder = tmp_path / "run"
    optim = replace(tiny.optim, lr=1e30, grad_clip=0.0)
    config = write_config(folder, replace(tiny, optim=optim))
    main(config, run.DIVERGED)
    outcome = read_outcome(folder)
    assert outcome["state"] == "diverged"
    assert outcome["schedule_complete"] is False
    assert outcome["step"] < 30
    assert outcome["loss"]["validation_nats_per_token"] is None
    assert "already diverged" in main(config, run.DIVERGED)


@pytest.mark.parametrize("step", [1, 30])
def test_a_run_whose_folder_is_moved_says_so_leaves_nothing_there_and_resumes_where_it_is(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    tiny = replace(tiny, runtime=replace(tiny.runtime, checkpoint_seconds=0.0))
    before, after, undisturbed = tmp_path / "before", tmp_path / "after", tmp_path / "undisturbed"
    main(write_config(undisturbed, tiny), 0)
    true, seen = ParallelModel.forward_backward, []

    def moved(*arguments: Any) -> Tensor:
        seen.append(0)
        if len(seen) == step:
            before.rename(after)
        return true(*arguments)

    monkeypatch.setattr(ParallelModel, "forward_backward", moved)
    said = main(write_config(before, tiny), run.FAILED)
    assert f"error: {before} is gone: it was moved or removed" in said
    assert "Traceback" not in said
    assert not before.exists()
    main(after / "config.yaml", 0)
    assert [one.get("step") for one in records(after)] == [one.get("step") for one in records(undisturbed)]
    assert read_outcome(after)["loss"] == read_outcome(undisturbed)["loss"]


def test_a_last_step_without_a_finite_loss_ends_a_run_as_any_other(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, true, seen = tmp_path / "run", ParallelModel.forward_backward, []

    def no_number_at_last(*arguments: Any) -> Tensor:
        seen.append(true(*arguments))
        return seen[-1] if len(seen) < 30 else seen[-1] * math.nan

    monkeypatch.setattr(ParallelModel, "forward_backward", no_number_at_last)
    main(write_config(folder, tiny), 0)
    outcome = read_outcome(folder)
    assert (outcome["state"], outcome["step"]) == ("completed", 30)
    assert outcome["health"]["skipped_steps"] == 1
    assert outcome["loss"]["train_nats_per_token"] == float(seen[-2])


def test_an_unsaved_run_leaves_no_checkpoints_and_begins_anew(tmp_path: Path, tiny: RunConfig, main: Main) -> None:
    saved, folder = tmp_path / "saved", tmp_path / "unsaved"
    main(write_config(saved, tiny), 0)
    config = write_config(folder, tiny)
    assert run.main(["--config", str(config), "--unsaved", "--until", "640"]) == 0
    assert not (folder / "outcome.json").exists() and records(folder)[-1]["tokens"] == 640
    assert run.main(["--config", str(config), "--unsaved"]) == 0
    assert not (folder / "checkpoints").exists()
    assert read_outcome(folder)["loss"] == read_outcome(saved)["loss"]
    steps = [row["step"] for row in records(folder) if row["kind"] == "train"]
    assert steps == list(range(1, 31))


def test_unsaved_does_not_begin_anew_beside_checkpoints(
    tmp_path: Path, tiny: RunConfig, main: Main, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "run", tiny)
    (tmp_path / "run" / "checkpoints").mkdir()
    assert run.main(["--config", str(config), "--unsaved"]) == 2
    assert "checkpoints is there: leave the option out to go on" in capsys.readouterr().err


def test_bf16_trains_to_about_the_same_loss(tmp_path: Path, tiny: RunConfig, main: Main) -> None:
    losses = {}
    for name in ("fp32", "bf16"):
        folder = tmp_path / name
        main(write_config(folder, replace(tiny, precision=replace(tiny.precision, name=name))), 0)
        losses[name] = read_outcome(folder)["loss"]["validation_nats_per_token"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=1e-2)
    assert losses["bf16"] != losses["fp32"]


def test_errors_name_the_key_and_show_no_traceback(tmp_path: Path, tiny: RunConfig, main: Main) -> None:
    def message(config: Path) -> str:
        return main(config, run.REFUSED)  # an exception would come through

    assert "no such file" in message(tmp_path / "none.yaml")
    unknown = tmp_path / "unknown.yaml"
    unknown.write_text(yaml.safe_dump({"model": {"widht": 64}, "budget": {"tokens": 1024}}))
    assert "did you mean 'model.width'" in message(unknown)
    vocabulary = replace(tiny, data=replace(tiny.data, name="other"))
    assert "is not prepared" in message(write_config(tmp_path / "a", vocabulary))
    stale = replace(tiny, data=replace(tiny.data, fingerprint="0" * 12))
    assert "data.fingerprint='000000000000'" in message(write_config(tmp_path / "b", stale))
    replicas = replace(tiny, parallel=replace(tiny.parallel, dp_replicate=2))
    assert "parallel.dp_replicate=2" in message(write_config(tmp_path / "c", replicas))


def test_numbers_are_read_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("optim: {lr: 1e-3, weight_decay: 5E-2}\nbudget: {tokens: 1.28e5}\nmodel: {rope_theta: 1e+4}\n")
    config = frozen_run.load(path)
    assert (config.optim.lr, config.optim.weight_decay) == (1e-3, 0.05)
    assert (config.budget.tokens, config.model.rope_theta) == (128_000, 10_000.0)


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path, tiny: RunConfig) -> None:
    folder = tmp_path / "run"
    process = start(write_config(folder, tiny))
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(LIMIT_SECONDS) == 0
    assert read_outcome(folder)["state"] == "completed"


@pytest.mark.parametrize("until", ["0", "-5", "1e3"])
def test_until_is_a_number_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str], until: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["--config", str(tmp_path / "config.yaml"), f"--until={until}"])
    assert ended.value.code == 2
    assert f"--until: '{until}' is not allowed: a whole number from 1 on is needed" in capsys.readouterr().err
