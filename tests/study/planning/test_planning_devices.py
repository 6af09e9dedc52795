"""A run that wants a GPU where there is none is refused before anything is prepared or started."""

from dataclasses import replace
from pathlib import Path

import pytest

from study.config.schema import ClusterConfig
from study.planning.devices import check, has_gpu, slow
from study.sweep.__main__ import main as sweep
from train.spec.config import BudgetConfig, PrecisionConfig, RunConfig, RuntimeConfig
from train.spec.resolve import resolve

CUDA = RunConfig(runtime=RuntimeConfig(device="cuda"))


@pytest.mark.parametrize(
    ("cluster", "here", "refused"),
    [
        (ClusterConfig(), False, "this machine shows no GPU"),
        (ClusterConfig(), True, ""),
        (ClusterConfig(executor="slurm"), True, "asks SLURM for no GPU"),
        (ClusterConfig(executor="slurm", gpus_per_node=1), False, ""),
        (ClusterConfig(executor="slurm", sbatch={"gres": "gpu:1"}), False, ""),
        (ClusterConfig(executor="slurm", sbatch={"gpus_per_task": 1}), False, ""),
    ],
)
def test_who_gets_a_gpu(cluster: ClusterConfig, here: bool, refused: str) -> None:
    check([(cluster, replace(CUDA, runtime=RuntimeConfig(device=name))) for name in ("auto", "cpu")], here)
    if not refused:
        check([(cluster, CUDA)], here)
        return
    with pytest.raises(ValueError, match=f"runtime.device=cuda, .*{refused}"):
        check([(cluster, CUDA)], here)


def test_a_gpu_is_a_device_that_is_not_hidden(tmp_path: Path) -> None:
    assert not has_gpu({}, tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert not has_gpu({}, tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_gpu({}, tmp_path) and has_gpu({"CUDA_VISIBLE_DEVICES": "1,2"}, tmp_path)
    assert not has_gpu({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)


@pytest.mark.parametrize("search", [["search=grid"], ["search=asha", "optim.lr=interval(1e-4,1e-2)"]])
def test_the_command_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], search: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("study.planning.devices.has_gpu", lambda environment: False)
    assert sweep(["-m", *search, "runtime.device=cuda", "budget.tokens=8192"]) == 2
    assert "this machine shows no GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_units_of_a_search_that_are_sized_get_what_they_are_sized_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["runtime.device=cuda", "cluster=slurm", "cluster.auto=[gpus]", "search=random", "dry_run=true"]
    words += ["budget.tokens=65536", "-m", "optim.lr=interval(1e-4,1e-2)"]
    assert sweep(["search.shape=jobs", *words]) == 0, capsys.readouterr().err
    assert sweep(words) == 2
    assert "cluster.auto=[gpus] (in a search with search.shape=jobs)" in capsys.readouterr().err


def test_who_trains_slowly_on_gpus_is_told_before_submitting() -> None:
    gpus, cores = ClusterConfig(executor="slurm", gpus_per_node=1), ClusterConfig(executor="slurm")
    long, short = (resolve(RunConfig(budget=BudgetConfig(flops=flops))) for flops in (1e16, 1e13))
    bf16 = replace(long, precision=PrecisionConfig(name="bf16"))
    said = "would train in fp32 on GPUs; precision=bf16 is faster (it is part of a point: these are others)."
    assert slow([(gpus, long), (gpus, short)]) == [f"All points {said}"]
    assert slow([(gpus, bf16), (gpus, long)]) == [f"1 point {said}"]
    assert slow([(gpus, bf16), (cores, long), (gpus, short)]) == []
