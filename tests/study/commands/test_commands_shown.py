from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from study.__main__ import main
from study.commands import COMMANDS
from study.records import ledger
from study.records.lost_rows import LostRows
from study.records.point import Point
from study.status.observer import Observer, observe
from study.status.selection import by_key, choose, parse_states
from study.status.states import PointStatus
from study.storage.files import last_lines
from study.storage.layout import RunFolder, StudyFolder
from study.text import duration
from study.tracking.facts import read_facts
from study.tracking.study_note import run_note
from study.watch import progress
from study.watch.progress import Pace, Panel, closing, law_command, summarise
from tests.study.support.searches import make_search
from tests.study.support.studies import FAILS, REPOSITORY, environment, make_study, run_to_end, study_command

HEAVY = ("torch", "mlflow", "optuna", "statsmodels", "pandas", "matplotlib", "hydra", "omegaconf", "submitit")


@pytest.fixture(scope="session")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyFolder, dict[int, str]]:
    """A study in `runs/mixed` of one completed and one failed point and one that was never submitted; and a search."""
    root = tmp_path_factory.mktemp("commands")
    study, keys = make_study(root / "runs" / "mixed", [1, FAILS])
    assert run_to_end(study)[0] == 1
    _, more = make_study(study.path, [2])
    make_search(root / "searches" / "search")
    return study, {**keys, **more}


def root(study: StudyFolder) -> Path:
    return study.path.parents[1]


def test_status_shows_states_and_the_last_lines_of_a_failure(ended: tuple[StudyFolder, dict[int, str]]) -> None:
    study, keys = ended
    done = study_command("status", "mixed", cwd=root(study))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "mixed: 3 points: 1 completed, 1 pending, 1 failed"
    assert [line.split()[:3:2] for line in lines[1:4]] == [[s, "1"] for s in ("completed", "pending", "failed")]
    assert lines[6].split()[:4] == [keys[1], "completed", "100", "%"]
    assert lines[7].split()[:2] == [keys[FAILS], "failed"]
    assert max(map(len, lines)) <= 80
    assert f"{keys[FAILS]} failed, attempt 1" in lines
    assert "    seed=101" in lines
    assert "    | RuntimeError: the sun was in my eyes" in lines
    assert lines[-1].startswith("python -m study retry mixed ")


def test_status_as_json(ended: tuple[StudyFolder, dict[int, str]]) -> None:
    study, keys = ended
    done = study_command("status", "mixed", "--json", "--runs", study.path.parent, cwd="/")
    loaded = json.loads(done.stdout)
    assert loaded["counts"] == {"completed": 1, "failed": 1, "pending": 1}
    (first, second, _) = loaded["points"]
    assert (first["key"], first["loss"], first["attempt"]) == (keys[1], 2.5, 1)
    assert second["error"][-1] == "RuntimeError: the sun was in my eyes"
    (failure,) = loaded["failures"]
    assert (failure["keys"], failure["line"]) == ([keys[FAILS]], "RuntimeError: the sun was in my eyes")
    assert loaded["next"].startswith("python -m study retry mixed ")


def test_a_study_that_all_went_well_has_exit_code_0(tmp_path: Path) -> None:
    study, _ = make_study(tmp_path / "runs" / "fine", [1])
    assert run_to_end(study)[0] == 0
    assert study_command("status", "fine", cwd=tmp_path).returncode == 0
    watched = study_command("watch", "fine", cwd=tmp_path)
    assert (watched.returncode, watched.stdout.splitlines()[-1]) == (0, "fine: 1 completed")


@pytest.mark.parametrize("command", ["status", "watch", "logs", "cancel", "retry", "sync"])
def test_no_such_study(ended: tuple[StudyFolder, dict[int, str]], command: str) -> None:
    study, _ = ended
    make_study(study.path.parent / "zebra", [1])
    done = study_command(command, "mixd", cwd=root(study))
    assert done.returncode == 2
    assert "no study 'mixd' in runs: there are mixed, zebra" in done.stderr


def test_no_studies_at_all(tmp_path: Path) -> None:
    done = study_command("status", "x", cwd=tmp_path)
    assert (done.returncode, "there are no studies in runs" in done.stderr) == (2, True)


def test_no_command_and_an_unknown_command(tmp_path: Path) -> None:
    listed = study_command(cwd=tmp_path)
    assert listed.returncode == 0
    for name in ("status", "watch", "logs", "cancel", "retry", "sync"):
        assert f"\n  {name} " in listed.stdout
    wrong = study_command("satus", cwd=tmp_path)
    assert (wrong.returncode, "did you mean 'status'?" in wrong.stderr) == (2, True)


