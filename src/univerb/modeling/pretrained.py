"""Loading any HF model: safetensors only, no code from a checkpoint, no Hub unless allowed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers import PreTrainedTokenizerFast as HFTokenizer
from transformers.initialization import no_init_weights
from transformers.utils import logging

from univerb.errors import ModelError, ModelMissing, OptionError, first_line, shown
from univerb.locations import cache_directory, converted_default, without_hub
from univerb.model_folder import refuse_unsafe, weight_files
from univerb.modeling.parameters import first_not_finite

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
    try:
        folder = where if isinstance(where, Path) else _downloaded(where, without_hub(offline))
        refuse_unsafe(folder)
        source = dict(
            pretrained_model_name_or_path=str(folder),
            local_files_only=True,
            trust_remote_code=False,
        )
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(**source)
            model, missing = _load_weights(source, choose_class, dtype)
    except ModelError:
        raise
    except OSError as error:
        raise ModelMissing(_failure(where, error, advice)) from error
    except Exception as error:  # damaged files can make transformers raise anything
        raise ModelError(_failure(where, error, advice)) from error
    if missing:
        raise ModelError(
            f"the weights of {str(where)!r} lack {missing[0]} and {len(missing) - 1} more, which "
            f"its config asks for. Get a complete copy. {advice}"
        )
    if damaged := first_not_finite(chain(model.named_parameters(), model.named_buffers())):
        raise ModelError(
            f"the weights of {str(where)!r} hold numbers that are not finite (NaN or infinite), in "
            f"{damaged}. Get a fresh copy, or use dtype float32 if they are too large for another. "
            f"{advice}"
        )
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer of {str(where)!r} is not a fast one. {advice}")
    return model.eval(), tokenizer


def _downloaded(name: str, offline: bool) -> Path:
    """Return the folder of the Hub's cache with a model, whose files are downloaded if need be.

    First those that say which others belong to it. transformers then sees a folder: left alone, it
    would ask the Hub for some files even if it may not.
    """
    folder = Path(snapshot_download(name, allow_patterns="*.json", local_files_only=offline))
    refuse_unsafe(folder)
    snapshot_download(
        name,
        revision=folder.name,
        allow_patterns=[*weight_files(folder), "*.txt", "*.model", "*.jinja"],
        local_files_only=offline,
    )
    return folder


def _load_weights(
    source: dict[str, Any], choose_class: ChooseClass, dtype: torch.dtype
) -> tuple[PreTrainedModel, list[str]]:
    """Return the model and the names of weights that it lacks."""
    config = AutoConfig.from_pretrained(**source)
    auto_class = choose_class(config)
    model_class = auto_class._model_mapping[type(config)]
    # Chosen here, or a config could name a kernel on the Hub.
    settings = {
        "dtype": dtype,
        "attn_implementation": "sdpa" if model_class._supports_sdpa else "eager",
    }
    folder = Path(source["pretrained_model_name_or_path"])
    is_own = folder.parent == cache_directory() and folder == converted_default()
    if is_own and dtype == torch.float32:
        return _map_weights(auto_class.from_config, config, settings, folder)
    model, report = auto_class.from_pretrained(
        **source,
        **settings,
        config=config,
        use_safetensors=True,
        output_loading_info=True,
        # Where peft is installed, transformers looks for an adapter, and forgets what it was told.
        adapter_kwargs={"local_files_only": source["local_files_only"]},
    )
    return model, sorted(report["missing_keys"])


def _map_weights(
    make: Callable[..., PreTrainedModel],
    config: PretrainedConfig,
    settings: dict[str, Any],
    folder: Path,
) -> tuple[PreTrainedModel, list[str]]:
    """Map the weights of a folder that univerb wrote, as they are.

    What transformers does for any other, which may have to be renamed or split, begins with
    importing sympy: half a second, and 40 MB.
    """
    with no_init_weights():
        model = make(config, **settings)
    report = model.load_state_dict(
        load_file(folder / "model.safetensors"), strict=False, assign=True
    )
    model.tie_weights()
    model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model, sorted({*report.missing_keys} - {*model.all_tied_weights_keys})


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


def _failure(where: Path | str, error: Exception, advice: str) -> str:
    return f"{str(where)!r} could not be loaded: {first_line(error)}. {advice}"
