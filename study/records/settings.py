"""The settings of a study's latest submission, and finding a study's folder by its name."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from study.config.schema import ClusterConfig, RetryConfig, StudyConfig, TrackingConfig, plain
from study.config.tracking_uri import moved, resolve
from study.records.points import absolute
from study.storage.layout import StudyFolder
from train.spec.from_mapping import read


@dataclass(frozen=True)
class Submission:
    """What study.yaml says of where runs are executed, what follows from bad ends, and where runs are shown."""

    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    retry: RetryConfig = field(default_factory=RetryConfig)


def load_submission(folder: StudyFolder) -> Submission:
    """Return the settings in study.yaml; the defaults where there is none. Raises ValueError where it is damaged."""
    return Submission(
        cluster=read(ClusterConfig, load_section(folder, "cluster"), "cluster"),
        tracking=read(TrackingConfig, load_section(folder, "tracking"), "tracking"),
        retry=read(RetryConfig, load_section(folder, "retry"), "retry"),
    )


def load_section(folder: StudyFolder, name: str) -> dict[str, Any]:
    """Return a section of study.yaml as it was written, empty where it is absent. ValueError for a damaged file."""
    import yaml

    try:
        loaded = yaml.safe_load(folder.study.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        return {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        from train.spec.yamlfile import why_unreadable

        said = why_unreadable(error)
        raise ValueError(f"{folder.study} is not YAML ({said}): run the study's command again") from None
    section = loaded.get(name) or {} if isinstance(loaded, dict) else loaded
    if not isinstance(section, dict):
        raise ValueError(
            f"{folder.study}: {name} is {str(section)[:60]!r}, not a section of keys and values: "
            "run the study's command again"
        )
    then = (loaded.get("paths") or {}).get("runs") if isinstance(loaded, dict) and name == "tracking" else None
    if then and section.get("uri"):
        return section | {"uri": moved(str(section["uri"]), Path(str(then)), folder.path.absolute().parent)}
    return section


def find_study(name: str, runs: Path) -> StudyFolder:
    """Return the folder of a study, given by its name or by its path.

    Raises ValueError that lists the studies there are, the nearest first, or says that only its results were pulled.
    """
    for path in (runs / name, Path(name)):
        if (path / "points.jsonl").is_file():
            return StudyFolder(path.absolute())
        if StudyFolder(path).outcomes.is_file():
            raise ValueError(
                f"{path} has a study's results but not its runs, as dvc pull leaves it: read "
                f"reports/{path.name}/report.html, or refit with python -m analysis.fit "
                f"runs=reports/{path.name}/runs.csv out=reports/refit"
            )
    there = sorted(path.parent.name for path in runs.glob("*/points.jsonl"))
    if not there:
        raise ValueError(f"no study {name!r}: there are no studies in {runs} (--runs DIR names another folder)")
    near = difflib.get_close_matches(name, there, n=len(there), cutoff=0.0)
    listed = ", ".join(near + [other for other in there if other not in near])
    raise ValueError(f"no study {name!r} in {runs}: there are {listed}")


def reference(folder: StudyFolder) -> str:
    """Return what names the study in a command: its name, and --runs where it does not lie in ./runs; shell-quoted."""
    runs = folder.path.absolute().parent
    words = [folder.name] if runs == Path("runs").absolute() else [folder.name, "--runs", str(runs)]
    return shlex.join(words)


def settings(config: StudyConfig, folder: StudyFolder) -> dict[str, Any]:
    """Return what study.yaml says of a submission."""
    said = {f.name: plain(asdict(getattr(config, f.name))) for f in fields(StudyConfig) if _is_setting(f.name)}
    said["tracking"]["uri"] = resolve(config.tracking.uri, Path.cwd())
    said["paths"]["runs"] = str(folder.path.parent)
    return {**said, "run_defaults": plain(asdict(absolute(config.run())))}


def _is_setting(name: str) -> bool:
    return name in ("study", "cluster", "retry", "tracking", "search", "paths")
