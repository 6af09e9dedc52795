"""Models to and from the layout of Hugging Face give the same logits there and here."""

from __future__ import annotations

import json
import sys
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train.runs import write_config
from train.checkpoint.save import Saver
from train.checkpoint.state import collect
from train.hub import architecture, weights
from train.hub.__main__ import main
from train.hub.convert import export, import_model
from train.hub.init_from import load_initial_weights
from train.hub.safetensors import INDEX, Shards, write_shards
from train.model.init import initialise
from train.model.transformer import Transformer
from train.spec.config import ModelConfig, RunConfig, key
from train.spec.counts import window_of
from train.spec.decoder import resolve_model
from train.spec.from_mapping import read
from train.spec.yamlfile import read_mapping

VOCABULARY, LENGTH = 64, 16
BASE = ModelConfig(width=32, layers=3, head_dim=8, kv_heads=2, qk_norm=False, mlp_width=48, norm_eps=1e-5)
SCALED = {"rope_factor": 4.0, "rope_original_length": 32, "rope_theta": 50.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama, grouped queries": ("llama", {}),
    "Llama, tied, multi-query": ("llama", {"tied_embeddings": True, "kv_heads": 1}),
    "Llama, linear": ("llama", {"rope_scaling": "linear", "rope_factor": 4.0}),
    "Llama, yarn": ("llama", SCALED | {"rope_scaling": "yarn"}),
    "Llama 3": ("llama", SCALED | {"rope_scaling": "llama3"}),
    "Mistral": ("mistral", {"window": 5}),
    "Qwen3": ("qwen3", {"qk_norm": True}),
    "Qwen3, windows in some": ("qwen3", {"qk_norm": True, "window": 5, "global_every": 3}),
    "Mixtral": ("mixtral", {"experts": 6}),
    "Mixtral, one expert a token, window": ("mixtral", {"experts": 4, "experts_per_token": 1, "window": 5}),
    "Qwen3-MoE": ("qwen3_moe", {"experts": 6, "experts_per_token": 3, "qk_norm": True}),
    "Qwen3-MoE, all experts, window, tied": (
        "qwen3_moe",
        {"experts": 3, "experts_per_token": 3, "qk_norm": True, "window": 5, "tied_embeddings": True},
    ),
}
ONE_WAY: dict[str, tuple[str, dict[str, Any]]] = {
    "ntk is a larger base": ("llama", {"rope_scaling": "ntk", "rope_factor": 4.0}),
    "muP is in the weights": ("llama", {"mup_base_width": 16, "mup_base_head_dim": 4, "tied_embeddings": True}),
    "muP with norms": ("qwen3", {"mup_base_width": 16, "mup_base_head_dim": 4, "qk_norm": True}),
}


