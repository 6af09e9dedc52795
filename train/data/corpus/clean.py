"""What a document is: its normal form, its identity, its split, and the rules that leave a source file out."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath

HEADER_BYTES = 1000
LONGEST_LINE = 1000
MOST_DIGITS = 0.2

_TRAILING = re.compile(rb"[ \t]+(?=\n)")
_LEADING = re.compile(rb"\A(?:\xef\xbb\xbf|\n)+")
_VENDORED = re.compile(r"_?vendor(ed)?|third_?party|_?externals?|extern|node_modules", re.IGNORECASE)
_METADATA = (".dist-info", ".egg-info")
_LEGAL = re.compile(r"licen[cs]e|copying|copyright|notice|^authors|^contributors|^patents", re.IGNORECASE)
_GENERATED_NAME = re.compile(r"_pb2(_grpc)?\.py$|^__editable__|^_sysconfigdata|\.min\.")
_GENERATED_HEADER = re.compile(
    rb"auto-?generated|automatically generated|generated (automatically|by|from|with|using)|machine generated"
    rb"|@generated|(do not|don't) (edit|modify)",
    re.IGNORECASE,
)
_IN_GENERATED = (b"generated", b"edit", b"modify")
"""One of these is in all that the expression finds: looking for them takes a tenth of its time."""
_DIGITS = b"0123456789"


def normalised(raw: bytes) -> bytes:
    """Return a document in its normal form: LF, no BOM or empty lines first, no trailing blanks, one newline last.

    Two files that differ only in these are one document. An empty result means that there is no text. Raises ValueError
    (UnicodeDecodeError, or a plain one for binary data) when `raw` is not UTF-8 text.
    """
    raw.decode("utf-8")
    if b"\0" in raw:
        raise ValueError("binary data (a NUL byte)")
    if b"\r" in raw:
        raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b" \n" in raw or b"\t\n" in raw:
        raw = _TRAILING.sub(b"", raw)
    raw = _LEADING.sub(b"", raw.rstrip(b" \t\n"))
    return raw + b"\n" if raw else b""


def digest(document: bytes) -> bytes:
    """Return the 32 bytes that identify a document in its normal form: order, split and duplicates go by them."""
    return hashlib.sha256(document).digest()


def left_out_by_path(path: str) -> str | None:
    """Return why a file of the environment is left out, seen from its path alone; None: it is not."""
    parts = PurePosixPath(path).parts
    for part in parts[:-1]:
        if _VENDORED.fullmatch(part):
            return "vendored"
        if part.endswith(_METADATA):
            return "package metadata"
    if not parts[-1].endswith(".py") and _LEGAL.search(parts[-1]):
        return "licence"
    if _GENERATED_NAME.search(parts[-1]):
        return "generated"
    return None


def left_out_by_content(document: bytes) -> str | None:
    """Return why a file of the environment is left out, seen from its text; None: it is not.

    Left out: a header (first 1,000 bytes) that says it is generated, a line of more than 1,000 bytes (minified or
    data), and text of which more than 20 % are digits (tables of numbers).
    """
    header = document[:HEADER_BYTES].lower()
    if any(word in header for word in _IN_GENERATED) and _GENERATED_HEADER.search(header):
        return "generated"
    if _has_long_line(document):
        return "long lines"
    if len(document) - len(document.translate(None, _DIGITS)) > MOST_DIGITS * len(document):
        return "tables of numbers"
    return None


def _has_long_line(document: bytes) -> bool:
    """Say whether a line has more than `LONGEST_LINE` bytes; only the newline that ends each stretch is looked for."""
    start = 0
    while len(document) - start > LONGEST_LINE:
        end = document.rfind(b"\n", start, start + LONGEST_LINE + 1)
        if end < 0:
            return True
        start = end + 1
    return False
