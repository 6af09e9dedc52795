"""A study goes on with the rules that it was begun with, and says so."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from study.reconcile.step import Stepped
from study.records.points import load_points
from study.search.settings import as_begun, load, refuse_another
from study.search.trial_point import trial_point
from study.search.trial_queue import TrialQueue
from study.storage.layout import StudyFolder
from study.sweep.__main__ import main
from tests.study.support.recorded import SAID, unpack
from tests.study.support.stand_ins import stand_in
from train.spec.config import SCIENTIFIC
from train.spec.counts import params

SEARCH = ["-m", *SAID, "study.name=searched", "search=asha", "search.eta=2", "search.min_tokens=2048", "model.width=16"]
LR = "optim.lr=tag(log,interval(1e-4,1e-2))"
HANGS = {
    "space": {
        "optim.name": {"kind": "choice", "values": ["adamw", "muon"]},
        "optim.lr": {"kind": "interval", "low": 1e-4, "high": 1e-2},
    },
    "conditions": {"optim.lr": {"on": "optim.name", "values": ["muon"]}},
}
"""The learning rate is drawn for one optimizer only."""
COMMAND = ["-m", *SAID, "model.width=64,96", "budget.tokens=8192,65536", "optim.lr_scale=0.1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(unpack(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    stand_in(monkeypatch, step=lambda *arguments: Stepped(), follow=lambda *arguments: 0)
    return tmp_path


def begun_before(here: Path, name: str) -> StudyFolder:
    """A study as the version before there was a choice of rules left it: without the key."""
    assert main([f"study.name={name}", "optim.lr_rule=null", *COMMAND]) == 0
    folder = StudyFolder(here / "runs" / name)
    for path, key in ((folder.points, '"lr_rule":null,'), (folder.study, "    lr_rule: null\n")):
        text = path.read_text()
        assert key in text
        path.write_text(text.replace(key, ""))
    return folder


def test_a_study_whose_init_std_was_that_of_every_width_goes_on_so(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [*COMMAND, "optim.lr=0.01", "model.mup_base_width=32", "model.init_std=0.05"]
    assert main(["study.name=before", "model.init_std_at=width", *command]) == 0
    folder = StudyFolder(here / "runs" / "before")
    for path, key in ((folder.points, '"init_std_at":"width",'), (folder.study, "    init_std_at: width\n")):
        text = path.read_text()
        assert key in text
        path.write_text(text.replace(key, ""))
    for _ in range(2):  # and what that wrote is gone on with as well
        capfd.readouterr()
        assert main(["study.name=before", *command]) == 0
        said = " ".join(capfd.readouterr().out.split())
        assert "0 new, 4 already" in said
        assert "Study before was begun by a version that took model.init_std" in said
    assert {point.config.model.init_std_at for point in load_points(folder).values()} == {"width"}
    assert main(["study.name=before", "dry_run=true", "model.init_std_at=base", *command]) == 0
    said = capfd.readouterr().out
    assert "4 new, 0 already" in said and "begun by a version" not in said
    assert main(["study.name=after", *command]) == 0
    assert "begun by a version" not in capfd.readouterr().out
    after = load_points(StudyFolder(here / "runs" / "after")).values()
    assert {point.config.model.init_std_at for point in after} == {"base"}


@pytest.mark.parametrize("rates", ["0.01,null", "null,0.01"])
def test_a_rule_that_says_something_of_a_later_point_only_goes_on_too(
    rates: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [*(word for word in COMMAND if not word.startswith("model.width")), f"optim.lr={rates}"]
    assert main(["study.name=mixed", "optim.lr_rule=null", *command]) == 0
    folder = StudyFolder(here / "runs" / "mixed")
    for path, key in ((folder.points, '"lr_rule":null,'), (folder.study, "    lr_rule: null\n")):
        path.write_text(path.read_text().replace(key, ""))
    given = [*(word for word in command if not word.startswith("optim.lr=")), "optim.lr=0.01"]
    capfd.readouterr()
    assert main(["study.name=mixed", *given]) == 0
    said = capfd.readouterr().out
    assert "0 new, 2 already" in said and "begun by a version" not in said, "nothing follows from it here"
    for _ in range(2):  # and it was not forgotten by that
        assert main(["study.name=mixed", *command]) == 0
        said = " ".join(capfd.readouterr().out.split())
        assert "0 new, 4 already" in said and "Study mixed was begun by a version whose rule" in said


def rates(folder: StudyFolder) -> list[tuple[float, int, int, int]]:
    """Learning rate, N with and without the head, D of each point."""
    found = []
    for point in load_points(folder).values():
        config = point.config
        counts = params(config.model, config.data.vocab_size)
        assert config.optim.lr is not None and config.optim.lr_rule is None
        found.append((config.optim.lr, counts.matmul, counts.non_embedding, point.tokens))
    return found


def test_a_study_of_the_version_before_goes_on_and_its_points_stay(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = begun_before(here, "before")
    capfd.readouterr()
    for lr, with_head, _, tokens in rates(folder):
        assert lr == pytest.approx(0.1 * min(0.05, 1.79 * with_head**-0.713 * tokens**0.307), rel=1e-3)
    assert main(["study.name=before", "dry_run=true", *COMMAND]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "0 new, 4 already" in said
    assert "Study before was begun by a version whose rule" in said and "optim.lr_rule=step_law" in said
    assert main(["study.name=before", *COMMAND]) == 0  # and what that wrote is gone on with as well
    capfd.readouterr()
    assert main(["study.name=before", "dry_run=true", *COMMAND]) == 0
    assert "0 new, 4 already" in capfd.readouterr().out
    assert main(["study.name=before", "dry_run=true", "optim.lr_rule=step_law", *COMMAND]) == 0
    said = capfd.readouterr().out
    assert "4 new, 0 already" in said and "begun by a version" not in said


def test_a_new_study_takes_the_rule_as_published(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["study.name=after", *COMMAND]) == 0
    said = capfd.readouterr().out
    assert "4 new" in said and "0 new, 4 already" in said and "begun by a version" not in said
    for lr, _, without_head, tokens in rates(StudyFolder(here / "runs/after")):
        assert lr == pytest.approx(0.1 * min(0.05, 1.79 * without_head**-0.713 * tokens**0.307), rel=1e-3)


def test_a_trunk_and_its_branches_have_the_rule_of_their_study(here: Path) -> None:
    branched = ["search=trunk_and_branch", "search.shapes=[{width: 64, layers: 4}]", "search.tokens=[65536,262144]"]
    words = [*[word for word in COMMAND if not word.startswith(("model", "budget"))], "model.head_dim=8", *branched]
    found = {}
    for name, rule in (("new", "step_law"), ("old", "null")):
        assert main([f"study.name={name}", f"optim.lr_rule={rule}", *words]) == 0
        ((lr, with_head, without_head, _),) = {(*one[:3], 0) for one in rates(StudyFolder(here / "runs" / name))}
        found[name] = lr, without_head if rule == "step_law" else with_head
    for lr, n in found.values():
        assert lr == pytest.approx(0.1 * min(0.05, 1.79 * n**-0.713 * 131072**0.307), rel=1e-3)
    assert found["new"][0] > found["old"][0]


def test_a_search_of_the_version_before_is_no_other_search(here: Path) -> None:
    folder = StudyFolder(here / "runs/searched")
    there = load(folder)
    assert there is not None
    optim = dict(there.base["optim"])
    assert optim["lr"] is None and "lr_rule" not in optim
    kept = {**there.base, "optim": {**optim, "lr_rule": None}}
    assert refuse_another(folder, replace(there, base=kept)) == there
    ruled = {**kept, "optim": {**optim, "lr_rule": "step_law"}}
    assert refuse_another(folder, replace(there, base=ruled)) == there, "each trial has a learning rate of its own"
    space = {"optim.beta1": {"kind": "interval", "low": 0.8, "high": 0.99, "log": False}}
    there = replace(there, space=space)
    folder.search.write_text(json.dumps({"format": 1, **asdict(there)}))
    with pytest.raises(ValueError, match=r"holds another search \(different: optim.lr_rule\)"):
        refuse_another(folder, replace(there, base=ruled))


def test_the_command_of_a_recorded_search_goes_on_with_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Defaults have changed since: whether blocks are compiled, and two rules that say nothing of its trials."""
    monkeypatch.setattr("study.workers.pool.stay", lambda *arguments: 0)
    folder = StudyFolder(here / "runs/searched")
    before = after = load(folder)
    assert before is not None
    words = [*SEARCH, "budget.tokens=8192", LR]
    for trials in (6, 8, 8):
        assert main([*words, f"search.trials={trials}"]) == 0
        said = capfd.readouterr()
        assert "asha over optim.lr" in said.out and "begun by a version" not in said.out + said.err
        after = load(folder)
        assert after is not None and after.trials == trials
        science = {name: before.base[name] for name in SCIENTIFIC}
        assert {name: after.base[name] for name in SCIENTIFIC} == science, "its points stay what they are"
    assert after is not None
    assert after.base["compile"]["blocks"] is None, "as the command says it now"
    for trial in TrialQueue.of(folder).search.trials.values():
        assert trial_point(after, trial.config).key == trial.key
    for words_more in (["optim.lr_rule=step_law", "model.init_std_at=base"], ["runtime.log_steps=9"]):
        assert main([*words, "search.trials=8", "dry_run=true", *words_more]) == 0


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("model.layers=2", "model.layers"),
        ("seed=7", "seed"),
        ("search.seed=7", "search.seed"),
        ("optim.beta1=0.8", "optim.beta1"),
        ("optim.z_loss=0.1", "optim.z_loss"),
    ],
)
def test_another_search_is_refused_by_the_key_that_differs(
    word: str, named: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = (here / "runs/searched/search.json").read_text()
    assert main([*SEARCH, "budget.tokens=8192", "search.trials=6", LR, word]) == 2
    assert f"study searched holds another search (different: {named}): " in capfd.readouterr().err
    assert (here / "runs/searched/search.json").read_text() == before


@pytest.mark.parametrize(
    ("changes", "key", "value", "counts"),
    [
        ({}, "optim.lr_rule", "step_law", False),
        ({"space": {}}, "optim.lr_rule", "step_law", True),
        (HANGS, "optim.lr_rule", "step_law", True),
        ({"space": {"optim.lr": {"kind": "choice", "values": [0.01, None]}}}, "optim.lr_rule", "step_law", True),
        ({}, "model.init_std_at", "base", False),
        ({"mup": 8}, "model.init_std_at", "base", False),
        ({"mup": 8, "std": 0.05}, "model.init_std_at", "base", True),
        ({"space": {"model.mup_base_width": {"kind": "choice", "values": [8, 16]}}, "std": 0.05},
         "model.init_std_at", "base", True),
        ({}, "compile.blocks", True, False),
        ({}, "parallel.zero", 2, False),
        ({}, "parallel.tp", 2, True),
        ({}, "data.source", "/elsewhere", False),
        ({}, "runtime.data_root", "/elsewhere", False),
    ],
)  # fmt: skip
def test_what_touches_a_point_of_a_search_counts(
    changes: dict[str, Any], key: str, value: object, counts: bool, here: Path
) -> None:
    folder = StudyFolder(here / "runs/searched")
    recorded = load(folder)
    assert recorded is not None
    model = {**recorded.base["model"], "mup_base_width": changes.get("mup"), "init_std": changes.get("std")}
    said = {name: changes[name] for name in ("space", "conditions") if name in changes}
    there = replace(recorded, base={**recorded.base, "model": model}, **said)
    folder.search.write_text(json.dumps({"format": 1, **asdict(there)}))
    section, _, name = key.partition(".")
    asked = replace(there, base={**there.base, section: {**there.base[section], name: value}})
    wanted = as_begun(there, asked, None)
    if counts:
        with pytest.raises(ValueError, match=rf"holds another search \(different: {key}\)"):
            refuse_another(folder, wanted)
        return
    assert refuse_another(folder, wanted) is not None
    place = key in ("compile.blocks", "parallel.zero", "data.source", "runtime.data_root")
    assert wanted.base[section].get(name) == (value if place else there.base[section].get(name))
