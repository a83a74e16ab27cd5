"""`univerb.load`: a model by name, in one line; a missing one is noticed before torch loads."""

from typing import TYPE_CHECKING, Literal, overload

from univerb.errors import OptionError, did_you_mean
from univerb.locations import DEFAULT_MODEL, locate

if TYPE_CHECKING:
    from univerb.engines.llamacpp.lm import LlamaCppLM
    from univerb.modeling.dynamic import DynamicLM

ENGINES = ("torch", "llamacpp")


@overload
def load(
    name: str = ...,
    *,
    engine: Literal["torch"] = ...,
    backbone: str | None = ...,
    device: str = ...,
    dtype: str = ...,
    offline: bool | None = ...,
) -> "DynamicLM": ...


@overload
def load(
    name: str = ...,
    *,
    engine: Literal["llamacpp"],
    threads: int | None = ...,
    offline: bool | None = ...,
) -> "LlamaCppLM": ...


def load(
    name: str = DEFAULT_MODEL,
    *,
    engine: str = "torch",
    backbone: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    offline: bool | None = None,
) -> "DynamicLM | LlamaCppLM":
    """Load an LM with its phrase encoder.

    Args:
        name: As `DynamicLM.from_pretrained` explains it.
        engine: "torch", or "llamacpp" for the GGUF file of the default model on a CPU.
        backbone: torch: another place for the encoder's backbone.
        device: torch: where to put it.
        dtype: torch: float32, bfloat16 or float16.
        threads: llamacpp: how many; all cores of the process by default.
        offline: Never contact the Hub; by default as the environment says.

    Returns:
        The LM, ready to generate.

    Raises:
        OptionError: If there is no such engine, or it has no such option.
    """
    if engine not in ENGINES:
        raise OptionError(f"there is no engine {engine!r}. {did_you_mean(engine, ENGINES)}")
    if engine == "llamacpp":
        if backbone or device != "cpu" or dtype != "float32":
            raise OptionError(
                "backbone, device and dtype are for the torch engine; llama.cpp computes with "
                "the GGUF file as it is, on the CPU. Leave them out."
            )
        from univerb.engines.llamacpp.lm import LlamaCppLM

        return LlamaCppLM.from_pretrained(name, threads=threads, offline=offline)
    if threads is not None:
        raise OptionError(
            f"threads is {threads}; torch's are set for the whole process. Leave it out and use "
            "torch.set_num_threads."
        )
    locate(backbone or name, offline)
    from univerb.modeling.dynamic import DynamicLM

    return DynamicLM.from_pretrained(
        name, backbone=backbone, device=device, dtype=dtype, offline=offline
    )
