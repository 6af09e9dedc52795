"""What the test job runs on each of its ranks: `python -m study.doctor.probe FOLDER --name NAME`.

It looks at what the login node wrote and locked, and whether torch's ranks can talk, and writes `rank-<n>.json`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from study.executors import load
from study.executors.base import RankInfo
from study.executors.local import LOCAL
from study.job.hang_watch import py_spy
from study.job.rendezvous import rendezvous
from study.process.children import job_environment
from study.storage.files import RunLock, last_lines, write_json
from study.storage.mounts import file_system
from study.storage.shapes import COUNT, FLAG, NUMBER, TEXT, TIME, WHOLE, Shape, object_of, read_record
from study.tracking.server import why_no_answer

LETTER, LOCK, MEETING = "letter.json", "lock", "meeting.json"
MEET_SECONDS, TORCH_SECONDS = 120.0, 240.0
AGAIN = "run python -m study doctor again"
LETTER_SHAPE = Shape("a letter of the login node", {"from": TEXT, "tracking": TEXT}, ("from",), AGAIN)
MEETING_SHAPE = Shape("where ranks meet", {"address": TEXT, "port": COUNT}, ("address", "port"), AGAIN)
SAID_OF_TORCH = Shape(
    "what torch is there", {"torch": TEXT, "device": TEXT, "ranks": COUNT, "backend": TEXT, "gb_per_s": NUMBER},
    ("torch", "device"), AGAIN,
)  # fmt: skip
SURROUNDINGS = Shape(
    "what a rank of the test job found",
    {
        **dict.fromkeys(("host", "node", "python", "type", "torch_error", "tracking"), TEXT),
        **dict.fromkeys(("sees_letter", "lock_held", "scontrol", "py_spy"), FLAG),
        "rank": COUNT,
        "world": COUNT,
        "torch_code": WHOLE,
        "torch": object_of(SAID_OF_TORCH),
        "time": TIME,
    },
    ("host", "node", "type", "torch_code", "torch_error", "sees_letter", "lock_held", "scontrol", "py_spy"),
    AGAIN,
)


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit code is that of torch's part."""
    parser = argparse.ArgumentParser(prog="python -m study.doctor.probe")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", required=True)
    given = parser.parse_args(arguments)
    rank_info = load("slurm" if "SLURM_JOB_ID" in os.environ else LOCAL).rank_info(os.environ)
    if "DOCTOR_RANK" in os.environ:  # without SLURM nobody else says which rank this is
        rank_info = RankInfo(
            LOCAL, given.name, rank=int(os.environ["DOCTOR_RANK"]), world=int(os.environ["DOCTOR_WORLD"])
        )
    found = surroundings(given.folder)
    code, said = torch_works(given.folder, rank_info)
    found |= {"rank": rank_info.rank, "world": rank_info.world, "torch_code": code, "torch_error": said}
    found["torch"] = read_record(given.folder / "torch.json", SAID_OF_TORCH) if rank_info.first else None
    write_json(given.folder / f"rank-{rank_info.rank}.json", found)
    return code


def surroundings(folder: Path) -> dict[str, Any]:
    """Return what can be seen from this node of what the login node prepared."""
    letter = read_record(folder / LETTER, LETTER_SHAPE)
    tracking = str((letter or {}).get("tracking") or "")
    return {
        "host": socket.gethostname(),
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "python": sys.version.split()[0],
        "type": file_system(folder),
        "sees_letter": letter is not None,
        "lock_held": not RunLock(folder / LOCK).acquire(),
        "scontrol": shutil.which("scontrol") is not None,
        "py_spy": py_spy() is not None,
        "tracking": why_no_answer(tracking) if tracking else None,
        "time": time.time(),
    }


def torch_works(folder: Path, rank_info: RankInfo) -> tuple[int, str]:
    """Run `train.check_ranks` as this rank of the job's; return its exit code and the end of what it said."""
    environment = job_environment(os.environ)
    if rank_info.world > 1:
        address, port = _meet(folder, rank_info)
        words = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        values = (rank_info.rank, rank_info.world, rank_info.local_rank, address, port)
        environment |= dict(zip(words, map(str, values), strict=True))
    log = folder / f"torch-{rank_info.rank}.log"
    with log.open("wb") as file:
        try:
            command = [sys.executable, "-m", "train.check_ranks", "--out", str(folder / "torch.json")]
            done = subprocess.run(
                command, env=environment, stdout=file, stderr=file, timeout=TORCH_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return 1, f"no answer in {TORCH_SECONDS:.0f} s: ranks may not reach each other"
    return done.returncode, "" if done.returncode == 0 else "\n".join(last_lines(log)[-3:])


def _meet(folder: Path, rank_info: RankInfo) -> tuple[str, int]:
    """Return where the ranks meet; the first one decides and writes it down for the others."""
    path = folder / MEETING
    if rank_info.first:
        address, port = rendezvous(rank_info, "127.0.0.1" if "DOCTOR_RANK" in os.environ else None)
        write_json(path, {"address": address, "port": port})
        return address, port
    limit = time.monotonic() + MEET_SECONDS
    while time.monotonic() < limit:
        said = read_record(path, MEETING_SHAPE)
        if said is not None:
            return str(said["address"]), int(said["port"])
        time.sleep(0.1)
    raise TimeoutError(f"rank 0 wrote no rendezvous address in {MEET_SECONDS:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
