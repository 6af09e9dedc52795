"""Two small studies as an earlier version left them, in a folder of their own: `runs/recorded` and `runs/searched`.

`recorded`: nine finished points and one that was interrupted, with its checkpoint; `searched`: an ASHA search that is
over; beside them the corpus, and `presets.jsonl`: points of many presets, frozen and never run. They stay as they are:
what that version wrote is read for ever.
"""

import tarfile
from pathlib import Path

DATA = Path(__file__).parent / "data"
SAID = [
    "data=text",
    "data.name=words",
    "data.source=text",
    "data.tokenizer=bytes",
    "data.sequence_length=32",
    "data.validation_fraction=0.2",
    "eval.sequences=8",
    "eval.count=2",
    "model.head_dim=8",
    "model.layers=1",
    "batch.tokens=256",
    "tracking=none",
    "runtime.device=cpu",
    "runtime.checkpoint_seconds=0",
    "runtime.log_steps=8",
]
"""What the commands said that made them."""


def unpack(place: Path) -> Path:
    """Put the studies into a folder, as if they had been made there; return it."""
    with tarfile.open(DATA / "recorded.tar.gz") as archive:
        archive.extractall(place, filter="data")
    (place / "text").mkdir()
    for path in place.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl", ".yaml", ".log"):
            path.write_text(path.read_text("utf-8").replace("/recorded", str(place)), "utf-8")
    return place
