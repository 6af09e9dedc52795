from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from study.config.schema import ClusterConfig
from study.executors import load
from study.executors.base import ARRAY_LIMIT, Answer, JobRequest, batch_name, chunks
from study.executors.job_spec import JobSpec
from study.executors.slurm import query, refusal, sbatch
from study.planning.sizing import Sized
from study.storage.layout import StudyFolder
from study.sweep.dry_run import scripts


def script(folder: StudyFolder, keys: list[str], cluster: ClusterConfig) -> str:
    """Return the scripts that a dry run shows for points of one shape."""
    return "\n".join(
        scripts(
            folder, load("slurm"), [Sized(JobSpec.of(cluster), tuple(keys))], cluster.array_parallelism, ARRAY_LIMIT
        )
    )


GOLDEN = """#!/bin/bash

# Parameters
#SBATCH --account=lab
#SBATCH --array=0-2%2
#SBATCH --constraint='a100&ib'
#SBATCH --cpus-per-task=4
#SBATCH --export=ALL
#SBATCH --gpus-per-node=2
#SBATCH --job-name=my_study.dryrun
#SBATCH --mem=1536M
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --output='/a b/my study/jobs/%A_%a_0_log.out'
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --reservation=tuesday
#SBATCH --signal=USR2@90
#SBATCH --time=120

# setup
PATH_LINE
module load cuda

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output '/a b/my study/jobs/%A_%a_%t_log.out' --kill-on-bad-exit=1 --wait=60 --export=ALL \
--open-mode=append --cpus-per-task=4 PYTHON -u -m study.job '/a b/my study' --name my_study.dryrun
"""


def test_the_script_word_for_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    cluster = ClusterConfig(
        executor="slurm",
        nodes=2,
        tasks_per_node=2,
        cpus_per_task=4,
        gpus_per_node=2,
        mem_gb=1.5,
        time_minutes=120,
        partition="gpu",
        account="lab",
        constraint="a100&ib",
        reservation="tuesday",
        array_parallelism=2,
        setup=("module load cuda",),
    )
    root = Path(sbatch.__file__).resolve().parents[3]
    expected = GOLDEN.replace("PYTHON -u", f"{sys.executable} -u").replace(
        "PATH_LINE", f"export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}"
    )
    assert script(StudyFolder(Path("/a b/my study")), ["a", "b", "c"], cluster) == expected


def test_a_job_shorter_than_the_notice_is_not_told_to_stop_as_it_starts() -> None:
    text = script(StudyFolder(Path("/s")), ["a"], ClusterConfig(executor="slurm", time_minutes=1))
    assert "--signal=USR2@15" in text


def test_many_points_are_several_arrays_that_count_from_0_and_share_the_throttle() -> None:
    keys = [str(n) for n in range(2300)]
    text = script(StudyFolder(Path("/s")), keys, ClusterConfig(executor="slurm", array_parallelism=90))
    assert [line for line in text.splitlines() if "--array" in line] == [
        "#SBATCH --array=0-999%30",
        "#SBATCH --array=0-999%30",
        "#SBATCH --array=0-299%30",
    ]
    assert [key for array in chunks(keys, 7) for key in array] == keys


def test_where_no_arrays_are_taken_a_job_is_none_and_is_shown_once() -> None:
    sized = [Sized(JobSpec(), ("a", "b", "c"))]
    (text,) = scripts(StudyFolder(Path("/s")), load("slurm"), sized, 2, 0)
    assert "--array" not in text
    assert "#SBATCH --output=/s/jobs/%j_0_log.out" in text
    assert "srun --unbuffered --output /s/jobs/%j_%t_log.out" in text


def test_what_an_outer_job_left_in_the_environment_is_scrubbed() -> None:
    kept = {"SLURM_CONF": "/c", "PATH": "/bin", "HOME": "/root", "PMIPE": "no", "CUDA_VISIBLE_DEVICES": "0"}
    scrubbed = ("SBATCH_QOS", "SRUN_X", "PMI_RANK", "PMIX_RANK", "SLURMD_NODENAME", "SQUEUE_FORMAT", "SLURM_CPU_BIND")
    inherited = {**kept, **dict.fromkeys(scrubbed, "x")}
    assert query.clean_environment(inherited) == kept
    del kept["CUDA_VISIBLE_DEVICES"]
    assert query.clean_environment({**inherited, "SLURM_JOB_ID": "7"}) == kept, "SLURM chose these GPUs for that job"