def test_logs(ended: tuple[StudyFolder, dict[int, str]]) -> None:
    study, keys = ended
    listed = study_command("logs", "mixed", cwd=root(study)).stdout
    assert keys[1] in listed
    assert keys[2] not in listed
    shown = study_command("logs", "mixed", keys[FAILS][:5], "-f", cwd=root(study))
    assert shown.returncode == 0
    assert shown.stdout.startswith("training seed 101 from step 0")
    assert shown.stdout.rstrip().endswith("RuntimeError: the sun was in my eyes")
    assert "is pending: it has no attempt yet" in study_command("logs", "mixed", keys[2], cwd=root(study)).stderr
    assert "no point begins with 'zzz'" in study_command("logs", "mixed", "zzz", cwd=root(study)).stderr
    assert (
        "its attempts are 1 to 1" in study_command("logs", "mixed", keys[1], "--attempt", "9", cwd=root(study)).stderr
    )
    assert (
        "no log of rank 3: its ranks are 0"
        in study_command("logs", "mixed", keys[1], "--rank", "3", cwd=root(study)).stderr
    )


def test_every_command_leads_with_the_rank_that_died(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "runs" / "two", [FAILS])
    assert run_to_end(study)[0] == 1
    attempt, key = study.run(keys[FAILS]).attempt(1), keys[FAILS]
    lost = "RuntimeError: [gloo] Connection reset by peer"
    attempt.stderr(0).write_text(f"Traceback (most recent call last):\n{lost}\n")
    cause, trace = "rank 1: ZeroDivisionError: none left", "\n".join(f'  File "x.py", line {n}' for n in range(20))
    attempt.stderr(1).write_text(f"Traceback (most recent call last):\n{trace}\nZeroDivisionError: none left\n")
    error = f"rank 1: Traceback (most recent call last):\n{trace}\nZeroDivisionError: none left\n{lost}"
    ended = json.loads(attempt.outcome.read_text())
    attempt.outcome.write_text(json.dumps({**ended, "headline": cause, "error": error, "rank": 1}))
    of_status = study_command("status", "two", cwd=tmp_path).stdout.splitlines()
    assert of_status.count(f"    | {cause}") == 2, "in the list of failures, and above the last lines of this one"
    shown = study_command("show", "two", key, cwd=tmp_path).stdout.splitlines()
    assert f"       | {cause}" in shown and f"  | {cause}" in shown
    (told,) = json.loads(study_command("show", "two", key, "--json", cwd=tmp_path).stdout)["attempts"]
    assert told["headline"] == cause
    (status,) = observe(study)
    assert f"      {cause}" in closing([status], "two", "two")
    logs = study_command("logs", "two", key, cwd=tmp_path)
    assert logs.stdout.endswith("ZeroDivisionError: none left\n") and logs.stderr.startswith(f"{cause}    #")
    assert study_command("logs", "two", key, "--rank", "0", cwd=tmp_path).stdout.endswith(f"{lost}\n")
    facts = read_facts(Observer(study), key)
    assert facts is not None and facts.error.splitlines()[0] == cause
    assert cause in run_note(replace(facts, error=f"{facts.error}\n{lost * 200}"), {}, {}), "also of a long error"


def test_show_says_which_records_are_lost(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "runs" / "cut", [1])
    assert run_to_end(study)[0] == 0
    lost = {"kind": "missing", "step": 9, "tokens": 900, "time": 1.0, "metrics": {"from_step": 4, "to_step": 9}}
    with study.run(keys[1]).metrics.open("a") as file:
        file.write(json.dumps(lost) + "\n")
    shown = study_command("show", "cut", keys[1], cwd=tmp_path).stdout.splitlines()
    assert "lost from metrics.jsonl: steps 4 to 9; a run does not write them again" in shown
    found = json.loads(study_command("show", "cut", keys[1], "--json", cwd=tmp_path).stdout)
    assert found["missing"] == [{"from_step": 4, "to_step": 9}]


