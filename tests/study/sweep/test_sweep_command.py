"""The command line as people use it: what it prints, writes and returns."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from study.__main__ import main as study_main
from study.commands.show import differences
from study.config.schema import ClusterConfig
from study.executors import prepare_data
from study.executors.slurm.foreground import srun_command
from study.reconcile.services import Services
from study.reconcile.step import Stepped
from study.reconcile.triggers import Submit
from study.records import corpus
from study.records.points import load_points
from study.records.settings import load_section
from study.storage.layout import StudyFolder
from study.sweep.__main__ import Arguments, main, repeated, split
from study.sweep.help import EXAMPLES
from tests.environment import python_path
from tests.study.support.stand_ins import stand_in
from train.spec.config import BudgetConfig, DataConfig
from train.spec.later import read_run
from train.spec.manifest import Manifest, Split, TokenizerFile, settings_of

ROOT = Path(__file__).resolve().parents[3]
SPLIT = Split(documents=1, tokens=10**6, bytes=10**6, bytes_per_token=1.0, shards=())
MANIFEST = Manifest(
    format=1,
    name="code",
    tokenizer=TokenizerFile("bpe", 4096, "", None),
    separator_token=0,
    splits={"train": SPLIT, "validation": SPLIT},
    bytes_per_token=1.0,
    source="",
    settings=settings_of(DataConfig()),
    skipped=(),
    skipped_counts={},
    fingerprint="f" * 12,
)
HEAVY = ["torch", "mlflow", "optuna", "statsmodels", "pandas", "matplotlib", "numpy"]

MODELS = sorted(path.stem for path in (Path(__file__).parents[3] / "conf" / "model").glob("*.yaml"))


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": python_path(), "COLUMNS": "160"}
    command = [sys.executable, "-m", "study.sweep", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Execution:
    """Stands in for submission: notes what it is asked for."""

    def __init__(self) -> None:
        self.started: list[tuple[str, list[str], ClusterConfig]] = []
        self.followed: list[str] = []
        self.prepared: list[str] = []
        self.code = 0

    def step(self, study: StudyFolder, services: Services, asked: Submit) -> Stepped:
        assert study.study.exists() and set(asked.keys) <= set(load_points(study)), "written before anything starts"
        self.started.append((study.name, list(asked.keys), asked.cluster))
        return Stepped(len(set(asked.keys) - {key for _, before, _ in self.started[:-1] for key in before}))

    def follow(self, folder: StudyFolder, cluster: ClusterConfig) -> int:
        self.followed.append(cluster.executor)
        return self.code


@pytest.fixture
def execution(monkeypatch: pytest.MonkeyPatch) -> Execution:
    fake = Execution()
    stand_in(monkeypatch, step=fake.step, follow=fake.follow)
    monkeypatch.setattr(prepare_data, "prepare", lambda one, cluster: fake.prepared.append(one.data.name))
    monkeypatch.setattr(corpus.Corpus, "find", lambda one: MANIFEST if fake.prepared else None)
    return fake


def test_importing_loads_nothing_heavy() -> None:
    code = f"import study, study.sweep, sys; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_heavy_is_loaded_up_to_the_table(here: Path) -> None:
    code = f"""
