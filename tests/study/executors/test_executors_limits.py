"""Limits as SLURM prints them, whole, cut off and garbled; and what is submitted under them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from study.executors.base import Answer, Limit
from study.executors.job_spec import JobSpec
from study.executors.slurm import limits, parse_limits, site
from study.executors.slurm.ceilings import beyond, jobs_at_once
from study.executors.slurm.limits import Accounts, Asked, Association, Controller, Limits, Partitions, Qos, Queue
from study.failures.kinds import Kind
from study.failures.retry_policy import Action, RecordedFailure
from study.reconcile.dispatch import jobs_to_ignore, plan
from study.records import ledger
from study.records.bad_ends import end_fields
from study.storage.files import write_json
from study.storage.layout import StudyFolder

ASSOC_MGR = """Current Association Manager state

User Records

UserName=ann(1007) DefAccount=lab DefWckey= AdminLevel=None

Association Records

ClusterName=c Account=root UserName= Partition= Priority=0 ID=1
    ParentAccount= Lft=1 DefAssoc=No
    GrpSubmitJobs=N(40) GrpWall=N(0.00)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
    MaxTRESPJ=
ClusterName=c Account=lab UserName= Partition= Priority=0 ID=2
    ParentAccount=root(1) Lft=1 DefAssoc=No
    GrpSubmitJobs=50(30) GrpWall=N(0.00)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=c Account=lab UserName=ann(1007) Partition= Priority=0 ID=3
    ParentAccount= Lft=2 DefAssoc=Yes
    GrpSubmitJobs=N(4) GrpWall=N(0.00)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs=20(4) MaxWallPJ=30
    MaxTRESPJ=cpu=4,mem=16G,gres/gpu=2
ClusterName=c Account=lab UserName=bob(1008) Partition= Priority=0 ID=4
    ParentAccount= Lft=3 DefAssoc=Yes
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs=1(1) MaxWallPJ=

QOS Records

QOS=normal(1)
    GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=N(4) GrpWall=N(0.00)
    MaxWallPJ=
    MaxTRESPJ=
    Account Limits
      lab
        MaxJobsPA=N(0) MaxJobsAccruePA=N(0) MaxSubmitJobsPA=25(9)
    User Limits
      1007
        MaxJobsPU=N(0) MaxJobsAccruePU=N(0) MaxSubmitJobsPU=10(7)
QOS=small(2)
    GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=7(6) GrpWall=N(0.00)
    Account Limits
        No Accounts
    User Limits
        No Users
"""
"""`scontrol show assoc_mgr` of SLURM 22.05, with the lines of usage left out."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AccountingStorageEnforce = associations,limits,qos\nMaxArraySize            = 1001\nMaxJobCount = 10000\n",
         Controller(1001, 10000, enforced=True)),
        ("AccountingStorageEnforce = none\nMaxArraySize = 0\n", Controller(0, None)),
        ("AccountingStorageEnforce = safe\n", Controller(enforced=True)),
        ("MaxArraySize = lots\nMaxJobCount = \n", Controller()),
        ("MaxArraySize = 10", Controller(10)),
        ("slurm_load_ctl_conf error: Unable to contact slurm controller\n", Controller()),
        ("", Controller()),
    ],
)  # fmt: skip
def test_what_the_controller_says_of_itself(text: str, expected: Controller) -> None:
    assert parse_limits.read_config(text) == expected


def test_associations_and_qos_with_what_is_used_of_them() -> None:
    known = parse_limits.read_assoc_mgr(ASSOC_MGR, "ann")
    assert [(a.account, a.user, a.parent, a.default) for a in known.associations] == [
        ("root", "", "", False),
        ("lab", "", "root", False),
        ("lab", "ann", "", True),
    ], "bob's limits are bob's"
    mine = known.associations[2]
    assert mine.max_submit == Limit("MaxSubmitJobs of ann", 20, 4)
    assert (mine.group_submit, mine.max_wall) == (None, 30)
    assert mine.max_tres == {"cpu": 4, "mem": 16384, "gres/gpu": 2}
    assert known.associations[1].group_submit == Limit("GrpSubmitJobs of account lab", 50, 30)
    assert known.qos["normal"].per_user == Limit("MaxSubmitJobsPerUser of QOS normal", 10, 7)
    assert known.qos["normal"].per_account["lab"].left == 16
    assert known.qos["small"].group_submit == Limit("GrpSubmitJobs of QOS small", 7, 6)
    assert known.qos["small"].per_user is None


