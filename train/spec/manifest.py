"""The manifest of a prepared corpus: what lies in its folder, and whether it is still what was written.

Standard library only, so that the command line reads it without loading torch or numpy.

A prepared folder ``<data_root>/<name>-<tokenizer><vocab_size>`` holds ``manifest.json``, ``tokenizer.json`` (bpe only)
and, for both splits, shards ``train-00000.bin`` (tokens, little-endian: uint16, above a
vocabulary of 65,536 uint32; every document is followed by the separator token) with ``train-00000.idx``
(uint64 little-endian: the first token of each document, then the end) and, where the loss does not count every token,
``train-00000.mask`` (uint64 little-endian: where each run of tokens that do not count begins and ends).

A mixture's folder holds only ``manifest.json`` and ``tokenizer.json``: its shards are those of its sources, whose
folders lie beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from train.spec.config import DataConfig
from train.spec.extensions import canonical
from train.spec.from_mapping import read

FORMAT = 1
FILE = "manifest.json"
STAGING = ".staging-"
"""How the name goes on, after a dot and the corpus's, of the folder in which a corpus is made; then a random number."""
PREPARER = "prepared-by"
"""The file in it that says whose it is: host and process."""
SPLITS = ("train", "validation")
OFFSET_BYTES = 8
BYTES_VOCABULARY = 257
LARGEST_VOCABULARY = 1 << 20


@dataclass(frozen=True)
class LossMask:
    """Runs of a shard's tokens that the loss does not count as targets.

    numbers: in the file, growing: begin and end of one run after the other. tokens: how many do not count; bytes: of
    how much text.
    """

    file: str
    numbers: int
    sha256: str
    tokens: int
    bytes: int


@dataclass(frozen=True)
class Shard:
    """One file of tokens, its index of documents, and its loss mask (None: every token counts)."""

    file: str
    tokens: int
    documents: int
    sha256: str
    index: str
    index_sha256: str
    mask: LossMask | None = None

    @property
    def counted(self) -> int:
        """How many tokens the loss counts."""
        return self.tokens - (self.mask.tokens if self.mask else 0)


@dataclass(frozen=True)
class Split:
    """One side of the train/validation division; `bytes` counts UTF-8 text, `tokens` counts separators too.

    Both count what the loss does not; `counted` are the tokens that it does, `bytes_per_token` is of these alone.
    """

    documents: int
    tokens: int
    bytes: int
    bytes_per_token: float
    shards: tuple[Shard, ...]

    @property
    def counted(self) -> int:
        """How many tokens the loss counts."""
        return sum(shard.counted for shard in self.shards)


@dataclass(frozen=True)
class Kind:
    """What came from files of one extension, in both splits: documents, bytes of text, tokens with separators."""

    kind: str
    documents: int
    bytes: int
    tokens: int


@dataclass(frozen=True)
class TokenizerFile:
    """How text became tokens; `file` is None for the byte tokenizer."""

    kind: str
    vocab_size: int
    sha256: str
    file: str | None


@dataclass(frozen=True)
class Skipped:
    """A document that is not in the corpus, and why."""

    file: str
    why: str


