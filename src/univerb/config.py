"""Settings with the range that each may take: of a generation, an encoder, an adapter.

`GenerationConfig` is written once. The keywords of `generate`, a model's profile, the bodies of
batch requests and the flags of the command line are all made from its fields.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, TypedDict, get_args

import numpy
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from univerb.errors import OptionError, did_you_mean, shown
from univerb.vocabulary import DynamicVocabulary

MAX_PHRASES = 100_000
"""Of a vocabulary that is made from documents, unless another number is given."""

Mode = Literal["atomic", "unfold", "verify"]
Positions = Literal["unit", "token"]
KernelDtype = Literal["float32", "float16"]
Growth = Callable[[DynamicVocabulary, int], None]
"""Called before each choice with the vocabulary and the number of base tokens written."""


_OPTIONS_OF_VERSION_1 = {
    "draft": "drafts: True or False",
    "escape": "no_repeat_ngram_size, which works with and without phrases",
    "reuse": "prefix_cache",
    "weights": "dtype: 'float32' or 'float16'",
}


def _as_tuple(texts: object) -> object:
    if not isinstance(texts, list | tuple):
        raise ValueError("give a list of texts, such as ['\\n']")
    return tuple(texts)


Texts = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(_as_tuple, json_schema_input_type=list[str]),
]


def _greedy_if_tiny(temperature: float) -> float:
    # Logits divided by less than this leave the range of float32; the best token wins anyway.
    return temperature if temperature >= 0.001 else 0.0


class Profile(BaseModel):
    """The options that a model has defaults of its own for: how it is meant to decode."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    mode: Mode = "unfold"
    """`atomic` feeds a phrase as one vector (the paper); `unfold` as its tokens in one pass;
    `verify` is `unfold` with tolerance 0: the plain LM's own text."""
    tolerance: float = Field(default=0.9, ge=0.0, le=1.0)
    """`unfold` keeps a phrase's token while its probability is at least (1 - tolerance) times
    the best token's, and cuts the phrase there otherwise."""
    phrase_bias: float = Field(default=0.0, ge=-1000.0, le=1000.0)
    """Added to the logit of every phrase."""
    eagerness: float = Field(default=0.0, ge=-1000.0, le=1000.0)
    """Nats by which greedy decoding prefers phrases to tokens, and longer phrases to shorter ones,
    beyond their probabilities: a pass less is worth something. Sampling and likelihoods know
    nothing of it."""
    positions: Positions = "unit"
    """`unit`: one position per unit (the paper); `token`: a phrase sits at its last base token."""
    dtype: KernelDtype = "float32"
    """torch on a CPU: `float16` reads half-precision weights in passes over a few rows, where there
    are phrases; `verify` and plain text never do. For models whose weights were quantised."""

    @model_validator(mode="before")
    @classmethod
    def _read_names_of_version_1(cls, data: object) -> object:
        """Accept the profile of a checkpoint that univerb 0.1 wrote."""
        if not isinstance(data, Mapping) or cls is not Profile:
            return data
        renamed = {"weights": "dtype"}
        values = {"single": "float32", "half": "float16"}
        return {
            renamed.get(name, name): values.get(value, value) if name == "weights" else value
            for name, value in data.items()
        }


TRAINING_FREE = Profile(mode="unfold", tolerance=0.9)
"""Of LMs without an encoder."""


