"""The settings of a training run: one YAML file, every value with the range it may take."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from univerb.config import EncoderConfig, Lora, Positions, first_problem
from univerb.documents.wikitext import WikiTextForm
from univerb.errors import OptionError
from univerb.locations import DEFAULT_MODEL

Negative = Literal[
    "in-batch", "pre-batch", "prefixes", "self-retrieval", "corpus-retrieval", "generation"
]
Sizes = Annotated[tuple[int, int], Field(min_length=2, max_length=2)]


class Section(BaseModel):
    """A part of the file; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataConfig(Section):
    """The text."""

    documents: tuple[str, ...]
    """Files or folders, relative to the folder that univerb is started in."""
    validation: tuple[str, ...] = ()
    validation_skip: int = Field(default=0, ge=0)
    """Documents of the validation text that are left for a report: the first ones."""
    text: WikiTextForm = "raw"
    """The form of WikiText's files (`.tokens`), whose articles are documents: as it is, with CoG's
    replacements, or de-tokenised."""
    block: int = Field(default=256, ge=8, le=1 << 20)
    """Tokens of a passage, at most; none crosses a document's end."""
    limit: int | None = Field(default=None, ge=1)
    """Number of documents to read; None for all."""
    passages: int = Field(default=32, ge=1)
    """Number of passages of the validation text that the score is computed on."""


class SampleConfig(Section):
    """How phrases are put into a passage (docs/method.md, Training samples)."""

    kind: Literal["n-words", "n-ids", "fmm"] = "n-words"
    sizes: Sizes = Field(
        default_factory=lambda data: (2, 16) if data.get("kind") == "fmm" else (2, 5)
    )
    """Shortest and longest phrase: words for n-words and fmm, tokens for n-ids. By default as in
    the paper: 2 to 5, and for fmm, as in CoG, 2 to 16."""
    gap: Sizes = (5, 12)
    """Tokens between two phrases, drawn evenly; at least 5 in the paper. (0, 0) is dense."""
    min_count: int = Field(default=5, ge=1)
    """fmm: fewest occurrences of a phrase in the training text."""
    positions: Positions = "unit"
    """Position of a phrase fed as one vector: units are counted, as in the paper, or it is that of
    its last token. Decoding must do the same."""


class NegativeConfig(Section):
    """What gold phrases are contrasted with (docs/method.md, Negatives)."""

    kinds: tuple[Negative, ...] = ("in-batch", "prefixes", "self-retrieval", "generation")
    extensions: int = Field(default=2, ge=0, le=16)
    """k: tokens that follow a phrase in its extensions."""
    max_row: int = Field(default=12, ge=2, le=64)
    """Tokens of an encoder row, at most."""
    depth: int = Field(default=1, ge=1, le=1024)
    """pre-batch: number of earlier batches."""
    mask_true: bool = False
    """Mask pool phrases where the text really continues with them although a token is the label."""


class LossConfig(Section):
    """L = phrase L_p + token L_t + kl L_kl (docs/method.md, Losses)."""

    phrase: float = Field(default=1.0, ge=0.0, le=1000.0)
    token: float = Field(default=1.0, ge=0.0, le=1000.0)
    kl: float = Field(default=1.0, ge=0.0, le=1000.0)
    alignment: Literal["context", "target"] = "context"
    support: Literal["V", "V+P"] = "V"
    detach: Literal["none", "static"] = "none"
    """static: no gradient through the plain pass of L_kl."""
    teacher: Literal["self", "bare"] = "self"
    """bare: L_kl compares with the LM as it was before training (lora: without the adapter)."""
    chunk: int = Field(default=256, ge=1)
    """Positions whose |V| logits are in memory at a time; does not change the result."""


class FrozenConfig(Section):
    """Passages with the candidates of run time (docs/method.md, Frozen regime)."""

    corpus: str | None = None
    """A corpus (`univerb index`) that candidates are retrieved from; by default an index of the
    training documents is made at every start."""
    chunks: int = Field(default=32, ge=0, le=1024)
    """Chunks of other documents that are retrieved for a passage, by its first tokens."""
    first: int = Field(default=128, ge=8)
    """Tokens of a passage that are only read: they retrieve, and bring the first candidates."""
    context_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of passages before which the best chunks stand."""
    context_chunks: int = Field(default=2, ge=0, le=64)
    """How many chunks these are."""
    sizes: Sizes = (2, 8)
    """Shortest and longest phrase, in tokens."""
    max_options: int | None = Field(default=64, ge=1)
    """Phrases among which one choice is made: so many of the most frequent and a sample of as many
    others. null for all."""
    max_votes: int | None = Field(default=64, ge=1)
    """First tokens of phrases that documents vote on: so many of the most frequent and a sample of
    as many others. null for all."""
    unit_price: float = Field(default=1.0, ge=0.0, le=100.0)
    """Nats that a unit less is worth: 0 is the marginal likelihood, which hardly fires."""
    teacher: float = Field(default=0.5, ge=0.0, le=1000.0)
    """Weight of the distillation of the LM's choice among phrases that begin as the text does."""
    states: Literal["float32", "bfloat16"] = "float32"
    """Precision in which the LM reads the text: bfloat16 is faster where the CPU has it."""
    cache: str | None = None
    """Folder of the states; by default in univerb's cache folder."""
    keep_groups: int | None = Field(default=None, ge=1)
    """Groups of 16 passages whose states stay on the disk behind the one in use; null for all.
    Enough for all steps since the last checkpoint, or a run resumes with other bits."""
    input_every: int = Field(default=2, ge=0)
    """Steps from one training of the input head to the next; 0 for never."""
    input_phrases: int = Field(default=96, ge=1)
    """Phrases that are fed as one vector at such a step."""
    input_context: int = Field(default=256, ge=8)
    """Tokens of text before them, at most."""
    input_weight: float = Field(default=1.0, ge=0.0, le=1000.0)


