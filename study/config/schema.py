"""The whole config of a submission: one run's sections, and where, when and how many of them.

Same conventions as :mod:`train.spec.config`: frozen, torch-free, one-line help with its unit in the metadata. These
dataclasses are the schema: their defaults are what Hydra composes onto, and `read` checks what it composed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from study.config.executors import EXECUTORS
from study.failures.kinds import FAILURES
from study.failures.retry_policy import RetryRules, parse_rule
from sweeps.designs import DESIGNS
from sweeps.samplers import SAMPLERS
from sweeps.schedulers import SCHEDULERS, STAKE
from train.spec.config import RunConfig, key, section

T = TypeVar("T")
SEARCHES = (*DESIGNS, *SCHEDULERS)


@dataclass(frozen=True)
class StudySection:
    """The study that the points belong to."""

    name: str = key("default", "the study's points lie in <paths.runs>/<name>; also its name in MLflow")
    gpu_hours: float | None = key(None, "budget of all its jobs, including failed ones [GPU-hours]; null: no limit")
    core_hours: float | None = key(None, "the same for CPU cores, for clusters without GPUs [core-hours]")


@dataclass(frozen=True)
class SearchConfig:
    """Which points a command makes, besides the lists after -m."""

    name: str = key(
        "grid", f"{', '.join(DESIGNS)}: all points at once; the others allocate budget as results arrive", SEARCHES
    )
    budgets: tuple[float, ...] = key((), "isoflop, trunk_and_branch: training compute of each group [FLOPs]")
    ratios: tuple[float, ...] = key(
        (), "designs: values of D/N, or their range (random_nd) [tokens per matmul parameter]"
    )
    tokens: tuple[int, ...] = key((), "trunk_and_branch: budgets, instead of ratios [tokens]")
    params: tuple[float, ...] = key((), "ladder, trunk_and_branch: target sizes; random_nd: range of sizes [N matmul]")
    points: int = key(20, "random_nd: number of points")
    shapes: tuple[dict[str, int], ...] = key((), "designs: explicit sizes [{width, layers}]")
    width_step: int = key(32, "designs: widths tried are multiples of this [channels]")
    width_max: int = key(8192, "designs: widest width tried [channels]")
    aspect_ratio: float = key(32.0, "designs: width per layer of the shapes tried [channels per layer]")
    min_layers: int = key(1, "designs: fewest layers of the shapes tried")
    trials: int = key(64, "asha, hyperband, random: largest number of trials; pbt: members")
    min_tokens: int | None = key(
        None,
        "asha, hyperband: smallest first rung, of budget.tokens / eta^k; pbt: between two comparisons [tokens]; "
        "null: budget.tokens / eta^3 (asha_guarded / eta^4), / 20",
    )
    eta: int = key(3, "asha, hyperband: one trial in eta is promoted from a rung")
    sampler: str = key(
        "random",
        "sampler of new trials; tpe, gp, density learn from earlier trials; sobol, grid cover the space",
        tuple(SAMPLERS),
    )
    objectives: tuple[str, ...] = key(("loss",), "tpe, gp: objectives to minimize: [loss] or [loss, gpu_seconds]")
    enqueue: tuple[dict[str, Any], ...] = key((), "points to try first, as [{optim.lr: 3e-4}]")
    seed: int = key(0, "seed of the sampler")
    quantile: float = key(0.2, "pbt: share of members at the bottom that copy members of the same share at the top")
    resample: float = key(0.25, "pbt: probability that a copied setting is drawn anew, not multiplied by 0.8 or 1.2")
    stake: float = key(
        STAKE, "asha_guarded: share of the resource for selection; the rest trains unselected trials to the end"
    )
    explore: str = key(
        "perturb",
        "pbt: how a copy's settings change; perturb: as above; pb2: real numbers by a model of past gains (bandit)",
        ("perturb", "pb2"),
    )
    burn_in_tokens: int = key(0, "pbt: members do not copy before this [tokens]")
    budget_flops: float | None = key(None, "compute budget of all trials [FLOPs]; null: no limit")
    budget_gpu_hours: float | None = key(
        None,
        "device-time budget of all trials, lost units included [GPU-hours; a worker without GPUs counts as one]; "
        "null: no limit",
    )
    shape: str = key("pool", "slurm; pool: workers that claim units; jobs: one job for each unit", ("pool", "jobs"))
    workers: int | None = key(None, "workers (jobs) at once; null: cluster.slots on this machine, 4 on SLURM")
    lease_seconds: float = key(120.0, "a worker silent for this long loses its trial to another [s]")


@dataclass(frozen=True)
class ClusterConfig:
    """Where runs are executed and what one run gets."""

    executor: str = key("local", "processes on this machine, or SLURM jobs", EXECUTORS)
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
    constraint: str | None = key(None, "required node features, as sbatch --constraint")
    exclude: str | None = key(None, "nodes to exclude, as sbatch --exclude")
    reservation: str | None = key(None, "SLURM reservation")
    nice: int | None = key(None, "lower the priority by this much, as sbatch --nice")
    sbatch: dict[str, Any] | None = key(None, "other sbatch options, as {comment: night, hint: nomultithread}")
    container_image: str | None = key(None, "container image for tasks, as srun --container-image (pyxis)")
    container_mounts: str | None = key(None, "folders mounted in it, as srun --container-mounts")
    prefix: tuple[str, ...] = key((), "command prefix before python in a task, as [apptainer, exec, --nv, image.sif]")
    python: str | None = key(None, "Python interpreter in a job, such as a container's; null: this one")
    pack: int = key(1, "points that run side by side in one job, one process each")
    points_per_job: int | None = key(
        None, "points of one job: pack of them at a time, and as one ends the next begins; null: as many as pack"
    )
    pack_gpus: str = key(
        "own",
        "own: each packed point has gpus_per_node GPUs of its own; slices: all time-slice the job's gpus_per_node "
        "GPUs; mps: they share them through NVIDIA's multi-process service",
        ("own", "slices", "mps"),
    )
    auto: tuple[str, ...] = key(
        (),
        "resources sized for each point: any of gpus, memory, time, [all] for the three; pack: how many points of one "
        "process share a GPU, where measurements show a gain; points_per_job: how many short points follow one another",
    )
    margin: float = key(1.5, "auto: factor on the expected time and memory")
    gpu_memory_gb: float = key(80.0, "auto: memory of one GPU [GB]")
    profile: str | None = key(
        None,
        "parallel=auto: profile of the machine, a name in conf/cluster/measured or the path of one; its GPUs' memory "
        "counts where gpu_memory_gb is not given",
    )
    warm: bool = key(
        True,
        "runs of one process that follow one another in a local slot, a search's worker or a job (points_per_job) are "
        "trained by one persistent process: only the first run starts Python and torch; false: a new process for each",
    )
    array_parallelism: int = key(256, "jobs of one submission that may run at once")
    code: str = key(
        "live",
        "code that jobs run; live: the checkout as it is when they start; frozen: a copy made at submission",
        ("live", "frozen"),
    )
    prepare: str = key(
        "job",
        "slurm: where missing data is prepared; job: in a SLURM job that the command waits for; here: on this machine",
        ("job", "here"),
    )
    setup: tuple[str, ...] = key((), "shell lines run in the job before Python starts (modules, exports)")
    master_addr: str | None = key(None, "rendezvous address of multi-node runs; null: the first node")
    poll_seconds: float = key(10.0, "shortest time between two queries of the scheduler [s]")
    signal_seconds: int = key(90, "warning before the time limit, for the last checkpoint [s]")
    requeue: bool = key(
        True, "interrupted jobs requeue themselves where SLURM allows it; otherwise they are submitted anew"
    )
    hang_floor_seconds: float = key(
        600.0,
        "no step for this long (and 10 median steps) is a hang: stacks are saved, the run is killed [s]; 0: never",
    )


def rule_for_each_kind(owner: type[T]) -> type[T]:
    """Give a class a field for the rule of each kind of end that something may follow from."""
    rules = {kind.value: failure for kind, failure in FAILURES.items() if failure.rule}
    owner.__annotations__ = {**dict.fromkeys(rules, "str"), **owner.__annotations__}
    for name, failure in rules.items():
        setattr(owner, name, key(failure.rule, failure.help))
    return owner


@dataclass(frozen=True)
@rule_for_each_kind
class RetryConfig:
    """What follows automatically from each kind of failure: again N, elsewhere N, more N (memory), stop."""

    failures: int = key(6, "largest number of consecutive failures of a point; a newer checkpoint resets the count")
    memory_factor: float = key(1.5, "more: factor on the memory")
    exclude_after: int = key(2, "exclude a node on which this many attempts ended badly")
    exclude_most: int = key(4, "largest number of excluded nodes")
    exclude_hours: float = key(24.0, "evidence against a node counts for this long [h]")

    def __post_init__(self) -> None:
        self.rules()

    def rules(self) -> RetryRules:
        """Return the parsed rules. Raises ValueError for one that cannot be parsed."""
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        kinds = {name: parse_rule(f"retry.{name}", text) for name, text in said.items() if isinstance(text, str)}
        others = {name: value for name, value in said.items() if name not in kinds}
        return RetryRules(kinds, **others)


@dataclass(frozen=True)
class TrackingConfig:
    """Where MLflow shows the runs."""

    enabled: bool = key(True, "send metrics to MLflow; the run folders contain them in any case")
    uri: str = key("sqlite:///mlflow.db", "MLflow tracking URI: sqlite:///file.db or http(s)://server")


@dataclass(frozen=True)
class PathsConfig:
    """Folders of this machine or of the shared file system."""

    runs: str = key("runs", "folder of all studies; on SLURM it must be on shared storage")
    locks: str = key(
        "auto",
        "locks in a study's folder; posix: flock; link: symbolic links, for file systems without flock; auto: flock "
        "where it works",
        ("auto", "posix", "link"),
    )


@dataclass(frozen=True)
class StudyConfig(RunConfig):
    """Everything that `python -m study.sweep` needs to know."""

    study: StudySection = section(StudySection, "the study that the points belong to")
    search: SearchConfig = section(SearchConfig, "which points are made")
    cluster: ClusterConfig = section(ClusterConfig, "where runs are executed")
    retry: RetryConfig = section(
        RetryConfig, "automatic retries by kind of failure: again N, elsewhere N, more N (memory), stop"
    )
    tracking: TrackingConfig = section(TrackingConfig, "MLflow")
    paths: PathsConfig = section(PathsConfig, "folders")
    dry_run: bool = key(False, "show the points and the exact job script; submit and write nothing")
    wait: bool = key(False, "slurm: stay and show live progress until all runs have ended (local always does)")

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
    choices: Collection[str]


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
