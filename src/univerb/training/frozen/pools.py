"""The pool of a frozen step: its own phrases and, as they were encoded then, earlier ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from univerb.modeling.dynamic import DynamicLM
from univerb.training.config import NegativeConfig
from univerb.training.frozen.windows import Windows


def pool_mask(windows: Windows, length: Tensor, negatives: NegativeConfig) -> Tensor:
    """Select the prefixes of windows that join the pool.

    Args:
        windows: Those whose continuation is encoded.
        length: (W,) tokens of the gold phrase of each.
        negatives: The kinds in use.

    Returns:
        (W, L): the gold phrases, their prefixes and their extensions, as configured.
    """
    size = torch.arange(1, windows.ids.shape[1] + 1)
    mask = size == length[:, None]
    if "prefixes" in negatives.kinds:
        mask |= size < length[:, None]
    if "self-retrieval" in negatives.kinds:
        mask |= (size > length[:, None]) & (size <= length[:, None] + negatives.extensions)
    return mask & windows.is_phrase


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
    """(K,) the encoded window that has each."""
    column: Tensor
    """(K,) the column of its last token."""
    owners: Tensor
    """(K,) number of windows that bring it."""

    @classmethod
    def of(cls, windows: Windows, mask: Tensor) -> "LivePool":
        """Collect the phrases of encoded windows that a mask (W, L) selects."""
        window, column = mask.nonzero(as_tuple=True)
        keys, inverse, owners = torch.unique(
            windows.keys[window, column], return_inverse=True, return_counts=True
        )
        # Equal keys have equal vectors: the first window that brings one will do.
        index = torch.full((len(keys),), len(inverse)).scatter_reduce(
            0, inverse, torch.arange(len(inverse)), "amin"
        )
        window, column = window[index], column[index]
        ids = windows.ids[window]
        last = windows.ids[window, column]
        return cls(keys, ids[:, 0], ids[:, 1], last, window, column, owners)


@dataclass(frozen=True, slots=True)
class Bank:
    """Phrases of earlier steps, without gradients (pre-batch), each key once."""

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
        """Return the bank with newer phrases before the older ones, truncated to `size`."""
        old = ~torch.isin(self.keys, pool.keys)
        return Bank(
            torch.cat([pool.keys, self.keys[old]])[:size].contiguous(),
            torch.cat([pool.first, self.first[old]])[:size].contiguous(),
            torch.cat([outputs.detach().half(), self.outputs[old]])[:size].contiguous(),
        )


@dataclass(frozen=True, slots=True)
class Candidates:
    """All phrases among which the rows of a step choose."""

    keys: Tensor
    first: Tensor
    owners: Tensor
    """(K,) number of windows of this step that bring each; 2 for those of the bank."""
    live: Tensor
    """(K', d) vectors of the first K', which have gradients."""
    old: Tensor
    """(K - K', d)"""

    @classmethod
    def joined(cls, pool: LivePool, outputs: Tensor, bank: Bank) -> "Candidates":
        """Put a step's phrases before those of the bank that it does not have."""
        other = ~torch.isin(bank.keys, pool.keys)
        # A phrase that was in the bank before does not belong to its window alone.
        owners = pool.owners + torch.isin(pool.keys, bank.keys)
        return cls(
            torch.cat([pool.keys, bank.keys[other]]),
            torch.cat([pool.first, bank.first[other]]),
            torch.cat([owners, torch.full((int(other.sum()),), 2)]),
            outputs,
            bank.outputs[other].to(outputs.dtype),
        )

    def logits(self, lm: DynamicLM, hidden: Tensor) -> Tensor:
        """Score every phrase against states (R, d) of the LM, as a phrase table does: (R, K)."""
        logits = torch.cat([hidden @ self.live.T, hidden @ self.old.T], dim=1)
        logits = logits + lm.encoder.heads.bias
        if lm.encoder.config.count_correction:
            counts = torch.bincount(self.first, minlength=lm.static_size)
            logits = logits - counts[self.first].log()
        return logits

    def index_of(self, keys: Tensor) -> Tensor:
        """Return the index of each key, or -1."""
        if not len(self.keys):
            return torch.full_like(keys, -1)
        ordered, order = self.keys.sort()
        index = torch.searchsorted(ordered, keys).clamp(max=len(ordered) - 1)
        return torch.where(ordered[index] == keys, order[index], -1)
