"""What a start costs: a run on one CPU loads neither compilers nor the classes of sharded tensors before it saves."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.runs import REPOSITORY, write_config
from train.spec.config import RunConfig

WATCHED = """
import sys
from train.run import main
from train.checkpoint.manager import CheckpointManager

DEAR = {"triton", "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "pandas", "scipy", "mlflow"}
save, found = CheckpointManager.save, []
def watched(*arguments, **options):
    found.append(sorted(DEAR & set(sys.modules)))
    return save(*arguments, **options)
CheckpointManager.save = watched
code = main(sys.argv[1:])
print(code, found)
"""


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


def test_a_run_on_one_cpu_loads_no_compiler_and_no_sharded_tensors(tiny: RunConfig, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run", tiny)
    arguments = [sys.executable, "-c", WATCHED, "--config", str(config), "--until", "256"]
    ended = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert ended.stdout.splitlines()[-1:] == ["0 [[]]"], ended.stderr
