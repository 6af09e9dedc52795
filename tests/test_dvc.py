"""DVC's commands on the project's own pipeline with its stages stood in for: what a user of DVC expects of each."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.inputs.study import from_runs
from study.records.settings import find_study
from tests.warm import Warm

ROOT = Path(__file__).parents[1]
COPIED = ("dvc.yaml", ".dvc/config", ".dvc/.gitignore", ".dvc/plots/budgets.json", ".dvc/plots/page.html", ".dvcignore",
          ".gitignore")  # fmt: skip
STUDY = Path("conf/study/isoflop.yaml")
PAGE = (ROOT / "docs/dvc.md").read_text("utf-8")
METRICS = ["a", "loss", "N", "D", "backtest", "E", "A", "B", "alpha", "beta", "runs"]
LIMIT_SECONDS = 900.0
"""What takes seconds is waited for so long: a machine that is busy elsewhere is not wrong."""
UP_TO_DATE = "Data and pipelines are up to date."


class Project:
    """A git repository with the project's pipeline, in which DVC's commands are run as from a shell."""

    def __init__(self, path: Path, bin_: Path, process: Warm) -> None:
        self.path, self._process = path, process
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "DVC_"))}
        names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        self._environment = {**mine, **names, "PATH": f"{bin_}:{os.environ['PATH']}", "COLUMNS": "80"}
        self._environment |= {"PYTHONPATH": str(ROOT), "HOME": str(bin_)}

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.path, env=self._environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def dvc(self, command: str) -> str:
        """Run a command; return what it printed, stderr last, as there: words with spaces do not occur."""
        started = self._process.start("dvc.__main__", *command.split(), cwd=self.path, env=self._environment)
        out, err = started.communicate(timeout=LIMIT_SECONDS)
        assert started.returncode == 0, f"dvc {command}\n{out}\n{err}"
        return out + err

    def read(self, command: str) -> Any:
        return json.loads(self.dvc(command))

    def ran(self, command: str) -> list[str]:
        """Return the stages that a command ran."""
        return re.findall(r"Running stage '(\w+)'", self.dvc(command))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The pipeline as it is after `make study` and `git commit`."""
    home = tmp_path_factory.mktemp("dvc")
    path, bin_ = home / "project", home / "bin"
    for name in COPIED:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path / name)
    shutil.copytree(ROOT / "conf", path / "conf", ignore=shutil.ignore_patterns("__pycache__"))
    (path / "analysis" / "report").mkdir(parents=True)
    (path / "analysis" / "report" / "page.py").write_text("")
    bin_.mkdir()
    stage = bin_ / "python"
    stage.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "tests" / "dvc_stages.py"}" "$@"\n')
    stage.chmod(0o755)
    found = Project(path, bin_, Warm(("dvc.cli", "dvc.repo", "dvc.repo.reproduce", "dvc.commands.repro"), {}))
    found.git("init", "--quiet", "--initial-branch=main", ".")
    assert found.ran("repro") == ["prepare", "sweep", "fit", "report"]
    found.commit("The study")
    return found


def changed(project: Project, old: str, new: str) -> None:
    text = (project.path / STUDY).read_text("utf-8")
    assert text.count(old) == 1
    (project.path / STUDY).write_text(text.replace(old, new), "utf-8")


def points(project: Project, command: str) -> tuple[Sequence[dict[str, Any]], Sequence[str]]:
    """Return the points that a plot shows, and its colours' field and shapes' field."""
    page = Path(project.dvc(command).strip().removeprefix("file://"))
    drawn = json.loads(re.findall(r"var spec = (\{.*\});", page.read_text("utf-8"))[0])
    return drawn["data"]["values"], [drawn["encoding"][name]["field"] for name in ("color", "shape")]


def test_commands_on_a_finished_study(project: Project) -> None:
    tracked = set(project.git("ls-files").splitlines())
    assert {"dvc.lock", "reports/isoflop/metrics.json", "reports/isoflop/points.csv"} <= tracked
    assert not {name for name in tracked if name.startswith(("data", "runs"))}
    assert UP_TO_DATE in project.dvc("status")
    assert UP_TO_DATE in project.dvc("repro")
    assert project.dvc("data status").strip() == "No changes."
    assert re.findall(r"^(\w+)  ", project.dvc("stage list"), re.M) == ["prepare", "sweep", "fit", "report"]
    assert re.findall(r"\| +(\w+) +\|", project.dvc("dag")) == ["prepare", "sweep", "fit", "report"]
    shown = project.read("metrics show --json")[""]["data"]["reports/isoflop/metrics.json"]["data"]
    assert list(shown) == METRICS
    assert max(map(len, project.dvc("metrics show").splitlines())) < 160, "one row of numbers"
    drawn, fields = points(project, "plots show")
    assert len(drawn) == 20 and fields == ["budget", "rev"]
    assert {float(point["budget"]) for point in drawn} == {5.2e11, 1.1e12, 2e12, 5.6e12}
    page = (project.path / "dvc_plots" / "index.html").read_text("utf-8")
    before, stands_in, after = page.partition('if (typeof vegaEmbed === "undefined") window.vegaEmbed = draw')
    assert "vega-embed@" in before and stands_in and "vegaEmbed('#" in after, "drawn without a network too"
    assert project.git("status", "--short") == ""


def test_what_a_study_does_not_read_changes_nothing(project: Project) -> None:
    for name in ("conf/model/70b.yaml", "conf/cluster/slurm.yaml"):
        with (project.path / name).open("a") as file:
            file.write("# more\n")
    try:
        assert UP_TO_DATE in project.dvc("status")
    finally:
        project.git("checkout", "--", "conf")


