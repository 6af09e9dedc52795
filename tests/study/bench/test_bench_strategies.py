"""`python -m study bench strategies`: what it is asked for, tables, failures as they are seen, and one real run."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from study.__main__ import main
from study.bench import strategies, trainer_ranks
from study.bench.strategies_failures import DAMAGED, KILLED, MEMORY, Failure, Patient, damaged, failures, killed
from study.bench.strategies_report import (
    Found,
    as_csv,
    as_markdown,
    as_text,
    draw,
    most_apart,
    parity,
    problems,
)
from study.bench.strategies_runs import Records, Row, last_words
from study.bench.strategies_settings import FEWEST_STEPS, STRATEGIES, TRACED, WARM, Asked, asked_of, check_host
from study.bench.traced_messages import communication
from study.bench.trainer_ranks import Launch, run_ranks
from study.config.single import composed
from study.diagnosis.of_traces import read_traces
from study.diagnosis.windows import window_of
from study.process.children import job_environment
from tests.processes import has_ended
from tests.study.commands.test_commands_shown import documented
from tests.study.support import warm_ranks
from tests.study.support.studies import LIMIT_SECONDS, wait_until
from train.spec.accounting.step import sheet
from train.spec.communication.step import step_messages
from train.spec.counts import params
from train.spec.mesh import Axes
from train.spec.schedule import learning_rate

TINY = ("steps=8", "model.width=64", "model.layers=2", "data.sequence_length=32", "data.vocab_size=128")
ROW = Row(
    strategy="ddp",
    seconds_step=0.25,
    spread=0.1,
    tokens_per_second=4096.0,
    memory_predicted=100 << 20,
    resident=600 << 20,
    resident_before=400 << 20,
    traced_step=0.3,
    exposed=0.1,
    overlap=0.25,
    messages=6,
    sent=20e6,
    counted=7.0,
    losses=(6.0, 5.0),
)


@pytest.fixture(scope="session")
def asked() -> Asked:
    return asked_of([*TINY, f"limit={LIMIT_SECONDS}", f"hang={LIMIT_SECONDS}"], 0, composed)


def test_all_strategies_train_the_same_run_on_as_many_ranks(asked: Asked) -> None:
    runs = {name: asked.config(one) for name, one in STRATEGIES.items()}
    first = runs["ddp"]
    assert all(replace(run, parallel=first.parallel) == first for run in runs.values())
    assert asked.axes(STRATEGIES["ddp"]) == Axes(2, 1, 1, 1, 1)
    assert asked.axes(STRATEGIES["fsdp1"]) == asked.axes(STRATEGIES["zero1"]) == Axes(1, 2, 1, 1, 1)
    assert first.budget.tokens == asked.all_steps * asked.batch == (WARM + 8 + 1 + TRACED) * 2 * 4 * 32
    assert (first.profile.start, first.profile.steps) == (WARM + 8 + 2, TRACED)
    assert asked.all_steps == WARM + 8 + 2 + TRACED - 1


def test_bucket_sizes_and_depths_are_compared_as_strategies_of_their_own() -> None:
    asked = asked_of([*TINY, "strategies=ddp,fsdp1,zero2", "buckets=0.05,25", "prefetch=1,2"], 0, composed)
    runs = {one.name: asked.config(one).parallel for one in asked.strategies}
    assert list(runs) == ["ddp_0.05mib", "ddp_25mib", "fsdp1", "zero2", "zero2_ahead2"]
    assert [run.ddp_bucket_mib for run in runs.values()] == [0.05, 25.0, None, None, None]
    assert [run.fsdp_prefetch for run in runs.values()] == [1, 1, 1, 1, 2]
    sent = {one.name: step_messages(asked.config(one), asked.axes(one), 0, "cpu") for one in asked.strategies}
    counts = {name: sum(message.count for message in of) for name, of in sent.items()}
    assert counts["ddp_0.05mib"] > counts["ddp_25mib"] and counts["zero2"] == counts["zero2_ahead2"]


def test_messages_are_as_many_as_recorded_traces_have() -> None:
    """benchmarks/results/strategies_gloo.txt: 7, 15, 9, 6, 18 and 23 in the traces, one of each between steps."""
    counts = {}
    for words in (["strategies=ddp,fsdp1,fsdp2"], ["strategies=ddp", "buckets=1,5,25"]):
        asked = asked_of(words, 0, composed)
        for one in asked.strategies:
            counts[one.name] = sum(m.count for m in step_messages(asked.config(one), asked.axes(one), 0, "cpu"))
    assert counts == {"ddp": 6, "fsdp1": 17, "fsdp2": 22, "ddp_1mib": 14, "ddp_5mib": 8, "ddp_25mib": 5}


def test_gpus_are_taken_where_there_are_two() -> None:
    found = asked_of(["model=1b", "precision=bf16"], 4, composed)
    assert (found.backend, found.ranks, found.device, found.base.runtime.device) == ("nccl", 4, "cuda", "cuda")
    assert (found.base.model.width, found.base.precision.name) == (2048, "bf16")
    assert asked_of([], 1, composed).backend == "gloo"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ranks=1"], "ranks=1 is not allowed: 2 to 64"),
        (["ranks=two"], "ranks=two: a whole number, 1 or more is needed"),
        (["steps=3"], f"steps=3 is not allowed: at least {FEWEST_STEPS}"),
        (["strategies=ddp,fsdp3"], "strategies=fsdp3 is not allowed: one of ddp, fsdp1, fsdp1_zero2, fsdp2"),
        (
            ["buckets=1", "strategies=fsdp1,fsdp2"],
            "buckets=1 changes nothing of strategies=fsdp1,fsdp2: add one of ddp",
        ),
        (
            ["prefetch=2", "strategies=ddp"],
            "prefetch=2 changes nothing of strategies=ddp: add one of fsdp2, zero2, zer",
        ),
        (["buckets=0"], "buckets=0: a positive number is needed"),
        (["prefetch=0"], "prefetch=0: a whole number, 1 or more is needed"),
        (["strategy=ddp"], "unknown key 'strategy' in strategy=ddp: did you mean strategies=ddp?"),
        (["backend=nccl"], "backend=nccl is not allowed here: this machine shows no GPU; use backend=gloo"),
        (["failures=perhaps"], "failures=perhaps: yes or no is needed"),
        (["parallel.zero=2"], "parallel.zero=2 is not allowed: layouts are what is compared, choose them with strat"),
        (["budget.tokens=1"], "budget.tokens=1 is not allowed: the run is of steps=N steps"),
        (["data.source=/text"], "data.source=/text is not allowed: the run is of steps=N steps of made-up tokens"),
        (["batch.tokens=200"], "batch.tokens=200 is not allowed: a multiple of data.sequence_length=128"),
        (["batch.tokens=128"], "batch.tokens=128 is not allowed: .* and at least a sequence for each of ranks=2: 256"),
        (["model.widht=64"], ".*widht"),
    ],
)
def test_what_cannot_be_compared_is_told_by_key_and_value(words: Sequence[str], said: str) -> None:
    with pytest.raises(ValueError, match=f"^({said})"):
        asked_of(words, 0, composed)


def test_what_a_host_cannot_hold_is_refused_before_it_is_begun() -> None:
    large = asked_of(["model=7b", "backend=gloo", "strategies=fsdp2"], 0, composed)
    with pytest.raises(
        ValueError, match=r"^strategies=fsdp2 needs 1\d\d\.\d GB on ranks=2, and this machine has 24.0: take"
    ):
        check_host(large, 24 * 10**9)
    check_host(large, 10**12)
    with pytest.raises(ValueError, match=r"^strategies=ddp needs .* GB on ranks=2, and this machine has "):
        strategies.run(["model=1t", "backend=gloo", "strategies=ddp"])


def test_losses_that_differ_and_strategies_that_fail_need_attention(asked: Asked) -> None:
    near, far = replace(ROW, strategy="fsdp2", losses=(6.0, 5.00001)), replace(ROW, strategy="zero1", losses=(6.0, 5.5))
    found = Found("m", "v", "0", "d", (ROW, near, far, Row("fsdp1", error="rank 1: exit code 1: no")), ())
    assert parity(found.rows) == pytest.approx({"ddp": 0, "fsdp2": 2e-6, "zero1": 0.1})
    assert problems(asked, found) == [
        "fsdp1 failed: rank 1: exit code 1: no",
        "the last losses of zero1 differ by 0.10 from those of ddp, more than 0.00010",
    ]
    lost = replace(ROW, strategy="fsdp2", losses=(6.0, float("nan")))
    assert "differ by inf" in problems(asked, replace(found, rows=(ROW, lost)))[0]


def test_the_recorded_losses_in_bf16_are_told_to_be_of_unsteady_runs(asked: Asked) -> None:
    """Two of the 17 recorded steps of 1B without warm-up on two H200s rise and fall by 2 nats."""
    ddp = (10.901, 7.980, 9.094, 8.714, 10.217, 8.042, 10.213, 9.142, 9.210, 7.723, 8.922, 7.950, 7.601, 7.694, 7.342)
    fsdp = (10.901, 7.982, 9.120, 8.700, 10.220, 8.040, 10.207, 9.270, 9.241, 7.621, 9.412, 7.735, 7.627, 7.531, 7.636)
    rows = [replace(ROW, losses=ddp), replace(ROW, strategy="fsdp2", losses=fsdp)]
    bf16 = replace(asked, base=replace(asked.base, precision=replace(asked.base.precision, name="bf16")))
    said = problems(bf16, Found("m", "v", "0", "d", rows, ()))
    assert [line.partition(":")[0] for line in said] == [
        "the last losses of fsdp2 differ by 0.0069 from those of ddp, more than 0.0039",
        "the loss of ddp rises by 27 % at step 7",
        "the loss of fsdp2 rises by 27 % at step 7",
    ]
    assert parity(rows)["fsdp2"] == pytest.approx(0.0069, abs=1e-4)
    assert most_apart(rows)["fsdp2"] == pytest.approx(0.055, abs=1e-3)


def test_the_learning_rate_is_the_rules_and_warmed_up_unless_words_say_otherwise() -> None:
    model = ("model=1b", "precision=bf16", "data.vocab_size=32768", "batch.tokens=131072", "steps=10")
    usual, given = (asked_of([*model, *more], 2, composed).base for more in ((), ("schedule=constant", "optim.lr=0.1")))
    assert usual.optim.lr == pytest.approx(7e-5, rel=0.01) and usual.schedule.warmup_fraction == 0.5
    assert given.optim.lr == 0.1 and given.schedule.warmup_fraction != 0.5
    tokens = [131072 * step for step in range(1, 18)]
    rates = [learning_rate(usual, one) for one in tokens]
    assert rates[:8] == sorted(rates[:8]) and rates[0] < max(rates) / 8


def test_text_page_rows_and_picture_have_the_same_figures(asked: Asked, tmp_path: Path) -> None:
    seen = Failure(
        "ddp", "a rank is killed", "SIGKILL", "gone | away", 0.31, ("exit code 1", "killed"), "resumes", 2, 0.0
    )
    rows = (ROW, Row("fsdp1", error="rank 0: exit code 2: no"))
    found = Found(
        "a machine", "torch 0", "1.0", "2026-11-24", rows, (seen, Failure("fsdp1", "oom", None, "not planted"))
    )
    text = "\n".join(as_text(asked, found))
    assert re.search(r"^tokens/s +4,096$", text, re.MULTILINE) and re.search(r"^overlap +25 %$", text, re.MULTILINE)
    assert "fsdp1 failed: rank 0: exit code 2: no" in text and "the others ended: 0.3 s after it" in text
    page = as_markdown(asked, found, "strategies.png", "python -m study bench strategies")
    assert "| exposed communication [ms] | 100 |" in page and "gone / away" in page and "bit for bit" in page
    read = list(csv.DictReader(as_csv(rows).splitlines()))
    assert (read[0]["tokens_per_second"], read[1]["error"]) == ("4096.0", "rank 0: exit code 2: no")
    draw(asked, rows, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5_000


def test_records_are_read_as_they_come(tmp_path: Path) -> None:
    found, path = Records(tmp_path), tmp_path / "metrics.jsonl"
    found.look()
    assert (found.begun, found.step) == (False, 0)
    whole = json.dumps({"kind": "train", "step": 1, "metrics": {"loss": 2.0}}) + "\n"
    path.write_text(whole + '{"kind": "validation", "step": 1, "metrics": {}}\n' + whole.replace(": 1,", ": 2,")[:20])
    found.look()
    assert (found.begun, found.step, found.train) == (True, 1, {1: {"loss": 2.0}})
    path.write_text(path.read_text() + whole.replace(": 1,", ": 2,")[20:])
    found.look()
    assert found.step == 2


def test_the_last_line_that_tells_an_error_is_quoted() -> None:
    said = ["Traceback", "RuntimeError: [/a/b.cc:537] Read error: reset by peer", "nanobind: leaked 3 types"]
    assert last_words(said) == "RuntimeError: Read error: reset by peer"
    assert (last_words(["Killed"]), last_words([])) == ("Killed", "it said nothing")


def trace(path: Path, rank: int) -> Path:
    """A step of 1 ms: 400 us of a product, a message from 300 to 600 us in a thread of gloo's."""
    events = [
        ("user_annotation", "ProfilerStep#1", 0, 1000, 1),
        ("cpu_op", "aten::mm", 0, 400, 1),
        ("cpu_op", "c10d::allreduce_", 290, 5, 1),
        ("user_annotation", "gloo:all_reduce", 300, 300, 2),
    ]
    plain = [dict(zip(("cat", "name", "ts", "dur", "tid"), one, strict=True), ph="X", pid=1) for one in events]
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": plain}))
    return path


