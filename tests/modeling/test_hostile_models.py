"""Model folders made to run code, to read other files, to hang, or to compute no numbers."""

import json
import os
import shutil
import sys
from pathlib import Path

import huggingface_hub.constants
import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import make_gpt2, make_llama, make_tokenizer, saved, with_fresh_encoder
from univerb import load
from univerb.config import Lora
from univerb.decoding.loop import generate
from univerb.errors import CheckpointError, ModelError, UniverbError
from univerb.modeling.adapter import attach, load_adapter, save_adapter
from univerb.modeling.card import CARD, sha256
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase
from univerb.retrieval.dense import Dense, Static

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

# Ends what hangs.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "tiny", DynamicLM.wrap(make_llama(), make_tokenizer()))


@pytest.fixture
def sharded(folder: Path) -> Path:
    """The same model in two files with an index."""
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    halves = {"first.safetensors": names[::2], "second.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
    (folder / WEIGHTS).unlink()
    index = {name: file for file, part in halves.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def rename(folder: Path, name: object, old: str = "second.safetensors") -> None:
    """Let the index name other weights."""
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] = {k: name if v == old else v for k, v in index["weight_map"].items()}
    (folder / INDEX).write_text(json.dumps(index))


def refusal(folder: Path | str) -> str:
    with pytest.raises(ModelError) as caught:
        load(str(folder), offline=True)
    return str(caught.value)


class TestIndex:
    def test_several_safetensors_files_are_loaded(self, sharded):
        lm = load(str(sharded))
        assert torch.equal(lm.model.lm_head.weight, make_llama().lm_head.weight)

    def test_a_pickle_is_never_opened(self, sharded, monkeypatch):
        tensors = load_file(sharded / "second.safetensors")
        torch.save(tensors, sharded / "real.bin")
        rename(sharded, "real.bin")
        monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
        assert INDEX in refusal(sharded) and "'real.bin'" in refusal(sharded)

    @pytest.mark.parametrize(
        "name", ["../outside.safetensors", "sub/../../outside.safetensors", "absolute", "", None, 7]
    )
    def test_other_folders_are_refused(self, sharded, name):
        outside = sharded.parent / "outside.safetensors"
        shutil.move(sharded / "second.safetensors", outside)
        rename(sharded, str(outside) if name == "absolute" else name)
        assert INDEX in refusal(sharded)

    @pytest.mark.parametrize("content", ["", "{}", "[]", '{"weight_map": 1}', "[" * 100_000])
    def test_a_damaged_one_is_refused(self, sharded, content):
        (sharded / INDEX).write_text(content)
        assert INDEX in refusal(sharded)

    @pytest.mark.parametrize("method", [Dense, Static])
    def test_retrieval_refuses_what_backbones_refuse(self, sharded, method):
        rename(sharded, "../outside.safetensors")
        with pytest.raises(ModelError, match=INDEX):
            method(sharded).features(["text"])


@pytest.mark.parametrize("name", ["adapter_model.bin", "../outside.safetensors", WEIGHTS])
def test_a_config_cannot_name_its_weights(folder, name):
    torch.save(load_file(folder / WEIGHTS), folder / "adapter_model.bin")
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"transformers_weights": name}))
    assert "transformers_weights" in refusal(folder)


def test_an_adapter_beside_the_weights_cannot_bring_another_model(folder, tmp_path):
    other = saved(tmp_path / "other", DynamicLM.wrap(make_gpt2(), make_tokenizer()))
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(other)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    assert "adapter_config.json" in refusal(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="needs links and pipes")
class TestFiles:
    @pytest.mark.parametrize("name", [WEIGHTS, CONFIG, "tokenizer.json"])
    def test_links_that_lead_out_of_the_folder_are_refused(self, folder, tmp_path, name):
        shutil.move(folder / name, tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
        assert str(folder / name) in refusal(folder)

    @pytest.mark.parametrize("name", [CONFIG, "tokenizer.json", "generation_config.json"])
    def test_pipes_and_devices_are_not_opened(self, folder, name):
        for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
            (folder / name).unlink(missing_ok=True)
            make(folder / name)
            assert str(folder / name) in refusal(folder)

    def test_links_within_the_folder_are_followed(self, folder):
        (folder / WEIGHTS).rename(folder / "real.safetensors")
        (folder / WEIGHTS).symlink_to("real.safetensors")
        assert load(str(folder)).name == str(folder)


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder as the Hub's cache holds it, `somebody/tiny`: links into a folder of contents."""
    cache = tmp_path / "hub" / "models--somebody--tiny"
    commit = "0" * 40
    snapshot = cache / "snapshots" / commit
    (cache / "blobs").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        shutil.move(path, cache / "blobs" / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for module in list(sys.modules.values()):
        for name in ("HF_HUB_CACHE", "TRANSFORMERS_CACHE"):
            if isinstance(getattr(module, name, None), str):
                monkeypatch.setattr(module, name, str(tmp_path / "hub"))
    assert str(tmp_path / "hub") == huggingface_hub.constants.HF_HUB_CACHE
    return snapshot


@pytest.mark.skipif(sys.platform == "win32", reason="needs links")
class TestHub:
    def test_a_model_of_its_cache_is_loaded_by_name_and_by_folder(self, hub):
        assert load("somebody/tiny", offline=True).name == "somebody/tiny"
        assert load(str(hub), offline=True).name == str(hub)

    def test_what_its_index_names_is_checked_too(self, hub):
        (hub / WEIGHTS).rename(hub / "real.bin")
        index = {"metadata": {}, "weight_map": {"lm_head.weight": "real.bin"}}
        (hub / INDEX).write_text(json.dumps(index))
        assert INDEX in refusal("somebody/tiny")


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 10**7},
        {"num_hidden_layers": 5000},
        {"num_labels": 10**8},
        {"num_attention_heads": 10**6},
        {"text_config": {"num_hidden_layers": 10**7}},
    ],
)
def test_numbers_that_would_take_minutes_are_refused(folder, settings):
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | settings))
    assert "at most 1024 is allowed" in refusal(folder)