def logits(model: Transformer, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(tokens)
    return found


def made(changes: dict[str, Any]) -> Transformer:
    model = Transformer(resolve_model(replace(BASE, **changes), LENGTH), VOCABULARY, LENGTH)
    initialise(model, 1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            elif "qkv" in name:
                weight.mul_(3.0)
    return model


def write_hub(model: Transformer, folder: Path, limit: int = 1 << 30) -> None:
    folder.mkdir()
    ours = {name: weight.detach() for name, weight in model.named_parameters()}
    write_shards(folder, weights.to_hub(ours, model.specs), limit)
    described = architecture.to_hub(model.config, VOCABULARY, LENGTH, 0, "float32")
    (folder / "config.json").write_text(json.dumps(described))


@pytest.mark.parametrize("name", MODELS | ONE_WAY)
def test_transformers_gives_our_logits(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    kind, changes = (MODELS | ONE_WAY)[name]
    model = made(changes)
    write_hub(model, tmp_path / "hub")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hub", dtype=torch.float32, attn_implementation="eager")
    assert theirs.config.model_type == kind
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = theirs(tokens).logits
    ours = logits(model, tokens)
    assert float((ours - wanted).abs().max()) < 2e-5 * float(ours.abs().max())
    assert float(ours.std()) > 0.1


@pytest.mark.parametrize("name", MODELS)
def test_what_was_exported_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    model = made(MODELS[name][1])
    write_hub(model, tmp_path / "hub", limit=20_000)
    assert (tmp_path / "hub" / INDEX).exists()  # in several files
    import_model(tmp_path / "hub", tmp_path / "back")
    sections = read_mapping(tmp_path / "back" / "config.yaml")
    config = resolve_model(read(ModelConfig, sections["model"], "model"), LENGTH)
    assert replace(config, init_from=None, init_std=None) == replace(model.config, init_std=None)
    again = Transformer(config, sections["data"]["vocab_size"], LENGTH)
    load_initial_weights(again, tmp_path / "back")
    for (name_, a), (_, b) in zip(again.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(a, b), name_


@pytest.mark.parametrize("changes", [{"qk_norm": False}, {"experts": 4}])
def test_a_run_is_exported_with_its_tokenizer(tmp_path: Path, tiny: RunConfig, changes: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.train.data.conftest import small, write_texts
    from train.data.corpus.prepare import prepare
    from train.spec.manifest import read_manifest

    data = small(write_texts(tmp_path / "texts", 30), name="text")
    place = prepare(data, tmp_path / "data", workers=1)
    config = replace(tiny, data=data, runtime=replace(tiny.runtime, data_root=str(tmp_path / "data")))
    config = replace(config, model=resolve_model(replace(config.model, **changes), data.sequence_length))
    run = tmp_path / "run"
    write_config(run, config)
    model = Transformer(config.model, data.vocab_size, data.sequence_length)
    initialise(model, 0)
    saver = Saver(run / "checkpoints", 0, 1)
    saver.save(7, collect([model], []), {"progress": {"step": 7}, "identity": {}})
    saver.wait()

    assert main(["export", f"run={run}", f"out={tmp_path / 'out'}", "dtype=float32", "step=7"]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    separator = read_manifest(place).separator_token
    assert tokenizer.eos_token_id == theirs.config.eos_token_id == separator == data.vocab_size - 1
    text = next((tmp_path / "texts").glob("*.md")).read_text("utf-8")
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    assert separator not in ids
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids[:16]])).logits
    torch.testing.assert_close(logits(model, torch.tensor([ids[:16]])), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="exists: name a folder that does not"):
        export(run, tmp_path / "out")
    with pytest.raises(ValueError, match="no complete checkpoint of step 8"):
        export(run, tmp_path / "other", step=8)
    assert not list(tmp_path.glob(".other*"))


def test_bytes_are_a_tokenizer_too(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    from train.hub.tokenizer import write_tokenizer

    write_tokenizer(tmp_path, None, 256, 32)
    tokenizer: Any = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Zoë, \t日本\n\x00<|endoftext|>"
    assert tokenizer.encode(text).ids == [*text.removesuffix("<|endoftext|>").encode(), 256]


@pytest.mark.parametrize("larger", [1, 2, 64])
def test_a_vocabulary_may_be_larger_than_the_tokenizer(tmp_path: Path, larger: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoTokenizer

    from train.data.corpus.tokenizer import separator_of
    from train.hub.tokenizer import write_tokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    foreign: Any = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    foreign.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    foreign.decoder = decoders.ByteLevel()
    separator = separator_of(foreign.to_str(), len(letters) + larger)
    assert separator == len(letters) + larger - 1
    write_tokenizer(tmp_path, foreign.to_str(), separator, 32)
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.eos_token_id == separator
    text = "Zoë, \t日本\n"
    ids = theirs(text, add_special_tokens=False).input_ids
    assert ids == foreign.encode(text).ids and theirs.decode(ids) == text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_softcap": 1.0}, r"model\.attention_softcap=1\.0 cannot be exported.*no caps on scores"),
        ({"logit_softcap": 2.0}, r"model\.logit_softcap=2\.0 cannot be exported"),
        ({"position": "alibi"}, r"model\.position=alibi cannot be exported.*rotary"),
        ({"window": 4, "global_every": 2}, r"model\.global_every=2 cannot be exported without model\.qk_norm"),
        ({"experts": 4, "router_score": "sigmoid"}, r"router_score=sigmoid cannot .*model\.router_score=softmax can$"),
        ({"experts": 4, "shared_experts": 1}, r"shared_experts=1 cannot be exported with model\.experts=4.*=0 can$"),
        ({"experts": 4, "router_bias_speed": 0.1}, r"router_bias_speed=0\.1 cannot .*; model\..*=0\.0 can$"),
        (
            {"experts": 4, "qk_norm": True, "window": 4, "global_every": 2},
            r"global_every=2 cannot be exported with model\.experts=4.*model\.global_every=0 can$",
        ),
        ({"experts": 4, "logit_softcap": 2.0}, r"model\.logit_softcap=2\.0 cannot be exported: Mixtral and Qwen3-MoE"),
        ({"experts": 4, "position": "alibi"}, r"model\.position=alibi cannot be exported: Mixtral and Qwen3-MoE"),
    ],
)
def test_what_cannot_be_exported_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        architecture.to_hub(resolve_model(replace(BASE, **changes), LENGTH), VOCABULARY, LENGTH, 0, "float32")


@pytest.mark.parametrize("without", [None, 0, 2, 4])
def test_windows_are_where_transformers_has_them_without_a_list_of_layers(without: int | None) -> None:
    from transformers import Qwen3Config

    first = {} if without is None else {"max_window_layers": without}
    given: dict[str, Any] = {
        "model_type": "qwen3",
        "num_hidden_layers": 4,
        "use_sliding_window": True,
        "sliding_window": 8,
        **first,
    }
    theirs = Qwen3Config(**given).layer_types
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "head_dim": 8, "intermediate_size": 48, "rms_norm_eps": 1e-6}
    if without == 2:  # which we have no keys for
        with pytest.raises(ValueError, match="layer_types cannot be imported"):
            architecture.from_hub(given | sizes)
        return
    model = architecture.from_hub(given | sizes)
    ours = ["sliding_attention" if window_of(model, layer) else "full_attention" for layer in range(4)]
    assert ours == theirs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gemma2"}, "model_type='gemma2' cannot be imported: llama, mistral, qwen3, mixtral, "),
        ({"attention_bias": True}, "attention_bias=True cannot be imported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' cannot be imported"),
        ({"head_dim": 16}, r"head_dim=16 times num_attention_heads=4 is not hidden_size=32"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic' cannot be imported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 8}}, "beta_fast=8 cannot be imported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}}, "mscale=0.7 cannot be imported"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"hidden_size": None}, "config.json: hidden_size=None: a whole number from 1 on is needed"),
        ({"num_hidden_layers": "two"}, "config.json: num_hidden_layers='two': a whole number"),
        ({"num_attention_heads": 0}, "config.json: num_attention_heads=0: a whole number"),
        ({"num_key_value_heads": -1}, "config.json: num_key_value_heads=-1: a whole number"),
        ({"intermediate_size": 64.5}, "config.json: intermediate_size=64.5: a whole number"),
        ({"head_dim": True}, "config.json: head_dim=True: a whole number"),
        ({"rms_norm_eps": "small"}, "config.json: rms_norm_eps='small': a positive number is needed"),
        ({"rms_norm_eps": float("nan")}, "config.json: rms_norm_eps=nan: a positive number is needed"),
        ({"rope_scaling": {"rope_type": "linear"}}, "config.json: factor=None: a positive number is needed"),
    ],
)
def test_what_cannot_be_imported_is_refused(changes: dict[str, Any], words: str) -> None:
    described = architecture.to_hub(resolve_model(BASE, LENGTH), VOCABULARY, LENGTH, 0, "float32")
    with pytest.raises(ValueError, match=words):
        architecture.from_hub(described | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob=False cannot be imported: only True can"),
        ({"norm_topk_prob": None}, "norm_topk_prob=None cannot be imported"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step=2 cannot be imported"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers=\[0\] cannot be imported"),
        ({"max_window_layers": 2}, "max_window_layers=2 cannot be imported: only 0 can"),
        ({"num_experts": 0}, "config.json: num_experts=0: a whole number"),
        ({"num_experts_per_tok": None}, "config.json: num_experts_per_tok=None: a whole number"),
        ({"moe_intermediate_size": None}, "config.json: moe_intermediate_size=None: a whole number"),
    ],
)
def test_experts_that_cannot_be_imported_are_refused(changes: dict[str, Any], words: str) -> None:
    model = resolve_model(replace(BASE, qk_norm=True, experts=4, window=5), LENGTH)
    described = architecture.to_hub(model, VOCABULARY, LENGTH, 0, "float32")
    assert architecture.from_hub(described).experts == 4
    with pytest.raises(ValueError, match=words):
        architecture.from_hub(described | changes)
    said = {key: value for key, value in described.items() if key != "norm_topk_prob"}
    with pytest.raises(ValueError, match="norm_topk_prob=False"):  # as transformers reads a config without it
        architecture.from_hub(said)


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}])
def test_experts_that_transformers_saved_are_imported(tmp_path: Path, changes: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM

    model = made({"experts": 4, **changes})
    write_hub(model, tmp_path / "hub")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hub", dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "saved")
    import_model(tmp_path / "saved", tmp_path / "back")
    again = Transformer(replace(model.config, router_bias_speed=0.1), VOCABULARY, LENGTH)
    for buffer in again.buffers():
        buffer.fill_(torch.nan)  # as memory may be before it is filled
    load_initial_weights(again, tmp_path / "back")
    tokens = torch.arange(LENGTH)[None]
    assert torch.equal(logits(again, tokens), logits(model, tokens))


@pytest.mark.parametrize("theta", [{}, {"rope_theta": 500.0}])
def test_mixtral_turns_as_in_transformers_where_it_does_not_say(theta: dict[str, float]) -> None:
    from transformers import MixtralConfig

    described = architecture.to_hub(resolve_model(replace(BASE, experts=4), LENGTH), VOCABULARY, LENGTH, 0, "float32")
    given = {key: value for key, value in described.items() if key != "rope_theta"} | theta
    theirs: Any = MixtralConfig(**given)
    assert architecture.from_hub(given).rope_theta == theirs.rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    "scaling", [{"type": "yarn"}, {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}]
)
@pytest.mark.parametrize("original", [{}, {"original_max_position_embeddings": 8}])
def test_a_length_that_a_stretched_config_does_not_name_is_that_of_transformers(
    tmp_path: Path, scaling: dict[str, Any], original: dict[str, int]
) -> None:
    from transformers import AutoModelForCausalLM

    write_hub(made({}), tmp_path / "hub")
    place = tmp_path / "hub" / "config.json"
    place.write_text(
        json.dumps(json.loads(place.read_text()) | {"rope_scaling": {"factor": 4.0, **scaling, **original}})
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hub", dtype=torch.float32, attn_implementation="eager")
    import_model(tmp_path / "hub", tmp_path / "back")
    sections = read_mapping(tmp_path / "back" / "config.yaml")
    again = Transformer(resolve_model(read(ModelConfig, sections["model"], "model"), LENGTH), VOCABULARY, LENGTH)
    load_initial_weights(again, tmp_path / "back")
    tokens = torch.arange(LENGTH)[None]
    with torch.no_grad():
        torch.testing.assert_close(logits(again, tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "is not an object of keys and values"),
        ("{", "is not JSON"),
        ('{"model_type": "llama"}', "config.json: hidden_size=None"),
    ],
)
def test_a_config_that_is_none_is_answered_in_a_line(
    tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(text)
    assert main(["import", f"source={tmp_path}", f"out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", r"is no whole file .*\(a Git LFS pointer, not"),
        (None, r"model\.safetensors is no whole file of tensors .*: download that folder again"),
        (b"", r"is no whole file of tensors .*it begins with nothing \(it is empty\)"),
    ],
)
def test_weights_that_are_not_whole_are_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    write_hub(made({}), tmp_path / "hub")
    place = tmp_path / "hub" / "model.safetensors"
    place.write_bytes(place.read_bytes()[:3000] if content is None else content)
    with pytest.raises(ValueError, match=words):
        import_model(tmp_path / "hub", tmp_path / "back")


