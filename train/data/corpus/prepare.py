"""Raw text to a prepared folder: once, atomically, in parallel, and the same bytes whatever the number of workers."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from train.data.corpus.done import SPOOLS
from train.data.corpus.end_of_text import said_beside
from train.data.corpus.messages import Progress, as_yaml, too_short
from train.spec.config import DataConfig
from train.spec.corpus_files import check_sizes
from train.spec.interrupts import deferred
from train.spec.manifest import (
    BYTES_VOCABULARY,
    FILE,
    LARGEST_VOCABULARY,
    PREPARER,
    SPLITS,
    STAGING,
    folder,
    lock_of,
    read_manifest,
    settings_of,
    sources_of,
)

TOKENIZER = "tokenizer.json"
REPLACED = "replaced"
"""The corpus that was there before, for a moment."""


def silent(stage: str, share: float, size: int = 0) -> None:
    """Report progress to nobody."""


def prepare(
    config: DataConfig,
    root: str | Path,
    progress: Progress = silent,
    *,
    force: bool = False,
    workers: int | None = None,
) -> Path:
    """Return the prepared folder of `config` under `root`, making it when it is not there.

    What is prepared is frozen: it is returned as it is, even when the source has changed since; `force` replaces it.
    Two processes that prepare the same folder make it once. Raises ValueError for bad settings or bad text, and when
    the folder was prepared with other settings. The sources of a mixture are prepared first, each in its own folder.
    """
    check(config)
    root = Path(root).expanduser()
    target = folder(config, root)
    for source in sources_of(config):
        prepare(source, root, progress, force=force, workers=workers)
    if _is_there(target) and not force:
        return _checked(config, target)

    from filelock import FileLock, Timeout

    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_of(target))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("waiting for another process that prepares this", 0.0)
        lock.acquire()
    try:
        if not _is_there(target) or force:
            _build_and_swap(config, target, progress, workers)
    finally:
        lock.release()
    return _checked(config, target)


def check(config: DataConfig) -> None:
    """Raise ValueError for settings that no text can satisfy."""
    if config.tokenizer == "bytes" and config.vocab_size != BYTES_VOCABULARY:
        raise ValueError(
            f"data.vocab_size={config.vocab_size} is not allowed with data.tokenizer=bytes: "
            f"it is {BYTES_VOCABULARY} (256 bytes and the separator)"
        )
    if config.tokenizer == "bpe" and not BYTES_VOCABULARY < config.vocab_size <= LARGEST_VOCABULARY:
        raise ValueError(
            f"data.vocab_size={config.vocab_size} is not allowed: {BYTES_VOCABULARY + 1} to {LARGEST_VOCABULARY}"
        )
    if config.tokenizer == "bytes" and config.tokenizer_from is not None:
        raise ValueError("data.tokenizer_from is for data.tokenizer=bpe: bytes need no tokenizer; set it to null")
    names = [source.name for source in config.sources]
    if len(set(names)) < len(names) or config.name in names:
        raise ValueError(
            f"data.sources: the names {', '.join(names)} and data.name={config.name} must all differ: "
            "each has a folder of its own"
        )
    if config.sources and config.source is not None:
        raise ValueError("data.source and data.sources are both given: name each folder in data.sources")
    if not 0 < config.validation_fraction < 1:
        raise ValueError(
            f"data.validation_fraction={config.validation_fraction} is not allowed: more than 0, less than 1"
        )
    if config.prompt_column == config.text_column:
        raise ValueError(f"data.prompt_column and data.text_column are both {config.text_column}: name two columns")
    if config.max_bytes is not None and config.max_bytes < 1:
        raise ValueError(f"data.max_bytes={config.max_bytes} is not allowed: at least 1, or null for all of the text")
    if not config.name or config.name.startswith(".") or "/" in config.name:
        raise ValueError(f"data.name={config.name!r} is not allowed: it names a folder (no /, no leading dot)")


def tokenizer_given(config: DataConfig, root: Path) -> tuple[str | None, tuple[int | str, ...]]:
    """Return the JSON that data.tokenizer_from names, and the tokens that end a text by what stands beside it.

    It names a corpus under `root`, whose separator ends a text, a tokenizer.json or its folder.
    """
    wanted = config.tokenizer_from
    if wanted is None:
        return None, ()
    corpus = root / f"{wanted}-{config.tokenizer}{config.vocab_size}" / TOKENIZER
    places = (corpus, Path(wanted).expanduser(), Path(wanted).expanduser() / TOKENIZER)
    for place in places:
        if place.is_file():
            there = (read_manifest(place.parent).separator_token,) if (place.parent / FILE).exists() else ()
            return _content(place, wanted), (*there, *said_beside(place.parent))
    raise ValueError(f"data.tokenizer_from={wanted}: there is no {' nor '.join(str(place) for place in places)}")


def _content(place: Path, wanted: str) -> str:
    """Return the JSON of a tokenizer's file; ValueError where it is another file."""
    from tokenizers import Tokenizer

    try:
        content = place.read_text(encoding="utf-8")
        Tokenizer.from_str(content)
    except OSError:
        raise
    except Exception as error:  # what is no tokenizer, the library says by a plain one
        raise ValueError(
            f"data.tokenizer_from={wanted}: {place} is no tokenizer.json of the tokenizers library ({error})"
        ) from None
    return content


