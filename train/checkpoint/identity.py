"""Whether a checkpoint belongs to a run: its scientific config and its data must be the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from train.checkpoint.layout import Checkpoint
from train.spec.config import SCIENTIFIC, RunConfig
from train.spec.later import without


def identity_of(config: RunConfig, fingerprint: str) -> dict[str, Any]:
    """Return what a checkpoint belongs to: the scientific config and the data's fingerprint."""
    sections = asdict(config)
    science = without({name: sections[name] for name in SCIENTIFIC})
    data = {k: v for k, v in science["data"].items() if k not in ("source", "fingerprint")}
    data["sources"] = [{k: v for k, v in source.items() if k != "source"} for source in data["sources"]]
    return {"config": {**science, "data": data}, "fingerprint": fingerprint}


def check_identity(found: Checkpoint, identity: Mapping[str, Any]) -> None:
    """Raise ValueError that names every difference where the checkpoint belongs to another config."""
    differing = sorted(_differences("", found.identity, identity))
    if differing:
        raise ValueError(
            f"checkpoint {found.folder} belongs to another config ({'; '.join(differing)}): "
            "use a run folder of its own, or remove the checkpoints to train anew"
        )


def _differences(where: str, a: Any, b: Any) -> list[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = a.keys() | b.keys()
        return [d for k in keys for d in _differences(f"{where}.{k}".lstrip("."), a.get(k), b.get(k))]
    return [] if _plain(a) == _plain(b) else [f"{where} was {a!r}, is {b!r}"]


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value
