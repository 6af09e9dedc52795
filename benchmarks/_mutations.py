"""Small changes of a module's source that a test should notice: one at a time, as text, so that a person can read them.

Comparisons, arithmetic, `and` and `or`, `not`, conditions, numbers, returned values, defaults of arguments, and
statements that only act. Not changed: docstrings, annotations, the texts of errors, what `raise` and `assert` say, what
a class body of a dataclass calls (help texts), imports for the type checker alone, and the `strict=` of `zip`, which
asserts what holds already.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"), ast.Pow: ("**", "*"), ast.BitOr: ("|", "&"), ast.BitAnd: ("&", "|"),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the function it is in, its line (from 1), the line before and after, and the whole new source."""

    where: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.where}:{self.line}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class _Edit:
    begin: int
    end: int
    text: str


def mutants(source: str) -> list[Mutant]:
    """Return every mutant of a module's source, in its order; equal sources once."""
    tree = ast.parse(source)
    offsets = _Offsets(source)
    places = _places(tree)
    found: dict[str, Mutant] = {}
    for statement in tree.body:
        begin, end = offsets.of(statement)
        for node in ast.walk(statement):
            for edit in _edits(node, source, offsets) if id(node) in places else ():
                changed = source[: edit.begin] + edit.text + source[edit.end :]
                if changed == source or changed in found:
                    continue
                if not _compiles(source[begin : edit.begin] + edit.text + source[edit.end : end]):
                    continue
                line = source.count("\n", 0, edit.begin) + 1
                before, after = (text.split("\n")[line - 1].strip() for text in (source, changed))
                found[changed] = Mutant(places[id(node)], line, before, after, changed)
    return sorted(found.values(), key=lambda one: (one.line, one.after))


class _Offsets:
    """Where a node begins and ends in the text; the parser counts bytes within a line."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def of(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _places(tree: ast.Module) -> dict[int, str]:
    """Return the nodes that are changed, by identity, with the name of the function or class that each is in."""
    found: dict[int, str] = {}

    def visit(node: ast.AST, name: str) -> None:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom) or _asserts(node):
            found.pop(id(node), None)
            return
        inner = name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{node.name}".lstrip(".")
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    found[id(child)] = inner or "module"
                    if not (isinstance(node, ast.ClassDef) and isinstance(child, ast.AnnAssign)):
                        visit(child, inner)

    visit(tree, "")
    return found


def _asserts(node: ast.AST) -> bool:
    """Say whether it holds for a reader or a type checker alone: `if TYPE_CHECKING`, `strict=` of a call."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.keyword) and node.arg == "strict" and isinstance(node.value, ast.Constant)


def _edits(node: ast.AST, source: str, offsets: _Offsets) -> Iterator[_Edit]:
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
            yield from _operator(left, right, COMPARISONS.get(type(operator)), source, offsets)
    elif isinstance(node, ast.BinOp):
        yield from _operator(node.left, node.right, ARITHMETIC.get(type(node.op)), source, offsets)
    elif isinstance(node, ast.BoolOp):
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _operator(left, right, words, source, offsets)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        begin, end = offsets.of(node.operand)
        yield _Edit(*offsets.of(node), source[begin:end])
    elif isinstance(node, ast.Constant):
        yield from _constant(node, offsets)
    elif isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.UnaryOp):
        begin, end = offsets.of(node.test)
        yield _Edit(begin, end, f"not ({source[begin:end]})")
    elif isinstance(node, ast.Return) and node.value is not None and not _says_no(node.value):
        yield _Edit(*offsets.of(node.value), "None")
    elif isinstance(node, ast.AugAssign | ast.Continue | ast.Break) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield _Edit(*offsets.of(node), "pass")


def _operator(
    left: ast.expr, right: ast.expr, words: tuple[str, str] | None, source: str, offsets: _Offsets
) -> Iterator[_Edit]:
    """Yield the change of the operator between two operands; brackets and comments beside it stay."""
    if words is None:
        return
    at = source.find(words[0], offsets.of(left)[1], offsets.of(right)[0])
    if at >= 0:
        yield _Edit(at, at + len(words[0]), words[1])


def _constant(node: ast.Constant, offsets: _Offsets) -> Iterator[_Edit]:
    value = node.value
    if isinstance(value, bool):
        yield _Edit(*offsets.of(node), str(not value))
    elif isinstance(value, int | float):
        yield _Edit(*offsets.of(node), repr(value + 1))
        if value:
            yield _Edit(*offsets.of(node), "0")


def _says_no(node: ast.expr) -> bool:
    """Say whether None in its place would be the same, or as false: False itself becomes True."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