@pytest.mark.parametrize(
    ("files", "end"),
    [
        ({"config.json": {"eos_token_id": 3}}, "d"),
        ({"generation_config.json": {"eos_token_id": [4, 5]}}, "e"),
        ({"special_tokens_map.json": {"eos_token": {"content": "f"}}}, "f"),
        ({}, None),
    ],
)
def test_the_token_that_ends_a_text_is_the_one_that_the_model_names(
    tmp_path: Path, files: dict[str, dict[str, Any]], end: str | None
) -> None:
    """Its tokenizer has none of the usual names, and no room for a separator."""
    from tokenizers import Tokenizer, models

    from train.data.corpus.prepare import tokenizer_given
    from train.data.corpus.tokenizer import separator_of
    from train.spec.config import DataConfig

    source, back = tmp_path / "hub", tmp_path / "back"
    write_hub(made({}), source)
    described = json.loads((source / "config.json").read_text("utf-8"))
    del described["eos_token_id"]
    for name in ("config.json", *files):
        said = described if name == "config.json" else {}
        (source / name).write_text(json.dumps(said | files.get(name, {})), "utf-8")
    names = [*"abcdefg", *(f"word{n}" for n in range(VOCABULARY - 7))]
    vocabulary = {name: n for n, name in enumerate(names)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="a")).save(str(source / "tokenizer.json"))
    if end is None:
        words = (
            f"no file says which token ends a text, and all {VOCABULARY} numbers are taken: give one of eos_token_id in"
        )
        with pytest.raises(ValueError, match=words):
            import_model(source, back)
        assert not back.exists()
        return
    import_model(source, back)
    data = read(DataConfig, read_mapping(back / "config.yaml")["data"], "data")
    content, ends = tokenizer_given(data, tmp_path)
    assert separator_of(content, data.vocab_size, ends) == vocabulary[end]


