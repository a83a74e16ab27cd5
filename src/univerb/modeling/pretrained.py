"""Loading any HF model: safetensors only, no code from a checkpoint, no Hub unless allowed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer
from transformers.utils import logging

from univerb.errors import ModelError, ModelMissing, OptionError, first_line, shown
from univerb.locations import without_hub
from univerb.modeling.card import read_json_object

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SAFE_FORM = "that transformers knows, with safetensors weights and a tokenizer.json."

ChooseClass = Callable[[PretrainedConfig], Any]
"""Returns the auto class for a config."""


def dtype_named(name: str, option: str = "dtype") -> torch.dtype:
    """Return the dtype of a name, or raise an OptionError that names the option."""
    if not isinstance(name, str) or name not in DTYPES:
        raise OptionError(f"{option} is {shown(name)}. Allowed: {', '.join(DTYPES)}.")
    return DTYPES[name]


def load_pretrained(
    where: Path | str,
    choose_class: ChooseClass,
    advice: str,
    *,
    dtype: torch.dtype = torch.float32,
    offline: bool | None = None,
) -> tuple[PreTrainedModel, HFTokenizer]:
    """Load a model of transformers and its tokenizer, without a word on the terminal.

    Args:
        where: A folder or a Hub id, as `locate` returns it.
        choose_class: Chooses the auto class by the model's config.
        advice: What to give instead; the end of every error.
        dtype: Of the weights.
        offline: Never contact the Hub; by default as the environment says.

    Returns:
        The model in evaluation mode, and its fast tokenizer.

    Raises:
        ModelMissing: If it is not on this machine and cannot be downloaded.
        ModelError: If it is no such model, or cannot be loaded safely.
    """
    source: dict[str, Any] = dict(
        pretrained_model_name_or_path=str(where),
        local_files_only=isinstance(where, Path) or without_hub(offline),
        trust_remote_code=False,
    )
    if isinstance(where, Path):
        refuse_unsafe(where)
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(**source)
            model, missing = _load_weights(source, choose_class, dtype)
    except OSError as error:
        raise ModelMissing(_failure(where, error, advice)) from error
    except Exception as error:  # damaged files can make transformers raise anything
        raise ModelError(_failure(where, error, advice)) from error
    if missing:
        raise ModelError(
            f"the weights of {str(where)!r} lack {missing[0]} and {len(missing) - 1} more, which "
            f"its config asks for. Get a complete copy. {advice}"
        )
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer of {str(where)!r} is not a fast one. {advice}")
    return model.eval(), tokenizer


def _load_weights(
    source: dict[str, Any], choose_class: ChooseClass, dtype: torch.dtype
) -> tuple[PreTrainedModel, list[str]]:
    """Return the model and the names of weights that it lacks."""
    config = AutoConfig.from_pretrained(**source)
    auto_class = choose_class(config)
    model_class = auto_class._model_mapping[type(config)]
    model, report = auto_class.from_pretrained(
        **source,
        config=config,
        use_safetensors=True,
        dtype=dtype,
        # Chosen here, or a config could name a kernel on the Hub.
        attn_implementation="sdpa" if model_class._supports_sdpa else "eager",
        output_loading_info=True,
        # Where peft is installed, transformers looks for an adapter, and forgets what it was told.
        adapter_kwargs={"local_files_only": source["local_files_only"]},
    )
    return model, sorted(report["missing_keys"])


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' own bars and warnings; bars of a download still show."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    hook = logging.set_tqdm_hook(lambda _, args, options: logging.EmptyTqdm(*args, **options))
    try:
        yield
    finally:
        logging.set_tqdm_hook(hook)
        logging.set_verbosity(verbosity)


def refuse_unsafe(folder: Path) -> None:
    """Raise a ModelError if a folder's configs name code, or its only weights are pickles."""
    for name in ("config.json", "tokenizer_config.json"):
        settings = read_json_object(folder / name)
        if settings is None and (name == "config.json" or (folder / name).exists()):
            raise ModelError(
                f"{str(folder)!r} has no readable {name}. Give the folder that save_pretrained "
                "wrote."
            )
        if settings and "auto_map" in settings:
            raise ModelError(
                f"{name} of {str(folder)!r} asks to run code of its own (auto_map), which univerb "
                "never does. Use a model that transformers knows."
            )
    if not list(folder.glob("*.safetensors")) and list(folder.glob("*.bin")):
        raise ModelError(
            f"{str(folder)!r} has pickled weights (.bin), which univerb never opens. "
            "Convert them to safetensors with save_pretrained."
        )


def _failure(where: Path | str, error: Exception, advice: str) -> str:
    return f"{str(where)!r} could not be loaded: {first_line(error)}. {advice}"
