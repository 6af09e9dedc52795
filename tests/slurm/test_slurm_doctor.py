"""`python -m study doctor` on a real SLURM, and the cluster config that it writes for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from tests.slurm.lab import COMMAND_SECONDS, TINY, Lab

pytestmark = pytest.mark.slurm


def test_what_the_doctor_writes_runs_a_study(lab: Lab) -> None:
    file = lab.folder / "mine" / "cluster" / "here.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "study", "doctor", "--json", "--out", str(file), "--seconds", "120"],
        check=False,
        cwd=lab.folder,
        env=lab.environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    checks = {check["name"]: check for check in found["checks"]}
    assert {name: check["state"] for name, check in checks.items() if check["state"] == "failed"} == {}
    assert checks["limits"]["found"]["max_array"] == 1001
    assert checks["sacct"]["state"] == checks["requeue"]["state"] == "ok"
    partitions = {p["partition"]: p for p in checks["partitions"]["found"]["partitions"]}
    assert (partitions["main"]["count"], partitions["main"]["cores"], partitions["short"]["minutes"]) == (4, 2, 1)
    assert checks["shared files"]["found"]["lock"] == [True, True]
    assert (checks["torch"]["found"]["ranks"], checks["torch"]["found"]["backend"]) == (2, "gloo")
    assert "test job " in done.stderr, "it says how the job stands while it waits"
    assert not list((lab.folder / "runs").iterdir()), "what it tried out is removed"
    said = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert (said["executor"], said["partition"], said["time_minutes"]) == ("slurm", "main", 60)
    again = lab.study("doctor", "--no-job", "--out", str(file))
    assert "--force replaces it" in again
    quick = lab.with_trainer("quick")
    quick.sweep("study.name=d", *TINY, "wait=true", f"--config-dir={file.parents[1]}", cluster="here")
    assert {point["state"] for point in quick.points("d")} == {"completed"}
