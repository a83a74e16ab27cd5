"""Which tokens of a text are named, hence cited, as phrases."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from univerb.decoding.results import Candidate
from univerb.phrases.tokenized import ends_whole
from univerb.tokenizer import Tokenizer
from univerb.vocabulary import DynamicVocabulary

_MAX_PHRASE = 32
"""Tokens of the longest phrases that are looked for."""


class Part(NamedTuple):
    """Tokens that are shown as one piece."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    """The LM's own, of those that were accepted."""
    unit: int | None
    """The phrase that they are; None for a token."""
    candidates: tuple[Candidate, ...] = ()


def accepted_parts(chosen: Part, own_token: int | None, tokenizer: Tokenizer) -> Iterator[Part]:
    """Cut a chosen unit into what is named as a phrase and single tokens.

    Args:
        chosen: All its tokens, with the log-probabilities of those that the LM accepted.
        own_token: The LM's own token that follows where it has cut a phrase.
        tokenizer: The LM's.

    Yields:
        What was accepted.
    """
    ids, logprobs, unit, candidates = chosen
    named = named_size(tokenizer, ids, len(logprobs), own_token)
    if named:
        yield Part(ids[:named], logprobs[:named], unit, candidates)
    for at in range(named, len(logprobs)):
        yield Part(ids[at : at + 1], logprobs[at : at + 1], None, () if at else candidates)


def joined(parts: Sequence[Part], vocabulary: DynamicVocabulary) -> Iterator[Part]:
    """Join single tokens to the longest phrases that they are."""
    for is_phrase, run in groupby(parts, lambda part: part.unit is not None):
        if is_phrase:
            yield from run
            continue
        tokens = list(run)
        ids = [part.ids[0] for part in tokens]
        for begin, end, unit in longest_phrases(vocabulary, ids):
            logprobs = [part.logprobs[0] for part in tokens[begin:end]]
            yield Part(ids[begin:end], logprobs, unit, tokens[begin].candidates)


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
