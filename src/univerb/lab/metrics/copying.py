"""Verbatim copying: the longest part of a text that one of its sources contains."""

from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher


def longest_run(text: Sequence[Hashable], sources: Iterable[Sequence[Hashable]]) -> int:
    """Return the length of the longest stretch of a text that one source contains.

    Args:
        text: Words or tokens.
        sources: The words or tokens of each source; no stretch crosses from one to the next.

    Returns:
        The length; 0 if nothing is shared.
    """
    # The matcher indexes its second sequence once.
    matcher = SequenceMatcher[Hashable](None, (), text, autojunk=False)
    longest = 0
    for source in sources:
        matcher.set_seq1(source)
        longest = max(longest, matcher.find_longest_match().size)
    return longest