def test_jobs_that_submit_each_other_import_from_the_same_folders_for_ever() -> None:
    """A variable of 128 kB keeps a process from being started at all."""
    path = ""
    for _ in range(5):
        path = f"/copy:/here:/checkout{path and ':'}{path}"  # as the script says
        seen = query.clean_environment({"SLURM_JOB_ID": "7", "PYTHONPATH": path})
        path = seen["PYTHONPATH"]
    assert path == "/copy:/here:/checkout"
    other = {"PYTHONPATH": "/a:/b:/a::/c"}
    assert query.clean_environment(other) == other, "of a person, as it is"
    assert query.clean_environment({**other, "SLURM_JOB_ID": "7"})["PYTHONPATH"] == "/a:/b::/c", "in the same order"


@pytest.mark.parametrize(
    ("said", "no"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", True),
        ("sbatch: error: invalid partition specified: gpuu", True),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", False),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", False),
        ("sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", False),
        ("sbatch: unrecognized option '--nam=x'\nTry \"sbatch --help\" for more information", True),
        ("sbatch: option '--comment' requires an argument\nTry \"sbatch --help\" for more information", True),
        ("sbatch: error: slurmctld is busy", False),
        ("sbatch: slow", False),
        ("", False),
    ],
)
def test_a_refusal_is_told_from_a_silence(said: str, no: bool) -> None:
    assert refusal.refused(said) is no


@pytest.mark.parametrize(
    ("said", "keys"),
    [
        ("sbatch: unrecognized option '--nam=x'", "cluster.sbatch={nam: x}"),
        ("sbatch: error: Invalid --mail-type specification", "cluster.sbatch={mail-type: never}"),
        ("sbatch: error: Invalid --mail specification", ""),
        ("Batch job submission failed: Invalid license specification", "cluster.sbatch={licenses: matlab}"),
        ("Batch job submission failed: Invalid partition name specified", "cluster.partition=gpuu"),
        ("Invalid account or account/partition combination specified", "cluster.partition=gpuu, cluster.account=me"),
        ("Batch job submission failed: Invalid qos specification", ""),  # none was asked for: none can be wrong
        ("Memory specification can not be satisfied", "cluster.mem_gb=4.0"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "cluster.time_minutes=60"),
        ("Batch job submission failed: Invalid generic resource (gres) specification", "cluster.gpus_per_node=2"),
        ("More processors requested than permitted", "cluster.tasks_per_node=1, cluster.cpus_per_task=1"),
        ("Batch job submission failed: Unspecified error", ""),
    ],
)
def test_a_refusal_names_the_keys_that_it_is_about(said: str, keys: str) -> None:
    options = (("mail-type", "never"), ("nam", "x"), ("licenses", "matlab"))
    asked = JobSpec(partition="gpuu", account="me", mem_gb=4.0, gpus_per_node=2, sbatch=options)
    assert refusal.blamed(said, asked) == keys


def test_a_refusal_of_gres_names_the_option_that_asked_for_it() -> None:
    said = "Batch job submission failed: Invalid generic resource (gres) specification"
    assert refusal.blamed(said, JobSpec(sbatch=(("gres", "gpu:2"),))) == "cluster.sbatch={gres: gpu:2}"


def test_names_are_unique_and_safe_for_slurm() -> None:
    assert batch_name("a b|c").startswith("a_b_c.")
    assert batch_name("s") != batch_name("s")


def test_without_slurm_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match="sbatch is not on PATH: run this on a login node, or take cluster=local"):
        sbatch.submit(JobRequest(StudyFolder(tmp_path), JobSpec(), "s.1", 1), "#!/bin/bash\n")


def test_cancel_names_tasks_as_ranges() -> None:
    asked: list[list[str]] = []

    def runner(command: object) -> Answer:
        asked.append(list(command))  # type: ignore[call-overload]
        return Answer(0)

    sbatch.cancel({"7": [0, 1, 2, 9], "8": [4], "9": []}, runner)
    assert asked == [["scancel", "7_[0-2,9]", "8_[4]", "9"]], "9 is no array"


def test_submission_leaves_one_script_and_runs_sbatch_without_inherited_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, body in {"srun": "", "sbatch": f"env > {tmp_path}/env\necho Submitted batch job 41\n"}.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}")
        (tools / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    study = StudyFolder(tmp_path / "s")
    assert sbatch.submit(JobRequest(study, JobSpec(), "s.1", 1), "#!/bin/bash\n# ours\n") == "41"
    assert [p.name for p in study.jobs.iterdir()] == ["s.1.sh"]
    assert (study.jobs / "s.1.sh").read_text() == "#!/bin/bash\n# ours\n"
    assert "SLURM_JOB_ID" not in (tmp_path / "env").read_text()