def _is_there(target: Path) -> bool:
    """Say whether the folder is there; ValueError when one is that we did not make (not even `force` removes it)."""
    if (target / FILE).exists():
        return True
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(
            f"{target} exists but is no prepared corpus (it has no {FILE}): move it away, or choose another data.name"
        )
    return False


def _checked(config: DataConfig, target: Path) -> Path:
    """Return `target` when it is whole and was prepared with the settings of `config`."""
    manifest = read_manifest(target)
    wanted, found = settings_of(config), manifest.settings
    differences = [
        f"data.{key}={as_yaml(there)} there, {as_yaml(here)} here"
        for key, there in vars(found).items()
        if there != (here := vars(wanted)[key])
    ]
    if differences:
        raise ValueError(
            f"{target} was prepared with other settings: {'; '.join(differences)}. Choose another data.name (nothing "
            "is overwritten), or replace it with `python -m train.prepare --force`"
        )
    check_sizes(target, manifest)
    for name in SPLITS:
        tokens = manifest.splits[name].tokens
        if tokens <= config.sequence_length:
            raise ValueError(too_short(name, tokens, config))
    return target


def _build_and_swap(config: DataConfig, target: Path, progress: Progress, workers: int | None) -> None:
    """Build in a staging folder beside `target`, then rename: at no time is half a corpus under its name.

    The staging folder goes, however it ends, unless a process was killed: then the next call goes on in it.
    """
    from train.data.corpus.build import build
    from train.data.corpus.mixture_manifest import combine
    from train.data.corpus.workers import KilledError, Workers, cores

    staging = _staging(target, going_on=not config.sources)
    keep = False
    try:
        staging.mkdir(exist_ok=True)
        (staging / PREPARER).write_text(f"{os.uname().nodename} {os.getpid()}\n", encoding="utf-8")
        if config.sources:
            built = combine(config, target.parent, staging)
        else:
            with Workers(workers or cores()) as pool:
                built = build(config, staging, pool, progress, *tokenizer_given(config, target.parent))
        if target.exists():
            target.rename(staging / REPLACED)
        built.rename(target)
    except KilledError:
        keep = True
        raise
    finally:
        if not keep:
            try:
                _remove(staging)
            except KeyboardInterrupt:  # it came as this began
                _remove(staging)
                raise


def _remove(folder: Path) -> None:
    with deferred():
        shutil.rmtree(folder, ignore_errors=True)


def _staging(target: Path, *, going_on: bool) -> Path:
    """Return the folder to build in: what a killed process left, if we are `going_on` and it has text, else a new one.

    We hold the lock, so whoever left such a folder is gone; what is of no use is removed.
    """
    prefix = f".{target.name}{STAGING}"
    left = sorted(target.parent.glob(f"{prefix}*"))
    used = next((one for one in left if going_on and (one / SPOOLS).is_dir()), None)
    for one in left:
        shutil.rmtree(one / REPLACED if one == used else one, ignore_errors=True)
    return used or target.with_name(prefix + secrets.token_hex(4))