def test_messages_over_gloo_are_exposed_where_nothing_is_calculated(tmp_path: Path) -> None:
    found = communication(read_traces([trace(tmp_path / f"{rank}.json", rank) for rank in (0, 1)]))
    assert found.seconds_step == pytest.approx(1e-3)
    assert found.exposed == pytest.approx(2e-4) and found.messages == 1
    assert found.overlap == pytest.approx(1 / 3)


def ahead(path: Path) -> Path:
    """Three steps of four messages each: the host hands a step over in 100 us, the GPU works on it for 1 ms."""
    events: list[tuple[str, str, int, int, int, int | None]] = []
    for step in (0, 1, 2):
        began = 100 * step
        events.append(("user_annotation", f"ProfilerStep#{step}", began, 100, 1, None))
        events += [("cpu_op", "c10d::_allgather_base_", began + 20 * one, 5, 1, None) for one in range(1, 5)]
        events.append(("cuda_runtime", "cudaLaunchKernel", began + 10, 2, 1, step))
        events.append(("kernel", "gemm", 150 + 1000 * step, 1000, 7, step))
    keys = ("cat", "name", "ts", "dur", "tid")
    plain: list[dict[str, Any]] = [
        dict(zip(keys, one, strict=False), ph="X", pid=1, args={} if one[5] is None else {"correlation": one[5] + 1})
        for one in events
    ]
    said = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 0},
        "deviceProperties": [{"id": 0, "name": "a GPU"}],
        "traceEvents": plain,
    }
    path.write_text(json.dumps(said))
    return path


