"""Run the Python blocks of docs/tutorial.md and put below each what it printed and the figures it drew.

`python docs/make_tutorial.py` rewrites the page; `python docs/make_tutorial.py FOLDER` writes it there instead.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
BLOCK = re.compile(r"(```python\n(.*?)\n```\n)(?:\n```text\n.*?\n```\n|\n!\[[^\n]*\n)*", re.DOTALL)


def made(page: str, folder: Path) -> str:
    """Return the page with its outputs anew; figures go to `folder`/tutorial."""
    (folder / "tutorial").mkdir(parents=True, exist_ok=True)
    drawn: list[str] = []

    def show(name: str, figure: Any) -> None:
        """Save axes, or a figure of the report, and put it on the page."""
        from analysis.report.figures import canvas

        panels = getattr(figure, "panels", None)
        path = folder / "tutorial" / f"{name}.png"
        if panels is not None:
            path.write_bytes(canvas.Sheet(panels).png(dpi=110))
        else:
            figure.figure.savefig(path, dpi=110, metadata={"Software": None})
        drawn.append(f"\n![{figure.title if panels is not None else name}](tutorial/{name}.png)\n")

    scope: dict[str, Any] = {"show": show}

    def run(block: re.Match[str]) -> str:
        """Return a block with what it does now."""
        printed = io.StringIO()
        drawn.clear()
        with contextlib.redirect_stdout(printed):
            exec(compile(block[2], "docs/tutorial.md", "exec"), scope)
        lines = "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines())
        return block[1] + (f"\n```text\n{lines}\n```\n" if lines else "") + "".join(drawn)

    return BLOCK.sub(run, page)


def main(arguments: list[str]) -> None:
    """Write the page."""
    folder = Path(arguments[0]) if arguments else HERE
    page = made((HERE / "tutorial.md").read_text(encoding="utf-8"), folder)
    (folder / "tutorial.md").write_text(page, encoding="utf-8")
    print(f"wrote {folder / 'tutorial.md'}")


if __name__ == "__main__":
    main(sys.argv[1:])
