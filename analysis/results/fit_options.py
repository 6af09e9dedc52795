"""Options of a fit given as arguments of a function, checked and read as the keys of `python -m analysis.fit` are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

from analysis.results.fit_keys import KEYS
from train.spec import calls

if TYPE_CHECKING:
    from analysis.text.commandline import Key

COMMAND_ONLY = ("runs", "out", "report")
WORDS_FOR_NUMBERS: Mapping[str, tuple[str, ...]] = {"delta": ("squared",), "valley_window": ("all",)}
"""Options that are numbers, with the words that may stand for one."""


def option_names() -> Iterator[str]:
    """Yield the options of a fit by name."""
    yield from (key.name for key in KEYS if key.name not in COMMAND_ONLY)


def _check_number(key: Key, value: Any) -> None:
    """Check the value of an option that is a number, or yes or no, as every function does: no text stands for one."""
    if key.name == "budget":
        calls.flops(key.name, value)
    elif key.name in WORDS_FOR_NUMBERS or key.type_name in ("number", "int", "share"):
        calls.number(*WORDS_FOR_NUMBERS.get(key.name, ()))(key.name, value)
    elif key.type_name == "yes|no" and isinstance(value, str):
        raise ValueError(f"{key.name}={calls.shown(value)}: True or False is needed")


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of a fit, read as on a command line but for numbers as text; ValueError names a wrong one."""
    from analysis.laws.registry import resolve
    from analysis.text import commandline

    known = {key.name: key for key in KEYS if key.name not in COMMAND_ONLY}
    for name, usual in (("columns", "{'params': 'N'}"), ("where", "{'params': '>1e9'}")):
        if not isinstance(options.get(name, ""), (str, Mapping)):
            raise ValueError(f"{name}={calls.shown(options[name])}: names are needed, such as {name}={usual}")
    if not isinstance(options.get("fix", {}), str):
        calls.numbers("fix", options.get("fix") or {})
    for name, value in options.items():
        key = known.get(name)
        if key and not (value is None and key.default is None):
            _check_number(key, value)
    read = {name: value for name, value in options.items() if name not in known or isinstance(value, (str, Real))}
    asked = commandline.parse([f"{name}={value}" for name, value in read.items()], tuple(known.values()))
    asked |= {name: value for name, value in options.items() if name not in read}
    return {**asked, "form": resolve(asked["form"], curves=True), "runs": ""}
