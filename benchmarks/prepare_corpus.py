"""Preparing a folder of code, beside the rate of the `tokenizers` library alone on the same text: per core, and memory.

Ours is `python -m train.prepare` from the command to the finished folder: listing, reading, hashing, removing what is
there twice, encoding, writing. Theirs is `encode_batch` on one core, of text that is in memory already, in calls of 256
documents. Both take the same tokenizer, which was trained before. Rates are of processor seconds (user and system, of
all processes), which another program beside does not change; memory is the most that all processes have at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from train.data.corpus.clean import normalised
from train.data.corpus.tokenizer import sample, train_bpe
from train.spec.command_line import Parser

CODE = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".js", ".pl", ".pm", ".py", ".pyi", ".pyx", ".rs", ".sh")
PLACES = (Path(os.__file__).parents[2], Path(sys.prefix), Path("/usr"))
BATCH = 256
SAMPLE_BYTES = 4_000_000
TARGET = 0.9
TARGET_MEMORY = 2e9
VOCABULARY = 4096
THEIRS = f"""
import os, sys, time
from tokenizers import Tokenizer
tokenizer, folder = Tokenizer.from_file(sys.argv[1]), sys.argv[2]
names = sorted(os.listdir(folder))
texts, size = [], 0
for name in names:
    with open(os.path.join(folder, name), encoding="utf-8") as stream:
        texts.append(stream.read())
    size += len(texts[-1].encode())
begun, tokens = time.process_time(), 0
for at in range(0, len(texts), {BATCH}):
    encoded = tokenizer.encode_batch(texts[at : at + {BATCH}], add_special_tokens=False)
    tokens += sum(len(one.ids) for one in encoded)
print(size, tokens, time.process_time() - begun)
"""


@dataclass(frozen=True)
class Measured:
    """Text [bytes], processor seconds, and the most memory of all processes together [bytes]."""

    size: int
    seconds: float
    memory: int

    @property
    def rate(self) -> float:
        """MB of text a processor second."""
        return self.size / self.seconds / 1e6

    @property
    def said(self) -> str:
        """The rate and the memory in words."""
        return f"{self.rate:.2f} MB/s {self.memory / 1e9:.2f} GB"


def code(size: int) -> Iterator[bytes]:
    """Yield different documents of code until there are `size` bytes; when there are no more, copies with another head.

    No copy is like another, for those would be left out; but their words are.
    """
    seen, done, copy = set[bytes](), 0, 0
    while done < size:
        before = done
        for place in PLACES:
            for path in sorted(place.rglob("*")):
                if not path.name.endswith(CODE) or not path.is_file() or path.is_symlink():
                    continue
                with suppress(ValueError, OSError):
                    text = (f"# copy {copy}\n".encode() if copy else b"") + normalised(path.read_bytes())
                    if text and text not in seen:
                        if not copy:
                            seen.add(text)
                        yield text
                        done += len(text)
                if done >= size:
                    return
        assert done > before, "there is no code on this machine"
        copy += 1


def of_elsewhere(texts: Sequence[bytes]) -> str:
    """Return the JSON of a tokenizer that cuts words as GPT-2's does, and not as ours."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 1, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.train_from_iterator((text.decode() for text in texts), trainer)
    return str(tokenizer.to_str())


def watched(command: Sequence[str], environment: dict[str, str]) -> tuple[str, float, int]:
    """Run a command; return what it prints, its processor seconds and its memory, those of its children with it.

    Memory is what processes have of their own, and of what they share each its part [bytes].
    """
    before, most = _children_seconds(), 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            with suppress(psutil.Error):
                here = psutil.Process(process.pid)
                most = max(most, sum(_memory(one) for one in (here, *here.children(recursive=True))))
            time.sleep(0.2)
        assert process.stdout is not None
        said = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return said, _children_seconds() - before, most


def _memory(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def ours(folder: Path, tokenizer: Path, root: Path, workers: int, name: str) -> Measured:
    """Prepare all of a folder of `.code` files."""
    settings = [
        f"data.name={name}",
        f"data.source={folder}",
        "data.extensions=[.code]",
        f"data.tokenizer_from={tokenizer}",
    ]
    words = ["-m", "train.prepare", "--root", str(root), "--workers", str(workers), "--set", *settings]
    said, seconds, memory = watched([sys.executable, *words], dict(os.environ))
    print(*(f"    {line}" for line in said.splitlines()), sep="\n", file=sys.stderr)
    return Measured(sum(path.stat().st_size for path in folder.iterdir()), seconds, memory)


def theirs(folder: Path, tokenizer: Path) -> Measured:
    """Encode the files of a folder on one core."""
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    said, _, memory = watched([sys.executable, "-c", THEIRS, str(tokenizer), str(folder)], environment)
    size, _, seconds = said.split()
    return Measured(int(size), float(seconds), memory)


def collected(folder: Path, size: int) -> list[bytes]:
    """Write `size` bytes of code into a folder, a file a document; return the first of them, to train on."""
    folder.mkdir()
    done, first = 0, []
    for number, text in enumerate(code(size)):
        (folder / f"{number:07d}.code").write_bytes(text)
        if done < SAMPLE_BYTES:
            first.append(text)
        done += len(text)
    print(f"{folder.name}: {number + 1:,} files, {done / 1e6:.0f} MB", flush=True)
    return first


def main() -> int:
    """Print both rates for a tokenizer of ours and for one of elsewhere; 1 where a target is missed."""
    parser = Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", type=float, default=2e7, help="code that both encode [bytes]")
    parser.add_argument("--large", type=float, default=1.5e8, help="code that ours prepares alone [bytes]; 0: none")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prepare-corpus-") as name:
        root = Path(name)
        print(f"tokenizers {version('tokenizers')}, vocabulary of {VOCABULARY:,}, {options.workers} workers")
        trained = collected(root / "code", int(options.size))
        files = {"trained here": root / "here.json", "from elsewhere (GPT-2's)": root / "elsewhere.json"}
        texts = (train_bpe(sample(trained), VOCABULARY), of_elsewhere(trained))
        missed = False
        print("text a processor second, most memory of all processes at once\n")
        print(f"{'tokenizer':<26} {'train.prepare':>22} {'encode_batch alone':>22} {'ratio':>6}")
        for (title, file), text in zip(files.items(), texts, strict=True):
            file.write_text(text, encoding="utf-8")
            mine = ours(root / "code", file, root / "data", options.workers, file.stem)
            other = theirs(root / "code", file)
            ratio = mine.rate / other.rate
            missed |= ratio < TARGET or mine.memory > TARGET_MEMORY
            print(f"{title:<26} {mine.said:>22} {other.said:>22} {ratio:>6.2f}", flush=True)
        if options.large:
            print()
            collected(root / "much code", int(options.large))
            mine = ours(root / "much code", files["trained here"], root / "data", options.workers, "much")
            missed |= mine.memory > TARGET_MEMORY
            print(f"{'trained here':<26} {mine.said:>22}")
        print(f"targets: {TARGET} of their rate or more, {TARGET_MEMORY / 1e9:.0f} GB of memory or less")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
