"""The default model: converted once, whole or not at all, and quick to load afterwards."""

import errno
import json
import os
import struct
import sys
import threading
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from conftest import TEXT, make_llama, make_tokenizer
from tiny_gguf import write_gguf
from univerb.decoding.loop import generate
from univerb.errors import MissingExtra, ModelError, ModelMissing, UniverbError
from univerb.locations import converted_default, default_gguf
from univerb.modeling import default_model
from univerb.modeling.backbones import load_backbone
from univerb.modeling.default_model import ensure_default
from univerb.modeling.dynamic import DynamicLM

pytestmark = pytest.mark.default_model

FILES = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}


@pytest.fixture
def usual() -> Path:
    """Where the default model lies on this machine."""
    return converted_default()


@pytest.fixture
def cache(usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_small(gguf: Path, target: Path, progress: object) -> None:
    """Stand in for the conversion, which takes half a minute."""
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (target / name).write_text("{}")


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns) for p in found}


def test_what_is_converted_is_not_converted_again():
    folder, stages = ensure_default(), []
    before = listing(folder)
    assert ensure_default(progress=stages.append) == folder == converted_default()
    assert (listing(folder), stages) == (before, [])
    assert set(before) >= FILES


def test_a_gguf_file_is_converted_into_the_very_weights_that_it_was_made_of(
    cache, tmp_path, monkeypatch
):
    model, stages = make_llama(), []
    gguf = write_gguf(tmp_path / "tiny.gguf", model)
    monkeypatch.setattr(default_model, "default_gguf", lambda: gguf)
    folder = ensure_default(progress=stages.append)
    assert os.listdir(cache) == [folder.name]
    assert {path.name for path in folder.iterdir()} >= FILES
    assert len(stages) == 3 and all(isinstance(stage, str) for stage in stages)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    converted, tokenizer = load_backbone(str(folder))
    assert tokenizer(TEXT)["input_ids"] == make_tokenizer()(TEXT)["input_ids"]
    weights = converted.state_dict()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_the_mapped_weights_are_those_that_transformers_loads(default_lm, usual):
    model = default_lm.model
    bare = AutoModelForCausalLM.from_pretrained(usual, dtype=torch.float32, local_files_only=True)
    ours = dict(chain(model.named_parameters(), model.named_buffers()))
    theirs = dict(chain(bare.named_parameters(), bare.named_buffers()))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    assert all(p.requires_grad for p in model.parameters())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert not model.training
    assert model.config.to_dict() == bare.config.to_dict()
    assert model.generation_config.to_dict() == bare.generation_config.to_dict()
    assert model.config._attn_implementation == bare.config._attn_implementation == "sdpa"


def test_the_default_model_is_the_default(default_lm):
    config = default_lm.model.config
    assert (config.model_type, config.hidden_size, config.num_hidden_layers) == ("llama", 576, 30)
    assert default_lm.static_size == config.vocab_size == 49152
    assert len(default_lm.hf_tokenizer) == 49152
    assert default_lm.context_size >= 2048
    assert "quantization_config" not in config.to_dict()
    assert all(p.dtype == torch.float32 for p in default_lm.model.parameters())
    assert all(p.isfinite().all() for p in default_lm.model.parameters())


def test_the_default_model_ends_a_turn(default_lm):
    end = default_lm.hf_tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end in default_lm.eos_ids
    prompt = default_lm.chat_prompt("Answer with one word: what is the capital of France?")
    result = generate(default_lm, prompt, max_tokens=40)
    assert "Paris" in result.text
    assert result.finish_reason == "eos"
    assert "<|im_end|>" not in result.text


def test_a_chat_prompt_has_the_message_between_turn_markers(default_lm):
    prompt = default_lm.tokenizer.decode(default_lm.chat_prompt("What is a lease?"))
    assert prompt.count("<|im_start|>user\nWhat is a lease?<|im_end|>") == 1
    assert prompt.endswith("<|im_start|>assistant\n")
    assert prompt.startswith("<|im_start|>system\n")


def test_a_chat_prompt_takes_a_system_message_of_its_own(default_lm):
    ids = default_lm.chat_prompt("What is a lease?", system="You are a lawyer.")
    prompt = default_lm.tokenizer.decode(ids)
    assert prompt.startswith("<|im_start|>system\nYou are a lawyer.<|im_end|>")
    assert prompt.count("<|im_start|>system") == 1


def test_the_turn_markers_are_single_special_tokens(default_lm):
    ids = default_lm.chat_prompt("hello")
    for marker in ("<|im_start|>", "<|im_end|>"):
        token = default_lm.hf_tokenizer.convert_tokens_to_ids(marker)
        assert token in ids and token in default_lm.tokenizer.special_ids


def test_the_default_model_continues_sensibly(default_lm):
    text = generate(default_lm, "The capital of France is", max_tokens=8).text
    assert text.startswith(" Paris")


