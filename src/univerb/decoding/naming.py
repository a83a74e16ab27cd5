"""Which tokens of a text are named, hence cited, as phrases."""

from collections.abc import Iterator, Sequence

from univerb.phrases.tokenized import ends_whole
from univerb.tokenizer import Tokenizer
from univerb.vocabulary import DynamicVocabulary

_MAX_PHRASE = 32
"""Tokens of the longest phrases that are looked for."""


def named_size(
    tokenizer: Tokenizer, phrase: Sequence[int], count: int, own_token: int | None
) -> int:
    """Return how many of a chosen phrase's accepted tokens are named as it.

    Args:
        tokenizer: The LM's.
        phrase: The phrase's tokens.
        count: Number of those that the LM accepted.
        own_token: The LM's own token that follows where it has cut the phrase.

    Returns:
        The number: up to the last whole word or number where it was cut. One token is none.
    """
    if count == 1 or own_token is None:
        return count if count > 1 else 0
    # It must not end inside a word of its document, nor inside one that is written.
    texts = tokenizer.decode(phrase), tokenizer.decode([*phrase[:count], own_token])
    parts = ((size, tokenizer.decode(phrase[:size])) for size in range(count, 1, -1))
    return next((n for n, part in parts if all(ends_whole(part, t) for t in texts)), 0)


def longest_phrases(
    vocabulary: DynamicVocabulary, ids: Sequence[int]
) -> Iterator[tuple[int, int, int | None]]:
    """Cut tokens into the longest phrases that they hold, from left to right.

    Args:
        vocabulary: The phrases.
        ids: Tokens that were written.

    Yields:
        Begin, end, and the id of the phrase there, or None for a single token.
    """
    begin = 0
    while begin < len(ids):
        longest = min(_MAX_PHRASE, len(ids) - begin)
        keys = (tuple(ids[begin : begin + size]) for size in range(longest, 1, -1))
        matches = ((len(key), vocabulary.find(key)) for key in keys)
        size, unit = next((match for match in matches if match[1] is not None), (1, None))
        yield begin, begin + size, unit
        begin += size
