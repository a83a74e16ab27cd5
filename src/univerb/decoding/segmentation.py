"""A prompt as units: the phrases of a vocabulary are found in it, as training samples have them.

The paper suspects that perplexity rises because prompts are all tokens while training samples are
not (section 4.2). Reading the prompt with its phrases as single vectors puts this to the test.
"""

from collections import defaultdict
from collections.abc import Sequence

from univerb.vocabulary import DynamicVocabulary

GAP = 5
"""Tokens between two phrases, as in training samples."""


def segmented(ids: Sequence[int], vocabulary: DynamicVocabulary, gap: int = GAP) -> list[int]:
    """Replace the longest phrases of a prompt by their ids, from left to right.

    Args:
        ids: The prompt's tokens.
        vocabulary: The phrases; those that are not active are not used.
        gap: Tokens that follow a phrase before the next one may begin.

    Returns:
        Token ids, and |V| + index for phrases. The first token stays a token.
    """
    by_first: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for phrase in vocabulary:
        by_first[phrase.ids[0]].append(phrase.ids)
    for keys in by_first.values():
        keys.sort(key=len, reverse=True)
    known = {phrase.ids: vocabulary.id_of(phrase) for phrase in vocabulary}
    units, place, since = list(ids[:1]), 1, gap
    while place < len(ids):
        fitting = by_first.get(ids[place], []) if since >= gap else []
        found = next((k for k in fitting if tuple(ids[place : place + len(k)]) == k), None)
        unit = known[found] if found else None
        units.append(ids[place] if unit is None else unit)
        place, since = (place + 1, since + 1) if found is None else (place + len(found), 0)
    return units
