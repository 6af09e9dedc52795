"""From checked configs to submitted points: prepare the data, freeze, show the table, then hand over to execution."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.compose import Composed
from study.config import ClusterConfig, StudyConfig
from study.executors.local import job_environment
from study.files import write_atomic
from study.freeze import Fingerprints, absolute, append_points, corpus, fingerprint_of, known_keys, seal, settle
from study.layout import StudyFolder
from study.point import Point
from study.submission import reference
from study.table import rows, slots, speed, table
from train.spec.config import SCIENTIFIC, DataConfig, RunConfig

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_COMMANDS = 3


@dataclass(frozen=True)
class Plan:
    """What a command asks for: the points in order, each once, and the cluster that each one goes to."""

    folder: StudyFolder
    config: StudyConfig
    points: tuple[Point, ...]
    clusters: tuple[ClusterConfig, ...]
    asked: int

    def batches(self) -> dict[ClusterConfig, list[str]]:
        """Return the keys by the cluster section that they go to."""
        by_cluster: dict[ClusterConfig, list[str]] = {}
        for point, cluster in zip(self.points, self.clusters, strict=True):
            by_cluster.setdefault(cluster, []).append(point.key)
        return by_cluster


def submit(composed: Sequence[Composed]) -> int:
    """Show the points and submit them; return the exit code. With `dry_run` nothing is submitted or written."""
    from rich.console import Console

    console = Console(soft_wrap=False, width=None if sys.stdout.isatty() else 140, highlight=False)
    config = common(composed)
    settled = [settle(one.config, one.overrides) for one in composed]
    plan = make_plan(composed, settled, _fingerprints(settled, console, config.dry_run))
    known = _states(plan)
    _show(plan, known, console)
    if config.dry_run:
        _show_jobs(plan, console)
        return 0
    _write(plan)
    return _execute(plan, console)


def common(composed: Sequence[Composed]) -> StudyConfig:
    """Return a config that stands for all; ValueError where settings of the whole study differ between points."""
    if not composed:
        raise ValueError("the search makes no points: give a value to each list after -m")
    first = composed[0].config
    if not all(c.isalnum() or c in "._-" for c in first.study.name) or first.study.name.strip(".") == "":
        raise ValueError(f"study.name={first.study.name!r} is not a folder name: use letters, digits, '.', '_' and '-'")
    for name in ("study", "tracking", "paths", "dry_run", "wait"):
        said = [str(v) for v in dict.fromkeys(_plain_text(getattr(one.config, name)) for one in composed)]
        if len(said) > 1:
            raise ValueError(
                f"{name} differs between points ({said[0]} and {said[1]}): "
                "it is one setting of the whole study, so it cannot be in a list after -m"
            )
    return first


def make_plan(composed: Sequence[Composed], settled: Sequence[RunConfig], fingerprints: Fingerprints) -> Plan:
    """Return the frozen points, each once, named by the overrides that tell them apart."""
    config = common(composed)
    frozen: dict[str, tuple[Point, ClusterConfig]] = {}
    for one, run in zip(composed, settled, strict=True):
        point = seal(run, fingerprints, one.overrides)
        frozen.setdefault(point.key, (point, one.config.cluster))
    shared = _shared([point.overrides for point, _ in frozen.values()])
    points = tuple(replace(p, overrides=_recognisable(p.overrides, shared)) for p, _ in frozen.values())
    folder = StudyFolder(Path(config.paths.runs).expanduser().absolute() / config.study.name)
    return Plan(folder, config, points, tuple(c for _, c in frozen.values()), len(composed))


def _shared(overrides: Sequence[Sequence[str]]) -> frozenset[str]:
    """Return the overrides that all points have, which therefore name none of them; none for a single point."""
    if len(overrides) < 2:
        return frozenset()
    return frozenset(set.intersection(*(set(o) for o in overrides)))


def _recognisable(overrides: Sequence[str], shared: frozenset[str]) -> tuple[str, ...]:
    heads = tuple(o.lstrip("+~").partition("=")[0].partition(".")[0].partition("@")[0] for o in overrides)
    return tuple(o for o, head in zip(overrides, heads, strict=True) if head in SCIENTIFIC and o not in shared)


def _plain_text(section: Any) -> str:
    pairs = asdict(section).items() if is_dataclass(section) and not isinstance(section, type) else []
    return ", ".join(f"{name}={value}" for name, value in pairs) or str(section).lower()


def _fingerprints(settled: Sequence[RunConfig], console: Console, dry_run: bool) -> Fingerprints:
    """Return the fingerprint of every corpus that the points read, preparing those that are not prepared yet."""
    found = {}
    for data, root in dict.fromkeys(map(corpus, settled)):
        fingerprint = fingerprint_of(data, root)
        if fingerprint is None and not dry_run:
            console.print(f"Preparing data={data.name} ({data.tokenizer}) in {root}")
            prepare(data, root)
            fingerprint = fingerprint_of(data, root)
            if fingerprint is None:
                raise ValueError(f"data {data.name!r} was prepared in {root}, but not with the same data.* settings")
        if fingerprint is None:
            console.print(f"data={data.name} is not prepared in {root}: the keys below will change when it is.")
        else:
            found[data, root] = fingerprint
    return found


def prepare(data: DataConfig, root: str) -> None:
    """Prepare a corpus in a process of its own (it loads heavy libraries), its progress shown."""
    import yaml

    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "data.yaml"
        file.write_text(yaml.safe_dump({"data": asdict(data)}))
        command = [sys.executable, "-m", "train.prepare", "--config", str(file), "--root", root]
        code = subprocess.run(command, check=False, env=job_environment(os.environ)).returncode
    if code != 0:
        raise SystemExit(code)


def _states(plan: Plan) -> dict[str, str]:
    """Return what is known of the points already: completed, or held by the study."""
    return {key: "completed" if plan.folder.run(key).outcome.exists() else "known" for key in known_keys(plan.folder)}


def _show(plan: Plan, states: dict[str, str], console: Console) -> None:
    run = plan.config.run()
    cluster = plan.clusters[0]
    shown = rows(plan.points, states)
    title = f"Study {plan.config.study.name}: {len(plan.points)} points on {cluster.executor}"
    console.print(table(shown, speed(plan.folder, run, cluster), slots(cluster, run), title))
    new = sum(row.state == "new" for row in shown)
    done = sum(row.state == "completed" for row in shown)
    text = f"{new} new, {len(shown) - new} of them already in {plan.folder.path} ({done} completed)"
    twice = plan.asked - len(plan.points)
    console.print(text + (f"; {twice} duplicates dropped." if twice else "."))


def _show_jobs(plan: Plan, console: Console) -> None:
    """Print what would be submitted: the exact sbatch script, or the local commands."""
    for cluster, keys in plan.batches().items():
        if cluster.executor == "slurm":
            from study import execute

            console.print("\nThis script would be submitted with sbatch:\n", style="bold")
            sys.stdout.write(execute.script(plan.folder, keys, cluster).rstrip() + "\n")
            continue
        at_once = min(slots(cluster, plan.config.run()), len(keys))
        console.print(f"\nThese processes would be started, {at_once} at once:\n", style="bold")
        for key in keys[:SHOWN_COMMANDS]:
            sys.stdout.write(f"python -m train.run --config {plan.folder.run(key).config}\n")
        if len(keys) > SHOWN_COMMANDS:
            sys.stdout.write(f"… and {len(keys) - SHOWN_COMMANDS} more\n")
    sys.stdout.write("\ndry_run=true: nothing was submitted, nothing was written.\n")


def _write(plan: Plan) -> None:
    """Write the study's points and the settings of this submission; what is there already stays untouched."""
    import yaml

    plan.folder.path.mkdir(parents=True, exist_ok=True)
    append_points(plan.folder, plan.points)
    settings = yaml.safe_dump(_settings(plan), sort_keys=False)
    if not plan.folder.study.exists() or plan.folder.study.read_text(encoding="utf-8") != settings:
        write_atomic(plan.folder.study, settings)