@dataclass(frozen=True)
class SourceSettings:
    """The keys of a mixture's source that decide what is prepared: all but its weight."""

    name: str
    source: str | None
    text_column: str
    max_bytes: int | None
    prompt_column: str | None = None
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The keys of DataConfig that decide what is prepared; `source` is an absolute path or None (environment)."""

    source: str | None
    text_column: str
    tokenizer: str
    vocab_size: int
    validation_fraction: float
    max_bytes: int | None
    tokenizer_from: str | None = None
    sources: tuple[SourceSettings, ...] = ()
    prompt_column: str | None = None
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Member:
    """One source of a mixture: its name, its folder (beside the mixture's) and the fingerprint of what it held."""

    name: str
    folder: str
    fingerprint: str
    bytes_per_token: float


@dataclass(frozen=True)
class Manifest:
    """What a prepared folder holds.

    `bytes_per_token` is that of the validation split: nats per token / ln 2 / bytes_per_token = bits per byte.
    `fingerprint` (12 hex digits) depends on the tokenizer and the tokens only: not on time, paths or the name.
    `skipped` lists the first 100 documents left out (broken ones first; neither duplicates nor what
    is over data.max_bytes), `skipped_counts` counts all by reason.
    `members` are the sources of a mixture, in the order of data.sources; a corpus of its own has none.
    `kinds` are in the order of their names; of one that an earlier version prepared there are none.
    `special_in_text`: how many special tokens of a foreign tokenizer the text became, as it has their names; None: none
    did, or an earlier version prepared it.
    """

    format: int
    name: str
    tokenizer: TokenizerFile
    separator_token: int
    splits: dict[str, Split]
    bytes_per_token: float
    source: str
    settings: Settings
    skipped: tuple[Skipped, ...]
    skipped_counts: dict[str, int]
    fingerprint: str
    members: tuple[Member, ...] = ()
    kinds: tuple[Kind, ...] = ()
    special_in_text: int | None = None

    def dumps(self) -> str:
        """Return the manifest as JSON text."""
        return json.dumps(_plain(self), indent=1) + "\n"


_LATER = ("mask", "prompt_column", "extensions", "special_in_text")
"""Fields that came later: a corpus without them is written, and named by its fingerprint, as it was before them."""


def _plain(instance: Any) -> dict[str, Any]:
    """Return a dataclass as plain values, without later fields that are None or empty."""
    return asdict(
        instance,
        dict_factory=lambda pairs: {name: one for name, one in pairs if name not in _LATER or one not in (None, ())},
    )


def token_bytes(vocab_size: int) -> int:
    """Return the bytes of one token in a shard: 2 up to a vocabulary of 65,536, else 4."""
    return 2 if vocab_size <= 1 << 16 else 4


def folder(config: DataConfig, root: str | Path) -> Path:
    """Return the folder of the corpus that `config` names, under the data root."""
    return Path(root).expanduser() / f"{config.name}-{config.tokenizer}{config.vocab_size}"


def lock_of(target: Path) -> Path:
    """Return the lock that whoever prepares this corpus holds."""
    return target.with_name(f".{target.name}.lock")


def settings_of(config: DataConfig) -> Settings:
    """Return the keys of `config` that decide what is prepared."""
    return Settings(
        source=_absolute(config.source),
        text_column=config.text_column,
        tokenizer=config.tokenizer,
        vocab_size=config.vocab_size,
        validation_fraction=config.validation_fraction,
        max_bytes=config.max_bytes,
        tokenizer_from=config.tokenizer_from,
        sources=tuple(
            SourceSettings(
                one.name,
                _absolute(one.source),
                one.text_column,
                one.max_bytes,
                one.prompt_column,
                canonical(one.extensions, one.source, f"data.sources.{place}.extensions"),
            )
            for place, one in enumerate(config.sources)
        ),
        prompt_column=config.prompt_column,
        extensions=canonical(config.extensions, config.source),
    )


def _absolute(source: str | None) -> str | None:
    return None if source is None else str(Path(source).expanduser().resolve())


def sources_of(config: DataConfig) -> tuple[DataConfig, ...]:
    """Return the data sections of a mixture's sources: like the mixture's own, sharing the first one's tokenizer."""
    sections = []
    for number, one in enumerate(config.sources):
        tokenizer_from = config.tokenizer_from
        if config.tokenizer == "bpe" and number and tokenizer_from is None:
            tokenizer_from = config.sources[0].name
        section = replace(
            config,
            name=one.name,
            source=one.source,
            text_column=one.text_column,
            max_bytes=one.max_bytes,
            prompt_column=one.prompt_column,
            extensions=one.extensions,
            tokenizer_from=tokenizer_from,
            sources=(),
        )
        sections.append(section)
    return tuple(sections)


def members(place: str | Path, manifest: Manifest) -> list[tuple[str, Path]]:
    """Return name and folder of every corpus behind a prepared folder: its own, or those of a mixture's sources.

    Raises ValueError when a source was prepared anew since the mixture was.
    """
    place = Path(place)
    if not manifest.members:
        return [(manifest.name, place)]
    found = []
    for member in manifest.members:
        where = place.parent / member.folder
        if read_manifest(where).fingerprint != member.fingerprint:
            raise ValueError(f"{where} was prepared anew since the mixture {place} was: {prepare_again(place)}")
        found.append((member.name, where))
    return found


def read_manifest(folder: str | Path) -> Manifest:
    """Return the manifest of a prepared folder.

    Raises ValueError when the folder is not prepared, or when its manifest is not one that was written by this format.
    """
    path = Path(folder) / FILE
    try:
        mapping = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{folder} is not prepared: run `python -m train.prepare` with the same data.* settings"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}): {prepare_again(path.parent)}") from None
    try:
        if mapping["format"] != FORMAT:
            raise ValueError(f"format={mapping['format']!r}, this version reads format {FORMAT}")
        manifest = _parse(mapping)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is not a manifest of this version ({error}): {prepare_again(path.parent)}") from None
    found = fingerprint_of(manifest.tokenizer, manifest.separator_token, manifest.splits)
    if found != manifest.fingerprint:
        raise ValueError(
            f"{path} was changed: its fingerprint says {manifest.fingerprint}, its content gives {found}; "
            f"{prepare_again(path.parent)}"
        )
    return manifest