def test_messages_are_counted_by_the_host_which_is_ahead_of_its_gpu(tmp_path: Path) -> None:
    (read,) = read_traces([ahead(tmp_path / "0.json")])
    window = window_of(read)
    assert (window.start, window.steps) == (1150, 2), "after all messages were handed over"
    assert communication([read]).messages == 4


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDY_TRAINER", f"{sys.executable} -m tests.study.bench.stand_in_trainer")


@pytest.mark.usefixtures("stand_in")
def test_failures_are_told_as_they_were_seen(asked: Asked, tmp_path: Path) -> None:
    losses = [5.0 - step / 100 for step in range(1, asked.all_steps + 1)]
    patient = Patient(asked, STRATEGIES["fsdp2"], tmp_path, losses)
    one = killed(patient)
    assert one.planted is not None and (at := re.fullmatch(r"SIGKILL to rank 1 after step (\d+)", one.planted))
    assert 5 <= int(at[1]) < 8
    assert one.codes == ("exit code 1", "killed by SIGKILL")
    assert one.happened == "rank 0: RuntimeError: the peer has gone"
    assert one.seconds is not None and 0 <= one.seconds < LIMIT_SECONDS
    assert one.afterwards in ("resumes from step 4, trains to step 8", "resumes from step 6, trains to step 8")
    assert one.lost in (0, 1, 2) and one.change == 0
    two = damaged(patient)
    assert two.planted == "a byte of step-000000008/__1_0.distcp changed"
    assert two.afterwards.startswith("'step-000000008 is incomplete (__1_0.distcp is not what was written)")
    assert two.afterwards.endswith("resumes from step 6, trains to step 15")
    assert (two.lost, two.change) == (2, 0)


