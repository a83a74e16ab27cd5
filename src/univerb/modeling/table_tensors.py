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

        In the conditional form the sum of all exponentials stays what it was: a first token keeps
        what its phrases leave. Gradients then reach the LM through its own logits only.

        Args:
            logits: The LM's own (..., V).
            hidden: The states that they come from (..., d).
            before: For the conditional form, the base tokens that each state has read, or the last
                few of them, row by row; None if they are not known: a phrase then gains nothing
                where the text is in the middle of a longer one.

        Returns:
            The logits (..., V + P); -inf for phrases that are not active.
        """
        if self.conditional is None:
            return torch.cat([logits, hidden @ self.outputs.T + self.bias], dim=-1)
        phrases, shape = self.conditional, logits.shape[:-1]
        states = hidden.detach().reshape(-1, hidden.shape[-1]).float().cpu().numpy()
        of_phrases, stops = (
            torch.from_numpy(share).to(logits).reshape(*shape, -1)
            for share in phrases.log_probs(states, before)
        )
        units = torch.cat([logits, logits.new_full((*shape, len(self.bias)), -torch.inf)], dim=-1)
        units[..., logits.shape[-1] + phrases.indices] = (
            logits[..., phrases.phrase_tokens] + of_phrases
        )
        units[..., phrases.first_tokens] += stops
        return units
