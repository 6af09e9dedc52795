"""The shape of the code in numbers: `python -m benchmarks.house`.

Circles are strongly connected modules by every import there is: inside functions and for type checking as well. Lines
are of Python files, tests and benchmarks apart. Functions are counted from their `def` to their last line. Four small
runs count the modules between a command and sbatch, and the like; `--no-runs` leaves them out.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks._visited import walks

ROOT = Path(__file__).parents[1]
PACKAGES = ("study", "train", "kernels", "sweeps", "analysis")
EXECUTORS = ("local", "slurm")
FORMER = re.compile(r"([\w/.]+): (\w+)(\.py)? -> ([^;]+)(?:; (.+))?")
"""A line of former_names.txt: where, the old name, whether as module only, the new names, why it stays."""
LONG = 400


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected modules, two or more, of a graph of imports (Tarjan 1972, without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found = []
    for root in sorted(imports):
        work = [(root, iter(sorted(imports[root])))] if root not in number else []
        while work:
            module, others = work[-1]
            if module not in number:
                number[module] = low[module] = len(number)
                path.append(module)
            for other in others:
                if other not in imports:
                    continue
                if other not in number:
                    work.append((other, iter(sorted(imports[other]))))
                    break
                if other in path:
                    low[module] = min(low[module], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == number[module]:
                    at = path.index(module)
                    if len(path) - at > 1:
                        found.append(sorted(path[at:]))
                    del path[at:]
    return found


def files(package: str) -> list[Path]:
    """Return the Python files of a package."""
    return sorted((ROOT / package).rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of every function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def compares_an_executor(tree: ast.AST) -> bool:
    """Return whether an executor's name is compared with anything."""
    return any(
        isinstance(side, ast.Constant) and side.value in EXECUTORS
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
    )


def imported_functions(package: str) -> dict[str, set[str]]:
    """Return the functions of a package of study, as `module.function`, that the rest of study imports, and where."""
    found: dict[str, set[str]] = {}
    for path in files("study"):
        if package.replace(".", "/") in str(path.relative_to(ROOT)):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package):
                for name in (alias.name for alias in node.names if alias.name.islower()):
                    found.setdefault(f"{node.module}.{name}", set()).add(str(path.relative_to(ROOT)))
    return found


def table(rows: Sequence[Sequence[object]]) -> str:
    """Return rows as columns, the first to the left."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(str(cell).rjust(width) if column else str(cell).ljust(width)
                  for column, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )  # fmt: skip


def imports_of(packages: Sequence[str]) -> dict[str, set[str]]:
    """Return which modules of the packages each of them imports, anywhere in its file."""
    import grimp

    graph = grimp.build_graph(*packages, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def defined(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names that a module defines, with their lines: definitions, parameters, attributes, its variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
        for line in node.body if isinstance(node, ast.ClassDef | ast.Module) else ():
            targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
            yield from ((line.lineno, target.id) for target in targets if isinstance(target, ast.Name))


def former_names() -> list[tuple[str, str, list[str]]]:
    """Return, for each line of former_names.txt, the line, why its old name stays, and where that still stands."""
    names = {path: list(defined(ast.parse(path.read_text(encoding="utf-8")))) for p in PACKAGES for path in files(p)}
    found = []
    for line in (Path(__file__).parent / "former_names.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        matched = FORMER.fullmatch(line)
        assert matched, f"former_names.txt: {line!r} is not `where: old -> new; why it stays`"
        where, old, module_only, _, reason = matched.groups()
        inside = [path for path in names if path.is_relative_to(ROOT / where)]
        assert inside, f"former_names.txt: {line!r}: there is no {where}"
        there = [path for path in inside if old == (path.parent.name if path.stem == "__init__" else path.stem)]
        stands = [str(path.relative_to(ROOT)) for path in there]
        if not module_only:
            stands += [
                f"{path.relative_to(ROOT)}:{number}"
                for path in inside
                for number, name in names[path]
                if name.strip("_") == old
            ]
        found.append((line.partition(";")[0], reason or "", stands))
    return found


def recipe_files() -> dict[str, int]:
    """Return how many files each recipe names, by what it adds."""
    parts = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## ")[1:]
    edit = re.compile(r"^`([^`]+)`, (?:new|before|after|instead of)", re.MULTILINE)
    return {part.partition("\n")[0].split(" ", 1)[1]: len(set(edit.findall(part))) for part in parts}


def main() -> None:
    """Print the table, the circles and the longest of all."""
    rows: list[list[object]] = [
        ["package", "files", "at the top", "lines", "median file", "longest", "median function", "longest"]
    ]
    everything: list[tuple[int, str]] = []
    for package in PACKAGES:
        trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files(package)}
        lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in trees}
        lengths = [length for tree in trees.values() for length in functions(tree)]
        top = sum(path.parent == ROOT / package for path in trees)
        rows.append([
            package, len(trees), top, sum(lines.values()), round(statistics.median(lines.values())),
            max(lines.values()), round(statistics.median(lengths)), max(lengths),
        ])  # fmt: skip
        everything += [(count, str(path.relative_to(ROOT))) for path, count in lines.items()]
    print(table(rows))
    print(f"\n{sum(count for count, _ in everything)} lines in {len(everything)} files")
    print(
        f"over {LONG} lines: "
        + ", ".join(f"{name} {count}" for count, name in sorted(everything, reverse=True) if count > LONG)
    )
    found = circles(imports_of(PACKAGES))
    print(f"\n{len(found)} circles of imports, {sum(map(len, found))} modules in them")
    for circle in found:
        print(f"  {' '.join(circle)}")
    named = [
        path.relative_to(ROOT)
        for path in files("study")
        if "executors" not in path.parts and compares_an_executor(ast.parse(path.read_text(encoding="utf-8")))
    ]
    print(f"\n{len(named)} files of study outside executors/ compare an executor's name")
    for package, what in (("study.reconcile", "the step"), ("study.failures.retry_policy", "the retry rules")):
        print(f"\nfunctions of {package} that others call ({what}):")
        for name, callers in sorted(imported_functions(package).items()):
            print(f"  {name}: {', '.join(sorted(callers))}")
    print(
        "\nfiles that a recipe of CONTRIBUTING.md touches: " + ", ".join(f"{n} {c}" for n, c in recipe_files().items())
    )
    former = former_names()
    left = [name for name, reason, stands in former if stands and not reason]
    print(f"\nof {len(former)} names that were to go, {len(left)} still stand; these stay:")
    for name, reason, stands in former:
        if stands:
            print(f"  {name}: {reason or 'NO REASON'} ({len(stands)}: {', '.join(stands[:3])})")
    if "--no-runs" not in sys.argv[1:]:
        print("\nmodules of ours that are run through, of one run each:")
        for name, modules in walks().items():
            print(f"  {len(modules):>3}  {name}: {' '.join(sorted(modules))}")


if __name__ == "__main__":
    main()
