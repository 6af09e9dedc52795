import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.text.colours import ramp
from study.config.tracking_uri import DEFAULT, artifact_root, identity, moved, resolve, shown, ui_command
from study.records.point import Point
from study.status.states import ENDED, PointState
from study.storage.secrets import redactor
from study.tracking.facts import Facts
from study.tracking.follow import Rhythm
from study.tracking.mapping import (
    STATUS,
    STOPPED,
    budget_colours,
    corpus,
    identity_tags,
    looks,
    of_search,
    params,
    run_name,
    run_summary,
    study_summary,
)
from study.tracking.shipping import _chunks

PLAIN = redactor({})


def test_every_state_has_a_status() -> None:
    assert set(STATUS) == set(PointState)
    assert {STATUS[s] for s in ENDED} == {"FINISHED", "FAILED", "KILLED"}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)


@given(st.dictionaries(st.sampled_from("abcde"), SCALARS | st.lists(SCALARS, max_size=3), min_size=1))
def test_params_come_back_as_they_were(config: dict[str, Any]) -> None:
    def parsed(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text

    found = {name: parsed(text) for name, text in params({"s": config}, lambda text: text)}
    assert set(found) == {f"s.{name}" for name in config}
    for name, value in config.items():
        back = found[f"s.{name}"]
        assert back == (pytest.approx(value, rel=1e-15, abs=0) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(4e9, "4e+09"), (2.53e11, "2.53e+11"), (0.034999999999999996, "0.035"), (1e-8, "1e-08"), (81280.0, "81280")],
)
def test_numbers_are_as_short_as_they_can_be(value: float, text: str) -> None:
    assert params({"x": value}, PLAIN) == [("x", text)]


@pytest.mark.parametrize(
    ("config", "overrides", "name"),
    [
        ({"budget": {"flops": 2.5e11}}, ("model.width=60", "budget.flops=250000000000.0"), "w60 L2 2.5e11 s0"),
        ({"budget": {"tokens": 300_000_000}}, ("optim.lr=0.0200", "+optim.name=muon"), "w60 L2 3e8tok lr=0.02 muon s0"),
        ({"budget": {"tokens": 199_936}}, ("optim.lr=0.0188",), "w60 L2 2e5tok lr=0.0188 s0"),
        ({"budget": {"flops": 2.531e11, "tokens": 4}, "seed": 3}, ("seed=3",), "w60 L2 2.53e11 s3"),
    ],
)
def test_a_run_is_named_by_its_sizes_budget_and_seed(
    config: dict[str, Any], overrides: tuple[str, ...], name: str
) -> None:
    whole = {"model": {"width": 60, "layers": 2}, "seed": 0, **config}
    assert run_name(Point("k", json.dumps(whole), overrides), PLAIN) == name


def test_a_budget_has_the_colour_that_it_has_in_the_report() -> None:
    found = budget_colours([8e9, 4e9, 8e9, 2e9])
    assert found == dict(zip([2e9, 4e9, 8e9], ramp(3), strict=True))
    assert looks(Point("k", '{"budget": {"flops": 8e9}}'), found) == {"mlflow.runColor": found[8e9]}
    assert looks(Point("k", '{"budget": {"flops": null}}'), found) == {}


def test_long_values_are_cut_to_what_mlflow_takes() -> None:
    ((_, value),) = params({"a": "x" * 7000}, PLAIN)
    assert len(value) == 6000
    assert len(run_name(Point("k", "{}", ("y" * 500,)), PLAIN)) == 120
    assert run_name(Point("k", "{}"), PLAIN) == "k"


def test_chunks_keep_both_limits_and_the_order() -> None:
    many = [(f"p{i}", "v" * (5000 if i % 2 else 1)) for i in range(450)]
    chunks = _chunks(many)
    assert [pair for chunk in chunks for pair in chunk] == many
    assert max(map(len, chunks)) <= 100
    assert all(len(json.dumps(chunk)) < 500_000 for chunk in chunks)