@pytest.mark.usefixtures("stand_in")
def test_what_saves_no_checkpoints_begins_anew(asked: Asked, tmp_path: Path) -> None:
    patient = Patient(asked, STRATEGIES["fsdp1"], tmp_path, [1.0] * asked.all_steps)
    one = killed(patient)
    assert one.afterwards == "begins anew: there is no checkpoint, trains to step 8"
    assert one.lost is not None and one.lost >= 5 and one.change is not None and one.change > 1
    two = damaged(patient)
    assert (two.planted, two.happened) == (None, "not planted: this strategy saves no checkpoints")


def test_ranks_that_outlive_another_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(600)"
    monkeypatch.setenv("STUDY_TRAINER", shlex.join([sys.executable, "-c", code]))
    done = run_ranks(Launch(tmp_path, 2), grace=0.2)
    assert done.failed is not None and (done.failed.rank, done.failed.how) == (1, "exit code 3")
    assert re.fullmatch(r"still hanging after [\d.]+ s, ended from outside", done.ranks[0].how)
    monkeypatch.setenv("STUDY_TRAINER", shlex.join([sys.executable, "-c", "import time; time.sleep(600)"]))
    done = run_ranks(Launch(tmp_path, 2), grace=600, most_seconds=0.5)
    assert all(re.fullmatch(r"still running after [\d.]+ s, ended from outside", rank.how) for rank in done.ranks)


