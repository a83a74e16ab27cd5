"""One list of phrases from documents, phrase texts and ready-made phrases."""

import itertools
from collections.abc import Iterable

from univerb.errors import OptionError, PhraseError, shown
from univerb.phrase import Document, Phrase
from univerb.phrases.lists import ListedText, listed_phrases
from univerb.phrases.ngrams import PhraseSource, ngrams
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
        items: Documents, whose phrases `source` finds; texts and phrases, which are used as is.
        tokenizer: The LM's.
        source: Finds the phrases of a document; all 2-8-token n-grams by default.
        max_phrases: Maximum number: those that would save the most tokens in the documents.

    Returns:
        The phrases: the user's texts and phrases first, then by tokens saved.

    Raises:
        OptionError: If `max_phrases` is negative.
    """
    if max_phrases is not None and not (isinstance(max_phrases, int) and max_phrases >= 0):
        raise OptionError(
            f"max_phrases is {shown(max_phrases)}; give 0 or more, or None for no limit."
        )
    find = source or ngrams()
    checked = _checked(items)
    texts: list[ListedText] = [item for item in checked if isinstance(item, (str, tuple))]
    phrases = [item for item in checked if isinstance(item, Phrase)]
    documents = [item for item in checked if isinstance(item, Document)]
    # The user's phrases come first: they are few and deliberate.
    listed = _merged(itertools.chain(listed_phrases(texts, tokenizer), phrases))
    mined = _merged(phrase for document in documents for phrase in find(document, tokenizer))
    ranked = [p.merged(mined.pop(p.ids)) if p.ids in mined else p for p in listed.values()]
    ranked += sorted(mined.values(), key=lambda p: -len(p.sources) * (len(p.ids) - 1))
    return ranked[:max_phrases]


def _merged(phrases: Iterable[Phrase]) -> dict[tuple[int, ...], Phrase]:
    groups: dict[tuple[int, ...], list[Phrase]] = {}
    for phrase in phrases:
        groups.setdefault(phrase.ids, []).append(phrase)
    return {ids: group[0].merged(*group[1:]) for ids, group in groups.items()}


def _checked(items: Iterable[PhraseItem]) -> list[PhraseItem]:
    if isinstance(items, (str, Document, Phrase)) or not isinstance(items, Iterable):
        raise PhraseError(
            f"{shown(items)} is one item; give a list of documents, phrases and texts. Read "
            "files with univerb.read_documents(...)."
        )
    checked = list(items)
    for item in checked:
        is_weighted = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)
        if not is_weighted and not isinstance(item, (str, Document, Phrase)):
            raise PhraseError(
                f"{shown(item)} is a {type(item).__name__}; phrases are made from documents, "
                "phrases and texts. Read files with univerb.read_documents(...)."
            )
    return checked
