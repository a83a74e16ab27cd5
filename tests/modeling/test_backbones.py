"""Backbones: loaded from a folder as they were saved, refused with a next step otherwise."""

import builtins
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2ForSequenceClassification,
    GraniteConfig,
    GraniteForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizer,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging

from conftest import MAKERS, TEXT, make_gpt2, make_tokenizer, saved, stir
from univerb import load, locations
from univerb.config import EncoderConfig
from univerb.decoding.loop import generate
from univerb.errors import CheckpointError, ModelError, ModelMissing, OptionError, UniverbError
from univerb.modeling.backbones import load_backbone
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
TOKENIZER_CONFIG, PICKLE = "tokenizer_config.json", "pytorch_model.bin"
NEXT_STEP = re.compile(r"Give |Use |Convert |Get |Install |Run: |Load ")

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backbone") / "tiny"
    return saved(folder, DynamicLM.wrap(make_gpt2(), make_tokenizer()))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "tiny"))


@pytest.fixture(autouse=True)
def whoever_asks_is_told_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that may run when a user agrees does run, so that a test sees it."""
    monkeypatch.setattr(builtins, "input", lambda *_: "y")


def edited(folder: Path, name: str, **values: object) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | values))


def refusal(folder: Path, kind: type[ModelError] = ModelError) -> str:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    began = time.perf_counter()
    with pytest.raises(kind) as caught:
        load_backbone(str(folder), offline=True)
    assert time.perf_counter() - began < 5.0
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    message = str(caught.value)
    assert str(folder) in message and NEXT_STEP.search(message), message
    return message


@pytest.mark.parametrize("backbone", sorted(MAKERS))
def test_a_folder_loads_as_it_was_saved(backbone, hf_tokenizer, tmp_path):
    lm = DynamicLM.wrap(MAKERS[backbone](), hf_tokenizer)
    model, tokenizer = load_backbone(str(saved(tmp_path / "lm", lm)))
    state = model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in lm.model.state_dict().items())
    assert (model.device.type, model.dtype, model.training) == ("cpu", torch.float32, False)
    assert tokenizer(TEXT)["input_ids"] == hf_tokenizer(TEXT)["input_ids"]


def test_a_loaded_folder_writes_what_the_wrapped_model_writes(original):
    wrapped = DynamicLM.wrap(make_gpt2(), make_tokenizer())
    texts = [
        generate(lm, "The tenant", lm.vocabulary([Document(TEXT, "x")]), max_tokens=16).pieces
        for lm in (wrapped, DynamicLM.from_pretrained(str(original)), load(str(original)))
    ]
    assert texts[0] == texts[1] == texts[2]


def test_loading_prints_nothing_and_leaves_transformers_as_talkative_as_it_was(original, capfd):
    before = logging.get_verbosity()
    load(str(original))
    assert capfd.readouterr() == ("", "")
    assert logging.get_verbosity() == before and logging.is_progress_bar_enabled()


@pytest.mark.parametrize("name", ["~/models/tiny", "./models/tiny", "models/tiny"])
def test_a_folder_may_be_relative_or_in_the_home_folder(folder, name, tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    folder.rename(tmp_path / "models" / "tiny")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert load_backbone(name, offline=True)[0].config.model_type == "gpt2"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_each_dtype_loads_and_writes(original, dtype):
    lm = DynamicLM.from_pretrained(str(original), dtype=dtype)
    assert {str(p.dtype) for p in lm.model.parameters()} == {f"torch.{dtype}"}
    assert {str(p.dtype) for p in lm.encoder.parameters()} == {f"torch.{dtype}"}
    result = generate(lm, "The tenant", lm.vocabulary([Document(TEXT, "x")]), max_tokens=8)
    assert 0 < result.stats.base_tokens <= 8


@pytest.mark.parametrize("dtype", ["int8", "float64", "", "FLOAT32", "torch.float32", "auto"])
def test_an_unknown_dtype_is_refused_with_the_known_ones(original, dtype):
    with pytest.raises(OptionError, match=r"Allowed: float32, bfloat16, float16") as caught:
        load_backbone(str(original), dtype=dtype)
    assert repr(dtype) in str(caught.value)


@pytest.mark.parametrize("device", ["gpu", "", "cpu0", "cuda:x", "tpu:0", "meta"])
def test_an_unknown_device_is_refused_with_known_ones(original, device):
    with pytest.raises(OptionError, match="cuda") as caught:
        load_backbone(str(original), device=device)
    assert repr(device) in str(caught.value)


@pytest.mark.parametrize("device", ["cuda:99", "hpu", "vulkan"])
def test_a_device_that_this_machine_lacks_is_blamed_and_not_the_model(original, device):
    with pytest.raises(UniverbError, match="device") as caught:
        load_backbone(str(original), device=device)
    assert device in str(caught.value)
    assert "causal LM" not in str(caught.value)


def test_a_config_with_code_of_its_own_is_refused_and_the_code_not_run(folder, tmp_path):
    (folder / "evil.py").write_text(f"import os; os.mkdir({str(tmp_path / 'ran')!r})")
    edited(folder, CONFIG, auto_map={"AutoModelForCausalLM": "evil.Model"})
    assert "auto_map" in refusal(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("model_type", ["gpt2", "unheard-of"])
@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_a_tokenizer_with_code_of_its_own_is_never_run(
    folder, model_type, has_tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    (folder / "evil.py").write_text(
        f"import os; os.mkdir({str(tmp_path / 'ran')!r})\nclass Tokenizer: pass\n"
    )
    own = {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
    edited(folder, TOKENIZER_CONFIG, auto_map=own, tokenizer_class="Tokenizer")
    edited(folder, CONFIG, model_type=model_type)
    if not has_tokenizer:
        (folder / TOKENIZER).unlink()
    try:
        load_backbone(str(folder), offline=True)
    except ModelError as error:
        assert NEXT_STEP.search(str(error))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
def test_a_config_cannot_choose_attention_code_from_the_hub(folder, key):
    edited(folder, CONFIG, **{key: "somebody/kernel"})
    try:
        model, _ = load_backbone(str(folder), offline=True)
    except ModelError as error:
        assert NEXT_STEP.search(str(error))
    else:
        assert model.config._attn_implementation in {"sdpa", "eager"}


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("beside", [None, "other.safetensors"])
def test_pickled_weights_are_refused_and_never_opened(folder, beside, tmp_path):
    if beside:
        shutil.copy(folder / WEIGHTS, folder / beside)
    (folder / WEIGHTS).unlink()
    torch.save({"transformer.wte.weight": Bomb(tmp_path / "ran")}, folder / PICKLE)
    message = refusal(folder)
    assert "safetensors" in message and ("pickled weights" in message or beside)
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_beside_safetensors_are_left_alone(folder, tmp_path):
    torch.save({"transformer.wte.weight": Bomb(tmp_path / "ran")}, folder / PICKLE)
    model, _ = load_backbone(str(folder))
    assert torch.equal(model.transformer.wte.weight, make_gpt2().transformer.wte.weight)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe{}", b"[" * 100_000], ids=range(5))
def test_a_folder_without_a_readable_config_is_refused(folder, content):
    (folder / CONFIG).unlink()
    if content is not None:
        (folder / CONFIG).write_bytes(content)
    assert CONFIG in refusal(folder)


@pytest.mark.parametrize("content", ["[]", "null", '"auto"'])
def test_a_config_that_is_no_object_is_not_accused_of_running_code(folder, content):
    (folder / CONFIG).write_text(content)
    assert "auto_map" not in refusal(folder)


def test_an_empty_folder_is_refused(tmp_path):
    assert CONFIG in refusal(tmp_path)


@pytest.mark.parametrize("length", [0, 7, 8, 100, 0.5, -1000, -1])
def test_truncated_weights_are_refused(folder, length):
    data = (folder / WEIGHTS).read_bytes()
    end = int(len(data) * length) if isinstance(length, float) else length
    (folder / WEIGHTS).write_bytes(data[:end])
    refusal(folder)


@pytest.mark.parametrize("content", [b"junk" * 300, (2**62).to_bytes(8, "little") + b"{}"])
def test_weights_that_are_no_safetensors_are_refused(folder, content):
    (folder / WEIGHTS).write_bytes(content)
    refusal(folder)


def test_a_folder_without_weights_is_missing_them(folder):
    (folder / WEIGHTS).unlink()
    assert "safetensors" in refusal(folder, ModelMissing)


@pytest.mark.parametrize("layers", [4, 2])
def test_weights_of_another_depth_are_refused_when_some_are_missing(folder, layers):
    edited(folder, CONFIG, n_layer=layers)
    if layers > 3:
        refusal(folder)
    else:
        assert len(load_backbone(str(folder))[0].transformer.h) == layers


@pytest.mark.parametrize(
    "damage",
    [
        {"model_type": "unheard-of"},
        {"model_type": "t5"},
        {"model_type": ["gpt2"]},
        {"model_type": None},
        {"n_layer": "three"},
        {"n_embd": 64},
        {"n_embd": 10**9},
        {"n_head": 0},
        {"n_head": 5},
        {"vocab_size": 321},
        {"vocab_size": -1},
        {"activation_function": "unheard-of"},
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        {"quantization_config": 5},
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_refused(folder, damage):
    edited(folder, CONFIG, **damage)
    refusal(folder)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"{", b"\xff" * 64, b'{"model": 1}'])
def test_a_damaged_tokenizer_is_refused(folder, content):
    (folder / TOKENIZER).write_bytes(content)
    refusal(folder)


@pytest.mark.parametrize("content", [b"[]", b"{", b"null"])
def test_a_damaged_tokenizer_config_is_refused(folder, content):
    (folder / TOKENIZER_CONFIG).write_bytes(content)
    refusal(folder)


@pytest.mark.parametrize("names", [[TOKENIZER], [TOKENIZER, TOKENIZER_CONFIG]])
def test_a_folder_without_tokenizer_is_refused(folder, names):
    for name in names:
        (folder / name).unlink()
    assert "tokenizer" in refusal(folder)


@pytest.mark.parametrize("name", ["gpt2", "somebody/some-model", "not a name", "x\0y"])
def test_a_hub_model_that_is_not_here_fails_at_once_when_offline(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    for call in (load_backbone, DynamicLM.from_pretrained, load):
        began = time.perf_counter()
        with pytest.raises(ModelMissing, match="offline") as caught:
            call(name, offline=True)
        assert time.perf_counter() - began < 1.0
        assert repr(name) in str(caught.value) and "univerb setup" in str(caught.value)


@pytest.mark.parametrize("variable", ["UNIVERB_OFFLINE", "HF_HUB_OFFLINE"])
def test_the_environment_can_forbid_the_hub(variable, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ModelMissing, match=variable):
        load_backbone("gpt2")


def test_a_half_downloaded_hub_model_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "hub" / "models--somebody--some-model" / "snapshots").mkdir(parents=True)
    with pytest.raises(ModelMissing, match="somebody/some-model"):
        load_backbone("somebody/some-model", offline=True)


@pytest.mark.parametrize("name", ["/no/such/model", "./nothing", "~/nothing", "a/b/c"])
def test_a_path_that_is_not_there_is_no_hub_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelMissing, match="no folder"):
        load_backbone(name, offline=False)


def test_the_home_of_an_unknown_user_is_no_folder():
    with pytest.raises(ModelMissing, match="no folder"):
        load_backbone("~no-such-user-here/model")


class LetterTokenizer(PreTrainedTokenizer):
    """A tokenizer in Python, without character offsets."""

    vocab_size = 26

    def get_vocab(self) -> dict[str, int]:
        return {chr(97 + number): number for number in range(26)}

    def _tokenize(self, text: str, **_: object) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token) - 97

    def _convert_id_to_token(self, index: int) -> str:
        return chr(97 + index)


@pytest.mark.parametrize("tokenizer", [LetterTokenizer(), None, object()])
def test_a_tokenizer_that_is_not_fast_is_refused(tokenizer):
    with pytest.raises(ModelError, match="not a fast one") as caught:
        DynamicLM.wrap(make_gpt2(), tokenizer)
    assert NEXT_STEP.search(str(caught.value))


def without_output_layer() -> torch.nn.Module:
    return make_gpt2().transformer


def classifier() -> torch.nn.Module:
    config = make_gpt2().config
    return GPT2ForSequenceClassification(config).eval()


def encoder_and_decoder() -> torch.nn.Module:
    config = T5Config(vocab_size=320, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config).eval()


def state_space() -> torch.nn.Module:
    config = MambaConfig(vocab_size=320, hidden_size=32, num_hidden_layers=1, state_size=4)
    return MambaForCausalLM(config).eval()


@pytest.mark.parametrize(
    "make", [without_output_layer, classifier, encoder_and_decoder, state_space]
)
def test_a_model_that_is_no_causal_transformer_lm_is_refused(make, hf_tokenizer):
    with pytest.raises(ModelError, match="AutoModelForCausalLM"):
        DynamicLM.wrap(make(), hf_tokenizer)


def gemma2(cap: float | None, spread: float) -> Gemma2ForCausalLM:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        final_logit_softcapping=cap,
        initializer_range=spread,
    )
    return Gemma2ForCausalLM(config).eval()


@pytest.mark.parametrize(("cap", "spread"), [(30.0, 1.0), (5.0, 0.3), (0.5, 0.02)])
def test_a_backbone_that_caps_its_logits_is_refused(cap, spread, hf_tokenizer, tmp_path):
    with pytest.raises(ModelError, match="soft-capping"):
        DynamicLM.wrap(gemma2(cap, spread), hf_tokenizer)


def test_a_backbone_that_could_cap_its_logits_but_does_not_is_accepted(hf_tokenizer):
    lm = DynamicLM.wrap(gemma2(None, 0.3), hf_tokenizer)
    assert generate(lm, "The tenant", lm.vocabulary(["the premises"]), max_tokens=4).text


def test_a_capping_backbone_is_refused_from_a_folder_too(folder, hf_tokenizer, tmp_path):
    gemma2(5.0, 0.3).save_pretrained(tmp_path / "gemma")
    hf_tokenizer.save_pretrained(tmp_path / "gemma")
    with pytest.raises(ModelError, match="soft-capping"):
        DynamicLM.from_pretrained(str(tmp_path / "gemma"))


def test_a_backbone_that_scales_its_logits_is_refused(hf_tokenizer):
    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        logits_scaling=3.0,
    )
    with pytest.raises(ModelError, match="scaling"):
        DynamicLM.wrap(GraniteForCausalLM(config).eval(), hf_tokenizer)


def test_a_model_in_training_mode_is_accepted_or_told_to_be_evaluated(hf_tokenizer):
    model = make_gpt2().train()
    try:
        DynamicLM.wrap(model, hf_tokenizer)
    except ModelError as error:
        assert "eval()" in str(error)
    assert model.training


@pytest.fixture
def packaged(original, tmp_path, monkeypatch) -> Path:
    """An encoder that ships with univerb for the backbone `tiny` of the working folder."""
    monkeypatch.setattr(locations, "__file__", str(tmp_path / "locations.py"))
    monkeypatch.chdir(original.parent)
    bare = DynamicLM.from_pretrained(str(original))
    lm = DynamicLM.wrap(bare.model, bare.hf_tokenizer, EncoderConfig(trained_steps=3))
    place = tmp_path / "assets" / "encoders" / "tiny"
    stir(lm).save_pretrained(place)
    return place


def test_an_encoder_that_ships_with_univerb_is_used_by_name(packaged):
    lm = DynamicLM.from_pretrained("tiny")
    assert lm.is_trained
    shipped = DynamicLM.from_pretrained(str(packaged))
    ours, theirs = (lm.tensors(lm.vocabulary(["the premises"])) for lm in (lm, shipped))
    assert torch.equal(ours.inputs, theirs.inputs) and torch.equal(ours.outputs, theirs.outputs)


@pytest.mark.parametrize("name", ["./tiny", "../encoders/tiny", ".."])
def test_an_encoder_that_ships_with_univerb_is_not_found_by_path(packaged, name):
    assert locations.packaged_encoder("tiny") == packaged
    assert locations.packaged_encoder(name) is None


def test_a_damaged_encoder_that_ships_with_univerb_is_refused(packaged):
    (packaged / "encoder.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="fresh copy"):
        DynamicLM.from_pretrained("tiny")


def test_a_backbone_without_a_shipped_encoder_is_untrained(original):
    assert not DynamicLM.from_pretrained(str(original)).is_trained