def fingerprint_of(tokenizer: TokenizerFile, separator_token: int, splits: Mapping[str, Split]) -> str:
    """Return 12 hex digits that name the tokens of a corpus, wherever and whenever it was prepared."""
    content = {
        "format": FORMAT,
        "tokenizer": asdict(tokenizer),
        "separator_token": separator_token,
        "splits": {name: _plain(split) for name, split in splits.items()},
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def kinds_together(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    """Return the sums of each kind, in the order of their names."""
    sums: dict[str, Kind] = {}
    for one in kinds:
        so_far = sums.get(one.kind, Kind(one.kind, 0, 0, 0))
        sums[one.kind] = Kind(
            one.kind, so_far.documents + one.documents, so_far.bytes + one.bytes, so_far.tokens + one.tokens
        )
    return tuple(sums[kind] for kind in sorted(sums))


def _parse(mapping: Mapping[str, Any]) -> Manifest:
    splits = {}
    for name in SPLITS:
        split = mapping["splits"][name]
        shards = tuple(read(Shard, shard, f"splits.{name}.shards") for shard in split["shards"])
        plain = {key: split[key] for key in ("documents", "tokens", "bytes", "bytes_per_token")}
        splits[name] = Split(**plain, shards=shards)
    return Manifest(
        format=mapping["format"],
        name=mapping["name"],
        tokenizer=read(TokenizerFile, mapping["tokenizer"], "tokenizer"),
        separator_token=mapping["separator_token"],
        splits=splits,
        bytes_per_token=mapping["bytes_per_token"],
        source=mapping["source"],
        settings=read(Settings, mapping["settings"], "settings"),
        skipped=tuple(read(Skipped, one, "skipped") for one in mapping["skipped"]),
        skipped_counts=dict(mapping["skipped_counts"]),
        fingerprint=mapping["fingerprint"],
        members=tuple(read(Member, one, "members") for one in mapping.get("members", ())),
        kinds=tuple(read(Kind, one, "kinds") for one in mapping.get("kinds", ())),
        special_in_text=mapping.get("special_in_text"),
    )


def prepare_again(folder: Path) -> str:
    """Return what helps where a corpus is damaged."""
    return f"prepare it again with `python -m train.prepare --force`, or remove {folder}"
