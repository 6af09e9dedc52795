"""``python -m train.prepare`` as it is typed."""

import errno
import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tests.environment import python_path
from train.data.corpus import done
from train.prepare import Display, configured, in_words, main, pace
from train.spec.manifest import read_manifest

REPOSITORY = Path(__file__).parents[4]


def _run(*arguments: str, folder: Path, python: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": python_path()}
    command = [sys.executable, *python, "-m", "train.prepare", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_prepare_again_verify_and_tamper(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        f"model: {{width: 64}}\nruntime: {{data_root: corpora}}\ndata:\n  source: {texts}\n  name: mine\n"
        "  vocab_size: 300\n  validation_fraction: 0.2\n  sequence_length: 16\n"
    )
    first = _run("--config", "run.yaml", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    folder = tmp_path / "corpora" / "mine-bpe300"
    assert f"fingerprint {read_manifest(folder).fingerprint}" in first.stdout
    assert "prepared in" in first.stdout
    assert "preparing data: encoding" in first.stderr

    again = _run("--config", "run.yaml", folder=tmp_path, python=["-X", "importtime"])
    assert "was prepared before" in again.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in again.stderr.splitlines()}
    assert not imported & {"torch", "numpy", "tokenizers", "pyarrow", "filelock"}

    assert "every file is what the manifest says" in _run("--config", "run.yaml", "--verify", folder=tmp_path).stdout
    (folder / "validation-00000.bin").write_bytes(b"\0" * (folder / "validation-00000.bin").stat().st_size)
    found = _run("--config", "run.yaml", "--verify", folder=tmp_path)
    assert found.returncode == 1
    assert "error: corpora/mine-bpe300/validation-00000.bin was changed after preparation" in found.stderr
    assert _run("--config", "run.yaml", "--force", folder=tmp_path).returncode == 0
    assert _run("--config", "run.yaml", "--verify", folder=tmp_path).returncode == 0


def test_broken_documents_are_on_the_terminal(texts: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "bad.txt").write_bytes(b"\xff")
    for path in texts.glob("*.py"):
        (source / path.name).write_bytes(path.read_bytes())
    settings = ["data.source=source", "data.name=x", "data.vocab_size=290", "data.validation_fraction=0.2"]
    found = _run("--set", *settings, "data.sequence_length=16", "--root", "there", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "broken documents: 1, the first is bad.txt: not UTF-8 (byte 0)" in found.stdout
    assert (tmp_path / "there" / "x-bpe290" / "manifest.json").exists()


def test_a_name_that_is_not_utf_8_is_told_and_nothing_is_verified_before(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in texts.glob("*.py"):
        (source / path.name).write_bytes(path.read_bytes())
    (source / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"\xe9")
    settings = ["data.source=" + str(source), "data.name=x", "data.vocab_size=257", "data.tokenizer=bytes"]
    given = ["--set", *settings, "data.validation_fraction=0.2", "data.sequence_length=16", "--root", str(tmp_path)]
    assert main([*given, "--workers", "1"]) == 0
    assert r"broken documents: 1, the first is caf\xe9.txt: not UTF-8 (byte 0)" in capsys.readouterr().out
    assert main([*given, "--verify"]) == 0
    assert "verifying\n" in capsys.readouterr().err


def test_an_error_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    found = _run("--set", "data.source=nowhere", folder=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.splitlines()[-1].startswith("error: data.source=nowhere: there is no such folder")
    assert "Traceback" not in found.stderr


def test_settings_from_file_and_command_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: mine\nvocab_size: 512\n")
    config, root = configured(str(tmp_path / "a.yaml"), ["data.max_bytes=4e7", "data.source=null"], None)
    assert (config.name, config.vocab_size, config.max_bytes, config.source) == ("mine", 512, 40_000_000, None)
    assert root == Path("data")
    assert configured(None, [], "elsewhere")[1] == Path("elsewhere")


@pytest.mark.parametrize("text", ["007", "1_000", "2024-01-01", "12:30:45", "on", "@x", "{a", "a: b", "plain"])
def test_keys_that_take_text_take_it_as_it_is(text: str) -> None:
    given = ("name", "source", "text_column", "prompt_column", "tokenizer_from")
    config, _ = configured(None, [f"data.{key}={text}" for key in given], None)
    assert [getattr(config, key) for key in given] == [text] * len(given)
    assert configured(None, [f'data.name="{text}"', "data.prompt_column=null"], None)[0].name == text


@pytest.mark.parametrize(
    ("content", "assignments", "words"),
    [
        ("model: {width: 3}", [], "has no section `data:`"),
        ("- 1", [], "has no section `data:`"),
        (
            "a: [",
            [],
            "config.yaml is not YAML: expected the node content, but found '<stream end>' in line 1, column 5",
        ),
        ("data: {nam: x}", [], "unknown key 'data.nam': did you mean 'data.name'"),
        ("data: {source: '???'}", [], "data.source is missing"),
        ("data: {source: ''}", [], "data.source is missing"),
        ("data: {source: '???'}", ["data.suorce=x"], "unknown key 'data.suorce': did you mean 'data.source'"),
        ("data: {}", ["data.vocab_size=big"], "data.vocab_size='big'"),
        ("data: {}", ["data.vocab_size"], "write it as data.key=value"),
        ("data: {}", ["data.extensions=[.c,.h"], "data.extensions=[.c,.h: the value is not YAML: expected ',' or ']'"),
        ("data: {}", ["vocab_size=300"], "did you mean 'data.vocab_size'"),
        ("data: {}", ["data.tokenizer=bpee"], "choose one of bpe, bytes"),
        (None, [], "there is no such file"),
    ],
)
def test_bad_settings(tmp_path: Path, content: str | None, assignments: list[str], words: str) -> None:
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError) as error:
        configured(str(file), assignments, None)
    assert words in str(error.value)


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": python_path()}
    source = tmp_path / "text"
    source.mkdir()
    for number in range(30):  # 30 MB of words that are all different keep it at work until long after the signal
        text = random.Random(number).randbytes(500_000).hex()
        (source / f"{number}.txt").write_text("\n".join(text[at : at + 8] for at in range(0, len(text), 8)))
    settings = ["data.name=big", f"data.source={source}"]
    command = [sys.executable, "-m", "train.prepare", "--set", *settings, "--workers", "1"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "reading" in line:
                process.send_signal(signal.SIGINT)
                break
        _, errors = process.communicate(timeout=900)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("interrupted: nothing was left behind")
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".big-bpe4096.lock"]


def catches_ctrl_c(pid: str) -> bool:
    """Whether a process is a spawned one with a handler of SIGINT, which Python installs before it imports."""
    try:
        said, words = (Path(f"/proc/{pid}/{name}").read_text() for name in ("status", "cmdline"))
    except OSError:  # it has ended
        return False
    caught = int(said.partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGINT - 1) & 1
    return "spawn_main" in words and bool(caught)


def test_ctrl_c_as_a_terminal_sends_it_is_one_line_while_workers_start(tmp_path: Path) -> None:
    """A terminal sends it to all processes; those that start would print a traceback each."""
    source = tmp_path / "text"
    source.mkdir()
    for number in range(20):
        (source / f"{number}.txt").write_text(f"some words of document {number}\n" * 20_000)
    settings = ["data.tokenizer=bytes", "data.vocab_size=257", "data.validation_fraction=0.2", f"data.source={source}"]
    command = [sys.executable, "-m", "train.prepare", "--workers", "2", "--set", "data.name=t", *settings]
    environment = os.environ | {"PYTHONPATH": python_path()}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not any(map(catches_ctrl_c, children.read_text().split())) and process.poll() is None:
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=900)
    assert process.returncode == 130
    said = [line for line in errors.replace("\r", "\n").splitlines() if not line.startswith(("preparing", "reading"))]
    assert said == ["interrupted: nothing was left behind, start it again any time"]


def test_a_log_has_a_line_a_stage_and_one_every_half_minute_with_rate_and_time_left() -> None:
    stream, now = io.StringIO(), [0.0]
    display = Display(stream, lambda: now[0])
    for seconds, stage, share in (
        (0, "reading", 0.0),
        (10, "reading", 0.2),
        (40, "reading", 0.5),
        (80, "reading", 1.0),
        (81, "encoding", 0.25),
        (121, "encoding", 0.30),
    ):
        now[0] = seconds
        display.show(stage, share, 800_000_000)
    assert stream.getvalue().splitlines() == [
        "preparing data: reading",
        "preparing data: reading 50 %, 10.0 MB/s, 0:40 left",
        "preparing data: reading 100 %",
        "preparing data: encoding (25 % was done before)",
        "preparing data: encoding 30 %, 1.0 MB/s, 9:20 left",
    ]


@pytest.mark.parametrize(
    ("share", "first", "seconds", "size", "said"),
    [
        (0.0, 0.0, 5.0, 100, ""),
        (0.4, 0.4, 5.0, 100, ""),
        (1.0, 0.0, 5.0, 100, ""),
        (0.5, 0.0, 0.0, 100, ""),
        (0.5, 0.0, 3700.0, 0, ", 1:01:40 left"),
        (0.5, 0.25, 60.0, 2_400_000_000, ", 10.0 MB/s, 2:00 left"),
    ],
)
def test_pace(share: float, first: float, seconds: float, size: int, said: str) -> None:
    assert pace(share, first, seconds, size) == said


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_one_line_that_changes() -> None:
    stream = _Terminal()
    display = Display(stream)
    assert display.seconds is None
    display.show("reading", 0.0)
    display.show("reading", 1.0)
    display.show("encoding", 0.25)
    display.end()
    assert "\n" not in stream.getvalue()
    lines = [part.removeprefix("\x1b[2K") for part in stream.getvalue().split("\r")]
    assert [line.split(" %")[0] for line in lines[1:-1]] == [
        "preparing data: reading   0",
        "preparing data: reading 100",
        "preparing data: encoding  25",
    ]
    assert lines[-1] == ""


def test_alone_it_explains_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("usage: python -m train.prepare")
    assert "--config FILE" in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, "make room, then run the same command again"),
        (errno.EDQUOT, "make room, then run the same command again"),
        (errno.EEXIST, "it is no folder, and data are to go there: give another one with --root"),
        (errno.EROFS, "give a folder of your own with --root"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_what_the_disk_refuses_is_said_with_its_file_and_a_cure(number: int, cure: str) -> None:
    said = in_words(OSError(number, os.strerror(number), "/data/x"))
    assert said.startswith("/data/x: ")
    assert said.endswith(cure)


@pytest.mark.parametrize("lacking", ["zstandard", "pyarrow", "tokenizers"])
def test_only_packages_that_are_used_are_needed(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version_of(package: str) -> str:
        if package == lacking:
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(done, "version", version_of)
    monkeypatch.setitem(sys.modules, lacking, None)  # as if it were not installed
    done.code.cache_clear()
    plain, needy = tmp_path / "plain", tmp_path / "needy"
    for number in range(4):
        for folder in (plain, needy):
            folder.mkdir(exist_ok=True)
            (folder / f"{number}.py").write_text(f"def f{number}():\n    return {number}\n" * 40)
    name = {"zstandard": "more.jsonl.zst", "pyarrow": "more.parquet", "tokenizers": "more.py"}[lacking]
    (needy / name).write_bytes(b"other = 1\n")
    bytes_alone = ["data.tokenizer=bytes", "data.vocab_size=257", "data.sequence_length=16"]
    words = ["--root", str(tmp_path / "data"), "--workers", "1", "--set", "data.name=mine"]
    words.append("data.validation_fraction=0.2")
    try:
        assert main([*words, f"data.source={plain}", *bytes_alone]) == 0, capsys.readouterr().err
        capsys.readouterr()
        given = bytes_alone if lacking != "tokenizers" else ["data.vocab_size=300", "data.sequence_length=16"]
        assert main([*words, "data.name=other", f"data.source={needy}", *given]) == 2
    finally:
        done.code.cache_clear()
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("preparing data")]
    assert said == [f"error: this needs the package {lacking}, which is not installed: pip install {lacking}"]
