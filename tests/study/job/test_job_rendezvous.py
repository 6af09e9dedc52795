"""A port that is taken between its probe and its use costs a round of the attempt, on all ranks together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from study.job import __main__, attempt, rendezvous
from study.process.children import Signals, wait_together
from study.process.ports import is_free
from study.records import ledger
from study.storage.layout import StudyFolder
from tests.study.job.test_job_ranks import of_three_ranks
from tests.study.support.studies import environment

TRAINER = """
import json, os, socket, sys, time
from pathlib import Path
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
port = int(os.environ["MASTER_PORT"])
run = Path(sys.argv[sys.argv.index("--config") + 1]).parent
if rank == 0:
    store = socket.socket()
    try:
        store.bind(("127.0.0.1", port))
    except OSError:
        sys.exit("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
                 f"address. port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use")
    store.listen()
    met = {store.accept()[0].recv(9).decode() for _ in range(world - 1)}
    (run / "met").write_text(" ".join([str(port), *sorted(met)]))
    outcome = {"format": 1, "state": "completed", "step": 1, "tokens": 1, "loss": {}}
    (run / "outcome.new").write_text(json.dumps(outcome))
    (run / "outcome.new").rename(run / "outcome.json")
else:
    while True:  # as ranks do that come before the first one
        client = socket.socket()
        try:
            client.connect(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    client.sendall(f"rank {rank}".encode())
    client.recv(1)  # a stranger who has the port never answers, and never leaves either
"""
"""Meets as torch does, in a fraction of the time; what it says of a taken port is torch's own."""


@contextmanager
def strangers(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[list[int]]:
    """Take the first `count` ports that are probed, between the probe and the use: real sockets that listen."""
    probe, sockets, ports = is_free, list[socket.socket](), list[int]()

    def taken_after(port: int) -> bool:
        if not probe(port):
            return False
        if len(sockets) < count:
            stranger = socket.socket()
            stranger.bind(("127.0.0.1", port))
            stranger.listen()
            sockets.append(stranger)
            ports.append(port)
        return True

    monkeypatch.setattr(rendezvous, "is_free", taken_after)
    yield ports
    for one in sockets:
        one.close()


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch, executor: str) -> tuple[StudyFolder, str]:
    study, key = of_three_ranks(folder / "s", seed=1)
    (folder / "trainer.py").write_text(TRAINER)
    monkeypatch.setenv("STUDY_TRAINER", f"{sys.executable} {folder / 'trainer.py'}")
    monkeypatch.setattr(Signals, "install", lambda signals: None)
    about = {"master_addr": "127.0.0.1"}
    ledger.append(study, "intent", name="b", executor=executor, keys=[key], resources=about)
    ledger.append(study, "submitted", name="b", job_id="7")
    study.peers_checked.touch()
    return study, key


def met(study: StudyFolder, key: str) -> tuple[int, list[str]]:
    port, *ranks = (study.run(key).path / "met").read_text().replace("rank ", "").split()
    return int(port), ranks


def test_ranks_of_this_machine_meet_at_another_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, key = prepared(tmp_path, monkeypatch, "local")
    with strangers(monkeypatch, 2) as taken:
        assert __main__.main([str(study.path), "--name", "b", "--index", "0"]) == 0
    said = json.loads(study.run(key).attempt(1).job.read_text())
    assert said["round"] == len(set(taken)) == 2
    assert met(study, key) == (said["port"], ["1", "2"])
    assert said["port"] not in taken
    assert [path.name for path in study.run(key).attempts.iterdir()] == ["1"], "it cost no attempt"
    assert not list(study.run(key).attempt(1).path.glob("rank-*.json"))


def test_ranks_of_a_job_meet_at_another_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a process of its own that starts its trainer, as srun starts them."""
    study, key = prepared(tmp_path, monkeypatch, "slurm")
    variables = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_ID": "8", "SLURM_NTASKS": "3"}
    command = [sys.executable, "-m", "study.job", str(study.path), "--name", "b", "--index", "0"]
    own = {**environment(), "STUDY_TRAINER": os.environ["STUDY_TRAINER"], **variables}
    others = [subprocess.Popen(command, env={**own, "SLURM_PROCID": str(rank)}) for rank in (1, 2)]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with strangers(monkeypatch, 1) as taken:
        assert __main__.main([str(study.path), "--name", "b", "--index", "0"]) == 0
        assert [process.wait(900) for process in others] == [0, 0]
    assert met(study, key)[1] == ["1", "2"]
    assert met(study, key)[0] not in taken


def test_an_attempt_tries_only_so_many_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, key = prepared(tmp_path, monkeypatch, "local")
    monkeypatch.setattr(attempt, "wait_together", partial(wait_together, grace=0.2))
    with strangers(monkeypatch, 99) as taken:
        assert __main__.main([str(study.path), "--name", "b", "--index", "0"]) == 1
    assert len(taken) == 4
    assert json.loads(study.run(key).attempt(1).outcome.read_text())["kind"] == "communication"