def test_an_experiment_is_compared_and_keeps_the_comments(project: Project) -> None:
    before = (project.path / STUDY).read_text("utf-8")
    changed(project, "ratios: [5, 10, 22, 46, 97]", "ratios: [5, 10, 22, 46]")
    try:
        assert project.dvc("status").split() == ["sweep:", "changed", "deps:", f"{STUDY}:", "modified:", "search"]
        found = project.read("params diff --json")[str(STUDY)]
        assert found == {"search.ratios": {"old": "[5, 10, 22, 46, 97]", "new": "[5, 10, 22, 46]"}}
        project.git("checkout", "--", ".")
        said = project.dvc(f"exp run --set-param {STUDY}:search.ratios=[5,10,22,46] -n fewer")
        assert re.findall(r"Running stage '(\w+)'", said) == ["sweep", "fit", "report"]
        text = (project.path / STUDY).read_text("utf-8")
        assert re.findall("#.*", text) == re.findall("#.*", before), "every comment is where it was"
        expected = yaml.safe_load(before)
        expected["search"]["ratios"] = [5, 10, 22, 46]
        assert yaml.safe_load(text) == expected
        difference = project.read("metrics diff --json")["reports/isoflop/metrics.json"]
        assert (difference["runs"]["old"], difference["runs"]["new"], difference["runs"]["diff"]) == (20, 16, -4)
        assert {"runs", "loss", "N", "D"} >= set(difference), "only what differs"
        drawn, _ = points(project, "plots diff")
        assert [sum(point["rev"] == rev for point in drawn) for rev in ("HEAD", "workspace")] == [20, 16]
        table = [line[:80] for line in project.dvc("exp show").splitlines()]
        assert table[1].split()[:6] == ["Experiment", "Created", "a", "loss", "N", "D"]
        assert any("[fewer]" in line and "0.5" in line for line in table), "what differs is within 80 columns"
        assert UP_TO_DATE in project.dvc("status")
        changed(project, "lr_scale: 0.7", "lr_scale: 0.8")
        assert project.ran("repro") == ["sweep", "fit", "report"]
        changed(project, "lr_scale: 0.8", "lr_scale: 0.7")
        assert project.ran("repro") == ["sweep"], "the fit of the same outcomes comes from the cache"
    finally:
        project.git("checkout", "--", ".")
        project.dvc("checkout")


def test_results_that_were_not_made_by_a_stage_are_committed(project: Project) -> None:
    page = project.path / "reports" / "isoflop" / "report.html"
    with page.open("a") as file:
        file.write("<!-- by hand -->")
    assert project.dvc("status").split()[-2:] == ["modified:", "reports/isoflop/report.html"]
    project.dvc("commit --force")
    assert UP_TO_DATE in project.dvc("status")
    project.git("checkout", "--", "dvc.lock")
    project.dvc("checkout")


def test_a_clone_has_the_numbers_and_pulls_the_rest(project: Project, tmp_path: Path) -> None:
    commands = re.findall(r"^dvc (remote add|push|pull)", PAGE, re.M)
    assert commands == ["remote add", "push", "pull"], "what docs/dvc.md shows is what is run here"
    project.dvc(f"remote add --local --default store {tmp_path / 'store'}")
    assert "files pushed" in project.dvc("push")
    clone = Project(tmp_path / "clone", project.path.parent / "bin", project._process)
    subprocess.run(["git", "clone", "--quiet", str(project.path), str(clone.path)], check=True)
    clone.dvc(f"remote add --local --default store {tmp_path / 'store'}")
    shown = clone.read("metrics show --json")[""]["data"]["reports/isoflop/metrics.json"]["data"]
    assert list(shown) == METRICS
    assert len(points(clone, "plots show")[0]) == 20
    said = clone.dvc("status")
    assert "not in cache:       data/code-bytes257" in said
    assert "modified" not in said and "metrics.json" not in said
    assert "files fetched" in clone.dvc("pull")
    assert UP_TO_DATE in clone.dvc("status")
    assert UP_TO_DATE in clone.dvc("repro")
    assert (clone.path / "data/code-bytes257/train-00000.bin").is_file()
    assert (clone.path / "reports/isoflop/report.html").is_file()
    with pytest.raises(ValueError, match=r"runs/isoflop has a study's results but not its runs, as dvc pull leaves it"):
        find_study("isoflop", clone.path / "runs")
    with pytest.raises(ValueError, match=r"without its runs, whose table is runs=reports/isoflop/runs\.csv$"):
        from_runs(clone.path / "runs/isoflop")
    assert clone.git("status", "--short") == ""


def test_the_sweep_depends_on_the_options_that_it_is_composed_of() -> None:
    from hydra import compose, initialize_config_dir
    from hydra.core.hydra_config import HydraConfig

    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        found = compose("config", ["study=isoflop"], return_hydra_config=True)
    HydraConfig.instance().set_config(found)
    choices = {k: v for k, v in HydraConfig.get().runtime.choices.items() if not k.startswith("hydra/")}
    read = {f"conf/{group}/{option}.yaml" for group, option in choices.items()} | {"conf/config.yaml"}
    stage = yaml.safe_load((ROOT / "dvc.yaml").read_text("utf-8"))["stages"]["sweep"]
    named = {str(name) for name in stage["deps"]} | {str(name) for file in stage["params"] for name in file}
    assert named == read | {"data/code-bytes257/manifest.json"}