def test_study_sums_its_points_up() -> None:
    def status(states: list[str], pending: int = 0) -> str:
        return study_summary(states, pending, "local", "abc-d", PLAIN).status

    assert status(["completed", "completed"]) == "FINISHED"
    assert status(["completed", "running"]) == "RUNNING"
    assert status(["completed"], pending=1) == "RUNNING"
    assert status(["completed", "failed", "cancelled"]) == "FAILED"
    assert status(["completed", "interrupted"]) == "KILLED"
    assert status(["completed", "diverged"]) == "FINISHED", "a run that diverged has its result"
    assert status(["completed", "diverged"], pending=1) == "RUNNING"
    assert status(["completed", "diverged", "failed"]) == "FAILED"
    assert status(["completed", "diverged", "time_limit"]) == "KILLED"
    assert status(["diverged", "diverged"]) == "FAILED", "no run has a loss"
    assert status([]) == "RUNNING"
    assert study_summary(["running"], 0, "local", "abc-d", PLAIN, ended=5).ended is None
    assert study_summary(["completed"], 0, "local", "abc-d", PLAIN, ended=5).ended == 5


def test_a_search_is_finished_once_it_is_over_and_one_trial_came_to_the_end() -> None:
    def status(states: list[str], search: str, pending: int = 0) -> str:
        return study_summary(states, pending, "local", "abc-d", PLAIN, search=search).status

    assert status(["completed", "stopped", "failed", "diverged"], "over", pending=1) == "FINISHED"
    assert status(["stopped", "failed"], "over") == "FAILED"
    assert status(["completed", "stopped"], "stopped") == "KILLED"
    assert status(["completed", "completed"], "") == "RUNNING"


@pytest.mark.parametrize(
    ("state", "verdict", "end", "shown"),
    [
        ("pending", "paused", "", "pending"),
        ("pending", "paused", "over", STOPPED),
        ("pending", "paused", "stopped", STOPPED),
        ("pending", "replaced", "", STOPPED),  # its member goes on as another one's copy
        ("pending", "failed", "", "failed"),
        ("pending", "waiting", "over", STOPPED),
        ("completed", "completed", "over", "completed"),
        ("running", "running", "", "running"),
        ("pending", "", "over", "pending"),  # a point that no search knows
    ],
)
def test_a_searchs_run_has_the_state_that_the_search_gives_it(state: str, verdict: str, end: str, shown: str) -> None:
    facts = of_search(Facts(state), verdict, end)
    assert facts.state == shown
    expected = {"pending": "SCHEDULED", STOPPED: "KILLED", "failed": "FAILED", "completed": "FINISHED"}
    assert run_summary(facts, "local", "abc", PLAIN).status == expected.get(shown, "RUNNING")


def test_a_moved_study_goes_on_in_its_new_place(tmp_path: Path) -> None:
    old, new = tmp_path / "old" / "runs", tmp_path / "new" / "runs"
    uri = f"sqlite:///{tmp_path}/old/mlflow.db"
    here = f"sqlite:///{tmp_path}/new/mlflow.db"
    assert moved(uri, old, old) == uri
    assert moved(uri, old, new) == here, "the old one has gone"
    old.parent.mkdir()
    (old.parent / "mlflow.db").touch()
    assert moved(uri, old, new) == uri, "only the runs were moved"
    new.parent.mkdir()
    (new.parent / "mlflow.db").touch()
    assert moved(uri, old, new) == here, "a copy goes on by itself"
    assert moved("sqlite:////elsewhere/mlflow.db", old, new) == "sqlite:////elsewhere/mlflow.db"
    assert moved("http://h", old, new) == "http://h"


def test_card_names_the_code_the_job_and_the_outcome() -> None:
    job = {"job_id": "12_3", "executor": "slurm", "nodes": ["n1", "n2"], "code": "feed-d1"}
    summary = run_summary(Facts("completed", attempt=2, job=job, outcome={"loss": 1}, ended=5), "local", "old-x", PLAIN)
    assert summary.tags == {
        "state": "completed",
        "attempt": "2",
        "job_id": "12_3",
        "cluster": "slurm",
        "nodes": "n1 n2",
        "code": "feed-d1",
        "mlflow.source.name": "python -m train.run",
        "mlflow.source.type": "JOB",
        "mlflow.source.git.commit": "feed",
        "error": "",
        "outcome": '{"loss":1}',
    }
    assert (summary.status, summary.ended) == ("FINISHED", 5)
    assert identity_tags("s", "p", "k", "me")["mlflow.parentRunId"] == "p"