NOT_FINITE = [float("nan"), float("inf"), -float("inf")]


def damage(path: Path, tensor: str, value: float) -> None:
    """Put a number into a tensor of a safetensors file."""
    tensors = load_file(path)
    tensors[tensor].view(-1)[-1] = value
    save_file(tensors, path, {"format": "pt"})


class TestFiniteNumbers:
    @pytest.mark.parametrize("value", NOT_FINITE)
    @pytest.mark.parametrize(
        "tensor",
        ["model.embed_tokens.weight", "lm_head.weight", "model.layers.1.mlp.up_proj.weight"],
    )
    def test_a_backbone_with_other_ones_is_refused(self, folder, tensor, value):
        damage(folder / WEIGHTS, tensor, value)
        message = refusal(folder)
        assert str(folder) in message and tensor in message and "not finite" in message

    @pytest.mark.parametrize("value", NOT_FINITE)
    def test_an_encoder_with_other_ones_is_refused(self, folder, tmp_path, value):
        with_fresh_encoder(folder).save_pretrained(tmp_path / "encoder")
        damage(tmp_path / "encoder" / "encoder.safetensors", "heads.output.bias", value)
        card = tmp_path / "encoder" / CARD
        changed = sha256(tmp_path / "encoder" / "encoder.safetensors")
        settings = json.loads(card.read_text()) | {"sha256": {"encoder.safetensors": changed}}
        card.write_text(json.dumps(settings))
        with pytest.raises(CheckpointError, match=r"encoder\.safetensors.*not finite.*heads"):
            load(str(tmp_path / "encoder"))

    def test_an_adapter_with_other_ones_is_refused(self, tmp_path):
        pytest.importorskip("peft")
        save_adapter(attach(make_llama(), Lora(rank=2)), tmp_path)
        path = tmp_path / "adapter_model.safetensors"
        damage(path, sorted(load_file(path))[0], float("nan"))
        with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors.*not finite"):
            load_adapter(make_llama(), tmp_path)

    def test_a_model_of_ones_own_that_computes_none_is_refused(self):
        model = make_gpt2()
        with torch.no_grad():
            model.transformer.h[0].mlp.c_fc.weight[0, 0] = float("nan")
        with pytest.raises(ModelError, match="not finite"):
            DynamicLM.wrap(model, make_tokenizer())

    @pytest.mark.parametrize("mode", ["atomic", "unfold", "verify"])
    @pytest.mark.parametrize("has_phrases", [False, True])
    def test_logits_are_checked_as_a_text_is_written(self, mode, has_phrases):
        model = make_gpt2()
        lm = DynamicLM.wrap(model, make_tokenizer())
        vocabulary = lm.vocabulary(["the premises"]) if has_phrases else None
        with torch.no_grad():
            # Beyond the prompt, so that only a later pass meets it.
            model.transformer.wpe.weight[12:] = float("nan")
        with pytest.raises(ModelError, match="logits that are not finite"):
            generate(lm, [1, 2, 3, 4, 5], vocabulary, mode=mode, max_tokens=40, ignore_eos=True)

    def test_a_row_of_the_embeddings_never_gives_an_empty_text(self):
        model = make_llama()
        lm = DynamicLM.wrap(model, make_tokenizer())
        with torch.no_grad():
            model.model.embed_tokens.weight[7] = float("nan")
        with pytest.raises(ModelError, match="logits that are not finite"):
            generate(lm, [5, 6, 7], max_tokens=4)
        with pytest.raises(CheckpointError, match="vectors that are not finite"):
            lm.encode(lm.vocabulary([Phrase((5, 7), "text")]))

    def test_stored_vectors_of_phrases_are_checked_as_they_are_scored(self):
        lm = DynamicLM.wrap(make_gpt2(), make_tokenizer())
        vocabulary = lm.vocabulary(["the premises", "quiet enjoyment"])
        lm.encode(vocabulary).outputs[1] = numpy.nan
        with pytest.raises(ModelError, match="not finite"):
            generate(lm, [5, 6], vocabulary, mode="atomic", max_tokens=40)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes")
@pytest.mark.parametrize("name", [CARD, "encoder.safetensors"])
def test_a_pipe_in_an_encoders_folder_is_not_opened(folder, tmp_path, name):
    with_fresh_encoder(folder).save_pretrained(tmp_path / "encoder")
    (tmp_path / "encoder" / name).unlink()
    os.mkfifo(tmp_path / "encoder" / name)
    with pytest.raises(UniverbError, match="encoder"):
        load(str(tmp_path / "encoder"))
