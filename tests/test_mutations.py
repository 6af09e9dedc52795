"""What the mutants of a module are, and what becomes of those of a planted one."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks._mutations import mutants
from benchmarks._pure_parts import TESTS
from benchmarks._reach import Reach, chosen, importing
from benchmarks._swap import ROOT, pairs
from benchmarks._trial import Children
from benchmarks.mutants import EQUIVALENT, SURVIVED, reasons, unlined
from tests.once import once

SOURCE = '''"""Doc."""


def f(a: int = 2, b: bool = True) -> int | None:
    if a < 1 and not b:
        raise ValueError(f"a={a + 1}")
    total = (a) + 3
    total += b
    print(total)
    return total if a else None
'''
PLANTED = '''"""Doc."""

import functools
from dataclasses import dataclass

LIMIT = 3


def double(x):
    return x * 2


@functools.cache
def cached(x):
    return x + 10


def outer(x):
    def inner(y):
        return y + x

    return [inner(value + 1) for value in (1, 2)]


@dataclass(frozen=True)
class Box:
    side: int = 4

    @property
    def area(self):
        return self.side ** 2

    @classmethod
    def of(cls, area):
        return cls(area // 5)


def early(x):
    return x + 7


START = early(1)
later = lambda x: x - 6


def default(x=5):
    return x


def unseen(x):
    return x + 8


def unreached(x):
    return x + 9
'''
USING = """from planted import LIMIT, START, Box, cached, double, early, later

def doubled(x):
    return double(x)

def over(x):
    return x > LIMIT
"""
NOTICING = """import planted, using

seen = []

def test_many():
    assert using.doubled(3) == 6
    assert using.cached(1) == 11
    assert planted.outer(1) == [3, 4]

def test_box():
    assert using.Box().area == 16
    assert using.Box.of(10).side == 2

def test_on_import():
    assert using.START == 8
    assert using.over(4) and not using.over(3)
    assert planted.default() == 5

def test_later():
    assert using.later(7) == 1
    seen.append(1)

def test_fails_after_others():
    planted.unseen(1)
    assert not seen

def test_unseen():
    seen.append(1)
    assert planted.unseen(1)
"""
DRIVER = """
import json
import pytest
from benchmarks._collected import Collected
from benchmarks._mutations import mutants
from benchmarks._pure_parts import TESTS
from benchmarks._swap import pairs
from benchmarks.mutants import Trial, judged
from benchmarks._reach import chosen

source = open("planted.py").read()
collected, known = Collected(["test_planted.py"]), []
collected.reach(collected.found.tests, 2, known.append)
said = {}
for anew in (False, True):
    trials = []
    for mutant in mutants(source)[:: 5 if anew else 1]:
        on_import = mutant.where in collected.found.on_import["planted.py"] or pairs(source, mutant.source) is None
        asked = chosen(known, "planted.py", mutant, 60.0, on_import=on_import)
        trials.append(Trial("planted.py", mutant, asked, anew))
    for trial, word in judged(trials, collected, 2):
        said.setdefault(f"{trial.mutant.before} -> {trial.mutant.after}", []).append(word)
collected.close()
print(json.dumps([said, sorted(collected.found.on_import["planted.py"])]))
"""


def test_each_change_is_one_of_what_a_test_should_notice() -> None:
    found = mutants(SOURCE)
    assert len({one.source for one in found}) == len(found)
    changes = {(one.line, one.after) for one in found}
    assert {
        (4, "def f(a: int = 3, b: bool = True) -> int | None:"),
        (4, "def f(a: int = 2, b: bool = False) -> int | None:"),
        (5, "if a <= 1 and not b:"),
        (5, "if a < 1 or not b:"),
        (5, "if a < 1 and b:"),
        (5, "if not (a < 1 and not b):"),
        (5, "if a < 0 and not b:"),
        (7, "total = (a) - 3"),
        (8, "pass"),
        (9, "pass"),
        (10, "return None"),
        (10, "return total if not (a) else None"),
    } <= changes
    assert not [one for one in found if one.line in (1, 6)], "neither documentation nor the words of errors"
    assert all(one.where == "f" for one in found)
    assert str(found[-1]).startswith("f:10: return total if a else None -> ")


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory, session_folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """What became of a planted module's mutants, swapped in and imported anew; its functions that ran on import."""
    said, on_import = json.loads(
        once(session_folder / "planted.json", lambda: driven(tmp_path_factory.mktemp("planted")))
    )
    return said, on_import


