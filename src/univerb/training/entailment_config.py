"""The settings of a cross-encoder that judges entailment: one YAML file."""

from pathlib import Path

import yaml
from pydantic import Field, ValidationError

from univerb.errors import OptionError
from univerb.training.config import Data, Optimiser, Run, Section, TrainingConfig


class Pairs(Section):
    """What is read: SNLI for the notion, WiCE and ExpertQA for premises as long as passages."""

    folder: str
    """The one with snli_train.tsv.gz and the others, relative to where univerb is started."""
    limit: int | None = Field(default=None, ge=1)
    """Read only so many pairs of SNLI."""
    validation: int = Field(default=1000, ge=1)
    """SNLI's last pairs, kept out of training."""
    held_out: int = Field(default=5, ge=2)
    """One in so many claims (WiCE) and questions (ExpertQA) is kept out of training, too: the
    threshold is chosen there."""
    documents: int = Field(default=500, ge=0)
    """Pairs that an epoch has of each of them and of each answer: yes must not be what one corpus
    says more often than the other."""
    max_length: int = Field(default=384, ge=32, le=4096)
    """Tokens of a pair: a chunk of WiCE with its claim has about 370."""
    sorted_batches: int = Field(default=32, ge=1)
    """So many batches are sorted by length together, so that little is padding."""


class EntailmentConfig(Section):
    """A whole run."""

    name: str = Field(default="minilm-l6-nli", min_length=1)
    """What reports call the scorer."""
    base: str | None = None
    """A folder with the model to begin with; None for all-MiniLM-L6-v2 of the PyPI package."""
    data: Pairs
    optimiser: Optimiser = Optimiser()
    run: Run

    def for_trainer(self) -> TrainingConfig:
        """Return the part that the training loop knows."""
        # The pairs are the task's: it tells the loop whether they have changed.
        return TrainingConfig(data=Data(documents=()), optimiser=self.optimiser, run=self.run)


def read_entailment_config(path: Path) -> EntailmentConfig:
    """Read a run's settings.

    Args:
        path: A YAML file.

    Returns:
        The settings.

    Raises:
        OptionError: If it cannot be read, or a value is unknown or out of range.
    """
    try:
        return EntailmentConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        reason = f"{where}: {first['msg']} (given: {str(first['input'])[:80]})"
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
    raise OptionError(
        f"{str(path)!r} holds no settings: {reason}. See configs/default/entailment.yaml."
    )