@pytest.mark.parametrize("cut", range(0, len(ASSOC_MGR), 97))
def test_a_cut_off_answer_says_less_and_nothing_else(cut: int) -> None:
    whole, part = parse_limits.read_assoc_mgr(ASSOC_MGR, "ann"), parse_limits.read_assoc_mgr(ASSOC_MGR[:cut], "ann")
    for association in part.associations[:-1]:
        assert association in whole.associations


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("normal|||||||||\nsmall|5||7|cpu=3|00:30:00|DenyOnLimit|||\n", {"normal", "small"}),
        ("normal|||\n", set()),
        ("sacctmgr: error: slurm_persist_conn_open: failed\n", set()),
        ("normal|five||||||||\n", {"normal"}),
    ],
)
def test_qos_of_the_database(text: str, names: set[str]) -> None:
    found = parse_limits.read_sacctmgr_qos(text)
    assert set(found) == names
    if "small" in found:
        assert found["small"] == Qos(
            "small",
            group_submit=Limit("GrpSubmitJobs of QOS small", 7),
            per_user=Limit("MaxSubmitJobsPerUser of QOS small", 5),
            max_tres={"cpu": 3},
            max_wall=30,
        )


@pytest.mark.parametrize(
    ("text", "value"),
    [("30", 30), ("00:30:00", 30), ("1-00:00:00", 1440), ("2-04", 3120), ("05:30", 5), ("UNLIMITED", None), ("", None),
     ("N", None)],
)  # fmt: skip
def test_durations(text: str, value: int | None) -> None:
    assert parse_limits.minutes(text) == value


def test_partitions_with_a_qos_of_their_own() -> None:
    text = "PartitionName=main\n   AllowQos=ALL Default=YES QoS=N/A\n\nPartitionName=big\n   Default=NO QoS=part\n"
    assert parse_limits.read_partitions(text) == Partitions("main", {"big": "part"})
    assert parse_limits.read_partitions("garbage\n") == Partitions()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(0, "7|0|RUNNING|None|s.1\n7|1|PENDING|Priority|s.1\n8|N/A|COMPLETED|None|x\n"),
         Queue({"7": 2}, 3, complete=True, names={"7": "s.1", "8": "x"})),
        (Answer(0, ""), Queue({}, 0, complete=True)),
        (Answer(0, "7|0|RUNNING|None|s.1\n7|1|PEN"), Queue({"7": 1}, 1, complete=False, names={"7": "s.1"})),
        (Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller"), Queue({}, 0, complete=False)),
    ],
)  # fmt: skip
def test_own_jobs(answer: Answer, expected: Queue) -> None:
    assert parse_limits.read_queue(answer) == expected


ANN = Asked("ann")
LIVE = limits.merge(
    parse_limits.read_assoc_mgr(ASSOC_MGR, "ann"), (), parse_limits.read_sacctmgr_qos("normal|10||||||||\n")
)


@pytest.mark.parametrize(
    ("seen", "asked", "left"),
    [
        (Limits(Controller()), ANN, None),
        (Limits(Controller(max_jobs=100), queue=Queue({"1": 4}, 10), everybody=50), ANN, 43),
        (Limits(Controller(enforced=False), LIVE), ANN, None),
        (Limits(Controller(enforced=True), LIVE), ANN, 3),
        (Limits(Controller(enforced=True), LIVE), Asked("ann", qos="small"), 1),
        (Limits(Controller(enforced=True), LIVE), Asked("ann", account="other"), 3),
        (Limits(Controller(enforced=True), LIVE, Partitions("big", {"big": "small"})), ANN, 1),
        # nobody counts for us: what the user has in squeue stands in
        (Limits(Controller(enforced=True), Accounts((Association("lab", "ann", max_submit=Limit("m", 9)),)),
              queue=Queue({"1": 4, "2": 3}, 9)), ANN, 2),
    ],
)  # fmt: skip
def test_the_tightest_limit(seen: Limits, asked: Asked, left: int | None) -> None:
    found = replace(seen, user=asked.user).tightest(
        JobSpec(account=asked.account, partition=asked.partition, qos=asked.qos)
    )
    assert (found.left if found else None) == left


