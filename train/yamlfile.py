"""Reading a YAML file of settings, with numbers as people write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-3 is a number, as in YAML 1.2 and in Hydra; PyYAML alone takes it for text."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; ValueError that names the file where there is none."""
    try:
        mapping = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    if not isinstance(mapping, dict):
        raise ValueError(f"{path} holds no mapping of sections (model, data, budget, ...)")
    return mapping
