"""Encoders on disk: what comes back is what was saved, and what is damaged is refused at once."""

import hashlib
import json
import math
import os
import pickle
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model, LlamaConfig, LlamaForCausalLM

from conftest import MAKERS, TEXT, make_gpt2, make_llama, make_tokenizer, saved, stir
from univerb import __version__
from univerb.config import EncoderConfig, Profile
from univerb.decoding.loop import generate
from univerb.errors import CheckpointError
from univerb.modeling import checkpoint
from univerb.modeling.card import CARD, OWN_TOKENIZER, WEIGHTS, read_card
from univerb.modeling.checkpoint import describe, read_checkpoint
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.encoder import PhraseEncoder
from univerb.phrase import Document
from univerb.tokenizer import Tokenizer

KINDS = ("split", "tied", "own")
NEXT_STEP = re.compile(
    r"(Get|get) a fresh copy|Save the encoder again|Give a folder|Upgrade univerb|own backbone"
)
PROFILE = Profile(mode="atomic", tolerance=0.25, phrase_bias=1.5)

Change = Callable[[Path], object]


class Shelf(NamedTuple):
    """A backbone on disk, and one checkpoint of each kind for it."""

    backbone: Path
    lm: DynamicLM
    kinds: dict[str, Path]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    root = tmp_path_factory.mktemp("shelf")
    saved(root / "backbone", DynamicLM.wrap(make_gpt2(), make_tokenizer()))
    lm = DynamicLM.from_pretrained(str(root / "backbone"))
    for kind in KINDS:
        with_encoder(lm, kind).save_pretrained(root / kind)
    return Shelf(root / "backbone", lm, {kind: root / kind for kind in KINDS})


def other_tokenizer() -> tokenizers.Tokenizer:
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator([TEXT.upper()], trainer)
    return rust


def own_body() -> GPT2Model:
    torch.manual_seed(5)
    config = GPT2Config(
        vocab_size=280,
        n_positions=64,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.2,
    )
    return GPT2Model(config).eval()


def with_encoder(lm: DynamicLM, kind: str, seed: int = 1) -> DynamicLM:
    """Put an encoder of a kind, as if trained, beside a backbone."""
    config = EncoderConfig(heads="tied" if kind == "tied" else "split", trained_steps=7)
    encoder: PhraseEncoder | EncoderConfig = config
    if kind == "own":
        encoder = PhraseEncoder.from_model(
            own_body(), Tokenizer(other_tokenizer()), lm.embeddings, config
        )
    return stir(DynamicLM.wrap(lm.model, lm.hf_tokenizer, encoder, PROFILE), seed=seed)


def vectors(lm: DynamicLM) -> torch.Tensor:
    table = lm.tensors(lm.vocabulary([Document(TEXT, "lease.txt")]))
    return torch.cat([table.inputs, table.outputs])


def copied(shelf: Shelf, kind: str, target: Path) -> Path:
    return Path(shutil.copytree(shelf.kinds[kind], target))


def reload(shelf: Shelf, folder: Path) -> DynamicLM:
    return DynamicLM.from_pretrained(str(folder), backbone=str(shelf.backbone), offline=True)


def read(shelf: Shelf, folder: Path) -> tuple[PhraseEncoder, Profile]:
    return read_checkpoint(folder, shelf.lm.model, describe(shelf.lm.model, shelf.lm.tokenizer))


def contents(folder: Path) -> dict[str, bytes | None]:
    paths = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in paths}


@contextmanager
def one_second() -> Iterator[None]:
    began = time.perf_counter()
    yield
    assert time.perf_counter() - began < 1.0


def refusal(shelf: Shelf, folder: Path) -> str:
    """Check that a checkpoint is refused at once, untouched and with a next step."""
    before = contents(folder)
    with one_second(), pytest.raises(CheckpointError) as caught:
        read(shelf, folder)
    assert contents(folder) == before
    assert NEXT_STEP.search(str(caught.value)), str(caught.value)
    return str(caught.value)


