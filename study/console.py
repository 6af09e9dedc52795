"""`scaling-study COMMAND …`: every command of the packages under one name, as `python -m MODULE …` runs it.

Unlike `python -m`, it does not look into the working directory for packages, which may have a `train` of its own.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("study.console", "scaling-study")

import difflib
import runpy
import sys

from analysis.text.terminal import show
from study import __version__
from study.commands import COMMANDS
from train.spec.not_installed import not_installed

MODULES = {
    "sweep": ("study.sweep", "make the points of a study and submit them; --help lists every key"),
    "prepare": ("train.prepare", "text becomes token shards"),
    "train": ("train.run", "train one run from its config.yaml, or resume it"),
    "branch": ("train.branch", "write the config of a run that cools down from another's checkpoint"),
    "hub": ("train.hub", "export a run for Hugging Face and vLLM, import weights"),
    "provenance": ("train.provenance", "list the documents that a step was trained on"),
    "coordinate-check": ("train.coordinate_check", "show whether learning rates transfer across widths"),
    "fit": ("analysis.fit", "fit laws to runs, with intervals, a recommendation and a report"),
    "report": ("analysis.report", "write the report of a fit"),
    "plan": ("analysis.plan", "plan what to train with a budget"),
    "next": ("analysis.next", "propose the runs that would tell most"),
    "compare": ("analysis.compare", "compare which laws the runs support"),
    "backtest": ("analysis.backtest", "test how well a law predicts runs beyond its data"),
    "score": ("analysis.score", "compare a fit's predictions with larger runs"),
    "replay": ("sweeps.replay", "replay schedulers on recorded learning curves"),
}


def main() -> int:
    """Run the command that sys.argv names; return 2 where there is none of that name."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        show(usage())
        return 0
    name, rest = words[0], words[1:]
    if name in ("--version", "-V"):
        print(f"scaling-study {__version__}")
        return 0
    if name in MODULES and not _is_subcommand(name, rest):
        module = MODULES[name][0]
    elif name in COMMANDS:
        module, rest = "study", words
    else:
        near = difflib.get_close_matches(name, [*MODULES, *COMMANDS], n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else "scaling-study --help lists the commands"
        print(f"scaling-study: there is no command {name}: {hint}", file=sys.stderr)
        return 2
    sys.argv = [f"scaling-study {name}", *rest]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        said = not_installed(error)
        if not said:
            raise
        print(f"scaling-study {name}: {said}", file=sys.stderr)
        return 2
    return 0


def _is_subcommand(name: str, rest: list[str]) -> bool:
    """Whether it is `plan memory …` of the study's commands rather than `plan budget=…` of the analysis."""
    return name in COMMANDS and bool(rest) and "=" not in rest[0] and not rest[0].startswith("-")


def usage() -> str:
    """Return the list of commands; one of both kinds is listed twice, the study's with its next word."""
    every = {name: text for name, (_, text) in MODULES.items()}
    every |= {name if name not in MODULES else f"{name} WHAT": text for name, text in COMMANDS.items()}
    width = max(map(len, every)) + 2
    lines = [f"  {name:<{width}}{text}" for name, text in every.items()]
    return "\n".join(["scaling-study COMMAND …      (scaling-study COMMAND --help says more)", "", *lines])
