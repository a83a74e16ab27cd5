"""Backbones: loaded from a folder as they were saved, refused with a next step otherwise."""

import builtins
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

from conftest import MAKERS, TEXT, make_gpt2, make_tokenizer, saved, stir
from univerb import load, locations
from univerb.config import TRAINING_FREE, EncoderConfig
from univerb.decoding.loop import generate
from univerb.errors import CheckpointError, ModelError, ModelMissing, OptionError
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
    with pytest.raises(kind) as caught:
        load_backbone(str(folder), offline=True)
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
    wrapped = DynamicLM(make_gpt2(), make_tokenizer(), None, TRAINING_FREE)
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
    result = generate(lm, "The tenant", lm.vocabulary([Document(TEXT, "x")]), max_tokens=8)
    assert 0 < result.stats.base_tokens <= 8


@pytest.mark.parametrize("dtype", ["int8", "float64", "", "FLOAT32", "torch.float32", "auto"])
def test_an_unknown_dtype_is_refused_with_the_known_ones(original, dtype):
    with pytest.raises(OptionError, match=r"Allowed: float32, bfloat16, float16") as caught:
        load_backbone(str(original), dtype=dtype)
    assert repr(dtype) in str(caught.value)


@pytest.mark.parametrize(
    "device", ["gpu", "", "cpu0", "cuda:x", "tpu:0", "meta", "cuda:99", "hpu", "vulkan"]
)
def test_a_device_that_is_unknown_or_not_there_is_blamed_and_not_the_model(original, device):
    with pytest.raises(OptionError, match=r"device is .*cuda") as caught:
        load_backbone(str(original), device=device)
    assert repr(device) in str(caught.value) and "causal LM" not in str(caught.value)


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


def cut_at(length: float) -> Damage:
    def damage(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        end = int(len(data) * length) if isinstance(length, float) else length
        (folder / WEIGHTS).write_bytes(data[:end])

    return damage


def replaced(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def without(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


def with_config(**values: object) -> Damage:
    return lambda folder: edited(folder, CONFIG, **values)


NO_OBJECTS = (b"", b"{", b"\xff\xfe{}", b"[]", b"null")
HEADER_OF_EXABYTES = (2**62).to_bytes(8, "little") + b"{}"
DAMAGES = [
    (without(CONFIG), CONFIG),
    (without(WEIGHTS), "safetensors"),
    (without(TOKENIZER), "tokenizer"),
    (without(TOKENIZER, TOKENIZER_CONFIG), "tokenizer"),
    *((replaced(CONFIG, content), CONFIG) for content in (*NO_OBJECTS, b"[" * 100_000)),
    *((replaced(TOKENIZER, content), "") for content in (*NO_OBJECTS, b"{}", b'{"model": 1}')),
    *((replaced(TOKENIZER_CONFIG, content), "") for content in NO_OBJECTS),
    *((replaced(WEIGHTS, content), "") for content in (b"junk" * 300, HEADER_OF_EXABYTES)),
    *((cut_at(length), "") for length in (0, 7, 8, 100, 0.5, -1000, -1)),
    *((with_config(model_type=value), "") for value in ("unheard-of", "t5", ["gpt2"], None)),
    *((with_config(n_layer=value), "") for value in ("three", 4)),
    *((with_config(n_embd=value), "") for value in (64, 10**9)),
    *((with_config(n_head=value), "") for value in (0, 5)),
    *((with_config(vocab_size=value), "") for value in (321, -1)),
    (with_config(activation_function="unheard-of"), ""),
    (with_config(quantization_config={"quant_method": "gptq", "bits": 4}), ""),
    (with_config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}), ""),
    (with_config(quantization_config=5), ""),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_folder_is_refused(folder, damage, words):
    damage(folder)
    message = refusal(folder)
    assert words in message and "auto_map" not in message


def test_an_empty_folder_is_refused(tmp_path):
    assert CONFIG in refusal(tmp_path)


def test_a_folder_without_weights_is_missing_them(folder):
    (folder / WEIGHTS).unlink()
    refusal(folder, ModelMissing)


def test_weights_that_the_config_does_not_ask_for_are_left_out(folder):
    edited(folder, CONFIG, n_layer=2)
    assert len(load_backbone(str(folder))[0].transformer.h) == 2


@pytest.mark.parametrize("name", ["gpt2", "somebody/some-model", "not a name", "x\0y"])
def test_a_hub_model_that_is_not_here_is_missing_when_offline(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    for call in (load_backbone, DynamicLM.from_pretrained, load):
        with pytest.raises(ModelMissing, match="offline") as caught:
            call(name, offline=True)
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


def test_a_backbone_without_a_shipped_encoder_has_none(original):
    lm = DynamicLM.from_pretrained(str(original))
    assert not lm.has_encoder and not lm.is_trained
    with pytest.raises(ModelError, match="has no encoder. Train one"):
        lm.save_pretrained(original.parent / "none")
    with pytest.raises(OptionError, match="'atomic', which feeds phrases as vectors"):
        generate(lm, "The tenant", lm.vocabulary(["the premises"]), mode="atomic")


def test_an_encoder_can_be_left_out(packaged):
    lm, without = load("tiny"), load("tiny", encoder=False)
    assert lm.has_encoder and not without.has_encoder
    vocabulary = without.vocabulary([Document(TEXT, "x")])
    verified = generate(without, "The tenant", vocabulary, mode="verify", max_tokens=24)
    assert verified.text == generate(lm, "The tenant", max_tokens=24).text
