"""What each point's job asks for, where `cluster.auto` sizes it: GPUs and nodes, memory, time limit, points in a job.

Time is what runs of the study took, else a stated assumption, times `cluster.margin`. Memory is counted from the
config (train.spec.footprint). Both are rounded up to a few values, so that a study becomes few arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from study.config.given import parts
from study.config.schema import ClusterConfig
from study.executors import job_spec_of, load
from study.executors.base import Site
from study.executors.job_spec import JobSpec
from study.planning import packing
from study.planning.estimate import Speed, rows, speed
from study.planning.ranks import estimated_flops
from study.planning.turns import alike, dealt, enough, longest_lane, shares, too_short
from study.records import lineage
from study.records.outcomes import completed
from study.records.point import Point
from study.storage.layout import StudyFolder
from train.spec import mesh
from train.spec.axes import MESH_AXES
from train.spec.config import RunConfig
from train.spec.footprint import Footprint, footprint
from train.spec.lineage import parse

MINUTES = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720, 960, 1440)
"""Time limits that are asked; above, whole half days."""
START_MINUTES = 2.0
"""Before the first step: Python, torch, the corpus, and what a busy file system adds."""
PROCESS_GB = {"cpu": 1.0, "cuda": 4.0}
"""Memory of a process before it holds a model: Python with torch; with CUDA its context and pinned buffers."""
NODE_GPUS = 8
MOST_RANKS = 4096


Timed = tuple[Point, float]
"""A point and its expected training time [s]."""


@dataclass(frozen=True)
class Sized:
    """The points of one array: the shape of their jobs, their keys, and what the time limit rests on, in words.

    held: planned memory of each GPU of the largest point; None without GPUs. shared: how many points share a GPU and
    what that gains. turns: why a job has so many points, where that was chosen.
    """

    shape: JobSpec
    keys: tuple[str, ...]
    why: str = ""
    held: Footprint | None = None
    shared: str = ""
    turns: str = ""


@dataclass
class _Jobs:
    """Points whose jobs have one shape. turns: why a job has so many of them, where that was chosen."""

    timed: list[Timed] = field(default_factory=list)
    turns: str = ""

    def add(self, others: _Jobs) -> None:
        """Add more points of the same shape."""
        self.timed.extend(others.timed)
        self.turns = "; ".join(filter(None, dict.fromkeys([self.turns, others.turns])))


def job_specs(folder: StudyFolder, points: Sequence[Point], cluster: ClusterConfig, site: Site) -> list[Sized]:
    """Return the points by the shape of their jobs, in the order given; points of one shape become one array.

    Points that share a job stand in the order in which the job takes them. Raises ValueError for a point whose job
    could never start at this site.
    """
    base = job_spec_of(cluster)
    if "pack" in parts(cluster) and cluster.pack > 1:
        raise ValueError(f"cluster.auto=[pack] chooses cluster.pack, which is {cluster.pack}: leave out one of the two")
    if not parts(cluster) or not points:
        _refuse(base, site)
        return [_of(base, _in_turn(base, points)) if base.takes_turns else _of(base, points)] if points else []
    whole_jobs = base.takes_turns or "pack" in parts(cluster) or _chooses_points_per_job(cluster)
    groups, why = _sized_alone(folder, points, cluster, site, whole_jobs=whole_jobs)
    by_shape: dict[JobSpec, _Jobs] = {}
    for group in groups:
        for shape, jobs in (_by_job(group, cluster, site) if whole_jobs else group).items():
            by_shape.setdefault(shape, _Jobs()).add(jobs)
    for shape in by_shape:
        _refuse(shape, site)
    return [_of(shape, [point for point, _ in jobs.timed], why, jobs.turns) for shape, jobs in by_shape.items()]


def _sized_alone(
    folder: StudyFolder, points: Sequence[Point], cluster: ClusterConfig, site: Site, *, whole_jobs: bool
) -> tuple[list[dict[JobSpec, _Jobs]], str]:
    """Return groups of points by the shape that each point needs alone, and what their times rest on, in words.

    Points of different groups must not share a job: a branch's job waits for its parent, others do not wait.
    whole_jobs: time limits are left out, as they follow from all points of a job.
    """
    speeds: dict[bool, Speed] = {}
    by_parent: dict[str | None, dict[JobSpec, _Jobs]] = {}
    over = {key for key in lineage.parents(points) if completed(folder, key)} if whole_jobs else set()
    for point, row in zip(points, rows(points, {}), strict=True):
        sized = layout(cluster, point.config, site)
        gpu = sized.gpus_per_node > 0
        if gpu not in speeds:
            speeds[gpu] = speed(folder, point.config, sized)
        seconds = replace(speeds[gpu], ranks=ranks(sized)).seconds(row)
        if not (_chooses_points_per_job(cluster) and too_short(seconds)):
            sized = packed(sized, point.config, site)
        shape = size(sized, point.config, None if whole_jobs else seconds, site)
        waits = whole_jobs and (parent := parse(point.parent)) is not None and parent.key not in over
        group = by_parent.setdefault(point.parent if waits else None, {})
        group.setdefault(shape, _Jobs()).timed.append((point, seconds))
    return list(by_parent.values()), "; ".join(dict.fromkeys(one.why for one in speeds.values()))


def _by_job(by_shape: Mapping[JobSpec, _Jobs], cluster: ClusterConfig, site: Site) -> dict[JobSpec, _Jobs]:
    """Return points by the shape of their jobs, with a time limit for all points of a job; these stand together."""
    found: dict[JobSpec, _Jobs] = {}
    for asked, jobs in _short_points_together(by_shape, cluster, site):
        timed = jobs.timed
        shape = _filled(asked, len(timed)) if "pack" in parts(cluster) else asked
        seconds = [seconds for _, seconds in timed]
        for places in (dealt if shape.takes_turns else alike)(seconds, shape.points):
            mine = [timed[place] for place in places]
            whole = shape
            if "time" in parts(cluster):
                whole = _timed(shape, _job_minutes([each for _, each in mine], shape, cluster), site)
            found.setdefault(whole, _Jobs(turns=jobs.turns)).timed.extend(mine)
    return found


def _chooses_points_per_job(cluster: ClusterConfig) -> bool:
    """Return whether `cluster.auto` chooses how many points a job has: a number that is given stays."""
    named = "points_per_job" in parts(cluster) and cluster.points_per_job is None
    return named and load(cluster.executor).allocates


def _short_points_together(
    by_shape: Mapping[JobSpec, _Jobs], cluster: ClusterConfig, site: Site
) -> list[tuple[JobSpec, _Jobs]]:
    """Return the points of each shape; where `cluster.auto` chooses that, points too short for a job share one."""
    if not _chooses_points_per_job(cluster):
        return list(by_shape.items())
    short, longer = dict[JobSpec, _Jobs](), dict[JobSpec, _Jobs]()
    for shape, jobs in by_shape.items():
        for each in jobs.timed:
            kind = short if shape.tasks == 1 and too_short(each[1]) else longer
            kind.setdefault(shape, _Jobs()).timed.append(each)
    taken = sum(-(-len(jobs.timed) // shape.pack) for shape, jobs in longer.items())
    work = [sum(seconds for _, seconds in jobs.timed) for jobs in short.values()]
    chosen: dict[JobSpec, list[tuple[JobSpec, _Jobs]]] = {}
    for (shape, jobs), part in zip(short.items(), shares(work), strict=True):
        at_once = site.jobs_at_once(shape)
        room = None if at_once is None else max(0, min(at_once, cluster.array_parallelism) - taken) * part
        chosen[shape] = _by_gpu_sharing(shape, jobs.timed, room, cluster, site)
    for shape, jobs in longer.items():
        chosen.setdefault(shape, []).append((shape, jobs))
    return [each for shape in by_shape for each in chosen[shape]]


def _by_gpu_sharing(
    shape: JobSpec, timed: Sequence[Timed], room: float | None, cluster: ClusterConfig, site: Site
) -> list[tuple[JobSpec, _Jobs]]:
    """Return short points by the shape of the jobs that they share: apart where some may share a job's GPU as well."""
    by_most: dict[int, list[Timed]] = {}
    for each in timed:
        by_most.setdefault(_most_side_by_side(shape, each[0].config, cluster), []).append(each)
    parts = shares([sum(seconds for _, seconds in points) for points in by_most.values()])
    found = [
        _shared_job(shape, points, most, None if room is None else room * part, site)
        for (most, points), part in zip(by_most.items(), parts, strict=True)
    ]
    return found if any(one.pack > shape.pack for one, _ in found) else [_shared_job(shape, timed, 1, room, site)]


