"""The tokenizer of a corpus as files that `transformers` and servers read, its separator as end-of-text token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from train.data.corpus.tokenizer import END_OF_TEXT
from train.spec.manifest import BYTES_VOCABULARY


def write_tokenizer(out: Path, content: str | None, separator: int, length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json; `content` is the corpus' tokenizer as JSON, None for bytes."""
    from tokenizers import AddedToken, Tokenizer

    tokenizer: Any = _bytes_tokenizer() if content is None else Tokenizer.from_str(content)
    if tokenizer.id_to_token(separator) is None:
        # Where the vocabulary was made larger than the tokenizer, numbers that no text has come before the separator.
        unused = [f"<|unused_{number}|>" for number in range(tokenizer.get_vocab_size(), separator)]
        tokenizer.add_special_tokens(
            [AddedToken(name, special=True, normalized=False) for name in (*unused, END_OF_TEXT[0])]
        )
    name = tokenizer.id_to_token(separator)
    if name is None:
        raise ValueError(
            f"the separator is token {separator}, the tokenizer ends at {tokenizer.get_vocab_size()}: "
            "they are not of the same corpus"
        )
    tokenizer.save(str(out / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": name,
        "eos_token": name,
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(described, indent=1) + "\n", "utf-8")


def _bytes_tokenizer() -> Any:
    """Return a tokenizer whose tokens are the bytes, numbered by their values."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    # The byte-level alphabet: printable bytes are themselves, the others characters from 256 on.
    vocabulary = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    assert len(vocabulary) == BYTES_VOCABULARY - 1
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