def edited(folder: Path, edits: dict[str, Any]) -> None:
    """Set values of univerb.json; a key such as `encoder.layers` points into it."""
    card = json.loads((folder / CARD).read_text())
    for place, value in edits.items():
        *path, last = place.split(".")
        inner = card
        for key in path:
            inner = inner[key]
        inner[last] = value
    (folder / CARD).write_text(json.dumps(card))


def forged(folder: Path, name: str, content: bytes) -> None:
    """Replace a file and make univerb.json vouch for it."""
    (folder / name).write_bytes(content)
    card = json.loads((folder / CARD).read_text())
    card["sha256"][name] = hashlib.sha256(content).hexdigest()
    (folder / CARD).write_text(json.dumps(card))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backbone", sorted(MAKERS))
def test_a_reloaded_encoder_gives_the_same_vectors_and_the_same_text(
    backbone, kind, hf_tokenizer, tmp_path
):
    saved(tmp_path / "lm", DynamicLM.wrap(MAKERS[backbone](), hf_tokenizer))
    before = with_encoder(DynamicLM.from_pretrained(str(tmp_path / "lm")), kind)
    before.save_pretrained(tmp_path / "encoder")
    after = DynamicLM.from_pretrained(str(tmp_path / "encoder"), offline=True)
    assert torch.equal(vectors(after), vectors(before))
    assert (after.profile, after.encoder.config) == (before.profile, before.encoder.config)
    assert after.is_trained and not after.encoder.training
    phrases = [Document(TEXT, "lease.txt")]
    for mode, bias in (("atomic", 4.0), ("unfold", 8.0)):
        texts = [
            generate(
                lm,
                "The tenant",
                lm.vocabulary(phrases),
                mode=mode,
                phrase_bias=bias,
                tolerance=None if mode == "atomic" else 1.0,
                max_tokens=24,
                ignore_eos=True,
            )
            for lm in (before, after)
        ]
        assert texts[0].phrases
        assert texts[0].pieces == texts[1].pieces


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_survives_the_round_trip(shelf, kind, tmp_path):
    bare = DynamicLM.from_pretrained(str(shelf.backbone), dtype="bfloat16")
    before = with_encoder(bare, kind)
    before.save_pretrained(tmp_path / "encoder")
    after = DynamicLM.from_pretrained(str(tmp_path / "encoder"), dtype="bfloat16")
    assert vectors(after).dtype == torch.bfloat16
    assert torch.equal(vectors(after), vectors(before))


def test_an_encoder_of_its_own_keeps_its_own_tokenizer(shelf):
    loaded = reload(shelf, shelf.kinds["own"])
    assert loaded.encoder.tokenizer is not None
    assert loaded.encoder.tokenizer.encode("TENANT").ids == other_tokenizer().encode("TENANT").ids
    assert loaded.encoder.tokenizer.encode("TENANT").ids != loaded.tokenizer.encode("TENANT").ids


def test_the_backbone_is_found_again_by_the_name_it_was_loaded_under(shelf):
    assert read_card(shelf.kinds["split"]).backbone.name == str(shelf.backbone)
    loaded = DynamicLM.from_pretrained(str(shelf.kinds["split"]))
    assert torch.equal(loaded.embeddings.output_weight, shelf.lm.embeddings.output_weight)


