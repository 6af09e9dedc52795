"""What a start costs: by the end of its first step a run on one CPU has loaded what it needs, and none of `DEAR`."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.runs import REPOSITORY, with_runtime, write_config
from train.spec.config import RunConfig

WATCHED = """
import sys
from train.run import main
from train.trainer import Trainer

step, loaded = Trainer.train_step, []
def watched(*arguments):
    done = step(*arguments)
    loaded.append(set(sys.modules))
    return done
Trainer.train_step = watched
dear = set(sys.argv.pop(1).split(","))
code = main(sys.argv[1:])
print(code, len(loaded), sorted(dear & loaded[0]))
"""

DEAR = (
    # compilers: for runs that compile, and kernels on a GPU
    "triton", "torch._dynamo", "torch._inductor",
    # sharded tensors and checkpoints: for several ranks, and from the first save on
    "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.pipelining",
    "torch.distributed.tensor", "torch.utils.flop_counter",
    # shapes as formulas: torch asks them of meta tensors
    "sympy", "torch.fx.experimental.symbolic_shapes",
    # of other rooms
    "hydra", "matplotlib", "mlflow", "omegaconf", "optuna", "pandas", "psutil", "scipy", "statsmodels", "study",
    # of other data and weights
    "datasets", "huggingface_hub", "pyarrow", "safetensors", "tokenizers", "transformers", "zstandard",
)  # fmt: skip
"""What takes a tenth of a second or more to import, each in its packages' name."""

COMMANDS = ("branch", "coordinate_check", "hub.__main__", "prepare", "provenance")


def test_commands_load_torch_once_ctrl_c_is_looked_after() -> None:
    text = f"import sys, {', '.join(f'train.{name}' for name in COMMANDS)}; print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", text], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("branch", ["--parent", "nowhere", "--out", "out", "--same"]),
        ("provenance", ["--config", "nowhere.yaml", "--step", "1"]),
        ("prepare", ["--config", "nowhere.yaml"]),
        ("prepare", ["--set", "data.sorce=x"]),
    ],
)
def test_wrong_arguments_are_exit_code_2(
    command: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert importlib.import_module(f"train.{command}").main(words) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("deterministic", [False, True])
def test_by_the_end_of_its_first_step_a_run_on_one_cpu_has_loaded_nothing_dear(
    tiny: RunConfig, tmp_path: Path, deterministic: bool
) -> None:
    config = write_config(tmp_path / "run", with_runtime(tiny, deterministic=deterministic))
    arguments = [sys.executable, "-c", WATCHED, ",".join(DEAR), "--config", str(config), "--until", "256"]
    ended = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, timeout=900, check=False)
    assert ended.stdout.splitlines()[-1:] == ["0 2 []"], ended.stderr
