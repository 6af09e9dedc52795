"""`python -m study completion bash|zsh`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from study.commands import COMMANDS, Command, add_json, emit
from study.storage.shapes import OBJECT, TEXT, Shape, record_in

ASKED = ("study", "study.sweep", "words")
"""What the scripts call: `completion MODULE PLACE -- WORDS` prints what may stand at that position, one a line.

`words` is what scripts of earlier versions say for `study`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    said = "put  source <(…)  of it in your shell's rc"
    parser.add_argument("shell", type=_known, metavar="{bash,zsh}", help=said)
    parser.add_argument("position", nargs="?", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", default=[], help=argparse.SUPPRESS)
    add_json(parser)


def _known(name: str) -> str:
    """Return a shell's name, or what its script asks by; the error names shells alone."""
    if name in (*SHELLS, *ASKED):
        return name
    raise argparse.ArgumentTypeError(f"{name!r} is not a shell with completion: choose {' or '.join(SHELLS)}")


def run(options: argparse.Namespace) -> int:
    """Print the script, or what it asks for."""
    if options.shell in ASKED:
        if options.shell == "study.sweep":
            from study.config.compose import conf_folder

            found = overrides(options.words, options.position, conf_folder())
        else:
            found = candidates(options.words, options.position)
        if options.json:
            emit("completion", None, {"words": found})
        elif found:
            print("\n".join(found))
        return 0
    script = shell_script(options.shell)
    if options.json:
        emit("completion", None, {"shell": options.shell, "script": script})
    else:
        print(script, end="")
    return 0


SHELLS = ("bash", "zsh")
MOST_POINTS = 500
ENTRY = Shape("a point", {"key": TEXT, "config": OBJECT}, ("key", "config"))
OTHER_VALUES = {"--keep": ("last=1", "best=1", "last=1,best=1")}

BASH = """\
# Completion of `python -m study` for bash:  source <(python -m study completion bash)
_study_python() {
    local line="${COMP_LINE:0:COMP_POINT}" current prefix python
    local -a words
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    [[ ${#words[@]} -gt 3 && "${words[1]}" == -m && "${words[2]}" == study?(.sweep) ]] || return 0
    current="${words[-1]}" python="${words[0]/#\\~/$HOME}"
    local IFS=$'\\n'
    COMPREPLY=($("$python" -m study completion "${words[2]}" "$((${#words[@]} - 4))" -- "${words[@]:3}" 2>/dev/null))
    # Where = separates words for readline, what is before the last one stands there already.
    if [[ "$current" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then
        prefix="${current%"${current##*=}"}"
        COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    fi
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *= ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o bashdefault -o default -F _study_python python python3
"""

ZSH = """\
#compdef python python3
# Completion of `python -m study` for zsh:  source <(python -m study completion zsh)
_study_python() {
    if [[ "${words[2]}" == "-m" && "${words[3]}" == study(|.sweep) ]]; then
        local -a found
        found=(${(f)"$(${~words[1]} -m study completion ${words[3]} "$((CURRENT - 4))" -- "${words[@]:3}" 2>&-)"})
        compadd -Q -S '' -- ${(M)found:#*=}  # a value follows at once
        compadd -Q -- ${found:#*=}
    elif (( $+functions[_python] )); then
        _python "$@"
    else
        _files
    fi
}
compdef _study_python python python3
"""


def shell_script(shell: str) -> str:
    """Return the script for a shell."""
    return BASH if shell == "bash" else ZSH


def candidates(words: Sequence[str], position: int) -> list[str]:
    """Return what may stand at `position` of the words after `python -m study`, as far as they are written there."""
    current = words[position] if position < len(words) else ""
    before = [word for word in words[:position] if word]
    if not before:
        return _beginning(COMMANDS, current)
    if before[0] not in COMMANDS:
        return []
    parser = _parser(before[0])
    runs = _runs(words)
    options = {name: action for action in parser._actions for name in action.option_strings}
    waiting = options.get(before[-1])
    if waiting is not None and waiting.nargs != 0:
        return _beginning(_values(before[-1], waiting, _study(before, parser, runs), current), current)
    option, equals, value = current.partition("=")
    if option in options and equals:
        there = _values(option, options[option], _study(before, parser, runs), value)
        return [f"{option}={word}" for word in _beginning(there, value)]
    if current.startswith("-"):
        return _beginning(options, current)
    return _beginning(_positional(before, parser, runs), current)


def overrides(words: Sequence[str], position: int, conf: Path) -> list[str]:
    """Return what may stand at `position` of the words after `python -m study.sweep`: groups, their options, keys."""
    from study.config.errors import valid_keys

    current = words[position] if position < len(words) else ""
    name, equals, _ = current.partition("=")
    if equals:
        there = [f"{name}={path.stem}" for path in sorted(conf.glob(f"{name}/*.yaml"))]
    else:
        groups = (path.name for path in conf.iterdir() if path.is_dir() and any(path.glob("*.yaml")))
        there = [f"{key}=" for key in sorted({*groups, *valid_keys()})]
    return _beginning(there, current)


def _positional(before: Sequence[str], parser: argparse.ArgumentParser, runs: Path) -> Iterable[str]:
    given = _given(before[1:], parser)
    wanted = [action for action in parser._actions if not action.option_strings]
    if len(given) >= len(wanted) and not (wanted and wanted[-1].nargs == "*"):
        return ()
    action = wanted[min(len(given), len(wanted) - 1)]
    if action.dest == "study":
        return studies(runs)
    if action.dest == "shell":
        return SHELLS
    if action.dest == "points":
        return points(runs / given[0])
    return tuple(map(str, action.choices or ()))


def _values(option: str, action: argparse.Action, study: Path | None, current: str) -> Iterable[str]:
    if option == "--state":
        from study.status.states import PointState

        done = current.rpartition(",")[0]
        return [f"{done},{state}" if done else state for state in PointState]
    if option == "--point" and study is not None:
        return points(study)
    if option == "--where":
        return _conditions(study, current)
    return tuple(map(str, action.choices or ())) or OTHER_VALUES.get(option, ())


def _conditions(study: Path | None, current: str) -> list[str]:
    """Return keys of configs, each with its =; behind a whole one, the values that the study's points have there."""
    key, sign, typed = current.partition("=")
    if not sign:
        from study.config.errors import valid_keys
        from train.spec.config import RunConfig

        known = set(asdict(RunConfig()))
        return [f"{name}=" for name in valid_keys() if name.split(".")[0] in known]
    from study.status.filters import as_typed

    done = typed.rpartition(",")[0]
    found = {as_typed(value) for config in _configs(study) if (value := _at(config, key)) is not None}
    return [f"{key}={done},{value}" if done else f"{key}={value}" for value in sorted(found)]


def studies(runs: Path) -> list[str]:
    """Return the names of the studies in a folder."""
    return sorted(path.parent.name for path in runs.glob("*/points.jsonl"))


def points(study: Path) -> list[str]:
    """Return the keys of a study's points."""
    return [str(entry["key"]) for entry in _entries(study)][:MOST_POINTS]


def _entries(study: Path) -> Iterable[dict[str, Any]]:
    try:
        lines = (study / "points.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, ValueError):
        return []
    return [entry for line in lines[:MOST_POINTS] if (entry := record_in(line, ENTRY)) is not None]


def _configs(study: Path | None) -> Iterable[dict[str, Any]]:
    return [] if study is None else [entry["config"] for entry in _entries(study)]


def _at(config: dict[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _study(before: Sequence[str], parser: argparse.ArgumentParser, runs: Path) -> Path | None:
    given = _given(before[1:], parser)
    return runs / given[0] if given else None


def _given(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the words that are neither options nor their values."""
    takes = {n for action in parser._actions if action.nargs != 0 for n in action.option_strings}
    found, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in takes
        else:
            found.append(word)
    return found


def _runs(words: Sequence[str]) -> Path:
    for position, word in enumerate(words):
        if word == "--runs" and position + 1 < len(words):
            return Path(words[position + 1]).expanduser()
        if word.startswith("--runs="):
            return Path(word.partition("=")[2]).expanduser()
    return Path("runs")


def _parser(name: str) -> argparse.ArgumentParser:
    command: Command = importlib.import_module(f"study.commands.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser


def _beginning(words: Iterable[str], current: str) -> list[str]:
    return [word for word in words if word.startswith(current)]
