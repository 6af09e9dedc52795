"""Every recipe of CONTRIBUTING.md, carried out in one copy of the code: what it names is all that it takes."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.once import folder_once, once
from tests.warm import Warm

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COPIED = ("analysis", "conf", "docs", "hydra_plugins", "kernels", "study", "sweeps", "train")
BLOCK = re.compile(
    r"^`(?P<path>[^`]+)`, (?P<place>new|before|after|instead of)(?: `(?P<anchor>[^`]+)`)?:\n\n"
    r"```\w+\n(?P<text>.*?)^```$",
    re.M | re.S,
)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
MOST_FILES = 3
MORE_FILES = {"A kernel": 6, "A model part": 5, "An activation": 4}
"""Recipes that take more: a kernel is a folder of its own, beside what exports it and how it is launched."""
WARM = (
    "study.sweep.plugins", "study.search.view", "analysis.compare", "analysis.results.study_fit", "matplotlib.figure",
    "sweeps.replay.__main__", "torch",
)  # fmt: skip
SCRIPT = """import runpy, sys
del sys.argv[0]
if sys.argv[0] == "-c":
    exec(sys.argv[1])
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Recipe:
    """What a heading of the page says: edits (path, place, anchor, text), and commands with what they print."""

    edits: Sequence[Mapping[str, str | None]]
    commands: Sequence[tuple[str, Sequence[str]]]

    @property
    def files(self) -> set[str]:
        return {str(edit["path"]) for edit in self.edits}


def recipes() -> dict[str, Recipe]:
    found = {}
    for part in PAGE.split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        commands: list[tuple[str, list[str]]] = []
        for block in CONSOLE.findall(text):
            for line in block.splitlines():
                if line.startswith("$ "):
                    commands.append((line[2:], []))
                else:
                    commands[-1][1].append(squeezed(line))
        found[title] = Recipe([edit.groupdict() for edit in BLOCK.finditer(text)], commands)
    return found


def squeezed(text: str) -> str:
    return " ".join(text.split())


def carry_out(recipe: Recipe, root: Path) -> None:
    for edit in recipe.edits:
        path, text = root / str(edit["path"]), str(edit["text"])
        if edit["place"] == "new":
            assert not path.exists(), f"{path} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            continue
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        at = [number for number, line in enumerate(lines) if line.startswith(str(edit["anchor"]))]
        assert len(at) == 1, f"{path}: {len(at)} lines begin with {edit['anchor']!r}"
        start = at[0] + (edit["place"] == "after")
        lines[start : start + (edit["place"] == "instead of")] = [text]
        path.write_text("".join(lines), encoding="utf-8")


def contents(root: Path) -> dict[str, bytes]:
    paths = (path for top in COPIED for path in (root / top).rglob("*") if path.suffix not in (".pyc", ".png"))
    every = [root / "pyproject.toml", *paths]
    return {str(path.relative_to(root)): path.read_bytes() for path in every if path.is_file()}


@pytest.fixture(scope="session")
def copy(session_folder: Path) -> Path:
    """A copy of the code in which all recipes have been carried out."""
    return folder_once(session_folder / "recipes", carried_out)


def carried_out(root: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", root)
    for name in COPIED:
        shutil.copytree(ROOT / name, root / name)  # with what Python has compiled
    shutil.copytree(ROOT / "tests", root / "tests", ignore=lambda folder, names: set(names) - {"warm.py"})
    (root / "as_script.py").write_text(SCRIPT, encoding="utf-8")
    before = contents(root)
    for recipe in recipes().values():
        carry_out(recipe, root)
    after = contents(root)
    assert {name for name in after if after[name] != before.get(name)} == set().union(
        *(recipe.files for recipe in recipes().values())
    )


@pytest.fixture(scope="session")
def process(copy: Path) -> Warm:
    return Warm(WARM, {"PYTHONPATH": os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")])}, home=copy)


@pytest.mark.parametrize("title", recipes())
def test_a_recipe_is_all_that_it_takes(title: str, copy: Path, process: Warm) -> None:
    recipe = recipes()[title]
    assert recipe.edits and recipe.commands, f"{title} has no blocks"
    assert len(recipe.files) <= MORE_FILES.get(title, MOST_FILES), f"{title}: {sorted(recipe.files)}"
    for command, expected in recipe.commands:
        said = printed(command, copy, process)
        for text in expected:
            assert text in squeezed(said), f"{command} does not print {text!r}:\n{said}"


def printed(command: str, copy: Path, process: Warm) -> str:
    """Return what a command prints; many a recipe gives one that others give too, which runs once for all of them."""
    name = hashlib.sha256(command.encode()).hexdigest()[:12]
    return once(copy.with_name(f"{copy.name}-{name}.txt"), lambda: output(shlex.split(command), copy, process))


def output(words: Sequence[str], copy: Path, process: Warm) -> str:
    """Return what `grep TEXT FILE` or `VARIABLE=value python …` prints."""
    if words[0] == "grep":
        return "\n".join(line for line in (copy / words[2]).read_text("utf-8").splitlines() if words[1] in line)
    start = words.index("python")
    environment = {**os.environ, "COLUMNS": "200", **dict(word.split("=") for word in words[:start])}
    words = words[start + 1 :]
    module, rest = (words[1], words[2:]) if words[0] == "-m" else ("as_script", words)
    started = process.start(module, *rest, cwd=copy, env=environment)
    out, err = started.communicate(timeout=900)
    assert started.returncode == 0, f"{words}\n{out}\n{err}"
    return out


def test_every_kind_of_thing_has_a_recipe() -> None:
    kinds = ["scheduler", "sampler", "law", "command", "kernel", "finding", "figure", "failure class", "model part"]
    named = {f"A {kind}" for kind in kinds} | {"An optimizer", "An interval method", "An executor"}
    named |= {"A sum of powers", "An activation", "A norm", "A schedule"}
    assert named == recipes().keys()
