"""Composing, validating and freezing 1,000 points, beside Hydra's own compose of the same override lists."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from study.config.compose import Composer, HydraSource, conf_folder
from study.records.points import append_points, resolve_run, to_point
from study.storage.layout import StudyFolder

POINTS = 1000
HYDRA_POINTS = 20
TARGET_SECONDS = 5.0


def overrides() -> list[list[str]]:
    """Return 1,000 override lists: two groups, two values."""
    seeds = range(POINTS // 20)
    return [
        [f"model={model}", f"schedule={schedule}", f"model.width={width}", f"seed={seed}"]
        for model in ("tiny", "small")
        for schedule in ("cosine", "wsd")
        for width in (64, 128, 192, 256, 320)
        for seed in seeds
    ]


def measure() -> dict[str, float]:
    """Return seconds of each step for 1,000 points, and of Hydra's compose for one point."""
    jobs = overrides()
    with initialize_config_dir(str(conf_folder()), version_base="1.3"), tempfile.TemporaryDirectory() as folder:
        master = compose("config", return_hydra_config=True)
        loader = GlobalHydra.instance().config_loader()
        times = [time.perf_counter()]
        composer = Composer(HydraSource(loader, master))
        composed = [composer.compose(job) for job in jobs]
        times.append(time.perf_counter())
        points = [to_point(resolve_run(one.config, one.overrides), {}, one.overrides) for one in composed]
        times.append(time.perf_counter())
        new = append_points(StudyFolder(Path(folder) / "study"), points)
        times.append(time.perf_counter())
        assert len(new) == POINTS
        size = (Path(folder) / "study" / "points.jsonl").stat().st_size
        sample = jobs[:: POINTS // HYDRA_POINTS]
        begun = time.perf_counter()
        theirs = [OmegaConf.to_container(compose("config", overrides=job), resolve=True) for job in sample]
        hydra = (time.perf_counter() - begun) / len(sample)
        ours = [composer.plain(job) for job in sample]
        assert json.dumps(ours) == json.dumps(theirs), "ours must be what Hydra composes"
    steps = [b - a for a, b in pairwise(times)]
    return {
        "compose": steps[0],
        "freeze": steps[1],
        "write": steps[2],
        "total": sum(steps),
        "hydra": hydra,
        "bytes": float(size),
    }


def main() -> int:
    result = measure()
    print(f"{POINTS} points of 4 group choices{'seconds':>20}")
    for name, text in (
        ("compose", "compose and validate"),
        ("freeze", "resolve and freeze"),
        ("write", "append to points.jsonl"),
        ("total", "total"),
    ):
        print(f"{text:<28}{result[name]:>19.2f}")
    print(f"{'Hydra compose alone':<28}{result['hydra'] * POINTS:>19.2f}  ({result['hydra'] * 1e3:.1f} ms a point)")
    print(f"target at most {TARGET_SECONDS:g} s; {result['bytes'] / 1e6:.2f} MB on disk")
    return 0 if result["total"] <= TARGET_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
