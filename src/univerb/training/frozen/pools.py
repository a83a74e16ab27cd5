"""The pool of a frozen step: phrases of this step and, as they were then, of earlier ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from univerb.training.frozen.windows import Windows


@dataclass(frozen=True, slots=True)
class LivePool:
    """The phrases that a step encodes, each key once."""

    keys: Tensor
    """(K,) hashes."""
    first: Tensor
    """(K,) first tokens."""
    second: Tensor
    """(K,) second tokens."""
    last: Tensor
    """(K,) last tokens."""
    window: Tensor
    """(K,) the encoded window in which each is found."""
    column: Tensor
    """(K,) the column of its last token."""
    owners: Tensor
    """(K,) how many of the windows bring it."""

    @classmethod
    def of(cls, own: Windows, taken: Tensor) -> "LivePool":
        """Collect the phrases of windows.

        Args:
            own: The windows that are encoded.
            taken: (W, L) which of their prefixes are phrases of the pool.

        Returns:
            The pool.
        """
        window, column = taken.nonzero(as_tuple=True)
        keys, inverse, owners = torch.unique(
            own.keys[window, column], return_inverse=True, return_counts=True
        )
        # Equal keys have equal vectors: the first that brings one will do.
        place = torch.full((len(keys),), len(inverse)).scatter_reduce(
            0, inverse, torch.arange(len(inverse)), "amin"
        )
        window, column = window[place], column[place]
        begin = own.ids[window]
        return cls(keys, begin[:, 0], begin[:, 1], own.ids[window, column], window, column, owners)


@dataclass(frozen=True, slots=True)
class Bank:
    """Phrases that stay in the pool without gradients (pre-batch), each key once."""

    keys: Tensor
    first: Tensor
    outputs: Tensor
    """(K, d), in half precision."""

    @classmethod
    def empty(cls, width: int) -> "Bank":
        """Return a bank without phrases."""
        none = torch.empty(0, dtype=torch.long)
        return cls(none, none.clone(), torch.empty(0, width, dtype=torch.float16))

    def pushed(self, pool: LivePool, outputs: Tensor, size: int) -> "Bank":
        """Return the bank with newer phrases before the older ones, cut to a size."""
        old = ~torch.isin(self.keys, pool.keys)
        return Bank(
            torch.cat([pool.keys, self.keys[old]])[:size].contiguous(),
            torch.cat([pool.first, self.first[old]])[:size].contiguous(),
            torch.cat([outputs.detach().half(), self.outputs[old]])[:size].contiguous(),
        )


@dataclass(frozen=True, slots=True)
class Candidates:
    """All phrases that the rows of a step choose from."""

    keys: Tensor
    first: Tensor
    owners: Tensor
    """(K,) how many windows of this step bring each; those of the bank need none."""
    live: Tensor
    """(K', d) vectors of the first K', which have gradients."""
    old: Tensor
    """(K - K', d)"""

    @classmethod
    def joined(cls, pool: LivePool, outputs: Tensor, bank: Bank) -> "Candidates":
        """Put a step's phrases before those of the bank that it does not have."""
        other = ~torch.isin(bank.keys, pool.keys)
        # A phrase that was in the bank before is not its window's alone.
        owners = pool.owners + torch.isin(pool.keys, bank.keys)
        return cls(
            torch.cat([pool.keys, bank.keys[other]]),
            torch.cat([pool.first, bank.first[other]]),
            torch.cat([owners, torch.full((int(other.sum()),), 2)]),
            outputs,
            bank.outputs[other].to(outputs.dtype),
        )

    def scores(self, hidden: Tensor, bias: Tensor, static_size: int, corrected: bool) -> Tensor:
        """Score every phrase against states (R, d), as a phrase table does when decoding.

        Args:
            hidden: The LM's states.
            bias: The heads'.
            static_size: |V|.
            corrected: Subtract log n, where n counts the phrases that share a first token.

        Returns:
            Logits (R, K).
        """
        logits = torch.cat([hidden @ self.live.T, hidden @ self.old.T], dim=1) + bias
        if corrected:
            counts = torch.bincount(self.first, minlength=static_size)
            logits = logits - counts[self.first].log()
        return logits

    def find(self, keys: Tensor) -> Tensor:
        """Return the place of each key, or -1."""
        if not len(self.keys):
            return torch.full_like(keys, -1)
        ordered, order = self.keys.sort()
        place = torch.searchsorted(ordered, keys).clamp(max=len(ordered) - 1)
        return torch.where(ordered[place] == keys, order[place], -1)
