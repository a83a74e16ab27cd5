"""Loading the HF models that judge texts: safetensors only, no code of theirs, no Hub unless asked.

What judges a text carries its name, so that no score is printed without it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.errors import ModelError, ModelMissing, OptionError
from univerb.locations import is_offline
from univerb.modeling.backbones import DTYPES, refuse_unsafe


def dtype_named(name: str, option: str = "dtype") -> torch.dtype:
    """Return the number type that was named for an option, or raise OptionError."""
    if name not in DTYPES:
        raise OptionError(f"{option} is {name!r}. Allowed: {', '.join(DTYPES)}.")
    return DTYPES[name]


def load_judge(
    where: Path | str,
    kind: Callable[[Any], Any],
    what: str,
    *,
    dtype: torch.dtype = torch.float32,
    offline: bool | None = None,
) -> tuple[PreTrainedModel, HFTokenizer]:
    """Load a model of transformers and its tokenizer.

    Args:
        where: A folder or a Hub id, as `locate` returns it.
        kind: Chooses the auto class by the model's config.
        what: The kind of model in words, for errors.
        dtype: Of its weights.
        offline: Never contact the Hub; by default as the environment says.

    Returns:
        The model in evaluation mode, and its fast tokenizer.

    Raises:
        ModelMissing: If it is not on this machine and cannot be downloaded.
        ModelError: If it is no such model, or cannot be loaded safely.
    """
    name, local_only = str(where), is_offline() if offline is None else offline
    if isinstance(where, Path):
        refuse_unsafe(where)
        local_only = True
    advice = f"Give {what} that transformers knows, with safetensors weights and a tokenizer.json."
    try:
        config = AutoConfig.from_pretrained(
            name, local_files_only=local_only, trust_remote_code=False
        )
        model, report = kind(config).from_pretrained(
            name,
            config=config,
            use_safetensors=True,
            dtype=dtype,
            output_loading_info=True,
            local_files_only=local_only,
            trust_remote_code=False,
        )
        tokenizer = AutoTokenizer.from_pretrained(
            name, local_files_only=local_only, trust_remote_code=False
        )
    except OSError as error:
        raise ModelMissing(f"{name!r} could not be loaded: {_reason(error)}. {advice}") from error
    except Exception as error:  # damaged files can make transformers raise anything
        raise ModelError(f"{name!r} could not be loaded: {_reason(error)}. {advice}") from error
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"the weights of {name!r} lack {missing[0]}. {advice}")
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer of {name!r} is not a fast one. {advice}")
    return model.eval(), tokenizer


def short_name(name: str) -> str:
    """Return a model's name without the folders it lies in; that of the Hub is kept whole."""
    path = Path(name).expanduser()
    return path.resolve().name if path.is_dir() else name


def longest_input(model: PreTrainedModel, tokenizer: HFTokenizer, most: int) -> int:
    """Return how many tokens a model reads at once, but at most so many."""
    positions = getattr(model.config, "max_position_embeddings", most)
    return int(min(most, positions, tokenizer.model_max_length))


def shortened(tokenizer: HFTokenizer, text: str, most: int) -> str:
    """Cut a text after so many tokens."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets = encoded["offset_mapping"]
    return text[: offsets[most - 1][1]] if len(offsets) > most else text


def _reason(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line[:200].rstrip(".")
