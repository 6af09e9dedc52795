"""What the manual takes from elsewhere: pages of the repository's root, recipes, and the reference from the code."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
"""Files of the root and where they stand in the manual."""
LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\])\(([^)\s]+)\)")
RECIPE = re.compile(r"<!-- recipe: ([^>]+?) -->")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    made = {
        **{PAGES[name]: (ROOT / name).read_text("utf-8") for name in ("CONTRIBUTING.md", "CHANGELOG.md")},
        "reference/keys.md": keys(),
        "reference/commands.md": commands(),
        "reference/python.md": python(),
    }
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Put recipes into their place, and lead links to what the manual has; others stay as words."""
    del config
    here = page.file.src_uri
    home = next((name for name, place in PAGES.items() if place == here and name != "README.md"), f"docs/{here}")
    text = RECIPE.sub(lambda found: recipe(found[1], home), markdown)
    return LINK.sub(lambda found: _link(found[1], found[2], home, here, files), text)


def recipe(title: str, home: str) -> str:
    """Return a recipe of CONTRIBUTING.md without its heading, its links as from `home`."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    if found is None:
        raise ValueError(f"CONTRIBUTING.md has no recipe {title!r}")
    up = posixpath.relpath(".", posixpath.dirname(home))
    return LINK.sub(lambda one: f"{one[1]}({posixpath.join(up, one[2])})", found[1])


def _link(shown: str, target: str, home: str, here: str, files: Files) -> str:
    """Return a link of the file `home` of the repository as one of the page `here`."""
    if "://" in target or target.startswith("#"):
        return f"{shown}({target})"
    path, hash_, part = target.partition("#")
    there = posixpath.normpath(posixpath.join(posixpath.dirname(home), path))
    place = PAGES.get(there, there.removeprefix("docs/"))
    if files.get_file_from_path(place) is None:
        if not (ROOT / there).exists():
            raise ValueError(f"{home}: there is no {target}")
        return shown if shown.startswith("!") else shown[1:-1]  # it is in the repository only
    return f"{shown}({posixpath.relpath(place, posixpath.dirname(here) or '.')}{hash_}{part})"


def keys() -> str:
    """Return every key of a study's config by section: type, default, what it says; and the groups' options."""
    from study.config.key_lines import default_text, type_name
    from study.config.schema import sections
    from study.sweep.help import options

    lead = (
        "`KEY=VALUE` sets a key, `GROUP=OPTION` takes a file of `conf/`; `python -m study.sweep --help` lists the same."
    )
    lines = ["# Every key", "", lead, ""]
    lines += ["## Groups", ""]
    for group, choices in options([ROOT / "conf"]).items():
        lines += [f"### {group}", "", "| option | what it is |", "|---|---|"]
        lines += [f"| `{group}={name}` | {_cell(text)} |" for name, text in choices.items()] + [""]
    lines += ["## Keys", ""]
    for part in sections():
        lines += [f"### {part.path or 'top level'}", "", part.help, "", "| key | type | default | what it is |"]
        lines.append("|---|---|---|---|")
        for key in part.keys:
            kind = ", ".join(key.choices) if key.choices else type_name(key.kind)
            cells = (f"`{key.path}`", kind, f"`{default_text(key.default)}`", key.help)
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
        lines.append("")
    return "\n".join(lines)


def commands() -> str:
    """Return every command with what it is for."""
    from study.commands import COMMANDS, EXIT_CODES
    from study.console import MODULES

    lead = "`scaling-study NAME …` and the module beside it are the same; `--help` lists the options."
    lines = ["# Every command", "", lead, ""]
    lines += ["| `scaling-study …` | the same as | what it is for |", "|---|---|---|"]
    lines += [f"| `{name}` | `python -m {module}` | {_cell(text)} |" for name, (module, text) in MODULES.items()]
    lines += [f"| `{name}` | `python -m study {name}` | {_cell(text)} |" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", "```text", EXIT_CODES, "```", "", "[More about them](../commands.md)."]) + "\n"


def python() -> str:
    """Return the page of the public functions and classes, which mkdocstrings fills from their docstrings."""
    import analysis

    lines = ["# Python", "", "::: analysis", "    options: { members: false, show_root_heading: false }", ""]
    places = {f"analysis.{name}": _place_of(name) for name in sorted(analysis.__all__, key=str.lower)}
    kept = ("analysis.values.study_result.Fit", "analysis.values.study_result.load")
    places |= {f"study.{name}": f"study.notebook.{name}" for name in ("submit", "points", "Submitted")}
    places |= {f"train.{name}": f"train.trained.{name}" for name in ("load_checkpoint", "TrainedModel")}
    for name, place in {**places, **{one: one for one in kept}}.items():
        if place:
            lines += [f"::: {place}", f"    options: {{ heading: {name}, toc_label: {name} }}", ""]
    return "\n".join(lines)


def _place_of(name: str) -> str | None:
    """Return where a public name is defined: a function or class; None for what has no docstring of its own."""
    import analysis

    found = getattr(analysis, name)
    module = getattr(found, "__module__", None)
    return f"{module}.{found.__qualname__}" if module and hasattr(found, "__qualname__") else None


def _cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")
