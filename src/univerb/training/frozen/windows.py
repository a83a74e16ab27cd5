"""Every place of a text where a phrase may begin, with all phrases that begin there."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from univerb.tokenizer import Tokenizer
from univerb.training.frozen.states import Marked, States

# An odd factor makes multiplication modulo 2**64 a bijection; its bits are well mixed.
_FACTOR = -7046029254386353131


class Letters(NamedTuple):
    """What the tokens of V are made of."""

    has_letter: Tensor
    has_digit: Tensor


def letters(tokenizer: Tokenizer, static_size: int) -> Letters:
    """Look up which tokens have letters and which have digits."""
    texts = tokenizer.decode_all([[token] for token in range(static_size)])
    digits = [any(character.isdigit() for character in text) for text in texts]
    words = [any(c.isalnum() and not c.isdigit() for c in text) for text in texts]
    return Letters(torch.tensor(words), torch.tensor(digits))


@dataclass(frozen=True, slots=True)
class Windows:
    """Word starts (S,) and what follows them, up to L tokens."""

    at: Tensor
    """(S,) the place before each: its state is the row that chooses what comes."""
    ids: Tensor
    """(S, L) the tokens that follow; 0 where the passage ends."""
    allowed: Tensor
    """(S, L) whether the first so many tokens, less one, are a phrase."""
    keys: Tensor
    """(S, L) a hash of these tokens."""
    cost: Tensor
    """(S, L) the LM's own log-probability of writing them token by token; 0 if it did not."""

    def __len__(self) -> int:
        return len(self.at)

    def cut(self, width: int) -> "Windows":
        """Return the windows with so many tokens, without those that then have no phrase."""
        whole = (self.ids, self.allowed, self.keys, self.cost)
        shorter = Windows(self.at, *(column[:, :width] for column in whole))
        return shorter[shorter.allowed.any(1)]

    def __getitem__(self, chosen: Tensor | slice) -> "Windows":
        return Windows(
            self.at[chosen],
            self.ids[chosen],
            self.allowed[chosen],
            self.keys[chosen],
            self.cost[chosen],
        )


def windows(text: Marked, sizes: tuple[int, int], known: Letters) -> Windows:
    """Find the word starts of some passages.

    Args:
        text: The passages.
        sizes: Shortest and longest phrase, in tokens.
        known: What tokens are made of: bare numbers are no phrases.

    Returns:
        The word starts at which at least one phrase begins.
    """
    low, high = sizes
    count = len(text.ids)
    first = torch.arange(1, count)
    first = first[text.may_start[1:] & (text.passage[1:] == text.passage[:-1])]
    place = first[:, None] + torch.arange(high)
    inside = (place < count) & (
        text.passage[place.clamp(max=count - 1)] == text.passage[first][:, None]
    )
    place = place.clamp(max=count - 1)
    ids = torch.where(inside, text.ids[place].long(), 0)
    fits = (inside & ~text.is_barred[place]).cumprod(1).bool()
    is_number = ~known.has_letter[ids].cumsum(1).bool() & known.has_digit[ids].cumsum(1).bool()
    allowed = fits & text.may_end[place] & ~is_number
    allowed[:, : low - 1] = False
    keys = torch.zeros_like(ids)
    key = torch.full((len(ids),), 1, dtype=torch.long)
    for column in range(high):
        key = (key + ids[:, column] + 1) * _FACTOR
        key = key ^ (key >> 29)
        keys[:, column] = key
    # The LM's state before a token holds its log-probability.
    own = text.own if isinstance(text, States) else torch.zeros(count)
    cost = own[place - 1].cumsum(1)
    return Windows(first - 1, ids, allowed, keys, cost)[allowed.any(1)]
