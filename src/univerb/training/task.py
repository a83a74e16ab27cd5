"""What a regime gives the trainer: modules, a loss per micro-batch, validation and export."""

from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor, nn


class TaskLoss(NamedTuple):
    """The loss of one micro-batch on this process: a tuple, in which DDP and FSDP find tensors."""

    total: Tensor
    """This process's share: summed over processes it is the loss of the whole micro-batch."""
    terms: dict[str, float]
    """Metrics to log, such as phrase, token, kl, phrase_accuracy: also shares, to be summed."""
    rows: int
    """Positions that this process scored."""


class Task(Protocol):
    """A regime: what is trained, on what, with which loss.

    A task does not know about steps, schedules, gradients of other processes or files. What it
    draws itself follows from (seed, index); the trainer seeds torch's generators, from which
    dropout draws, before each micro-batch. So a run can stop and resume anywhere.
    """

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What is trained, by name; parameters without requires_grad stay as they are."""
        ...

    def loss(self, index: int) -> TaskLoss:
        """Compute the loss of micro-batch `index`, counted from the start of the run.

        All processes are called with the same index and share its work.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return what else is carried from step to step, such as pre-batch vectors."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        ...

    def validate(self) -> dict[str, float]:
        """Measure on held-out text; `score` is to be minimised."""
        ...

    def export(self, folder: Path, step: int) -> None:
        """Write what users load: the encoder, and an adapter or a trained LM beside it.

        `folder` is in that of the run, after which an LM that was trained is named.
        """
        ...
