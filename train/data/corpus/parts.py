"""A document in parts, of which the loss counts some: one row of bytes, to be spooled and hashed like any other.

In front of each part stands a NUL, which no text has, and a sign: whether the part counts. A document that counts as a
whole has neither, and is its own normal form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Part: TypeAlias = tuple[bytes, bool]
"""UTF-8 text, and whether the loss counts its tokens."""

_COUNTS = {b"+"[0]: True, b"-"[0]: False}


def joined(parts: Iterable[Part]) -> bytes:
    """Return parts, taken as they are, as one document; b"" where there is no text.

    Raises ValueError (UnicodeDecodeError, or a plain one for binary data) when a part is not UTF-8 text.
    """
    found = list(parts)
    for text, _ in found:
        text.decode("utf-8")
        if b"\0" in text:
            raise ValueError("binary data (a NUL byte)")
    if not any(text for text, _ in found):
        return b""
    return b"".join((b"\0+" if counts else b"\0-") + text for text, counts in found)


def parts_of(document: bytes) -> list[Part]:
    """Return the parts of a document; of one that counts as a whole: itself."""
    if not document.startswith(b"\0"):
        return [(document, True)]
    return [(part[1:], _COUNTS[part[0]]) for part in document[1:].split(b"\0")]