import sys
from study.sweep.__main__ import main
assert main(["study=smoke", "dry_run=true", "cluster=slurm"]) == 0
print([m for m in {HEAVY} if m in sys.modules])
"""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_dry_run_from_another_directory_shows_and_writes_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "study=smoke", "dry_run=true")
    assert done.returncode == 0, done.stderr
    assert "Study smoke: 9 points on local" in done.stdout
    assert "python -m train.run --config" in done.stdout
    assert "is not prepared" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_dry_run_prints_the_sbatch_script(tmp_path: Path) -> None:
    words = ["study=isoflop", "cluster=slurm", "dry_run=true", "-m", "model.width=512,768"]
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH" in done.stdout
    assert "512 x" in done.stdout
    assert "768 x" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_config_is_shown_as_yaml_of_any_preset(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "study=smoke", "model=small", "-m", "seed=1,2", "model.width=128"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["study"]["name"] == "smoke"
    assert (shown["model"]["width"], shown["model"]["layers"]) == (128, 8)
    assert shown["seed"] == 0
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--study=smoke"], "unknown option --study: keys and groups have no dashes, write study=smoke"),
        (["model.widht=3"], "unknown key 'model.widht': did you mean model.width?"),
        (["model=tniy"], f"model=tniy is not an option of model: choose one of {', '.join(MODELS)} (did"),
        (["model=tniy"], "did you mean model=tiny?"),
        (["-m", "model=tiny,tniy"], "did you mean model=tiny?"),
        (["-m", "model.widht=3,4"], "did you mean model.width?"),
        (["model.width=64,96"], "add -m"),
        (["seed=range(3)"], "add -m"),
        (["-m", "optim.lr=interval(0.1,1)"], "continuous range"),
        (["-m", "optim.lr=interval(0.1,1)"], "or let a search draw from it (search=random)"),
        (
            ["search.budgets=[1e15]"],
            "search.budgets has no effect with search=grid: it is read by search=isoflop or search=trunk_and_branch",
        ),
        (["search=asha", "search.points=9", "-m", "optim.lr=1,2"], "search.points has no effect with search=asha"),
        (
            ["study=smoke", "search.points=9"],
            "search.points has no effect with search=isoflop: it is read by search=random_nd; take one, or leave it",
        ),
        (
            ["study=smoke", "search.stake=0.5"],
            "search.stake has no effect with search=isoflop: it is read by search=asha_guarded; take one, or leave it",
        ),
        (
            ["search.trials=9", "-m", "optim.lr=1,2"],
            "search.trials has no effect with search=grid: it is read by search=asha, search=asha_promotion, ",
        ),
        (["model.width=["], "cannot read the override model.width=[: a bracket in it is not closed"),
        (["model"], "'model' is neither KEY=VALUE nor GROUP=OPTION: did you mean model=…?"),
        (["=5"], "=5 has no key before its =: write KEY=VALUE"),
        (["reference=7b_x8"], "reference= is a group that is added to a config: write +reference=OPTION"),
        (["model.width:64"], "did you mean model.width=64?"),
        (["paths.runs=läufe"], "'ä' is allowed only inside quotes, as 'paths.runs=\"läufe\"'"),
        (["-m", "seed=1,,2"], "it has a comma or another character too many"),
        (["data=mixture"], "data.sources.1.source has no value yet"),
        (["data=mixture", "data.sources.1.source=nowhere"], "data.sources.1.source=nowhere: there is no such folder"),
        (["data=text", "data.source=nowhere"], "/nowhere: there is no such folder"),
        (["schedule.parent=runs/nowhere"], "schedule.parent=runs/nowhere: there is no such folder"),
        (["model.init_from=nowhere"], "model.init_from=nowhere: there is no such folder"),
        (["search.budgets=1e12"], "search.budgets=1000000000000.0 is not allowed: it takes a list in [ ]"),
        (["model.width=63"], "model.width=63 is not a multiple of model.head_dim=32"),
        (["-m", "seed=1,2", "+optim.eps=1e-9"], "An item is already at 'optim.eps'"),
        (["--config-name", "confg"], "--config-name=confg: there is no such config"),
        (["--config-dir", "nowhere"], "--config-dir=nowhere: there is no such folder"),
        (["-cd=nowhere"], "-cd=nowhere: there is no such folder"),
        (["--config-name="], "--config-name= is empty"),
        (["--config-path", "mine"], "--config-path=mine would replace the configs that every study is made of"),
        (["--cfg", "jbo"], "--cfg=jbo is not allowed: choose one of job, hydra, all"),
        (["--info=jbo"], "--info=jbo is not allowed: choose one of all, config,"),
        (["eval.count=${eval.cuont}"], "eval.cuont"),
        (["data=text"], "data.source has no value yet"),
        (["+model.extra=3"], "unknown key 'model.extra'"),
        (["~model.extra"], "unknown key 'model.extra'"),
        (["~model"], "~model: nothing can be deleted from a config; leave the word out, or give model=OPTION"),
        (["~model=tiny"], "~model=tiny: nothing can be deleted from a config"),
        (["~study.name"], "~study.name: nothing can be deleted from a config; leave the word out, or give study.name="),
        (["--cfg", "job", "~optim"], "~optim: nothing can be deleted from a config"),
        (["model=null"], "model=null is not allowed: a section cannot be empty; leave the word out, or give a key of"),
        (["-m", "optim=adamw,null"], "optim=null is not allowed: a section cannot be empty"),
        (
            ["paths=null"],
            "paths=null is not allowed: a section cannot be empty; leave the word out, or give a key",
        ),
        (["paths.runs=null"], "paths.runs=null is not allowed: it takes text"),
        (["--cfg", "job", "study=null"], "study=null is not allowed: a section cannot be empty"),
        (["retry.failures=-1"], "retry.failures=-1 is not allowed: 0 or more"),
        (["cluster.sbatch.hint=x"], "options are given together, as 'cluster.sbatch={hint: VALUE}'"),
        (["cluster.memory=3"], "unknown key 'cluster.memory': did you mean cluster.mem_gb?"),
        (["--mutlirun"], "did you mean --multirun?"),
        (["--config-dir"], "--config-dir needs a value"),
        (["study.name=a/b"], "study.name='a/b' is not a folder name"),
        (["-m", "study.name=a,b"], "study differs between points (name=a and name=b)"),
        (["cluster.executor=pbs"], "choose one of local, slurm"),
        (["--cfg", "job", "seed=many"], "seed='many' is not allowed"),
        (["budget.flops=1e11", "budget.tokens=128"], "give only one of them"),
    ],
)
def test_what_a_person_got_wrong_is_said_in_two_lines(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["dry_run=true", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) <= 2
    assert "Traceback" not in said
    assert list(here.iterdir()) == []


def test_yaml_of_ones_own_is_checked_and_found(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine" / "model").mkdir(parents=True)
    (here / "mine" / "model" / "wide.yaml").write_text("widht: 512\n")
    assert main(["--config-dir", "mine", "model=wide", "dry_run=true"]) == 2
    assert "did you mean model.width?" in capsys.readouterr().err
    (here / "mine" / "model" / "wide.yaml").write_text("width: 512\n")
    assert main(["model=wide", "dry_run=true", "--config-dir=mine"]) == 0
    assert "512 x 2" in capsys.readouterr().out


def test_a_config_of_ones_own_is_built_on_ours(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config-dir", ".", "--config-name", "mine", "budget.tokens=12800", "dry_run=true"]
    (here / "mine.yaml").write_text("seed: 7\n")
    assert main(words) == 2
    assert "mine.yaml is built on no config: begin it with defaults: [config, _self_]" in capsys.readouterr().err
    (here / "mine.yaml").write_text("defaults: [config, _self_]\nseed: 7\n")
    assert main(words) == 0


def test_broken_yaml_of_ones_own_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine" / "model").mkdir(parents=True)
    (here / "mine" / "model" / "wide.yaml").write_text("width: [512\n")
    assert main(["--config-dir", "mine", "model=wide", "dry_run=true"]) == 2
    assert "wide.yaml" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said(
    here: Path, execution: Execution, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs").write_text("a file")
    assert main(["budget.tokens=12800"]) == 2
    assert f"paths.runs=runs: {here}/runs is no folder that can be written to" in capsys.readouterr().err
    assert execution.prepared == []
    search = ["search=random", "budget.tokens=12800", "-m", "optim.lr=interval(0.001,0.01)"]
    for words in ([], search):
        for runs, said in (("runs", f"{here}/runs is"), ("/proc/here", "/proc is")):
            assert main(["dry_run=true", f"paths.runs={runs}", *words]) == 2
            assert f"paths.runs={runs}: {said} no folder that can be written to" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["cluster=slurm"]])
def test_a_dry_run_shows_what_would_be_started(
    here: Path, execution: Execution, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Points that have ended are in the table, but start nothing again."""
    asked = [*words, "study.name=mine", "budget.tokens=12800", "-m", "seed=1,2,3"]
    assert main(asked) == 0
    points = [json.loads(line)["key"] for line in (here / "runs" / "mine" / "points.jsonl").read_text().splitlines()]
    capsys.readouterr()
    for ended in range(4):
        for key in points[:ended]:
            (here / "runs" / "mine" / key).mkdir(exist_ok=True)
            (here / "runs" / "mine" / key / "outcome.json").write_text('{"state": "completed"}')
        assert main(["dry_run=true", *asked]) == 0
        said = capsys.readouterr().out
        assert f"3 already in {here}/runs/mine ({ended} completed)" in " ".join(said.split())
        if words:
            jobs = "1 job of" if ended == 2 else f"{3 - ended} jobs of"
            assert (jobs in said) == (ended < 3) and ("would be submitted with sbatch" in said) == (ended < 3)
        else:
            started = [line.split("/")[-2] for line in said.splitlines() if line.startswith("python -m train.run")]
            assert started == points[ended:]


