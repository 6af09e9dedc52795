"""All commands alike: help without heavy imports, errors on stderr with code 2; docstrings' examples; the tutorial."""

from __future__ import annotations

import base64
import doctest
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.backtest import main as main_
from analysis.diagnostics import backtest
from tests.analysis import studies

ROOT = Path(__file__).parents[2]
COMMANDS = ("fit", "plan", "next", "backtest", "compare")
HOMES = {"compare": "results.law_comparison"}
"""Where commands are whose module by their own name is there to be run, not to be imported."""


def home(name: str) -> Any:
    return importlib.import_module(f"analysis.{HOMES.get(name, name)}")


@pytest.mark.parametrize("name", (*COMMANDS, "score"))
def test_help_names_every_key_and_imports_nothing_heavy(name: str) -> None:
    code = (
        f"import sys; from analysis.{name} import main; main(['--help']); "
        "print('HEAVY', [m for m in ('pandas', 'scipy', 'statsmodels', 'matplotlib', 'mlflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.rstrip().endswith("HEAVY []")
    assert f"usage: python -m analysis.{name}" in done.stdout
    assert all(f"  {key.name} " in done.stdout for key in home(name).KEYS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_key_that_is_not_there_and_a_file_that_is_not_there_are_named(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = home(name).main
    assert main(["rnus=a.csv"]) == 2
    assert "did you mean runs=?" in capsys.readouterr().err
    assert main(["runs=/nowhere/a.csv"]) == 2
    assert "does not exist" in capsys.readouterr().err


EXAMPLES = (
    "backtest", "compare", "next",
    "approaches.comparison", "approaches.cost", "approaches.curves", "approaches.envelope", "approaches.isoflop",
    "approaches.optimum", "approaches.settings", "diagnostics.backtest", "diagnostics.schedule",
    "diagnostics.sensitivity", "fit", "inference.fit_law", "inference.selection", "inputs.rows", "inputs.tables",
    "laws.registry", "notebook", "plan", "planning.next_runs", "planning.shapes", "results.law_comparison",
)  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_docstrings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = doctest.testmod(importlib.import_module(f"analysis.{name}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_a_rolling_backtest_of_an_exact_law_has_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    studies.isoflop(0, budgets=(1e12, 1e13, 1e14, 1e15)).to_csv(tmp_path / "a.csv", index=False)
    assert main_([f"runs={tmp_path / 'a.csv'}", f"out={tmp_path}"]) == 0
    assert "exponent a" in capsys.readouterr().out
    rows = studies.as_rows(studies.isoflop(0, budgets=(1e12, 1e13, 1e14, 1e15)))
    from analysis.estimation.objectives import Huber

    cuts = backtest.rolling(rows, Huber())
    assert [cut.rows for cut in cuts] == [10, 15]
    assert max(cut.mean_abs_relative_error for cut in cuts) < 1e-5
    _, _, _, alpha, beta = studies.LAW
    assert all(cut.a == pytest.approx(beta / (alpha + beta), abs=1e-3) for cut in cuts)


def test_the_law_that_made_the_runs_ranks_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    studies.isoflop(2, noise=0.001, budgets=(1e12, 1e13, 1e14, 1e15)).to_csv(tmp_path / "a.csv", index=False)
    main = home("compare").main
    assert main([f"runs={tmp_path / 'a.csv'}", "forms=kaplan,surface,chinchilla_no_floor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("chinchilla ")
    assert main(["runs=x", "forms=list"]) == 0
    assert "repeats" in capsys.readouterr().out


def test_a_law_that_compare_does_not_know_is_named_with_its_own_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    studies.isoflop(noise=0.004).to_csv(tmp_path / "a.csv", index=False)
    assert home("compare").main([f"runs={tmp_path / 'a.csv'}", "forms=chinchila"]) == 2
    said = capsys.readouterr().err
    assert "forms=chinchila is not known; did you mean forms=chinchilla?; take a name or a formula that" in said
    assert "python -m analysis.compare forms=list prints" in said
    assert len(said) < 200, "the names of all laws would fill lines"


def test_a_text_that_is_no_table_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.md").write_text("# Notes\n\n- one, two\n- one, two, three\n- a\n- one, two, three, four\n")
    assert home("fit").main([f"runs={tmp_path / 'notes.md'}", f"out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(r"analysis\.fit: runs=\S+notes\.md is no table; give one as \.csv, or one of [^\n]+\n", said)


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def value(number: str) -> float:
    return float(number.replace(",", "").rstrip("."))


def slack(number: str, share: bool) -> float:
    """Return how far a printed number may be off: a unit of its last digit, as other processors round sums otherwise.

    That is nothing for counts, always 1e-8, as what is left of a gradient at the minimum is a matter of rounding, and a
    point for a share of draws [%], as a few of them have no one minimum.
    """
    if share:
        return 1.01
    if number.isdigit() and int(number) < 100:
        return 0.0
    digits, _, power = number.partition("e")
    return max(1.01 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2])), 1e-8)


def skeleton(notebook: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Return kind, source and outputs of a notebook's cells, a # for each number that was printed."""
    return [
        (cell["cell_type"], "".join(cell["source"]),
         [NUMBER.sub("#", "".join(out["text"])) if "text" in out else "image" for out in cell.get("outputs", ())])
        for cell in notebook["cells"]
    ]  # fmt: skip


def test_the_notebook_is_the_tutorial() -> None:
    """Its cells are the page's blocks, with the outputs that the page has, in a format that notebooks are read in."""
    kept = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text("utf-8"))
    page = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    assert (kept["nbformat"], kept["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in kept["cells"]}) == len(kept["cells"])
    first, *cells = [cell for cell in kept["cells"] if cell["cell_type"] == "code"]
    assert "os.chdir" in "".join(first["source"])
    blocks = re.findall(r"```python\n(.*?)\n```\n", page, re.DOTALL)
    assert ["".join(cell["source"]) for cell in cells] == blocks
    printed = [text for cell in cells for out in cell["outputs"] for text in ["".join(out.get("text", ""))] if text]
    assert printed == re.findall(r"```text\n(.*?\n)```\n", page, re.DOTALL)
    images = [out for cell in cells for out in cell["outputs"] if "data" in out]
    assert len(images) == page.count("](tutorial/") - page.count("](tutorial/runs.csv)") == 4
    assert all(base64.b64decode(out["data"]["image/png"]).startswith(b"\x89PNG") for out in images)
    assert all(set(cell) >= {"id", "metadata", "source", "outputs", "execution_count"} for cell in cells)


@pytest.mark.slow
def test_the_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    """Its page is made anew: the words are the same, and so are the numbers but for their last digits."""
    done = subprocess.run(
        [sys.executable, "docs/make_tutorial.py", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "tutorial.md").read_text(encoding="utf-8")
    kept = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert NUMBER.sub("#", made) == NUMBER.sub("#", kept), "run python docs/make_tutorial.py and read what changed"
    for ours, theirs in zip(NUMBER.finditer(made), NUMBER.finditer(kept), strict=True):
        before, after = kept[: theirs.start()].rpartition("\n")[2], kept[theirs.end() :].partition("\n")[0]
        unit = slack(theirs[0], share=after.startswith(" %") and "resamples" in before + after)
        assert value(ours[0]) == pytest.approx(value(theirs[0]), rel=0.01 if unit else 0.0, abs=unit)
    remade, there = (json.loads((folder / "tutorial.ipynb").read_text("utf-8")) for folder in (tmp_path, ROOT / "docs"))
    assert skeleton(remade) == skeleton(there), "run python docs/make_tutorial.py"
    assert all((tmp_path / "tutorial" / p.name).stat().st_size > 5000 for p in (ROOT / "docs/tutorial").glob("*.png"))
