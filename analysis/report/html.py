"""HTML from Python values: every text is typeset and escaped, every element is closed, nothing else is possible."""

from __future__ import annotations

from html import escape

from analysis.text import numbers

TYPED = frozenset({"code", "style", "title"})
"""Elements whose text is taken as it is; all other text is typeset (:func:`analysis.text.numbers.typeset`)."""
VOID = frozenset({"meta", "link", "br", "hr", "img", "col"})


class Html(str):
    """Text that is html already and is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | None) -> Html:
    """Return an element; children that are not Html are typeset and escaped, attributes that are None are left out.

    A trailing underscore of an attribute's name is dropped (`class_`), others become hyphens (`aria_label`).
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value, quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        assert not children, f"<{name}> has no content"
        return Html(f"<{name}{shown}>")
    inner = "".join(map(_escaped, children)) if name in TYPED else join(*children)
    return Html(f"<{name}{shown}>{inner}</{name}>")


def join(*parts: str) -> Html:
    """Return parts one after another; those that are not Html are typeset and escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(numbers.typeset(part)) for part in parts))


def _escaped(text: str) -> str:
    return text if isinstance(text, Html) else escape(text)


CARDS = 5
"""A table of so many columns becomes one card a row on a phone, each value below its column's name."""
DENSE = 10
"""A table of more columns than this is set smaller, so that it fits its page."""


def table(head: list[str], rows: list[list[str]], classes: list[str] | None = None, name: str = "") -> Html:
    """Return a table in its own scroller; `classes` are the columns' classes ("number" aligns right)."""
    kinds = classes or [""] * len(head)
    cards = len(head) >= CARDS
    top = tag("tr", *(tag("th", h, class_=k or None, scope="col") for h, k in zip(head, kinds, strict=True)))
    body = []
    for row in rows:
        cells = zip(row, kinds, head, strict=True)
        body.append(tag("tr", *(tag("td", c, class_=k or None, data_label=h if cards else None) for c, k, h in cells)))
    inner = tag("table", tag("thead", top), tag("tbody", *body))
    kind = "scroll" + (" cards" if cards else "") + (" dense" if len(head) > DENSE else "")
    return tag("div", inner, class_=kind, tabindex="0", role="region", aria_label=name or "table")
