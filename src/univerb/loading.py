"""`univerb.load`: a model by name, in one line; a missing one is noticed before torch loads."""

import os
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from univerb.errors import OptionError, did_you_mean, shown
from univerb.locations import DEFAULT_MODEL, is_gguf, locate
from univerb.threads import thread_count

if TYPE_CHECKING:
    from univerb.engines.llamacpp.lm import LlamaCppLM
    from univerb.modeling.dynamic import DynamicLM

ENGINES = ("torch", "llamacpp")
_FOR_TORCH = (
    "backbone, adapter, device and dtype are for the torch engine; llama.cpp computes with the "
    "GGUF file as it is, on the CPU. Leave them out."
)


class LoadOptions(TypedDict, total=False):
    """The keywords of `load` besides the engine."""

    backbone: str | None
    encoder: bool
    adapter: bool
    device: str
    dtype: str
    gguf: str | None
    threads: int | None
    offline: bool | None


@overload
def load(
    name: str = ..., *, engine: Literal["torch"], **options: Unpack[LoadOptions]
) -> "DynamicLM": ...
@overload
def load(
    name: str = ..., *, engine: Literal["llamacpp"], **options: Unpack[LoadOptions]
) -> "LlamaCppLM": ...
@overload
def load(
    name: str = ..., *, engine: str | None = ..., **options: Unpack[LoadOptions]
) -> "DynamicLM | LlamaCppLM": ...


def load(
    name: str = DEFAULT_MODEL,
    *,
    engine: str | None = None,
    backbone: str | None = None,
    encoder: bool = True,
    adapter: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    gguf: str | None = None,
    threads: int | None = None,
    offline: bool | None = None,
) -> "DynamicLM | LlamaCppLM":
    """Load an LM with its phrase encoder. The command line loads with this function, too.

    Args:
        name: The default model, a folder that `save_pretrained` wrote, any causal LM as a folder
            or Hub id, or a GGUF file. What has no encoder needs none: phrases are then scored by
            their first tokens.
        engine: "torch", or "llamacpp" for GGUF files on a CPU; by default what the name asks for.
        backbone: torch: load the encoder's backbone from here instead.
        encoder: Whether to use the model's encoder, if it has one.
        adapter: torch: merge the LoRA adapter beside the encoder into the LM. It was trained for
            `atomic`, which then is the default mode.
        device: torch: where to put it.
        dtype: torch: float32, bfloat16 or float16.
        gguf: llamacpp: the backbone's file, used as it is. The default model's is found by itself.
        threads: Number of threads, one per core by default; torch sets it for the whole process.
        offline: Never contact the Hub; by default as the environment says.

    Returns:
        The LM, ready to generate.
    """
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    engine = engine_for(name, engine, gguf)
    count = None if threads is None else thread_count(threads)
    if engine == "llamacpp":
        if backbone or adapter or device != "cpu" or dtype != "float32":
            raise OptionError(_FOR_TORCH)
        from univerb.engines.llamacpp.lm import LlamaCppLM

        return LlamaCppLM.from_pretrained(
            name, gguf=gguf, encoder=encoder, threads=count, offline=offline
        )
    locate(name if backbone is None else backbone, offline)
    import torch

    from univerb.modeling.dynamic import DynamicLM

    if count is not None:
        torch.set_num_threads(count)
    return DynamicLM.from_pretrained(
        name,
        backbone=backbone,
        encoder=encoder,
        adapter=adapter,
        device=device,
        dtype=dtype,
        offline=offline,
    )


def engine_for(name: str, engine: str | None, gguf: str | None) -> str:
    """Return the engine that was asked for, or that a file needs."""
    if engine is None:
        engine = "llamacpp" if is_gguf(name) else "torch"
    if not isinstance(engine, str) or engine not in ENGINES:
        raise OptionError(f"there is no engine {shown(engine)}. {did_you_mean(engine, ENGINES)}")
    if is_gguf(name) and (engine == "torch" or gguf is not None):
        raise OptionError(
            f"{name!r} is a GGUF file, which only the llamacpp engine reads, as it is. Leave out "
            f"{'the engine' if engine == 'torch' else 'gguf'}, or give an encoder's folder as the "
            "model."
        )
    if gguf is not None and engine == "torch":
        raise OptionError(f"gguf is {gguf!r}, which torch does not read. Add engine='llamacpp'.")
    return engine
