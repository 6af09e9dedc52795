"""Run the Python blocks of docs/tutorial.md, put below each what it printed or drew, and make a notebook of the page.

`python docs/make_tutorial.py` rewrites docs/tutorial.md and docs/tutorial.ipynb; `python docs/make_tutorial.py FOLDER`
writes them there instead. The notebook has the page's text and blocks as cells, with the same outputs: it is made
without Jupyter, and runs in it as it stands.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
BLOCK = re.compile(r"(```python\n(.*?)\n```\n)(?:\n```text\n.*?\n```\n|\n!\[[^\n]*\n)*", re.DOTALL)
NAME = re.compile(r'plot(?:_(\w+)|\("(\w+)")')
FIRST = """\
# Paths are relative to the repository, wherever this notebook was opened.
import os
from pathlib import Path

if not Path("docs/tutorial/runs.csv").exists():
    os.chdir("..")"""


@dataclass(frozen=True)
class Output:
    """What a block printed, and the figure that its last expression drew, as PNG, with its name."""

    text: str
    name: str = ""
    png: bytes = b""


def run(source: str, scope: dict[str, Any]) -> Output:
    """Return what a block of code does in `scope`; axes that its last expression is are its figure."""
    module = ast.parse(source, "docs/tutorial.md")
    last = module.body[-1]
    value = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(module.body[:-1], []), "docs/tutorial.md", "exec"), scope)
            value = eval(compile(ast.Expression(last.value), "docs/tutorial.md", "eval"), scope)
        else:
            exec(compile(module, "docs/tutorial.md", "exec"), scope)
    text = "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines())
    figure = getattr(value, "figure", None)
    if figure is None:
        return Output(text if value is None else "\n".join(part for part in (text, repr(value)) if part))
    image = io.BytesIO()
    figure.savefig(image, dpi=110, metadata={"Software": None})
    found = NAME.search(ast.unparse(last).replace("'", '"'))
    assert found is not None, f"a figure's block ends in a call of plot: {source}"
    return Output(text, found[1] or found[2], image.getvalue())


def made(page: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the page with its outputs anew, and the notebook; figures go to `folder`/tutorial."""
    (folder / "tutorial").mkdir(parents=True, exist_ok=True)
    scope: dict[str, Any] = {}
    cells = [markdown(page[: page.index("```python")]), code(FIRST, Output(""), 0)]
    parts, end = [], 0
    for number, block in enumerate(BLOCK.finditer(page), 1):
        between = page[end : block.start()]
        if number > 1 and between.strip():
            cells.append(markdown(between))
        output = run(block[2], scope)
        cells.append(code(block[2], output, number))
        parts += [between, block[1], *shown(output, folder)]
        end = block.end()
    cells.append(markdown(page[end:]))
    return "".join([*parts, page[end:]]), notebook(cells)


def shown(output: Output, folder: Path) -> Iterator[str]:
    """Yield what the page has below a block; write its figure."""
    if output.text:
        yield f"\n```text\n{output.text}\n```\n"
    if output.png:
        (folder / "tutorial" / f"{output.name}.png").write_bytes(output.png)
        yield f"\n![{output.name}](tutorial/{output.name}.png)\n"


def markdown(text: str) -> dict[str, Any]:
    """Return a cell of text."""
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip("\n").splitlines(keepends=True)}


def code(source: str, output: Output, number: int) -> dict[str, Any]:
    """Return a cell of code with its outputs."""
    outputs: list[dict[str, Any]] = []
    if output.text:
        lines = f"{output.text}\n".splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if output.png:
        image = base64.b64encode(output.png).decode()
        outputs.append({"output_type": "display_data", "metadata": {}, "data": {"image/png": image}})
    return {
        "cell_type": "code",
        "execution_count": number or None,
        "metadata": {},
        "source": source.splitlines(keepends=True),
        "outputs": outputs,
    }


def notebook(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a notebook of format 4.5."""
    numbered = [{"id": f"cell-{i}", **cell} for i, cell in enumerate(cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": numbered,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def main(arguments: list[str]) -> None:
    """Write page and notebook."""
    folder = Path(arguments[0]) if arguments else HERE
    page, cells = made((HERE / "tutorial.md").read_text(encoding="utf-8"), folder)
    (folder / "tutorial.md").write_text(page, encoding="utf-8")
    (folder / "tutorial.ipynb").write_text(json.dumps(cells, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {folder / 'tutorial.md'} and tutorial.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
