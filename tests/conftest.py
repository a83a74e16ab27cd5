"""Tiny real models built in code: a byte-level BPE, a tied GPT-2 and an untied Llama."""

import fcntl
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tokenizers
import torch
from hypothesis import settings
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from univerb.cli.app import main
from univerb.config import EncoderConfig
from univerb.locations import DEFAULT_MODEL
from univerb.modeling.backbones import load_backbone
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

# The same cases in every run; `make fuzz` looks for new ones.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# Drafts depend on what rows cost: the same everywhere, and nothing is timed.
os.environ["UNIVERB_ROW_COSTS"] = "1:1,8:1.2,32:4"

TEXT = (
    "The tenant shall have quiet enjoyment of the premises. The tenant shall pay the rent on the "
    "first day of each month, and the landlord shall keep the premises in good repair. "
    "The landlord shall give the tenant at least thirty days written notice."
)
EOS = "<|endoftext|>"


@pytest.fixture(autouse=True)
def own_request_vectors(tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> None:
    """Keep what tests encode out of the user's cache."""
    folder = tmp_path_factory.getbasetemp()
    monkeypatch.setattr("univerb.corpus.request_vectors.cache_directory", lambda: folder)


@pytest.fixture
def without_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer as where the small embedding model, which is optional, is not installed."""
    for user in ("applications.answer", "lab.answers.run", "lab.answers.systems"):
        monkeypatch.setattr(f"univerb.{user}.default_embedder", lambda: None)


def data_directory() -> Path:
    """Return where the shared real data lies, or skip."""
    folder = Path(os.environ.get("UNIVERB_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set UNIVERB_DATA to the folder that has it")
    return folder


def make_tokenizer() -> PreTrainedTokenizerFast:
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=rust, eos_token=EOS, pad_token=EOS)


def make_gpt2(vocab_size: int = 320, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=512,
        n_embd=32,
        n_layer=3,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.2,
    )
    return GPT2LMHeadModel(config).eval()


def make_llama(vocab_size: int = 320, seed: int = 0, **options: Any) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **config | options)).eval()


MAKERS = {"gpt2": make_gpt2, "llama": make_llama}


@pytest.fixture(scope="session")
def hf_tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(params=["gpt2", "llama"])
def tiny(request: pytest.FixtureRequest, hf_tokenizer: PreTrainedTokenizerFast) -> DynamicLM:
    """A tied and an untied backbone, each with a fresh split-head encoder."""
    return DynamicLM.wrap(MAKERS[request.param](), hf_tokenizer)


@pytest.fixture(params=["gpt2-split", "gpt2-tied", "llama-split", "llama-tied"])
def tiny_any_head(
    request: pytest.FixtureRequest, hf_tokenizer: PreTrainedTokenizerFast
) -> DynamicLM:
    """Both backbones with both kinds of head."""
    backbone, heads = request.param.split("-")
    return DynamicLM.wrap(MAKERS[backbone](), hf_tokenizer, EncoderConfig(heads=heads))


def make_circling() -> PreTrainedModel:
    """Make an LM whose next token depends on the last alone, and goes round in some words."""
    model, tokenizer = make_llama(), make_tokenizer()
    words = tokenizer(" the tenant shall pay the landlord on the day", add_special_tokens=False)
    circle = list(dict.fromkeys(words["input_ids"]))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        rows = torch.nn.functional.normalize(model.get_input_embeddings().weight, dim=-1)
        for token, following in zip(circle, circle[1:] + circle[:1], strict=True):
            model.lm_head.weight[following] = 20 * rows[token]
    return model


@pytest.fixture(scope="module")
def circling() -> DynamicLM:
    """An LM that goes round in some words, with a fresh encoder."""
    return DynamicLM.wrap(make_circling(), make_tokenizer())


@pytest.fixture
def lease() -> Document:
    return Document(TEXT, "lease.txt")


@pytest.fixture(scope="session")
def default_lm() -> Iterator[DynamicLM]:
    """The real default model; `make test` installs it, so it is never skipped."""
    yield DynamicLM.from_pretrained(DEFAULT_MODEL)


def saved(folder: Path, lm: DynamicLM) -> Path:
    """Save a tiny backbone as a user would have it on disk."""
    lm.model.save_pretrained(folder)
    lm.hf_tokenizer.save_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).vocab_size == lm.hf_tokenizer.vocab_size
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny backbone on disk."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    return saved(folder, DynamicLM.wrap(make_llama(), make_tokenizer()))


def with_fresh_encoder(folder: Path | str, **options: str) -> DynamicLM:
    """Load a backbone and put an untrained encoder beside it."""
    return DynamicLM.wrap(*load_backbone(str(folder), **options))


@pytest.fixture(scope="session")
def tiny_encoder(tiny_folder: Path) -> Path:
    """An encoder for it, beside it."""
    with_fresh_encoder(tiny_folder).save_pretrained(tiny_folder.parent / "encoder")
    return tiny_folder.parent / "encoder"


@pytest.fixture
def lease_file(tmp_path: Path) -> Path:
    path = tmp_path / "lease.txt"
    path.write_text(TEXT)
    return path


def saved_encoder(
    folder: Path, model: PreTrainedModel | None = None, lm: DynamicLM | None = None
) -> Path:
    """Save a tiny backbone and a stirred encoder for it, and return the encoder's folder."""
    lm = lm or stir(DynamicLM.wrap(model or make_llama(), make_tokenizer()))
    lm.model.name_or_path = str(saved(folder / "tiny", lm))
    lm.save_pretrained(folder / "encoder")
    return folder / "encoder"


def stir(lm: DynamicLM, seed: int = 1, scale: float = 0.15) -> DynamicLM:
    """Give an untrained split head random weights, so that phrases differ and get chosen."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in lm.encoder.heads.parameters():
            parameter.copy_(torch.randn_like(parameter) * scale)
    return lm


def make_conditional(
    model: PreTrainedModel | None = None,
    seed: int = 1,
    scale: float = 0.5,
    bias: float = -1.0,
) -> DynamicLM:
    """Make a tiny LM whose conditional encoder is random, so that phrases differ and get chosen."""
    config = EncoderConfig(form="conditional", bias=bias)
    lm = DynamicLM.wrap(model or make_llama(), make_tokenizer(), config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for module in (lm.encoder.heads, lm.encoder.conditional):
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter) * scale)
    return lm


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(monkeypatch, capfd) -> Iterator[Any]:
    """Run the command line in this process, as its console script would."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    verbosity, threads = logging.get_verbosity(), torch.get_num_threads()

    def call(*arguments: object, stdin: str | bytes = "") -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        monkeypatch.setattr(sys, "argv", ["univerb", *map(str, arguments)])
        capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Ran(code, *capfd.readouterr())

    yield call
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar()
    torch.set_num_threads(threads)


@pytest.fixture
def one_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let one test at a time start Ray, which two cores are for, and keep it to the loopback."""
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with open(Path(tempfile.gettempdir()) / "univerb-tests-ray.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
