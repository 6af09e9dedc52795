"""The prepared corpora that points read: found, prepared where they are missing, and points checked against them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from study.text import percent
from train.spec.config import DataConfig, RunConfig
from train.spec.manifest import FILE, Manifest, folder, read_manifest, settings_of

MOST_EPOCHS = 4
"""How often text is read at most without harm: laws fitted to runs that read it more often are not of fresh text."""
DATA = "data.yaml"
"""The one file in such a folder."""


@dataclass(frozen=True)
class Corpus:
    """What names a prepared corpus: its data section, without how it is cut into sequences, and the data root."""

    data: DataConfig
    root: str

    def find(self) -> Manifest | None:
        """Return its manifest; None if it is not prepared, or was prepared with other settings."""
        place = folder(self.data, self.root)
        if not (place / FILE).exists():
            return None
        manifest = read_manifest(place)
        return manifest if manifest.settings == settings_of(self.data) else None


def corpus_of(run: RunConfig) -> Corpus:
    """Return the corpus that a resolved config reads."""
    data = replace(run.data, sequence_length=DataConfig().sequence_length, fingerprint=None)
    return Corpus(data, run.runtime.data_root)


def check(run: RunConfig, manifest: Manifest) -> None:
    """Raise ValueError where the corpus has too little text for this run's validation or for one sequence."""
    length = run.data.sequence_length
    windows = (manifest.splits["validation"].tokens - 1) // length
    if run.eval.sequences > windows:
        raise ValueError(
            f"eval.sequences={run.eval.sequences} is too many: data={run.data.name} has {max(0, windows)} validation "
            f"sequences of {length} tokens; lower it or data.sequence_length, or raise data.validation_fraction"
        )
    if manifest.splits["train"].tokens <= length:
        raise ValueError(
            f"data.sequence_length={length} is longer than all of the training text: lower it, or give more text"
        )


def epochs(runs: Iterable[RunConfig], found: dict[Corpus, Manifest]) -> float:
    """Return how often the run with the most tokens reads its corpus; 0 where no corpus is prepared."""
    return max(
        (
            (run.budget.tokens or 0) / found[corpus_of(run)].splits["train"].tokens
            for run in runs
            if corpus_of(run) in found
        ),
        default=0.0,
    )


def remarks(runs: Iterable[RunConfig], found: dict[Corpus, Manifest]) -> list[str]:
    """Return what a plan says of its prepared corpora: text that is read again, and tokens that the loss leaves out."""
    times = epochs(runs, found)
    said = [f"The longest run reads the training text {times:.1f} times."] if times > 1 else []
    if times > MOST_EPOCHS:
        said[0] += f" Beyond {MOST_EPOCHS} times repeated text is worth less than new (Muennighoff et al. 2023)."
    for manifest in found.values():
        if manifest.special_in_text:
            said.append(
                f"{manifest.name}: {manifest.special_in_text:,} special tokens of its tokenizer stand in the text by "
                "their names, and are these tokens."
            )
        train = manifest.splits["train"]
        if train.counted < train.tokens:
            share = percent(train.counted / train.tokens)
            said.append(
                f"The loss counts {share} of the training tokens of {manifest.name}; D and FLOPs count them all."
            )
    return said
