"""What sbatch's words mean where it took no job: whether that is for good, and which key of the cluster it is about."""

from __future__ import annotations

import re
from collections.abc import Sequence

from study.executors.job_spec import JobSpec

_UNSURE = ("timed out", "Unable to contact", "Connection", "communication", "Zero Bytes", "Slurm temporarily", "busy")
_USAGE = 'Try "sbatch --help"'
"""The last line of sbatch where it does not know an option, or its value is missing: it has asked nobody then."""
_ABOUT: Sequence[tuple[str, tuple[str, ...]]] = (
    (r"--time\b|time limit", ("time_minutes",)),
    (r"--partition\b|partition", ("partition",)),
    (r"--account\b|account", ("account",)),
    (r"--qos\b|\bqos\b", ("qos",)),
    (r"--constraint\b|feature", ("constraint",)),
    (r"--exclude\b|node name", ("exclude",)),
    (r"--reservation\b|reservation", ("reservation",)),
    (r"--nice\b", ("nice",)),
    (r"--signal\b", ("signal_seconds",)),
    (r"--mem\b|memory", ("mem_gb",)),
    (r"--gpus|--gres|generic resource|\bgres\b", ("gpus_per_node",)),
    (r"node count|--nodes\b", ("nodes",)),
    (r"node configuration", ("nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb")),
    (r"more processors|cpu count", ("tasks_per_node", "cpus_per_task")),
)
"""Words of sbatch, in any case, and the keys of `cluster` that they are about; options of cluster.sbatch come first."""


def refused(message: str) -> bool:
    """Whether sbatch's words mean that SLURM said no, rather than that nobody knows."""
    return _USAGE in message or ("error" in message and not any(word.lower() in message.lower() for word in _UNSURE))


def blamed(message: str, shape: JobSpec) -> str:
    """Return the keys of the cluster that a refusal is about, each with the value that it has; "" where none is known.

    shape: what was asked for. An option that the user gave, and that sbatch names, is meant rather than any key.
    """
    given = [(name, value) for name, value in shape.sbatch if _names(message, name)]
    if given:
        return "cluster.sbatch={" + ", ".join(f"{name}: {value}" for name, value in given) + "}"
    keys = dict.fromkeys(key for words, names in _ABOUT if re.search(words, message, re.IGNORECASE) for key in names)
    values = ((key, getattr(shape, key)) for key in keys)
    return ", ".join(f"cluster.{key}={value}" for key, value in values if value not in (None, 0, ""))


def _names(message: str, option: str) -> bool:
    """Whether sbatch names an option: as it is written, or as a word, of which it may leave the plural away."""
    word = re.escape(option.replace("-", " "))
    return bool(
        re.search(rf"--{re.escape(option)}(?![\w-])", message)
        or re.search(rf"(?<![\w-])({word}|{word.removesuffix('s')})(?![\w-])", message, re.IGNORECASE)
    )
