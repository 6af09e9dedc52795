"""Prepare a corpus for training: ``python -m train.prepare``.

Text becomes tokens once; later calls with the same settings say so and do nothing.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("train.prepare")

import argparse
import errno
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, get_type_hints

from train.spec.command_line import Parser, whole_number
from train.spec.config import DataConfig
from train.spec.corpus_files import verify
from train.spec.from_mapping import read, unknown_key
from train.spec.interrupts import INTERRUPTED, WRONG
from train.spec.manifest import Kind, Manifest, folder, read_manifest
from train.spec.not_installed import missing_package

_LINE_SECONDS = 0.1
_LOG_SECONDS = 30.0
_KINDS_SHOWN = 20
NAMELESS = (
    "name what is to be prepared: --config FILE (in a checkout, conf/data/bytes.yaml is text that every machine has), "
    "or --set data.source=/folder data.name=NAME"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done; 2 for what the user can put right, which is on stderr.

    What is missing of the packages that the text's format or the tokenizer needs counts as such, too.
    1: a file is not what its manifest says (--verify), or the system did not let it be read or written.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(words)
    if not words:
        _parser().print_usage()
        print(f"train.prepare: {NAMELESS}; --help says more", file=sys.stderr)
        return WRONG
    display = Display(sys.stderr)
    try:
        config, root = configured(options.config, options.set or [], options.root)
        if options.verify:
            return _verified(folder(config, root), display)
        from train.data.corpus.prepare import prepare

        target = prepare(config, root, display.show, force=options.force, workers=options.workers)
        display.end()
        for line in report(target, read_manifest(target), display.seconds):
            print(line)
    except (ValueError, OSError) as error:
        display.end()
        print(f"error: {in_words(error)}", file=sys.stderr)
        return WRONG if isinstance(error, ValueError) else 1
    except ModuleNotFoundError as error:
        lacking = missing_package(error)
        if not lacking:
            raise
        display.end()
        print(
            f"error: this needs the package {lacking}, which is not installed: pip install {lacking}", file=sys.stderr
        )
        return WRONG
    except KeyboardInterrupt:
        display.end()
        print("interrupted: nothing was left behind, start it again any time", file=sys.stderr)
        return INTERRUPTED
    return 0


def in_words(error: ValueError | OSError) -> str:
    """Return what is wrong; for a file or a folder also what to do."""
    if isinstance(error, ValueError) or error.strerror is None:
        return str(error)
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}{error.strerror}: make room, then run the same command again"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"{where}it is no folder, and data are to go there: give another one with --root"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{where}{error.strerror}: give a folder of your own with --root"
    return f"{where}{error.strerror}"


def _verified(target: Path, display: Display) -> int:
    """Compare the files of a prepared folder with its manifest, and say what was found."""
    try:
        manifest = verify(target, display.show)
    except ValueError as error:
        display.end()
        print(f"error: {error}", file=sys.stderr)
        return 1
    display.end()
    print(f"{target}: every file is what the manifest says ({manifest.fingerprint})")
    return 0


def configured(file: str | None, assignments: Sequence[str], root: str | None) -> tuple[DataConfig, Path]:
    """Return the data section and the data root that the options name.

    `file` is a run's config, any YAML with a ``data:`` section, or the section itself; `assignments` are
    ``data.key=value`` and win.
    """
    import yaml

    from train.spec.yamlfile import why_unreadable

    mapping: Mapping[str, Any] = {}
    if file is not None:
        try:
            loaded = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"--config {file}: there is no such file") from None
        except IsADirectoryError:
            raise ValueError(f"--config {file} is a folder: name the file in it") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"--config {file} is not YAML: {why_unreadable(error)}") from None
        mapping = _with_section(loaded, file)
    section = dict(mapping.get("data", {}))
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ValueError(f"--set {assignment}: write it as data.key=value")
        if not name.startswith("data."):
            raise ValueError(unknown_key(name, "data.", list(DataConfig.__dataclass_fields__)))
        section[name.removeprefix("data.")] = _said(assignment, name.removeprefix("data."), value)
    runtime = mapping.get("runtime") or {}
    config = read(DataConfig, section, "data")  # before the source: what is misspelt there may be the source's key
    if section.get("source") in {"???", ""}:
        raise ValueError("data.source is missing: name a folder of text, for example --set data.source=/my/texts")
    return config, Path(root or runtime.get("data_root") or "data")


def _said(assignment: str, key: str, text: str) -> Any:
    """Return the value of an assignment; of a key that takes text that itself, also where YAML has 007 for a number."""
    from train.spec.yamlfile import value_of

    takes_text = get_type_hints(DataConfig).get(key) in (str, str | None)
    try:
        value = value_of(assignment)
    except ValueError:
        if takes_text:
            return text
        raise
    return text if takes_text and not isinstance(value, str | None) else value


def _with_section(loaded: Any, file: str) -> Mapping[str, Any]:
    """Return the content of a config file; one that holds keys of the data section only counts as that section."""
    if isinstance(loaded, dict) and isinstance(loaded.get("data"), dict):
        return loaded
    if isinstance(loaded, dict) and loaded and set(loaded) <= set(DataConfig.__dataclass_fields__):
        return {"data": loaded}
    raise ValueError(f"--config {file} has no section `data:` (keys like data.name, data.source)")


def report(target: Path, manifest: Manifest, seconds: float | None) -> list[str]:
    """Return the lines that say what is prepared; `seconds` is None when it was there already."""
    train, held_out = manifest.splits["train"], manifest.splits["validation"]
    how = "was prepared before" if seconds is None else f"prepared in {seconds:.1f} s"
    lines = [
        f"{target} {how}: {_millions(train.tokens)} training and {_millions(held_out.tokens)} validation tokens, "
        f"{train.documents + held_out.documents:,} documents, {_millions(train.bytes + held_out.bytes)} bytes, "
        f"{manifest.bytes_per_token:.2f} bytes/token, fingerprint {manifest.fingerprint}"
    ]
    if train.counted < train.tokens or held_out.counted < held_out.tokens:
        lines.append(
            f"of these the loss counts {_millions(train.counted)} training and {_millions(held_out.counted)} "
            "validation tokens, which bytes/token are of; the others are read and not trained on"
        )
    if manifest.skipped_counts:
        counts = ", ".join(f"{count:,} {why}" for why, count in manifest.skipped_counts.items())
        named = len(manifest.skipped)  # duplicates, and what is over data.max_bytes, are only counted
        lines.append(f"left out: {counts}" + (f" ({named} named in {target / 'manifest.json'})" if named else ""))
    if manifest.skipped_counts.get("broken"):
        first = manifest.skipped[0]
        name = first.file.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")  # it may not be UTF-8
        lines.append(f"broken documents: {manifest.skipped_counts['broken']}, the first is {name}: {first.why}")
    if manifest.special_in_text:
        lines.append(
            f"{manifest.special_in_text:,} special tokens of data.tokenizer_from stand in the text by their names, as "
            "<|endoftext|> may, and became these tokens, as in transformers: take them out of text that only speaks of "
            "them"
        )
    return [*lines, *by_kind(manifest.kinds)]


def by_kind(kinds: Sequence[Kind]) -> list[str]:
    """Return a table of what is there of each kind, most text first; bytes/token with the tokens that end documents."""
    if not kinds:
        return []
    shown = sorted(kinds, key=lambda one: (-one.bytes, one.kind))[:_KINDS_SHOWN]
    rows = [("files", "documents", "bytes", "tokens", "bytes/token")]
    for one in shown:
        fertility = f"{one.bytes / one.tokens:.2f}"
        rows.append((one.kind, f"{one.documents:,}", _millions(one.bytes), _millions(one.tokens), fertility))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *numbers in rows:
        cells = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return [*lines, f"and {len(kinds) - len(shown)} kinds more"] if len(kinds) > len(shown) else lines


class Display:
    """One line that is rewritten on a terminal; elsewhere a line a stage, and one every half minute."""

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream = stream
        self._clock = clock
        self._live = stream.isatty()
        self._began: float | None = None
        self._stage = ""
        self._stage_began = self._shown = 0.0
        self._first = 0.0

    @property
    def seconds(self) -> float | None:
        """Time since the first stage [s]; None when there was none."""
        return None if self._began is None else self._clock() - self._began

    def show(self, stage: str, share: float, size: int = 0) -> None:
        """Show that `share` of `stage` is done, which has `size` bytes to do; 0: that is not known."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        fresh = stage != self._stage
        if fresh:
            self._stage, self._stage_began, self._first = stage, now, share
        said = pace(share, self._first, now - self._stage_began, size)
        if self._live:
            if fresh or share >= 1 or now - self._shown > _LINE_SECONDS:
                self._shown = now
                line = f"preparing data: {stage} {100 * share:3.0f} %  {now - self._began:.0f} s{said}"
                self._stream.write(f"\r\x1b[2K{line}")
        elif fresh:
            self._shown = now
            before = f" ({100 * share:.0f} % was done before)" if share > 0 else ""
            self._stream.write(f"preparing data: {stage}{before}\n")
        elif now - self._shown > _LOG_SECONDS:
            self._shown = now
            self._stream.write(f"preparing data: {stage} {100 * share:.0f} %{said}\n")
        self._stream.flush()

    def end(self) -> None:
        """Clear the line."""
        if self._live and self._began is not None:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()


