"""The text of `python -m study.sweep --cfg job`: the composed config as YAML, each key with its one-line help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from study.config.compose import check
from study.config.errors import missing_values
from study.config.schema import sections
from train.spec.yamlfile import dump

COLUMN = 44


def document(config: DictConfig, resolve: bool = False, package: str | None = None) -> str:
    """Return the config, or the part of it named by `package`, as YAML with comments.

    ValueError for keys that are not in the schema, and for a package that does not exist.
    """
    plain = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(plain, dict)
    named = {str(name): value for name, value in plain.items()}
    if not missing_values(named):
        resolved = OmegaConf.to_container(config, resolve=True)
        assert isinstance(resolved, dict)
        check({str(name): value for name, value in resolved.items()})
    helps = {part.path: part.help for part in sections()} | {k.path: _help(k) for p in sections() for k in p.keys}
    prefix = ""
    for name in package.split(".") if package else ():
        prefix = f"{prefix}.{name}" if prefix else name
        if name not in named or not isinstance(named[name], dict):
            raise ValueError(f"--package {package}: there is no section {prefix!r} in the config")
        named = named[name]
    return "\n".join(_lines(named, prefix, 0, helps)) + "\n"


def _help(key: Any) -> str:
    return f"{key.help} ({' | '.join(key.choices)})" if key.choices else str(key.help)


def _lines(plain: Mapping[str, Any], prefix: str, depth: int, helps: Mapping[str, str]) -> Iterator[str]:
    indent = "  " * depth
    scalars = {name: value for name, value in plain.items() if not isinstance(value, dict) or not value}
    for name, value in scalars.items():
        path = f"{prefix}.{name}" if prefix else name
        yield f"{indent + name + ': ' + _inline(value):<{COLUMN}}# {helps.get(path, '')}".rstrip(" #")
    for name, value in plain.items():
        if name not in scalars:
            path = f"{prefix}.{name}" if prefix else name
            yield f"{indent}{name}:  # {helps.get(path, '')}".rstrip(" #")
            yield from _lines(value, path, depth + 1, helps)


def _inline(value: Any) -> str:
    text = dump(value, default_flow_style=True, width=10**9, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
