"""Damaged, foreign and hostile checkpoints: refused with a next step, and never run."""

import hashlib
import json
import math
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from conftest import make_gpt2, make_llama, make_tokenizer, saved
from tiny_checkpoints import (
    KINDS,
    NEXT_STEP,
    Change,
    Shelf,
    copied,
    edited,
    forged,
    make_shelf,
    read,
    refusal,
    reload,
    vectors,
)
from univerb.config import EncoderConfig, Profile
from univerb.errors import CheckpointError
from univerb.modeling.backbones import load_backbone
from univerb.modeling.card import CARD, OWN_TOKENIZER, WEIGHTS
from univerb.modeling.dynamic import DynamicLM


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return make_shelf(tmp_path_factory.mktemp("shelf"))


@given(st.sampled_from([WEIGHTS, OWN_TOKENIZER]), st.floats(0, 1, exclude_max=True), st.data())
@settings(max_examples=20)
def test_one_flipped_bit_of_a_data_file_is_noticed(shelf, name, place, data):
    bit = data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as scratch:
        folder = copied(shelf, "own", Path(scratch) / "x")
        content = bytearray((folder / name).read_bytes())
        content[int(len(content) * place)] ^= 1 << bit
        (folder / name).write_bytes(content)
        assert name in refusal(shelf, folder)


@given(st.sampled_from(KINDS), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
@settings(max_examples=40)
def test_one_flipped_bit_of_the_card_loads_or_is_refused(shelf, kind, place, bit):
    with tempfile.TemporaryDirectory() as scratch:
        folder = copied(shelf, kind, Path(scratch) / "x")
        content = bytearray((folder / CARD).read_bytes())
        content[int(len(content) * place)] ^= 1 << bit
        (folder / CARD).write_bytes(content)
        loads_or_is_refused(shelf, folder)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**30, -(10**30), 2**63, 10**400])
    | st.floats()
    | st.text(max_size=8)
)
values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3)
)
PLACES = [
    "format",
    "univerb",
    *(f"backbone.{key}" for key in ("name", "model_type", "hidden_size", "static_size")),
    *(f"encoder.{key}" for key in EncoderConfig.model_fields),
    *(f"profile.{key}" for key in Profile.model_fields),
    "backbone",
    "encoder",
    "profile",
    "body",
    "sha256",
    f"sha256.{WEIGHTS}".replace(".safetensors", ""),
]


@given(st.sampled_from(["split", "tied"]), st.sampled_from(PLACES), values)
@settings(max_examples=60)
def test_any_value_anywhere_in_the_card_loads_or_is_refused(shelf, kind, place, value):
    with tempfile.TemporaryDirectory() as scratch:
        folder = copied(shelf, kind, Path(scratch) / "x")
        edited(folder, {place: value})
        loads_or_is_refused(shelf, folder)


def loads_or_is_refused(shelf: Shelf, folder: Path) -> None:
    try:
        read(shelf, folder)
    except CheckpointError as error:
        assert NEXT_STEP.search(str(error)), str(error)


