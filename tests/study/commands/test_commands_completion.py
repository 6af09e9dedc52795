from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from study.commands import COMMANDS
from study.commands.completion import candidates, overrides
from study.config.compose import conf_folder
from study.status.states import PointState
from tests.study.support.studies import LIMIT_SECONDS, environment, make_study


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the study `alpha` of the working directory, which also has `beta`."""
    study, narrow = make_study(tmp_path / "runs" / "alpha", [1, 2])
    _, wide = make_study(study.path, [3], width=96)
    make_study(tmp_path / "runs" / "beta", [1])
    monkeypatch.chdir(tmp_path)
    return [*narrow.values(), *wide.values()]


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", list(COMMANDS)),
        ("stat", ["status"]),
        ("status ", ["alpha", "beta"]),
        ("status a", ["alpha"]),
        ("status alpha ", []),
        ("nonsense ", []),
        ("logs alpha --fo", ["--follow"]),
        ("logs alpha --rank ", []),
        ("retry alpha --state ", list(PointState)),
        ("retry alpha --state fai", ["failed"]),
        ("retry alpha --state failed,un", ["failed,unknown"]),
        ("retry alpha --state=time", ["--state=time_limit"]),
        ("cancel alpha --where model.wid", ["model.width="]),
        ("cancel alpha --where model.width=", ["model.width=64", "model.width=96"]),
        ("cancel alpha --where model.width=64,9", ["model.width=64,96"]),
        ("cancel alpha --where study.na", []),
        ("completion ba", ["bash"]),
        ("export-curves ", ["alpha", "beta"]),
    ],
)
def test_what_may_stand_next(line: str, found: list[str]) -> None:
    words = line.split(" ")
    assert candidates(words, len(words) - 1) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("study=smo", ["study=smoke"]),
        ("-m model.wid", ["model.width="]),
        ("cluster=", ["cluster=local", "cluster=slurm"]),
        ("seed=1 sear", None),
        ("nonsense=", []),
    ],
)
def test_what_may_stand_next_in_a_sweep(line: str, found: list[str] | None) -> None:
    words = line.split(" ")
    there = overrides(words, len(words) - 1, conf_folder())
    if found is None:
        assert {"search=", "search.name="} <= set(there)
    else:
        assert there == found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_completes(keys: list[str], name: str) -> None:
    assert candidates([name, "-"], 1)


def test_points(keys: list[str]) -> None:
    assert candidates(["show", "alpha", ""], 2) == keys
    assert candidates(["show", "alpha", keys[2][:6]], 2) == [keys[2]]
    assert candidates(["cancel", "alpha", "--point", keys[0][:6]], 3) == [keys[0]]
    assert candidates(["cancel", "--runs", "elsewhere", ""], 3) == []


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("-m study li", ["list"]),
        ("-m study cancel alpha --where model.width=6", ["64"]),
        ("-m study cancel alpha --where model.wid", ["model.width="]),
        ("-m pytest te", []),
    ],
)
def test_bash_asks_and_gets_it(tmp_path: Path, typed: str, found: list[str]) -> None:
    line = f"{sys.executable} {typed}"
    program = f"""
source <({sys.executable} -m study completion bash)
COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDBREAKS=$' \\t\\n"><=;|&(:'
_study_python
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == found, done.stderr


ZSH = r"""
zmodload zsh/zpty
python=$1; shift
zpty inner "TERM=dumb zsh -f -i"
zpty -w inner "PROMPT=; unset zle_bracketed_paste; autoload -Uz compinit; compinit -u -D"
zpty -w inner "source <($python -m study completion zsh)"
zpty -w inner 'complete-and-say() { zle complete-word; BUFFER="print -r -- \"<${BUFFER}>\""; zle accept-line }'
zpty -w inner 'zle -N complete-and-say; bindkey "^T" complete-and-say; print -r -- "ready" "now"'
zpty -r inner said '*ready now*'
for line in "$@"; do
    zpty -w -n inner "$line"$'\x14'
    zpty -r inner said $'*\n<*>*'
    print -r -- "${${said##*$'\n'<}%%>*}|"
done
zpty -d inner
"""
"""A zsh at a terminal of its own: what each line becomes when TAB is pressed at its end."""


@pytest.mark.usefixtures("keys")
def test_a_real_zsh_asks_and_gets_it(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    (tmp_path / "text.py").touch()
    became = {
        "-m study li": "-m study list ",
        "-m study cancel alpha --where model.width=6": "-m study cancel alpha --where model.width=64 ",
        "-m study cancel alpha --where model.wid": "-m study cancel alpha --where model.width=",
        "-m study nonsense ": "-m study nonsense ",
        "te": "text.py ",
    }
    lines = [f"{sys.executable} {typed}" for typed in became]
    done = subprocess.run(
        ["zsh", "-f", "-c", ZSH, "zsh", sys.executable, *lines],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.stdout.splitlines() == [f"{sys.executable} {text}|" for text in became.values()], done.stderr