def test_status_says_which_points_have_lost_records(tmp_path: Path) -> None:
    """Each run was resumed: a run that has one attempt has noted none."""
    study, keys = make_study(tmp_path / "runs" / "cut", [1, 2, 3])
    ledger.append(study, "intent", name="s.w", executor="local", keys=list(keys.values()), resources={}, code=None)
    for seed, key in keys.items():
        for attempt in map(study.run(key).attempt, (1, 2)):
            attempt.path.mkdir(parents=True)
            attempt.job.write_text(json.dumps({"name": "s.w", "executor": "local"}))
            attempt.outcome.write_text(json.dumps({"state": "interrupted", "kind": "interrupted"}))
        row = {"kind": "train", "step": 9, "tokens": 900, "time": 1.0, "metrics": {"loss": 1.0}}
        lost = {"kind": "missing", "step": 9, "tokens": 900, "time": 1.0, "metrics": {"from_step": 4, "to_step": 9}}
        rows = [row, lost, row] if seed > 1 else [row]
        study.run(key).metrics.write_text("".join(json.dumps(one) + "\n" for one in rows))
    study.run(keys[3]).outcome.write_text(json.dumps({"state": "completed", "step": 9, "tokens": 900}))
    _, *others = keys.values()
    for _ in range(2):  # the second time one of them is settled, and its files are not read again
        lines = study_command("status", "cut", cwd=tmp_path).stdout
        said = f"metrics.jsonl has lost rows that are not written again: {' '.join(others)} (python -m study show cut"
        assert said in " ".join(lines.split())
        points = json.loads(study_command("status", "cut", "--json", cwd=tmp_path).stdout)["points"]
        assert [point["missing"] for point in points] == [[], ["4-9"], ["4-9"]]
        study.run(keys[3]).metrics.write_text("")


def test_what_an_attempt_has_lost_is_read_once_and_anew_where_another_cut_the_file(tmp_path: Path) -> None:
    run, seen = RunFolder(tmp_path / "key"), LostRows()
    run.path.mkdir()
    line = '{"kind":"missing","step":9,"metrics":{"from_step":4,"to_step":9}}\n'
    assert seen.of(run, 1) == ()
    run.metrics.write_text(f"{line}{line[:20]}")
    assert [seen.of(run, 2), seen.of(run, 2)] == [("4-9",), ("4-9",)]
    run.metrics.write_text(f"{line}{line}")
    assert seen.of(run, 2) == ("4-9", "4-9"), "the torn line is whole now"
    run.metrics.write_text(line)
    assert seen.of(run, 3) == ("4-9",)


