"""Two-phase submission against stand-ins for SLURM's commands that fail, hang up or kill us at the worst moment."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from study.__main__ import main
from study.config.schema import ClusterConfig
from study.executors.base import Answer
from study.job.__main__ import unwanted
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import JobEnd, Resolve, Submit
from study.records import ledger
from study.status.observer import observe
from study.storage.layout import StudyFolder
from tests.study.support.studies import environment, make_study

SBATCH = """#!/bin/bash
mode=$(cat {folder}/mode)
name=$(sed -n 's/#SBATCH --job-name=//p' "${{@: -1}}")
case $mode in
  full) echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2
    echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy" >&2; exit 1;;
  refuse) echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2; exit 1;;
  option) echo "sbatch: unrecognized option '--nam=x'" >&2
    echo 'Try "sbatch --help" for more information' >&2; exit 255;;
  lost) echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1;;
  kill-before) kill -9 $(cat {folder}/submitter); exit 1;;
esac
echo "$name" >> {folder}/jobs
id=$(wc -l < {folder}/jobs)
case $mode in
  kill-after) kill -9 $(cat {folder}/submitter); exit 1;;
  vanish) touch {folder}/down; echo "sbatch: error: Unable to contact slurm controller (connect failure)" >&2; exit 1;;
  timeout) echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1;;
esac
echo "Submitted batch job $id"
"""
SQUEUE = """#!/bin/bash
[ -e {folder}/down ] && {{ echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }}
touch {folder}/jobs
awk '{{ print NR "|0|PENDING|None|" $0 }}' {folder}/jobs
"""
TOOLS = {
    "sbatch": SBATCH,
    "squeue": SQUEUE,
    "srun": "#!/bin/bash\n",
    "sacct": "#!/bin/bash\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n",
    "scontrol": "#!/bin/bash\necho 'MaxArraySize = 1001'\n",
}
CLUSTER = ClusterConfig(executor="slurm")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in TOOLS.items():
        (folder / name).write_text(text.format(folder=folder) if name in ("sbatch", "squeue") else text)
        (folder / name).chmod(stat.S_IRWXU)
    (folder / "mode").write_text("good")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


class Clock:
    """Sleeps in no time."""

    def __init__(self, begin: float) -> None:
        self.now = begin

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def services(said: list[str]) -> Services:
    clock = Clock(time.time())
    return Services(clock=lambda: clock.now, sleep=clock.sleep, report=said.append)


def submit(study: StudyFolder, keys: dict[int, str], said: list[str] | None = None) -> None:
    step(study, services([] if said is None else said), Submit(list(keys.values()), CLUSTER))


def resolve(study: StudyFolder, force: bool = False) -> int:
    return step(study, services([]), Resolve(force)).submitted


def end_job(study: StudyFolder, key: str) -> int:
    return step(study, services([]), JobEnd([key])).submitted


def submitted(tools: Path) -> list[str]:
    path = tools / "jobs"
    return path.read_text().splitlines() if path.exists() else []


def live(study: StudyFolder) -> dict[str, str | None]:
    """Return each key's live batch as its job id."""
    state = ledger.read(study)
    return {key: state.batches[name].job_id for key, name in state.current.items()}