def test_a_search_and_points_of_ones_own_share_no_study(
    here: Path, execution: Execution, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each would hide the other's runs: a search shows its trials, and nothing else."""
    assert main(["study.name=mine"]) == 0
    before = (here / "runs" / "mine" / "points.jsonl").read_text()
    search = ["search=random", "dry_run=true", "-m", "optim.lr=interval(0.001,0.01)"]
    assert main(["study.name=mine", *search]) == 2
    assert "study.name=mine: this study has points that no search made (1)" in capsys.readouterr().err
    assert sorted(path.name for path in (here / "runs").iterdir()) == ["mine"]
    (here / "runs" / "found").mkdir()
    (here / "runs" / "found" / "search.json").write_text("{}")
    assert main(["study.name=found"]) == 2
    assert "study.name=found: that study is a search" in capsys.readouterr().err
    assert (here / "runs" / "mine" / "points.jsonl").read_text() == before
    assert not (here / "runs" / "found" / "points.jsonl").exists()


@pytest.mark.parametrize("words", ["study.sweep --help", "study --help", "study status --help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough_is_no_error(here: Path, words: str, unbuffered: str) -> None:
    """`python -m study.sweep --help | head` ends without a word."""
    # The reader has gone before the first word is written.
    script = f"{{ sleep 0.2; exec {shlex.quote(sys.executable)} -m {words}; }} | true; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["bash", "-c", script], cwd=here, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_slurm_returns_with_the_next_commands(
    here: Path, execution: Execution, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study=smoke", "cluster=slurm", "-m", "seed=0,1"]) == 0
    ((name, keys, cluster),) = execution.started
    assert (name, len(keys), cluster.executor, execution.followed) == ("smoke", 18, "slurm", [])
    assert execution.prepared == ["code"]
    shown = capsys.readouterr().out
    for command in ("status", "watch", "logs"):
        assert f"python -m study {command} smoke" in shown
    folder = StudyFolder(here / "runs" / "smoke")
    points = load_points(folder)
    assert sorted(points) == sorted(keys)
    assert {p.config.data.fingerprint for p in points.values()} == {"f" * 12}
    assert all(len(p.overrides) == 4 for p in points.values()), "what tells points apart, and no more"
    settings = yaml.safe_load(folder.study.read_text())
    assert settings["cluster"]["executor"] == "slurm"
    assert settings["tracking"]["uri"] == f"sqlite:///{here}/mlflow.db"
    assert settings["run_defaults"]["model"]["head_dim"] == 16
    assert sorted(p.name for p in here.iterdir()) == ["runs"], "Hydra leaves no folders of its own"


def test_a_point_differs_from_the_base_by_what_sets_it_apart(here: Path, execution: Execution) -> None:
    """The default study asks for 20 tokens per parameter: no point does where a number of tokens was given."""
    assert main(["study=default", "cluster=slurm", "budget.tokens=65536", "-m", "seed=1,2"]) == 0
    folder = StudyFolder(here / "runs" / "default")
    base = read_run(load_section(folder, "run_defaults"), "run_defaults")
    assert base.budget == BudgetConfig(tokens=65536)
    found = [differences(folder, point).keys() for point in load_points(folder).values()]
    assert found == [set(), {"seed"}]


def test_the_same_command_twice_writes_nothing_twice(
    here: Path, execution: Execution, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study=smoke", "cluster=slurm"]
    assert main(command) == 0
    files = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in (here / "runs").rglob("*.[jy]*")}
    assert files
    assert "Submitted; the jobs no longer need this process." in capsys.readouterr().out
    assert main(command) == 0
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files} == files
    assert execution.prepared == ["code"]
    assert execution.started[0] == execution.started[1]
    shown = capsys.readouterr().out
    assert "0 new, 9 already in" in shown
    assert "Nothing new to submit." in shown
    assert "Submitted" not in shown


def test_a_point_that_diverged_is_shown_as_that(
    here: Path, execution: Execution, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study=smoke", "cluster=slurm"]) == 0
    folder = StudyFolder(here / "runs/smoke")
    first, second = sorted(load_points(folder))[:2]
    for key, state in ((first, "diverged"), (second, "completed")):
        folder.run(key).path.mkdir(exist_ok=True)
        folder.run(key).outcome.write_text(f'{{"format": 1, "state": "{state}"}}')
    capsys.readouterr()
    assert main(["study=smoke", "cluster=slurm"]) == 0
    shown = capsys.readouterr().out
    assert "0 new, 9 already in" in shown and "(1 completed, 1 diverged)" in shown
    assert f"{first} diverged" in " ".join(shown.split())


def test_reading_the_text_more_than_once_is_said(
    here: Path, execution: Execution, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster=slurm", "budget.tokens=2560000"]) == 0
    assert "reads the training text 2.6 times" in capsys.readouterr().out


def test_duplicate_points_are_one_point(here: Path, execution: Execution, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster=slurm", "-m", "budget.tokens=12800", "model.kv_heads=2,null"]) == 0
    assert len(execution.started[0][1]) == 1
    assert "1 duplicate dropped" in capsys.readouterr().out


@pytest.mark.parametrize("code", [0, 1])
def test_local_stays_and_its_exit_code_is_the_commands(here: Path, execution: Execution, code: int) -> None:
    execution.code = code
    assert main(["budget.tokens=12800"]) == code
    assert execution.followed == ["local"]


def test_wait_stays_with_slurm(here: Path, execution: Execution) -> None:
    execution.code = 1
    assert main(["budget.tokens=12800", "cluster=slurm", "wait=true"]) == 1
    assert execution.followed == ["slurm"]


def test_points_on_several_clusters_are_followed_once_as_one_study(here: Path, execution: Execution) -> None:
    words = ["wait=true", "-m", "seed=1,2", "cluster.time_minutes=${seed}", "budget.tokens=12800"]
    assert main(["cluster=slurm", *words]) == 0
    assert [cluster.time_minutes for _, _, cluster in execution.started] == [1, 2]
    assert execution.followed == ["slurm"], "Ctrl-C is said once"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"name":"cosine"', '"name":"stairs"'), "schedule.name='stairs' is not allowed: choose one of cosine, wsd"),
        (('"muon_scale"', '"muon_size"'), "unknown key 'optim.muon_size': did you mean 'optim.muon_scale'?"),
    ],
)
def test_what_other_code_froze_is_named(
    here: Path, execution: Execution, change: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its runs would fail here, where status said nothing and the sweep submitted more of them."""
    asked = ["study.name=mine", "budget.tokens=12800", "-m", "seed=1,2,3"]
    assert main(asked) == 0
    study = here / "runs" / "mine"
    first, second, third = (study / "points.jsonl").read_text().splitlines()
    capsys.readouterr()
    assert main(["dry_run=true", *asked]) == 0
    assert "frozen by other code" not in capsys.readouterr().out
    changed = [line.replace(*change) for line in (first, second)]
    (study / "points.jsonl").write_text("\n".join([*changed, third]) + "\n")
    named = f"{json.loads(first)['key']} and 1 point more: a point of this study was frozen by other code ({said}"
    assert main(["dry_run=true", *asked]) == 0
    assert named in capsys.readouterr().out
    assert study_main(["status", "mine"]) == 0
    assert named in " ".join(capsys.readouterr().out.split())


def test_a_path_is_shown_as_it_is(here: Path, execution: Execution, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster=slurm", "budget.tokens=12800", "paths.runs='my [old] runs'"]) == 0
    named = [line.strip() for line in capsys.readouterr().out.splitlines() if "study status" in line]
    assert named == [f"python -m study status default --runs '{here}/my [old] runs'  # what each point is doing"]


def test_points_of_different_resources_are_started_apart(here: Path, execution: Execution) -> None:
    words = ["cluster=slurm", "-m", "seed=1,2", "cluster.gpus_per_node='${seed}'", "budget.tokens=12800"]
    assert main(words) == 0
    shapes = [(len(keys), cluster.gpus_per_node) for _, keys, cluster in execution.started]
    assert shapes == [(1, 1), (1, 2)]
    words = ["cluster=slurm", "-m", "cluster.gpus_per_node=2", "seed=5", "budget.tokens=12800"]
    assert main(words) == 0
    assert execution.started[-1][2].gpus_per_node == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cluster=local,slurm"], "cluster=local and cluster=slurm make one and the same point"),
        (["cluster.gpus_per_node=1,2"], "cluster.gpus_per_node=1 and cluster.gpus_per_node=2 make one"),
        (["search.seed=1,2"], "search.seed=1 and search.seed=2 make one and the same point"),
        (["search=isoflop,random"], "search=isoflop,random: all points of a command are of one study and one search"),
        (["study=isoflop,lr"], "study=isoflop,lr: all points of a command are of one study"),
        (["runtime.threads=1,2"], "runtime.threads=1 and runtime.threads=2 make one"),
        (["parallel=ddp,fsdp", "model.width=64,96"], "parallel=ddp and parallel=fsdp make one"),
        (["optim.lr=1e-3,0.001", "cluster.nice='${seed}'"], ""),
        (["optim.lr=1e-3,0.001"], ""),
    ],
)
def test_a_list_that_makes_no_points_is_refused_before_the_data_is_prepared(
    here: Path, execution: Execution, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of them would have been dropped as a duplicate of the first."""
    assert main(["budget.tokens=12800", "-m", *words]) == (2 if said else 0)
    assert said in capsys.readouterr().err
    assert bool(execution.prepared) != bool(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.width=63"], "model.width=63"),
        (["model.init_from=/nowhere"], "model.init_from=/nowhere: there is no such folder"),
        (["schedule.parent=/nowhere"], "schedule.parent=/nowhere: there is no such folder"),
        (["search=asha", "-m", "optim.lr=interval(1e-4,1e-2)"], "a search compares trials at equal tokens"),
        (
            ["search=asha", "search.eta=1", "budget.tokens=12800", "-m", "optim.lr=1e-3,1e-2"],
            "search.eta=1 is not allowed",
        ),
    ],
)
def test_a_wrong_config_fails_before_the_data_is_prepared(
    here: Path, execution: Execution, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert execution.prepared == []


@pytest.mark.parametrize("word", ["tracking.uri=ftp://host/x", "cluster.slots=0", "study.name=-x"])
def test_settings_that_cannot_be_are_refused_before_anything_is_written(
    here: Path, execution: Execution, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget.tokens=12800", word]) == 2
    assert capsys.readouterr().err.startswith(f"study.sweep: {word.partition('=')[0]}=")
    assert (list(here.iterdir()), execution.prepared) == ([], [])


def test_a_corpus_that_is_not_prepared_is_named(
    here: Path, execution: Execution, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data.vocab_size=512", "budget.tokens=12800", "dry_run=true"]) == 0
    assert "The corpus code-bpe512 is not prepared" in capsys.readouterr().out


def test_one_point_is_not_named_by_its_data(here: Path, execution: Execution) -> None:
    words = ["data=bytes", "data.validation_fraction=0.1", "model.width=96", "budget.tokens=12800"]
    assert main(["cluster=slurm", *words]) == 0
    (point,) = load_points(StudyFolder(here / "runs" / "default")).values()
    assert point.overrides == ("model.width=96", "budget.tokens=12800")


def test_points_added_later_are_told_apart_from_those_before(here: Path, execution: Execution) -> None:
    """The seed of a second command is the same in all of its points, and no other than theirs has it."""
    words = ["cluster=slurm", "budget.tokens=12800", "optim.lr_scale=0.7", "-m", "model.width=64,96"]
    assert main(words) == 0
    assert main([*words, "seed=1"]) == 0
    points = load_points(StudyFolder(here / "runs" / "default")).values()
    assert [p.overrides for p in points] == [
        ("model.width=64",), ("model.width=96",), ("model.width=64", "seed=1"), ("model.width=96", "seed=1"),
    ]  # fmt: skip


def test_hydras_own_sweeper_drives_our_launcher(here: Path, execution: Execution) -> None:
    words = ["hydra/sweeper=basic", "cluster=slurm", "budget.tokens=12800", "-m", "seed=1,2", "hydra.sweep.dir=swept"]
    assert main(words) == 0
    assert len(execution.started[0][1]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hydra/sweeper=basic", "study=smoke"], "it does not know the design search=isoflop"),
        (["hydra/sweeper=basic", "dry_run=true"], "it writes multirun.yaml, and dry_run=true writes nothing"),
        (["hydra/launcher=basic"], "cluster=local runs points on this machine"),
        (["hydra/launcher=basic", "hydra/sweeper=basic"], "cannot be chosen here"),
        (["--shell-completion", "install=bash"], "source <(python -m study completion bash)"),
    ],
)
def test_what_of_hydras_cannot_be_used_is_said(
    here: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget.tokens=12800", *words, "-m", "seed=1,2"]) == 2
    assert said in capsys.readouterr().err


def test_numbers_come_from_the_environment(here: Path, execution: Execution, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATE", "3e-4")
    assert main(["cluster=slurm", "budget.tokens=12800", "study.name=x", "optim.lr=${oc.env:RATE}"]) == 0
    assert [p.config.optim.lr for p in load_points(StudyFolder(Path("runs/x"))).values()] == [3e-4]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["-m", "model=glob(*)", "budget.tokens=12800"], len(MODELS)),
        (["hydra.sweeper.params={seed:'1,2,3'}", "budget.tokens=12800"], 3),
    ],
)
def test_lists_of_every_kind(here: Path, execution: Execution, words: list[str], count: int) -> None:
    assert main(["cluster=slurm", *words]) == 0
    assert len(execution.started[0][1]) == count


def test_data_is_prepared_first_by_a_process_of_its_own(
    here: Path, execution: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(here)
    (here / "text").mkdir()
    for number in range(60):
        (here / "text" / f"{number}.txt").write_text(f"document {number} says {number * number} and little more\n" * 40)
    stand_in(monkeypatch, step=execution.step, follow=execution.follow)
    words = ["data=text", "data.source=text", "data.tokenizer=bytes", "data.vocab_size=257", "budget.tokens=12800"]
    assert main([*words, "data.validation_fraction=0.2", "eval.sequences=16"]) == 0
    (point,) = load_points(StudyFolder(here / "runs" / "default")).values()
    manifest = json.loads((here / "data" / "text-bytes257" / "manifest.json").read_text())
    assert point.config.data.fingerprint == manifest["fingerprint"]
    assert point.config.data.source == str(here / "text")
    assert main([*words, "data.validation_fraction=0.2", "eval.sequences=100000"]) == 2
    assert len(execution.started) == 1, "what the corpus cannot give is refused before anything starts"


def test_data_is_prepared_in_a_job_where_runs_are_jobs() -> None:
    cluster = ClusterConfig(
        executor="slurm", cpus_per_task=8, gpus_per_node=4, time_minutes=30, partition="main", mem_gb=2.0,
        setup=("module load python",), prefix=("apptainer", "exec", "an image.sif"), python="python3",
    )  # fmt: skip
    command = srun_command(["-m", "train.prepare", "--root", "da ta"], cluster)
    assert command[:5] == ["srun", "--job-name=prepare-data", "--nodes=1", "--ntasks=1", "--cpus-per-task=8"]
    assert {"--time=30", "--partition=main", "--mem=2048M"} <= set(command)
    assert not any("gpu" in word or "account" in word for word in command)
    script = "module load python\nexec apptainer exec 'an image.sif' python3 -m train.prepare --root 'da ta'"
    assert command[-3:] == ["bash", "-c", script]
    further = {"comment": "night", "wckey": "w", "gres": "gpu:2,lscratch:5", "contiguous": True, "gpu-bind": "none",
               "gpus": 4, "mem-per-gpu": "4G", "hold": True, "begin": "16:00", "get-user-env": True}  # fmt: skip
    given = srun_command(["x"], replace(cluster, sbatch=further, nice=5))
    assert set(given) - set(srun_command(["x"], cluster)) == {
        *("--comment=night", "--wckey=w", "--gres=lscratch:5", "--contiguous", "--nice=5")
    }
    assert given[-3] == "bash", "what is run comes last"
    assert not any("gres" in word for word in srun_command(["x"], replace(cluster, sbatch={"gres": "gpu:1"})))
    assert not prepare_data.in_job(ClusterConfig())
    assert not prepare_data.in_job(ClusterConfig(executor="slurm", prepare="here"))


def test_data_is_prepared_in_a_job_of_its_own_also_from_within_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").write_text(f"#!/bin/sh\nenv > {tmp_path}/seen\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    data = DataConfig(name="d")
    prepare_data.prepare(corpus.Corpus(data, str(tmp_path / "data")), ClusterConfig(executor="slurm"))
    seen = (tmp_path / "seen").read_text().splitlines()
    assert "SLURM_CONF=/etc/slurm.conf" in seen and not any("SLURM_JOB_ID" in line for line in seen)
    assert list((tmp_path / "data").iterdir()) == []


def test_what_a_killed_command_left_of_preparing_data_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    wanted = corpus.Corpus(DataConfig(name="d"), str(tmp_path / "data"))
    monkeypatch.setattr(prepare_data, "_wait_for", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    child = os.fork()
    if child == 0:
        prepare_data.prepare(wanted, ClusterConfig())
        os._exit(0)
    os.waitpid(child, 0)
    (left,) = (tmp_path / "data").iterdir()
    assert left.name.startswith(f".prepare-{os.uname().nodename}-{child}-")
    others = {
        name: tmp_path / "data" / f".prepare-{name}" for name in (f"a-host-{child}-x", f"a-host-{child}-y", "old")
    }
    others["mine"] = tmp_path / "data" / f".prepare-{os.uname().nodename}-{os.getpid()}-x"
    for folder in others.values():
        folder.mkdir()
    os.utime(others[f"a-host-{child}-y"], (0, 0))
    monkeypatch.setattr(prepare_data, "_wait_for", lambda *_: 0)
    prepare_data.prepare(wanted, ClusterConfig())
    kept = {others[f"a-host-{child}-x"], others["old"], others["mine"]}
    assert set((tmp_path / "data").iterdir()) == kept, "of others nobody here knows whether they live"


def test_options_and_overrides_stand_in_any_order() -> None:
    arguments = split(["a=1", "-m", "--config-dir", ".", "b=2", "--cfg=job"])
    assert arguments.options == ("-m", "--config-dir", ".", "--cfg=job")
    assert arguments.overrides == ("a=1", "b=2")
    assert arguments.value("--cfg", "-c") == "job"
    assert arguments.value("--config-dir") == "."
    assert arguments.value("--package") is None


def test_a_word_after_an_option_without_a_value_is_an_override() -> None:
    """Hydra took `--info study=isoflop` for a wrong value of --info."""
    assert split(["--info", "study=isoflop"]) == Arguments(("--info=all",), ("study=isoflop",))
    assert split(["--info", "plugins", "seed=1"]) == Arguments(("--info=plugins",), ("seed=1",))
    assert split(["seed=1", "-i"]) == Arguments(("-i=all",), ("seed=1",))


@pytest.mark.parametrize("option", ["--hydra-help", "--info", "--version"])
def test_hydras_own_options_are_hydras(tmp_path: Path, option: str) -> None:
    done = run(tmp_path, option)
    assert done.returncode == 0, done.stderr
    assert "Hydra" in done.stdout or "hydra" in done.stdout


def test_help_is_quick_to_read_and_needs_no_hydra(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("Make the points of a study")
    code = "import sys; from study.sweep.__main__ import main; main(['--help']); assert 'hydra' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("example", [words for words, _ in EXAMPLES])
def test_the_examples_of_the_help_work(here: Path, example: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*shlex.split(example), "dry_run=true"]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_an_installed_wheel_finds_its_conf(tmp_path: Path) -> None:
    import shutil

    source, wheels, target = tmp_path / "source", tmp_path / "wheels", tmp_path / "site"
    source.mkdir()
    for name in ("study", "train", "sweeps", "kernels", "analysis", "hydra_plugins", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    install = [*pip, "install", "-q", "--no-deps", "--no-index", "--no-compile", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    command = [sys.executable, "-m", "study.sweep", "study=smoke", "dry_run=true"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": python_path(target)}
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Study smoke: 9 points" in done.stdout


def test_the_precision_study_makes_its_runs_side_by_side(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study=precision", "dry_run=true"]) == 0
    assert re.findall(r"precision=(\w+) ", capsys.readouterr().out) == ["fp32", "bf16", "fp16", "fp8"]
    assert main(["study=precision", "dry_run=true", "-m", "precision=bf16,fp8_rowwise"]) == 0
    assert re.findall(r"precision=(\w+) ", capsys.readouterr().out) == ["bf16", "fp8_rowwise"], "others on request"


def test_a_key_that_is_given_twice_is_said_with_what_counts() -> None:
    words = ["model=tiny", "model.width=64", "seed=1", "model.width=64", "+model.width=96", "model=small", "-m"]
    assert repeated(words) == [
        "model.width is given twice: +model.width=96 counts, model.width=64 does not",
        "model is given twice: model=small counts, model=tiny does not",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-m schedule=glob(zz*)", "schedule=glob(zz*) fits no option of schedule: there are constant, cosine, "),
        ("+schedule=linear", "+schedule=… adds what a config has already: write schedule=OPTION"),
        ("model.width=${nope}", "model.width refers to ${nope}, which is no key: name one in full"),
        ("model.width=${oc.env:NO_SUCH}", "model.width cannot be resolved: Environment variable 'NO_SUCH' not found"),
        ("--config-dir own experiment=small", "experiment= is a group that is added to a config: write +experiment="),
    ],
)
def test_what_hydra_understands_and_nobody_means(
    words: str, said: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "own/experiment").mkdir(parents=True)
    (here / "own/experiment/small.yaml").write_text("# @package _global_\nmodel: {width: 32, layers: 1}\n")
    assert main(["study.name=a", "dry_run=true", *words.split()]) == 2
    assert said in capfd.readouterr().err
    assert not (here / "runs").exists()


def test_a_glob_is_over_the_options_of_a_folder_of_ones_own(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "own/experiment").mkdir(parents=True)
    for width in (32, 64):
        text = f"# @package _global_\nmodel: {{width: {width}, layers: 1}}\n"
        (here / f"own/experiment/of{width}.yaml").write_text(text)
    assert main(["--config-dir", "own", "study.name=a", "dry_run=true", "-m", "+experiment=glob(of*)"]) == 0
    assert "Study a: 2 points" in capfd.readouterr().out
