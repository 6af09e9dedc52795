"""Secrets of the environment, of addresses and of code never reach a store, a study's files or a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from study.process import code_version
from study.process.code_version import CodeVersion
from study.storage.layout import StudyFolder
from study.storage.secrets import HIDDEN, code_redactor, redactor, refuse_secrets, scrub
from study.tracking.syncer import Syncer
from tests.environment import python_path
from tests.study.support.fake_store import FakeStore
from tests.study.support.made import append, complete, end_attempt, make_study, start_run

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+/=.~!"
SECRETS = st.text(ALPHABET, min_size=8, max_size=40).filter(lambda s: any(c.isalpha() for c in s))
"""What people and services make up; a secret that is a number is told from a setting by nobody."""
NAMES = st.sampled_from(
    [
        "WANDB_API_KEY",
        "MLFLOW_TRACKING_PASSWORD",
        "hf_token",
        "token",
        "Api-Key",
        "my.client_secret",
        "aws_secret_access_key",
        "password",
        "PASSPHRASE",
        "db_credentials",
        "GITHUB_TOKEN",
    ]
)
CARRIERS = (
    "before {name}={secret} after",
    "before {name} = '{secret}' after",
    'before {name}="{secret}" after',
    "before\n{name}: {secret}\nafter",
    'before {{"{name}": "{secret}"}} after',
    "before --{name} {secret} after",
    "before --{name}={secret} after",
    "before export {name}={secret}; after",
    "before Dict({name}='{secret}') after",
)
TOKENS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=8, max_size=30).filter(lambda s: not s.isdigit())


@settings(max_examples=60)
@given(NAMES, SECRETS, st.sampled_from(CARRIERS))
@example("hf_token", "abcdef12", CARRIERS[0])
def test_what_is_assigned_to_a_secret_name_is_hidden(name: str, secret: str, carrier: str) -> None:
    text = carrier.format(name=name, secret=secret)
    assume(secret not in carrier.format(name=name, secret=""))
    assume("--{name} " not in carrier or not secret.startswith("-"))  # that is another option
    clean = redactor({})(text)
    assert secret not in clean
    assert clean.startswith("before")
    assert clean.rstrip(")}").endswith("after")
    assert redactor({})(clean) == clean


@settings(max_examples=40)
@given(st.sampled_from(["X_TOKEN", "some_secret", "DB_PASSWORD"]), SECRETS, st.text(max_size=20), st.text(max_size=20))
def test_a_value_of_the_environment_is_hidden_wherever_it_stands(
    name: str, secret: str, before: str, after: str
) -> None:
    text = f"{before} {secret} {after}"
    clean = redactor({name: secret})(text)
    assert secret not in clean
    assert HIDDEN in clean
    assert json.dumps(secret)[1:-1] not in redactor({name: secret})(json.dumps({"x": secret}))


@settings(max_examples=30)
@given(TOKENS, TOKENS)
def test_a_password_of_an_address_is_hidden_there_and_elsewhere(user: str, password: str) -> None:
    assume(password not in user)
    address = f"postgresql://{user}:{password}@db:5432/mlflow"
    assert redactor({})(f"cannot reach {address}") == "cannot reach postgresql://***@db:5432/mlflow"
    assert password not in redactor({"DATABASE_URL": address})(f"login with {password} failed")


@pytest.mark.parametrize(
    "text",
    [
        "budget.tokens=100",
        "batch.tokens: 8192",
        "tokens_per_param=20",
        "eos_token=<|endoftext|>",
        "pad_token: null",
        "data.tokenizer=bytes",
        "export HF_TOKEN=$(cat ~/.token)",
        'export WANDB_API_KEY="$KEY"',
        "--max-tokens 100",
        "http://secret-host:8080/x",
        "the author: me",
        "train_token_loss=3.2",
    ],
)
def test_settings_are_no_secrets(text: str) -> None:
    assert redactor({"GOOGLE_APPLICATION_CREDENTIALS": "/home/me/x.json", "TOKEN_FILE": "x=100"})(text) == text


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"tracking": {"uri": "http://me:hunter22@host"}}, "tracking.uri"),
        ({"tracking": {"uri": "postgresql://me:hunter22@host/x"}}, "tracking.uri"),
        ({"cluster": {"setup": ["module load cuda", "export HF_TOKEN=hunter22"]}}, "cluster.setup"),
        ({"data": {"source": "https://host/x?sig=hunter22"}}, "data.source"),
        ({"x": {"api_key": "hunter22"}}, "x.api_key"),
        ({"overrides": ["y=in-the-environment"]}, "overrides"),
    ],
)
def test_a_config_with_a_secret_is_refused_by_its_key(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match="keep it in the environment") as error:
        refuse_secrets(config, {"SOME_TOKEN": "in-the-environment"})
    assert str(error.value).startswith(f"{key}=")
    assert "hunter22" not in str(error.value)
    assert "in-the-environment" not in str(error.value)


@pytest.mark.parametrize(
    "config",
    [
        {"tracking": {"uri": "postgresql://me@host/mlflow"}},
        {"tracking": {"uri": "sqlite:////home/me/mlflow.db"}, "data": {"source": "git+ssh://git@host/x"}},
        {"cluster": {"setup": ["export HF_TOKEN=$(cat ~/.token)", "source env.sh"], "qos": "normal"}},
        {"data": {"eos_token": "<s>", "tokens": 100}, "batch": {"tokens": 4096}},
    ],
)
def test_a_config_without_one_is_not(config: dict[str, Any]) -> None:
    refuse_secrets(config, {"SOME_TOKEN": "in-the-environment"})


@settings(max_examples=30)
@given(SECRETS)
def test_code_keeps_everything_but_literal_secrets(secret: str) -> None:
    plain = (
        "+token = tokens[0]\n+def f(token: str, password: str = '') -> None:\n-url = f'http://{user}:{password}@h'\n"
    )
    assert code_redactor({})(plain) == plain
    assert secret not in code_redactor({})(f'{plain}+API_KEY = "{secret}"\n')
    assert secret not in code_redactor({"A_TOKEN": secret})(f"{plain}+call({secret!r})\n")


def test_a_patch_is_stored_without_secrets_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter22hunter22")
    patch = "+login('hunter22hunter22')\n+key = 'ghp_0123456789abcdefghijABCDEFGHIJ012345'\n+x = 1\n"
    folder = StudyFolder(tmp_path)
    path = code_version.save(CodeVersion("0123abc", "99", patch), folder)
    assert (folder.code / "0123abc-99.patch").read_text() == f"+login('{HIDDEN}')\n+key = '{HIDDEN}'\n+x = 1\n"
    assert json.loads(path.read_text())["redacted"] is True
    code_version.save(CodeVersion("0123abc", "88", "+x = 1\n"), folder)
    assert code_version.load(folder, "0123abc-88")["redacted"] is False


def test_a_log_is_scrubbed_only_where_it_holds_a_secret(tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    log.write_bytes(b"one\nKey hunter22hunter22 refused \xff\nthree\n")
    before = log.stat().st_ino
    assert not scrub(log, {"OTHER_TOKEN": "something-else"})
    assert log.stat().st_ino == before
    assert scrub(log, {"OTHER_TOKEN": "hunter22hunter22"})
    assert log.read_bytes() == b"one\nKey *** refused \xff\nthree\n"
    assert not scrub(tmp_path / "none", {"OTHER_TOKEN": "hunter22hunter22"})
    assert [path.name for path in tmp_path.iterdir()] == ["stderr"]


def test_no_secret_that_a_run_saw_reaches_the_store_or_the_sync_state(tmp_path: Path) -> None:
    secret, uri = "Zx9-hunter22-qL", "http://me:pass-w0rd-77@host"
    made, store = make_study(tmp_path / "runs" / "s", 3), FakeStore()
    lines = made.folder.points.read_text().splitlines()
    first = json.loads(lines[0])
    first["overrides"] = [f"token={secret}", "seed=0"]
    first["config"]["data"]["source"] = f"https://host/corpus?access_token={secret}"
    made.folder.points.write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    for index in range(3):
        start_run(made.run(index))
        append(made.run(index), 1, 3)
    made.run(0).config.write_text(f"data: {{source: '{uri}', api_key: {secret}}}\n")
    made.folder.study.write_text(f"tracking: {{uri: '{uri}'}}\ncluster: {{setup: ['export A_TOKEN={secret}']}}\n")
    complete(made.run(0))
    end_attempt(made.run(1), "failed", error=f"KeyError: {{'hf_token': '{secret}'}} at {uri}")
    end_attempt(made.run(2), "failed")
    made.run(2).attempt(1).stderr(0).write_text(f"urllib3: {uri} said no to {secret}\n")
    report = tmp_path / "reports" / "s"
    report.mkdir(parents=True)
    (report / "report.json").write_text(json.dumps({"password": secret}))
    Syncer(made.folder, store, "http://host", redactor({"SOME_KEY_TOKEN": secret}), report).sync()
    everything = repr(store.runs) + made.folder.tracking.read_text()
    assert len(store.runs) == 4
    assert "said no to ***" in everything
    assert secret not in everything
    assert "pass-w0rd-77" not in everything


def test_a_defect_does_not_show_the_address(tmp_path: Path) -> None:
    made = make_study(tmp_path / "runs" / "s", 1)
    made.folder.ledger.write_bytes(b"\xff\xfe not text\n")
    line = [sys.executable, "-m", "study.tracking", "sync", str(made.folder.path)]
    env = {
        **os.environ,
        "PYTHONPATH": python_path(),
        "A_TOKEN": "not-a-text",
        "MLFLOW_TRACKING_URI": "http://u:p1p1p1@x",
    }
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "p1p1p1" not in done.stdout + done.stderr
