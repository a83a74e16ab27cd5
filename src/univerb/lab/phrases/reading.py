"""One pass of the bare LM over a document, and its logits had the text gone on otherwise."""

from collections.abc import Sequence

import torch
from torch import Tensor

from univerb.modeling.branches import Branch, Branches
from univerb.modeling.dynamic import DynamicLM


class Reading:
    """The LM's states and logits along the truth, after its context."""

    @torch.inference_mode()
    def __init__(self, lm: DynamicLM, context: Sequence[int], truth: Sequence[int]) -> None:
        self._lm = lm
        self._offset = len(context)
        self._text = Branches(lm, [*context, *truth])
        self.truth = list(truth)
        self.states: Tensor = self._text.hidden[self._offset - 1 :]
        """(T + 1, d): row t is the state that predicts token t of the truth, or what follows."""
        self.logits: Tensor = lm.embeddings.output(self.states).float()
        """(T + 1, V)."""

    @torch.inference_mode()
    def follow(self, branches: Sequence[Branch]) -> list[Tensor]:
        """Read branches whose positions are counted in tokens of the truth.

        Args:
            branches: What to read.

        Returns:
            For each branch the logits after each of its rows, (R, V).
        """
        moved = [branch._replace(position=self._offset + branch.position) for branch in branches]
        logits: Tensor = self._lm.embeddings.output(self._text.read(moved)).float()
        return list(torch.split(logits, [len(branch.rows) for branch in branches]))

    def rows(self, ids: Sequence[int]) -> Tensor:
        """Return the input vectors of tokens, (N, d)."""
        tokens = torch.tensor(list(ids), dtype=torch.long, device=self.states.device)
        vectors: Tensor = self._lm.embeddings.input(tokens)
        return vectors

    def greedy_runs(self) -> list[int]:
        """Return the number of tokens that greedy decoding gets right from each position on.

        As long as it is right it has read the truth itself, so the one pass tells.
        """
        best = self.logits[:-1].argmax(-1).tolist()
        runs = [0] * (len(self.truth) + 1)
        for start in range(len(self.truth) - 1, -1, -1):
            runs[start] = runs[start + 1] + 1 if best[start] == self.truth[start] else 0
        return runs
