"""Weights to and from Hugging Face's format.

  python -m train.hub export run=RUN out=FOLDER [dtype=bfloat16] [step=N]
  python -m train.hub import source=FOLDER out=FOLDER

export writes a run's newest checkpoint as config.json, safetensors and
tokenizer, which transformers, vLLM and others read. import makes initial
weights of such a folder (Llama, Mistral, Qwen3, Mixtral, Qwen3-MoE): runs start
from them by model.init_from.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("train.hub.__main__")

import sys
from pathlib import Path

from train.hub.checks import check_dtype, check_new, read_source
from train.spec.interrupts import WRONG

COMMANDS = {"export": ({"run", "out"}, {"dtype", "step"}), "import": ({"source", "out"}, set[str]())}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 0, or 2 after saying what is wrong with it, or 1 what the system did not let it."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else WRONG
    try:
        command, given = words[0], _given(words)
        out, step, dtype = Path(given["out"]), given.get("step"), given.get("dtype", "bfloat16")
        if step is not None and not step.isdigit():
            raise ValueError(f"step={step} is not allowed: the step of a checkpoint, a whole number")
        check_dtype(dtype)
        if command == "export" and not (config := Path(given["run"]) / "config.yaml").exists():
            raise ValueError(f"{config}: there is no such file")
        check_new(out)
        if command == "import":
            read_source(Path(given["source"]))
        from train.hub.convert import export, import_model  # torch takes seconds: after what is wrong without it

        if command == "export":
            print(export(Path(given["run"]), out, dtype, None if step is None else int(step)))
        else:
            print(import_model(Path(given["source"]), out))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    except OSError as error:
        print(f"error: {_in_words(error)}", file=sys.stderr)
        return 1
    return 0


def _in_words(error: OSError) -> str:
    """Return what the system refused, and of which file."""
    if error.strerror is None or error.filename is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


def _given(arguments: list[str]) -> dict[str, str]:
    """Return the key=value arguments, checked."""
    command, *rest = arguments
    if command not in COMMANDS:
        raise ValueError(f"{command!r} is not a command: choose one of {', '.join(COMMANDS)}")
    needed, further = COMMANDS[command]
    given = dict[str, str]()
    for name, value in (one.split("=", 1) for one in rest if "=" in one):
        if name in given:
            raise ValueError(f"{name} is given twice: {name}={given[name]} and {name}={value}; leave one out")
        if not value:
            raise ValueError(f"{name}= is empty: give a value, or leave it out")
        given[name] = value
    wrong = [one for one in rest if "=" not in one] + sorted(set(given) - needed - further)
    missing = sorted(needed - set(given))
    if wrong or missing:
        allowed = " ".join([*(f"{name}=…" for name in sorted(needed)), *(f"[{name}=…]" for name in sorted(further))])
        what = f"{wrong[0]!r} is not known" if wrong else f"{missing[0]}=… is missing"
        raise ValueError(f"{command}: {what}; write: {command} {allowed}")
    return given
