"""`python -m study completion bash|zsh`."""

from __future__ import annotations

import argparse

from study import completion
from study.commands import add_json, emit

ASKED = ("study", "study.sweep", "words")
"""What the scripts call: `completion MODULE PLACE -- WORDS` prints what may stand at that place, one a line.

`words` is what scripts of earlier versions say for `study`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    said = "put  source <(…)  of it in your shell's rc"
    parser.add_argument("shell", type=_known, metavar="{bash,zsh}", help=said)
    parser.add_argument("place", nargs="?", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    add_json(parser)


def _known(name: str) -> str:
    """Return a shell's name, or what its script asks by; the error names shells alone."""
    if name in (*completion.SHELLS, *ASKED):
        return name
    raise argparse.ArgumentTypeError(f"{name!r} is not a shell that this writes for: {' or '.join(completion.SHELLS)}")


def run(options: argparse.Namespace) -> int:
    """Print the script, or what it asks for."""
    if options.shell in ASKED:
        if options.shell == "study.sweep":
            from study.compose import conf_folder

            found = completion.overrides(options.words, options.place, conf_folder())
        else:
            found = completion.candidates(options.words, options.place)
        if options.json:
            emit("completion", None, {"words": found})
        elif found:
            print("\n".join(found))
        return 0
    script = completion.script(options.shell)
    if options.json:
        emit("completion", None, {"shell": options.shell, "script": script})
    else:
        print(script, end="")
    return 0
