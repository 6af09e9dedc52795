"""Text to tokens: a byte-level BPE trained here, or plain bytes.

The BPE cuts text into words by a pattern of plain character classes, on which the regular expressions of Python and
of `tokenizers` agree. So every distinct word is encoded once by `tokenizers` and then looked up: the same tokens as
encoding whole documents (a test compares them), several times faster on source code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from train.spec.manifest import BYTES_VOCABULARY, TokenizerFile

Encoder = Callable[[bytes], bytes]
"""A document (UTF-8) to its tokens (little-endian, of the shards' width), without the separator."""

FILE = "tokenizer.json"
SAMPLE_BYTES = 16_000_000

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""Names by which tokenizers call the token that ends a text, tried in this order."""

WORDS_KEPT = 1_000_000
"""Words that a process remembers with their tokens: 150 MB or so."""
_LONGEST_KEPT = 64
_PIECE = 1 << 20
_LINE_END = re.compile(r"[^ \t\n]\n")


def word_pattern(above_ascii: str) -> str:
    """Return the pattern of words, given how an engine writes the range of characters above ASCII.

    A word is: letters with one space before them, up to three digits likewise, line ends with the indentation after
    them, signs likewise with one space, or blanks. Every character is in exactly one class.
    """
    letters, signs = f"[A-Za-z_{above_ascii}]", f"[^A-Za-z0-9_ \\t\\n{above_ascii}]"
    return f" ?{letters}+| ?[0-9]{{1,3}}|\\n[ \\t\\n]*| ?{signs}+|[ \\t]+"


def train_bpe(texts: Iterable[bytes], vocab_size: int) -> str:
    """Return the JSON of a byte-level BPE of ``vocab_size - 1`` tokens; the last number is left to the separator.

    The separator is not in the tokenizer: no text can produce it. The same texts give the same JSON. Raises ValueError
    when the texts do not hold that many different tokens.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(word_pattern("\\x{80}-\\x{10FFFF}")), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator((text.decode("utf-8") for text in texts), trainer)
    found = tokenizer.get_vocab_size()
    if found != vocab_size - 1:
        raise ValueError(
            f"data.vocab_size={vocab_size} is too large for this text: its training split gives {found + 1} tokens, "
            f"the separator included; set data.vocab_size={found + 1} or less, or give more text"
        )
    return str(tokenizer.to_str())


def sample(texts: Iterable[bytes], limit: int = SAMPLE_BYTES) -> Iterator[bytes]:
    """Yield texts until `limit` bytes are passed: what the BPE is trained on."""
    size = 0
    for text in texts:
        yield text
        size += len(text)
        if size >= limit:
            return


def describe(kind: str, vocab_size: int, content: str | None) -> TokenizerFile:
    """Return the manifest's entry of a tokenizer: `content` is its JSON (bpe) or None (bytes)."""
    described = content if content is not None else f"bytes {BYTES_VOCABULARY}"
    sha256 = hashlib.sha256(described.encode("utf-8")).hexdigest()
    return TokenizerFile(kind, vocab_size, sha256, FILE if content is not None else None)


def encoder(tokenizer: str | None, width: int = 2, words: int = WORDS_KEPT) -> Encoder:
    """Return the encoder of a tokenizer's JSON into tokens of `width` bytes; None: the bytes themselves.

    words: how many are remembered with their tokens, which takes memory and changes nothing else. A tokenizer that was
    trained elsewhere and cuts words its own way encodes whole documents, without adding tokens.
    """
    if tokenizer is None:
        return encode_bytes
    from tokenizers import Tokenizer

    loaded: Any = Tokenizer.from_str(tokenizer)
    # Its file may keep the length that a model was last called with: documents would be cut, or filled up, to that.
    loaded.no_truncation()
    loaded.no_padding()
    kind = f"<u{width}"
    if not _cuts_words_as_here(tokenizer):

        def encode_whole(document: bytes) -> bytes:
            (found,) = loaded.encode_batch_fast([document.decode("utf-8")], add_special_tokens=False)
            return np.array(found.ids, dtype=kind).tobytes()

        return encode_whole
    look_up = _Words(loaded, kind, words).__getitem__
    find = re.compile(word_pattern("\\x80-\\U0010ffff")).findall

    def encode(document: bytes) -> bytes:
        return b"".join(b"".join(map(look_up, find(piece))) for piece in pieces(document.decode("utf-8")))

    return encode


def pieces(text: str, size: int = _PIECE) -> Iterator[str]:
    """Yield a text in pieces of about `size` characters, cut where a word begins in any case: at the end of a line.

    All the words of a text take thirty times its memory.
    """
    begin = 0
    while len(text) - begin > size and (found := _LINE_END.search(text, begin + size)):
        yield text[begin : found.end() - 1]
        begin = found.end() - 1
    yield text[begin:]


def separator_of(tokenizer: str | None, vocab_size: int, said: Iterable[int | str] = ()) -> int:
    """Return the token that ends a document: a foreign tokenizer's own end-of-text token, else the last number.

    said: tokens that end a text by what stands beside the tokenizer; asked where it has none of a usual name, as those
    of chat models end a turn. Raises ValueError that names data.vocab_size when the tokenizer has more tokens than the
    vocabulary holds.
    """
    if tokenizer is None:
        return vocab_size - 1
    vocabulary = vocabulary_of(tokenizer)
    named = [vocabulary.get(one) if isinstance(one, str) else one for one in (*END_OF_TEXT, *said)]
    there = set(vocabulary.values())
    ends = [number for number in named if number is not None and number in there]
    needed = max(vocabulary.values(), default=-1) + 1 + (0 if ends else 1)
    if needed > vocab_size:
        raise ValueError(
            f"data.vocab_size={vocab_size} is too small: data.tokenizer_from needs {needed}, the separator included"
        )
    return ends[0] if ends else vocab_size - 1


def vocabulary_of(tokenizer: str) -> dict[str, int]:
    """Return the numbers of the tokens in a tokenizer's JSON."""
    content = json.loads(tokenizer)
    said = content["model"]["vocab"]  # token to number, or (Unigram) tokens with their scores, in the order of numbers
    vocabulary: dict[str, int] = {one[0]: n for n, one in enumerate(said)} if isinstance(said, list) else dict(said)
    return vocabulary | {one["content"]: one["id"] for one in content.get("added_tokens", ())}


def special_tokens(tokenizer: str | None) -> list[int]:
    """Return the numbers of a foreign tokenizer's special tokens; where a text has their names, it becomes them."""
    added = () if tokenizer is None else json.loads(tokenizer).get("added_tokens", ())
    return [int(one["id"]) for one in added if one.get("special")]


def encode_bytes(document: bytes) -> bytes:
    """Return one token a byte."""
    return np.frombuffer(document, dtype=np.uint8).astype("<u2").tobytes()


class _Words(dict[str, bytes]):
    """Words to their tokens, filled when a word is first seen; bounded, for text without end."""

    def __init__(self, tokenizer: Any, kind: str, kept: int) -> None:
        super().__init__()
        self._encode, self._kind, self._kept = tokenizer.encode, kind, kept

    def __missing__(self, word: str) -> bytes:
        tokens = np.array(self._encode(word).ids, dtype=self._kind).tobytes()
        if len(word) <= _LONGEST_KEPT:
            if len(self) >= self._kept:
                self.clear()
            self[word] = tokens
        return tokens


def _cuts_words_as_here(tokenizer: str) -> bool:
    """Say whether a tokenizer's JSON cuts text into words by this module's pattern, as those trained here do."""
    pre = json.loads(tokenizer).get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers") or [{}]
    return bool(steps[0].get("pattern") == {"Regex": word_pattern("\\x{80}-\\x{10FFFF}")})