def _shared_job(
    shape: JobSpec, timed: Sequence[Timed], most: int, room: float | None, site: Site
) -> tuple[JobSpec, _Jobs]:
    """Return the shape of jobs that short points share: how many points a job has, and how many run at a time.

    most: points that may be on the job's GPU at a time. room: jobs of these points that run at once; None: not known.
    """
    apart = shape.pack if shape.pack_gpus == "own" else 1
    turns = enough([seconds for _, seconds in timed], shape.pack, apart, None if room is None else int(room))
    follow = replace(shape, points_per_job=turns.count) if turns.count > shape.pack else shape
    jobs = _Jobs(list(timed), turns.why)
    return _side_by_side(follow, most, jobs, site), jobs


def _most_side_by_side(shape: JobSpec, config: RunConfig, cluster: ClusterConfig) -> int:
    """Return how many short points like this one may share their job's GPU: 1 unless `cluster.auto` chooses that."""
    return packing.most_side_by_side(config, cluster.gpu_memory_gb) if _may_share(shape, config, cluster) else 1


def _may_share(asked: ClusterConfig | JobSpec, run: RunConfig, cluster: ClusterConfig) -> bool:
    """Return whether `cluster.auto` chooses how many runs share a GPU, and this one asks for one GPU and uses it."""
    alone = (asked.nodes, asked.tasks_per_node, asked.gpus_per_node) == (1, 1, 1)
    return "pack" in parts(cluster) and alone and run.runtime.device != "cpu"