def pace(share: float, first: float, seconds: float, size: int) -> str:
    """Return how fast a stage goes and how long it will take, as ", 12.3 MB/s, 1:20 left"; "" where neither is known.

    first: the share that was done when it began; seconds: since then; size: of all of it [bytes].
    """
    if share <= first or share >= 1 or seconds <= 0:
        return ""
    rate = f", {(share - first) * size / seconds / 1e6:.1f} MB/s" if size else ""
    left = round(seconds * (1 - share) / (share - first))
    hours, minutes = left // 3600, left // 60 % 60
    clock = f"{hours}:{minutes:02d}:{left % 60:02d}" if hours else f"{minutes}:{left % 60:02d}"
    return f"{rate}, {clock} left"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m train.prepare", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--config", metavar="FILE", help="a run's config.yaml, any YAML with `data:`, or conf/data/*.yaml"
    )
    parser.add_argument("--set", metavar="data.KEY=VALUE", nargs="+", action="extend", help="set these keys")
    parser.add_argument("--root", metavar="FOLDER", help="data root (default: runtime.data_root, else data)")
    parser.add_argument("--verify", action="store_true", help="only compare every file with its sha256")
    parser.add_argument("--force", action="store_true", help="prepare again and replace existing data")
    parser.add_argument("--workers", metavar="N", type=whole_number, help="processes (default: one per core)")
    return parser


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f}M" if count >= 1e5 else f"{count:,}"