def test_a_file_of_weights_that_is_missing_is_named(tmp_path: Path) -> None:
    write_hub(made({}), tmp_path / "hub", limit=20_000)
    gone = sorted((tmp_path / "hub").glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ValueError, match=f"{gone.name} is missing: download that folder again"):
        import_model(tmp_path / "hub", tmp_path / "back")
    assert not list(tmp_path.glob("*back*"))


def test_what_the_disk_refuses_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import safetensors
    import safetensors.torch

    def full(*_: Any, **__: Any) -> None:
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    write_hub(made({}), tmp_path / "hub")
    (tmp_path / "file").touch()
    for out, words in (("file/out", "Not a directory"), ("out", "No space left on device")):
        if out == "out":
            monkeypatch.setattr(safetensors.torch, "save_file", full)
        assert main(["import", f"source={tmp_path / 'hub'}", f"out={tmp_path / out}"]) == 1
        assert words in (said := capsys.readouterr().err) and said.startswith("error: ") and said.count("\n") == 1
    assert not list(tmp_path.glob("*out*"))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    write_hub(made({}), tmp_path / "hub")
    import_model(tmp_path / "hub", tmp_path / "back")

    def other(vocabulary: int = VOCABULARY, **changes: Any) -> Transformer:
        return Transformer(resolve_model(replace(BASE, **changes), LENGTH), vocabulary, LENGTH)

    changed = ("kv_heads", 4), ("layers", 2), ("head_dim", 4), ("tied_embeddings", True), ("experts", 4)
    for name, value in changed:
        # Fewer layers, other heads and a tied embedding find all of their tensors, of the right shapes.
        with pytest.raises(ValueError, match=rf"model\.{name}={value} but the weights .* are those of {name}="):
            load_initial_weights(other(**{name: value}), tmp_path / "back")
    with pytest.raises(ValueError, match=r"embedding\.weight has shape \(64, 32\), the config wants \(80, 32\)"):
        load_initial_weights(other(80), tmp_path / "back")
    with pytest.raises(ValueError, match="has no tensor 'nothing'"):
        Shards(tmp_path / "back").read("nothing")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["send"], "'send' is not a command: choose one of export, import"),
        (["export", "run=x"], "export: out=… is missing; write: export out=… run=… [dtype=…] [step=…]"),
        (["import", "source=x", "out=y", "dtype=z"], "import: 'dtype' is not known"),
        (["export", "run=x", "out=y", "run=z"], "run is given twice: run=x and run=z; leave one out"),
        (["export", "run=", "out=y"], "run= is empty: give a value, or leave it out"),
        (["export", "run=x", "out=y", "step=last"], "step=last is not allowed"),
        (["export", "run=/nowhere", "out=y"], "/nowhere/config.yaml: there is no such file"),
    ],
)
def test_wrong_commands(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("export run=none", "none/config.yaml: there is no such file"),
        ("export run=file", "file/config.yaml: there is no such file"),
        ("export run=file step=last", "step=last is not allowed: the step of a checkpoint, a whole number"),
        ("export run=none dtype=fp16", "dtype=fp16 is not allowed: choose one of float32, bfloat16, float16"),
        ("export run=run out=file", "out=file exists: name a folder that does not"),
        ("import source=none", "source=none has no config.json: name the folder of a Hugging Face model"),
        ("import source=file", "file/config.json cannot be read: Not a directory"),
        ("import source=run", "model_type='gpt2' cannot be imported: llama, mistral, qwen3, mixtral, qwen3_moe can"),
    ],
)
def test_what_is_wrong_without_torch_is_said_before_torch_is_read(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("run").mkdir()
    Path("run/config.yaml").touch()
    Path("run/config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    monkeypatch.setitem(sys.modules, "train.hub.convert", None)
    command, *given = words.split()
    out = [] if "out=" in words else ["out=written"]
    assert main([command, *out, *given]) == 2
    assert said in (told := capsys.readouterr().err) and told.startswith("error: ") and told.count("\n") == 1


def test_a_key_that_the_export_does_not_know_is_refused() -> None:
    activation = ("activation", str, key("gelu", "", former="silu"))
    grown = make_dataclass("Grown", [activation], bases=(ModelConfig,), frozen=True)
    model: Any = grown(activation="relu2")
    with pytest.raises(
        ValueError, match=r"model\.activation='relu2' cannot be exported: .*; model\.activation=silu can"
    ):
        architecture.check_known(model)
    with pytest.raises(ValueError, match="Mixtral and Qwen3-MoE, which are what an export can write"):
        architecture.check_known(grown(activation="relu2", experts=8))
    architecture.check_known(grown(activation="silu"))
    architecture.check_known(ModelConfig())