@pytest.mark.parametrize(
    ("said", "limit"),
    [
        ("sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates", True),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed", True),
        ("sbatch: error: AssocGrpSubmitJobsLimit", True),
        ("sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed", False),
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", False),
    ],
)
def test_too_many_jobs_is_told_from_wrong_jobs(said: str, limit: bool) -> None:
    assert limits.is_limit(said) is limit


def test_what_administrators_set_is_asked_once_in_ten_minutes(tmp_path: Path) -> None:
    asked: list[str] = []

    def runner(command: Any) -> Answer:
        asked.append(" ".join(list(command)[:3]))
        return Answer(0, "AccountingStorageEnforce = limits\n" if command[:3] == ["scontrol", "show", "config"] else "")

    site.read_limits(runner, tmp_path / "limits.json", 1000.0, "ann")
    first = len(asked)
    site.read_limits(runner, tmp_path / "limits.json", 1500.0, "ann")
    assert sorted(asked[first:]) == ["scontrol show assoc_mgr", "squeue --noheader --all"]
    site.read_limits(runner, tmp_path / "limits.json", 1601.0, "ann")
    assert len(asked) == first + 2 + first
    (tmp_path / "limits.json").write_text("[damaged")
    assert site.read_limits(runner, tmp_path / "limits.json", 1602.0, "ann").controller.enforced


RECORDED_ASSOC_MGR = """Current Association Manager state

Association Records

ClusterName=throwaway Account=root UserName= Partition= Priority=0 ID=1
    SharesRaw/Norm/Level/Factor=1/18446744073709551616.00/1/0.00
    ParentAccount= Lft=1 DefAssoc=No
    GrpSubmitJobs=N(0) GrpWall=N(0.00)
    GrpTRES=cpu=7(0),mem=8192(0),energy=N(0),node=N(0),billing=N(0),fs/disk=N(0),vmem=N(0),pages=N(0)
    GrpTRESMins=cpu=N(0),mem=N(0),energy=N(0),node=N(0),billing=N(0),fs/disk=N(0),vmem=N(0),pages=N(0)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
    MaxTRESPJ=
    MaxTRESPN=
ClusterName=throwaway Account=root UserName=root(0) Partition= Priority=0 ID=2
    SharesRaw/Norm/Level/Factor=1/18446744073709551616.00/1/0.00
    ParentAccount= Lft=2 DefAssoc=Yes
    GrpSubmitJobs=N(0) GrpWall=N(0.00)
    GrpTRES=cpu=N(0),mem=N(0),energy=N(0),node=3(0),billing=N(0),fs/disk=N(0),vmem=N(0),pages=N(0)
    GrpTRESMins=cpu=N(0),mem=N(0),energy=N(0),node=N(0),billing=N(0),fs/disk=N(0),vmem=N(0),pages=N(0)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs=6(0) MaxWallPJ=90
    MaxTRESPJ=cpu=3,mem=3072
    MaxTRESPN=

QOS Records

QOS=small(2)
    UsageRaw=0.000000
    GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=N(0) GrpWall=N(0.00)
    GrpTRES=cpu=5(0),mem=N(0),energy=N(0),node=N(0),billing=N(0),fs/disk=N(0),vmem=N(0),pages=N(0)
    MaxWallPJ=10
    MaxTRESPJ=cpu=2,node=1
    MaxTRESPN=cpu=1
    Account Limits
        No Accounts
    User Limits
        No Users
"""
"""`scontrol show assoc_mgr users=root flags=assoc,qos` of SLURM 22.05.8, recorded; some lines of usage left out."""

RECORDED_QOS = """normal|||||||||
small||||cpu=2,node=1|00:10:00|DenyOnLimit,OverPartQOS|cpu=5|cpu=4|node=2
"""
RECORDED_ASSOC = "root|root||||6||cpu=3,mem=3G|01:30:00|node=3\n"
"""`sacctmgr -n -P show qos` and `show assoc` of the same cluster, recorded."""