def driven(folder: Path) -> str:
    """Return what the driver prints of the planted module in an empty folder."""
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    files = {"planted.py": PLANTED, "using.py": USING, "test_planted.py": NOTICING, "driver.py": DRIVER}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take long to import
    answer = subprocess.run(
        [sys.executable, "driver.py"], cwd=folder, env=alone, capture_output=True, text=True, timeout=900, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_a_swapped_mutant_is_judged_as_one_that_is_imported_anew(planted: Any) -> None:
    said, _ = planted
    assert len(said) > 30
    assert sum(len(words) == 2 for words in said.values()) > 6
    differing = {what: words for what, words in said.items() if len(set(words)) != 1}
    # Imported anew the tests that enter it run one after the other, and one fails after the other.
    assert set(differing) <= {
        "return x + 8 -> return x + 9",
        "return x + 8 -> return x - 8",
        "return x + 8 -> return x + 0",
    }


@pytest.mark.parametrize(
    "change",
    [
        "return x * 2 -> return x / 2",  # under a name that another module imported
        "return x + 10 -> return x - 10",  # behind functools.cache
        "return y + x -> return y - x",  # a nested function
        "return [inner(value + 1) for value in (1, 2)] -> return [inner(value - 1) for value in (1, 2)]",
        "return self.side ** 2 -> return self.side * 2",  # a property of a frozen dataclass
        "return cls(area // 5) -> return cls(area // 6)",  # a method of the class
        "later = lambda x: x - 6 -> later = lambda x: x + 6",
        "LIMIT = 3 -> LIMIT = 4",  # a constant that another module imported
        "START = early(1) -> START = early(2)",
        "return x + 7 -> return x - 7",  # a function that ran on import
        "def default(x=5): -> def default(x=6):",
    ],
)
def test_what_tests_check_is_killed(planted: Any, change: str) -> None:
    assert planted[0][change][0] == "killed"


@pytest.mark.parametrize(
    "change", ["return x + 9 -> return x - 9", "return x + 8 -> return x + 9", "return x + 8 -> return x - 8"]
)
def test_what_no_test_checks_survives_also_where_a_test_fails_after_others_anyway(planted: Any, change: str) -> None:
    assert planted[0][change][0] == "survived"


def test_functions_that_run_on_import_are_known(planted: Any) -> None:
    assert "early" in planted[1] and "double" not in planted[1]


UNCOLLECTED = """
from benchmarks._collected import Collected
try:
    Collected(["test_none.py"])
except RuntimeError as error:
    print(error)
"""


def test_tests_that_cannot_be_collected_are_said_with_what_pytest_printed(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(UNCOLLECTED)
    path = os.pathsep.join(str(folder) for folder in (tmp_path, ROOT))
    said = subprocess.run(
        [sys.executable, "driver.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, timeout=300, check=False,
    ).stdout  # fmt: skip
    assert said.startswith("pytest did not collect the tests:\n")
    assert "file or directory not found: test_none.py" in said


def test_these_tests_are_collected_without_xdist_too() -> None:
    """A mutation run collects them so, and who has not installed xdist."""
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:xdist", "tests/test_once.py"], cwd=ROOT,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_bodies_of_functions_differ_and_what_runs_on_import_cannot_be_swapped() -> None:
    assert pairs(PLANTED, PLANTED.replace("LIMIT = 3", "LIMIT = 4")) is None
    assert pairs(PLANTED, PLANTED.replace("x=5", "x=6")) is None
    assert pairs(PLANTED, PLANTED.replace("side: int = 4", "side: int = 5")) is None
    found = pairs(PLANTED, PLANTED.replace("return y + x", "\n\n        return y - x"))
    assert [old.co_qualname for old, _ in found or ()] == ["outer"], "those below stand on other lines only"


def test_a_loop_that_never_ends_is_told_from_a_failure() -> None:
    def forever() -> int:
        while True:
            pass

    children, codes = Children(), dict[int, int | None]()
    children.start(1, forever, 0.0)
    children.start(2, lambda: 7, 10.0)
    while len(codes) < 2:
        codes.update(children.ended())
        time.sleep(0.01)
    assert codes == {1: None, 2: 7}


def test_a_mutant_meets_the_quickest_tests_that_enter_its_function_first() -> None:
    found = {str(one): one for one in mutants(PLANTED)}
    double = found["double:10: return x * 2 -> return x / 2"]
    known = [
        Reach("tests/test_a.py::slow", 5.0, {"planted.py": ["double"]}),
        Reach("tests/test_b.py::quick", 0.1, {"planted.py": ["double", "outer"]}),
        Reach("tests/test_a.py::shares", 1.0, {"planted.py": ["double"]}),
        Reach("tests/test_c.py::elsewhere", 0.0, {"planted.py": ["outer"]}),
        Reach("tests/test_c.py::far", 2.0, {"planted.py": ["double"]}),
    ]
    names = [one.test.partition("::")[2] for one in chosen(known, "planted.py", double, 60.0, on_import=False)]
    assert names == ["quick", "far", "shares", "slow"], "then file by file: fixtures are made once"
    names = [one.test.partition("::")[2] for one in chosen(known, "planted.py", double, 1.5, on_import=False)]
    assert names == ["quick", "shares"]
    limit = found["module:6: LIMIT = 3 -> LIMIT = 4"]
    assert len(chosen(known, "planted.py", limit, 60.0, on_import=True)) == 5


def test_constants_of_a_module_without_functions_are_worth_the_tests_of_those_who_import_them() -> None:
    limit = mutants("LIMIT = 3\n")[0]
    known = [
        Reach("tests/test_a.py::far", 0.2, {"p/a.py": ["f"]}),
        Reach("tests/test_b.py::near", 0.1, {"p/b.py": ["g"], "p/d.py": ["h"]}),
        Reach("tests/test_c.py::none", 0.0, {}),
        Reach("tests/test_d.py::apart", 0.0, {"p/e.py": ["f"]}),
    ]
    sources = {
        "p/a.py": "def f():\n    from p.c import LIMIT\n    return LIMIT\n", "p/b.py": "from p import c, x\n",
        "p/d.py": "import p.c\n", "p/e.py": "from p import x\nfrom q.c import LIMIT\n", "p/c.py": "LIMIT = 3\n",
    }  # fmt: skip
    users = importing("p/c.py", sources)
    assert users == ["p/a.py", "p/b.py", "p/d.py"]
    found = chosen(known, "p/c.py", limit, 1.0, on_import=True, users=users)
    assert [one.test for one in found] == ["tests/test_b.py::near", "tests/test_a.py::far"]
    assert chosen(known, "p/c.py", limit, 1.0, on_import=False, users=users) == []


def test_every_file_that_is_named_is_there() -> None:
    named = {
        *TESTS,
        *(path for paths in TESTS.values() for path in paths),
    }
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("file", [EQUIVALENT, SURVIVED], ids=["equivalent", "survived"])
def test_every_mutant_that_is_listed_is_one_of_the_code(file: Path) -> None:
    """Its line before is there, in its function: a stale reason would go on speaking of code that is gone."""
    listed = reasons(file)
    assert all(why for why in listed.values()), "each has a reason"
    lines = {path: _placed(ROOT / path) for path in {each.partition(": ")[0] for each in listed}}
    gone = []
    for each in listed:
        path, where, change = each.split(": ", 2)
        if not any(where == name and change.startswith(f"{line} -> ") for name, line in lines[path]):
            gone.append(each)
    assert gone == []


def test_a_mutant_is_listed_without_its_line() -> None:
    change = str(mutants("LIMIT = 3\n")[0])
    assert change == "module:1: LIMIT = 3 -> LIMIT = 0"
    assert unlined("a/b.py", change) == "a/b.py: module: LIMIT = 3 -> LIMIT = 0"


def test_reasons_are_read_from_after_the_last_hash(tmp_path: Path) -> None:
    file = tmp_path / "listed.txt"
    file.write_text("# heading\n\na.py: f: x = 1  # why -> x = 2  # why  # how fine a grid is\n")
    assert reasons(file) == {"a.py: f: x = 1  # why -> x = 2  # why": "how fine a grid is"}


def _placed(path: Path) -> set[tuple[str, str]]:
    """Return the lines of a module's source, each with the name of the innermost function or class that it is in."""
    source = path.read_text("utf-8")
    names = ["module"] * (len(source.splitlines()) + 1)

    def visit(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = outer
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{outer}.{child.name}".lstrip(".")
                names[child.lineno : (child.end_lineno or child.lineno) + 1] = [inner] * (
                    (child.end_lineno or child.lineno) - child.lineno + 1
                )
            visit(child, inner)

    visit(ast.parse(source), "")
    return {(names[number], line.strip()) for number, line in enumerate(source.splitlines(), 1)}


@pytest.mark.parametrize(
    "folder",
    [
        "train/spec/accounting", "train/spec/communication", "train/spec/pipeline_schedule", "train/spec/step_time",
        "analysis/approaches", "analysis/diagnostics", "analysis/estimation", "analysis/inference", "analysis/laws",
        "sweeps/designs", "sweeps/schedulers",
    ],
)  # fmt: skip
def test_every_module_of_a_pure_folder_is_named(folder: str) -> None:
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py"}
    assert sorted(path for path in modules - set(TESTS) if mutants((ROOT / path).read_text("utf-8"))) == []