class GenerationConfig(Profile):
    """Everything that can be asked of a generation; what is left out is as the profile says."""

    model_config = ConfigDict(extra="forbid")

    max_tokens: int = Field(default=128, ge=1, le=1 << 20)
    """Budget in base tokens, whatever the units are."""
    temperature: Annotated[float, AfterValidator(_greedy_if_tiny)] = Field(
        default=0.0, ge=0.0, le=100.0
    )
    """0 is greedy, and so is anything below 0.001."""
    top_p: float = Field(default=1.0, ge=1e-6, le=1.0)
    """Sample from the smallest set whose probability reaches this: of tokens and phrases in
    `atomic`, of tokens otherwise."""
    top_k: int = Field(default=0, ge=0, le=1 << 30)
    """Sample from this number of the same; 0 keeps all."""
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100.0)
    """As in HF: above 1 makes what was written less likely; a phrase counts as its base tokens."""
    no_repeat_ngram_size: int = Field(default=0, ge=0, le=1 << 10)
    """As in HF: no n-gram of this many base tokens is written twice, also across phrases."""
    repeat_from: int = Field(default=0, ge=0, le=1 << 30)
    """Both leave out so many of the prompt's first tokens: passages are shown to be copied from."""
    seed: int = Field(default=0, ge=0, le=(1 << 63) - 1)
    """Of the random draws of each sequence."""
    stop: Texts = ()
    """Texts that end the generation; they may fall inside a phrase and never show."""
    ban: Texts = ()
    """Phrases that contain one of these texts are never chosen."""
    prefer: Texts = ()
    """Texts to write once where the LM does not mind them much, in `unfold` and `atomic`."""
    require: Texts = ()
    """Texts to write in any case: where they fit best, at the latest at the end of the budget."""
    overshoot: Literal["allow", "forbid"] = "forbid"
    """Whether a last phrase may run over the budget."""
    segment: bool = False
    """`atomic`: read the prompt with the phrases that it has as single vectors, too."""
    ignore_eos: bool = False
    """Go on to the budget where the LM would end."""
    truncate: Literal["left"] | None = None
    """Cut a prompt that is longer than the context from the left instead of refusing it."""
    growth: Growth | None = Field(default=None, exclude=True)
    """Adds, removes or expires phrases between steps."""
    explain: bool = False
    """Return the best candidates of each choice."""
    exact: bool | None = None
    """True scores every phrase, False only a short-list; by default it depends on their number (in
    the conditional form it is the short-list).
    `unfold` below tolerance 1 and `verify` lose nothing either way."""
    drafts: bool | None = None
    """`unfold` and `verify`: read tokens ahead, as documents and text go on, where that is expected
    to save time. By default where the text stays the same: not on llama.cpp, whose passes over
    several rows give other logits than those over one."""
    prefix_cache: bool = True
    """Take what the prompt shares with the last ones from their KV cache, where there are phrases:
    faster, and right but for the last bits."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (checked by pydantic)
        for old in _OPTIONS_OF_VERSION_1.keys() & options.keys():
            raise OptionError(f"{old} of univerb 0.1 is now {_OPTIONS_OF_VERSION_1[old]}.")
        check_names(options, type(self).model_fields, "there is no option {!r}.")
        # None is as good as not given: a flag that was not typed, a field that is null.
        values = {
            name: value.item() if isinstance(value, numpy.generic) else value
            for name, value in options.items()
            if value is not None
        }
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise OptionError(describe(error, type(self))) from None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if "mode" in self.model_fields_set and (problem := self._meaningless(self.mode, "mode is")):
            raise ValueError(problem)
        return self

    def _meaningless(self, mode: Mode, is_mode: str) -> str | None:
        """Say which option that was set has no meaning in a mode."""
        if self.segment and mode != "atomic":
            return (
                f"segment feeds phrases as single vectors, but {is_mode} {mode!r}. "
                "Leave it out, or use mode 'atomic'"
            )
        if mode == "verify" and self.tolerance and "tolerance" in self.model_fields_set:
            return (
                f"tolerance is {self.tolerance}, but {is_mode} 'verify', which is tolerance 0. "
                "Leave it out, or use mode 'unfold'"
            )
        return None

    @property
    def controls_repetition(self) -> bool:
        """Whether what was written makes anything less likely."""
        return self.no_repeat_ngram_size > 0 or self.repetition_penalty != 1.0

    def options(self) -> dict[str, Any]:
        """Return what was set, as keywords."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def replaced(self, options: Mapping[str, Any]) -> "GenerationConfig":
        """Return these options with others in their place; None leaves one as it is."""
        others = {name: value for name, value in options.items() if value is not None}
        mine = self.options()
        if others.get("mode") == "verify":
            mine.pop("tolerance", None)  # of another mode
        return GenerationConfig(**mine | others)

    def filled(self, options: Mapping[str, Any]) -> "GenerationConfig":
        """Return these options with others for what was left out."""
        return GenerationConfig(**{**options, **self.options()})

    def resolved(self, profile: Profile) -> "GenerationConfig":
        """Fill what was left out from a model's profile."""
        defaults = profile.model_dump(include=set(Profile.model_fields))
        values = {n: v for n, v in defaults.items() if n not in self.model_fields_set}
        mode = values.get("mode", self.mode)
        if problem := self._meaningless(mode, "the model's profile says"):
            raise OptionError(f"{problem}.")
        if "mode" in values and mode == "atomic" and "tolerance" in self.model_fields_set:
            raise OptionError(
                f"tolerance is {self.tolerance}, but the model's profile says 'atomic', which has "
                "none. Leave it out, or use mode 'unfold'."
            )
        if mode == "verify":
            values["tolerance"] = 0.0
        if mode != "atomic" and values.get("tolerance", self.tolerance) == 0.0:
            # The plain LM's own text is that of its own weights.
            values["dtype"] = "float32"
        if mode == "atomic" and profile.mode != "atomic":
            # The profile's biases belong to its way of decoding; feeding vectors is another one.
            values |= dict.fromkeys(values.keys() & {"phrase_bias", "eagerness"}, 0.0)
        return self.model_copy(update=values)


class GenerationOptions(TypedDict, total=False):
    """The fields of `GenerationConfig` as keywords, for type checkers; a test compares the two."""

    mode: Mode | None
    tolerance: float | None
    phrase_bias: float | None
    eagerness: float | None
    positions: Positions | None
    dtype: KernelDtype | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    repeat_from: int | None
    seed: int | None
    stop: list[str] | tuple[str, ...] | None
    ban: list[str] | tuple[str, ...] | None
    prefer: list[str] | tuple[str, ...] | None
    require: list[str] | tuple[str, ...] | None
    overshoot: Literal["allow", "forbid"] | None
    segment: bool | None
    ignore_eos: bool | None
    truncate: Literal["left"] | None
    growth: Growth | None
    explain: bool | None
    exact: bool | None
    drafts: bool | None
    prefix_cache: bool | None


