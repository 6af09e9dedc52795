"""The stages of preparing: list, read, choose, train the tokenizer, encode, write the manifest."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from train.data.corpus.choice import Choice, choose
from train.data.corpus.done import SPOOLS, to_disk
from train.data.corpus.messages import Progress, as_yaml, no_document, too_short
from train.data.corpus.parts import parts_of
from train.data.corpus.raw import Columns
from train.data.corpus.source_files import Listing, chunked, list_environment, list_folder
from train.data.corpus.spool import Spooled, SpoolTask, spool, spooled
from train.data.corpus.tally import LISTED, Tally
from train.data.corpus.tokenizer import FILE as TOKENIZER_FILE
from train.data.corpus.tokenizer import WORDS_KEPT, describe, sample, separator_of, train_bpe
from train.data.corpus.workers import Workers
from train.data.corpus.write_shards import Places, ShardTask, plan, write, written
from train.spec.config import DataConfig
from train.spec.corpus_files import files_of
from train.spec.extensions import canonical
from train.spec.manifest import (
    FILE,
    FORMAT,
    SPLITS,
    Kind,
    Manifest,
    Shard,
    Skipped,
    Split,
    fingerprint_of,
    kinds_together,
    settings_of,
    token_bytes,
)

Task = TypeVar("Task", SpoolTask, ShardTask)
Result = TypeVar("Result")

WORDS_TOGETHER = 4_000_000
"""Words that all processes together remember while they encode: 600 MB or so."""


@dataclass(frozen=True)
class _Job:
    """What every stage needs: the settings, where to write, who works and who is told."""

    config: DataConfig
    folder: Path
    places: Places
    spools: Path
    pool: Workers
    progress: Progress

    def run(
        self,
        stage: str,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        finished: Callable[[Task], Result | None],
    ) -> list[Result]:
        """Return the results of all tasks, in their order; those that are `finished` are not done again."""
        results = [finished(task) for task in tasks]
        left = [number for number, result in enumerate(results) if result is None]
        total = sum(task.size for task in tasks)
        done = total - sum(tasks[number].size for number in left)
        self.progress(stage, done / max(1, total) if left else 1.0, total)
        for place, result in self.pool.run(work, [tasks[number] for number in left]):
            results[left[place]] = result
            done += tasks[left[place]].size
            self.progress(stage, done / max(1, total), total)
        return [result for result in results if result is not None]


def build(  # noqa: PLR0917 - the place and the means of a build, in their order
    config: DataConfig,
    staging: Path,
    pool: Workers,
    progress: Progress,
    given: str | None = None,
    ends: Sequence[int | str] = (),
) -> Path:
    """Return the finished folder of `config`, made inside `staging` (which may hold other files as well).

    What a build there that was killed had finished is not done again.

    `given` is the JSON of the tokenizer to use; None: train one (bpe), or none is needed (bytes). `ends`: its tokens
    that end a text, by what stands beside it.
    Raises ValueError when the source is missing, damaged, or too little for the settings.
    """
    places = Places(staging / "built", staging / "shards", staging / "parts")
    job = _Job(config, places.shards, places, staging / SPOOLS, pool, progress)
    shutil.rmtree(places.scratch, ignore_errors=True)
    for made in (job.folder, job.spools, places.records, places.scratch):
        made.mkdir(exist_ok=True)
    if given is not None:
        separator_of(given, config.vocab_size, ends)  # what is wrong with the two is said before hours of reading
    progress("listing files", 0.0)
    listing = _listed(config)
    spools = _read(job, listing)
    choice = choose(spools, config.validation_fraction, config.max_bytes)
    _check_choice(config, choice, spools)

    tokenizer = given
    if config.tokenizer == "bpe":
        if tokenizer is None:
            progress("training the tokenizer", 0.0)
            texts = (text for document in choice.train.texts() for text, _ in parts_of(document))
            tokenizer = train_bpe(sample(texts), config.vocab_size)
        (job.folder / TOKENIZER_FILE).write_bytes(tokenizer.encode("utf-8"))
    separator = separator_of(tokenizer, config.vocab_size, ends)
    splits, kinds, special = _encode(job, choice, tokenizer, separator)

    described = describe(config.tokenizer, config.vocab_size, tokenizer)
    skipped, counts = _skipped(listing, spools, choice)
    manifest = Manifest(
        format=FORMAT,
        name=config.name,
        tokenizer=described,
        separator_token=separator,
        splits=splits,
        bytes_per_token=splits["validation"].bytes_per_token,
        source=listing.description,
        settings=settings_of(config),
        skipped=skipped,
        skipped_counts=counts,
        fingerprint=fingerprint_of(described, separator, splits),
        kinds=kinds,
        special_in_text=special or None,
    )
    _keep_only(job.folder, {path.name for path, _, _ in files_of(job.folder, manifest)})
    write_manifest(job.folder, manifest)
    return job.folder


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a folder whose other files are there, and return once all would outlive a power cut."""
    with (folder / FILE).open("w", encoding="utf-8") as stream:
        stream.write(manifest.dumps())
        to_disk(stream)
    _names_to_disk(folder)