def cut_at(length: float) -> Change:
    def change(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        end = int(len(data) * length) if isinstance(length, float) else length
        (folder / WEIGHTS).write_bytes(data[:end])

    return change


def replaced(name: str, content: bytes, forge: bool = False) -> Change:
    if forge:
        return lambda folder: forged(folder, name, content)
    return lambda folder: (folder / name).write_bytes(content)


def with_value(place: str, value: object) -> Change:
    return lambda folder: edited(folder, {place: value})


def without(key: str) -> Change:
    def change(folder: Path) -> None:
        card = json.loads((folder / CARD).read_text())
        del card[key]
        (folder / CARD).write_text(json.dumps(card))

    return change


def gone(name: str, instead: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        if instead == "folder":
            (folder / name).mkdir()
        if instead == "link":
            (folder / name).symlink_to(folder / "nowhere")

    return change


def exchanged(one: str, other: str) -> Change:
    def change(folder: Path) -> None:
        (folder / one).rename(folder / "third")
        (folder / other).rename(folder / one)
        (folder / "third").rename(folder / other)

    return change


NO_CARDS = [
    b"",
    b" ",
    b"{}",
    b"[]",
    b"null",
    b"1",
    b'"text"',
    b"{",
    b"\xff\xfe{}",
    b"\0" * 64,
    b"{'a'}",
]
NO_CARDS += [opening * 100_000 for opening in (b"[", b'{"a":', b'{"body": [[')]
WRONG_VALUES = [
    *(("format", value) for value in (None, "one", "2", 0, -1, 1.5, 2.0, 1e300)),
    *(("backbone", value) for value in ([], None)),
    *(("backbone.hidden_size", value) for value in (-1, 10**30, "wide")),
    ("backbone.name", 5),
    ("backbone.static_size", 0),
    ("backbone.tokenizer", None),
    ("encoder", "split"),
    *(("encoder.layers", value) for value in (0, 10**9, 1.5)),
    *(("encoder.heads", value) for value in ("other", ["split"])),
    ("encoder.dropout", 1.0),
    *(("encoder.bias", value) for value in (math.inf, math.nan)),
    ("encoder.trained_steps", -1),
    ("profile.mode", "fast"),
    *(("profile.tolerance", value) for value in (2, math.nan)),
    ("profile.phrase_bias", 10**30),
    *(("body", value) for value in ([], "gpt2")),
    *(("sha256", value) for value in (None, [], {WEIGHTS: 5}, {WEIGHTS: None})),
]
WRONG_HASHES = [
    {},
    *({WEIGHTS: text} for text in ("", "none", "0" * 64)),
    {f"./{WEIGHTS}": "0" * 64},
]
WRONG_BODIES = [
    *({"n_layer": value} for value in ("two", 0, -1, 2, 2000)),
    *({"n_embd": value} for value in (32, 3000, 10**9)),
    *({"vocab_size": value} for value in (281, 10**7, 10**12, "many")),
    *({"model_type": value} for value in ("unheard-of", None, "../gpt2")),
    {"n_head": 0},
    {"n_positions": 0},
    {"activation_function": "os.system"},
    {"layer_norm_epsilon": "small"},
    {"dtype": "no_dtype"},
    {"get_text_config": 5},
]
DAMAGES = [
    *(("split", cut_at(length), WEIGHTS) for length in (0, 1, 7, 8, 9, 100, 0.25, 0.99, -8, -1)),
    *(("split", replaced(CARD, content), CARD) for content in NO_CARDS),
    *(("split", with_value("format", v), "Upgrade univerb") for v in (2, 3, 10**6, 10**400)),
    *(("split", with_value(place, v), place.split(".")[-1]) for place, v in WRONG_VALUES),
    *(("split", without(k), k) for k in ("format", "backbone", "encoder", "profile", "sha256")),
    *(("split", with_value("sha256", hashes), WEIGHTS) for hashes in WRONG_HASHES),
    *(
        (kind, gone(name, instead), name)
        for kind, name in [("split", WEIGHTS), ("own", OWN_TOKENIZER), ("tied", CARD)]
        for instead in ("nothing", "folder", "link")
    ),
    ("own", exchanged(WEIGHTS, OWN_TOKENIZER), "sha256"),
    ("own", exchanged(WEIGHTS, CARD), CARD),
    *(
        ("own", replaced(OWN_TOKENIZER, content, forge=True), "own body")
        for content in (b"", b"{}", b"[]", b"{", b"\xff" * 100, b'{"model": {}}')
    ),
    *(
        ("own", with_value(f"body.{key}", value), "")
        for body in WRONG_BODIES
        for key, value in body.items()
    ),
]


@pytest.mark.parametrize(("kind", "change", "words"), DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_checkpoint_is_refused(shelf, kind, change, words, tmp_path):
    folder = copied(shelf, kind, tmp_path / "x")
    change(folder)
    message = refusal(shelf, folder)
    assert words in message
    assert len(message) < 500 + len(str(folder)) and "\n" not in message


def test_a_format_from_the_future_need_not_be_understood(shelf, tmp_path):
    (tmp_path / CARD).write_text(json.dumps({"format": 2, "everything": "is elsewhere"}))
    assert "Upgrade univerb" in refusal(shelf, tmp_path)


@pytest.mark.parametrize("given_backbone", [True, False])
def test_weights_without_a_card_never_pass_for_an_untrained_model(shelf, given_backbone, tmp_path):
    folder = copied(shelf, "split", tmp_path / "x")
    (folder / CARD).unlink()
    backbone = str(shelf.backbone) if given_backbone else None
    with pytest.raises(CheckpointError, match=CARD):
        DynamicLM.from_pretrained(str(folder), backbone=backbone, offline=True)


@pytest.mark.parametrize(
    ("kind", "other"), [("split", "tied"), ("tied", "split"), ("split", "own")]
)
def test_the_weights_of_another_checkpoint_are_refused(shelf, kind, other, tmp_path):
    folder = copied(shelf, kind, tmp_path / "x")
    content = (shelf.kinds[other] / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content)
    assert "sha256" in refusal(shelf, folder)
    forged(folder, WEIGHTS, content)
    assert "does not fit" in refusal(shelf, folder)


@pytest.mark.parametrize(("kind", "other"), [("split", "tied"), ("tied", "own"), ("own", "split")])
def test_the_card_of_another_checkpoint_is_refused(shelf, kind, other, tmp_path):
    folder = copied(shelf, kind, tmp_path / "x")
    shutil.copy(shelf.kinds[other] / CARD, folder / CARD)
    refusal(shelf, folder)


def test_weights_that_lack_a_tensor_have_one_too_many_or_of_another_shape_are_refused(
    shelf, tmp_path
):
    tensors = load_file(shelf.kinds["split"] / WEIGHTS)
    name = "heads.input.weight"
    fewer = {k: v for k, v in tensors.items() if k != name}
    changes = [fewer, tensors | {"more": torch.zeros(2)}, tensors | {name: torch.zeros(32, 31)}, {}]
    for number, wrong in enumerate(changes):
        folder = copied(shelf, "split", tmp_path / str(number))
        forged(folder, WEIGHTS, save(wrong))
        assert "does not fit" in refusal(shelf, folder)


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("make", ["pickle", "torch", "short", "junk", "header"])
def test_weights_that_are_no_safetensors_are_refused_and_never_unpickled(shelf, make, tmp_path):
    folder, mark = copied(shelf, "split", tmp_path / "x"), tmp_path / "exploded"
    if make == "torch":
        torch.save({"heads.input.weight": Bomb(mark)}, folder / WEIGHTS)
    whole = (folder / WEIGHTS).read_bytes()
    content = {
        "pickle": pickle.dumps(Bomb(mark)),
        "torch": whole,
        "short": whole[:1000],
        "junk": bytes(range(256)) * 8,
        "header": (2**62).to_bytes(8, "little") + whole[8:],
    }[make]
    forged(folder, WEIGHTS, content)
    refusal(shelf, folder)
    assert not mark.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"auto_map": {"AutoModel": "evil.Body", "AutoConfig": "evil.Config"}},
        {"auto_map": {"AutoModel": "somebody/evil--evil.Body"}, "trust_remote_code": True},
        {"_attn_implementation_internal": "somebody/kernel"},
        {"_attn_implementation": "somebody/kernel"},
        {"attn_implementation": "somebody/kernel"},
        {"_commit_hash": "main", "_name_or_path": "somebody/evil"},
    ],
    ids=str,
)
def test_keys_of_a_body_that_could_bring_code_along_are_not_honoured(shelf, change, tmp_path):
    folder = copied(shelf, "own", tmp_path / "x")
    (folder / "evil.py").write_text(f"import os; os.mkdir({str(tmp_path / 'exploded')!r})")
    edited(folder, {f"body.{key}": value for key, value in change.items()})
    loaded = reload(shelf, folder)
    assert torch.equal(vectors(loaded), vectors(reload(shelf, shelf.kinds["own"])))
    config = loaded.encoder.body.config
    assert not hasattr(config, "auto_map")
    assert "somebody" not in str(config._attn_implementation)
    assert not (tmp_path / "exploded").exists()


