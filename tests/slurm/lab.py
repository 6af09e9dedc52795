"""A folder in which one test runs `python -m study.sweep` and `python -m study` against the throwaway cluster."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from tests.environment import python_path
from tests.slurm.cluster import LIMIT_SECONDS, REPOSITORY, JobState, ThrowawayCluster, wait_for
from tests.warm import fresh, warm
from tests.warm_trainer import trainer

TRAINERS = Path(__file__).with_name("trainers")
COMMAND_SECONDS = 900.0
LOOK_SECONDS = 2.0
"""Between commands that ask for a state: each takes most of a second of a core, which what is waited for wants too."""
IMPORTED = (
    *("hydra", "hydra.core.plugins", "hydra._internal.hydra", "omegaconf", "rich.console", "rich.live", "submitit"),
    *(
        "study.sweep.plugins",
        "study.config.compose",
        "study.planning.designs",
        "study.reconcile.dispatch",
        "study.reconcile.step",
        "study.reconcile.wanted",
        "study.watch.follow",
        "study.commands.status",
    ),
)
"""What the commands import, which takes them longer than what they are asked to do."""
STARTING = Lock()
"""Held while a command is started: a test gives commands from several threads, to one process that forks."""
WORDS = ("def", "return", "alpha", "beta", "x", "y", "+", "(", ")", ":", "\n", "if", "else", "while", "import")

TEXT = (
    "data=text",
    "data.tokenizer=bytes",
    "data.vocab_size=257",
    "data.sequence_length=64",
    "data.validation_fraction=0.2",
    "model.head_dim=16",
    "eval.sequences=16",
    "eval.count=2",
    "tracking=none",
)
"""A corpus of pseudo-code and the smallest sensible evaluation."""

TINY = (
    "model.width=16",
    "model.layers=1",
    "budget.tokens_per_param=null",
    "budget.tokens=20480",
    "batch.tokens=1024",
    "optim.lr=0.003",
)
"""One run of 20 steps, at a learning rate that does not blow up the last bits of a sum."""


def write_text(folder: Path) -> None:
    """Write 200 small documents, the same ones every time."""
    folder.mkdir(parents=True)
    words = random.Random(0)
    for number in range(200):
        body = " ".join(words.choice(WORDS) for _ in range(400))
        (folder / f"{number}.txt").write_text(f"{body} {number}\n", encoding="utf-8")


def prepare(folder: Path) -> None:
    """Make shards of the text in folder/text, as the studies of TEXT want them."""
    keys = [word for word in TEXT if word.startswith("data.")]
    words = ["data.name=text", f"data.source={folder / 'text'}", *keys]
    subprocess.run(
        [sys.executable, "-m", "train.prepare", "--root", str(folder), "--set", *words],
        check=True,
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=COMMAND_SECONDS,
    )


@dataclass(frozen=True)
class Lab:
    """Where a test works: its own folder, the session's corpus, the session's cluster."""

    folder: Path
    corpus: Path
    cluster: ThrowawayCluster
    variables: tuple[tuple[str, str], ...] = ()

    def with_trainer(self, name: str, **variables: object) -> Lab:
        """Return a lab whose jobs run trainers/<name>.py instead of the trainer, with these variables set."""
        return self._with_command(shlex.join([sys.executable, str(TRAINERS / f"{name}.py")]), variables)

    def with_warm_trainer(self, name: str, **variables: object) -> Lab:
        """Return the same, but it begins in a moment, as a fork of a process that has imported torch."""
        if torch.cuda.is_available():  # a process that was forked has no GPU
            return self.with_trainer(name, **variables)
        return self._with_command(trainer(f"tests.slurm.trainers.{name}"), variables)

    def _with_command(self, command: str, variables: Mapping[str, object]) -> Lab:
        more = {"STUDY_TRAINER": command, **{key: str(value) for key, value in variables.items()}}
        return replace(self, variables=tuple({**dict(self.variables), **more}.items()))

    @property
    def environment(self) -> dict[str, str]:
        """Environment of its commands."""
        fixed = {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
        # Trainers begin in a moment; a process that was forked has no GPU.
        begun = {} if torch.cuda.is_available() else {"STUDY_TRAINER": trainer()}
        return self.cluster.full_environment(**fixed) | begun | dict(self.variables)

    def sweep_command(self, *overrides: str, cluster: str = "slurm") -> list[str]:
        """Return the command that makes a study of the corpus."""
        paths = (f"data.source={self.corpus / 'text'}", f"runtime.data_root={self.corpus}")
        polling = ("cluster.poll_seconds=0.5",)
        words = ["-m", "study.sweep", "-m", f"cluster={cluster}", *TEXT, *paths, *polling, *overrides]
        return [sys.executable, *words]

    def sweep(self, *overrides: str, cluster: str = "slurm", code: int = 0) -> str:
        """Make and submit a study; return what was printed. Checks the exit code."""
        command = self.sweep_command(*overrides, cluster=cluster)
        return self._checked(command, *self._done(command), code)

    def study(self, *words: str, code: int = 0) -> str:
        """Run `python -m study …`; return what was printed. Checks the exit code."""
        command = [sys.executable, "-m", "study", *words]
        return self._checked(command, *self._done(command), code)

    def run(self, *command: str, code: int = 0) -> str:
        """Run a command in this folder; return stdout and stderr. Checks the exit code."""
        done = subprocess.run(
            command,
            check=False,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        return self._checked(command, done.returncode, done.stdout, "", code)

    def _done(self, command: Sequence[str]) -> tuple[int, str, str]:
        """Run `python -m …` in this folder to its end; return its exit code, stdout and stderr."""
        environment, (_, _, module, *words) = self.environment, command
        ours = environment["PYTHONPATH"] == python_path()  # what has imported it cannot run another checkout's code
        start = warm(*IMPORTED).start if ours else fresh
        with STARTING:
            process = start(module, *words, cwd=self.folder, env=environment)
        said, trouble = process.communicate(timeout=COMMAND_SECONDS)
        return int(process.returncode or 0), said, trouble

    @staticmethod
    def _checked(command: Sequence[str], found: int, said: str, trouble: str, code: int) -> str:
        assert found == code, f"exit code {found}, not {code}: {shlex.join(command)}\n{said}{trouble}"
        return said + trouble

    def points(self, study: str) -> list[dict[str, Any]]:
        """Return what `status --json` says of every point."""
        code, said, trouble = self._done([sys.executable, "-m", "study", "status", study, "--json"])
        assert code in (0, 1), trouble
        points: list[dict[str, Any]] = json.loads(said)["points"]
        return points

    def point(self, study: str) -> dict[str, Any]:
        """Return what is said of a study's only point."""
        (only,) = self.points(study)
        return only

    def wait_for_state(self, study: str, state: str, seconds: float = LIMIT_SECONDS) -> dict[str, Any]:
        """Wait until a study's only point is in this state, and return what is said of it."""
        seen: list[dict[str, Any]] = []

        def there() -> bool:
            seen.append(self.point(study))
            return bool(seen[-1]["state"] == state)

        try:
            wait_for(f"{study} {state}", there, seconds, every=LOOK_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {seen[-1]}") from error
        return seen[-1]

    def keys(self, study: str) -> list[str]:
        """Return the keys of a study's points, in order."""
        lines = (self.folder / "runs" / study / "points.jsonl").read_text(encoding="utf-8").splitlines()
        return [str(json.loads(line)["key"]) for line in lines]

    def run_folder(self, study: str, key: str | None = None) -> Path:
        """Return the folder of a point, by default the study's only one."""
        return self.folder / "runs" / study / (key or self.keys(study)[0])

    def outcome(self, study: str, key: str | None = None) -> dict[str, Any]:
        """Return a point's outcome, by default that of the study's only point."""
        text = (self.run_folder(study, key) / "outcome.json").read_text(encoding="utf-8")
        outcome: dict[str, Any] = json.loads(text)
        return outcome

    def losses(self, study: str) -> dict[str, dict[str, float]]:
        """Return the losses of every point, by key."""
        return {key: self.outcome(study, key)["loss"] for key in self.keys(study)}

    def attempt(self, study: str, number: int, file: str = "outcome.json") -> dict[str, Any]:
        """Return what an attempt of a study's only point wrote down."""
        text = (self.run_folder(study) / "attempts" / str(number) / file).read_text(encoding="utf-8")
        written: dict[str, Any] = json.loads(text)
        return written

    def ledger(self, study: str) -> list[dict[str, Any]]:
        """Return the events of a study's ledger."""
        lines = (self.folder / "runs" / study / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def job_ids(self, study: str) -> list[str]:
        """Return the ids of a study's job arrays that the ledger knows."""
        return [event["job_id"] for event in self.ledger(study) if event["event"] == "submitted"]

    def tasks(self, study: str) -> list[JobState]:
        """Return how all tasks of all arrays of a study ended that began, also those that the ledger does not know.

        Accounting hears of a job seconds after the controller: waits until it knows as many as that does.
        """
        names = ",".join(event["name"] for event in self.ledger(study) if event["event"] == "intent")
        found: list[JobState] = []

        def agreed() -> bool:
            held = self.cluster.queue("--states=all", f"--name={names}")
            found[:] = self.cluster.jobs(f"--name={names}", "--starttime=now-1day")
            begun = [task for task in held if task.nodes]
            return all(task.end for task in [*held, *found]) and len(found) == len(begun)

        wait_for(f"accounting to know the jobs of {study}", agreed, every=0.5)
        return found
