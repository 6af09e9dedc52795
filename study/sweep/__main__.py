"""`python -m study.sweep`: a Hydra application that makes points and submits them."""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("study.sweep.__main__")

import difflib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.text.terminal import complain, show
from study import text as terminal
from study.storage.shapes import told

WITH_VALUE = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd", "--package", "-p", "--cfg", "-c")
CHOICES = {
    "--cfg": ("job", "hydra", "all"),
    "-c": ("job", "hydra", "all"),
    "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
    "-i": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}
"""Options whose value is one of a few."""
HYDRAS_OWN = ("--hydra-help", "--version", "--shell-completion", "-sc", "--info", "-i")
OURS = ("--help", "-h", "--multirun", "-m", "--run", "-r", "--resolve")


@dataclass(frozen=True)
class Arguments:
    """The command line, with Hydra's options apart from the overrides: they may stand in any order."""

    options: tuple[str, ...]
    overrides: tuple[str, ...]

    def has(self, *names: str) -> bool:
        """Return whether one of these options was given."""
        return any(option.partition("=")[0] in names for option in self.options)

    def value(self, *names: str) -> str | None:
        """Return the value of the last of these options that was given."""
        found = None
        for place, option in enumerate(self.options):
            name, equals, value = option.partition("=")
            if name in names:
                found = value if equals else self.options[place + 1]
        return found


def split(argv: Sequence[str]) -> Arguments:
    """Return the options and the overrides of a command line; ValueError for an option that is not one of Hydra's."""
    options, overrides = list[str](), list[str]()
    waiting = iter(argv)
    while (word := next(waiting, None)) is not None:
        if not word.startswith("-"):
            overrides.append(word)
            continue
        name = word.partition("=")[0]
        known = (*WITH_VALUE, *HYDRAS_OWN, *OURS)
        if name not in known:
            assigns = "=" in word  # as a key does, so that only a name that is all but an option is taken for one
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.75 if assigns else 0.5) if len(name) > 2 else []
            if assigns and not near:
                raise ValueError(f"unknown option {name}: keys and groups have no dashes, write {word.lstrip('-')}")
            raise ValueError(f"unknown option {name}" + (f": did you mean {near[0]}?" if near else ": see --help"))
        if word in WITH_VALUE:
            value = next(waiting, None)
            if value is None:
                raise ValueError(f"{word} needs a value: see --help")
            _check_option(word, value)
            options.extend((word, value))
        elif word in CHOICES:  # a value may follow; another word is no value, though Hydra would take it for one
            value = next(waiting, "all")
            if value not in CHOICES[word]:
                waiting = itertools.chain([value], waiting)
                value = "all"
            options.append(f"{word}={value}")
        else:
            _check_option(name, word.partition("=")[2])
            options.append(word)
    return Arguments(tuple(options), tuple(overrides))


def _check_option(name: str, value: str) -> None:
    """Raise ValueError for a value that an option cannot have."""
    if name in ("--config-path", "-cp"):
        raise ValueError(
            f"{name}={value} would replace the configs that every study is made of: --config-dir DIR adds a folder of "
            "your own to them"
        )
    if name in CHOICES and value not in CHOICES[name]:
        raise ValueError(f"{name}={value} is not allowed: choose one of {', '.join(CHOICES[name])}")
    if name in ("--config-dir", "-cd") and not (value and Path(value).is_dir()):
        raise ValueError(f"{name}={value}: there is no such folder: name the one that holds your groups and configs")
    if name in ("--config-name", "-cn") and not value:
        raise ValueError(f"{name}= is empty: name a config, without .yaml")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 with one or two lines on stderr for what a person got wrong."""
    words = sys.argv[1:] if argv is None else argv
    terminal.spell_out()
    try:
        arguments = split(words)
        if arguments.has("--help", "-h"):
            from study.sweep.help import about, text

            folders, groups = _config_folders(arguments), [word for word in arguments.overrides if "=" not in word]
            show(about(folders, groups) if groups else text(folders))
            sys.stdout.flush()
            return 0
        if not words:
            from study.sweep.help import head

            print(
                *head(),
                "\nstudy.sweep: name what is to be trained: study=NAME, or KEY=VALUE",
                sep="\n",
                file=sys.stderr,
            )
            return 2
        with told(lambda said: complain(f"study.sweep: {said}")):
            code = _hydra(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (head, less) has seen enough: nothing more can be written to it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ValueError as error:
        complain(f"study.sweep: {error}")
        return 2
    except OSError as error:
        from study.config.errors import from_system

        complain(f"study.sweep: {from_system(error) or error}")
        return 1


def _check_config(arguments: Arguments) -> None:
    """Raise ValueError for a config of one's own that is built on nothing: it would be all that Hydra composes."""
    name, folder = arguments.value("--config-name", "-cn"), arguments.value("--config-dir", "-cd")
    if name is None or folder is None:
        return
    file = Path(folder, f"{name.removesuffix('.yaml')}.yaml")
    if file.is_file() and not any(line.startswith(b"defaults:") for line in file.read_bytes().splitlines()):
        raise ValueError(
            f"--config-name={name}: {file} is built on no config: begin it with defaults: [config, _self_]"
        )