EXPERT_OPTIONS = frozenset(
    {"positions", "dtype", "overshoot", "segment", "growth", "repeat_from"}
    | {"explain", "exact", "drafts", "prefix_cache"}
)
"""Options for work at the machine itself."""
REQUEST_OPTIONS = tuple(n for n in GenerationConfig.model_fields if n not in EXPERT_OPTIONS)
"""Options that every way in has: keywords, all verbs that write, requests of a batch."""


class EncoderConfig(BaseModel):
    """What a phrase encoder is made of."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    layers: int = Field(default=2, ge=1, le=256)
    """How many of the backbone's first layers it begins as; ignored with a body of its own."""
    heads: Literal["split", "tied"] = "split"
    """`tied`: one vector for input and output, as in the paper; `split`: one for each."""
    projector: Literal["linear", "act_linear", "mlp2"] = "act_linear"
    """The tied head's shape (docs/method.md, Phrase encoder)."""
    activation: Literal["relu", "tanh"] = "relu"
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    form: Literal["flat", "conditional"] = "flat"
    """`flat`: one softmax over V + P, as in the paper; `conditional`: a phrase has a share of its
    first token's probability (docs/method.md, Form of the choice). Needs split heads."""
    votes: bool = True
    """`conditional`: whether documents have a say in a phrase's first token; otherwise it is the
    LM's own."""
    bias: float = Field(default=-3.0, ge=-100.0, le=100.0)
    """Where the bias of phrases starts, in the conditional form against stopping: low, so that a
    fresh head does not flood the softmax."""
    count_correction: bool = False
    """Subtract log n, where n counts the active phrases that share a first token."""
    trained_steps: int = Field(default=0, ge=0)
    """0 means untrained; the command line says so."""

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if self.form == "conditional" and self.heads != "split":
            raise ValueError("form is 'conditional', which needs heads 'split'")
        return self

    def identity(self) -> str:
        """Return what phrase vectors depend on; that of an older encoder is what it was."""
        later = {"form", "votes"} if self.form == "flat" else None
        return self.model_dump_json(exclude=later)


class Lora(BaseModel):
    """A low-rank adapter of the backbone, as in the paper's TinyLlama setting."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(default=8, ge=1, le=1024)
    alpha: int = Field(default=32, ge=1, le=4096)
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    targets: str | tuple[str, ...] = "all-linear"
    encoder: bool = True
    """Train the encoder, too; otherwise the adapter alone, for an encoder that stays as it is."""


def check_names(names: Mapping[str, Any], allowed: Mapping[str, Any], message: str) -> None:
    """Refuse a name that is not allowed, naming the nearest that is."""
    for name in names:
        if name not in allowed:
            raise OptionError(f"{message.format(name[:80])} {did_you_mean(name[:80], allowed)}")


def _number(limit: float) -> str:
    """Write a limit as people do: 1,048,576 and 0.000001, never 1.04858e+06."""
    text = f"{limit:,f}".rstrip("0").rstrip(".")
    return f"{limit:,}" if isinstance(limit, int) else text


def first_problem(error: ValidationError) -> str:
    """Say where the first problem with a file's content is, and what it is."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    reason = first.get("ctx", {}).get("error") or first["msg"]
    return f"{where}: {reason}" if where else str(reason)


def describe(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """Say what is wrong with the first bad field: what was given and what is allowed.

    Args:
        error: What pydantic raised.
        model: The model that was validated.
        prefix: Put before the field's name, such as "body.".

    Returns:
        One sentence or two, with a full stop.
    """
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        return f"{first['ctx']['error']}."
    name = str(first["loc"][0])
    field, given = model.model_fields.get(name), shown(first["input"])
    if first["type"] == "missing":
        return f"{prefix}{name} is missing. Add it."
    if first["type"] == "literal_error":
        return f"{prefix}{name} is {given}. Allowed: {first['ctx']['expected']}."
    limits = {type(m).__name__: m for m in field.metadata} if field else {}
    if "Ge" in limits:
        is_whole = field and int in (field.annotation, *get_args(field.annotation))
        extent = f"of at least {_number(limits['Ge'].ge)}"
        if "Le" in limits:
            extent = f"between {_number(limits['Ge'].ge)} and {_number(limits['Le'].le)}"
        elif "Lt" in limits:
            extent += f" and below {_number(limits['Lt'].lt)}"
        kind = "whole number" if is_whole else "number"
        return f"{prefix}{name} is {given}; it must be a {kind} {extent}."
    reason = first.get("ctx", {}).get("error") or first["msg"]
    return f"{prefix}{name} is {given}: {str(reason).rstrip('.')}."
