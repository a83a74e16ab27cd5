"""Verbatim copying: the longest part of a text that one of its sources contains."""

from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher


def longest_run(text: Sequence[Hashable], sources: Iterable[Sequence[Hashable]]) -> int:
    """Return the length, in words or tokens, of the longest stretch that one source contains."""
    # The matcher indexes its second sequence once.
    matcher = SequenceMatcher[Hashable](None, (), text, autojunk=False)
    longest = 0
    for source in sources:
        matcher.set_seq1(source)
        longest = max(longest, matcher.find_longest_match().size)
    return longest