class OptimiserConfig(Section):
    """AdamW with a linear schedule (docs/method.md, Optimisation)."""

    rate: float = Field(default=5e-5, gt=0.0, le=1.0)
    small_scale: float = Field(default=1.0, gt=0.0, le=1000.0)
    """How many times faster parameters of a few numbers learn, such as biases and the weights of
    counts: Adam moves each number by about the rate, and these have to move by whole nats."""
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0)
    warmup: float = Field(default=0.01, ge=0.0, lt=1.0)
    """Share of the steps in which the rate rises."""
    clip: float = Field(default=1.0, gt=0.0)


class RunConfig(Section):
    """Length, batches, checkpoints and hardware."""

    steps: int = Field(ge=1)
    batch: int = Field(default=4, ge=1)
    """Passages of a micro-batch, over all processes."""
    accumulate: int = Field(default=2, ge=1)
    seed: int = Field(default=0, ge=0)
    save_every: int = Field(default=500, ge=1)
    keep: int = Field(default=2, ge=1)
    """Number of checkpoints that stay."""
    validate_every: int = Field(default=500, ge=1)
    patience: int | None = Field(default=None, ge=1)
    """Stop after this number of validations without a better score."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How several processes share the parameters."""
    tensorboard: bool = False


class TrainingConfig(Section):
    """A whole run."""

    model: str = DEFAULT_MODEL
    """The backbone: a folder, a Hub id or the default."""
    encoder_from: str | None = None
    """Another model as the encoder's body, or a folder with an encoder that univerb saved, which is
    trained further; None for the backbone's first layers."""
    regime: Literal["full", "lora", "frozen"] = "frozen"
    encoder: EncoderConfig = EncoderConfig()
    data: DataConfig
    samples: SampleConfig = SampleConfig()
    negatives: NegativeConfig = NegativeConfig()
    losses: LossConfig = LossConfig()
    lora: Lora = Lora()
    frozen: FrozenConfig = FrozenConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    run: RunConfig

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        for name, sizes in (("samples", self.samples.sizes), ("frozen", self.frozen.sizes)):
            if not 2 <= sizes[0] <= sizes[1] <= 64:
                raise ValueError(f"{name}.sizes is {sizes}; give 2 <= shortest <= longest <= 64")
        low, high = self.samples.gap
        if not 0 <= low <= high:
            raise ValueError(f"samples.gap is {self.samples.gap}; give 0 <= least <= most")
        if "corpus-retrieval" in self.negatives.kinds and self.samples.kind != "fmm":
            raise ValueError("negatives.kinds has corpus-retrieval, which needs samples.kind: fmm")
        return self


def read_config(path: Path, changes: Sequence[str] = ()) -> TrainingConfig:
    """Read a run's settings; OptionError if a key is unknown or a value is out of range.

    `changes` are values in the place of the file's, such as "frozen.unit_price=0".
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise OptionError(f"{str(path)!r} is no readable YAML file: {reason}") from error
    for change in changes:
        _put(raw, change)
    try:
        return TrainingConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        given = f" (given: {str(first['input'])[:80]})" if first["loc"] else ""
        raise OptionError(
            f"{str(path)!r}: {first_problem(error)}{given}. See docs/training.md for every key."
        ) from error


def _put(settings: object, change: str) -> None:
    """Put a value, as YAML has it, in the place of a setting."""
    key, equals, text = change.partition("=")
    *sections, name = key.split(".")
    for section in sections:
        settings = settings.setdefault(section, {}) if isinstance(settings, dict) else None
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise OptionError(f"{change!r}: {text!r} is no value that YAML has.") from error
    if not equals or not isinstance(settings, dict):
        raise OptionError(f"{change!r} changes no setting. Give SECTION.KEY=VALUE.")
    settings[name] = value
