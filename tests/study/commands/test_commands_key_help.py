"""The help of commands that take keys: every key with its type, default and meaning, without an import that is slow."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from study.__main__ import main
from study.commands import COMMANDS
from study.commands.bench import BENCHES
from study.commands.plan import PLANS
from study.config.schema import sections
from tests.study.commands.test_commands_shown import HEAVY
from tests.study.support.studies import environment

ALL = [
    *(("plan", what, module) for what, (_, module, _) in PLANS.items()),
    *(("bench", *one) for one in BENCHES.items()),
]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give texts so many columns that a key and its words are one line."""
    monkeypatch.setenv("COLUMNS", "118")


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(("command", "what", "module"), ALL)
@pytest.mark.parametrize("asked", ["--help", "help"])
def test_every_key_is_listed_with_type_and_meaning(
    command: str, what: str, module: str, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, what, asked]) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.startswith("  ")}
    for key in importlib.import_module(module).KEYS:
        name, kind, *_ = rows[key.name]
        assert kind == key.type_name and key.help.split()[0] in rows[key.name], name
        if key.default not in ("", None, ()) and not key.required:
            assert "(default " in " ".join(shown.split())


def test_a_plan_lists_the_keys_of_the_study_that_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "memory", "-h"]) == 0
    shown = capsys.readouterr().out
    for part in sections():
        if part.path in ("model", "parallel", "memory", "precision", "batch", "compile"):
            assert all(f"    {key.path}=" in shown for key in part.keys)
    assert "data.sequence_length=128" in shown and "cluster.gpu_memory_gb=80.0" in shown
    assert "data.tokenizer" not in shown and "tracking.uri" not in shown


@pytest.mark.parametrize(
    "words", [["plan", "help"], ["plan", "--help"], ["bench", "help"], ["bench", "nonsense", "-h"]]
)
def test_without_a_name_the_help_says_what_there_is(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (PLANS if words[0] == "plan" else BENCHES))
    assert f"python -m study {words[0]} {{" in shown.replace("\n", " ")


def test_help_imports_nothing_heavy() -> None:
    asked = [[command, what, "--help"] for command, what, _ in ALL]
    program = (
        f"import sys; from study.__main__ import main; [main(words) for words in {asked!r}]; "
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelt_option_is_named_before_what_is_missing(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--jsno"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"study {command}: there is no --jsno") and said.count("\n") == 1