@pytest.mark.parametrize("code", ["no-commit-cbda6610", "no-git-cbda6610"])
def test_code_that_was_no_checkout_has_no_commit(code: str) -> None:
    tags = run_summary(Facts("running"), "local", code, PLAIN).tags
    assert "mlflow.source.git.commit" not in tags
    assert (tags["code"], tags["mlflow.source.type"]) == (code, "LOCAL")


def test_a_corpus_is_told_by_its_digest() -> None:
    data = {"name": "code", "tokenizer": "bytes", "vocab_size": 257, "fingerprint": "b3a3b5dfd5b2"}
    found = corpus({"data": data, "runtime": {"data_root": "/d"}}, PLAIN)
    assert found is not None
    assert found[:3] == ("code-bytes257", "b3a3b5dfd5b2", '{"uri": "/d/code-bytes257"}')
    assert json.loads(found.profile)["vocab_size"] == 257
    assert corpus({"data": {**data, "fingerprint": None}}, PLAIN) is None


@pytest.mark.parametrize(
    "text",
    [
        "http://alice:hunter22@host/x",
        "postgresql+psycopg://alice:hunter22@db/mlflow",
        "see https://alice:hun@ter22@host:1/x now",
        "https://host/?access_token=hunter22&x=1",
        "export WANDB_API_KEY=hunter22; python",
        "MY_PASSWORD: 'hunter22 hunter22'",
        "Authorization: Bearer hunter22hunter22",
        "it said s3cr3t-value and stopped",
    ],
)
def test_secrets_are_hidden(text: str) -> None:
    clean = redactor({"SOME_TOKEN": "s3cr3t-value", "HOME": "host", "EMPTY_TOKEN": ""})(text)
    assert "hunter22" not in clean
    assert "ter22" not in clean
    assert "s3cr3t" not in clean
    assert "***" in clean
    assert redactor({})(clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "budget.tokens=100",
        "tokens: 12",
        "a@b.c",
        "http://host:5000/#/x",
        "sqlite:////a.db",
        "export MAX_TOKENS=1048576",
    ],
)
def test_plain_text_stays(text: str) -> None:
    assert redactor({"TOKEN": "1", "BATCH_TOKENS": "1048576"})(text) == text


def test_addresses() -> None:
    base = Path("/home/me")
    assert resolve(None, base) == resolve(DEFAULT, base) == "sqlite:////home/me/mlflow.db"
    assert resolve("sqlite:////x/y.db", base) == "sqlite:////x/y.db"
    assert resolve("http://h:1", base) == "http://h:1"
    assert artifact_root("sqlite:////x/y.db", "my study", base) == "file:///x/mlartifacts/my%20study"
    assert artifact_root("http://h", "s", base) is None
    assert shown("http://u:p@h:1/a") == "http://***@h:1/a"
    assert identity("http://u:p@h:1/a") == identity("http://other@h:1/a") == "http://h:1/a"
    assert ui_command("sqlite:////x/my db") == (
        "mlflow ui --backend-store-uri 'sqlite:////x/my db' --host 127.0.0.1 --port 5000"
    )


@pytest.mark.parametrize("uri", ["mlruns", "file:///x", "sqlite://", "sqlite:///:memory:", "ftp://u:hunter22@h"])
def test_other_addresses_are_refused_with_what_is_allowed(uri: str) -> None:
    with pytest.raises(ValueError, match="sqlite:///") as error:
        resolve(uri, Path("/x"))
    assert "hunter22" not in str(error.value)


def test_rhythm_is_quick_when_busy_light_when_idle_and_patient_when_the_store_is_away() -> None:
    rhythm = Rhythm(5.0)
    assert rhythm.busy()[0] == rhythm.idle(0.001)[0] == 5.0
    assert rhythm.idle(0.3)[0] == pytest.approx(30.0)
    sleeps = []
    for _ in range(6):
        seconds, rhythm = rhythm.away()
        sleeps.append(seconds)
    assert sleeps == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert rhythm.busy()[1].away()[0] == 5.0
