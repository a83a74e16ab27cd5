"""Everything that can be asked of a generation, each with its range and its reason."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from univerb.config import Mode, Positions, Profile, Weights
from univerb.errors import OptionError, did_you_mean
from univerb.vocabulary import DynamicVocabulary

Growth = Callable[[DynamicVocabulary, int], None]
"""Called before each choice with the vocabulary and the number of base tokens produced."""


class Options(TypedDict, total=False):
    """The keyword arguments of `generate`, `stream` and `batch`; `Decoding` explains them."""

    max_tokens: int
    mode: Mode | None
    tolerance: float | None
    phrase_bias: float | None
    draft: float | None
    escape: int | None
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    seed: int
    stop: Sequence[str]
    ban: Sequence[str]
    overshoot: Literal["allow", "forbid"]
    positions: Positions | None
    segment: bool
    ignore_eos: bool
    truncate: Literal["left"] | None
    growth: Growth | None
    explain: bool
    exact: bool | None
    reuse: bool
    weights: Weights | None


class Sampling(TypedDict):
    """The arguments of an engine's `make_sampler`."""

    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How to decode. Whatever is None is taken from the model's profile."""

    max_tokens: int = 128
    """Budget in base tokens, whatever the units are."""
    mode: Mode | None = None
    """`atomic` feeds a phrase as one vector (the paper); `unfold` as its tokens in one pass;
    `verify` is `unfold` with tolerance 0: the plain LM's own text."""
    tolerance: float | None = None
    """`unfold` keeps a phrase's token while its probability is at least (1 - tolerance) times
    the best one's, and cuts the phrase there otherwise."""
    phrase_bias: float | None = None
    """Added to the logit of every phrase."""
    draft: float | None = None
    """`unfold` and `verify`: added to it where a phrase only guesses how a chosen token goes on.
    More guesses save passes and cost rows; the text stays the same. Above 0 the text's own words
    are tried again, too; a low number such as -1000 guesses nothing."""
    escape: int | None = None
    """Where the last so many tokens would be followed by the same word for the third time in 256
    tokens, or twice as many for the second time, a phrase that goes on otherwise is proposed
    instead; 0: never. Its first token is written whatever the LM thinks of it; `verify` never
    does this."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    repetition_penalty: float = 1.0
    """As in HF; a phrase counts as its base tokens."""
    seed: int = 0
    stop: Sequence[str] = ()
    """Texts that end the generation; they may fall inside a phrase and never show."""
    ban: Sequence[str] = ()
    """Phrases that contain one of these texts are never chosen."""
    overshoot: Literal["allow", "forbid"] = "forbid"
    """Whether a last phrase may run over the budget."""
    positions: Positions | None = None
    """`unit`: one position per unit (the paper); `token`: a phrase sits at its last base token."""
    segment: bool = False
    """`atomic`: read the prompt with the phrases that it has as single vectors, too."""
    ignore_eos: bool = False
    truncate: Literal["left"] | None = None
    """Cut a prompt that is longer than the context from the left instead of refusing it."""
    growth: Growth | None = None
    """Adds, removes or expires phrases between steps."""
    explain: bool = False
    """Return the best candidates of each choice."""
    exact: bool | None = None
    """`atomic`: True scores every phrase, False only a short-list; by default as many as they are.
    `unfold` and `verify` lose nothing either way."""
    reuse: bool = True
    """Take what the prompt shares with the last ones from their KV cache, where there are phrases:
    faster, and right but for the last bits."""
    weights: Weights | None = None
    """torch on a CPU: `half` reads half-precision weights in passes over a few rows, where there
    are phrases; `verify` and plain text never do."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or isinstance(self.ban, str):
            raise OptionError("stop and ban are lists of texts, not one text: stop=['\\n'].")
        if any(not isinstance(text, str) or not text for text in (*self.stop, *self.ban)):
            raise OptionError("stop and ban take texts that are not empty. Drop what is not.")
        for name in ("max_tokens", "top_k", "seed", "escape"):
            value = getattr(self, name)
            if not isinstance(value, int) and not (name == "escape" and value is None):
                raise OptionError(f"{name} is {value!r}; it must be a whole number.")
        _in_range("max_tokens", self.max_tokens, 1, 1 << 20)
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_p", self.top_p, 1e-6, 1.0)
        _in_range("top_k", self.top_k, 0, 1 << 30)
        _in_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _in_range("seed", self.seed, 0, (1 << 63) - 1)
        _in_range("tolerance", self.tolerance, 0.0, 1.0)
        _in_range("phrase_bias", self.phrase_bias, -1000.0, 1000.0)
        _in_range("draft", self.draft, -1000.0, 1000.0)
        _in_range("escape", self.escape, 0, 1 << 20)
        _one_of("mode", self.mode, (None, "atomic", "unfold", "verify"))
        _one_of("overshoot", self.overshoot, ("allow", "forbid"))
        _one_of("positions", self.positions, (None, "unit", "token"))
        if self.segment and self.mode not in (None, "atomic"):
            raise OptionError(
                f"segment feeds phrases as single vectors, but mode is {self.mode!r}. "
                "Leave it out, or use mode 'atomic'."
            )
        _one_of("truncate", self.truncate, (None, "left"))
        _one_of("weights", self.weights, (None, "single", "half"))
        if self.mode == "verify" and self.tolerance not in (None, 0.0):
            raise OptionError(
                f"mode 'verify' is tolerance 0, but tolerance is {self.tolerance}. "
                "Leave it out, or use mode 'unfold'."
            )

    @property
    def sampling(self) -> "Sampling":
        """What a sampler is made of."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "repetition_penalty": self.repetition_penalty,
            "seed": self.seed,
        }

    def resolved(self, profile: Profile) -> "Resolved":
        """Fill what was left open from a model's profile."""
        mode = self.mode or profile.mode
        tolerance = profile.tolerance if self.tolerance is None else self.tolerance
        # The profile's bias belongs to its way of decoding; feeding vectors is another one.
        default_bias = 0.0 if mode == "atomic" and profile.mode != "atomic" else profile.phrase_bias
        return Resolved(
            is_atomic=mode == "atomic",
            tolerance=0.0 if mode == "verify" else tolerance,
            phrase_bias=default_bias if self.phrase_bias is None else self.phrase_bias,
            draft=profile.draft if self.draft is None else self.draft,
            escape=profile.escape if self.escape is None else self.escape,
            positions=self.positions or profile.positions,
            weights="single" if mode == "verify" else self.weights or profile.weights,
        )


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the profile has a say in, as it applies."""

    is_atomic: bool
    tolerance: float
    phrase_bias: float
    draft: float
    escape: int
    positions: Positions
    weights: Weights


def make_decoding(options: dict[str, Any]) -> Decoding:
    """Turn keyword arguments into a `Decoding`.

    Args:
        options: The keywords, as `Options` names them.

    Returns:
        The checked settings.

    Raises:
        OptionError: If a keyword is unknown or a value out of range.
    """
    names = [field.name for field in dataclasses.fields(Decoding)]
    for name in options:
        if name not in names:
            raise OptionError(f"there is no option {name!r}. {did_you_mean(name, names)}")
    return Decoding(**options)


def _in_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise OptionError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}.")
    if not low <= value <= high:
        raise OptionError(f"{name} is {value}; it must lie between {low:g} and {high:g}.")


def _one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        shown = ", ".join(repr(choice) for choice in allowed)
        raise OptionError(f"{name} is {value!r}. Allowed: {shown}.")
