"""From a run's settings to its task: everything is loaded here, for full, lora and frozen."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModel

from univerb.documents.chunks import chunked
from univerb.errors import OptionError
from univerb.locations import cache_directory
from univerb.modeling.backbones import load_backbone
from univerb.modeling.card import CARD
from univerb.modeling.checkpoint import describe, read_checkpoint
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.encoder import Embeddings, PhraseEncoder
from univerb.phrase import Document
from univerb.retrieval.base import Collection
from univerb.retrieval.methods import ChunkIndex
from univerb.tokenizer import Tokenizer
from univerb.training.config import TrainingConfig
from univerb.training.frozen.frozen_task import FrozenTask
from univerb.training.frozen.retrieved import RetrievedPassages
from univerb.training.frozen.states import StateCache
from univerb.training.mixed_task import MixedTask
from univerb.training.negatives import Generator
from univerb.training.processes import Processes
from univerb.training.snapshots import digest
from univerb.training.task import Task
from univerb.training.training_documents import TrainingDocuments
from univerb.training.training_passages import Passages

_CONTEXT = ("context_share", "context_chunks")


def make_task(
    config: TrainingConfig, processes: Processes, retriever: Collection | None = None
) -> Task:
    """Load models and text of a run; OptionError if its settings do not go together.

    The frozen regime retrieves its candidates; by default from the training documents.
    """
    data = config.data
    documents = TrainingDocuments(data.documents, data.text, data.limit)
    held_out = TrainingDocuments(data.validation, data.text)
    validation = held_out[data.validation_skip :]
    if data.validation and not validation:
        raise OptionError(
            f"data.validation_skip is {data.validation_skip}; the validation text has "
            f"{len(held_out)} documents. Leave some of them."
        )
    # Fresh heads are drawn at random: the same ones for the same seed, in every process.
    torch.manual_seed(config.run.seed)
    lm, generator = _starting_lm(config, str(processes.device))
    if data.block > lm.context_size:
        raise OptionError(
            f"data.block is {data.block}; the LM sees {lm.context_size} positions. "
            f"Give at most {lm.context_size}."
        )
    if config.regime != "frozen":
        if lm.encoder.config.form == "conditional" and config.losses.phrase:
            raise OptionError(
                "the encoder has the conditional form of the choice, and L_p is that of the flat "
                "one. Give losses.phrase: 0, or encoder.form: flat, or use frozen."
            )
        return MixedTask(config, processes, lm, documents, validation, generator)
    if lm.encoder.tokenizer is not None:
        raise OptionError(
            "encoder_from names a model with its own tokenizer, which the frozen regime cannot "
            "use: it reads windows of the LM's tokens. Leave it out, or use full or lora."
        )
    if lm.encoder.config.form != "conditional":
        raise OptionError(
            "the frozen regime trains the conditional form of the choice. Give encoder.form: "
            "conditional, or use full or lora."
        )
    found = retriever or ChunkIndex([c for document in documents for c in chunked(document)])
    reader = lm if config.frozen.states == "float32" else _reader(config, str(processes.device))
    return FrozenTask(
        lm,
        config,
        _state_cache(reader, config, documents, found, config.run.seed, config.frozen.keep_groups),
        _state_cache(reader, config, validation, found, 0, None) if validation else None,
        processes,
    )


def _starting_lm(config: TrainingConfig, device: str) -> tuple[DynamicLM, Generator | None]:
    """Load the backbone with a saved encoder, one made of another model, or a fresh one.

    The other model comes, too: it writes negatives, as the paper's GPT-2 does beside TinyLlama.
    """
    model, hf_tokenizer = load_backbone(config.model, device=device)
    if config.encoder_from is None:
        return DynamicLM.wrap(model, hf_tokenizer, config.encoder), None
    saved = Path(config.encoder_from).expanduser()
    if (saved / CARD).is_file():
        description = describe(model, Tokenizer(hf_tokenizer.backend_tokenizer))
        encoder, profile = read_checkpoint(saved, model, description)
        return DynamicLM.wrap(model, hf_tokenizer, encoder, profile), None
    other, other_hf = load_backbone(config.encoder_from, device=device)
    body = AutoModel.from_config(other.base_model.config, dtype=model.dtype)
    body.load_state_dict(other.base_model.state_dict())
    tokenizer = Tokenizer(other_hf.backend_tokenizer, other_hf.all_special_ids)
    encoder = PhraseEncoder.from_model(
        body.to(device),
        tokenizer,
        Embeddings(model.get_input_embeddings(), model.get_output_embeddings()),
        config.encoder,
    )
    generator = Generator(other.requires_grad_(False), tokenizer)
    return DynamicLM.wrap(model, hf_tokenizer, encoder), generator


def _reader(config: TrainingConfig, device: str) -> DynamicLM:
    """Load the backbone once more, in the precision that it reads the training text in."""
    model, hf_tokenizer = load_backbone(config.model, device=device, dtype=config.frozen.states)
    return DynamicLM.wrap(model, hf_tokenizer, config.encoder)


def _state_cache(
    reader: DynamicLM,
    config: TrainingConfig,
    documents: Sequence[Document],
    retriever: Collection,
    seed: int,
    keep: int | None,
) -> StateCache:
    settings = config.frozen
    folder = Path(settings.cache).expanduser() if settings.cache else cache_directory() / "states"
    passages = Passages(documents, reader.tokenizer, config.data.block)
    retrieved = RetrievedPassages(passages, retriever, reader.tokenizer, settings, seed)
    # By what is searched, not by where it lies: it may change in its place.
    layout = settings.model_dump(include={"chunks", "first", *_CONTEXT})
    layout["content"] = retriever.content
    name = f"{passages.fingerprint()}-{digest(str(layout), {})[:8]}-{seed}"
    return StateCache(folder, reader, retrieved, name, keep)
