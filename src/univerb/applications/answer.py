"""Answers over documents, with citations that can be checked.

Paper, section 3.5; docs/method.md, Citation application.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack, get_args

from univerb.applications.citable_phrases import citable_phrases
from univerb.applications.citations import (
    Citation,
    Cite,
    CitedText,
    Sentence,
    Style,
    check_choices,
)
from univerb.applications.cited_text import (
    cited_text,
    sentence_at,
    split_answer,
    supported_marks,
)
from univerb.applications.copy_runs import split_words
from univerb.applications.passages import check_documents, find_passages
from univerb.applications.prompts import fitted, one_line, question_prompt, write_prompt
from univerb.applications.quotes import Quote, answers_question, rank_quotes
from univerb.config import GenerationConfig, GenerationOptions
from univerb.decoding.loop import Decoder, Stream
from univerb.decoding.results import SCHEMA_VERSION, Generation, Piece
from univerb.documents.chunks import Chunk
from univerb.errors import OptionError, PromptError, did_you_mean, shown
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Document
from univerb.phrases.ngrams import PhraseSource, ngrams
from univerb.retrieval.base import Retriever
from univerb.retrieval.embedder import default_embedder
from univerb.tokenizer import check_text

Phrases = Literal["ngrams", "parsed", "none"]
"""Which phrases of the passages the LM may write."""

NOT_FOUND = "Not found in the documents."
SMALL_MODEL = 500_000_000
"""Parameters below which answers are quotes by default: what was measured is a model of 135 million
(docs/results/answers)."""
_CHUNKS = 8
"""Chunks whose sentences may be passages or quotes."""
_MAX_TOKENS = 128
_QUOTES = 2
_NEAR = 1.5
"""How far a second quote may lie below the best one, on the scale of the judges' sum."""
_REPEATED = 5
"""Words from which a sentence that is said twice is a repetition."""
_ENDS = ("\n\n", "\nQuestion:", "\nText:")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its citations; prints as its text with markers."""

    question: str
    cited: CitedText
    passages: tuple[Chunk, ...]
    """What it is from; passage number 1 comes first."""
    generation: Generation | None
    """What the LM wrote; None for quotes."""
    truncated: bool = False
    """Whether passages were shortened to fit the context."""

    @property
    def text(self) -> str:
        """The answer without markers; the citations' ranges are in it."""
        return self.cited.text

    @property
    def rendered(self) -> str:
        """The answer with markers."""
        return str(self.cited)

    @property
    def citations(self) -> tuple[Citation, ...]:
        """What was copied from where, in the order of the text."""
        return self.cited.citations

    @property
    def sentences(self) -> tuple[Sentence, ...]:
        """The answer's sentences, each with what supports it."""
        return self.cited.sentences

    @property
    def is_quote(self) -> bool:
        """Whether it is made of sentences of the documents, and of nothing else."""
        return self.generation is None

    @property
    def is_found(self) -> bool:
        """Whether the documents support any of it."""
        return any(sentence.support != "unsupported" for sentence in self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON can hold it; `text` is with markers, and ranges are in it."""
        passages = [
            dict(marker=number, document=p.document, start=p.start, end=p.end, text=p.text)
            for number, p in enumerate(self.passages, 1)
        ]
        return {
            "schema_version": SCHEMA_VERSION,
            "question": self.question,
            "text": self.rendered,
            "found": self.is_found,
            "quoted": self.is_quote,
            "sentences": [
                {
                    "text": self.text[sentence.start : sentence.end],
                    "support": sentence.support,
                    "markers": list(sentence.markers),
                }
                for sentence in self.sentences
            ],
            "citations": self.cited.to_dicts(),
            "passages": passages,
            "truncated": self.truncated,
            "generation": self.generation.to_dict() if self.generation else None,
        }

    def __str__(self) -> str:
        return self.rendered


def answer(
    lm: PhraseModel,
    question: str,
    documents: Sequence[Document] | Retriever,
    *,
    quote: bool | None = None,
    k: int = 3,
    phrases: Phrases = "ngrams",
    style: Style = "sentence",
    cite: Cite = "best",
    strict: bool = False,
    on_piece: Callable[[Piece], object] | None = None,
    **options: Unpack[GenerationOptions],
) -> Answer:
    """Answer a question from documents, citing whatever is copied from them.

    Args:
        lm: The LM and its encoder.
        question: What is asked.
        documents: Documents, which are searched, or a retriever such as a corpus.
        quote: Answer with sentences of the documents; by default LMs below `SMALL_MODEL` do,
            unless `require` or `prefer` asks for words.
        k: Sentences to show the LM where it writes itself.
        phrases: It may write all n-grams of them, their parsed phrases, or none.
        style: Markers after each copied stretch, at the end of each sentence, or nowhere.
        cite: "best" cites one sentence for what was copied or supported, "all" each that has it.
        strict: Leave out what the documents do not support; quote them if nothing is left.
        on_piece: Called with what the LM writes as it comes.
        **options: As `GenerationConfig` explains them; at most 128 tokens by default.

    Returns:
        The answer. Only what its source has letter by letter is cited.
    """
    _check(question, k, style, cite, quote, strict)
    config = GenerationConfig(**options).filled({"max_tokens": _MAX_TOKENS})
    source = _source(phrases)
    is_quote = is_quoted(lm, quote, config)
    check_documents(documents)
    embedder = default_embedder()
    chunks = find_passages(question, documents, max(k, _CHUNKS), embedder)
    texts = {} if hasattr(documents, "search") else {each.name: each.text for each in documents}
    ranked = rank_quotes(lm, question, chunks, embedder, texts, k)
    if not ranked or not answers_question(question, ranked[0]):
        return Answer(question, _not_found(), (), None)
    if is_quote:
        return _quoted(lm, question, ranked, config.max_tokens, style)
    found = [each.source for each in ranked[:k]]
    written = _written(lm, question, found, source, config, style, cite, on_piece)
    if not strict:
        return written
    kept = _supported_only(written, style)
    return kept if kept.is_found else _quoted(lm, question, ranked, config.max_tokens, style)


def is_quoted(lm: PhraseModel, quote: bool | None, config: GenerationConfig) -> bool:
    """Tell whether an answer is quoted: texts that are asked for must be written."""
    asked = (*config.require, *config.prefer)
    if quote and asked:
        raise OptionError(
            f"a quote is in the documents' own words, and {asked[0]!r} is to be written. Leave out "
            "quote, or require and prefer."
        )
    return bool(quote) or (quote is None and not asked and lm.parameter_count < SMALL_MODEL)


def _written(
    lm: PhraseModel,
    question: str,
    found: Sequence[Chunk],
    source: PhraseSource | None,
    config: GenerationConfig,
    style: Style,
    cite: Cite,
    on_piece: Callable[[Piece], object] | None,
) -> Answer:
    """Let the LM answer in its own words and those of the passages."""
    stops = _ENDS if lm.has_chat_template else ("\n",)
    config = config.replaced({"stop": (*config.stop, *stops)})

    def encode(shown: Sequence[Chunk]) -> list[int]:
        return write_prompt(lm, question_prompt(question, shown))

    room = min(lm.context_size - config.max_tokens, lm.context_size - 1)
    prompt, passages = fitted(found, encode, room)
    vocabulary = None
    if source:
        vocabulary = lm.vocabulary(citable_phrases(passages, source, lm.tokenizer))
    stream = Stream(Decoder(lm, [prompt], vocabulary, config))
    text = ""
    for piece in stream:
        text += piece.text
        if _repeats_from(text, is_whole=False) is not None:
            stream.end()
            break
        if on_piece:
            on_piece(piece)
    generation = stream.result
    cited = cited_text(
        generation, passages, style, cite, question=question, end=_answer_end(generation)
    )
    return Answer(question, cited, passages, generation, truncated=passages != tuple(found))


def _answer_end(generation: Generation) -> int | None:
    """Return where an answer ends that goes on: with itself, or in the middle of a sentence."""
    text = generation.text
    end = _repeats_from(text)
    if end is None and generation.finish_reason == "length":
        sentences = split_answer(text)
        is_cut = len(sentences) > 1 and sentences[-1].tail == sentences[-1].end
        end = sentences[-1].start if is_cut else None
    return end


def _repeats_from(text: str, *, is_whole: bool = True) -> int | None:
    """Return where a text begins to repeat a sentence; if it is not whole, its last may go on."""
    said: set[str] = set()
    sentences = split_answer(text)
    for sentence in sentences if is_whole else sentences[:-1]:
        words = one_line(text[sentence.start : sentence.end])
        if words in said:
            return sentence.start
        if sum(not word.is_mark for word in split_words(words)) >= _REPEATED:
            said.add(words)
    return None


def _supported_only(written: Answer, style: Style) -> Answer:
    """Leave out the sentences that nothing supports."""
    kept = [s for s in written.sentences if s.support != "unsupported"]
    text = " ".join(written.text[s.start : s.end] for s in kept)
    sentences: list[Sentence] = []
    citations: list[Citation] = []
    at = 0
    for start, tail, end, support, markers in kept:
        moved = at - start
        sentences.append(Sentence(at, tail + moved, end + moved, support, markers))
        for each in written.citations:
            if start <= each.answer_start < end:
                edges = each.answer_start + moved, each.answer_end + moved
                citations.append(
                    Citation(each.marker, each.passage, each.start, each.end, *edges, answer=text)
                )
        at = end + moved + 1
    marks = supported_marks(citations, sentences, style)
    cited = CitedText(text, tuple(citations), tuple(sentences), (), marks)
    return Answer(written.question, cited, written.passages, written.generation, written.truncated)


def _quoted(
    lm: PhraseModel, question: str, ranked: Sequence[Quote], max_tokens: int, style: Style
) -> Answer:
    """Answer with the sentences that answer best."""
    chosen: list[Quote] = []
    left = max_tokens
    for quote in ranked[:_QUOTES]:
        left -= len(lm.tokenizer.encode_inside(quote.source.text).ids)
        if not chosen or (left >= 0 and quote.score >= ranked[0].score - _NEAR):
            chosen.append(quote)
    passages = tuple(quote.source for quote in chosen)
    return Answer(question, _quotation(passages, style), passages, None)


def _quotation(passages: Sequence[Chunk], style: Style) -> CitedText:
    """Join sentences of documents, each a citation."""
    text = ""
    found: list[tuple[int, Chunk, int, int, int, int]] = []
    sentences: list[Sentence] = []
    for number, passage in enumerate(passages, 1):
        text += " " if text else ""
        begin = len(text)
        text += one_line(passage.text)
        sentence = sentence_at(text, begin, len(text))
        sentences.append(sentence._replace(support="quoted", markers=(number,)))
        # The marker comes before the final punctuation, and the citation before the marker.
        end = passage.start + sentence_at(passage.text, 0, len(passage.text)).tail
        found.append((number, passage, passage.start, end, begin, sentence.tail))
    citations = tuple(Citation(*each, answer=text) for each in found)
    marks = supported_marks(citations, sentences, style)
    return CitedText(text, citations, tuple(sentences), (), marks)


def _not_found() -> CitedText:
    (sentence,) = split_answer(NOT_FOUND)
    return CitedText(NOT_FOUND, sentences=(sentence._replace(support="unsupported"),))


def _check(question: str, k: object, style: str, cite: str, quote: object, strict: object) -> None:
    check_text(question, "question")
    if not question.strip():
        raise PromptError("the question is empty. Ask something.")
    if not isinstance(k, int) or k < 1:
        raise OptionError(f"k is {shown(k)}; show the LM at least 1 sentence.")
    check_choices(style, cite)
    if not isinstance(quote, bool | None):
        raise OptionError(f"quote is {shown(quote)}; give True, False, or None for the LM's way.")
    if not isinstance(strict, bool):
        raise OptionError(f"strict is {shown(strict)}; give True or False.")


def _source(phrases: Phrases) -> PhraseSource | None:
    if phrases == "none":
        return None
    if phrases == "ngrams":
        return ngrams()
    if phrases == "parsed":
        from univerb.phrases.parsed import parsed_chunks

        return parsed_chunks()
    raise OptionError(f"phrases is {shown(phrases)}. {did_you_mean(phrases, get_args(Phrases))}")