def test_a_rank_that_takes_its_time_to_end_has_not_outlived_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [0, 1]

    def in_turn(processes: dict[int, subprocess.Popen[bytes]]) -> None:
        processes[left.pop(0) if left else 1].kill()

    monkeypatch.setattr(trainer_ranks, "kill", in_turn)
    monkeypatch.setenv("STUDY_TRAINER", shlex.join([sys.executable, "-c", "import time; time.sleep(600)"]))
    done = run_ranks(Launch(tmp_path, 2), grace=600, most_seconds=0.1, poll=0.2)
    assert [rank.how.partition(" after ")[0] for rank in done.ranks] == ["still running"] * 2


def test_ranks_end_with_a_command_that_is_killed_outright(tmp_path: Path) -> None:
    code = "import os, signal, sys, time; signal.signal(15, lambda *_: None); "
    code += "open(os.environ['RANK'], 'w').write(str(os.getpid()) + chr(10)); time.sleep(600); time.sleep(600)"
    command = "from pathlib import Path; from study.bench.trainer_ranks import Launch, run_ranks; "
    command += f"run_ranks(Launch(Path({str(tmp_path)!r}), 2))"
    environment = {**job_environment(os.environ), "STUDY_TRAINER": shlex.join([sys.executable, "-c", code])}

    def ranks() -> list[int]:
        said = [path.read_text() for path in (tmp_path / "0", tmp_path / "1") if path.exists()]
        return [int(pid) for pid in said if pid.endswith("\n")]

    with subprocess.Popen([sys.executable, "-c", command], cwd=tmp_path, env=environment) as process:
        wait_until("both ranks train and do not heed SIGTERM", lambda: len(ranks()) == 2)
        process.kill()
    try:
        wait_until("the ranks have ended", lambda: all(map(has_ended, ranks())))
    finally:
        for pid in filter(psutil.pid_exists, ranks()):
            os.kill(pid, signal.SIGKILL)


