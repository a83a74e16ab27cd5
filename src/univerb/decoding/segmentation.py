"""A prompt as units: the phrases of a vocabulary are found in it, as training samples have them.

The paper suspects that perplexity rises because prompts are all tokens while training samples are
not (section 4.2). Reading the prompt with its phrases as single vectors puts this to the test.
"""

from collections import defaultdict
from collections.abc import Sequence

from univerb.phrase import Phrase
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
    by_first: dict[int, list[Phrase]] = defaultdict(list)
    for phrase in sorted(vocabulary, key=len, reverse=True):
        by_first[phrase.ids[0]].append(phrase)
    units, index, tokens_since = list(ids[:1]), 1, gap
    while index < len(ids):
        candidates = by_first[ids[index]] if tokens_since >= gap else []
        match = next((p for p in candidates if tuple(ids[index : index + len(p)]) == p.ids), None)
        unit = vocabulary.id_of(match) if match else None
        units.append(ids[index] if unit is None else unit)
        index, tokens_since = (index + len(match), 0) if match else (index + 1, tokens_since + 1)
    return units