def split_of(documents: int, size: int, shards: tuple[Shard, ...]) -> Split:
    """Return the split of shards that hold `size` bytes of text, of which the loss counts some."""
    bytes_per_token = (size - _masked_bytes(shards)) / sum(shard.counted for shard in shards)
    return Split(documents, sum(shard.tokens for shard in shards), size, bytes_per_token, shards)


def _masked_bytes(shards: Iterable[Shard]) -> int:
    return sum(shard.mask.bytes for shard in shards if shard.mask is not None)


def _listed(config: DataConfig) -> Listing:
    if config.source is None:
        return list_environment()
    return list_folder(config.source, canonical(config.extensions, config.source))


def _read(job: _Job, listing: Listing) -> list[Spooled]:
    """Read all files into spools; ValueError when not one document can be used."""
    config = job.config
    columns = Columns(config.text_column, config.prompt_column)
    tasks = [
        SpoolTask(files, columns, config.source is None, job.spools, job.places.scratch)
        for files in chunked(listing.files)
    ]
    _keep_only(job.spools, {f"{task.key}{end}" for task in tasks for end in (".json", ".text", ".index")})
    spools = job.run("reading", spool, tasks, spooled)
    if not any(s.documents for s in spools):
        broken = _tallied(s.broken for s in spools)
        first = f"the first is {broken.first[0].file}: {broken.first[0].why}" if broken.total else "no text is in them"
        raise ValueError(
            f"data.source={as_yaml(config.source)}: none of its {len(listing.files)} files can be used "
            f"({broken.total} broken documents); {first}"
        )
    return spools


def _check_choice(config: DataConfig, choice: Choice, spools: Iterable[Spooled]) -> None:
    """Raise ValueError when a split has no document."""
    if not len(choice.train) and not len(choice.validation):
        smallest = min(int(s.read_index()["size"].min()) for s in spools if s.documents)
        raise ValueError(
            f"data.max_bytes={config.max_bytes} is less than the first document needs "
            f"(they have {smallest} bytes and more): raise it"
        )
    for name, part in (("train", choice.train), ("validation", choice.validation)):
        if not len(part):
            raise ValueError(no_document(name, len(choice.train) + len(choice.validation), config))


def _encode(
    job: _Job, choice: Choice, tokenizer: str | None, separator: int
) -> tuple[dict[str, Split], tuple[Kind, ...], int]:
    """Write the shards of both splits; ValueError when one is shorter than a sequence.

    Return what they hold, what of it is of which kind, and how many special tokens the text became.
    """
    parts = {"train": choice.train, "validation": choice.validation}
    width, words = token_bytes(job.config.vocab_size), min(WORDS_KEPT, WORDS_TOGETHER // job.pool.count)
    tasks = {
        name: list(plan(part, name, tokenizer, separator, job.places, width, words)) for name, part in parts.items()
    }
    found = job.run("encoding", write, [task for name in SPLITS for task in tasks[name]], written)
    each, splits = iter(found), {}
    for name in SPLITS:
        mine = [next(each) for _ in tasks[name]]
        shards, size = tuple(one.shard for one in mine), sum(one.size for one in mine)
        tokens = sum(shard.tokens for shard in shards)
        if tokens <= job.config.sequence_length:
            raise ValueError(too_short(name, tokens, job.config))
        if size == _masked_bytes(shards):
            raise ValueError(
                f"data.source={as_yaml(job.config.source)}: the loss would count no text of the {name} split "
                f"({tokens} tokens): give more records of which some text counts"
            )
        splits[name] = split_of(len(parts[name]), size, shards)
    kinds = kinds_together(kind for one in found for kind in one.kinds)
    return splits, kinds, sum(one.special for one in found)


def _keep_only(folder: Path, names: set[str]) -> None:
    """Remove what a killed build left of other text or other settings."""
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


def _skipped(listing: Listing, spools: Sequence[Spooled], choice: Choice) -> tuple[tuple[Skipped, ...], dict[str, int]]:
    """Return the first documents left out, broken ones before the others, and the count of all by reason."""
    broken = _tallied(s.broken for s in spools)
    others = _tallied([listing.skipped, *(s.left_out for s in spools)])
    counts = Counter({"broken": broken.total}) + others.counts
    counts += Counter({"duplicate": choice.duplicates, "over data.max_bytes": choice.over_max_bytes})
    return tuple([*broken.first, *others.first][:LISTED]), dict(sorted(counts.items()))


def _tallied(tallies: Iterable[Tally]) -> Tally:
    found = Tally()
    for one in tallies:
        found.add_all(one)
    return found


def _names_to_disk(folder: Path) -> None:
    """Return once the folder's list of files would outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
