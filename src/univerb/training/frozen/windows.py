"""Word starts of a text, each with all phrases that begin there."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from univerb.tokenizer import Tokenizer
from univerb.training.frozen.states import States, TokenizedPassages

# An odd factor makes multiplication modulo 2**64 a bijection; its bits are well mixed.
_FACTOR = -7046029254386353131


class CharClasses(NamedTuple):
    """Which tokens of V have letters, and which have digits: (V,) each."""

    has_letter: Tensor
    has_digit: Tensor


def char_classes(tokenizer: Tokenizer, static_size: int) -> CharClasses:
    """Look up the character classes of all tokens."""
    texts = tokenizer.decode_all([[token] for token in range(static_size)])
    digits = [any(character.isdigit() for character in text) for text in texts]
    words = [any(c.isalnum() and not c.isdigit() for c in text) for text in texts]
    return CharClasses(torch.tensor(words), torch.tensor(digits))


@dataclass(frozen=True, slots=True)
class Windows:
    """Word starts (S,) and the tokens that follow them, up to L."""

    before: Tensor
    """(S,) the index of the token before each: its state scores what follows."""
    ids: Tensor
    """(S, L) the tokens that follow; 0 where the passage ends."""
    is_phrase: Tensor
    """(S, L) whether the first l + 1 tokens are a phrase."""
    keys: Tensor
    """(S, L) a hash of these tokens."""
    logprob: Tensor
    """(S, L) the LM's log-probability of these tokens, one by one; 0 without states."""

    def __len__(self) -> int:
        """Number of word starts."""
        return len(self.before)

    def __getitem__(self, index: Tensor | slice) -> "Windows":
        return Windows(*(getattr(self, field.name)[index] for field in fields(self)))

    def truncate(self, width: int) -> "Windows":
        """Return the windows cut to `width` tokens, without those that then have no phrase."""
        columns = (self.ids, self.is_phrase, self.keys, self.logprob)
        shorter = Windows(self.before, *(column[:, :width] for column in columns))
        return shorter[shorter.is_phrase.any(1)]


def windows(text: TokenizedPassages, sizes: tuple[int, int], classes: CharClasses) -> Windows:
    """Find the word starts at which a phrase of `sizes` tokens begins; bare numbers are none."""
    low, high = sizes
    count = len(text.ids)
    first = torch.arange(1, count)
    first = first[text.may_start[1:] & (text.passage[1:] == text.passage[:-1])]
    index = first[:, None] + torch.arange(high)
    inside = (index < count) & (
        text.passage[index.clamp(max=count - 1)] == text.passage[first][:, None]
    )
    index = index.clamp(max=count - 1)
    ids = torch.where(inside, text.ids[index].long(), 0)
    has_letter = classes.has_letter[ids].cumsum(1).bool()
    is_number = ~has_letter & classes.has_digit[ids].cumsum(1).bool()
    is_phrase = (inside & ~text.is_masked[index]).cumprod(1).bool()
    is_phrase &= text.may_end[index] & ~is_number
    is_phrase[:, : low - 1] = False
    keys = torch.zeros_like(ids)
    key = torch.full((len(ids),), 1, dtype=torch.long)
    for column in range(high):
        key = (key + ids[:, column] + 1) * _FACTOR
        key = key ^ (key >> 29)
        keys[:, column] = key
    # A token's log-probability is stored with the state before it.
    next_logprob = text.next_logprob if isinstance(text, States) else torch.zeros(count)
    logprob = next_logprob[index - 1].cumsum(1)
    return Windows(first - 1, ids, is_phrase, keys, logprob)[is_phrase.any(1)]
