"""Answers of systems to ASQA's questions (docs/method.md, Protocols: ASQA).

Every answer is kept as it comes, so that a run that was killed continues where it was.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from univerb.applications.answer import Phrases
from univerb.applications.citable_phrases import citable_phrases
from univerb.applications.citations import Cite, check_choices
from univerb.applications.cited_text import cited_text
from univerb.config import GenerationConfig, GenerationOptions
from univerb.decoding.loop import generate
from univerb.documents.chunks import Chunk
from univerb.errors import OptionError
from univerb.lab.protocols.asqa_questions import AsqaDocument, AsqaQuestion
from univerb.lab.protocols.numbered_prompt import numbered_prompt, numbered_prompt_ids
from univerb.lab.protocols.result_cache import ResultCache, results_key
from univerb.modeling.dynamic import DynamicLM
from univerb.phrases.guards import PAPER_GUARDS
from univerb.phrases.ngrams import PhraseSource, ngrams
from univerb.phrases.parsed import parsed_chunks

Markers = Literal["typed", "sentence"]
"""As the LM typed them, or at the end of each sentence."""
Progress = Callable[[int, int], object]
"""Called with the number of answers that are done, and of all."""

Variant = tuple[bool, Phrases]
"""Whether the bare model answers, and with which phrases."""
MAX_TOKENS = 200


class AnswerSystem(NamedTuple):
    """A system that answers questions."""

    name: str
    phrases: Phrases
    markers: Markers = "sentence"
    is_bare: bool = False
    """Whether it is the backbone before any training."""


BARE = AnswerSystem("bare LM", "none", "typed", is_bare=True)
NGRAMS = AnswerSystem("n-gram phrases", "ngrams")
PARSED = AnswerSystem("parsed phrases", "parsed")
WITHOUT = AnswerSystem("without phrases", "none")
SYSTEMS = (BARE, NGRAMS, PARSED, WITHOUT)
"""The paper's rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsqaProtocol:
    """The settings of prompts and answers."""

    first: int = 40
    """Number of the first question: those before it were for development."""
    last: int | None = None
    """Number of the last question; None: the file's last."""
    documents: int = 3
    """Number of documents that the LM is shown, the first ones."""
    shots: int = 1
    """1 shows a solved example first, which has citations."""
    chat: bool | None = None
    """Use the chat template; None: if there is one. A plain prompt is ALCE's."""
    cite: Cite = "best"
    encode_marker: bool = False
    """Make the marker a part of the phrases."""
    parser: str = "spacy"
    """Finds the parsed phrases: `spacy`, `stanza`, or `rules`, which needs no extra."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """Options of decoding; by default greedy and at most 200 tokens."""

    def __post_init__(self) -> None:
        if self.documents < 1:
            raise OptionError(f"documents is {self.documents}; show the LM at least 1.")
        check_choices("none", self.cite)
        GenerationConfig(**self.options)

    @property
    def options(self) -> GenerationOptions:
        """Options of `generate`."""
        # An answer must not depend on which ones were generated before it: a run that continues
        # ends like one that was never killed.
        options = {"max_tokens": MAX_TOKENS, **self.decoding, "prefix_cache": False}
        return cast(GenerationOptions, options)

    @property
    def config(self) -> GenerationConfig:
        """The options, checked, with their defaults."""
        return GenerationConfig(**self.options)


@dataclass(frozen=True, slots=True)
class AsqaAnswer:
    """An answer of a system to a question."""

    texts: Mapping[Markers, str]
    """The same answer with its markers in different positions."""
    phrase_share: float
    """The share of base tokens that were generated as part of a phrase."""


class AnswerRunner:
    """Has systems answer questions, and keeps the answers.

    Systems that only show their markers elsewhere share an answer.

    Args:
        lm: The model.
        protocol: The settings of prompts and answers.
        bare: The backbone before training, if `lm` was fine-tuned; otherwise `lm` without phrases.
        systems: The systems that answer.
        folder: Keeps answers as they come.
    """

    def __init__(
        self,
        lm: DynamicLM,
        protocol: AsqaProtocol,
        *,
        bare: DynamicLM | None = None,
        systems: Sequence[AnswerSystem] = SYSTEMS,
        folder: Path | None = None,
    ) -> None:
        self._protocol, self._systems, self._has_bare = protocol, systems, bare is not None
        self._sources = {each.phrases: _source(each.phrases, protocol.parser) for each in systems}
        models = {False: lm} if bare is None else {False: lm, True: bare}
        self._models = {
            is_bare: (model, ResultCache(folder, _key(model, protocol)))
            for is_bare, model in models.items()
        }

    def run(
        self, questions: Sequence[AsqaQuestion], progress: Progress | None = None
    ) -> dict[str, list[AsqaAnswer]]:
        """Return the answers by name of system, in the order of the questions."""
        variants = list(dict.fromkeys(map(self._variant, self._systems)))
        answers: dict[Variant, list[AsqaAnswer]] = {variant: [] for variant in variants}
        for number, question in enumerate(questions):
            for index, variant in enumerate(variants, 1):
                answers[variant].append(self._answer(question, *variant))
                if progress:
                    progress(number * len(variants) + index, len(questions) * len(variants))
        return {system.name: answers[self._variant(system)] for system in self._systems}

    def _answer(self, question: AsqaQuestion, is_bare: bool, phrases: Phrases) -> AsqaAnswer:
        """Return the kept answer, or generate it."""
        model, cache = self._models[is_bare]
        if cache.get(question.key, phrases) is None:
            cache.put(question.key, phrases, asdict(self._generated(model, question, phrases)))
        return AsqaAnswer(**cache.get(question.key, phrases))

    def _variant(self, system: AnswerSystem) -> Variant:
        return self._has_bare and system.is_bare, system.phrases

    def _generated(self, lm: DynamicLM, question: AsqaQuestion, phrases: Phrases) -> AsqaAnswer:
        protocol = self._protocol
        # An answer must not depend on which ones were kept before.
        lm.forget()
        is_chat = lm.has_chat_template if protocol.chat is None else protocol.chat
        options = GenerationConfig(**protocol.options)
        options = options if is_chat else options.filled({"stop": ["\n"]})
        prompt, passages = numbered_prompt_ids(
            lm,
            question.question,
            numbered_passages(question.documents),
            lm.context_size - options.max_tokens,
            shots=protocol.shots,
            is_chat=is_chat,
        )
        vocabulary, source = None, self._sources[phrases]
        if source:
            citable = citable_phrases(passages, source, lm.tokenizer, protocol.encode_marker)
            vocabulary = lm.vocabulary(citable)
        generation = generate(lm, prompt, vocabulary, **options.options())
        cited = cited_text(generation, passages, cite=protocol.cite, support=False)
        return AsqaAnswer(
            {"typed": generation.text, "sentence": str(cited)},
            phrase_share=generation.stats.phrase_share,
        )


def numbered_passages(documents: Sequence[AsqaDocument]) -> tuple[Chunk, ...]:
    """Return documents as passages in their order: their numbers are those of the file."""
    passages = []
    titles: list[str] = []
    for document in documents:
        titles.append(document.title)
        # Documents may be of one article; a citation has to tell them apart.
        count = titles.count(document.title)
        name = document.title if count == 1 else f"{document.title} ({count})"
        passages.append(Chunk(name, 0, document.text.strip()))
    return tuple(passages)


def _source(phrases: Phrases, parser: str) -> PhraseSource | None:
    if phrases == "none":
        return None
    if phrases == "ngrams":
        return ngrams(guards=PAPER_GUARDS)
    return parsed_chunks(parser, guards=PAPER_GUARDS)


def _key(lm: DynamicLM, protocol: AsqaProtocol) -> str:
    """Return a hash of everything that answers depend on except the question."""
    prompt = numbered_prompt("", (), protocol.shots)
    settings = asdict(protocol)
    # Which questions are asked changes no answer.
    del settings["first"], settings["last"]
    return results_key(lm, None, {"what": "asqa", "prompt": prompt} | settings)
