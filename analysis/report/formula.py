"""A law's text, "E + A/N^alpha + B/D^beta", as HTML with its numbers put in."""

from __future__ import annotations

import re
from collections.abc import Mapping

from analysis.report.html import Html, join, tag
from analysis.text import numbers
from analysis.values.blocks import Block

_TOKEN = re.compile(r"[A-Za-z]+_\([^()]*\)|[A-Za-z_][A-Za-z_0-9]*|\d+(?:\.\d+)?|\s+|.")
_RAISED = re.compile(r"\^(-?)([A-Za-z_][A-Za-z_0-9]*|\d+(?:\.\d+)?)")
_SYMBOLS = {"alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eta": "η", "sum": "Σ"}


def symbol(name: str) -> Html:
    """Return a constant's name as it is written: alpha as α, L_inf with its index, and "beta (25M)" of one size."""
    if name in _SYMBOLS:
        return Html(_SYMBOLS[name])
    if name == "reference_flops":
        return Html("C<sub>ref</sub>")
    name, space, size = name.partition(" ")
    letter, _, index = name.partition("_")
    shown = join(_SYMBOLS.get(letter, letter or name))
    if index and letter:
        index = index.strip("()").replace("-", "−")
        shown = join(shown, tag("sub", "∞" if index == "inf" else index))
    return join(shown, space, size)


def law(form: str, values: Mapping[str, str], unknown: frozenset[str] = frozenset()) -> Html:
    """Return the form with each name in `values` replaced by its text, exponents raised, `unknown` names marked."""
    parts: list[Html] = []
    raised: list[Html] | None = None
    for token in _TOKEN.findall(form):
        if token == "^":
            raised = []
            continue
        shown = _token(token, values, unknown)
        if raised is None:
            parts.append(shown)
            continue
        raised.append(shown)
        if token != "-":
            parts.append(tag("sup", *raised))
            raised = None
    return join(*parts)


def prose(text: str) -> Html:
    """Return a sentence with the exponents in it raised: N* grows as C^0.51, D^-beta.

    >>> print(prose("N* grows as C^0.51 (0.49 to 0.53), B/D^beta"))
    N* grows as C<sup>0.51</sup> (0.49 to 0.53), B/D<sup>β</sup>
    """
    text = text.replace("L_inf", "L∞")
    parts: list[str] = []
    end = 0
    for found in _RAISED.finditer(text):
        sign, word = found[1].replace("-", "−"), found[2]
        parts += [text[end : found.start()], tag("sup", join(sign, word if word[0].isdigit() else symbol(word)))]
        end = found.end()
    return join(*parts, text[end:])


def block_law(block: Block, reference_flops: float | None = None) -> Html:
    """Return a fitted block's law with numbers for the constants that the data identify, letters for the others."""
    unknown = frozenset(n for n in block.params if n in block.identified and not block.identified[n].identified)
    values = {name: _value(value) for name, value in block.params.items() if name not in unknown}
    if reference_flops is not None:
        values["reference_flops"] = numbers.power(reference_flops)
    return law(block.form, values, unknown)


def _value(value: float) -> str:
    return numbers.number(value) if abs(value) < 1e5 else numbers.power(value, 3)


def _token(token: str, values: Mapping[str, str], unknown: frozenset[str]) -> Html:
    if token in values:
        return tag("span", values[token], class_="fixed")
    if token in unknown:
        return tag("span", symbol(token), class_="unknown")
    if re.fullmatch(r"[a-z]\d", token):
        return join(token[0], tag("sub", token[1]))
    if token[0].isalpha():
        return symbol(token)
    return join({"-": "−", "*": " "}.get(token, token))
