"""What is installed: one version, one command, an environment for laws alone, files that build to the same bytes."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import study
from study import console, namesakes
from study.commands import COMMANDS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES = ("analysis", "conf", "hydra_plugins", "kernels", "study", "sweeps", "train")
READ_BY_LAWS = ("numpy", "scipy", "pandas", "matplotlib")
ALONE = """import importlib.abc, sys
refused = set(sys.argv[1].split(","))
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
sys.argv = ["scaling-study", *sys.argv[2:]]
from study.console import main
sys.exit(main())
"""
WITHOUT = """import sys
from importlib.machinery import PathFinder
lacking = set(sys.argv[1].split(","))
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in lacking else PathFinder.find_spec(name, path, target)
sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""
"""Python as it is where some packages are not installed."""


def pins(path: Path) -> dict[str, str]:
    lines = (line for line in path.read_text("utf-8").splitlines() if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def needed(names: tuple[str, ...]) -> set[str]:
    """Return what these distributions need, themselves included, in this environment and without extras."""
    found: set[str] = set()
    waiting = [*names]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            wanted = (Requirement(text) for text in requires(name) or ())
            waiting += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def test_laws_alone_have_all_that_they_need_and_no_torch() -> None:
    laws, locked = pins(ROOT / "requirements" / "laws.txt"), pins(ROOT / "constraints.txt")
    assert laws.keys() == needed(READ_BY_LAWS)
    assert laws.items() <= locked.items(), "versions are those of constraints.txt"
    lines = (ROOT / "requirements" / "laws.txt").read_text("utf-8").splitlines()
    options = [line for line in lines if line.startswith("--")]
    assert options == ["--no-binary fonttools"], "17 MB of compiled parts that no figure needs (laws_alone.txt)"


def test_laws_are_fitted_and_reported_in_an_environment_of_these_alone(tmp_path: Path) -> None:
    kept = {*pins(ROOT / "requirements" / "laws.txt"), "scaling-study"}
    every = packages_distributions().items()
    refused = {top for top, owners in every if not {canonicalize_name(owner) for owner in owners} & kept}
    assert {"torch", "mlflow", "hydra", "optuna", "dvc", "statsmodels"} <= refused
    words = ["fit", "runs=docs/example-runs.csv", f"out={tmp_path}", "resamples=20", "sensitivity=no"]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, ",".join(refused), *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "train next" in done.stdout
    assert (tmp_path / "report.html").is_file() and json.loads((tmp_path / "metrics.json").read_text())["runs"] == 25


def test_sdist_and_wheel_are_the_same_bytes_when_built_twice_and_whole(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / ".ci" / "dist.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = [f"scaling_study-{study.__version__}-py3-none-any.whl", f"scaling_study-{study.__version__}.tar.gz"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    tracked = {name for name in listed if name and (ROOT / name).is_file()}
    with zipfile.ZipFile(tmp_path / names[0]) as wheel:
        inside = {name for name in wheel.namelist() if not name.startswith("scaling_study-")}
    packaged = {name for name in tracked if name.partition("/")[0] in PACKAGES and not name.endswith((".md", ".svg"))}
    assert inside == packaged
    with tarfile.open(tmp_path / names[1]) as sdist:
        members = {one.name.partition("/")[2] for one in sdist.getmembers() if one.isfile()}
    made = {name for name in members if name.startswith("scaling_study.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert members - made == tracked


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "study.__version__"}
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == study.__version__
    assert f"\n## {study.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert PROJECT["project"]["license"] == "Apache-2.0" and (ROOT / "LICENSE").is_file()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """What the command starts: modules and their words, instead of being started."""
    found: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(runpy, "run_module", lambda module, **_: found.append((module, sys.argv[1:])))
    return found


@pytest.mark.parametrize(
    ("words", "module", "rest"),
    [
        ("sweep study=lr dry_run=true", "study.sweep", ["study=lr", "dry_run=true"]),
        ("fit runs=a.csv", "analysis.fit", ["runs=a.csv"]),
        ("status lr --json", "study", ["status", "lr", "--json"]),
        ("replay curves=c.npz", "sweeps.replay", ["curves=c.npz"]),
        ("plan runs=a.csv budget=1e20", "analysis.plan", ["runs=a.csv", "budget=1e20"]),
        ("plan --help", "analysis.plan", ["--help"]),
        ("plan memory model=8b", "study", ["plan", "memory", "model=8b"]),
    ],
)
def test_a_command_is_the_module_of_its_name(
    words: str, module: str, rest: list[str], started: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["scaling-study", *words.split()])
    assert console.main() == 0
    assert started == [(module, rest)]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("import study; study.submit('study=lr', dry_run=True)",
         "submit(): it needs the module yaml, which is not installed here: run pip"),
        ("import train; train.load_checkpoint", "train.load_checkpoint: it needs the module torch, which is not"),
        ("import analysis; analysis.isoflop.ols({'flops': [1e3, 1e4], 'params_opt': [1.0, 2.0]})",
         "ols(): it needs the module statsmodels, which is not installed here: run pip install . in the project's"),
    ],
)  # fmt: skip
def test_a_function_of_a_notebook_says_which_package_is_missing(call: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + call, "yaml,torch,statsmodels"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1].startswith(f"ModuleNotFoundError: {said}"), done.stderr


@pytest.mark.parametrize("lacking", ["no_such_module.part", "json"])
def test_a_module_that_is_not_installed_is_said_in_a_line(
    lacking: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("the import failed", name=lacking)

    monkeypatch.setattr(runpy, "run_module", failing)
    monkeypatch.setattr(sys, "argv", ["scaling-study", "sweep", "study=lr"])
    if lacking == "json":  # it is there: the fault is another one
        with pytest.raises(ModuleNotFoundError):
            console.main()
        return
    assert console.main() == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "scaling-study sweep: it needs the module no_such_module, which is not installed here: run pip"
    )
    assert said.count("\n") == 1


def test_every_command_is_there_and_named_once() -> None:
    assert console.MODULES.keys() & COMMANDS.keys() == {"plan"}, "`plan memory` is told from `plan budget=…`"
    listed = [line.split("  ")[1] for line in console.usage().splitlines()[2:]]
    assert len(listed) == len(set(listed)) == len(console.MODULES) + len(COMMANDS)
    for module, text in console.MODULES.values():
        assert find_spec(module) is not None and text
    assert PROJECT["project"]["scripts"] == {"scaling-study": "study.script:main"}


def test_the_installed_command_is_the_console() -> None:
    code = "from study.script import main; import sys; early = 'study.console' in sys.modules; sys.argv[1:] = ['fti']\n"
    code += "try: main()\nfinally: print(early)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "False\n"), "nothing is imported before Ctrl-C is minded"
    assert done.stderr == "scaling-study: there is no command fti: did you mean fit?\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 0, r"(?s)scaling-study COMMAND.*\n  sweep +make.*\n  fit +fit laws.*\n  status +points"),
        (["--version"], 0, rf"scaling-study {re.escape(study.__version__)}$"),
        (["fti"], 2, r"scaling-study: there is no command fti: did you mean fit\?$"),
        (["xyzzy"], 2, r"scaling-study: there is no command xyzzy: scaling-study --help lists the commands$"),
    ],
)
def test_what_it_says_by_itself(
    words: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scaling-study", *words])
    assert console.main() == code
    assert re.match(said, "".join(capsys.readouterr()).strip())


@pytest.mark.parametrize("file", ["namesake_of_ours.py", "namesake_of_ours/__init__.py"])
def test_another_package_of_our_name_is_noticed(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, theirs = tmp_path / "home", tmp_path / "theirs"
    for path in (home / "namesake_of_ours" / "__init__.py", theirs / file):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.syspath_prepend(str(home))
    assert namesakes.message(home, ["namesake_of_ours"]) is None
    monkeypatch.syspath_prepend(str(theirs))
    found = namesakes.message(home, ["namesake_of_ours"])
    assert found is not None
    assert found.startswith("Python finds another namesake_of_ours than ours: " + str(theirs / file.partition("/")[0]))
    assert namesakes.message(tmp_path, ["namesake_of_ours"]) is None, "there is none of ours"


def test_an_import_beside_a_namesake_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    namesakes.refuse()
    monkeypatch.setattr(namesakes, "message", lambda home: f"another than {home.name}")
    with pytest.raises(ImportError, match=f"another than {ROOT.name}"):
        namesakes.refuse()
    monkeypatch.setattr(sys, "argv", ["-m"])
    with pytest.raises(SystemExit) as ended:
        namesakes.refuse()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"study: another than {ROOT.name}\n"