LIVE_ROOT = limits.merge(
    parse_limits.read_assoc_mgr(RECORDED_ASSOC_MGR, "root"),
    parse_limits.read_sacctmgr_assoc(RECORDED_ASSOC),
    parse_limits.read_sacctmgr_qos(RECORDED_QOS),
)
ROOT = Limits(Controller(enforced=True), LIVE_ROOT, user="root")
DATABASE_ONLY = replace(
    ROOT, accounts=limits.merge(Accounts(), parse_limits.read_sacctmgr_assoc(RECORDED_ASSOC), LIVE_ROOT.qos)
)
TIGHT = Limits(Controller(enforced=True), Accounts((Association("lab", "ann", max_tres={"gres/gpu": 8}),)), user="ann")


@pytest.mark.parametrize("seen", [ROOT, DATABASE_ONLY])
@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (JobSpec(cpus_per_task=3), ""),
        (
            JobSpec(cpus_per_task=4),
            "4 core(s) (MaxTRES of the association of root: at most 3 core(s)), so it could never start: "
            "cluster.cpus_per_task=3 would fit",
        ),
        (JobSpec(nodes=4), "4 node(s) (GrpTRES of the association of root: at most 3 node(s))"),
        (JobSpec(nodes=4), "cluster.nodes=3 would fit"),
        (JobSpec(mem_gb=4), "4 GB (MaxTRES of the association of root: at most 3 GB), so it could never start: "),
        (JobSpec(mem_gb=4), "cluster.mem_gb=3 would fit"),
        (JobSpec(time_minutes=91), "91 minutes (MaxWall of the association of root: at most 90 minutes)"),
        (JobSpec(time_minutes=91), "cluster.time_minutes=90 would fit, and a run that reaches it is resumed"),
        (JobSpec(pack=5, mem_gb=1), "of cluster.pack=5 points would ask for 5 core(s)"),
        (JobSpec(pack=5, mem_gb=1), "cluster.pack=3 would fit"),
        (JobSpec(pack=2, cpus_per_task=2), "cluster.pack=1 would fit"),
        (JobSpec(cpus_per_task=3, qos="small"), "3 core(s) (MaxTRES of QOS small: at most 2 core(s))"),
        (JobSpec(time_minutes=60, qos="small"), "cluster.time_minutes=10 would fit"),
        (JobSpec(nodes=2, time_minutes=10, qos="small"), "2 node(s) (MaxTRES of QOS small: at most 1 node(s))"),
    ],
)
def test_a_job_beyond_what_accounting_allows_is_refused_with_what_would_fit(
    shape: JobSpec, said: str, seen: Limits
) -> None:
    found = beyond(shape, seen)
    assert (found is None) if not said else said in (found or ""), found


@pytest.mark.parametrize(
    ("shape", "seen", "said"),
    [
        (JobSpec(nodes=2, gpus_per_node=8), TIGHT, "cluster.nodes=1 would fit"),
        (JobSpec(gpus_per_node=16, tasks_per_node=16), TIGHT, "cluster.tasks_per_node=8 cluster.gpus_per_node=8 would"),
        (JobSpec(nodes=2, gpus_per_node=8), replace(TIGHT, controller=Controller(enforced=False)), None),
        (JobSpec(nodes=2, gpus_per_node=8), replace(TIGHT, user="bob"), None),
        (JobSpec(cpus_per_task=8), replace(ROOT, partitions=Partitions("main", {"main": "small"})), "MaxTRES of QOS "),
        (JobSpec(cpus_per_task=8), replace(ROOT, accounts=LIVE), None),
        (JobSpec(), Limits(Controller(0)), None),
        (JobSpec(), Limits(), None),
    ],
)  # fmt: skip
def test_what_is_not_limited_or_not_said_refuses_nothing(shape: JobSpec, seen: Limits, said: str | None) -> None:
    found = beyond(shape, seen)
    assert (found is None) if said is None else said in (found or ""), found


@pytest.mark.parametrize(
    ("shape", "seen", "count"),
    [
        (JobSpec(), ROOT, 7),  # cores of the account
        (JobSpec(cpus_per_task=2), ROOT, 3),
        (JobSpec(mem_gb=2), ROOT, 4),  # 8 GB of the account
        (JobSpec(nodes=2), ROOT, 3),  # by cores; jobs may share the three nodes
        (JobSpec(qos="small"), ROOT, 4),  # cores of the user, fewer than the five of all
        (JobSpec(gpus_per_node=2), TIGHT, None),  # at most 8 in one job
        (JobSpec(), replace(ROOT, controller=Controller(enforced=False)), None),
        (JobSpec(), Limits(), None),
    ],
)
def test_jobs_at_once_are_bounded_by_what_all_together_may_use(shape: JobSpec, seen: Limits, count: int | None) -> None:
    assert jobs_at_once(shape, seen) == count