def _hydra(arguments: Arguments) -> int:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from study.config.errors import from_hydra

    _check_config(arguments)
    try:
        if arguments.has("--shell-completion", "-sc"):
            raise ValueError(
                "Hydra's completion does not work for `python -m`: source <(python -m study completion bash) "
                "completes this command, too (bash or zsh)"
            )
        if arguments.has("--cfg", "-c") and arguments.value("--cfg", "-c") == "job":
            return _show(arguments)
        if not arguments.has(*HYDRAS_OWN, "--cfg", "-c"):
            _check_lists(arguments)
            for line in repeated(arguments.overrides):
                complain(f"study.sweep: {line}")
            options = [o for o in arguments.options if o not in ("-m", "--multirun", "--run", "-r")]
            return _drive(["--multirun", *options, *arguments.overrides], _never)
        return _drive([*arguments.options, *arguments.overrides], _never)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ValueError(from_hydra(error)) from error


def _check_lists(arguments: Arguments) -> None:
    """Refuse lists without -m, as every Hydra application does; one point is a multirun of one. Refuse deletions."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from study.config.errors import check_nothing_removed

    parsed = OverridesParser.create().parse_overrides(list(arguments.overrides))
    check_nothing_removed(parsed)
    for override in parsed:
        if override.is_sweep_override() and not arguments.has("-m", "--multirun"):
            line, key = override.input_line or "", override.key_or_group
            value = line.partition("=")[2]
            raise ValueError(
                f"{line} stands for several values: add -m to make one point of each"
                + (f", or write '{key}=[{value}]' for one value that is a list" if "," in value else "")
            )


def repeated(overrides: Sequence[str]) -> list[str]:
    """Return a line for each key that is given again with another value: the last counts, as Hydra has it. Pure."""
    said: dict[str, str] = {}
    lines = []
    for word in overrides:
        key, equals, _ = word.partition("=")
        key = key.lstrip("+")
        if equals and key in said and said[key] != word:
            lines.append(f"{key} is given twice: {word} counts, {said[key]} does not")
        if equals:
            said[key] = word
    return lines


def _show(arguments: Arguments) -> int:
    """Print the composed config as YAML with comments; lists after -m are left out of it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from study.config.errors import check_nothing_removed
    from study.sweep.show_config import document

    parsed = OverridesParser.create().parse_overrides(list(arguments.overrides))
    check_nothing_removed(parsed)
    single = [o.input_line or "" for o in parsed if not o.is_sweep_override()]
    options, package = [], arguments.value("--package", "-p")
    waiting = iter(arguments.options)
    for option in waiting:
        name = option.partition("=")[0]
        if name in ("--cfg", "-c", "--package", "-p"):
            if option == name:
                next(waiting)
        elif name not in ("-m", "--multirun", "--resolve"):
            options.append(option)
    shown: list[Any] = []
    _drive([*options, *single], shown.append)
    print(document(shown[0], resolve=arguments.has("--resolve"), package=package), end="")
    return 0


def _drive(argv: Sequence[str], task: Any) -> int:
    """Let Hydra run: it composes the config and calls the task or, with --multirun, our sweeper and launcher."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    from study.config.compose import conf_folder

    def application(config: Any) -> None:
        task(config)

    GlobalHydra.instance().clear()
    run = hydra.main(config_path=str(conf_folder()), config_name="config", version_base="1.3")(application)
    with _as_command_line(argv), _mode_by_options():
        try:
            run()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


@contextmanager
def _as_command_line(argv: Sequence[str]) -> Iterator[None]:
    """Give Hydra its arguments, and let it raise what went wrong instead of printing a traceback of its own."""
    before, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [before[0], *argv]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full


@contextmanager
def _mode_by_options() -> Iterator[None]:
    """Skip the extra composition in which Hydra looks for `hydra.mode`: --multirun or --run has chosen already."""
    from hydra._internal.hydra import Hydra

    before = Hydra.get_mode
    Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.get_mode = before  # type: ignore[method-assign]


def _never(config: Any) -> None:
    """Refuse to run a point here: only another sweeper with another launcher than ours asks for that."""
    del config
    raise ValueError("hydra/sweeper and hydra/launcher cannot be chosen here, leave them out: see --help")


def _config_folders(arguments: Arguments) -> list[Path]:
    import study

    own = Path(study.__file__).resolve().parents[1] / "conf"
    extra = arguments.value("--config-dir", "-cd")
    return [own, *([Path(extra)] if extra else [])]
