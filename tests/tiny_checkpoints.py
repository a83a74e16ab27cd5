"""Tiny checkpoints of each kind: an encoder of the backbone, tied heads, and a body of its own."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2Model

from conftest import TEXT, make_gpt2, make_tokenizer, saved, stir, with_fresh_encoder
from univerb.config import EncoderConfig, Profile
from univerb.errors import CheckpointError
from univerb.modeling.card import CARD
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


def make_shelf(root: Path) -> Shelf:
    """Save a backbone and an encoder of each kind."""
    saved(root / "backbone", DynamicLM.wrap(make_gpt2(), make_tokenizer()))
    lm = with_fresh_encoder(root / "backbone")
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


def refusal(shelf: Shelf, folder: Path) -> str:
    """Check that a checkpoint is refused, left untouched, and with a next step."""
    before = contents(folder)
    with pytest.raises(CheckpointError) as caught:
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
