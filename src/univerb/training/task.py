"""What a regime gives the trainer, and the trainer gives a regime."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one micro-batch on this process."""

    total: Tensor
    """This process's share: summed over processes it is the loss of the whole micro-batch."""
    terms: dict[str, float] = field(default_factory=dict)
    """What to show, such as phrase, token, kl, phrase_accuracy: also shares, to be summed."""
    rows: int = 0
    """Positions that this process scored."""


class Task(Protocol):
    """A regime: what is trained, on what, with which loss.

    A task does not know about steps, schedules, processes' gradients or files. Everything random in
    it is drawn from (seed, index), so that a run can stop and go on anywhere.
    """

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What is trained, by name; parameters without requires_grad stay as they are."""
        ...

    def loss(self, index: int) -> Loss:
        """Compute the loss of micro-batch `index`, counted from the start of the run.

        All processes are given the same index and share its work.
        """
        ...

    def memory(self) -> dict[str, Tensor]:
        """Return what else is carried from step to step, such as pre-batch vectors."""
        ...

    def remember(self, memory: dict[str, Tensor]) -> None:
        """Take back what `memory` returned."""
        ...

    def validate(self) -> dict[str, float]:
        """Measure on held-out text; `score` is the one to make small."""
        ...

    def export(self, folder: Path, step: int) -> None:
        """Write what users load: the encoder, and an adapter where there is one."""
        ...
