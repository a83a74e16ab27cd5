"""The phrase table as torch has it, and the logits over V + P in either form of the choice."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from univerb.modeling.conditional_table import ConditionalTable


class TableTensors(NamedTuple):
    """The phrase table on the LM's device and in its dtype; row i is phrase id |V| + i."""

    inputs: Tensor
    """(P, d), fed when a phrase is read."""
    outputs: Tensor
    """(P, d), scored against the LM's hidden state."""
    bias: Tensor
    """(P,), added to the scores; -inf for phrases that are not active."""
    conditional: ConditionalTable | None = None
    """The same in the conditional form of the choice; None in the flat form."""

    def unit_logits(
        self, logits: Tensor, hidden: Tensor, before: Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        """Append the phrases' logits to the LM's own.

        In the conditional form the sum of all exponentials stays what it was, and there are no
        gradients.

        Args:
            logits: The LM's own (..., V).
            hidden: The states that they come from (..., d).
            before: For the conditional form, the base tokens that each state has read, or the last
                few of them, row by row; None if they are not known: nothing then gains by being
                the rest of a phrase.

        Returns:
            The logits (..., V + P); -inf for phrases that are not active.
        """
        if self.conditional is None:
            return torch.cat([logits, hidden @ self.outputs.T + self.bias], dim=-1)
        own, states = (
            given.detach().reshape(-1, given.shape[-1]).float().cpu().numpy()
            for given in (logits, hidden)
        )
        units = torch.from_numpy(self.conditional.unit_logits(own, states, before))
        return units.to(logits).reshape(*logits.shape[:-1], -1)