def test_the_point_may_stand_behind_the_folder_of_all_studies(ended: tuple[StudyFolder, dict[int, str]]) -> None:
    study, keys = ended
    done = study_command("logs", "mixed", "--runs", study.path.parent, keys[1], cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("training seed 1 ")


def test_the_commands_that_are_named_work_from_anywhere_also_with_spaces_in_the_path(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "all my runs" / "s", [FAILS])
    said = run_to_end(study)[1].splitlines()[-2]
    named = said.removeprefix("look:   python -m study ").replace("KEY", keys[FAILS])
    done = study_command(*shlex.split(named), cwd="/")
    assert (done.returncode, "the sun was in my eyes" in done.stdout) == (0, True), done.stderr


def test_following_the_log_of_an_attempt_that_was_killed_outright_ends(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "runs" / "killed", [1])
    assert run_to_end(study)[0] == 0
    run = study.run(keys[1])
    run.outcome.unlink()
    run.attempt(1).outcome.unlink()
    run.attempt(1).stdout(0).write_text("half of an \u00e9clair")
    done = study_command("logs", "killed", keys[1], "-f", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "half of an \u00e9clair")


def test_retry_says_how_to_take_back_a_cancel(tmp_path: Path) -> None:
    assert "--state cancelled" in study_command("retry", "--help", cwd=tmp_path).stdout


def test_cancel_when_nothing_runs(tmp_path: Path) -> None:
    study, _ = make_study(tmp_path / "runs" / "done", [1])
    assert run_to_end(study)[0] == 0
    before = study.ledger.read_bytes()
    done = study_command("cancel", "done", cwd=tmp_path)
    assert (done.returncode, "nothing to cancel" in done.stdout) == (0, True)
    assert study.ledger.read_bytes() == before


def test_retry_refuses_what_has_nothing_to_try(ended: tuple[StudyFolder, dict[int, str]]) -> None:
    study, keys = ended
    done = study_command("retry", "mixed", "--state", "broken", cwd=root(study))
    assert (done.returncode, "'broken' is not a state: choose among completed" in done.stderr) == (2, True)
    done = study_command("retry", "mixed", "--point", keys[1], cwd=root(study))
    assert (done.returncode, f"point {keys[1]} is completed" in done.stderr) == (2, True)
    machine = study_command("retry", "mixed", "--where", "model.widht=64", "--json", cwd=root(study))
    assert (machine.returncode, "did you mean model.width" in json.loads(machine.stdout)["error"]) == (2, True)


def test_retry_names_the_states_that_it_would_take_too(ended: tuple[StudyFolder, dict[int, str]]) -> None:
    study, _ = ended
    done = study_command("retry", "mixed", "--state", "cancelled", cwd=root(study))
    words = "mixed: no point is cancelled; of the others, 1 failed: select them by --state failed"
    assert (done.returncode, done.stdout.strip()) == (0, words)


def test_cancel_by_the_values_of_configs(tmp_path: Path) -> None:
    study, narrow = make_study(tmp_path / "runs" / "widths", [1, 2])
    _, wide = make_study(study.path, [1, 2], width=96)
    done = study_command(
        "cancel", "widths", "--where", "model.width=96,128", "--where", "seed<2", "--json", cwd=tmp_path
    )
    assert (done.returncode, json.loads(done.stdout)["cancelled"]) == (0, [wide[1]])
    listed = study_command("list", "--json", cwd=tmp_path)
    (entry,) = json.loads(listed.stdout)["studies"]
    assert (entry["study"], entry["counts"]) == ("widths", {"pending": 3, "cancelled": 1})
    assert {*narrow.values(), wide[2]} == {s.key for s in observe(study) if s.state == "pending"}


def test_list_names_damaged_studies_too(tmp_path: Path) -> None:
    make_study(tmp_path / "runs" / "good", [1])
    hurt, _ = make_study(tmp_path / "runs" / "hurt", [1])
    hurt.ledger.write_text("nonsense\n")
    done = study_command("list", cwd=tmp_path)
    assert done.returncode == 1
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert lines["good"].endswith("1 pending")
    assert "damaged: " in lines["hurt"]


def test_a_damaged_ledger_is_named_not_traced(tmp_path: Path) -> None:
    study, _ = make_study(tmp_path / "runs" / "hurt", [1])
    study.ledger.write_text("nonsense\n")
    done = study_command("status", "hurt", cwd=tmp_path)
    assert done.returncode == 2
    assert "ledger.jsonl:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["status", "mixed"], ["list"], ["gc", "mixed"], ["completion", "bash"]])
def test_looking_imports_nothing_heavy(ended: tuple[StudyFolder, dict[int, str]], words: list[str]) -> None:
    study, _ = ended
    program = (
        f"import sys; from study.__main__ import main; main({words!r}); "
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root(study), env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def status(key: str, state: str, tokens: int = 0, loss: float | None = None, **more: object) -> PointStatus:
    return PointStatus(key, state, tokens=tokens, budget_tokens=100, loss=loss, **more)  # type: ignore[arg-type]


def test_the_time_left_follows_the_compute_done_since_the_first_look() -> None:
    pace = Pace({"a": 100.0, "b": 300.0})
    begin = [status("a", "completed"), status("b", "running", 0, 5.0)]
    assert summarise(begin, pace, 0.0, 0.0).left is None, "what was done before says nothing of the speed now"
    later = [status("a", "completed", loss=2.0), status("b", "running", 50, 1.9)]
    summary = summarise(later, pace, 0.0, 30.0)
    assert summary.share == pytest.approx(0.625)
    assert summary.left == pytest.approx(30.0)
    assert summary.line("train") == "[30 s] train: 1/2 done, 1 running, loss 2.000 (a), about 30 s left"
    over = replace(summary, counts={"completed": 1, "interrupted": 1}, left=0.0)
    assert over.line("train").endswith("1 interrupted, loss 2.000 (a)"), "nothing goes on: no time is left"


def test_the_panel_shows_each_running_point_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 1.7e9))
    console = Console(width=80, file=io.StringIO())
    with Panel(Pace({"a": 1.0}), "s", console) as panel:
        slow = status("aaa", "running", 40, 3.25, overrides=("seed=1", "x=1" * 40), slow="rank 3 on n2 takes 2.0 x")
        panel.update([slow, status("b", "completed")])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "s  [0 s] train: 1/2 done, 1 running, training loss 3.250 (aaa)"
    assert lines[2].split()[:2] == ["aaa", "seed=1"]
    assert lines[2].split()[-4:] == ["40", "%", "loss", "3.250"]
    assert lines[3] == "slow: aaa: rank 3 on n2 takes 2.0 x"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_runs_in_the_panel_are_told_apart(width: int) -> None:
    shared = ("data.sequence_length=2048", "optim.embedding_lr_scale=1.125", "schedule.warmup_fraction=0.0125")
    runs = [status(f"abcdefabcde{i}", "running", 40, 3.25, overrides=(*shared, f"seed={i}")) for i in range(4)]
    console = Console(width=width, file=io.StringIO())
    with Panel(Pace({"a": 1.0}), "s", console) as panel:
        panel.update(runs)
    assert isinstance(console.file, io.StringIO)
    lines = [line for line in console.file.getvalue().splitlines() if "abcdefabcde" in line][-4:]
    assert [line.split()[1] for line in lines] == [f"seed={i}" for i in range(4)]
    assert max(map(len, lines)) <= width


