"""Local runs of several ranks: one process each, started, signalled and judged together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from study.config.schema import ClusterConfig
from study.failures.kinds import INTERRUPTED
from study.planning.ranks import local_world, slot_count
from study.process.children import wait_together
from study.records.point import point
from study.records.points import append_points
from study.storage.layout import StudyFolder
from tests.environment import python_path
from tests.slurm.lab import IMPORTED as SWEEP
from tests.slurm.lab import write_text
from tests.study.support.studies import FAILS, LIMIT_SECONDS, run_to_end, seeded, states
from tests.warm import warm
from tests.warm_trainer import trainer
from train.spec.config import ParallelConfig, RunConfig, RuntimeConfig


@pytest.mark.parametrize(
    ("parallel", "tasks", "ranks"),
    [({}, 1, 1), ({"dp_replicate": None}, 3, 3), ({"tp": 2, "pp": 2, "dp_shard": None}, 1, 4), ({"tp": 2}, 8, 8)],
)
def test_a_run_gets_the_ranks_that_were_asked_for_or_that_its_mesh_needs(
    parallel: dict[str, int | None], tasks: int, ranks: int
) -> None:
    assert local_world(parallel, tasks) == ranks


def test_every_rank_takes_its_cores_of_the_slots() -> None:
    cores = len(os.sched_getaffinity(0))
    one = RunConfig(runtime=RuntimeConfig(threads=1), parallel=ParallelConfig(tp=2))
    assert slot_count(ClusterConfig(), [one]) == max(1, cores // 2)
    assert slot_count(ClusterConfig(tasks_per_node=4), [one]) == max(1, cores // 4)


def of_three_ranks(folder: Path, seed: int) -> tuple[StudyFolder, str]:
    study = StudyFolder(folder)
    base = seeded(seed)
    made = point(replace(base.config, parallel=ParallelConfig(dp_replicate=3)), base.overrides)
    append_points(study, [made])
    study.study.write_text("cluster: {executor: local, slots: 1, poll_seconds: 0.5}\ntracking: {enabled: false}\n")
    return study, made.key


def test_ranks_of_a_run_know_each_other(tmp_path: Path) -> None:
    study, key = of_three_ranks(tmp_path / "ranks", seed=1)
    code, said = run_to_end(study)
    assert code == 0, said
    attempt = study.run(key).attempt(1)
    found = [json.loads(attempt.stdout(rank).read_text().splitlines()[0]) for rank in (1, 2)]
    assert [(env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) for env in found] == [("1", "1", "3"), ("2", "2", "3")]
    assert {env["MASTER_ADDR"] for env in found} == {"127.0.0.1"}
    assert len({env["MASTER_PORT"] for env in found}) == 1
    assert json.loads(attempt.job.read_text())["world"] == 3


def test_the_rank_that_failed_is_named(tmp_path: Path) -> None:
    study, key = of_three_ranks(tmp_path / "ranks", seed=FAILS)
    run_to_end(study)
    assert states(study)[key] == "failed"
    outcome = json.loads(study.run(key).attempt(1).outcome.read_text())
    assert "in my eyes" in outcome["error"] or "rank trouble" in outcome["error"], "an error that a rank wrote"


def processes(*programs: str) -> dict[int, subprocess.Popen[bytes]]:
    """Start a process for each program, and wait until it says that it is ready or ends."""
    found = {
        rank: subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        for rank, program in enumerate(programs)
    }
    for process in found.values():
        assert process.stdout is not None
        process.stdout.readline()
    return found


SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"


def test_a_failed_rank_ends_the_others_even_deaf_ones() -> None:
    ranks = processes(SLEEPS, "import os; os.kill(os.getpid(), 9)", DEAF)
    assert wait_together(ranks, grace=0.5) == 1
    assert [p.returncode for p in ranks.values()] == [-15, -9, -9]


def test_ranks_that_end_well_are_not_hurried() -> None:
    ranks = processes(
        f"raise SystemExit({INTERRUPTED})", f"import time; time.sleep(1); raise SystemExit({INTERRUPTED})"
    )
    assert wait_together(ranks, grace=0.1) is None
    assert [p.returncode for p in ranks.values()] == [INTERRUPTED, INTERRUPTED]


def test_a_rank_lost_elsewhere_ends_those_that_run_here() -> None:
    ranks = processes(SLEEPS, DEAF)
    assert wait_together(ranks, lost=lambda: True, grace=0.5) is not None
    assert [p.returncode for p in ranks.values()] == [-15, -9]


@pytest.mark.slow
def test_every_preset_trains_the_same_run(tmp_path: Path) -> None:
    """`parallel=single|ddp|fsdp|fsdp_tp|fsdp_tp_pp` from the command line, on processes of this machine."""
    write_text(tmp_path / "text")
    settings = [
        *("model.width=32", "model.layers=4", "model.head_dim=8", "model.kv_heads=4"),
        *("data=text", f"data.source={tmp_path / 'text'}", "data.tokenizer=bpe", "data.vocab_size=290"),
        *("data.sequence_length=16", "data.validation_fraction=0.2"),
        *("batch.tokens=128", "budget.tokens=640", "eval.count=1"),
        *("eval.sequences=8", "optim=sgd", "optim.lr=0.1", "optim.grad_clip=0"),
        *("runtime.device=cpu", f"runtime.data_root={tmp_path / 'data'}"),
        *("tracking=none", f"paths.runs={tmp_path / 'runs'}"),
    ]
    losses = {}
    for preset, ranks in (("single", 1), ("ddp", 2), ("fsdp", 2), ("fsdp_tp", 2), ("fsdp_tp_pp", 4)):
        cluster = [f"cluster.tasks_per_node={ranks}"] if preset in ("ddp", "fsdp") else []
        words = [f"parallel={preset}", f"study.name={preset}", *cluster, *settings]
        environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "STUDY_TRAINER": trainer()}
        sweep = warm(*SWEEP).start("study.sweep", *words, cwd=tmp_path, env=environment)
        said, trouble = sweep.communicate(timeout=LIMIT_SECONDS)
        assert sweep.returncode == 0, said + trouble
        (outcome,) = (tmp_path / "runs" / preset).glob("*/outcome.json")
        told = json.loads(outcome.read_text())
        assert told["world_size"] == ranks
        losses[preset] = told["loss"]["validation_nats_per_token"]
    # SGD is linear in the gradient, so sums in another order stay in the last bits of fp32 (3e-8 of the loss seen);
    # a gradient that is halved somewhere moves the loss by 15 %.
    assert losses == pytest.approx(dict.fromkeys(losses, losses["single"]), rel=1e-6)
