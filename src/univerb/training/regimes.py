"""From a run's settings to what the trainer trains: full, lora or frozen."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModel

from univerb.documents.read import read_documents
from univerb.errors import OptionError
from univerb.locations import cache_directory
from univerb.modeling.backbones import load_backbone
from univerb.modeling.card import CARD
from univerb.modeling.checkpoint import describe, read_checkpoint
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.encoder import Embeddings, PhraseEncoder
from univerb.phrase import Document
from univerb.tokenizer import Tokenizer
from univerb.training.config import TrainingConfig
from univerb.training.frozen.states import StateCache
from univerb.training.frozen.task import FrozenTask
from univerb.training.mixed import make_mixed_task
from univerb.training.processes import Processes
from univerb.training.task import Task
from univerb.training.texts import Texts


def make_task(config: TrainingConfig, processes: Processes) -> Task:
    """Load everything that a run needs.

    Args:
        config: The run's settings.
        processes: Who shares the work.

    Returns:
        The task, ready for its first step.

    Raises:
        OptionError: If the regime cannot be had with the other settings.
    """
    if config.regime == "frozen":
        _check_frozen(config)
    documents = read_documents(*config.data.documents)[: config.data.limit]
    validation = read_documents(*config.data.validation) if config.data.validation else []
    # Fresh heads are drawn at random: the same ones for the same seed, in every process.
    torch.manual_seed(config.run.seed)
    lm = starting_lm(config, str(processes.device))
    if config.data.block > lm.context_size:
        raise OptionError(
            f"data.block is {config.data.block}; the LM sees {lm.context_size} positions. "
            f"Give at most {lm.context_size}."
        )
    if config.regime != "frozen":
        return make_mixed_task(config, processes, lm, documents, validation)
    if lm.encoder.tokenizer is not None:
        raise OptionError(
            "encoder_from names a model with its own tokenizer, which the frozen regime cannot "
            "use: it reads windows of the LM's tokens. Leave it out, or use full or lora."
        )
    return FrozenTask(
        lm,
        config,
        _states(lm, config, documents, config.run.seed),
        _states(lm, config, validation, 0) if validation else None,
        processes,
    )


def starting_lm(config: TrainingConfig, device: str = "cpu") -> DynamicLM:
    """Load the backbone with the encoder that a run begins with.

    Args:
        config: The run's settings.
        device: Where to put it.

    Returns:
        The pair: an encoder that was saved, one made of another model, or a fresh one.
    """
    model, hf_tokenizer = load_backbone(config.model, device=device)
    begins_as = config.encoder_from
    if begins_as is None:
        return DynamicLM.wrap(model, hf_tokenizer, config.encoder)
    saved = Path(begins_as).expanduser()
    if (saved / CARD).is_file():
        description = describe(model, Tokenizer(hf_tokenizer.backend_tokenizer))
        encoder, profile = read_checkpoint(saved, model, description)
        return DynamicLM.wrap(model, hf_tokenizer, encoder, profile)
    other, other_tokenizer = load_backbone(begins_as, device=device)
    body = AutoModel.from_config(other.base_model.config, dtype=model.dtype)
    body.load_state_dict(other.base_model.state_dict())
    encoder = PhraseEncoder.from_model(
        body.to(device),
        Tokenizer(other_tokenizer.backend_tokenizer),
        Embeddings(model.get_input_embeddings(), model.get_output_embeddings()),
        config.encoder,
    )
    return DynamicLM.wrap(model, hf_tokenizer, encoder)


def _check_frozen(config: TrainingConfig) -> None:
    """Refuse negatives that were asked for and that the frozen regime has not."""
    given = config.negatives.kinds if "kinds" in config.negatives.model_fields_set else ()
    for kind in ("generation", "corpus-retrieval"):
        if kind in given:
            raise OptionError(
                f"negatives.kinds has {kind}, which the frozen regime has not: its phrases come "
                "from its own windows. Leave it out, or use full or lora."
            )


def _states(
    lm: DynamicLM, config: TrainingConfig, documents: Sequence[Document], seed: int
) -> StateCache:
    folder = config.frozen.cache
    place = Path(folder).expanduser() if folder else cache_directory() / "states"
    return StateCache(place, lm, Texts(documents, lm.tokenizer, config.data.block), seed)
