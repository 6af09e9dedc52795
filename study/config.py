"""The whole config of a submission: one run's sections, and where, when and how many of them.

Same conventions as :mod:`train.spec.config`: frozen, torch-free, one-line help with its unit in the metadata. These
dataclasses are the schema: their defaults are what Hydra composes onto, and `read` checks what it composed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from train.spec.config import RunConfig, key, section

SEARCHES = ("grid", "isoflop", "asha", "asha_stopping", "asha_guarded", "hyperband", "random")


@dataclass(frozen=True)
class StudySection:
    """The study that the points belong to."""

    name: str = key("default", "the study's points lie in <paths.runs>/<name>; also its name in MLflow")
    gpu_hours: float | None = key(None, "budget of all its jobs, failed ones too [GPU-hours]; null: no limit")
    core_hours: float | None = key(None, "the same for processor cores, for clusters without GPUs [core-hours]")


@dataclass(frozen=True)
class SearchConfig:
    """Which points a command makes, besides the lists after -m."""

    name: str = key("grid", "grid, isoflop: all points at once; the others give budget as results come in", SEARCHES)
    budgets: tuple[float, ...] = key((), "isoflop: training compute of each group [FLOPs]")
    ratios: tuple[float, ...] = key((), "isoflop: D/N to come near to [tokens per matmul parameter]")
    shapes: tuple[dict[str, int], ...] = key((), "isoflop: explicit [{width, layers}] instead of ratios")
    width_step: int = key(32, "isoflop: widths tried are multiples of this [channels]")
    width_max: int = key(8192, "isoflop: widest width tried [channels]")
    aspect_ratio: float = key(32.0, "isoflop: width per layer of the shapes tried [channels per layer]")
    min_layers: int = key(1, "isoflop: fewest layers of the shapes tried")
    trials: int = key(64, "asha, hyperband, random: most trials started")
    min_tokens: int | None = key(None, "asha, hyperband: first rung [tokens]; null: budget.tokens / eta^3")
    eta: int = key(3, "asha, hyperband: one trial in eta goes on from a rung")
    sampler: str = key("random", "where new trials come from; density learns from the rungs", ("random", "density"))
    seed: int = key(0, "seed of the trials that are drawn")
    budget_flops: float | None = key(None, "asha, hyperband, random: compute of all trials [FLOPs]; null: no limit")
    workers: int | None = key(None, "workers at once; null: cluster.slots on this machine, 4 on SLURM")
    lease_seconds: float = key(120.0, "a worker silent for so long has lost its trial to another [s]")


@dataclass(frozen=True)
class ClusterConfig:
    """Where runs are executed and what one run gets."""

    executor: str = key("local", "processes of this machine, or SLURM jobs", ("local", "slurm"))
    slots: int | None = key(None, "local: runs at once; null: cores // runtime.threads")
    nodes: int = key(1, "nodes of one run")
    tasks_per_node: int = key(1, "processes (ranks) of one run on each node")
    cpus_per_task: int = key(1, "cores of one process")
    gpus_per_node: int = key(0, "GPUs of one run on each node")
    mem_gb: float | None = key(None, "memory of one run on each node [GB]; null: the partition's default")
    time_minutes: int = key(60, "time limit of one job [minutes]; a run that reaches it is resumable")
    partition: str | None = key(None, "SLURM partition; null: the cluster's default")
    account: str | None = key(None, "SLURM account; null: your default")
    qos: str | None = key(None, "SLURM quality of service; null: your default")
    constraint: str | None = key(None, "node features wanted, as sbatch --constraint")
    exclude: str | None = key(None, "nodes not wanted, as sbatch --exclude")
    reservation: str | None = key(None, "SLURM reservation")
    nice: int | None = key(None, "lower priority by this much, as sbatch --nice")
    sbatch: dict[str, Any] | None = key(None, "more sbatch options, as {comment: night, hint: nomultithread}")
    container_image: str | None = key(None, "image that tasks run in, as srun --container-image (pyxis)")
    container_mounts: str | None = key(None, "folders seen inside it, as srun --container-mounts")
    prefix: tuple[str, ...] = key((), "words before python in a task, as [apptainer, exec, --nv, image.sif]")
    python: str | None = key(None, "the interpreter in a job, such as a container's; null: this one")
    pack: int = key(1, "points that share one job side by side, each of one process")
    pack_gpus: str = key(
        "own",
        "own: each packed point has gpus_per_node GPUs of its own; slices: all take turns on the job's gpus_per_node "
        "GPUs; mps: the same through NVIDIA's multi-process service",
        ("own", "slices", "mps"),
    )
    auto: tuple[str, ...] = key((), "sized from each point: any of gpus, memory, time; [all] for the three")
    margin: float = key(1.5, "auto: how much more time and memory is asked than is expected")
    gpu_memory_gb: float = key(80.0, "auto: memory of one GPU [GB]")
    array_parallelism: int = key(256, "jobs of one submission that may run at once")
    setup: tuple[str, ...] = key((), "shell lines run in the job before Python starts (modules, exports)")
    master_addr: str | None = key(None, "rendezvous address of multi-node runs; null: the first node")
    poll_seconds: float = key(10.0, "shortest time between two looks at the scheduler [s]")
    signal_seconds: int = key(90, "warning before the time limit, for the last checkpoint [s]")


@dataclass(frozen=True)
class TrackingConfig:
    """Where MLflow shows the runs."""

    enabled: bool = key(True, "send finished metrics to MLflow; the run folders hold them in any case")
    uri: str = key("sqlite:///mlflow.db", "MLflow tracking URI: sqlite:///file.db or http(s)://server")


@dataclass(frozen=True)
class PathsConfig:
    """Folders of this machine or of the shared file system."""

    runs: str = key("runs", "folder of all studies; on SLURM it must be on shared storage")


@dataclass(frozen=True)
class StudyConfig(RunConfig):
    """Everything that `python -m study.sweep` needs to know."""

    study: StudySection = section(StudySection, "the study that the points belong to")
    search: SearchConfig = section(SearchConfig, "which points are made")
    cluster: ClusterConfig = section(ClusterConfig, "where runs are executed")
    tracking: TrackingConfig = section(TrackingConfig, "MLflow")
    paths: PathsConfig = section(PathsConfig, "folders")
    dry_run: bool = key(False, "show the points and the exact job script; submit and write nothing")
    wait: bool = key(False, "slurm: stay with live progress until all runs ended (local always stays)")

    def run(self) -> RunConfig:
        """Return the part that is one run's."""
        return RunConfig(**{f.name: getattr(self, f.name) for f in fields(RunConfig)})