def test_a_limit_of_the_account_above_holds_and_a_qos_goes_before_it() -> None:
    free = replace(LIVE_ROOT, associations=tuple(replace(a, max_tres={}) for a in LIVE_ROOT.associations))
    above = replace(ROOT, accounts=free)
    assert "8 core(s) (GrpTRES of account root: at most 7 core(s))" in (beyond(JobSpec(cpus_per_task=8), above) or "")
    qos = {"big": Qos("big", group_tres={"cpu": 100})}
    lifted = replace(above, accounts=replace(free, qos={**free.qos, **qos}))
    assert beyond(JobSpec(cpus_per_task=8, qos="big"), lifted) is None
    first = Qos("big", max_tres={"cpu": 4}, first=True)
    of_partition = replace(free, qos={**free.qos, "big": first, "part": Qos("part", max_tres={"cpu": 2})})
    both = replace(lifted, accounts=of_partition, partitions=Partitions("main", {"main": "part"}))
    assert beyond(JobSpec(cpus_per_task=4, qos="big"), both) is None, "OverPartQOS"
    assert beyond(JobSpec(cpus_per_task=4), both) is not None


def waiting(count: int, parallel: int | None = None, **resources: object) -> ledger.Ledger:
    keys = [f"k{n}" for n in range(count)]
    return ledger.fold([{"event": "waiting", "time": 0.0, "keys": keys, "resources": resources, "parallel": parallel}])


def under(most: int, used: int = 0, array: int = 1001) -> Limits:
    cap = Association("lab", "ann", max_submit=Limit("MaxSubmitJobs of ann", most, used))
    return Limits(Controller(array, enforced=True), Accounts((cap,), live=True))


@pytest.mark.parametrize(
    ("state", "seen", "sizes", "throttles"),
    [
        (waiting(10), Limits(), [10], [10]),
        (waiting(2300), Limits(), [1000, 1000, 300], [1000, 1000, 300]),
        (waiting(10), under(100, array=4), [4, 4, 2], [4, 4, 2]),
        (waiting(10), under(6, array=4), [4, 2], [4, 2]),
        (waiting(10), under(6, 6), [], []),
        (waiting(2300, 90), Limits(), [1000, 1000, 300], [30, 30, 30]),
        (waiting(10, pack=3), Limits(), [10], [4]),
        (waiting(10, pack=3), under(2), [6], [2]),
        (waiting(3), Limits(Controller(1)), [1] * 3, [1] * 3),
        (waiting(9, pack=4), Limits(Controller(0)), [4, 4, 1], [1] * 3),
        (waiting(10, 4), Limits(Controller(0)), [1] * 4, [1] * 4),
        (waiting(10, 4), under(3, array=0), [1] * 3, [1] * 3),
        (waiting(100, 90), Limits(Controller(0)), [1] * 60, [1] * 60),
        (waiting(10), Limits(Controller(1001, 5)), [4], [4]),
        (waiting(10), Limits(Controller(1001, 1)), [], []),
        (waiting(10), Limits(Controller(1001, 8), queue=Queue({"1": 2}, 5), everybody=3), [1], [1]),
    ],
)
def test_arrays_that_fit(state: ledger.Ledger, seen: Limits, sizes: list[int], throttles: list[int]) -> None:
    found = plan(state, replace(seen, user="ann"), {})
    assert [len(part.keys) for part in found.parts] == sizes
    assert [part.throttle for part in found.parts] == throttles
    assert all(part.array == (seen.controller.max_array not in (0, 1)) for part in found.parts)
    assert (found.why != "") == (sum(sizes) < len(state.waiting))


def test_what_may_not_go_out_yet_stays() -> None:
    found = plan(waiting(3), Limits(), {"k1": "its parent has not completed"})
    assert [part.keys for part in found.parts] == [("k0", "k2")]
    assert found.why == "its parent has not completed"


