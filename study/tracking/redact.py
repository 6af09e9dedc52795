"""Taking secrets out of text before it is written anywhere: into a store, into a file, onto a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Redact = Callable[[str], str]

_NAME = r"(?:TOKEN(?![A-Z])|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_KEY|ACCESS_KEY|PRIVATE_KEY)"
_USERINFO = re.compile(r"(\b[a-zA-Z][\w+.-]*://)[^/\s'\"]*@")
_QUERY = re.compile(r"([?&](?:[\w-]*(?:token|secret|password|passwd|key|signature|sig))=)[^&\s'\"]+", re.I)
_ASSIGNMENT = re.compile(rf"\b([A-Z0-9_]*{_NAME}[A-Z0-9_]*\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s;&'\"]+)")
_BEARER = re.compile(r"\b((?:Bearer|Basic)\s+)[\w.~+/=-]{8,}")
_SECRET_NAME = re.compile(rf"{_NAME}$|{_NAME}[_A-Z0-9]*$")
_SHORTEST = 6
"""A shorter value in a variable called TOKEN is more likely a word of the text than a secret.

Names like MAX_TOKENS and TOKENIZERS_PARALLELISM hold settings: here tokens are what models read.
"""

HIDDEN = "***"


def redactor(environment: Mapping[str, str]) -> Redact:
    """Return a function that replaces secrets in text by ``***``.

    Secrets are: credentials inside a URI (``scheme://user:password@host``) or its query, values assigned to names
    like ``WANDB_API_KEY`` or ``MLFLOW_TRACKING_TOKEN``, and the values of such variables in `environment`.
    """
    values = sorted(
        {v for k, v in environment.items() if _SECRET_NAME.search(k.upper()) and len(v) >= _SHORTEST},
        key=len,
        reverse=True,
    )

    def redact(text: str) -> str:
        for value in values:
            text = text.replace(value, HIDDEN)
        text = _USERINFO.sub(rf"\g<1>{HIDDEN}@", text)
        text = _QUERY.sub(rf"\g<1>{HIDDEN}", text)
        text = _ASSIGNMENT.sub(rf"\g<1>{HIDDEN}", text)
        return _BEARER.sub(rf"\g<1>{HIDDEN}", text)

    return redact
