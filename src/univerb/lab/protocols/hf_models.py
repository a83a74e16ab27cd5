"""The HF models that judge texts, loaded as safely as backbones are.

A judge carries its name, so that no score is printed without it.
"""

from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.errors import ModelError
from univerb.modeling.pretrained import ChooseClass, load_pretrained


def load_judge(
    where: Path | str,
    choose_class: ChooseClass,
    what: str,
    *,
    dtype: torch.dtype = torch.float32,
    offline: bool | None = None,
) -> tuple[PreTrainedModel, HFTokenizer]:
    """Load a judge and its fast tokenizer as `load_pretrained` does.

    Args:
        where: A folder or a Hub id, as `locate` returns it.
        choose_class: Chooses the auto class by the model's config.
        what: The kind of model in words, for errors.
        dtype: Of its weights.
        offline: Never contact the Hub; by default as the environment says.

    Returns:
        The model in evaluation mode, and its tokenizer.

    Raises:
        ModelError: If its tokenizer is not a fast one.
    """
    advice = f"Give {what} that transformers knows, with safetensors weights and a tokenizer.json."
    model, tokenizer = load_pretrained(where, choose_class, advice, dtype=dtype, offline=offline)
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer of {str(where)!r} is not a fast one. {advice}")
    return model, tokenizer


def short_name(name: str) -> str:
    """Return a model's name without the folders above it; a Hub id stays as it is."""
    path = Path(name).expanduser()
    return path.resolve().name if path.is_dir() else name


def longest_input(model: PreTrainedModel, tokenizer: HFTokenizer, limit: int) -> int:
    """Return the number of tokens that a model reads at once, at most `limit`."""
    positions = getattr(model.config, "max_position_embeddings", limit)
    return int(min(limit, positions, tokenizer.model_max_length))


def shortened(tokenizer: HFTokenizer, text: str, max_tokens: int) -> str:
    """Cut a text after its first `max_tokens` tokens."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets = encoded["offset_mapping"]
    return text[: offsets[max_tokens - 1][1]] if len(offsets) > max_tokens else text
