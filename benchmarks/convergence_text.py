"""Text for the convergence presets: real prose and code of this environment, or a made-up language without files.

`python -m benchmarks.convergence_text FOLDER [MB]` writes up to MB megabytes of the standard library's and installed
packages' documentation strings, sources and prose as .txt files, xz-compressed into FOLDER.tar.xz as well, so that a
machine without network can be given it.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

from train.data.corpus.clean import digest, left_out_by_content
from train.data.corpus.source_files import list_environment
from train.spec.command_line import Parser

WORDS, RULES = 96, 6
_MASK = (1 << 64) - 1


def invented(documents: int, seed: int = 0) -> Iterator[str]:
    """Yield documents of an invented language, the same on every machine: each word limits which may come next."""
    words = [
        "".join("bdfgklmnprstvz"[_mixed(seed, w, s) % 14] + "aeiou"[_mixed(w, s) % 5] for s in range(2 + w % 2))
        for w in range(WORDS)
    ]
    for document in range(documents):
        word, out = _mixed(seed, document) % WORDS, []
        for place in range(60 + _mixed(document, 1) % 120):
            out.append(words[word])
            # mostly the likelier of a word's followers
            choice = min(_mixed(seed, document, place) % RULES, _mixed(document, place, 7) % RULES)
            word = _mixed(seed, word, choice) % WORDS
            if place % 11 == 10:
                out[-1] += "."
        yield " ".join(out) + "\n"


def _mixed(*numbers: int) -> int:
    """Return 64 well-mixed bits of some numbers (splitmix64), the same in every version of Python."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def write_environment(folder: Path, megabytes: float) -> int:
    """Write texts of the environment into a folder and an archive beside it, up to a size; return the bytes of text.

    Which of them is decided by a hash of their names: some of every package, and the same ones wherever the same
    packages are installed. What is generated or data is left out, as where the environment is prepared itself.
    """
    folder.mkdir(parents=True)
    chosen, total = dict[str, bytes](), 0
    for file in sorted(list_environment().files, key=lambda file: digest(file.name.encode())):
        content = Path(file.path).read_bytes()
        if left_out_by_content(content):
            continue
        if total + len(content) > megabytes * 1e6:
            break
        chosen[file.name] = content
        total += len(content)
    with tarfile.open(folder.with_name(folder.name + ".tar.xz"), "w:xz", preset=9) as archive:
        for number, name in enumerate(sorted(chosen)):  # neighbours are alike, which the compression lives on
            path = folder / f"{number:06d}.txt"
            path.write_bytes(chosen[name])
            archive.add(path, f"{folder.name}/{path.name}")
    return total


if __name__ == "__main__":
    parser = Parser(prog="python -m benchmarks.convergence_text", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="a new folder; FOLDER.tar.xz is written beside it")
    parser.add_argument("megabytes", type=float, nargs="?", default=150.0, help="most text to write [MB]")
    options = parser.parse_args()
    written = write_environment(options.folder, options.megabytes)
    print(f"{written / 1e6:.1f} MB of text in {options.folder} and {options.folder}.tar.xz")
