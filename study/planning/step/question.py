"""What is asked of a step's time, from the words of a command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.text.commandline import Key
from study.config.schema import StudyConfig
from study.planning import own_words
from study.planning.memory.question import Subject, axes_of
from study.planning.memory.sheet import largest_micro_batch
from study.planning.parallel import profiles
from train.spec.communication.cluster import ClusterProfile
from train.spec.communication.stages import micro_batches_of
from train.spec.config import RunConfig
from train.spec.mesh import Axes
from train.spec.resolve import resolve

MOST_TIMES = 1000
Compose = Callable[[Sequence[str]], StudyConfig]
KEYS = (
    Key("cluster", profiles.MEANING, required=True),
    Key("gpus", "how many GPUs there are; default: one full domain of the profile, such as a host", None, kind="int"),
    Key("slowest", "so many times as long computes the slowest GPU, for which the others wait", 1, kind="number"),
    Key("out", "folder of step.md, step.csv, step.svg and step.png, and with a pipeline timeline.svg; default: no "
        "files", None),
)  # fmt: skip
"""Words beside keys and groups of a study."""
OWN = {key.name: key.help for key in KEYS}
"""What each of them means."""


@dataclass(frozen=True)
class Question:
    """A resolved run with its micro-batch on GPUs (or CPU ranks) of so much memory [bytes], as a profile joins them.

    chosen: the micro-batch was not given, and is what the trainer would take.
    """

    config: RunConfig
    axes: Axes
    profile: ClusterProfile
    memory: int
    slowest: float = 1.0
    chosen: bool = False
    out: Path | None = None


def ask(words: Sequence[str], compose: Compose) -> Question:
    """Return the question that words ask; ValueError names the word, its value and what would do."""
    own, rest = own_words.split(words, OWN)
    asked, slowest = own_words.number("gpus", own.get("gpus")), _slowest(own.get("slowest"))
    study = compose(rest)  # first: a key that there is not is wrong whatever else is missing
    found = profiles.asked(own)
    gpus = asked or profiles.innermost(found)
    run = _on_device(resolve(study.run()), found)
    profiles.check_ranks(found, gpus)
    axes = axes_of(run, gpus)
    profiles.check_groups(found, axes)
    memory = profiles.memory(found, rest, study.cluster.gpu_memory_gb)
    chosen = run.parallel.micro_batch_sequences is None
    if chosen:
        run = replace(run, parallel=replace(run.parallel, micro_batch_sequences=_micro_batch(run, axes, memory)))
    return Question(run, axes, found, memory, slowest, chosen, own_words.folder(own, OWN))


def _on_device(run: RunConfig, found: ClusterProfile) -> RunConfig:
    run = profiles.on_device(run, found)
    if found.device == "cuda":
        return run
    return replace(run, compile=replace(run.compile, blocks=run.compile.blocks or False))


def _micro_batch(run: RunConfig, axes: Axes, memory: int) -> int:
    """Return the sequences of a micro-batch that is left open; of one alone where none fits.

    On GPUs the largest that fits; what the trainer plans with in a pipeline and on a CPU.
    """
    if axes.pp > 1 or run.runtime.device == "cpu":
        return micro_batches_of(run, axes, run.runtime.device).sizes[0]
    return max(1, largest_micro_batch(Subject(run, axes, memory)))


def _slowest(said: str | None) -> float:
    try:
        found = 1.0 if said is None else float(said)
    except ValueError:
        found = 0.0
    if not 1.0 <= found <= MOST_TIMES:
        raise ValueError(
            f"slowest={said} is not allowed: the slowest GPU's time over the others', 1 to {MOST_TIMES:,} (1.05)"
        )
    return found
