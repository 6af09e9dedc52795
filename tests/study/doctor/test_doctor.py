from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from study.__main__ import main
from study.commands.doctor import closing, lines
from study.config import compose
from study.config.compose import conf_folder, own_conf_folder
from study.config.schema import ClusterConfig
from study.doctor.checks import Check, CheckState, Slurm, ask, file_system, gpu_types, tracking
from study.doctor.site import document, name_of, settings
from study.doctor.trial import Trial, checks_of
from study.executors.base import Answer
from study.executors.slurm.nodes import Nodes, Site
from train.spec.from_mapping import read

FAT = Nodes("gpu", True, 8, 64, 512.0, 4, frozenset({"a100"}), 720, None)
THIN = Nodes("cpu", False, 100, 128, 256.0, 0, frozenset(), None, None)
SITE = Site((FAT, THIN), True)
RANK = {
    "host": "n1", "node": "n1", "type": "lustre", "sees_letter": True, "lock_held": True, "scontrol": True,
    "py_spy": True, "tracking": None, "torch_code": 0, "torch_error": "",
    "torch": {"torch": "2.13.0", "device": "H200", "ranks": 2, "backend": "nccl", "gb_per_s": 90.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("4|gpu:a100:4(S:0-1)\n2|gpu:h100:8\n", {"a100": 16, "h100": 16}),
        ("1|gpu:2\n", {"gpu": 2}),
        ("3|gpu\n", {"gpu": 3}),
        ("3|gpu:v100\n", {"v100": 3}),
        ("2|gpu:a100:2,shard:8\n", {"a100": 4}),
        ("9|(null)\n", {}),
        ("nonsense", {}),
    ],
)
def test_gpu_types(text: str, types: dict[str, int]) -> None:
    assert gpu_types(text) == types


@pytest.mark.parametrize(
    ("slurm", "partition", "said"),
    [
        (
            Slurm(site=SITE, account="lab", requeue=False),
            None,
            {"partition": "gpu", "gpus_per_node": 1, "cpus_per_task": 16, "mem_gb": 121, "time_minutes": 60,
             "account": "lab", "requeue": False},
        ),
        (Slurm(site=SITE), "cpu", {"partition": "cpu", "gpus_per_node": 0, "cpus_per_task": 1, "time_minutes": 60}),
        (Slurm(), None, {"gpus_per_node": 0, "cpus_per_task": 1, "time_minutes": 60}),
    ],
)  # fmt: skip
def test_what_one_run_gets(slurm: Slurm, partition: str | None, said: dict[str, object]) -> None:
    found = settings(slurm, {}, partition)
    assert found == {"executor": "slurm", "nodes": 1, "tasks_per_node": 1, **said}
    text = document("here", found, [Check("gpus", CheckState.OK, "32 x a100")])
    assert read(ClusterConfig, yaml.safe_load(text), "cluster").time_minutes == said["time_minutes"]
    assert "#   gpus: 32 x a100" in text.splitlines()


def test_a_site_without_slurm() -> None:
    assert settings(None, {"cores": 16, "gpus": ["H200"] * 4}) == {"executor": "local", "slots": 4}
    assert name_of(None, "My Host_1!") == "my-host_1"
    assert name_of(Slurm(name="Big Red"), "x") == "big-red"


def test_no_slurm_and_a_broken_one(tmp_path: Path) -> None:
    found, (check,) = ask(lambda command: Answer(None, error="sbatch: command not found"), tmp_path / "memory")
    assert (found, check.state, "no sbatch on PATH" in check.said) == (None, "skipped", True)
    broken, checks = ask(
        lambda command: Answer(0, "slurm-wlm 24.11\n") if "--version" in command else Answer(1, error="timed out"),
        tmp_path / "memory",
    )
    assert broken is not None
    states = {check.name: check.state for check in checks}
    assert (states["slurm"], states["partitions"], states["sacct"]) == ("failed", "failed", "warning")


def test_the_runs_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    check = file_system(tmp_path)
    assert check.found["locks"] is True
    assert list(tmp_path.iterdir()) == []


def test_its_config_is_the_checkouts_or_the_working_directorys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_conf_folder() == conf_folder()
    installed = tmp_path / "site-packages" / "conf"
    monkeypatch.setattr(compose, "conf_folder", lambda: installed)
    monkeypatch.chdir(tmp_path)
    assert own_conf_folder() == tmp_path / "conf", "what an installed wheel holds is not the user's to edit"
    (installed.parent / "pyproject.toml").parent.mkdir()
    (installed.parent / "pyproject.toml").touch()
    assert own_conf_folder() == installed


def test_tracking_that_is_away_or_no_address(tmp_path: Path) -> None:
    assert tracking("http://127.0.0.1:9").state == "failed"
    assert tracking("ftp://x").state == "failed"
    assert tracking(f"sqlite:///{tmp_path}/none/mlflow.db").state == "failed"
    assert tracking(f"sqlite:///{tmp_path}/mlflow.db").state == "ok"


@pytest.mark.parametrize(
    ("change", "failed", "said"),
    [
        ({}, set(), "2 ranks over nccl, all-reduce 90 GB/s"),
        ({"sees_letter": False}, {"shared files"}, "does not see what the login node wrote"),
        ({"lock_held": False}, {"shared files"}, "locks do not hold between nodes (lustre)"),
        ({"torch_code": 1, "torch_error": "NCCL error"}, {"torch"}, "NCCL error"),
        ({"tracking": "http://mlflow:5000 does not answer"}, set(), "the login node sends"),
        ({"py_spy": False}, set(), "no py-spy there"),
    ],
)
def test_what_a_test_job_found(change: dict[str, object], failed: set[str], said: str) -> None:
    checks = checks_of(Trial([RANK, RANK | change], "12", 3.0, 4.0), "login")
    assert {check.name for check in checks if check.state == "failed"} == failed
    assert any(said in check.said for check in checks)
    assert max(len(line) for check in checks for line in lines(check)) <= 80


def test_a_test_job_that_gave_nothing() -> None:
    (check,) = checks_of(Trial(job_id="12", problem="test job 12: queued (Resources) after 10 s: cancelled"), "login")
    assert (check.state, "queued (Resources)" in check.said) == ("failed", True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "/proc/x/here.yaml"], "--out /proc/x/here.yaml: /proc is no folder that can be written to"),
        (["--out", "here.csv"], "--out here.csv: the file ends in .yaml: name it here.yaml"),
        (["--runs", "/proc/x"], "--runs /proc/x: /proc is no folder that can be written to"),
    ],
)
def test_where_nothing_can_be_written_is_said_before_the_test_job(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 2
    answer = capsys.readouterr()
    assert said in answer.err and not answer.out


@pytest.mark.parametrize(("place", "moves"), [("site.yaml", True), ("cluster/site.yaml", False)])
def test_the_command_that_tries_a_written_file_finds_it(tmp_path: Path, place: str, moves: bool) -> None:
    file = tmp_path / "my conf" / place
    file.parent.mkdir(parents=True)
    file.write_text("executor: slurm\n")
    said = closing(file, written=True, code=0)
    moving, (trying,) = [line for line in said if line.startswith("mkdir")], [line for line in said if "smoke" in line]
    assert bool(moving) == moves
    for line in moving:
        subprocess.run(line, shell=True, check=True)
    words = shlex.split(trying, comments=True)
    folder = Path(words[words.index("--config-dir") + 1])
    assert (folder / "cluster" / "site.yaml").read_text() == "executor: slurm\n" and "cluster=site" in words