def submitted(size: int, throttle: int) -> list[dict[str, Any]]:
    keys = [f"old{n}" for n in range(size)]
    about = {"time": 0.0, "name": "b", "executor": "slurm", "keys": keys, "throttle": throttle}
    return [{"event": "intent", **about}, {"event": "submitted", "time": 0.0, "name": "b", "job_id": "7"}]


@pytest.mark.parametrize(("alive", "sizes"), [(50, []), (20, []), (15, [10]), (0, [10])])
def test_the_throttle_holds_over_arrays_submitted_at_different_times(alive: int, sizes: list[int]) -> None:
    asked = {"event": "waiting", "time": 0.0, "keys": [f"k{n}" for n in range(10)], "parallel": 20}
    state = ledger.fold([*submitted(50, 20), asked])
    found = plan(state, Limits(queue=Queue({"7": alive} if alive else {}, alive)), {})
    assert [len(part.keys) for part in found.parts] == sizes
    assert sum(part.throttle for part in found.parts) <= 20 - min(alive, 20)


@pytest.mark.parametrize(
    ("alive", "over", "out"), [(8, "", 0), (7, "", 0), (6, "", 2), (0, "", 8), (8, "01", 2), (2, "01", 8)]
)
def test_single_jobs_go_out_as_many_as_may_run_at_once(alive: int, over: str, out: int) -> None:
    """What still lives only to submit others is not counted, or several that do would wait for each other."""
    events = []
    for n in range(8):
        about = {"time": 0.0, "name": f"b{n}"}
        events.append({"event": "intent", "executor": "slurm", "keys": [f"old{n}"], "array": False, **about})
        events.append({"event": "submitted", "job_id": str(n), **about})
    asked = {"event": "waiting", "time": 0.0, "keys": [f"k{n}" for n in range(10)], "parallel": 8}
    seen = Limits(Controller(0), queue=Queue({str(n): 1 for n in range(alive)}, 8))
    found = plan(ledger.fold([*events, asked]), seen, {}, over=over)
    assert len(found.parts) == out
    assert found.why == "cluster.array_parallelism=8 is used up by the jobs that wait or run"


def test_a_job_that_slurm_starts_again_is_not_settled(tmp_path: Path) -> None:
    """Its attempt has ended, and it holds its place; others live only to submit what waits."""
    folder = StudyFolder(tmp_path)
    events: list[dict[str, Any]] = []
    for n, key in enumerate(("runs", "requeued", "failed", "completed", "cancelled")):
        about = {"time": 0.0, "name": key}
        events.append({"event": "intent", "executor": "slurm", "keys": [key], "array": False, **about})
        events.append({"event": "submitted", "job_id": str(n), **about})
        attempt = folder.run(key).attempt(1)
        attempt.path.mkdir(parents=True)
        write_json(attempt.job, {"batch": key})
        if key != "runs":
            write_json(attempt.outcome, {"state": "interrupted"})
    write_json(folder.run("completed").outcome, {"state": "completed"})
    for key, action in (("requeued", Action.AGAIN), ("failed", Action.STOP)):
        end = RecordedFailure(key, key, 1, Kind.KILLED, action=action)
        events.append({"event": "ended", "time": 0.0, **end_fields(end)})
    events.append({"event": "cancelled", "time": 0.0, "keys": ["cancelled"]})
    seen = Limits(Controller(0), queue=Queue({str(n): 1 for n in range(5)}, 5))
    assert jobs_to_ignore(folder, ledger.fold(events), seen) == {"2", "3", "4"}


@pytest.mark.parametrize(("used", "alive", "out"), [(98, 60, 0), (90, 60, 10), (98, 1, 2)])
def test_jobs_that_end_leave_room_that_is_not_worth_an_array(used: int, alive: int, out: int) -> None:
    asked = {"event": "waiting", "time": 0.0, "keys": [f"k{n}" for n in range(30)]}
    state = ledger.fold([*submitted(80, 80), asked])
    seen = under(100, used)
    seen = Limits(seen.controller, seen.accounts, queue=Queue({"7": alive}, alive))
    assert sum(len(part.keys) for part in plan(state, replace(seen, user="ann"), {}, sparing=True).parts) == out
    assert sum(len(part.keys) for part in plan(state, replace(seen, user="ann"), {}).parts) == 100 - used
