"""Which functions each test enters, and how long it takes: a mutant is worth the tests that enter its function only."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType

from benchmarks._mutations import Mutant
from benchmarks._swap import file_of, place

QUICK_SECONDS = 0.3


@dataclass(frozen=True)
class Reach:
    """A test that passes by itself: its name for pytest, its CPU seconds then, and the functions it enters by file."""

    test: str
    seconds: float
    entered: dict[str, list[str]]

    @property
    def file(self) -> str:
        """The file of the test."""
        return self.test.partition("::")[0]

    def within(self, named: Iterable[str]) -> bool:
        """Say whether it is of one of these files or folders."""
        return any(self.file == name or self.file.startswith(f"{name}/") for name in named)


def functions(codes: Iterable[CodeType]) -> dict[str, list[str]]:
    """Return the functions of this repository among codes, tests left out, by file."""
    found: dict[str, set[str]] = defaultdict(set)
    for code in codes:
        path = file_of(code)
        if path.endswith(".py") and not path.startswith((".venv", "tests")):
            found[path].add(place(code))
    return {path: sorted(names) for path, names in found.items()}


def chosen(
    known: Iterable[Reach], path: str, mutant: Mutant, seconds: float, *, on_import: bool, users: Iterable[str] = ()
) -> list[Reach]:
    """Return the tests that enter the mutant's function, the quickest first.

    Of one that changes what runs ON_IMPORT (a constant, a default, a function called then), those that enter a function
    that names what is changed, then those that enter anything of the module; where none does, as of a module that holds
    constants alone, those that enter its `users`, the files that import it. Not more than so many seconds of tests, but
    one if there is any. Tests that take longer than QUICK_SECONDS stay with others of their file, whose fixtures they
    may share.
    """
    known = list(known)
    among = [one for one in known if path in one.entered]
    if not on_import:
        return _quickest([one for one in among if mutant.where in one.entered[path]], seconds)
    if not among:
        return _quickest([one for one in known if not set(users).isdisjoint(one.entered)], seconds)
    names = {mutant.where, *_users(mutant)}
    first = [one for one in among if not names.isdisjoint(one.entered[path])]
    taken = _quickest(first, seconds)
    left = seconds - sum(one.seconds for one in taken)
    return taken + _quickest([one for one in among if one not in first], left, least=0 if taken else 1)


def importing(path: str, sources: Mapping[str, str]) -> list[str]:
    """Return the files of `sources`, texts by path, that import the module at `path` or a name of it."""
    module = path.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")

    def imports(node: ast.AST) -> bool:
        if isinstance(node, ast.Import):
            return any(alias.name == module for alias in node.names)
        if not isinstance(node, ast.ImportFrom):
            return False
        return node.module == module or (node.module == package and any(alias.name == name for alias in node.names))

    return [file for file, source in sources.items() if any(imports(node) for node in ast.walk(ast.parse(source)))]


def _quickest(tests: Sequence[Reach], seconds: float, least: int = 1) -> list[Reach]:
    taken: list[Reach] = []
    for one in sorted(tests, key=lambda one: one.seconds):
        seconds -= one.seconds
        if len(taken) >= least and seconds < 0:
            break
        taken.append(one)
    together: dict[str, float] = defaultdict(float)
    for one in taken:
        together[one.file] += one.seconds

    def order(one: Reach) -> tuple[float, str, float]:
        quick = one.seconds <= QUICK_SECONDS
        return (0.0, "", one.seconds) if quick else (together[one.file], one.file, one.seconds)

    return sorted(taken, key=order)


def _users(mutant: Mutant) -> set[str]:
    """Return the functions that name what a statement outside of functions sets."""
    tree = ast.parse(mutant.source)
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _holds(node, mutant.line)]
    names = {
        target.id
        for node in inside
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in ast.walk(node)
        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
    }
    found = set[str]()

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}".lstrip(".")
            said = child.id if isinstance(child, ast.Name) else child.attr if isinstance(child, ast.Attribute) else ""
            if said in names:
                found.add(inner)
            visit(child, inner)

    visit(tree, "")
    return found


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def by_file(tests: Iterable[Reach]) -> list[tuple[str, ...]]:
    """Return the tests' names, file by file, the quickest file first: most mutants fall to the first."""
    files: dict[str, list[Reach]] = defaultdict(list)
    for one in tests:
        files[one.file].append(one)
    quickest = sorted(files.values(), key=lambda group: sum(one.seconds for one in group))
    return [tuple(one.test for one in group) for group in quickest]
