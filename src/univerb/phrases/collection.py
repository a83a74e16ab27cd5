"""One list of phrases from documents, phrase texts and ready-made phrases."""

import itertools
import warnings
from collections.abc import Iterable, Sequence

import numpy

from univerb.config import MAX_PHRASES
from univerb.errors import OptionError, PhraseError, shown
from univerb.phrase import Document, Phrase
from univerb.phrases.hashing import Keys, RollingHash
from univerb.phrases.lists import LeftOutWarning, ListedText, listed_phrases
from univerb.phrases.ngrams import CandidateSpans, PhraseSource, SpanSource, ngrams
from univerb.tokenizer import Tokenizer

PhraseItem = Document | Phrase | ListedText
"""What phrases are made from: documents, phrases, and texts with or without a weight."""


def collect_phrases(
    items: Iterable[PhraseItem],
    tokenizer: Tokenizer,
    source: PhraseSource | None = None,
    max_phrases: int | None = MAX_PHRASES,
) -> list[Phrase]:
    """Gather phrases from documents, phrase texts and phrases, each distinct one once.

    Args:
        items: Documents, whose phrases `source` finds; texts and phrases, which are used as is.
        tokenizer: The LM's.
        source: Finds the phrases of a document; all 2-8-token n-grams by default.
        max_phrases: Maximum number: those that would save the most tokens in the documents. None
            for all of them, which can be as many as the text has characters. A warning tells if
            the default leaves some out.

    Returns:
        The phrases: the user's texts and phrases first, then by tokens saved.

    Raises:
        OptionError: If `max_phrases` is negative.
    """
    if max_phrases is not None and (type(max_phrases) is not int or max_phrases < 0):
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
    mined, left_out = _mined(documents, tokenizer, find, max_phrases, listed)
    ranked = [p.merged(mined.pop(p.ids)) if p.ids in mined else p for p in listed.values()]
    ranked += sorted(mined.values(), key=lambda p: -len(p.sources) * (len(p.ids) - 1))
    total = len(ranked) + left_out
    if max_phrases == MAX_PHRASES < total:
        warnings.warn(
            f"{total - MAX_PHRASES:,} of {total:,} phrases were left out, those that save the "
            "fewest tokens. Choose with max_phrases (--max-phrases) how many are used; a corpus "
            "(univerb index) has room for millions.",
            LeftOutWarning,
            stacklevel=2,
        )
    return ranked[:max_phrases]


def _mined(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    find: PhraseSource,
    max_phrases: int | None,
    listed: Iterable[tuple[int, ...]],
) -> tuple[dict[tuple[int, ...], Phrase], int]:
    """Return the phrases of documents, and how many the maximum left out before they were made."""
    if not isinstance(find, SpanSource) or not documents:
        return _merged(phrase for each in documents for phrase in find(each, tokenizer)), 0
    candidates = [find.candidates(document, tokenizer) for document in documents]
    distinct = _ranked_keys(candidates)
    left_out = len(distinct[max_phrases:]) if max_phrases is not None else 0
    # A user's phrase has its places in the documents, too.
    kept = numpy.concatenate([distinct[:max_phrases], _keys(listed)]) if left_out else None
    return _merged(p for each in candidates for p in find.phrases(each, tokenizer, kept)), left_out


def _ranked_keys(candidates: Sequence[CandidateSpans]) -> Keys:
    """Return the distinct keys, those that save the most tokens first."""
    keys = numpy.concatenate([each.keys for each in candidates])
    distinct, begins, counts = numpy.unique(keys, return_index=True, return_counts=True)
    saved = numpy.concatenate([each.last - each.first for each in candidates])[begins] * counts
    ranked: Keys = distinct[numpy.lexsort((begins, -saved))]
    return ranked


def _keys(phrases: Iterable[tuple[int, ...]]) -> Keys:
    ids = [numpy.array(phrase, dtype=numpy.int32) for phrase in phrases]
    ends = numpy.cumsum([0, *map(len, ids)])
    flat = numpy.concatenate([numpy.empty(0, numpy.int32), *ids])
    return RollingHash(flat).keys(ends[:-1], ends[1:])


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
        if not isinstance(item, (str, Document, Phrase)) and not _is_weighted(item):
            raise PhraseError(
                f"{shown(item)} is a {type(item).__name__}; phrases are made from documents, "
                "phrases, texts and (text, weight). Read files with univerb.read_documents(...)."
            )
    return checked


def _is_weighted(item: object) -> bool:
    if not isinstance(item, tuple) or len(item) != 2:
        return False
    return isinstance(item[0], str) and isinstance(item[1], int | float)
