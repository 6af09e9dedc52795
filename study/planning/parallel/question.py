"""What is asked of a search of layouts, from the words of a command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.text.commandline import Key
from study.config.schema import StudyConfig
from study.planning import own_words
from study.planning.parallel import profiles
from train.spec import largest
from train.spec.communication.cluster import ClusterProfile
from train.spec.config import RunConfig
from train.spec.resolve import resolve

Compose = Callable[[Sequence[str]], StudyConfig]
TOP, MEASURED, STEPS = 10, 3, 10
LEAST_STEPS = 4
MOST_GPUS, MOST_LISTED = 1 << 17, 1000
KEYS = (
    Key("cluster", profiles.MEANING, required=True),
    Key("gpus", "how many GPUs there are; default: one full domain of the profile, such as a host", None, kind="int"),
    Key("top", "how many layouts are listed", TOP, kind="int"),
    Key("measure", f"true: also run the {MEASURED} fastest for some steps; a number: so many of them", "false",
        kind="bool|int"),
    Key("steps", "measure=: how many steps of each, of which the second half is timed", STEPS, kind="int"),
    Key("out", "folder of parallel.md, parallel.csv, parallel.svg and parallel.png; default: no files", None),
)  # fmt: skip
"""Words beside keys and groups of a study."""
OWN = {key.name: key.help for key in KEYS}
"""What each of them means."""
SEARCHED = (
    "parallel.dp_replicate", "parallel.dp_shard", "parallel.cp", "parallel.tp", "parallel.pp", "parallel.ep",
    "parallel.zero", "parallel.pp_schedule", "parallel.pp_stages", "parallel.micro_batch_sequences",
    "memory.checkpointing", "memory.every", "compile.blocks", "precision.name",
)  # fmt: skip
"""The keys that are searched; one that words give a value stays at it."""
FORMATS = ("bf16", "fp8")


@dataclass(frozen=True)
class Measuring:
    """What is to be run of the answer: so many layouts, the fastest first, and so many steps of each."""

    top: int
    steps: int


@dataclass(frozen=True)
class Question:
    """What is searched: a resolved run, GPUs of so much memory [bytes] as a profile joins them, and what stays.

    fixed: the keys of SEARCHED that stay as the run has them. words: those that composed the run, to repeat them.
    measuring: what is to be run as well; None: nothing.
    """

    config: RunConfig
    gpus: int
    profile: ClusterProfile
    memory: int
    fixed: frozenset[str] = frozenset()
    top: int = TOP
    out: Path | None = None
    words: tuple[str, ...] = field(default=())
    measuring: Measuring | None = None

    @property
    def device(self) -> str:
        """What trains: cuda or cpu. A rank of a CPU is called a GPU in questions and answers, too."""
        return self.config.runtime.device

    def stays(self, key: str) -> bool:
        """Say whether a key is not searched."""
        return key in self.fixed


def ask(words: Sequence[str], compose: Compose) -> Question:
    """Return the question that words ask; ValueError names the word, its value and what would do."""
    own, rest = own_words.split(words, OWN)
    gpus, top = (
        own_words.number(name, own.get(name), most) for name, most in {"gpus": MOST_GPUS, "top": MOST_LISTED}.items()
    )
    measuring = _measuring(own)
    study = compose(rest)  # first: a key that there is not is wrong whatever else is missing
    found = profiles.asked(own)
    gpus = gpus or profiles.innermost(found)
    top = max(top or TOP, 0 if measuring is None else measuring.top)
    given = _given(rest)
    memory = profiles.memory(found, rest, study.cluster.gpu_memory_gb)
    asked = about(study.run(), found, gpus, memory, given)
    out = own_words.folder(own, OWN)
    return replace(asked, top=top, out=out, words=tuple(rest), measuring=measuring)


def about(run: RunConfig, found: ClusterProfile, gpus: int, memory: int, given: Mapping[str, str]) -> Question:
    """Return the question about a run, resolved or not, on so many GPUs of so much memory [bytes].

    given: the keys that stay as the run has them, by name. ValueError where the GPUs or the profile cannot be.
    """
    largest.check(run)
    run = _searchable(profiles.on_device(run, found), given)
    fixed = _fixed(run, given)
    profiles.check_ranks(found, gpus, _pinned(run, fixed))
    if "precision.name" in fixed:
        found.compute.matmul_rate(run.precision.name)
    return Question(resolve(run), gpus, found, memory, fixed)


def _measuring(own: Mapping[str, str]) -> Measuring | None:
    said, steps = own.get("measure", "false"), own_words.number("steps", own.get("steps"))
    if said == "false":
        if steps is not None:
            raise ValueError(f"steps={steps} says how long layouts are run: give measure=true as well, or leave it out")
        return None
    if said != "true" and not (said.isdecimal() and 1 <= int(said) <= MOST_LISTED):
        raise ValueError(
            f"measure={said} is not allowed: true, false, or how many of the fastest are run, {MOST_LISTED:,} at most"
        )
    if steps is not None and steps < LEAST_STEPS:
        raise ValueError(
            f"steps={steps} is not allowed: {LEAST_STEPS} or more, as the first half of them, which compiles and "
            "warms up, is not timed"
        )
    steps = steps or STEPS
    return Measuring(MEASURED if said == "true" else int(said), steps + steps % 2)


def _given(words: Sequence[str]) -> Mapping[str, str]:
    """Return what words give a value, by key; ValueError for a whole layout, which is what is searched."""
    given = {name.lstrip("+"): value for name, equals, value in (word.partition("=") for word in words) if equals}
    if given.get("parallel", "auto") != "auto":
        raise ValueError(
            f"parallel={given['parallel']} names one layout, and layouts are searched here: leave it out, or fix what "
            "has to stay (parallel.tp=2)"
        )
    if given.get("parallel.strategy", "auto") != "auto":
        raise ValueError(
            f"parallel.strategy={given['parallel.strategy']} is not searched: leave it out, as copies are held by ddp "
            "and shards by fsdp; parallel.dp_shard=1 fixes copies"
        )
    return given


def _searchable(run: RunConfig, given: Mapping[str, str]) -> RunConfig:
    """Return the run with layouts open that the words leave open; on a CPU in its own format, no block compiled."""
    if run.runtime.device == "cpu":
        run = replace(run, compile=replace(run.compile, blocks=run.compile.blocks or False))
    elif not {"precision", "precision.name"} & set(given):
        run = replace(run, precision=replace(run.precision, name="bf16"))
    defaults: dict[str, Any] = {"dp_replicate": 1, "dp_shard": None, "cp": 1, "tp": 1, "pp": 1, "ep": 1}
    axes = {
        name: getattr(run.parallel, name) if f"parallel.{name}" in given else size for name, size in defaults.items()
    }
    if axes["dp_replicate"] is None and axes["dp_shard"] is None:
        axes["dp_replicate"] = 1
    return replace(run, parallel=replace(run.parallel, strategy="auto", **axes))


def _fixed(run: RunConfig, given: Mapping[str, str]) -> frozenset[str]:
    named = {"precision.name" if name == "precision" else name for name in given}
    found = set()
    for key in SEARCHED:
        section, _, name = key.partition(".")
        if key in named and getattr(getattr(run, section), name) is not None:
            found.add(key)
    if run.runtime.device == "cpu":
        found |= {"compile.blocks", "precision.name"}
    return frozenset(found)


def _pinned(run: RunConfig, fixed: frozenset[str]) -> int:
    """Return how many ranks the fixed axes make."""
    product = 1
    for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp"):
        if f"parallel.{name}" in fixed:
            product *= getattr(run.parallel, name) or 1
    return product
