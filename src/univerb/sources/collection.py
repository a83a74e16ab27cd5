"""One list of phrases out of documents, phrase texts and ready-made phrases."""

from collections.abc import Iterable

from univerb.errors import OptionError
from univerb.phrase import Document, Phrase
from univerb.sources.lists import ListedText, listed_phrases
from univerb.sources.ngrams import PhraseSource, ngrams
from univerb.tokenizer import Tokenizer

PhraseItem = Document | Phrase | ListedText
"""What phrases are made from: documents, phrases, and texts with or without a weight."""


def collect_phrases(
    items: Iterable[PhraseItem],
    tokenizer: Tokenizer,
    source: PhraseSource | None = None,
    max_phrases: int | None = None,
) -> list[Phrase]:
    """Gather phrases from documents, phrase texts and phrases, each distinct one once.

    Args:
        items: Documents go through `source`; texts are phrases as they stand.
        tokenizer: The LM's.
        source: How to find the phrases of a document; all 2-8-token n-grams by default.
        max_phrases: Keep at most so many: those that would save the most tokens where they
            were found.

    Returns:
        The phrases: a user's own first, then by tokens saved.

    Raises:
        OptionError: If `max_phrases` is negative.
    """
    if max_phrases is not None and max_phrases < 0:
        raise OptionError(f"max_phrases is {max_phrases}; give 0 or more, or None for no limit.")
    find = source or ngrams()
    merged: dict[tuple[int, ...], Phrase] = {}
    texts: list[ListedText] = []
    for item in items:
        if isinstance(item, (str, tuple)):
            texts.append(item)
            continue
        for phrase in find(item, tokenizer) if isinstance(item, Document) else (item,):
            known = merged.get(phrase.ids)
            merged[phrase.ids] = known.merged(phrase) if known else phrase
    listed = {phrase.ids: phrase for phrase in listed_phrases(texts, tokenizer)}
    found = sorted(merged.values(), key=lambda p: -len(p.sources) * (len(p.ids) - 1))
    # A user's own list comes first: it is short and meant.
    ranked = [p.merged(merged[p.ids]) if p.ids in merged else p for p in listed.values()]
    ranked += [phrase for phrase in found if phrase.ids not in listed]
    return ranked[:max_phrases]
