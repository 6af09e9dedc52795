"""The folder of a mixture: a manifest over the shards of its sources, which stay where they are."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from train.data.corpus.build import split_of, write_manifest
from train.spec.config import DataConfig
from train.spec.manifest import (
    FORMAT,
    SPLITS,
    Manifest,
    Member,
    Skipped,
    Split,
    fingerprint_of,
    folder,
    kinds_together,
    read_manifest,
    settings_of,
    sources_of,
)


def combine(config: DataConfig, root: Path, staging: Path) -> Path:
    """Return the mixture's folder, made inside `staging`, of sources that are prepared under `root`.

    Raises ValueError when the sources were not made with one tokenizer.
    """
    made = staging / "combined"
    made.mkdir()
    places = [folder(source, root) for source in sources_of(config)]
    manifests = [read_manifest(place) for place in places]
    first = manifests[0]
    for place, manifest in zip(places, manifests, strict=True):
        if (manifest.tokenizer.sha256, manifest.separator_token) != (first.tokenizer.sha256, first.separator_token):
            raise ValueError(
                f"{place} was prepared with another tokenizer than {places[0]}: prepare it anew with "
                f"data.tokenizer_from={manifests[0].name}, or under another name"
            )
    if first.tokenizer.file is not None:
        shutil.copyfile(places[0] / first.tokenizer.file, made / first.tokenizer.file)
    splits = {name: _joined(name, places, manifests) for name in SPLITS}
    manifest = Manifest(
        format=FORMAT,
        name=config.name,
        tokenizer=first.tokenizer,
        separator_token=first.separator_token,
        splits=splits,
        bytes_per_token=splits["validation"].bytes_per_token,
        source="; ".join(f"{one.name}: {one.source}" for one in manifests),
        settings=settings_of(config),
        skipped=_skipped(manifests),
        skipped_counts=dict(sorted(sum((Counter(one.skipped_counts) for one in manifests), Counter[str]()).items())),
        fingerprint=fingerprint_of(first.tokenizer, first.separator_token, splits),
        members=tuple(
            Member(one.name, place.name, one.fingerprint, one.bytes_per_token)
            for place, one in zip(places, manifests, strict=True)
        ),
        kinds=kinds_together(kind for one in manifests for kind in one.kinds),
        special_in_text=sum(one.special_in_text or 0 for one in manifests) or None,
    )
    write_manifest(made, manifest)
    return made


def _skipped(manifests: Sequence[Manifest]) -> tuple[Skipped, ...]:
    """Return the documents that sources left out, the broken ones of all first, as in each."""
    broken: list[Skipped] = []
    others: list[Skipped] = []
    for one in manifests:
        count = one.skipped_counts.get("broken", 0)
        broken += one.skipped[:count]
        others += one.skipped[count:]
    return (*broken, *others)


def _joined(split: str, places: Sequence[Path], manifests: Sequence[Manifest]) -> Split:
    parts = [manifest.splits[split] for manifest in manifests]
    shards = tuple(
        replace(
            shard,
            file=f"../{place.name}/{shard.file}",
            index=f"../{place.name}/{shard.index}",
            mask=shard.mask and replace(shard.mask, file=f"../{place.name}/{shard.mask.file}"),
        )
        for place, part in zip(places, parts, strict=True)
        for shard in part.shards
    )
    return split_of(sum(part.documents for part in parts), sum(part.bytes for part in parts), shards)