def _side_by_side(shape: JobSpec, most: int, jobs: _Jobs, site: Site) -> JobSpec:
    """Return the shape with several short points at a time on its GPU, if it is known that as many jobs run at once."""

    def together(count: int) -> JobSpec:
        return replace(shape, pack=count, pack_gpus="mps")

    def allowed(count: int) -> bool:
        alone, at_once = site.jobs_at_once(shape), site.jobs_at_once(together(count))
        if alone is None or at_once is None or site.check(together(count)) is not None:
            return False  # a job that asks for more cores and memory might never start
        return at_once >= min(shape.jobs(len(jobs.timed)), alone)

    count = packing.side_by_side(min(shape.points, len(jobs.timed)), most, allowed) if shape.takes_turns else 1
    return together(count) if count > 1 else shape


def _filled(shape: JobSpec, points: int) -> JobSpec:
    """Return the shape with no more lanes than these points fill evenly."""
    lanes = min(shape.pack, points) if shape.takes_turns else -(-points // -(-points // shape.pack))
    return replace(shape, pack=lanes, pack_gpus=shape.pack_gpus if lanes > 1 else "own")


def _in_turn(shape: JobSpec, points: Sequence[Point]) -> list[Point]:
    jobs = dealt(list(map(estimated_flops, points)), shape.points)
    return [points[place] for job in jobs for place in job]


def _job_minutes(seconds: Sequence[float], shape: JobSpec, cluster: ClusterConfig) -> float:
    """Return how long a job of these points is expected to take, with `cluster.margin` [minutes]."""
    shared = shape.pack if shape.pack_gpus != "own" else 1
    turns = 1 if shape.warm else -(-len(seconds) // shape.pack)
    return START_MINUTES * turns + longest_lane(seconds, shape.pack) * shared * cluster.margin / 60


def _timed(shape: JobSpec, expected: float, site: Site) -> JobSpec:
    """Return the shape with a time limit for what is expected [minutes], at most what the site allows."""
    minutes, longest = _rounded(expected), site.longest_minutes(shape)
    return replace(shape, time_minutes=minutes if longest is None else min(minutes, longest))


def _of(shape: JobSpec, points: Sequence[Point], why: str = "", turns: str = "") -> Sized:
    held = None
    if shape.gpus_per_node:
        world = shape.nodes * shape.tasks_per_node
        needs = [footprint(p.config, mesh.axes(p.config.parallel, world), "cuda") for p in points]
        held = max(needs, key=lambda need: need.total)
    return Sized(shape, tuple(point.key for point in points), why, held, _shared(shape, points), turns)


def _shared(shape: JobSpec, points: Sequence[Point]) -> str:
    """Return how many points share a GPU and the measured gain, in words; "" where none share."""
    if shape.pack == 1 or shape.pack_gpus == "own":
        return ""
    table = packing.GAINS.get(shape.pack_gpus, {})
    gains = [packing.gain(packing.step_flops(point.config), shape.pack, table) for point in points]
    told = f": together {min(gains):.2f} times one, as measured on an H200" if min(gains) else ""
    return f"{shape.pack} points share each GPU ({shape.pack_gpus}){told}"


def check_ranks(cluster: ClusterConfig, run: RunConfig, world: int) -> None:
    """Raise ValueError for a layout that cannot run on `world` ranks, naming what makes them so many."""
    try:
        mesh.check(run, world)
    except mesh.WorldError as error:
        made = f"cluster.tasks_per_node={cluster.tasks_per_node}"
        if load(cluster.executor).allocates:
            made = f"cluster.nodes={cluster.nodes} x {made}; cluster.auto=[gpus] chooses both"
        raise ValueError(f"{error} ({made})") from None


def layout(cluster: ClusterConfig, run: RunConfig, site: Site) -> ClusterConfig:
    """Return the cluster section with nodes, GPUs and processes of this run, where `cluster.auto` sizes them."""
    if "gpus" not in parts(cluster):
        return cluster
    largest = site.gpus_per_node(cluster.partition)
    wanted = run.runtime.device == "cuda" or (run.runtime.device == "auto" and largest > 0)
    if not wanted:
        return replace(cluster, gpus_per_node=0)
    world = _world(run, cluster)
    each = largest or NODE_GPUS
    nodes = next(n for n in range(-(-world // each), world + 1) if world % n == 0)
    return replace(cluster, nodes=nodes, gpus_per_node=world // nodes, tasks_per_node=world // nodes)


def packed(cluster: ClusterConfig, run: RunConfig, site: Site) -> ClusterConfig:
    """Return the cluster section with how many points like this one share a GPU, where `cluster.auto` chooses that."""
    if not load(cluster.executor).allocates or not _may_share(cluster, run, cluster):
        return cluster

    def together(count: int, pack_gpus: str = "slices") -> ClusterConfig:
        return replace(cluster, pack=count, pack_gpus=pack_gpus)

    def allowed(count: int) -> bool:
        if cluster.points_per_job is not None and count > cluster.points_per_job:
            return False
        return site.check(size(together(count), run, None, site)) is None

    found = packing.choose(run, cluster.gpu_memory_gb, allowed)
    return cluster if found is None else together(found.pack, found.pack_gpus)


def size(cluster: ClusterConfig, run: RunConfig, seconds: float | None, site: Site) -> JobSpec:
    """Return what a job of a run asks for that is expected to train for `seconds`; None: its time stays. Pure.

    The time limit of a partition, an account or a QOS bounds the time asked: a run that reaches it is resumed.
    """
    shape, wanted = job_spec_of(cluster), parts(cluster)
    if "time" in wanted and seconds is not None:
        shape = _timed(shape, _job_minutes([seconds], shape, cluster), site)
    if "memory" in wanted:
        shape = replace(shape, mem_gb=_memory(cluster, run))
    return shape


def ranks(cluster: ClusterConfig) -> int:
    """Return how many devices a run computes on: GPUs, or processes on cores."""
    return max(1, cluster.nodes * (cluster.gpus_per_node or cluster.tasks_per_node))


def _refuse(shape: JobSpec, site: Site) -> None:
    why = site.check(shape)
    if why is not None:
        raise ValueError(why)


def _world(run: RunConfig, cluster: ClusterConfig) -> int:
    """Return the fewest ranks whose share fits a GPU; ValueError where none does."""
    most = cluster.gpu_memory_gb * 1e9
    given = [getattr(run.parallel, name) for name in MESH_AXES]
    product = 1
    for axis in given:
        product *= axis or 1
    if run.parallel.layout == "chosen":
        return product  # by what the profile's GPUs hold
    worlds = [product] if None not in given else [product * 2**k for k in range(16) if product * 2**k <= MOST_RANKS]
    needs: list[tuple[int, Footprint]] = []
    for world in worlds or [product]:
        need = footprint(run, mesh.axes(run.parallel, world), "cuda")
        needs.append((world, need))
        if need.total * cluster.margin <= most:
            return world
        if run.parallel.dp_shard is not None:
            break  # more copies need as much each
    world, need = needs[-1]
    raise ValueError(
        f"cluster.auto: {world} GPU(s) would each need {need.total * cluster.margin / 1e9:.0f} GB ({in_words(need)}, "
        f"x {cluster.margin:g}), and cluster.gpu_memory_gb={cluster.gpu_memory_gb:g}: {_smaller(run)}, or "
        "parallel.micro_batch_sequences=1 memory.checkpointing=full needs less of each"
    )


def in_words(need: Footprint) -> str:
    """Return what a GPU holds, in words."""
    parts = (
        (need.states, "weights, gradients and moments"),
        (need.gathered, "gathered weights"),
        (need.activations, "activations"),
        (need.fetched, "moments during the update"),
        (need.further, "the rest of its pipeline's peak"),
    )
    return ", ".join(f"{size / 1e9:.1f} for {what}" for size, what in parts if size)


def _smaller(run: RunConfig) -> str:
    """Return which layout needs less of each GPU."""
    if run.parallel.zero < 3:
        return "parallel.zero=3 (parallel=fsdp) gathers weights a block at a time"
    if run.parallel.dp_shard is None:
        return "parallel.tp or parallel.pp cut what each GPU holds further"
    return "parallel.dp_shard=null parallel.dp_replicate=1 cuts the model over as many GPUs as it takes"


def _memory(cluster: ClusterConfig, run: RunConfig) -> float:
    """Return the memory of one point on each of its nodes [GB]."""
    device = "cuda" if cluster.gpus_per_node else "cpu"
    world = cluster.nodes * cluster.tasks_per_node
    need = footprint(run, mesh.axes(run.parallel, world), device)
    # On a GPU the host holds the states once, while a checkpoint is written, beside what is offloaded to it.
    held = need.states + 2 * need.host if device == "cuda" else need.total
    return _step(cluster.tasks_per_node * (PROCESS_GB[device] + held / 1e9 * cluster.margin))


def _step(value: float) -> float:
    """Return the next of 1, 1.5, 2, 3, 4, 6, 8, 12, …: few values, none more than half too large."""
    step = 1.0
    while step * 1.5 < value:
        step *= 2
    return step if value <= step else step * 1.5


def _rounded(minutes: float) -> int:
    return next((m for m in MINUTES if minutes <= m), int(-(-minutes // 720)) * 720)
