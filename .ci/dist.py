"""`python .ci/dist.py [FOLDER]`: sdist and wheel of what git tracks, built twice and compared, then put into FOLDER.

Times inside are those of SOURCE_DATE_EPOCH, by default of the last commit: the same commit gives the same bytes.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"


def normalized(sdist: bytes, epoch: int) -> bytes:
    """Return an sdist whose members are in order and have one time, owner and mode each."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as given,
        gzip.GzipFile("", "wb", 9, packed, mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as out,
    ):
        for member in sorted(given.getmembers(), key=lambda found: found.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            out.addfile(member, given.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def sources(folder: Path) -> None:
    """Copy what git tracks, as it stands now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def built(copied: Path, epoch: int) -> dict[str, bytes]:
    """Return the files by name, built in a fresh copy of the sources."""
    with tempfile.TemporaryDirectory() as above:
        scratch = Path(above) / "source"
        shutil.copytree(copied, scratch)
        (scratch / "dist").mkdir()
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONPATH": ""}
        done = subprocess.run(
            [sys.executable, "-c", BUILD], cwd=scratch, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        found = {path.name: path.read_bytes() for path in (scratch / "dist").iterdir()}
    return {name: normalized(data, epoch) if name.endswith(".tar.gz") else data for name, data in found.items()}


def main(folder: Path) -> int:
    """Build twice, compare, write; return 1 if the two differ."""
    said = os.environ.get("SOURCE_DATE_EPOCH")
    log = ["git", "log", "-1", "--format=%ct"]
    epoch = int(said or subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    with tempfile.TemporaryDirectory() as copied:  # a file that changes meanwhile makes no difference between the two
        sources(Path(copied))
        one, two = built(Path(copied), epoch), built(Path(copied), epoch)
    differing = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    if differing:
        print(f"built twice, these differ: {', '.join(differing)}", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in sorted(one.items()):
        (folder / name).write_bytes(data)
        print(f"{folder / name}: {len(data):,} bytes, the same when built twice")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