def test_the_end_of_one_long_line_is_shown_and_not_nothing(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_text("x" * 9000 + " boom\n")
    (line,) = last_lines(tmp_path / "stderr")
    assert line.endswith(" boom")


def test_a_study_without_points_says_so() -> None:
    assert closing([], "s", "s") == ["s: no points"]


def test_closing_lines_name_what_needs_a_look() -> None:
    lines = closing([status("a", "completed"), status("b", "failed", error=("x", "boom"))], "s", "s --runs /r")
    assert lines[0] == "s: 1 completed, 1 failed"
    assert "      boom" in lines
    assert "python -m study retry s --runs /r" in lines[-1]


def test_closing_lines_of_a_study_for_a_law_say_what_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where all runs are good, and only of several sizes and numbers of tokens."""
    monkeypatch.chdir(tmp_path)
    some = [
        Point(f"p{i}", json.dumps({"model": {"width": 16 * i, "layers": 2}, "budget": {"tokens": 1000 * i}}))
        for i in (1, 2, 3)
    ]
    law = law_command(some, tmp_path / "runs" / "s")
    assert law == "python -m analysis.fit runs=runs/s"
    assert law_command(some, Path("/elsewhere/s")) == "python -m analysis.fit runs=/elsewhere/s"
    assert law_command(some[:2] + some[:1], tmp_path) == ""
    good, bad = status("a", "completed"), status("b", "failed")
    assert closing([good], "s", "s", law) == ["s: 1 completed", f"next:   {law}"]
    assert law not in " ".join(closing([good, bad], "s", "s", law))
    assert closing([good], "s", "s") == ["s: 1 completed"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (7500, "2 h 05 min"), (200000, "2 days 7 h")],
)
def test_duration(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_selection() -> None:
    points = [status("abc", "failed"), status("abd", "running"), status("x", "failed")]
    assert by_key(points, "x").key == "x"
    with pytest.raises(ValueError, match="begins 2 keys"):
        by_key(points, "ab")
    assert [s.key for s in choose(points, parse_states("failed, running"), [])] == ["abc", "abd", "x"]
    assert [s.key for s in choose(points, parse_states("failed"), ["abd"])] == ["abd"]


def test_a_point_that_was_retried_and_not_yet_begun_is_pending(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "runs" / "again", [FAILS])
    assert run_to_end(study)[0] == 1
    ledger.append(study, "retry", keys=list(keys.values()))
    done = study_command("status", "again", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "again: 1 point: 1 pending")


def rows(text: str) -> list[tuple[str, str]]:
    """Return the two cells of each row of a table whose first cell names fields."""
    return re.findall(r"^\| (`.*?) \| (.*)\|$", text, re.MULTILINE)


def documented() -> dict[str, dict[str, set[str]]]:
    """Return, by the headings of docs/json.md, the fields of each command and those that each of them holds."""
    found: dict[str, dict[str, set[str]]] = {}
    text = (REPOSITORY / "docs" / "json.md").read_text(encoding="utf-8")
    for section in text.split("\n## `")[1:]:
        whole, *parts = section.split("\n### ")
        fields: dict[str, set[str]] = {}
        for first, second in rows(whole):
            names = re.findall(r"`(\w+)`", first)
            fields |= {name: set(re.findall(r"`(\w+)`", second)) if len(names) == 1 else set() for name in names}
        for part in parts:
            if not part.startswith("`"):  # it is about a file, not about a field
                continue
            inside = [re.findall(r"`(\w+)`", first) for first, _ in rows(part)]
            fields[part.partition("\n")[0].strip("`")] = {name for names in inside for name in names}
        heading = "`" + whole.partition("\n")[0]
        found |= dict.fromkeys((heading, *heading.split(", ")), fields)
    return found


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ("list", "`list`"),
        ("status mixed", "`status`"),
        ("status search --runs searches", "`status` of a search"),
        ("show mixed KEY", "`show`"),
        ("logs mixed", "`logs`"),
        ("logs mixed KEY", "`logs` of a point"),
        ("cancel mixed --point KEY", "`cancel`"),
        ("retry mixed --state time_limit", "`retry`"),
        ("reconcile mixed", "`reconcile`"),
        ("gc mixed", "`gc`"),
        ("cost mixed", "`cost`"),
        ("enqueue search --runs searches optim.lr=0.01", "`enqueue`"),
        ("optuna search --runs searches", "`optuna`"),
        ("completion zsh", "`completion`"),
    ],
)
def test_every_command_speaks_json_as_documented(
    ended: tuple[StudyFolder, dict[int, str]],
    words: str,
    row: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study, keys = ended
    monkeypatch.chdir(root(study))
    assert main([*words.replace("KEY", keys[FAILS]).split(), "--json"]) in (0, 1)
    said = json.loads(capsys.readouterr().out)
    assert (said.pop("format"), said.pop("command")) == (1, words.partition(" ")[0])
    for about in ("study", "folder"):
        assert (said.pop(about, None) is not None) == (" mixed" in words or " search" in words)
    fields = documented()[row]
    assert said.keys() == fields.keys()
    for name, inside in fields.items():
        held = said[name][0] if isinstance(said[name], list) and said[name] else said[name]
        if inside and isinstance(held, dict) and held and name != "differs":
            assert inside <= held.keys() if name == "front" else inside == held.keys(), name


def test_every_command_is_documented() -> None:
    without = {"reproduce", "export-curves"}
    assert {row.split("`")[1] for row in documented()} == set(COMMANDS) - without


def test_show_says_all_of_one_point(ended: tuple[StudyFolder, dict[int, str]]) -> None:
    study, keys = ended
    lines = study_command("show", "mixed", keys[FAILS], cwd=root(study)).stdout.splitlines()
    assert lines[0].startswith(f"{keys[FAILS]}  failed")
    attempt = next(line for line in lines if line.startswith("    1  job local-"))
    assert "failed" in attempt
    assert any("RuntimeError: the sun was in my eyes" in line for line in lines)
    assert "no checkpoint" in lines


def test_show_names_what_differs_from_the_base(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "runs" / "wide", [3], width=96)
    study.study.write_text("run_defaults: {model: {width: 64}, budget: {tokens: 12800}, seed: 3}\n")
    found = json.loads(study_command("show", "wide", keys[3], "--json", cwd=tmp_path).stdout)
    assert found["differs"]["model.width"] == {"base": 64, "point": 96}
    assert not {"seed", "budget.tokens", "model.layers"} & set(found["differs"])
    assert found["attempts"] == []


def test_a_point_is_named_as_a_word_or_as_an_option(ended: tuple[StudyFolder, dict[int, str]]) -> None:
    study, keys = ended
    there = root(study)
    for command in ("show", "logs"):
        said = [study_command(command, "mixed", *words, cwd=there) for words in ([keys[1]], ["--point", keys[1][:8]])]
        assert said[0].stdout == said[1].stdout != ""
        both = study_command(command, "mixed", keys[1], "--point", keys[2], cwd=there)
        assert (both.returncode, both.stderr.startswith(f"study {command}: name one point by its key")) == (2, True)
        assert both.stderr.endswith(
            "were given (" + f"{keys[1]}, {keys[2]}); python -m study status mixed lists them\n"
        )
    for command in ("cancel", "retry"):
        refused = study_command(command, "mixed", "zzz", cwd=there)
        assert (refused.returncode, "no point begins with 'zzz'" in refused.stderr) == (2, True)


def test_show_says_nothing_of_mlflow_where_it_is_off(ended: tuple[StudyFolder, dict[int, str]]) -> None:
    study, keys = ended
    assert "MLflow" not in study_command("show", "mixed", keys[1], cwd=root(study)).stdout


@pytest.mark.parametrize("command", ["plan", "bench"])
def test_a_word_that_is_missing_is_said_in_one_line_and_as_json(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"study {command}: ") and shown.err.count("\n") == 1
    assert f" is missing; usage: python -m study {command} " in shown.err
    assert json.loads(shown.out) == {"format": 1, "command": command, "error": shown.err.split(": ", 1)[1].strip()}
