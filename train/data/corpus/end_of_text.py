"""Which token ends a text, by what the files of a model beside its tokenizer say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SAID_IN = (
    ("config.json", "eos_token_id"),
    ("generation_config.json", "eos_token_id"),
    ("tokenizer_config.json", "eos_token"),
    ("special_tokens_map.json", "eos_token"),
)
"""Files of a Hugging Face folder and their key of the token that ends a text, in the order in which they are asked."""


def said_beside(folder: Path) -> tuple[int | str, ...]:
    """Return the tokens that end a text, by number or by name, as files of the folder say; a broken file says none."""
    found = list[int | str]()
    for file, key in SAID_IN:
        try:
            content = json.loads((folder / file).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        found += _tokens(content.get(key) if isinstance(content, Mapping) else None)
    return tuple(found)


def _tokens(said: Any) -> list[int | str]:
    """Return what a file says as tokens: a number or a name, a list of them, or an object with the name."""
    if isinstance(said, list):
        return [token for one in said for token in _tokens(one)]
    if isinstance(said, Mapping):
        said = said.get("content")
    return [said] if isinstance(said, int | str) and not isinstance(said, bool) else []