def test_one_array_for_all_and_nothing_the_second_time(tools: Path, tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", range(20))
    said: list[str] = []
    submit(study, keys, said)
    assert said[0].startswith("submitted 20 points as job array 1 (s.")
    submit(study, keys)
    assert len(submitted(tools)) == 1
    assert set(live(study).values()) == {"1"}
    more, new = make_study(study.path, [50])
    submit(more, {**keys, **new})
    assert len(submitted(tools)) == 2
    assert live(study)[new[50]] == "2"


def test_a_refusal_is_told_in_slurms_words_and_can_be_put_right(tools: Path, tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    (tools / "mode").write_text("refuse")
    with pytest.raises(ValueError, match=r"sbatch failed: .*Invalid partition name specified"):
        submit(study, keys)
    (tools / "mode").write_text("good")
    submit(study, keys)
    assert len(submitted(tools)) == 1
    assert live(study) == {keys[1]: "1"}


def test_an_option_that_there_is_not_is_named_and_its_points_say_so(
    tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    (tools / "mode").write_text("option")
    wrong = replace(CLUSTER, sbatch={"nam": "x"})
    with pytest.raises(ValueError, match=r"unrecognized option '--nam=x': cluster\.sbatch=\{nam: x\}: change it"):
        step(study, services([]), Submit(list(keys.values()), wrong))
    assert {status.state for status in observe(study)} == {"pending"}
    assert main(["status", str(study.path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 pending: refused by SLURM: sbatch failed: sbatch: unrecognized option '--nam=x'" in said
    assert "cluster.sbatch={nam: x}" in said and "change what SLURM refused" in said
    assert submitted(tools) == [], "and nobody has tried it again"
    (tools / "mode").write_text("good")
    submit(study, keys)
    assert set(live(study).values()) == {"1"} and ledger.read(study).refused == {}


def test_a_refusal_for_a_limit_is_no_failure(tools: Path, tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    (tools / "mode").write_text("full")
    said: list[str] = []
    submit(study, keys, said)
    assert "2 points wait: sbatch failed" in said[-1]
    state = ledger.read(study)
    assert list(state.waiting) == list(keys.values())
    assert [batch.ambiguous for batch in state.batches.values()] == [False]
    (tools / "mode").write_text("good")
    assert resolve(study) == 2
    assert set(live(study).values()) == {"1"}


def test_what_does_not_fit_goes_out_as_jobs_end(tools: Path, tmp_path: Path) -> None:
    (tools / "scontrol").write_text("#!/bin/bash\necho 'MaxArraySize = 4'\necho 'MaxJobCount = 8'\n")
    study, keys = make_study(tmp_path / "s", range(10))
    (tools / "squeue").write_text(FINISHING.format(folder=tools))
    said: list[str] = []
    submit(study, keys, said)
    sizes = [len(batch.keys) for batch in ledger.read(study).batches.values()]
    assert sizes == [4, 3], "indices below MaxArraySize, fewer jobs than MaxJobCount"
    assert said[-1].startswith("3 points wait (MaxJobCount of the cluster is 7, and 7 are used)")
    first, second = ledger.read(study).batches.values()
    assert end_job(study, first.keys[0]) == 0, "others live, and the scheduler was asked just now"
    finish(study, first, second)
    (tools / "ended").write_text("7")
    assert end_job(study, second.keys[-1]) == 3, "the last one to end looks for the others"
    assert len(live(study)) == 10
    assert not ledger.read(study).waiting


def test_jobs_that_end_together_do_not_wait_for_each_others_room(tools: Path, tmp_path: Path) -> None:
    (tools / "scontrol").write_text("#!/bin/bash\necho 'MaxArraySize = 9'\necho 'MaxJobCount = 8'\n")
    (tools / "squeue").write_text(FINISHING.format(folder=tools).replace("NR == 1 ? 4 : 3", "7"))
    study, keys = make_study(tmp_path / "s", range(10))
    submit(study, keys)
    (batch,) = ledger.read(study).batches.values()
    assert len(batch.keys) == 7
    finish(study, batch)

    def end(key: str) -> int:
        sent = step(study, Services(sleep=lambda seconds: time.sleep(seconds / 5)), JobEnd([key])).submitted
        if not sent:  # SLURM counts a job until its process has ended
            with (tools / "left").open("a") as note:
                note.write("x\n")
            if (tools / "left").read_text().count("x") == 6:
                (tools / "ended").write_text("7")
        return sent

    with ThreadPoolExecutor(7) as jobs:
        assert sorted(jobs.map(end, batch.keys)) == [0] * 6 + [3], "one stays until the others have left"


def test_a_submission_that_nobody_confirmed_does_not_relieve_the_last_job(tools: Path, tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    submit(study, {1: keys[1]})
    (first,) = ledger.read(study).batches.values()
    finish(study, first)
    asked = dict(first.resources)
    ledger.append(study, "waiting", keys=[keys[2]], resources=asked, code=first.code, parallel=None)
    ledger.append(study, "intent", name="s.killed", executor="slurm", keys=[keys[2]], resources=asked)
    (tools / "squeue").write_text("#!/bin/bash\n")
    assert end_job(study, keys[1]) == 1, "given up after a while, and submitted"
    assert ledger.read(study).batches["s.killed"].abandoned


FINISHING = """#!/bin/bash
touch {folder}/jobs {folder}/ended
[ -s {folder}/ended ] && exit 0
awk '{{ n = NR == 1 ? 4 : 3; for (i = 0; i < n; i++) print NR "|" i "|PENDING|None|" $0 }}' {folder}/jobs
"""


def finish(study: StudyFolder, *batches: ledger.Batch) -> None:
    for batch in batches:
        for key in batch.keys:
            study.run(key).path.mkdir()
            study.run(key).outcome.write_text('{"state": "completed"}')


def test_a_timeout_after_which_the_job_is_there_is_not_submitted_again(tools: Path, tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    (tools / "mode").write_text("timeout")
    said: list[str] = []
    submit(study, keys, said)
    assert len(submitted(tools)) == 1
    assert set(live(study).values()) == {"1"}
    assert "was submitted as job 1" in said[0]


def test_a_timeout_after_which_the_job_is_not_there_is_given_up_after_a_while(tools: Path, tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    (tools / "mode").write_text("lost")
    with pytest.raises(ValueError, match=r"Socket timed out.*nothing was submitted: run the command again"):
        submit(study, keys)
    (tools / "mode").write_text("good")
    submit(study, keys)
    assert len(submitted(tools)) == 1


def test_while_the_scheduler_is_silent_nothing_is_touched(tools: Path, tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    (tools / "mode").write_text("vanish")
    with pytest.raises(ValueError, match="it is not known whether"):
        submit(study, keys)
    said: list[str] = []
    (tools / "mode").write_text("good")
    submit(study, keys, said)
    assert "left as it is: it is not known whether it was submitted" in said[0]
    assert len(submitted(tools)) == 1, "not tried again"
    (tools / "down").unlink()
    submit(study, keys)
    assert len(submitted(tools)) == 1
    assert live(study) == {keys[1]: "1"}


def test_points_wait_for_a_scheduler_that_gives_no_answer(tools: Path, tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    (tools / "down").touch()
    said: list[str] = []
    submit(study, keys, said)
    assert said == ["2 points wait: the scheduler gave no answer (slurm_load_jobs error: Unable to contact slurm "
                    "controller)"]  # fmt: skip
    assert submitted(tools) == []
    assert [(s.state, s.why[:12]) for s in observe(study)] == [("waiting", "queued later")] * 2
    (tools / "down").unlink()
    assert resolve(study) == 2
    assert set(live(study)) == set(keys.values())


def test_given_up_by_the_user_and_submitted_again_the_late_one_is_not_wanted(tools: Path, tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    (tools / "mode").write_text("vanish")
    with pytest.raises(ValueError, match="it is not known whether"):
        submit(study, keys)
    (late,) = ledger.read(study).batches.values()
    (tools / "mode").write_text("good")
    assert resolve(study) == 0
    assert resolve(study, force=True) == 0, "given up, but the scheduler has no room to be seen"
    assert unwanted(ledger.read(study), ledger.read(study).batches[late.name], keys[1])
    (tools / "down").unlink()
    assert resolve(study) == 1
    assert live(study) == {keys[1]: "2"}


def test_logs_of_a_job_that_failed_before_its_attempt_are_the_jobs_own(
    tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    submit(study, keys)
    earlier = study.run(keys[1]).attempt(1)
    earlier.path.mkdir(parents=True)
    earlier.job.write_text(json.dumps({"name": "an earlier batch", "job_id": "0_0", "executor": "slurm"}))
    earlier.stdout(0).write_text("of the attempt before\n")
    (study.jobs / "1_0_0_log.out").write_text("slurmstepd: error: no such module\n")
    name = ledger.read(study).current[keys[1]]
    (tools / "squeue").write_text(f"#!/bin/bash\necho '1|0|FAILED|NonZeroExitCode|{name}'\n")
    assert main(["logs", str(study.path), keys[1]]) == 0
    assert capsys.readouterr().out == "slurmstepd: error: no such module\n"


def test_a_requeued_job_is_not_submitted_beside_while_the_scheduler_is_silent(tools: Path, tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    submit(study, keys)
    attempt = study.run(keys[1]).attempt(1)
    attempt.path.mkdir(parents=True)
    (name,) = ledger.read(study).batches
    attempt.job.write_text(json.dumps({"name": name, "job_id": "1_0", "executor": "slurm"}))
    attempt.outcome.write_text(json.dumps({"state": "interrupted"}))
    (tools / "down").touch()
    submit(study, keys)
    assert len(submitted(tools)) == 1, "absence is not evidence"
    (tools / "jobs").write_text("")
    (tools / "down").unlink()
    submit(study, keys)
    assert len(submitted(tools)) == 1, "squeue answered, and it is not there: it is due"


@pytest.mark.parametrize("mode", ["kill-before", "kill-after"])
def test_kill_9_in_the_middle_of_a_submission(tools: Path, tmp_path: Path, mode: str) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2, 3])
    (tools / "mode").write_text(mode)
    program = (
        f"import os, pathlib; pathlib.Path({str(tools / 'submitter')!r}).write_text(str(os.getpid()))\n"
        "from study.config.schema import ClusterConfig; from study.reconcile.services import Services\n"
        "from study.reconcile.step import step; from study.reconcile.triggers import Submit\n"
        "from study.storage.layout import StudyFolder\n"
        f"step(StudyFolder(pathlib.Path({str(study.path)!r})), Services(), "
        f"Submit({list(keys.values())!r}, ClusterConfig(executor='slurm')))"
    )
    killed = subprocess.run([sys.executable, "-c", program], env=environment(), check=False, capture_output=True)
    assert killed.returncode == -9, killed.stderr
    (before,) = ledger.read(study).batches.values()
    assert before.ambiguous
    (tools / "mode").write_text("good")
    submit(study, keys)
    assert len(submitted(tools)) == 1, "no point twice, none lost"
    assert set(live(study).values()) == {"1"}
    assert set(live(study)) == set(keys.values())


def test_what_is_due_waits_for_no_data_on_a_batch_of_unknown_fate(tools: Path, tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    submit(study, keys)
    (tools / "jobs").write_text("")  # the scheduler has forgotten it: purged, or it lies
    submit(study, keys)
    assert submitted(tools) == []
    assert live(study) == {keys[1]: "1"}


def test_a_scheduler_that_answers_is_not_asked_more_than_needed(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", range(30))
    for number, key in enumerate(keys.values()):
        ledger.append(study, "intent", name=f"b{number}", executor="slurm", keys=[key])
        ledger.append(study, "submitted", name=f"b{number}", job_id=str(number))
    asked: list[str] = []

    def runner(command: object) -> Answer:
        asked.append(next(iter(command)))  # type: ignore[call-overload]
        return Answer(0, "")

    step(study, Services(runner=runner, report=lambda text: None), Submit(list(keys.values()), CLUSTER))
    assert asked == ["squeue", "sacct"], "one of each for thirty arrays"


@pytest.mark.parametrize(("limits", "most"), [("", 4), ("study: {core_hours: 100}\n", 5)])
def test_each_stage_of_a_submission_reads_the_ledger_once(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch, limits: str, most: int
) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    study.study.write_text(f"{limits}cluster: {{executor: slurm}}\n")
    read, events = list[Path](), ledger.read_events

    def noted(path: Path) -> list[dict[str, Any]]:
        read.append(path)
        return events(path)

    monkeypatch.setattr(ledger, "read_events", noted)
    submit(study, keys)
    assert len(read) <= most, "what was looked up, seen, submitted and cancelled meanwhile; and what the budget bears"
    assert {batch.job_id for batch in ledger.read(study).batches.values()} == {"1"}
