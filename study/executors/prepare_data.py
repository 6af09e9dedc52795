"""The corpora that points read are prepared where they are missing: here, or in a job."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from study.config.schema import ClusterConfig
from study.executors import load
from study.process.children import job_environment
from study.records.corpus import DATA, Corpus, check, corpus_of
from study.storage.files import naming
from study.storage.processes import has_ended
from train.spec.config import DataConfig, RunConfig, SourceConfig
from train.spec.extensions import ARROW, DEFAULT, extension_of
from train.spec.interrupts import INTERRUPTED
from train.spec.manifest import BYTES_VOCABULARY, Manifest, folder

_TOLD_SECONDS = 1.0
"""How long a process is waited for after Ctrl-C before it is told: a terminal has told it, too, kill -INT has not.

Told twice it might be disturbed while it cleans up.
"""
LOOKED_AT = 10_000
"""Files of a folder by whose names a command sees whether there is text, before a job is asked for."""
TABLES = 20
"""Files of a folder whose columns it looks at, at most."""
Report = Callable[[str], None]
SCRATCH = ".prepare-"
"""How folders begin in which a command keeps what it tells the process that prepares data: host and process follow."""
_SCRATCH = re.compile(rf"{re.escape(SCRATCH)}(.+)-(\d+)-[^-]+")
LEFT_SECONDS = 7 * 86_400.0


def gather(runs: Iterable[RunConfig], report: Report, dry_run: bool, cluster: ClusterConfig) -> dict[Corpus, Manifest]:
    """Return the manifest of every corpus that the runs read, preparing what is missing; with `dry_run` nothing is.

    cluster: where a run is executed, and so where data is prepared.

    Raises ValueError where a run asks for more than its corpus holds, SystemExit where preparing fails.
    """
    runs = list(runs)
    found = {}
    for corpus in dict.fromkeys(map(corpus_of, runs)):
        manifest, wanted = corpus.find(), folder(corpus.data, corpus.root)
        if manifest is None:
            _check_sources(corpus.data)
        if manifest is None and not dry_run:
            where = ""
            if in_job(cluster):
                title = load(cluster.executor).title
                where = f" in a {title} job (cluster.prepare=here does it on this machine)"
            report(f"Preparing the corpus {wanted.name} in {corpus.root}{where}")
            prepare(corpus, cluster)
            manifest = corpus.find()
            if manifest is None:
                raise ValueError(f"{wanted} was prepared with other data.* settings")
        if manifest is None:
            report(f"The corpus {wanted.name} is not prepared in {corpus.root}: the keys below will change when it is.")
        else:
            found[corpus] = manifest
    for run in runs:
        if manifest := found.get(corpus_of(run)):
            check(run, manifest)
    return found


def _check_sources(data: DataConfig) -> None:
    """Raise ValueError where a folder of raw text that has to be read is not there or holds none."""
    if data.tokenizer == "bpe" and data.tokenizer_from is None and data.vocab_size < BYTES_VOCABULARY:
        raise ValueError(
            f"data.vocab_size={data.vocab_size} is not allowed for data.tokenizer=bpe: at least {BYTES_VOCABULARY}, "
            "one for each byte and the document separator"
        )
    read: dict[str, DataConfig | SourceConfig] = {f"data.sources.{at}": one for at, one in enumerate(data.sources)}
    for key, one in (read or {"data": data}).items():
        if one.source is None:
            continue
        folder, extensions = Path(one.source).expanduser(), one.extensions or DEFAULT
        if not folder.is_dir():
            raise ValueError(f"{key}.source={one.source}: there is no such folder: name the one that holds your text")
        files = (Path(at, name) for at, _, names in os.walk(folder, followlinks=True) for name in names)
        looked_at = list(itertools.islice(files, LOOKED_AT))
        kinds = {path: kind for path in looked_at if (kind := extension_of(path.name, (*extensions, ARROW)))}
        if not kinds and len(looked_at) < LOOKED_AT:
            raise ValueError(
                f"{key}.source={one.source}: no file of {', '.join(extensions)} in this folder: name the one "
                f"that holds your text, or say in {key}.extensions which files are text"
            )
        if set(kinds.values()) == {".parquet"}:
            columns = {f"{key}.text_column": one.text_column, f"{key}.prompt_column": one.prompt_column}
            _check_columns(sorted(kinds)[:TABLES], columns)


def _check_columns(tables: Sequence[Path], columns: Mapping[str, str | None]) -> None:
    """Raise ValueError for a column, by the key that names it, that none of some parquet files has.

    Only their ends are read, and no more of them once one has the columns. What is damaged is left to who reads it.
    """
    import pyarrow
    from pyarrow.parquet import read_schema

    lacking = ""
    for path in tables:
        try:
            there = read_schema(path).names
        except (pyarrow.ArrowException, OSError):
            return
        absent = next((f"{key}={name}" for key, name in columns.items() if name and name not in there), "")
        if not absent:
            return
        lacking = lacking or f"{absent}: {path} has no such column: name one of {', '.join(there) or 'none'}"
    if lacking:
        raise ValueError(lacking)


def in_job(cluster: ClusterConfig) -> bool:
    """Return whether data is prepared in a job, which spares the login node minutes of all its cores."""
    return cluster.prepare == "job" and load(cluster.executor).allocates


def prepare(corpus: Corpus, cluster: ClusterConfig) -> None:
    """Prepare a corpus in a process or a job of its own (it loads heavy libraries), its progress shown.

    Raises SystemExit with its exit code where it fails; once it has ended after Ctrl-C KeyboardInterrupt, or, where it
    has said so, SystemExit.
    """
    from train.spec.yamlfile import dump

    Path(corpus.root).mkdir(parents=True, exist_ok=True)
    with _scratch(Path(corpus.root)) as scratch:
        file = scratch / DATA
        with naming(file):
            file.write_text(dump({"data": asdict(corpus.data)}))
        words = ["-m", "train.prepare", "--config", str(file.absolute()), "--root", corpus.root]
        command, environment = [sys.executable, *words], job_environment(os.environ)
        if in_job(cluster):
            command, environment = load(cluster.executor).python_job(words, cluster, environment)
        code = _wait_for(command, environment)
    if code != 0 and in_job(cluster):
        raise ValueError(
            f"the data was not prepared: srun ended with exit code {code}, for the reason above; "
            "cluster.prepare=here prepares it on this machine"
        )
    if code != 0:
        raise SystemExit(code)


@contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    """Give a folder of this process's own in the data root, where nodes see it, too; what the dead left there goes."""
    prefix = f"{SCRATCH}{os.uname().nodename}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(dir=root, prefix=prefix) as name:
        mine = Path(name)
        for other in root.glob(f"{SCRATCH}*"):
            if other != mine and (is_left(other) or _is_old(other, mine)):
                shutil.rmtree(other, ignore_errors=True)
        yield mine


def is_left(scratch: Path) -> bool:
    """Whether a command made this folder here and its process, of this machine, is gone; one with more in it stays."""
    named = _SCRATCH.fullmatch(scratch.name)
    if named is None or not has_ended(*named.groups()):
        return False
    with suppress(OSError):  # another command may remove it at this moment
        return {one.name for one in scratch.iterdir()} <= {DATA}
    return False


def _is_old(other: Path, mine: Path) -> bool:
    """Whether a folder is so much older than another one, by the clock of the file system, that nobody uses it."""
    try:
        return mine.stat().st_mtime - other.stat().st_mtime > LEFT_SECONDS
    except OSError:
        return False


def _wait_for(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in this process's group and return its exit code; after Ctrl-C once it has ended by itself."""
    try:
        process = subprocess.Popen(command, env=environment)
    except (FileNotFoundError, PermissionError):  # the second where a folder of PATH may not be read
        raise ValueError(
            f"cluster.executor=slurm, but {command[0]} is not on PATH: run this on a login node, or take cluster=local"
        ) from None
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.wait(_TOLD_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
        if process.returncode == INTERRUPTED:
            raise SystemExit(INTERRUPTED) from None
        raise
