"""One list of phrases out of documents, phrase texts and ready-made phrases."""

import itertools
from collections.abc import Iterable

from univerb.errors import OptionError, PhraseError
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
    given = _checked(items)
    texts: list[ListedText] = [item for item in given if isinstance(item, (str, tuple))]
    phrases = [item for item in given if isinstance(item, Phrase)]
    documents = [item for item in given if isinstance(item, Document)]
    # A user's own phrases come first: they are few and meant.
    own = _merged(itertools.chain(listed_phrases(texts, tokenizer), phrases))
    found = _merged(phrase for document in documents for phrase in find(document, tokenizer))
    ranked = [p.merged(found.pop(p.ids)) if p.ids in found else p for p in own.values()]
    ranked += sorted(found.values(), key=lambda p: -len(p.sources) * (len(p.ids) - 1))
    return ranked[:max_phrases]


def _merged(phrases: Iterable[Phrase]) -> dict[tuple[int, ...], Phrase]:
    groups: dict[tuple[int, ...], list[Phrase]] = {}
    for phrase in phrases:
        groups.setdefault(phrase.ids, []).append(phrase)
    return {ids: group[0].merged(*group[1:]) for ids, group in groups.items()}


def _checked(items: Iterable[PhraseItem]) -> list[PhraseItem]:
    if isinstance(items, (str, Document, Phrase)) or not isinstance(items, Iterable):
        raise PhraseError(
            f"{str(items)[:40]!r} is one item; give a list of documents, phrases and texts. Read "
            "files with univerb.read_documents(...)."
        )
    given = list(items)
    for item in given:
        if not isinstance(item, (str, tuple, Document, Phrase)):
            raise PhraseError(
                f"{item!r} is a {type(item).__name__}; phrases are made from documents, phrases "
                "and texts. Read files with univerb.read_documents(...)."
            )
    return given