def test_the_folder_appears_whole_and_the_scratch_folder_goes(cache, monkeypatch):
    seen = []

    def convert(gguf: Path, target: Path, progress: object) -> None:
        seen.append((target.parent, converted_default().exists()))
        write_small(gguf, target, progress)

    monkeypatch.setattr(default_model, "_convert", convert)
    folder = ensure_default()
    assert seen == [(cache, False)]
    assert os.listdir(cache) == [folder.name]
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize(
    "failure",
    [
        OSError("no"),
        ValueError("no"),
        KeyError("no"),
        RuntimeError("no"),
        IndexError("no"),
        struct.error("no"),
        SafetensorError("no"),
        ImportError("accelerate is not installed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_conversion_that_fails_says_what_to_do_and_leaves_nothing(cache, failure, monkeypatch):
    def convert(gguf: Path, target: Path, progress: object) -> None:
        write_small(gguf, target, progress)
        raise failure

    monkeypatch.setattr(default_model, "_convert", convert)
    with pytest.raises(UniverbError, match=r"univerb setup|pip install"):
        ensure_default()
    assert os.listdir(cache) == []


def test_a_conversion_that_is_interrupted_leaves_nothing(cache, monkeypatch):
    def convert(gguf: Path, target: Path, progress: object) -> None:
        write_small(gguf, target, progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(default_model, "_convert", convert)
    with pytest.raises(KeyboardInterrupt):
        ensure_default()
    assert os.listdir(cache) == []


def test_a_disk_that_is_full_asks_for_another_cache(cache, monkeypatch):
    def convert(gguf: Path, target: Path, progress: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(default_model, "_convert", convert)
    with pytest.raises(ModelError, match="UNIVERB_CACHE"):
        ensure_default()


def test_two_conversions_at_the_same_time_both_succeed(cache, monkeypatch):
    both = threading.Barrier(2, timeout=900)

    def convert(gguf: Path, target: Path, progress: object) -> None:
        write_small(gguf, target, progress)
        both.wait()

    monkeypatch.setattr(default_model, "_convert", convert)
    results: list[Path | Exception] = []

    def run() -> None:
        try:
            results.append(ensure_default())
        except Exception as error:
            results.append(error)

    workers = [threading.Thread(target=run) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [converted_default()] * 2
    assert os.listdir(cache) == [converted_default().name]


def test_whoever_comes_second_leaves_the_first_result_alone(cache, monkeypatch):
    def convert(gguf: Path, target: Path, progress: object) -> None:
        write_small(gguf, target, progress)
        converted_default().mkdir()
        write_small(gguf, converted_default(), progress)
        (converted_default() / "config.json").write_text("first")

    monkeypatch.setattr(default_model, "_convert", convert)
    assert (ensure_default() / "config.json").read_text() == "first"
    assert os.listdir(cache) == [converted_default().name]


def test_a_move_that_fails_for_another_reason_is_told(cache, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(default_model, "_convert", write_small)
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ModelError):
        ensure_default()
    assert os.listdir(cache) == []


@pytest.mark.parametrize("below", ["", "cache", "some/cache"])
def test_a_cache_that_cannot_be_written_asks_for_another(below, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    place = tmp_path / "file" / below
    monkeypatch.setenv("UNIVERB_CACHE", str(place))
    with pytest.raises(ModelError, match="UNIVERB_CACHE") as caught:
        ensure_default()
    assert str(place) in str(caught.value)
    with pytest.raises(ModelError, match="UNIVERB_CACHE"):
        DynamicLM.from_pretrained()
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("content", [b"", b"junk" * 99, 4, 100, 1000, 100_000], ids=str)
def test_a_damaged_weights_file_is_refused_with_a_next_step(cache, content, tmp_path, monkeypatch):
    gguf = default_gguf()
    assert gguf is not None
    with gguf.open("rb") as file:
        data = content if isinstance(content, bytes) else file.read(content)
    (tmp_path / "damaged.gguf").write_bytes(data)
    monkeypatch.setattr(default_model, "default_gguf", lambda: tmp_path / "damaged.gguf")
    with pytest.raises(ModelError, match="univerb setup --force"):
        ensure_default()
    assert os.listdir(cache) == []


def test_without_the_weights_package_the_model_is_missing(cache, monkeypatch):
    monkeypatch.setattr(default_model, "default_gguf", lambda: None)
    monkeypatch.setattr("univerb.locations.default_gguf", lambda: None)
    for call in (ensure_default, load_backbone, DynamicLM.from_pretrained):
        with pytest.raises(ModelMissing, match="univerb setup"):
            call()
    assert not cache.exists()


def test_without_the_gguf_reader_its_extra_is_named(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtra, match=r"univerb\[gguf\]"):
        ensure_default()
    assert not cache.exists()


@pytest.mark.parametrize("left", [[], ["config.json"], ["config.json", "tokenizer.json"]])
def test_an_incomplete_conversion_is_made_again(cache, left, monkeypatch):
    folder = converted_default()
    folder.mkdir(parents=True)
    for name in left:
        (folder / name).write_text("broken")
    monkeypatch.setattr(default_model, "_convert", write_small)
    assert (ensure_default() / "config.json").read_text() != "broken"
    assert os.listdir(cache) == [folder.name]
