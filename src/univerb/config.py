"""The settings that are saved beside weights, each with the range it may take."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Mode = Literal["atomic", "unfold", "verify"]
Positions = Literal["unit", "token"]
Weights = Literal["single", "half"]


class Profile(BaseModel):
    """How a model is meant to decode when nobody says otherwise."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    mode: Mode = "unfold"
    """`atomic` feeds a phrase as one vector, `unfold` as its tokens in one pass."""
    tolerance: float = Field(default=0.9, ge=0.0, le=1.0)
    """`unfold` keeps a token whose probability is at least (1 - tolerance) of the best one's."""
    phrase_bias: float = Field(default=0.0, ge=-100.0, le=100.0)
    """Added to the logit of every phrase in `unfold` and `verify`."""
    draft: float = Field(default=0.0, ge=-100.0, le=100.0)
    """Added to a phrase's logit where it only guesses how a chosen token goes on."""
    escape: int = Field(default=0, ge=0, le=1 << 20)
    """A phrase leads out where so many tokens come for the third time, or twice as many for the
    second; 0: never."""
    positions: Positions = "unit"
    """`atomic`: a phrase takes one place, or the places of all its tokens."""
    weights: Weights = "single"
    """torch on a CPU, with phrases, not in `verify`: `half` keeps the weights for passes over a few
    rows in half precision, which takes half the time. For models whose weights were quantised."""


class EncoderConfig(BaseModel):
    """What a phrase encoder is made of."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    layers: int = Field(default=2, ge=1, le=256)
    """How many of the backbone's first layers it begins as; ignored with a body of its own."""
    heads: Literal["split", "tied"] = "split"
    """`tied`: one vector for input and output, as in the paper; `split`: one for each."""
    projector: Literal["linear", "act_linear", "mlp2"] = "act_linear"
    """The tied head's shape (METHOD A.2)."""
    activation: Literal["relu", "tanh"] = "relu"
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    bias: float = Field(default=-3.0, ge=-100.0, le=100.0)
    """Where the split head's bias starts: low, so that a fresh head does not flood the softmax."""
    count_correction: bool = False
    """Subtract log n, where n counts the active phrases that share a first token."""
    trained_steps: int = Field(default=0, ge=0)
    """0 means untrained; the command line says so."""


class Lora(BaseModel):
    """A low-rank adapter of the backbone, as in the paper's TinyLlama setting."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(default=8, ge=1, le=1024)
    alpha: int = Field(default=32, ge=1, le=4096)
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    targets: str | tuple[str, ...] = "all-linear"
    encoder: bool = True
    """Train the encoder, too; otherwise the adapter alone, for an encoder that stays as it is."""