def test_names_that_lead_out_of_the_folder_are_never_followed(shelf, tmp_path):
    folder = copied(shelf, "split", tmp_path / "x")
    outside = tmp_path / WEIGHTS
    shutil.move(folder / WEIGHTS, outside)
    digest = hashlib.sha256(outside.read_bytes()).hexdigest()
    edited(folder, {"sha256": {f"../{WEIGHTS}": digest, str(outside): digest, WEIGHTS: digest}})
    edited(folder, {"weights": f"../{WEIGHTS}", "encoder.path": str(outside)})
    assert str(folder / WEIGHTS) in refusal(shelf, folder)


def other_backbones() -> dict[str, DynamicLM]:
    """Backbones that differ from the shelf's in one field each, as far as that goes."""
    words = make_tokenizer()
    rust = json.loads(words.backend_tokenizer.to_str())
    vocabulary = rust["model"]["vocab"]
    one, two = [token for token in vocabulary if len(token) == 1][:2]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    swapped = type(words)(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(rust)),
        eos_token=words.eos_token,
        pad_token=words.pad_token,
    )
    wide = GPT2Config(**(make_gpt2().config.to_dict() | {"n_embd": 64}))
    return {
        "tokenizer": DynamicLM.wrap(make_gpt2(), swapped),
        "hidden_size": DynamicLM.wrap(GPT2LMHeadModel(wide).eval(), words),
        "model_type": DynamicLM.wrap(make_llama(), words),
        "static_size": DynamicLM.wrap(make_gpt2(vocab_size=384), words),
    }


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("split", "tokenizer"),
        ("tied", "hidden_size"),
        ("own", "model_type"),
        ("own", "static_size"),
    ],
)
def test_an_encoder_of_another_backbone_is_refused_by_what_differs(shelf, kind, field, tmp_path):
    other = saved(tmp_path / "other", other_backbones()[field])
    with pytest.raises(CheckpointError, match=field) as caught:
        DynamicLM.from_pretrained(str(shelf.kinds[kind]), backbone=str(other), offline=True)
    assert str(other) in str(caught.value) and str(shelf.backbone) in str(caught.value)
    assert NEXT_STEP.search(str(caught.value))


def test_a_backbone_of_another_depth_is_refused(shelf, hf_tokenizer, tmp_path):
    config = LlamaConfig(**(make_llama().config.to_dict() | {"num_hidden_layers": 1}))
    deep = saved(tmp_path / "deep", DynamicLM.wrap(make_llama(), hf_tokenizer))
    flat = saved(tmp_path / "flat", DynamicLM.wrap(LlamaForCausalLM(config).eval(), hf_tokenizer))
    DynamicLM.wrap(*load_backbone(str(deep))).save_pretrained(tmp_path / "encoder")
    with pytest.raises(CheckpointError) as caught:
        DynamicLM.from_pretrained(str(tmp_path / "encoder"), backbone=str(flat))
    assert NEXT_STEP.search(str(caught.value))
