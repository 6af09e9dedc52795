"""Taking secrets out of text before it is written anywhere: into a store, into a file, onto a terminal."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

Redact = Callable[[str], str]

HIDDEN = "***"
_SHORTEST = 6
"""A shorter value in a variable called TOKEN is more likely a word of the text than a secret."""
_SCRUBBED_BYTES = 64 << 20
"""A longer log is left as it is: reading it would hold up the end of its job."""

_NAME = r"(?:token(?![a-z])|secret|password|passwd|passphrase|credentials?|(?:api|access|private|secret|auth)[_-]?key)"
"""Names like MAX_TOKENS and TOKENIZERS_PARALLELISM hold settings: here tokens are what models read."""
_SETTING = (
    r"(?:-?[\d.]+(?:e[+-]?\d+)?|true|false|none|null|yes|no|[\"']?\*\*\*[\"']?"
    r"|[\"']?\$[({].*|[\"']?(?-i:\$[A-Z_][A-Z0-9_]*)|<[^>\s]*>|[\[{(].*)"
)
"""What such a name may be given without there being a secret: a number, a word of YAML, a variable, a special token."""
_SECRET_NAME = re.compile(rf"{_NAME}[_A-Z0-9-]*$", re.I)
_PLACE_NAME = re.compile(r"(?:FILE|PATH|DIR|DIRECTORY|FOLDER)$", re.I)
_FILE_NAME = re.compile(r"CREDENTIALS$", re.I)

_USERINFO = re.compile(r"(\b[a-zA-Z][\w+.-]*://)[^/\s'\"]*@")
_BARE_USER = re.compile(r"(://)[\w.-]{1,19}@")
_QUERY = re.compile(r"([?&](?:[\w-]*(?:token|secret|password|passwd|key|signature|sig|credential))=)[^&\s'\"]+", re.I)
_ASSIGNED = re.compile(
    rf"((?<![\w/-])(?:[\w.-]*[_.-])?(?:[a-z0-9]*){_NAME}[\w-]*[\"']?\s*(?:=|:(?!/))\s*)"
    rf"(?!{_SETTING}(?:[\s;&,'\")}}]|$))(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&'\"]+)",
    re.I,
)
_OPTION = re.compile(
    rf"((?<!\S)--?(?:[\w.-]*[_.-])?{_NAME}[\w-]*[\s=]+)(?!{_SETTING}(?:\s|$))([^\s'\"-][^\s'\"]*)", re.I
)
_BEARER = re.compile(r"\b((?:Bearer|Basic)\s+)[\w.~+/=-]{8,}")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{20,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
)
"""Secrets that are known by their looks, whatever stands before them."""
_CODE_USERINFO = re.compile(r"(\b[a-zA-Z][\w+.-]*://)(?:[^/\s'\"@:{}$]*:[^/\s'\"{}$]+|[\w-]{20,})@")
_CODE_LITERAL = re.compile(rf"(\b\w*{_NAME}\w*[\"']?\s*[=:]\s*)(\"[^\"\s{{}}$]{{8,}}\"|'[^'\s{{}}$]{{8,}}')", re.I)


def redactor(environment: Mapping[str, str]) -> Redact:
    """Return a function that replaces secrets in text by ``***``.

    Secrets are: credentials inside a URI (``scheme://user:password@host``) or its query, values assigned to names
    like ``WANDB_API_KEY``, ``hf_token`` or ``--password``, tokens of well-known shapes, and the values of such
    variables in `environment`, also where they are quoted for a URI or for JSON.
    """
    values = secret_values(environment)

    def redact(text: str) -> str:
        for value in values:
            text = text.replace(value, HIDDEN)
        text = _USERINFO.sub(rf"\g<1>{HIDDEN}@", text)
        text = _QUERY.sub(rf"\g<1>{HIDDEN}", text)
        text = _BEARER.sub(rf"\g<1>{HIDDEN}", text)
        text = _ASSIGNED.sub(_hide_quoted, text)
        text = _OPTION.sub(rf"\g<1>{HIDDEN}", text)
        return _SHAPES.sub(HIDDEN, text)

    return redact


def code_redactor(environment: Mapping[str, str]) -> Redact:
    """Return the same for source code and patches, where ``token = tokens[0]`` is no secret: only literals are.

    Lines stay lines, so that a patch still applies where nothing was hidden in the lines that it takes away.
    """
    values = secret_values(environment)

    def redact(text: str) -> str:
        for value in values:
            text = text.replace(value, HIDDEN)
        text = _CODE_USERINFO.sub(rf"\g<1>{HIDDEN}@", text)
        text = _CODE_LITERAL.sub(_hide_quoted, text)
        return _SHAPES.sub(HIDDEN, text)

    return redact


def secret_finder(environment: Mapping[str, str]) -> Callable[[str], bool]:
    """Return what tells whether a text holds a secret for certain: a value of these variables, or a token's shape."""
    values = secret_values(environment)
    return lambda text: any(value in text for value in values) or _SHAPES.search(text) is not None


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the secrets that these variables hold, in every form in which text may show them, the longest first."""
    found: set[str] = set()
    for name, value in environment.items():
        if _SECRET_NAME.search(name) and not _is_place(name, value):
            found.add(value.strip())
        for password in re.findall(r"://[^/\s:@]*:([^/\s]+)@", value):
            found |= {password, unquote(password)}
    # Keys of several lines are shown line by line.
    found |= {line.strip() for value in found for line in value.splitlines() if "-----" not in line}
    found |= {form for value in found for form in (quote(value, safe=""), json.dumps(value)[1:-1])}
    kept = (v for v in found if len(v) >= _SHORTEST and not re.fullmatch(_SETTING, v, re.I))
    return sorted(kept, key=lambda v: (-len(v), v))


def refuse_secrets(config: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Raise ValueError, naming the key, where a config holds a secret: it would be written to files and shown."""
    redact = redactor(environment)
    for name, text in _texts(config, ""):
        leaf = name.rpartition(".")[2]
        # The name counts too: `api_token: abc` is a secret by its name. A URI's bare user name is none.
        said = f"{leaf}=" + _BARE_USER.sub(r"\1", text)
        if redact(said) == said:
            continue
        clean = redact(f"{leaf}={text}").partition("=")[2]
        raise ValueError(
            f"{name}={clean!r} holds a secret, which would be written to the study's files: keep it in the "
            "environment, which jobs inherit (a tracking server's in MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, a database's in PGPASSWORD or in MLFLOW_TRACKING_URI), or read it from a file "
            "where it is used: export NAME=$(cat FILE)"
        )


def scrub(path: Path, environment: Mapping[str, str]) -> bool:
    """Take the environment's secrets out of a log in place, where it holds any; return whether it did.

    For a log that nobody writes any more. One of more than 64 MiB stays as it is.
    """
    values = [value.encode() for value in secret_values(environment)]
    try:
        if not values or path.stat().st_size > _SCRUBBED_BYTES:
            return False
        text = path.read_bytes()
    except OSError:
        return False
    clean = text
    for value in values:
        clean = clean.replace(value, HIDDEN.encode())
    if clean == text:
        return False
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staged.write_bytes(clean)
        staged.replace(path)
    except OSError:  # a full disk must not keep a job from writing down how it ended
        staged.unlink(missing_ok=True)
        return False
    return True


def _is_place(name: str, value: str) -> bool:
    """Whether the variable says where a secret lies, as GOOGLE_APPLICATION_CREDENTIALS does."""
    return bool(_PLACE_NAME.search(name) or (_FILE_NAME.search(name) and value.startswith(("/", "~/"))))


def _texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield every text of a nested config with its dotted name."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, name)
    elif isinstance(value, str):
        yield name, value


def _hide_quoted(found: re.Match[str]) -> str:
    """Return what stands for a found assignment: the quotes of its value stay, so that JSON stays JSON."""
    mark = found[2][0] if found[2][0] in "\"'" and found[2][-1] == found[2][0] else ""
    return f"{found[1]}{mark}{HIDDEN}{mark}"
