"""A folder with tiny models and texts, in which `univerb train` is started."""

from pathlib import Path

import tokenizers
import torch
import yaml
from tokenizers import models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from conftest import EOS, MAKERS, TEXT, make_tokenizer, saved
from univerb.modeling.dynamic import DynamicLM

RUN = {"steps": 4, "batch": 4, "accumulate": 2, "save_every": 1, "validate_every": 2}


def make_world(folder: Path) -> Path:
    tokenizer = make_tokenizer()
    for name, make in MAKERS.items():
        saved(folder / name, DynamicLM.wrap(make(), tokenizer))
    save_foreign(folder / "foreign")
    for name in ("texts", "held", "empty"):
        (folder / name).mkdir()
    (folder / "texts" / "a.txt").write_text(TEXT * 3)
    again = "The landlord shall pay the rent of the premises on the first day. " * 6
    (folder / "texts" / "b.txt").write_text(again)
    (folder / "held" / "c.txt").write_text("Each month the tenant shall have good repair. " + TEXT)
    (folder / "short.txt").write_text("Rent.")
    return folder


def save_foreign(folder: Path) -> None:
    """Save a smaller model that has a tokenizer of its own."""
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=270, special_tokens=["<e>"], initial_alphabet=alphabet, show_progress=False
    )
    rust.train_from_iterator(["landlord premises enjoyment"], trainer)
    torch.manual_seed(5)
    sizes = GPT2Config(vocab_size=270, n_positions=128, n_embd=16, n_layer=2, n_head=2)
    GPT2LMHeadModel(sizes).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="<e>").save_pretrained(folder)


def make_beginning_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer that puts a special token before a prompt, as Llama's does."""
    hf = make_tokenizer()
    hf.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOS} $A", special_tokens=[(EOS, hf.eos_token_id)]
    )
    return hf


def write_config(folder: Path, name: str, **sections) -> str:
    """Write a small run's settings."""
    settings = {
        "model": "llama",
        "data": {"documents": ["texts"], "validation": ["held"], "block": 48, "passages": 8},
        "samples": {"gap": [2, 5]},
        "encoder": {"form": "conditional"},
        "frozen": {"cache": "states", "first": 8, "chunks": 2, "context_share": 0.0},
        # Where a gradient is all rounding, AdamW still takes a whole step: it must be a small one.
        "optimiser": {"rate": 0.0001},
        "run": RUN,
    }
    if sections.get("regime", "frozen") != "frozen":
        settings["encoder"] = {"form": "flat"}
    for key, values in sections.items():
        is_section = isinstance(values, dict)
        settings[key] = {**settings.get(key, {}), **values} if is_section else values
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    return f"{name}.yaml"


def generates(run, world: Path, model: Path, *more: str) -> bool:
    """Use what a run exported."""
    ran = run(
        *("generate", "The tenant shall", "--docs", world / "texts", "--model", model),
        *("--max-tokens", "8", "--json", *more),
    )
    assert ran.code == 0, ran.err
    return bool(ran.json["text"])
