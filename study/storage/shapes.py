"""What JSON records hold, and reading them: one of another form is named and counts as absent.

Files of runs are copied, restored and edited by people and by other programs. Whoever reads one here gets what its
shape says, or nothing; who can go on without it does, and a :class:`DamagedRecord` warning names it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from study.storage.files import read_text

SHOWN = 40
"""So many characters of a wrong value are shown."""
MOST_WHOLE = 2**63 - 1
"""The largest whole number: what stores and file systems keep."""
MOST = 1e30
"""The largest number: more than any run's FLOPs, and far below where sums of such numbers end."""
LATEST = 253_402_300_799.0
"""The latest time, the end of the year 9999 [seconds since 1970]: later ones are no dates."""


class DamagedRecord(UserWarning):
    """A record that was passed over because it has another form than its kind."""


class WrongRecordError(ValueError):
    """A record of another form than its kind; its text says what is wrong."""


@dataclass(frozen=True)
class Form:
    """What a value is, in words, and whether one is that. inside: which part of an object is wrong, and how."""

    words: str
    fits: Callable[[Any], bool]
    inside: Callable[[Mapping[str, Any]], str] | None = None


@dataclass(frozen=True)
class Shape:
    """What a record of a kind is: its name in words, the forms of its fields, those it must have, what to do instead.

    A field that need not be there may be null too; fields that are not named may hold anything. remedy: of a record
    that is none, with {folder} for the folder that it is in.
    """

    what: str
    fields: Mapping[str, Form] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    remedy: str = "restore it from a backup"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -MOST <= value <= MOST


def _is_whole(value: Any) -> bool:
    return type(value) is int and -MOST_WHOLE <= value <= MOST_WHOLE


def one_of(*words: str) -> Form:
    """Return the form of a value that is one of a few words."""
    allowed = frozenset(map(str, words))
    return Form(" or ".join(words), lambda value: isinstance(value, str) and value in allowed)


def values_of(form: Form, words: str) -> Form:
    """Return the form of an object whose values all have a form, or are null."""

    def inside(value: Mapping[str, Any]) -> str:
        return wrong(value, Shape(words, dict.fromkeys(value, form)))

    return Form(
        words,
        lambda value: isinstance(value, dict) and all(one is None or form.fits(one) for one in value.values()),
        inside,
    )


def list_of(form: Form, words: str) -> Form:
    """Return the form of a list whose entries all have a form."""
    return Form(words, lambda value: isinstance(value, list) and all(map(form.fits, value)))


def object_of(shape: Shape) -> Form:
    """Return the form of an object of a shape."""
    return Form(shape.what, lambda value: not wrong(value, shape), lambda value: wrong(value, shape))


def object_list(shape: Shape, words: str) -> Form:
    """Return the form of a list of objects of a shape."""
    return list_of(object_of(shape), words)


def object_later(shape: Callable[[], Shape], words: str) -> Form:
    """Return the form of an object whose shape is made when the first is looked at."""
    return Form(words, lambda value: not wrong(value, shape()), lambda value: wrong(value, shape()))


TEXT = Form("text", lambda value: isinstance(value, str))
FLAG = Form("true or false", lambda value: isinstance(value, bool))
NUMBER = Form("a number", _is_number)
WHOLE = Form("a whole number", _is_whole)
COUNT = Form("a whole number from 0 on", lambda value: type(value) is int and 0 <= value <= MOST_WHOLE)
TIME = Form("a time in seconds since 1970", lambda value: type(value) in (int, float) and 0 <= value <= LATEST)
SECONDS = Form("a number of seconds", lambda value: type(value) in (int, float) and 0 <= value <= MOST)
LOSS = Form("a number", lambda value: type(value) is float or _is_number(value))
"""A loss may be NaN or infinite: of a run that has diverged."""
OBJECT = Form("an object", lambda value: isinstance(value, dict))
NUMBERS = values_of(NUMBER, "an object of numbers")
TEXTS = list_of(TEXT, "a list of texts")


def wrong(value: Any, shape: Shape) -> str:
    """Return what is wrong with a record of this kind, in words; "" where nothing is. Pure."""
    if not isinstance(value, dict):
        return f"it is {_shown(value)}, not an object"
    for name in shape.needed:
        if value.get(name) is None:
            return f"{name} is missing"
    forms = shape.fields
    for name, found in value.items():
        form = forms.get(name)
        if form is not None and found is not None and not form.fits(found):
            if form.inside is not None and isinstance(found, dict):
                return f"{name}.{form.inside(found)}"
            return f"{name} is {_shown(found)}, not {form.words}"
    return ""


def check(value: Any, shape: Shape) -> None:
    """Raise WrongRecordError where a record is not of this kind."""
    if why := wrong(value, shape):
        raise WrongRecordError(why)


def read_record(path: Path | str, shape: Shape) -> dict[str, Any] | None:
    """Return the record in a file; None where there is none, and, with a warning, where it is not one of this kind."""
    try:
        value = json.loads(read_text(path))
    except OSError:
        return None
    except (ValueError, RecursionError):
        why = "it is not JSON"
    else:
        why = wrong(value, shape)
    if not why:
        return dict(value)
    warn(path, shape, why)
    return None


def record_in(line: str | bytes, shape: Shape) -> dict[str, Any] | None:
    """Return the record in a line of a log that others write; None where it is torn, or not of this kind."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return None if wrong(value, shape) else dict(value)


def warn(path: Path | str, shape: Shape, why: str) -> None:
    """Say that a file is not a record of this kind and counts as absent, and what to do about it."""
    remedy = shape.remedy.format(folder=Path(path).parent)
    warnings.warn(f"{path} is not {shape.what}: {why}. It counts as absent: {remedy}", DamagedRecord, stacklevel=3)


@contextmanager
def told(say: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, give what is wrong with records to `say`, each once, instead of Python's warnings."""
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", DamagedRecord)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, DamagedRecord):
                others(message, category, *where, **more)
            elif str(message) not in said:
                said.add(str(message))
                say(str(message))

        warnings.showwarning = show
        yield


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
