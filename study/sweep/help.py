"""The text of `python -m study.sweep --help`: examples, groups with their options, every key with its unit.

Built from the schema and from the first comment line of each file in conf/, without importing Hydra: it must be quick.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from analysis.text.terminal import help_columns
from study.config.key_lines import WIDE, section_lines
from study.config.schema import Section, sections

PURPOSE = "Make the points of a study and submit them: each point is one frozen config, trained once."
EXAMPLES = (
    ("study=isoflop dry_run=true", "the points and their cost; submits nothing"),
    ("study=isoflop", "run the main study on this machine"),
    ("model=small budget.flops=1e15", "one point"),
    ("-m model.width=64,96,128 seed=range(3)", "all combinations: nine points"),
    ("study=isoflop cluster=slurm -m model.width=512,768,1024", "SLURM job arrays; returns at once"),
    (
        "study.name=mine search=isoflop 'search.budgets=[1e12,1e13]' 'search.ratios=[5,20,80]'",
        "runs at budgets and ratios of your own",
    ),
)
AFTERWARDS = ("python -m study status isoflop", "then: watch, show, logs, cancel, retry, dashboard")
TWICE = "The same command twice does nothing twice: points that exist are found by the hash of their config."
WORDS = (
    "Lists after -m: a,b,c  range(start,stop[,step])  choice(a,b)  glob(*) for options of a group.",
    "Options: -m/--multirun  --cfg job (the composed config, with comments)  --config-dir DIR (your own groups)  "
    "--config-name NAME  --package KEY  --resolve  --info  --hydra-help  --help [GROUP], as in --help model",
)
BESIDE = 63
"""Where the words about an example begin, on a terminal that is wide enough."""


def text(folders: Sequence[Path]) -> str:
    """Return the help, with the groups found in these config folders."""
    return "\n".join(
        [*head(), "", "Groups (GROUP=OPTION; the first named is the default)", *_groups(folders), *_keys()]
    )


def head() -> Iterator[str]:
    """Yield what the command is for, and examples: commands in one piece, to be copied."""
    width = help_columns()
    yield from textwrap.wrap(PURPOSE, width)
    yield from ("", "Usage: python -m study.sweep [GROUP=OPTION …] [KEY=VALUE …] [-m KEY=A,B,C …]", "", "Examples")
    for command, told in (*((f"python -m study.sweep {words}", told) for words, told in EXAMPLES), AFTERWARDS):
        if width >= WIDE and len(command) + 3 <= BESIDE:
            yield f"{f'  {command}':<{BESIDE}}{told}"
        else:
            yield from (f"  {command}", f"{' ' * (BESIDE if width >= WIDE else 6)}{told}")
    yield ""
    yield from textwrap.wrap(TWICE, width)
    yield ""
    for words in WORDS:
        yield from textwrap.wrap(words, width, subsequent_indent=" " * 9, break_on_hyphens=False)


def about(folders: Sequence[Path], names: Sequence[str]) -> str:
    """Return the help on these groups and sections of keys alone; ValueError for one that there is not."""
    groups, parts = options(folders), _by_section()
    known = list(dict.fromkeys((*groups, *parts)))
    lines: list[str] = []
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            raise ValueError(
                f"--help {name}: there is no such group or section"
                + (f": did you mean {near[0]}?" if near else f": there are {', '.join(known)}")
            )
        lines += [""] if lines else []
        if name in groups:
            lines += [f"Options of {name} ({name}=OPTION; the first is the default)", ""]
            lines += [*_group("", groups[name], max(map(len, groups[name])) + 2), ""]
        if name in parts:
            lines.append("Keys (KEY=VALUE; the schema's defaults, an option may set others: see --cfg job)")
            lines += [line for part in parts[name] for line in section_lines(part)]
    return "\n".join(lines)


def _by_section() -> dict[str, list[Section]]:
    """Return the sections of keys by the first word of their paths."""
    found: dict[str, list[Section]] = {}
    for part in sections():
        if part.path:
            found.setdefault(part.path.partition(".")[0], []).append(part)
    return found


def options(folders: Sequence[Path]) -> dict[str, dict[str, str]]:
    """Return the options of each group with their one-line description, the default option first, models by size."""
    first = _defaults(folders[0] / "config.yaml")
    found: dict[str, dict[str, str]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/*.yaml"), key=lambda path: (_size(path), path)):
            found.setdefault(path.parent.name, {})[path.stem] = _description(path)
    ordered = sorted(found, key=lambda group: (group not in first, list(first).index(group) if group in first else 0))
    return {
        group: dict(sorted(found[group].items(), key=lambda item: item[0] != first.get(group))) for group in ordered
    }


def _size(path: Path) -> int:
    """Return about how many weights the blocks of a model's option have; 0 for other options."""
    found = re.findall(r"^(width|layers|mlp_width|experts): (\d+)", path.read_text(), re.MULTILINE)
    sizes = {name: int(number) for name, number in found}
    if not {"width", "layers"} <= sizes.keys():
        return 0
    width = sizes["width"]
    mlp = 3 * width * sizes.get("mlp_width", 8 * width // 3) * max(1, sizes.get("experts", 0))
    return sizes["layers"] * (4 * width**2 + mlp)


def _groups(folders: Sequence[Path]) -> Iterator[str]:
    found = options(folders)
    width = max(len(name) for choices in found.values() for name in choices) + 2
    for group, choices in found.items():
        yield ""
        yield from _group(f"{group:<11}", choices, width)


def _group(lead: str, choices: Mapping[str, str], width: int) -> Iterator[str]:
    for name, description in choices.items():
        first = f"  {lead}{name:<{width}}"
        lead = " " * len(lead)
        # Words that would go on at the left edge begin below their option's name; others end where the terminal does.
        further = " " * min(len(first), help_columns() // 2)
        yield from textwrap.wrap(
            description, help_columns(), initial_indent=first, subsequent_indent=further, break_on_hyphens=False
        ) or [first.rstrip()]


def _keys() -> Iterator[str]:
    yield ""
    yield "Keys (KEY=VALUE; the schema's defaults, a group's option may set others: see --cfg job)"
    for part in sections():
        yield from section_lines(part)


def _description(path: Path) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @"):
            return line.lstrip("# ").strip()
        if not line.startswith("#"):
            break
    return ""


def _defaults(path: Path) -> dict[str, str]:
    """Return the default option of each group, read from the lines `- group: option` of the primary config."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.strip().removeprefix("- ").split(": ")
        if line.startswith("  - ") and len(words) == 2 and " " not in words[0]:
            found[words[0]] = words[1]
    return found