def test_a_backbone_given_by_relative_path_is_found_from_elsewhere(shelf, tmp_path, monkeypatch):
    monkeypatch.chdir(shelf.backbone.parent)
    DynamicLM.from_pretrained("backbone").save_pretrained(tmp_path / "encoder")
    monkeypatch.chdir(tmp_path)
    DynamicLM.from_pretrained(str(tmp_path / "encoder"), offline=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_safetensors_and_json_and_nothing_else(shelf, kind):
    expected = {CARD, WEIGHTS} | ({OWN_TOKENIZER} if kind == "own" else set())
    assert set(contents(shelf.kinds[kind])) == expected
    assert all(torch.isfinite(v).all() for v in load_file(shelf.kinds[kind] / WEIGHTS).values())
    for name in expected - {WEIGHTS}:
        assert isinstance(json.loads((shelf.kinds[kind] / name).read_text()), dict)


def test_an_encoder_from_the_backbone_leaves_out_its_token_embeddings(shelf):
    rows = shelf.lm.static_size
    assert all(rows not in v.shape for v in load_file(shelf.kinds["split"] / WEIGHTS).values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_card_names_versions_settings_backbone_and_hashes(shelf, kind):
    folder = shelf.kinds[kind]
    card = json.loads((folder / CARD).read_text())
    assert (card["format"], card["univerb"]) == (1, __version__)
    assert card["backbone"] == {
        "name": str(shelf.backbone),
        "model_type": "gpt2",
        "hidden_size": 32,
        "static_size": 320,
        "tokenizer": shelf.lm.tokenizer.fingerprint(),
    }
    assert card["encoder"]["heads"] == ("tied" if kind == "tied" else "split")
    assert card["encoder"]["trained_steps"] == 7
    assert Profile.model_validate(card["profile"]) == PROFILE
    assert (card["body"] is None) == (kind != "own")
    files = [name for name in os.listdir(folder) if name != CARD]
    assert card["sha256"] == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files
    }


@pytest.mark.parametrize("kind", KINDS)
def test_saving_what_was_loaded_writes_the_same_files(shelf, kind, tmp_path):
    reload(shelf, shelf.kinds[kind]).save_pretrained(tmp_path / "again")
    old, new = read_card(shelf.kinds[kind]), read_card(tmp_path / "again")
    assert new.sha256 == old.sha256
    assert new.model_copy(update={"body": old.body}) == old


@pytest.mark.parametrize(("old", "new"), [("own", "split"), ("split", "own"), ("tied", "split")])
def test_saving_over_a_checkpoint_of_another_kind_replaces_it(shelf, old, new, tmp_path):
    folder = copied(shelf, old, tmp_path / "x")
    fresh = with_encoder(shelf.lm, new, seed=9)
    fresh.save_pretrained(folder)
    assert torch.equal(vectors(reload(shelf, folder)), vectors(fresh))


def test_a_home_folder_is_saved_to_where_it_is_loaded_from(shelf, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    shelf.lm.save_pretrained("~/encoder")
    assert (tmp_path / "home" / "encoder" / CARD).is_file()


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_a_later_version_are_tolerated(shelf, kind, tmp_path):
    folder = copied(shelf, kind, tmp_path / "x")
    places = ["later", "backbone.later", "encoder.later", "profile.later"]
    edited(folder, {place: {"a": [1, None, "b"]} for place in places})
    edited(folder, {"sha256.later": "0" * 64})
    if kind == "own":
        edited(folder, {"body.later": [1, 2]})
    assert torch.equal(vectors(reload(shelf, folder)), vectors(reload(shelf, shelf.kinds[kind])))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, 0.25, 0.5, 0.99, -8, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_truncated_weights_are_refused(shelf, kind, length, tmp_path):
    folder = copied(shelf, kind, tmp_path / "x")
    data = (folder / WEIGHTS).read_bytes()
    end = int(len(data) * length) if isinstance(length, float) else length
    (folder / WEIGHTS).write_bytes(data[:end])
    assert WEIGHTS in refusal(shelf, folder)


@given(st.sampled_from([WEIGHTS, OWN_TOKENIZER]), st.floats(0, 1, exclude_max=True), st.data())
@settings(max_examples=40)
def test_one_flipped_bit_of_a_data_file_is_noticed(shelf, name, place, data):
    bit = data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as scratch:
        folder = copied(shelf, "own", Path(scratch) / "x")
        content = bytearray((folder / name).read_bytes())
        content[int(len(content) * place)] ^= 1 << bit
        (folder / name).write_bytes(content)
        assert name in refusal(shelf, folder)


@given(st.sampled_from(KINDS), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
@settings(max_examples=80)
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
@settings(max_examples=150)
def test_any_value_anywhere_in_the_card_loads_or_is_refused(shelf, kind, place, value):
    with tempfile.TemporaryDirectory() as scratch:
        folder = copied(shelf, kind, Path(scratch) / "x")
        edited(folder, {place: value})
        loads_or_is_refused(shelf, folder)


def loads_or_is_refused(shelf: Shelf, folder: Path) -> None:
    with one_second():
        try:
            read(shelf, folder)
        except CheckpointError as error:
            assert NEXT_STEP.search(str(error)), str(error)


@pytest.mark.parametrize(
    "content",
    [b"", b" ", b"{}", b"[]", b"null", b"1", b'"text"', b"{", b"\xff\xfe{}", b"\0" * 64, b"{'a'}"],
)
def test_a_card_that_is_no_card_is_refused(shelf, content, tmp_path):
    folder = copied(shelf, "split", tmp_path / "x")
    (folder / CARD).write_bytes(content)
    assert CARD in refusal(shelf, folder)


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"body": [['])
def test_a_card_of_endless_brackets_is_refused(shelf, opening, tmp_path):
    folder = copied(shelf, "split", tmp_path / "x")
    (folder / CARD).write_text(opening * 100_000)
    assert CARD in refusal(shelf, folder)


@pytest.mark.parametrize("version", [2, 3, 10**6, 10**400])
def test_a_format_from_the_future_asks_for_an_upgrade(shelf, version, tmp_path):
    folder = copied(shelf, "split", tmp_path / "x")
    edited(folder, {"format": version})
    assert "Upgrade univerb" in refusal(shelf, folder)


@pytest.mark.parametrize("version", [2.0, "2", 1e300])
def test_a_format_from_the_future_is_refused_however_it_is_written(shelf, version, tmp_path):
    folder = copied(shelf, "split", tmp_path / "x")
    edited(folder, {"format": version})
    refusal(shelf, folder)


def test_a_format_from_the_future_need_not_be_understood(shelf, tmp_path):
    (tmp_path / CARD).write_text(json.dumps({"format": 2, "everything": "is elsewhere"}))
    assert "Upgrade univerb" in refusal(shelf, tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("format", None),
        ("format", "one"),
        ("format", 0),
        ("format", -1),
        ("format", 1.5),
        ("backbone", []),
        ("backbone", None),
        ("backbone.name", 5),
        ("backbone.hidden_size", -1),
        ("backbone.hidden_size", 10**30),
        ("backbone.hidden_size", "wide"),
        ("backbone.static_size", 0),
        ("backbone.tokenizer", None),
        ("encoder", "split"),
        ("encoder.layers", 0),
        ("encoder.layers", 10**9),
        ("encoder.layers", 1.5),
        ("encoder.heads", "other"),
        ("encoder.heads", ["split"]),
        ("encoder.dropout", 1.0),
        ("encoder.bias", math.inf),
        ("encoder.bias", math.nan),
        ("encoder.trained_steps", -1),
        ("profile.mode", "fast"),
        ("profile.tolerance", 2),
        ("profile.tolerance", math.nan),
        ("profile.phrase_bias", 10**30),
        ("body", []),
        ("body", "gpt2"),
        ("sha256", None),
        ("sha256", []),
        ("sha256", {WEIGHTS: 5}),
        ("sha256", {WEIGHTS: None}),
    ],
)
def test_a_value_of_the_wrong_kind_or_size_is_refused(shelf, place, value, tmp_path):
    folder = copied(shelf, "split", tmp_path / "x")
    edited(folder, {place: value})
    message = refusal(shelf, folder)
    assert CARD in message and place.split(".")[-1] in message


@pytest.mark.parametrize("key", ["format", "backbone", "encoder", "profile", "sha256"])
def test_a_missing_part_of_the_card_is_refused_by_name(shelf, key, tmp_path):
    folder = copied(shelf, "split", tmp_path / "x")
    card = json.loads((folder / CARD).read_text())
    del card[key]
    (folder / CARD).write_text(json.dumps(card))
    assert key in refusal(shelf, folder)


@pytest.mark.parametrize(
    "sha256",
    [
        {},
        {WEIGHTS: ""},
        {WEIGHTS: "none"},
        {WEIGHTS: "0" * 64},
        {WEIGHTS.upper(): "0" * 64},
        {f"./{WEIGHTS}": "0" * 64},
    ],
)
def test_weights_without_a_true_hash_are_refused(shelf, sha256, tmp_path):
    folder = copied(shelf, "split", tmp_path / "x")
    edited(folder, {"sha256": sha256})
    assert WEIGHTS in refusal(shelf, folder)


@pytest.mark.parametrize(
    ("kind", "name"), [("split", WEIGHTS), ("own", WEIGHTS), ("own", OWN_TOKENIZER), ("tied", CARD)]
)
@pytest.mark.parametrize("how", ["deleted", "a folder", "a dangling link"])
def test_a_missing_file_is_refused_by_name(shelf, kind, name, how, tmp_path):
    folder = copied(shelf, kind, tmp_path / "x")
    (folder / name).unlink()
    if how == "a folder":
        (folder / name).mkdir()
    if how == "a dangling link":
        (folder / name).symlink_to(tmp_path / "nowhere")
    assert name in refusal(shelf, folder)


@pytest.mark.parametrize("given_backbone", [True, False])
def test_weights_without_a_card_never_pass_for_an_untrained_model(shelf, given_backbone, tmp_path):
    folder = copied(shelf, "split", tmp_path / "x")
    (folder / CARD).unlink()
    backbone = str(shelf.backbone) if given_backbone else None
    with pytest.raises(CheckpointError, match=CARD):
        DynamicLM.from_pretrained(str(folder), backbone=backbone, offline=True)


def exchange(folder: Path, one: str, other: str) -> None:
    (folder / one).rename(folder / "third")
    (folder / other).rename(folder / one)
    (folder / "third").rename(folder / other)


def test_swapped_files_are_refused(shelf, tmp_path):
    folder = copied(shelf, "own", tmp_path / "x")
    exchange(folder, WEIGHTS, OWN_TOKENIZER)
    refusal(shelf, folder)
    folder = copied(shelf, "own", tmp_path / "y")
    exchange(folder, WEIGHTS, CARD)
    refusal(shelf, folder)


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


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"{", b"\xff" * 100, b'{"model": {}}'])
def test_a_tokenizer_file_that_is_none_is_refused(shelf, content, tmp_path):
    folder = copied(shelf, "own", tmp_path / "x")
    forged(folder, OWN_TOKENIZER, content)
    refusal(shelf, folder)


@pytest.mark.parametrize(
    "change",
    [
        {"n_layer": "two"},
        {"n_layer": 0},
        {"n_layer": -1},
        {"n_layer": 2},
        {"n_layer": 2000},
        {"n_head": 0},
        {"n_embd": 32},
        {"n_embd": 3000},
        {"n_embd": 10**9},
        {"vocab_size": 281},
        {"vocab_size": 10**7},
        {"vocab_size": 10**12},
        {"vocab_size": "many"},
        {"n_positions": 0},
        {"activation_function": "os.system"},
        {"layer_norm_epsilon": "small"},
        {"model_type": "unheard-of"},
        {"model_type": None},
        {"model_type": "../gpt2"},
        {"dtype": "no_dtype"},
        {"get_text_config": 5},
    ],
    ids=str,
)
def test_a_body_that_does_not_fit_its_weights_is_refused_before_it_is_built(
    shelf, change, tmp_path
):
    folder = copied(shelf, "own", tmp_path / "x")
    edited(folder, {f"body.{key}": value for key, value in change.items()})
    refusal(shelf, folder)


@pytest.mark.parametrize("change", [{"format": 10**400}, {"body.model_type": "unheard-of"}])
def test_a_refusal_is_one_short_line(shelf, change, tmp_path):
    folder = copied(shelf, "own", tmp_path / "x")
    edited(folder, change)
    message = refusal(shelf, folder)
    assert len(message) < 500 + len(str(folder)) and "\n" not in message


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


@pytest.mark.parametrize("field", ["tokenizer", "hidden_size", "model_type", "static_size"])
@pytest.mark.parametrize("kind", KINDS)
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
    DynamicLM.from_pretrained(str(deep)).save_pretrained(tmp_path / "encoder")
    with pytest.raises(CheckpointError) as caught:
        DynamicLM.from_pretrained(str(tmp_path / "encoder"), backbone=str(flat))
    assert NEXT_STEP.search(str(caught.value))


def a_file(folder: Path) -> Path:
    folder.write_text("in the way")
    return folder


def below_a_file(folder: Path) -> Path:
    return a_file(folder) / "encoder"


def weights_in_the_way(folder: Path) -> Path:
    (folder / WEIGHTS / "x").mkdir(parents=True)
    return folder


def card_in_the_way(folder: Path) -> Path:
    (folder / CARD / "x").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("obstacle", [a_file, below_a_file, weights_in_the_way, card_in_the_way])
def test_a_place_that_cannot_be_written_is_refused(shelf, obstacle, tmp_path):
    target = obstacle(tmp_path / "target")
    with pytest.raises(CheckpointError, match="Give a folder that can be written") as caught:
        shelf.lm.save_pretrained(target)
    assert str(target) in str(caught.value)


def test_a_full_disk_is_told_as_such(shelf, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(CheckpointError, match="enough space"):
        shelf.lm.save_pretrained(tmp_path / "encoder")


def test_a_save_that_fails_leaves_no_scratch_files(shelf, tmp_path, monkeypatch):
    def fails(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(CheckpointError):
        shelf.lm.save_pretrained(tmp_path / "encoder")
    assert set(os.listdir(tmp_path / "encoder")) <= {WEIGHTS, CARD}


class PowerCut(BaseException):
    """What no handler may swallow."""


def half_written(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, path)
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: len(content) // 2])
    raise PowerCut


def after_weights(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, path)
    raise PowerCut


def cut(name: str) -> Change:
    """Stop a save where a text file would be written."""
    write = checkpoint.atomic_write

    def stop(path: Path, text: str) -> None:
        if path.name == name:
            raise PowerCut
        write(path, text)

    return stop


CUTS = {
    "half the weights": lambda: ("save_file", half_written),
    "all the weights": lambda: ("save_file", after_weights),
    "before the tokenizer": lambda: ("atomic_write", cut(OWN_TOKENIZER)),
    "before the card": lambda: ("atomic_write", cut(CARD)),
}


@pytest.mark.parametrize("moment", CUTS)
@pytest.mark.parametrize("old", [None, *KINDS])
def test_an_interrupted_save_leaves_the_old_checkpoint_or_a_clear_refusal(
    shelf, old, moment, tmp_path, monkeypatch
):
    folder = copied(shelf, old, tmp_path / "x") if old else tmp_path / "x"
    fresh = with_encoder(shelf.lm, "own", seed=2)
    monkeypatch.setattr(checkpoint, *CUTS[moment]())
    with pytest.raises(PowerCut):
        fresh.save_pretrained(folder)
    monkeypatch.undo()
    try:
        read(shelf, folder)
    except CheckpointError as error:
        assert NEXT_STEP.search(str(error))
    else:
        assert old
        assert torch.equal(vectors(reload(shelf, folder)), vectors(reload(shelf, shelf.kinds[old])))
    fresh.save_pretrained(folder)
    assert torch.equal(vectors(reload(shelf, folder)), vectors(fresh))


def test_half_precision_is_half_the_size_and_nearly_the_same(shelf, tmp_path):
    lm = stir(DynamicLM.from_pretrained(str(shelf.backbone)))
    lm.save_pretrained(tmp_path / "whole")
    lm.save_pretrained(tmp_path / "half", half=True)
    sizes = [(tmp_path / name / WEIGHTS).stat().st_size for name in ("whole", "half")]
    assert sizes[1] < 0.6 * sizes[0]
    again = DynamicLM.from_pretrained(str(tmp_path / "half"))
    assert vectors(again).dtype == torch.float32
    torch.testing.assert_close(vectors(again), vectors(lm), rtol=0.02, atol=0.02)
