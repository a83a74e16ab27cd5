"""Encoders on disk: what comes back is what was saved, and what is damaged is refused at once."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from conftest import MAKERS, TEXT, saved, stir, with_fresh_encoder
from tiny_checkpoints import (
    KINDS,
    NEXT_STEP,
    PROFILE,
    Change,
    Shelf,
    contents,
    copied,
    edited,
    make_shelf,
    other_tokenizer,
    read,
    reload,
    vectors,
    with_encoder,
)
from univerb import __version__
from univerb.config import Profile
from univerb.decoding.loop import generate
from univerb.errors import CheckpointError
from univerb.modeling import checkpoint
from univerb.modeling.card import CARD, OWN_TOKENIZER, WEIGHTS, read_card
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return make_shelf(tmp_path_factory.mktemp("shelf"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backbone", sorted(MAKERS))
def test_a_reloaded_encoder_gives_the_same_vectors_and_the_same_text(
    backbone, kind, hf_tokenizer, tmp_path
):
    saved(tmp_path / "lm", DynamicLM.wrap(MAKERS[backbone](), hf_tokenizer))
    before = with_encoder(with_fresh_encoder(tmp_path / "lm"), kind)
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
    bare = with_fresh_encoder(shelf.backbone, dtype="bfloat16")
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
    with_fresh_encoder("backbone").save_pretrained(tmp_path / "encoder")
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
        "trained_from": None,
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


def test_a_profile_of_version_0_1_is_read_in_the_words_of_today(shelf, tmp_path):
    folder = copied(shelf, "split", tmp_path / "x")
    old = {"mode": "unfold", "tolerance": 0.4, "phrase_bias": 3, "positions": "token"}
    edited(folder, {"profile": {**old, "draft": 2.5, "escape": 8, "weights": "half"}})
    _, profile = read(shelf, folder)
    assert profile == Profile(**old, dtype="float16")


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
@pytest.mark.parametrize("old", [None, "split", "own"])
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
    lm = stir(with_fresh_encoder(shelf.backbone))
    lm.save_pretrained(tmp_path / "whole")
    lm.save_pretrained(tmp_path / "half", half=True)
    sizes = [(tmp_path / name / WEIGHTS).stat().st_size for name in ("whole", "half")]
    assert sizes[1] < 0.6 * sizes[0]
    again = DynamicLM.from_pretrained(str(tmp_path / "half"))
    assert vectors(again).dtype == torch.float32
    torch.testing.assert_close(vectors(again), vectors(lm), rtol=0.02, atol=0.02)
