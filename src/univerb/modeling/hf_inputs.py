"""Names and lengths of the HF models that judge texts: no score is printed without its judge."""

from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer


def short_name(name: str) -> str:
    """Return a model's name without the folders above it; a Hub id stays as it is."""
    path = Path(name).expanduser()
    return path.resolve().name if path.is_dir() else name


def device_name(device: torch.device) -> str:
    """Return what a table calls a device: a GPU by its model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def longest_input(model: PreTrainedModel, tokenizer: HFTokenizer, limit: int) -> int:
    """Return the number of tokens that a model reads at once, at most `limit`."""
    positions = getattr(model.config, "max_position_embeddings", limit)
    return int(min(limit, positions, tokenizer.model_max_length))


def shortened(tokenizer: HFTokenizer, text: str, max_tokens: int) -> str:
    """Cut a text after its first `max_tokens` tokens."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets = encoded["offset_mapping"]
    return text[: offsets[max_tokens - 1][1]] if len(offsets) > max_tokens else text