@dataclass(frozen=True)
class Key:
    """One key of the schema, for help and for errors."""

    path: str
    kind: Any
    default: Any
    help: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """One section of the schema; the top level is the section with an empty path."""

    path: str
    help: str
    keys: tuple[Key, ...]


def sections(kind: type = StudyConfig, path: str = "", help: str = "") -> Iterator[Section]:
    """Yield every section of the schema in order, the top level's own keys first."""
    hints = get_type_hints(kind)
    keys, nested = [], []
    for spec in fields(kind):
        where = f"{path}.{spec.name}" if path else spec.name
        inner = hints[spec.name]
        if isinstance(inner, type) and is_dataclass(inner):
            nested.append((inner, where, spec.metadata.get("help", "")))
        else:
            keys.append(_key(spec, where, inner))
    yield Section(path, help, tuple(keys))
    for inner, where, text in nested:
        yield from sections(inner, where, text)


def defaults() -> dict[str, Any]:
    """Return the schema's defaults as plain dicts and lists: what Hydra composes everything else onto."""
    made = plain(asdict(StudyConfig()))
    assert isinstance(made, dict)
    return made


def _key(spec: Field[Any], where: str, kind: Any) -> Key:
    return Key(where, kind, spec.default, spec.metadata.get("help", ""), spec.metadata.get("choices", ()))


def plain(value: Any) -> Any:
    """Return dataclasses' values as YAML and JSON hold them: tuples become lists."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
