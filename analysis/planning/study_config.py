"""Proposed runs as a folder of configs that python -m study.sweep runs as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.text import files, numbers
from analysis.values.json_values import to_json

if TYPE_CHECKING:
    from analysis.planning.next_runs import Next

INHERITED = ("model", "data", "batch", "optim", "schedule", "eval", "precision")
OWN = ("width", "layers", "fingerprint")
"""Keys of a point that are not taken over: they differ between runs or are found anew."""


def write(found: Next, folder: Path, study: str, settings: Mapping[str, Any]) -> None:
    """Write next.yaml and point/NN.yaml: a config folder for python -m study.sweep --config-dir FOLDER.

    JSON values are YAML values too, so that nothing here needs a YAML writer.
    """
    points = folder / "point"
    points.mkdir(parents=True, exist_ok=True)
    names = [f"{i:02d}" for i in range(1, len(found.runs) + 1)]
    for old in points.glob("*.yaml"):
        if old.stem not in names:
            old.unlink()
    for name, run in zip(names, found.runs, strict=True):
        tokens = {"tokens": round(run.tokens), "flops": None, "tokens_per_param": None}
        text = f"# @package _global_\n# {numbers.count(run.params)} parameters on {numbers.count(run.tokens)} tokens\n"
        text += _yaml({"model": {"width": run.width, "layers": run.layers}, "budget": tokens})
        (points / f"{name}.yaml").write_text(text)
    head: dict[str, Any] = {"study": {"name": study}, **settings}
    model = dict(settings.get("model") or {})
    heads = model.get("head_dim")
    if not heads or any((run.width or 0) % heads for run in found.runs):
        # Heads of the runs' width need not divide these models: each width chooses its own.
        model = {name: value for name, value in model.items() if name != "kv_heads"} | {"head_dim": None}
    head["model"] = model
    head.setdefault("budget", {"tokens": None, "flops": None, "tokens_per_param": None})
    head["search"] = {"name": "grid"}
    head["hydra"] = {"sweeper": {"params": {"+point": ",".join(names)}}}
    text = f"# Next runs for the loss at {numbers.flops(found.target)}: each file of point/ is one.\n"
    text += f"# python -m study.sweep --config-dir {folder} --config-name next\n"
    text += "defaults:\n  - config\n  - _self_\n" + _yaml(head)
    (folder / "next.yaml").write_text(text)


def write_numbers(found: Next, folder: Path) -> None:
    """Write the proposal as next.json."""
    files.write(folder / "next.json", json.dumps(to_json(found), indent=1, allow_nan=False) + "\n")


def inherited(runs: str) -> dict[str, Any]:
    """Return the settings that all points of the study's folder share, to be those of the next runs too."""
    path = Path(runs) / "points.jsonl"
    if not path.is_file():
        return {}
    shared: dict[str, dict[str, Any]] = {}
    configs = [json.loads(line)["config"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    for section in INHERITED:
        first = configs[0].get(section) or {}
        same = {
            name: value
            for name, value in first.items()
            if name not in OWN and all((c.get(section) or {}).get(name) == value for c in configs)
        }
        if same:
            shared[section] = same
    return shared


def _yaml(value: Mapping[str, Any], indent: int = 0) -> str:
    """Return nested mappings as YAML blocks with JSON values; floats keep a point, as YAML asks."""
    lines = []
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            lines.append(f"{' ' * indent}{name}:\n{_yaml(item, indent + 2)}")
        else:
            text = json.dumps(item)
            if isinstance(item, float) and "e" in text and "." not in text:
                text = text.replace("e", ".0e")
            lines.append(f"{' ' * indent}{name}: {text}\n")
    return "".join(lines)
