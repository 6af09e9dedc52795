"""A `conf/cluster/*.yaml` for this site, from what was found: what one small run gets, with the limits as comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from study.config.schema import ClusterConfig
from study.doctor.checks import Check, Slurm
from study.executors import load
from study.executors.slurm.nodes import Nodes
from train.spec.from_mapping import read

MEMORY_SHARE = 0.95
"""Of a node's memory, what jobs may ask: sites keep a little for themselves."""
SHOWN_LINES = 40


def name_of(slurm: Slurm | None, host: str) -> str:
    """Return the name of the site as a file and an option of Hydra: letters, digits, - and _."""
    said = (slurm.name if slurm is not None else "") or host
    return re.sub(r"[^A-Za-z0-9_-]+", "-", said).strip("-").lower() or "site"


def settings(slurm: Slurm | None, machine: Mapping[str, Any], partition: str | None = None) -> dict[str, Any]:
    """Return the section `cluster` for a run of one process: a GPU with its share of a node, or one core. Pure."""
    if slurm is None:
        return {"executor": "local", "slots": max(1, len(machine.get("gpus") or ()) or int(machine.get("cores") or 1))}
    wanted = partition or slurm.partition
    those = [n for n in slurm.site.nodes if n.partition == wanted]
    said: dict[str, Any] = {"executor": "slurm", "nodes": 1, "tasks_per_node": 1}
    said |= _share(max(those, key=lambda n: (n.gpus, n.count))) if those else {"cpus_per_task": 1, "gpus_per_node": 0}
    limits = [n.minutes for n in those if n.minutes is not None]
    # Runs that need longer go on in a further job, and short ones start sooner: a partition's limit is no wish.
    said["time_minutes"] = min([ClusterConfig().time_minutes, *limits])
    if wanted:
        said["partition"] = wanted
    if slurm.account:
        said["account"] = slurm.account
    if slurm.requeue is False:
        said["requeue"] = False
    return said


def document(site: str, settings_found: Mapping[str, Any], checks: list[Check]) -> str:
    """Return the file: the settings, each with its help, and below what was found. It is one that `study.sweep` reads.

    Raises ValueError where the settings are not what a cluster section takes.
    """
    read(ClusterConfig, dict(settings_found), "cluster")
    helps = {f.name: f.metadata["help"] for f in fields(ClusterConfig)}
    where = "SLURM job arrays" if load(settings_found["executor"]).detached else "Processes of this machine"
    lines = [f"# {where} at {site}, as found by python -m study doctor; change what does not suit you"]
    for key, value in settings_found.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        lines.append(f"{f'{key}: {text}':<28}# {helps[key]}")
    lines += ["", "# Found:"]
    lines += [f"#   {check.name}: {check.said}".replace("\n", " ") for check in checks][:SHOWN_LINES]
    return "\n".join(lines) + "\n"


def _share(node: Nodes) -> dict[str, Any]:
    """Return what one process gets of a node: a GPU with its share of cores and memory, or a core."""
    if not node.gpus:
        return {"cpus_per_task": 1, "gpus_per_node": 0}
    memory = int(MEMORY_SHARE * node.mem_gb / node.gpus)
    return {"cpus_per_task": max(1, node.cores // node.gpus), "gpus_per_node": 1, "mem_gb": max(1, memory)}