def _settings(plan: Plan) -> dict[str, Any]:
    config = plan.config
    plain = {f.name: _plain(asdict(getattr(config, f.name))) for f in fields(StudyConfig) if _is_setting(f.name)}
    plain["tracking"]["uri"] = _absolute_uri(config.tracking.uri)
    run = {name: _plain(value) for name, value in asdict(absolute(config.run())).items()}
    return {**plain, "run_defaults": run}


def _is_setting(name: str) -> bool:
    return name in ("study", "cluster", "tracking", "search", "paths")


def _absolute_uri(uri: str) -> str:
    """Return the tracking URI with an absolute path where it is a SQLite file of this folder."""
    prefix, path = "sqlite:///", uri.removeprefix("sqlite:///")
    if not uri.startswith(prefix) or path.startswith("/") or path in ("", ":memory:"):
        return uri
    return f"{prefix}{Path(path).absolute()}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _execute(plan: Plan, console: Console) -> int:
    from study import execute

    batches = plan.batches()
    for cluster, keys in batches.items():
        execute.start(plan.folder, keys, cluster)
    stays = [c for c in batches if plan.config.wait or c.executor == "local"]
    code = max([execute.follow(plan.folder, cluster) for cluster in stays], default=0)
    if not stays:
        _next_commands(plan, console)
    return code


def _next_commands(plan: Plan, console: Console) -> None:
    study = reference(plan.folder)
    console.print("Submitted; the jobs need this process no more. Next:")
    for command, what in (("status", "what each point is doing"), ("watch", "the same, live"), ("logs", "the output")):
        key = f" {plan.points[0].key}" if command == "logs" else ""
        name, _, rest = study.partition(" ")
        console.print(f"  python -m study {command} {name}{key}{' ' + rest if rest else ''}  [dim]# {what}[/dim]")
