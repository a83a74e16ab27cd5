"""Answers over documents, with citations that can be checked.

Paper, section 3.5; docs/method.md, Citation application.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack, get_args

from univerb.applications.citations import (
    Citation,
    Cite,
    CitedText,
    Style,
    Typed,
    check_choices,
    citable_phrases,
    cited_text,
)
from univerb.applications.prompts import fitted, question_prompt, without_special
from univerb.config import GenerationConfig, GenerationOptions
from univerb.decoding.loop import generate
from univerb.decoding.results import Generation
from univerb.documents.chunks import Chunk, chunked
from univerb.errors import DocumentError, OptionError, PromptError, did_you_mean, shown
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Document
from univerb.phrases.ngrams import PhraseSource, ngrams
from univerb.retrieval.base import Retriever
from univerb.tokenizer import check_text

Phrases = Literal["ngrams", "parsed", "none"]
"""Which phrases of the passages the LM may write."""

_WHOLE_WORDS = 200
"""Documents of at most this many words are passages as they are."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its citations; prints as its text with markers."""

    question: str
    cited: CitedText
    passages: tuple[Chunk, ...]
    """What the LM was shown; passage number 1 comes first."""
    generation: Generation
    truncated: bool
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
    def typed(self) -> tuple[Typed, ...]:
        """The markers that the LM wrote by itself; nobody has checked them."""
        return self.cited.typed

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON can hold it; `text` is with markers, and ranges are in it."""
        passages = [
            dict(marker=number, document=p.document, start=p.start, end=p.end, text=p.text)
            for number, p in enumerate(self.passages, 1)
        ]
        return self.generation.to_dict() | {
            "question": self.question,
            "text": self.rendered,
            "citations": self.cited.to_dicts(),
            "typed": [typed.marker for typed in self.typed],
            "passages": passages,
            "truncated": self.truncated,
        }

    def __str__(self) -> str:
        return self.rendered


def answer(
    lm: PhraseModel,
    question: str,
    documents: Sequence[Document] | Retriever,
    *,
    k: int = 3,
    phrases: Phrases = "ngrams",
    style: Style = "sentence",
    cite: Cite = "best",
    encode_marker: bool = False,
    shots: int = 0,
    chat: bool | None = None,
    source: PhraseSource | None = None,
    **options: Unpack[GenerationOptions],
) -> Answer:
    """Answer a question from documents, citing whatever is copied from them.

    Args:
        lm: The LM and its encoder.
        question: What is asked.
        documents: Documents, which are searched with BM25, or a retriever such as a corpus.
        k: Passages to show the LM.
        phrases: All n-grams of the passages, their parsed phrases, or none.
        style: Markers after each phrase, at the end of each sentence, or nowhere.
        cite: "best" cites the best ranked passage that has a phrase, "all" each one.
        encode_marker: Make the marker a part of the phrases that the LM chooses from.
        shots: 1 shows the LM a solved example first.
        chat: Use the chat template; by default if there is one.
        source: Other phrases of a passage than `phrases` names.
        **options: As `GenerationConfig` explains them; at most 300 tokens by default.

    Returns:
        The answer. Only what its source has letter by letter is cited.
    """
    check_text(question, "question")
    if not question.strip():
        raise PromptError("the question is empty. Ask something.")
    if not isinstance(shots, int) or shots not in (0, 1):
        raise OptionError(f"shots is {shown(shots)}; give 0, or 1 for a solved example.")
    if not isinstance(chat, bool | None):
        raise OptionError(f"chat is {shown(chat)}; give True, False, or None for the model's way.")
    check_choices(style, cite)
    phrase_source = source or _source(phrases)
    is_chat = has_chat(lm) if chat is None else chat
    decoding = GenerationConfig(**options).filled(
        {"max_tokens": 300} if is_chat else {"max_tokens": 300, "stop": ["\n"]}
    )
    room = lm.context_size - decoding.max_tokens
    retrieved = find_passages(question, documents, k)
    prompt, passages = passages_prompt(lm, question, retrieved, room, shots=shots, is_chat=is_chat)
    vocabulary = None
    if phrase_source:
        citable = citable_phrases(passages, phrase_source, lm.tokenizer, encode_marker)
        vocabulary = lm.vocabulary(citable)
    generation = generate(lm, prompt, vocabulary, **decoding.options())
    cited = cited_text(generation, passages, style, cite)
    return Answer(question, cited, passages, generation, truncated=passages != retrieved)


def has_chat(lm: PhraseModel) -> bool:
    """Tell whether questions are asked in a chat template."""
    return lm.has_chat_template


def passages_prompt(
    lm: PhraseModel,
    question: str,
    passages: tuple[Chunk, ...],
    room: int,
    *,
    shots: int = 0,
    is_chat: bool,
) -> tuple[list[int], tuple[Chunk, ...]]:
    """Return the ids of a prompt of at most `room` tokens, and the passages, shortened to fit."""
    special = lm.tokenizer.added_texts

    def encode(shown: Sequence[Chunk]) -> list[int]:
        prompt = without_special(question_prompt(question, shown, shots), special)
        return lm.chat_prompt(prompt) if is_chat else lm.tokenizer.encode_prompt(prompt)

    return fitted(passages, encode, min(room, lm.context_size - 1))


def find_passages(
    question: str, documents: Sequence[Document] | Retriever, k: int = 3
) -> tuple[Chunk, ...]:
    """Find at most `k` passages that a question is about, the best first.

    Up to `k` short documents are the passages as they are; others are cut into chunks and searched
    with BM25. It is a DocumentError if there are none, two have one name, or nothing fits.
    """
    if not isinstance(k, int) or k < 1:
        raise OptionError(f"k is {shown(k)}; show the LM at least 1 passage.")
    # Told apart by what they can do: a corpus may be a sequence of documents, too.
    if hasattr(documents, "search"):
        return _searched(documents, question, k)
    _check_documents(documents)
    if len(documents) <= k and all(len(d.text.split()) <= _WHOLE_WORDS for d in documents):
        starts = [len(d.text) - len(d.text.lstrip()) for d in documents]
        pairs = zip(documents, starts, strict=True)
        return tuple(Chunk(d.name, start, d.text.strip()) for d, start in pairs)
    from univerb.retrieval.methods import ChunkIndex

    index = ChunkIndex([chunk for document in documents for chunk in chunked(document)])
    return _searched(index, question, k)


def _searched(retriever: Retriever, question: str, k: int) -> tuple[Chunk, ...]:
    passages = tuple(hit.chunk for hit in retriever.search(question, k)[:k])
    if not passages:
        raise DocumentError(
            f"nothing in the documents fits the question {question[:60]!r}. Ask with words that "
            "occur in them, or give other documents."
        )
    return passages


def _check_documents(documents: Sequence[Document]) -> None:
    is_list = isinstance(documents, Sequence) and len(documents) > 0
    if not is_list or not all(isinstance(document, Document) for document in documents):
        raise DocumentError(
            f"documents is {shown(documents)}; give documents, or something with a search() "
            "method. Read files with univerb.read_documents(...)."
        )
    name, count = Counter(document.name for document in documents).most_common(1)[0]
    if count > 1:
        raise DocumentError(
            f"{count} documents are called {name!r}, so a citation could mean any. Give each a "
            "different name: Document(text, name)."
        )


def _source(phrases: Phrases) -> PhraseSource | None:
    if phrases == "none":
        return None
    if phrases == "ngrams":
        return ngrams()
    if phrases == "parsed":
        from univerb.phrases.parsed import parsed_chunks

        return parsed_chunks()
    raise OptionError(f"phrases is {shown(phrases)}. {did_you_mean(phrases, get_args(Phrases))}")
