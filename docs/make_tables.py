"""Write the tables of the docs that the code holds: `python docs/make_tables.py`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; `--check` writes nothing and ends with 1 where one is
not what the code says.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def schedulers() -> str:
    """Return what `search=` takes for searches, with the first line of each file."""
    from study.sweep.help import options
    from sweeps.schedulers import SCHEDULERS
    from train.spec.yamlfile import read_mapping

    conf = HERE.parent / "conf"
    named = {path.stem: read_mapping(path)["name"] for path in (conf / "search").glob("*.yaml")}
    described = options([conf])["search"].items()
    return table(
        "search", "what it does", ((f"`{name}`", said) for name, said in described if named[name] in SCHEDULERS)
    )


def samplers() -> str:
    """Return the names that `search.sampler=` takes."""
    from sweeps.samplers import SAMPLERS

    rows = ((f"`{name}`", entry.summary) for name, entry in SAMPLERS.items())
    return table("sampler", "settings of a new trial", rows)


def failures() -> str:
    """Return the kinds of ends that something may follow from."""
    from study.failures.kinds import FAILURES

    known = [(kind, failure) for kind, failure in FAILURES.items() if failure.rule]
    rows = ((f"`{kind}`", failure.help, failure.told_by, f"`{failure.rule}`") for kind, failure in known)
    return table("kind", "what it is", "how it is recognised", "default of `retry.KIND`", rows)


def laws() -> str:
    """Return the laws that `form=` takes."""
    from analysis.laws.registry import FORMS

    rows = ((f"`{name}`", f"`{form.text}`", getattr(form, "reference", "")) for name, form in FORMS.items())
    return table("form", "law", "source", rows)


def findings() -> str:
    """Return the findings of a fit by their codes."""
    from analysis.values.findings import FINDINGS

    return table("code", "level", "meaning", ((f"`{code}`", one.level, one.means) for code, one in FINDINGS.items()))


def layers() -> str:
    """Return the folders of each package as import-linter holds them apart, the highest first."""
    import tomllib

    settings = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [one for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    drawn = [f"{one['containers'][0]}\n" + "".join(f"  {row}\n" for row in one["layers"]) for one in contracts]
    return "```text\n" + "\n".join(drawn) + "```\n"


def folders() -> str:
    """Return the folders of each package with the first line of their docstrings."""
    import ast

    root, rows = HERE.parent, []
    for package in ("study", "train", "kernels", "sweeps", "analysis"):
        for file in sorted(root.glob(f"{package}/**/__init__.py")):
            said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            place = file.parent.relative_to(root).as_posix()
            rows.append((f"`{place}/`", said.partition("\n")[0].replace("|", "\\|")))
    return table("folder", "what it is for", rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "failures": failures,
    "findings": findings,
    "folders": folders,
    "laws": laws,
    "layers": layers,
    "samplers": samplers,
    "schedulers": schedulers,
}


def table(*cells: str | Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table: the titles of its columns, then the rows."""
    *titles, rows = cells
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def main() -> int:
    """Write the tables, or say which pages are behind; return the exit code."""
    behind, checks = [], "--check" in sys.argv[1:]
    for page in sorted(HERE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        made = PLACE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)
        if made != text:
            behind.append(page.name)
            if not checks:
                page.write_text(made, encoding="utf-8")
            print(page.name, "is behind the code: run python docs/make_tables.py" if checks else "written")
    return int(checks and bool(behind))


if __name__ == "__main__":
    sys.exit(main())