def test_a_rank_that_hangs_is_told_to_and_the_run_goes_on(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDY_TRAINER", f"{sys.executable} -m tests.study.bench.stand_in_trainer --hangs")
    patient = Patient(replace(asked, hang=0.3), STRATEGIES["fsdp2"], tmp_path, [1.0] * asked.all_steps)
    one = killed(patient)
    assert re.fullmatch(r"still hanging after [\d.]+ s, ended from outside", one.codes[0])
    assert one.codes[1] == "killed by SIGKILL"
    assert one.seconds is not None and one.seconds >= 0.3
    assert one.afterwards.endswith("trains to step 8")


def test_a_failure_has_its_time_and_no_more(asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time; time.sleep(600)"
    monkeypatch.setenv("STUDY_TRAINER", shlex.join([sys.executable, "-c", code]))
    short, said = replace(asked, limit=1.0), list[str]()
    found = list(failures(Patient(short, STRATEGIES["fsdp2"], tmp_path, []), say=said.append))
    assert [one.planted for one in found] == [None] * 3 and len(said) == 3
    why = r"not planted: rank \d: still running after [\d.]+ s, ended from outside: it said nothing"
    assert all(re.fullmatch(why, one.happened) for one in found[:2]), found
    assert found[2].happened == "not planted: there is no checkpoint"
    assert said[0] == f"fsdp2: {KILLED}, at most 1 s"


@pytest.mark.usefixtures("stand_in")
def test_what_is_left_of_a_row_is_for_the_next_start(asked: Asked, tmp_path: Path) -> None:
    patient = Patient(replace(asked, limit=0.5), STRATEGIES["fsdp2"], tmp_path, [])
    assert patient.restart(1) == ("not started again: the limit of 0.5 s was over", 0)


@pytest.mark.usefixtures("stand_in")
def test_failures_that_are_known_are_not_caused_again(asked: Asked, tmp_path: Path) -> None:
    losses = [5.0 - step / 100 for step in range(1, asked.all_steps + 1)]
    patient = Patient(asked, STRATEGIES["fsdp2"], tmp_path, losses)
    (one,) = failures(patient, {KILLED, MEMORY})
    assert one.failure == DAMAGED
    assert one.planted == "a byte of step-000000010/__1_0.distcp changed", "the run is first trained to where it was"
    assert (one.lost, one.change) == (2, 0)


def test_failures_are_caused_in_a_small_model() -> None:
    words = ["model=1b", "precision=bf16", "compile.blocks=true", "batch.tokens=131072", "optim.lr=0.01"]
    large = asked_of([*words, "limit=30"], 2, composed)
    small = large.patient()
    assert (small.base.model.width, small.base.model.layers, small.base.compile.blocks) == (1024, 4, False)
    assert (small.base.precision, small.base.optim, small.all_steps) == (
        large.base.precision,
        large.base.optim,
        large.all_steps,
    )
    assert small.limit == 30 and small.base.budget.tokens == small.all_steps * small.batch < large.batch
    states = 16 * params(small.base.model, small.base.data.vocab_size).total
    assert all(sheet(small.config(one), small.axes(one), "cuda").peak.total > 200 << 20 for one in STRATEGIES.values())
    assert states < 1 << 30
    tiny = asked_of(TINY, 0, composed)
    assert tiny.patient() is tiny


def test_a_killed_command_goes_on_where_it_was(tmp_path: Path) -> None:
    trainer = f"{sys.executable} -m tests.study.bench.stand_in_trainer"
    words = [*TINY, "strategies=fsdp2", "failures=yes", "backend=gloo", f"out={tmp_path}", f"limit={LIMIT_SECONDS}"]
    command = [sys.executable, "-m", "tests.study.bench.measured_at_once", *words]
    environment = {**os.environ, "STUDY_TRAINER": trainer, "MEASURED": json.dumps(asdict(ROW)), "TMPDIR": str(tmp_path)}
    path = tmp_path / "strategies.json"

    def seen() -> list[dict[str, Any]]:
        with contextlib.suppress(OSError):
            found: list[dict[str, Any]] = json.loads(path.read_text())["failures"]
            return found
        return []

    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + LIMIT_SECONDS
        while not seen() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        process.kill()
    (first, *_), known = seen(), len(seen())
    assert first["failure"] == KILLED and first["planted"].startswith("SIGKILL") and known < 3
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert "fsdp2: known from a command that did not end" in done.stderr
    assert f"failures: {3 - known}, at most" in done.stderr and f"fsdp2: {KILLED}" not in done.stderr
    assert [one["failure"] for one in seen()] == [KILLED, MEMORY, DAMAGED] and seen()[0] == first
    assert not json.loads(path.read_text())["interrupted"]


@pytest.mark.slow
def test_real_ranks_are_killed_and_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer_ranks, "spawn", warm_ranks.spawn)
    words = ["strategies=fsdp2", "backend=gloo", *TINY, "failures=yes", f"limit={LIMIT_SECONDS}", f"out={tmp_path}"]
    assert main(["bench", "strategies", *words, "--json"]) == 0
    told = capsys.readouterr()
    killed_, memory, torn = json.loads(told.out)["failures"]
    assert killed_["planted"].startswith("SIGKILL to rank 1 after step") and killed_["codes"][1] == "killed by SIGKILL"
    assert "trains to step 8" in killed_["afterwards"] and killed_["change"] == 0
    assert memory["planted"] is None or memory["planted"].startswith("RLIMIT_AS")
    assert "is incomplete" in torn["afterwards"] and torn["lost"] == 2 and torn["change"] == 0
    assert "failures: 3, at most" in told.err


def test_ctrl_c_keeps_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[Any] = []

    def pressed(asked: Asked, strategy: Any, root: Path, out: Path, say: Any) -> Row:
        if strategy.name == "fsdp1":
            written.append(json.loads((tmp_path / "out" / "strategies.json").read_text()))
            raise KeyboardInterrupt
        return ROW

    monkeypatch.setattr(strategies, "measure", pressed)
    assert main(["bench", "strategies", *TINY, f"out={tmp_path / 'out'}"]) == 130
    assert "interrupted: 1 of 3 strategies were measured, and are kept" in capsys.readouterr().out
    assert [len(one["rows"]) for one in written] == [1], "the first is kept before the second begins"
    assert (tmp_path / "out" / "strategies.md").exists()
    assert json.loads((tmp_path / "out" / "strategies.json").read_text())["interrupted"]


def test_two_ranks_of_a_strategy_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["strategies=fsdp1", "backend=gloo", *TINY, f"out={out}"]
    assert main(["bench", "strategies", *words, "--json"]) == 0
    told = capsys.readouterr()
    said = json.loads(told.out)
    assert (said.pop("format"), said.pop("command")) == (1, "bench")
    fields = documented()["`bench` strategies"]
    assert said.keys() == fields.keys() and said["problems"] == [] and not said["interrupted"]
    (row,) = said["rows"]
    assert row.keys() == fields["rows"] and row["error"] is None
    assert row["seconds_step"] * row["tokens_per_second"] == pytest.approx(2 * 4 * 32)
    assert row["traced_step"] > row["exposed"] > 0 and 0 <= row["overlap"] <= 1
    assert row["counted"] == row["messages"] + 1  # the flags between steps
    assert row["resident"] >= row["resident_before"] > row["memory_predicted"] > 0
    assert len(row["losses"]) == 15 and row["losses"][-1] < row["losses"][0] + 0.5
    assert len(row["traces"]) == 2 and all(Path(one).exists() for one in row["traces"])
    assert {Path(name).name for name in said["files"]} == {f"strategies.{end}" for end in ("md", "csv", "json", "png")}
    assert not (out / "fsdp1" / "checkpoints").exists() and "step 15 of 15" in told.err
    assert main(["diagnose", str(out / "fsdp1" / "profile")]) == 0
