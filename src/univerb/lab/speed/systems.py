"""The systems that are compared: which model each runs on, with which kernels, and how it writes.

Systems of a group have the same weights and the same kernels unless their columns say otherwise,
and are compared with the group's plain decoding. Nothing here imports torch.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from univerb.config import KernelDtype, Mode
from univerb.errors import OptionError, did_you_mean

SINGLE: KernelDtype = "float32"
HALF: KernelDtype = "float16"
LLAMACPP, SIMULATION = "llamacpp", "simulation"
TORCH, PREPACKED, LLAMA_CPP = "torch", "torch prepacked", "llama.cpp"
LOOKUP_NGRAM, LOOKUP_TOKENS = 2, 10
"""Of prompt lookup: HF's and llama-cpp-python's defaults."""
WIDTHS = (4, 8, 16)
"""Rows that cost as much as one, on machines that are simulated."""
HostName = Literal[
    "torch",
    "torch-no-encoder",
    "llamacpp",
    "llamacpp-no-encoder",
    "llamacpp-as-shipped",
    "llama-cpp-python",
]
"""A model in a process of its own; the systems that run on it take turns."""
Way = Literal["hf", "session", "univerb", "llama-cpp-python"]
"""HF `generate`; greedy decoding over a session of univerb's; univerb's own loop; theirs."""


class References(NamedTuple):
    """What the systems of a group are compared with."""

    plain: str
    lookup: str
    """Prompt lookup with the same kernels."""
    verify: str


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A way to write."""

    group: str
    host: HostName
    way: Way
    kernels: str
    mode: Mode | None = None
    """The decode mode; None writes without phrases."""
    lookup: bool = False
    """Draft by prompt lookup: ten tokens, where the last two or the last one occurred first."""
    width: int = 0
    """Draft as if this number of rows cost as much as one; only for a simulation."""

    @property
    def dtype(self) -> KernelDtype:
        """The precision of torch's weights."""
        return HALF if self.group == HALF else SINGLE

    @property
    def is_timed(self) -> bool:
        """Whether its seconds mean anything."""
        return not self.width


def _torch_systems(dtype: str, end: str = "") -> dict[str, SystemSpec]:
    """Return what is compared on torch at either precision."""
    return {
        f"hf-lookup-prepacked{end}": SystemSpec(dtype, "torch", "hf", PREPACKED, lookup=True),
        f"torch-plain{end}": SystemSpec(dtype, "torch", "session", PREPACKED),
        f"torch-lookup{end}": SystemSpec(dtype, "torch", "session", PREPACKED, lookup=True),
        f"torch-verify{end}": SystemSpec(dtype, "torch", "univerb", PREPACKED, "verify"),
        f"torch-unfold{end}": SystemSpec(dtype, "torch", "univerb", PREPACKED, "unfold"),
    }


def _untrained(group: str, host: HostName, kernels: str, name: str) -> dict[str, SystemSpec]:
    modes: tuple[Mode, ...] = ("verify", "unfold")
    return {
        f"{name}-{mode}-no-encoder": SystemSpec(group, host, "univerb", kernels, mode)
        for mode in modes
    }


SYSTEMS: dict[str, SystemSpec] = {
    "hf": SystemSpec(SINGLE, "torch", "hf", TORCH),
    "hf-lookup": SystemSpec(SINGLE, "torch", "hf", TORCH, lookup=True),
    **_torch_systems(SINGLE),
    "torch-atomic": SystemSpec(SINGLE, "torch", "univerb", PREPACKED, "atomic"),
    **_untrained(SINGLE, "torch-no-encoder", PREPACKED, "torch"),
    **_torch_systems(HALF, f"-{HALF}"),
    "llamacpp-plain": SystemSpec(LLAMACPP, "llamacpp", "session", LLAMA_CPP),
    "llamacpp-plain-as-shipped": SystemSpec(LLAMACPP, "llamacpp-as-shipped", "session", LLAMA_CPP),
    "llamacpp-lookup": SystemSpec(LLAMACPP, "llamacpp", "session", LLAMA_CPP, lookup=True),
    "llamacpp-verify": SystemSpec(LLAMACPP, "llamacpp", "univerb", LLAMA_CPP, "verify"),
    "llamacpp-unfold": SystemSpec(LLAMACPP, "llamacpp", "univerb", LLAMA_CPP, "unfold"),
    "llamacpp-atomic": SystemSpec(LLAMACPP, "llamacpp", "univerb", LLAMA_CPP, "atomic"),
    **_untrained(LLAMACPP, "llamacpp-no-encoder", LLAMA_CPP, "llamacpp"),
    "llama-cpp-python-lookup": SystemSpec(
        LLAMACPP, "llama-cpp-python", "llama-cpp-python", LLAMA_CPP, lookup=True
    ),
    **{
        f"torch-verify-wide-{width}": SystemSpec(
            SIMULATION, "torch", "univerb", PREPACKED, "verify", width=width
        )
        for width in WIDTHS
    },
}
_SINGLE = References("torch-plain", "hf-lookup-prepacked", "torch-verify")
REFERENCES = {
    SINGLE: _SINGLE,
    HALF: References(*(f"{name}-{HALF}" for name in _SINGLE)),
    LLAMACPP: References("llamacpp-plain", "llamacpp-lookup", "llamacpp-verify"),
    SIMULATION: _SINGLE,
}
"""By group."""


def choose_systems(names: Sequence[str]) -> list[str]:
    """Return the systems to run.

    Args:
        names: Those asked for, or groups of them. None means all.

    Returns:
        Their names, in the order of `SYSTEMS`.

    Raises:
        OptionError: If one is unknown.
    """
    for name in names:
        if name not in SYSTEMS and name not in REFERENCES:
            allowed = [*SYSTEMS, *REFERENCES]
            raise OptionError(f"there is no system {name!r}. {did_you_mean(name, allowed)}")
    chosen = (n for n, spec in SYSTEMS.items() if not names or n in names or spec.group in names)
    return list(chosen)


@dataclass(frozen=True, slots=True)
class SystemSettings:
    """What all systems have in common."""

    model: str
    """A backbone, or an encoder's folder."""
    threads: int
    context: int
    """Positions that the longest request takes."""
    offline: bool | None = None
    no_repeat_ngram_size: int = 0
    """Repetition control, the same for all; 0 is none."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one request cost; all times are seconds."""

    ids: list[int]
    encode: float
    """Turning phrases into vectors."""
    prefill: float
    """Reading the prompt."""
    decode: float
    """All the rest."""
    pass_rows: list[int]
    """The rows of each pass after the prefill."""
    phrases: int = 0
    phrase_tokens: int = 0

    @classmethod
    def plain(cls, ids: list[int], began: float, first: float, pass_rows: list[int]) -> Self:
        """Measure a request that ends now, had nothing to encode and its first token at `first`."""
        return cls(ids, 0.0, first - began, time.perf_counter() - first, pass_rows)

    @property
    def total(self) -> float:
        """From the request to the last token."""
        return self.encode + self.prefill + self.decode

    @property
    def passes(self) -> int:
        """Passes after the prefill."""
        return len(self.pass_rows)
