"""Tokens: the quick way equals the tokenizer's own, and text comes back."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.environment import python_path
from train.data.corpus.end_of_text import said_beside
from train.data.corpus.tokenizer import encoder, pieces, sample, separator_of, train_bpe, word_pattern

CORPUS = [
    f"def function_{n}(value: int, other: float = {n}.5) -> int:\n    return value * {n * 37} + other\n\n\n".encode()
    for n in range(400)
] + ["Größe 日本語 naïve — “quoted” 🙂\n".encode()] * 5
TEXT = st.text(st.characters(codec="utf-8"), max_size=60) | st.text(
    st.sampled_from("aZ_09 \t\n\r\x0b\x0c\x1c\x85\xa0\u2028.,(é日🙂\x7f\x80"), max_size=60
)


@pytest.fixture(scope="session")
def bpe() -> str:
    return train_bpe(CORPUS, 400)


@given(TEXT)
def test_every_character_is_in_one_word(text: str) -> None:
    assert "".join(re.findall(word_pattern("\\x80-\\U0010ffff"), text)) == text


@settings(deadline=None)
@example("x" * 1000 + " " * 500)
@given(TEXT)
def test_words_encode_as_the_tokenizer_does(bpe: str, text: str) -> None:
    tokenizer = Tokenizer.from_str(bpe)
    tokens = np.frombuffer(encoder(bpe)(text.encode()), dtype="<u2").tolist()
    assert tokens == tokenizer.encode(text).ids
    assert tokenizer.decode(tokens, skip_special_tokens=False) == text
    assert 399 not in tokens  # the separator's number


@settings(deadline=None)
@given(st.text(st.sampled_from("a0 \t\n.é"), max_size=120), st.integers(0, 9))
def test_a_text_in_pieces_has_the_same_words(text: str, size: int) -> None:
    find = re.compile(word_pattern("\\x80-\\U0010ffff")).findall
    cut = list(pieces(text, size))
    assert [word for piece in cut for word in find(piece)] == find(text)
    assert "".join(cut) == text


def test_a_long_text_is_cut_and_few_words_are_remembered(bpe: str) -> None:
    text = b"".join(CORPUS)
    assert len(list(pieces(text.decode(), 1000))) > 10
    assert encoder(bpe, words=7)(text) == encoder(bpe)(text)


@pytest.fixture
def foreign() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False, special_tokens=["<|endoftext|>"])
    tokenizer.train_from_iterator((text.decode() for text in CORPUS), trainer)
    return tokenizer


def test_a_tokenizer_from_elsewhere_encodes_whole_documents_as_it_does_itself(foreign: Tokenizer) -> None:
    tokenizer, text = foreign, b"".join(CORPUS)
    tokens = np.frombuffer(encoder(tokenizer.to_str(), 4)(text), dtype="<u4").tolist()
    assert tokens == tokenizer.encode(text.decode(), add_special_tokens=False).ids


def test_a_length_that_a_tokenizers_file_keeps_neither_cuts_nor_fills_up_documents(foreign: Tokenizer) -> None:
    text = b"".join(CORPUS[:20])
    whole = encoder(foreign.to_str(), 4)(text)
    foreign.enable_truncation(64)
    assert len(foreign.encode(text.decode()).ids) == 64
    assert encoder(foreign.to_str(), 4)(text) == whole
    foreign.no_truncation()
    foreign.enable_padding(length=9999)
    assert encoder(foreign.to_str(), 4)(text) == whole


@pytest.mark.parametrize("special", [["<unk>"], ["<unk>", "</s>"]])
def test_tokens_that_are_listed_with_scores_are_counted(special: list[str]) -> None:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, show_progress=False, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator((text.decode() for text in CORPUS), trainer)
    content, count = tokenizer.to_str(), tokenizer.get_vocab_size()
    needed = count + (len(special) == 1)
    assert separator_of(content, needed) == (tokenizer.token_to_id("</s>") or count)
    with pytest.raises(ValueError, match=f"data.tokenizer_from needs {needed}, the separator included"):
        separator_of(content, needed - 1)


@pytest.mark.parametrize(
    ("file", "content", "number"),
    [
        ("config.json", '{"eos_token_id": 3}', 3),
        ("config.json", '{"eos_token_id": [5, 3]}', 5),
        ("generation_config.json", '{"eos_token_id": 4}', 4),
        ("tokenizer_config.json", '{"eos_token": "<|over|>"}', 7),
        ("special_tokens_map.json", '{"eos_token": {"content": "<|over|>", "lstrip": false}}', 7),
        ("config.json", '{"eos_token_id": 99}', 8),
        ("config.json", '{"eos_token_id": null}', 8),
        ("tokenizer_config.json", '{"eos_token": "<|none|>"}', 8),
        ("config.json", "[", 8),
        ("config.json", "[1]", 8),
    ],
)
def test_the_end_of_text_is_what_the_files_beside_a_tokenizer_say(
    file: str, content: str, number: int, tmp_path: Path
) -> None:
    tokenizer = Tokenizer(models.WordLevel({name: n for n, name in enumerate("abcdefg")}, unk_token="a"))
    tokenizer.add_special_tokens(["<|over|>"])
    (tmp_path / file).write_text(content)
    assert separator_of(tokenizer.to_str(), 9, said_beside(tmp_path)) == number
    if number < 8:
        assert separator_of(tokenizer.to_str(), 8, said_beside(tmp_path)) == number, "no room for another"
    tokenizer.add_special_tokens(["<|endoftext|>"])
    assert separator_of(tokenizer.to_str(), 9, said_beside(tmp_path)) == 8, "as corpora have been prepared"


@given(TEXT)
def test_bytes_are_their_own_tokens(text: str) -> None:
    tokens = np.frombuffer(encoder(None)(text.encode()), dtype="<u2")
    assert bytes(tokens.tolist()) == text.encode()


def test_training_compresses_and_does_not_depend_on_threads(bpe: str) -> None:
    text = b"".join(CORPUS)
    assert len(encoder(bpe)(text)) / 2 < len(text) / 2.5
    script = (
        "import sys; import tests.train.data.corpus.test_corpus_tokenizer as t;"
        "sys.stdout.write(t.train_bpe(t.CORPUS, 400))"
    )
    for threads in ("1", "4"):
        environment = os.environ | {
            "RAYON_NUM_THREADS": threads,
            "PYTHONPATH": python_path(),
            "PYTHONIOENCODING": "utf-8",
        }
        found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
        assert found.stdout.decode() == bpe


def test_a_vocabulary_too_large_says_how_large_it_can_be() -> None:
    with pytest.raises(
        ValueError, match=r"data\.vocab_size=4096 is too large.*set data\.vocab_size=(\d+) or less"
    ) as error:
        train_bpe(CORPUS, 4096)
    most = int(re.findall(r"set data\.vocab_size=(\d+)", str(error.value))[0])
    assert Tokenizer.from_str(train_bpe(CORPUS, most)).get_vocab_size() == most - 1


def test_the_sample_is_bounded() -> None:
    assert list(sample([b"aaaa", b"bb", b"c"], limit=5)) == [b"aaaa", b"bb"]
