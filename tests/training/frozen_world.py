"""A tiny world for the frozen regime: documents that say the same things, and their LM."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from conftest import MAKERS, TEXT, make_tokenizer
from univerb.config import EncoderConfig
from univerb.documents.chunks import chunked
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.retrieval.base import Retriever
from univerb.retrieval.methods import ChunkIndex
from univerb.training.config import (
    DataConfig,
    FrozenConfig,
    OptimiserConfig,
    RunConfig,
    TrainingConfig,
)
from univerb.training.frozen.frozen_task import FrozenTask
from univerb.training.frozen.retrieved import RetrievedPassages
from univerb.training.frozen.states import PassageStates, StateCache, read_states
from univerb.training.processes import Processes
from univerb.training.training_passages import Passages


def make_lease(first: int) -> str:
    numbers = range(first, first + 6)
    return " ".join(f"{TEXT} Number {n} of the lease, dated {1900 + n}, is void." for n in numbers)


LONG = make_lease(0)
# They say the same things, but no chunk of one is a part of another.
DOCUMENTS = [Document(make_lease(n)[n : n + 1400], f"d{n}") for n in range(0, 400, 50)]
ALONE = Processes.single("cpu")


def make_lm(name: str = "llama", **encoder: object) -> DynamicLM:
    settings = {"form": "conditional", "query": 8} | encoder
    return DynamicLM.wrap(MAKERS[name](), make_tokenizer(), EncoderConfig.model_validate(settings))


def shake(lm: DynamicLM, seed: int = 1, scale: float = 0.3) -> DynamicLM:
    """Give heads random weights, so that phrases differ and are chosen."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for module in (lm.encoder.heads, lm.encoder.conditional):
            for parameter in module.parameters():
                parameter.copy_(torch.randn_like(parameter) * scale)
    return lm


def make_settings(**frozen: object) -> FrozenConfig:
    # A chunk is longer than a passage here: passages have none before them.
    given = {"first": 16, "chunks": 3, "context_share": 0.0}
    given |= {"input_every": 2, "input_phrases": 6, "input_context": 48}
    return FrozenConfig.model_validate(given | frozen)


def make_config(
    steps: int = 6, run: dict | None = None, block: int = 96, **frozen: object
) -> TrainingConfig:
    shape = {"batch": 2, "accumulate": 1, "save_every": 2, "validate_every": 3} | (run or {})
    return TrainingConfig(
        data=DataConfig(documents=("text",), block=block, passages=4),
        frozen=make_settings(**frozen),
        optimiser=OptimiserConfig(rate=3e-3),
        run=RunConfig(steps=steps, **shape),
    )


def make_passages(
    lm: DynamicLM,
    config: TrainingConfig,
    documents: Sequence[Document] = DOCUMENTS,
    retriever: Retriever | None = None,
) -> RetrievedPassages:
    passages = Passages(documents, lm.tokenizer, config.data.block)
    found = retriever or ChunkIndex([c for document in documents for c in chunked(document)])
    return RetrievedPassages(passages, found, lm.tokenizer, config.frozen, config.run.seed)


def make_cache(
    folder: Path,
    lm: DynamicLM,
    config: TrainingConfig,
    documents: Sequence[Document] = DOCUMENTS,
    keep: int | None = None,
) -> StateCache:
    texts = "".join(document.text for document in documents)
    name = hashlib.sha256(texts.encode()).hexdigest()[:8]
    return StateCache(folder, lm, make_passages(lm, config, documents), name, keep)


def make_task(
    folder: Path,
    lm: DynamicLM,
    config: TrainingConfig,
    processes: Processes = ALONE,
    documents: Sequence[Document] = DOCUMENTS,
) -> FrozenTask:
    cache = make_cache(folder, lm, config, documents, config.frozen.keep_groups)
    return FrozenTask(lm, config, cache, make_cache(folder, lm, config), processes)


def states_of(lm: DynamicLM, index: int = 0, **settings: object) -> PassageStates:
    return read_states(lm, make_passages(lm, make_config(**settings)).text(index))
