"""ASQA: questions over documents, and what four systems answer to them (METHOD D.4, E).

Every answer is kept as it comes, so that a run that was killed goes on where it was.
"""

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from univerb.applications.answer import Phrases, answer
from univerb.applications.citations import Cite, check_choices, cited_text
from univerb.applications.prompts import question_prompt
from univerb.config import GenerationConfig, GenerationOptions
from univerb.documents.chunks import Chunk
from univerb.errors import DocumentError, OptionError
from univerb.lab.protocols.cache import ResultCache, results_key
from univerb.modeling.dynamic import DynamicLM
from univerb.phrases.ngrams import PhraseSource, ngrams
from univerb.phrases.parsed import parsed_chunks
from univerb.retrieval.base import Hit

Markers = Literal["typed", "sentence", "inline"]
"""As the LM typed them, at the end of each sentence, or behind each phrase."""
Progress = Callable[[int, int], object]
"""Is told how much is done, of how much."""

MAX_TOKENS = 200


class Passage(NamedTuple):
    """A document that the LM is shown."""

    title: str
    text: str


class SubQuestion(NamedTuple):
    """One meaning of a question, and the short answers that are right for it."""

    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """A question, what may be cited, and what a good answer says."""

    question: str
    passages: tuple[Passage, ...]
    """Numbered from 1 in this order."""
    pairs: tuple[SubQuestion, ...]
    long_answers: tuple[str, ...]

    @property
    def key(self) -> str:
        """A hash of what an answer depends on."""
        content = json.dumps([self.question, self.passages])
        return hashlib.sha256(content.encode()).hexdigest()[:24]


class System(NamedTuple):
    """Somebody who answers."""

    name: str
    phrases: Phrases
    markers: Markers = "sentence"
    is_bare: bool = False
    """Whether it is the backbone as it was before any training."""


BARE = System("bare LM", "none", "typed", is_bare=True)
NGRAMS = System("n-gram phrases", "ngrams")
PARSED = System("parsed phrases", "parsed")
WITHOUT = System("without phrases", "none")
SYSTEMS = (
    BARE,
    NGRAMS,
    PARSED,
    WITHOUT,
    System(f"{NGRAMS.name}, inline", "ngrams", "inline"),
    System(f"{PARSED.name}, inline", "parsed", "inline"),
)
"""The paper's four rows, and those with phrases once more with a marker behind each phrase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsqaProtocol:
    """How questions are asked."""

    documents: int = 3
    """How many of an item's documents the LM is shown, the first ones."""
    shots: int = 1
    """1 shows a solved example first, which shows how to cite."""
    chat: bool | None = False
    """Ask in the chat template; None: if there is one. A plain prompt is ALCE's."""
    cite: Cite = "best"
    encode_marker: bool = False
    """Make the marker a part of the phrases."""
    parser: str = "spacy"
    """Finds the parsed phrases: `spacy`, `stanza`, or `rules`, which needs no extra."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """Options of decoding; greedy and at most 200 tokens unless they say otherwise."""

    def __post_init__(self) -> None:
        if self.documents < 1:
            raise OptionError(f"documents is {self.documents}; show the LM at least 1.")
        if self.decoding.get("growth") is not None:
            raise OptionError(
                "growth is a function, which no kept answer can be found by. Drop it."
            )
        check_choices("none", self.cite)
        GenerationConfig(**self.options)

    @property
    def options(self) -> GenerationOptions:
        """The options of `generate`."""
        # What other answers had in common with one must not show in it, or a run that goes on
        # would not be the same as one that was never killed.
        given = {"max_tokens": MAX_TOKENS, **self.decoding, "reuse": False}
        return cast(GenerationOptions, given)

    @property
    def resolved(self) -> GenerationConfig:
        """The options, checked, with their defaults."""
        return GenerationConfig(**self.options)


@dataclass(frozen=True, slots=True)
class Reply:
    """What was answered to a question."""

    texts: Mapping[Markers, str]
    """The same answer with its markers in different places."""
    phrase_share: float
    """The share of base tokens that were written as part of a phrase."""
    finish_reason: str


def read_items(path: Path, limit: int | None = None, documents: int = 3) -> list[Item]:
    """Read questions from a file in ALCE's shape, plain or gzipped.

    Args:
        path: JSON: a list of items with question, qa_pairs, annotations and docs.
        limit: At most so many, spread evenly over the file; None for all.
        documents: How many documents each item keeps, the first ones.

    Returns:
        The items, in the order of the file.

    Raises:
        OptionError: If the limit is less than 1.
        DocumentError: If the file is missing or has another shape.
    """
    if limit is not None and limit < 1:
        raise OptionError(f"limit is {limit}; ask at least 1 question.")
    found = _read_json(path)
    if not isinstance(found, list) or not found:
        raise DocumentError(
            f"{str(path)!r} holds no list of questions. Give a file in the shape of ALCE's "
            "asqa_eval_gtr_top100.json."
        )
    count = len(found) if limit is None else min(limit, len(found))
    places = [number * len(found) // count for number in range(count)]
    return [_item(found[place], place, path, documents) for place in places]


def answer_all(
    lm: DynamicLM,
    items: Sequence[Item],
    protocol: AsqaProtocol | None = None,
    *,
    bare: DynamicLM | None = None,
    systems: Sequence[System] = SYSTEMS,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, list[Reply]]:
    """Have systems answer questions.

    Systems that only show their markers elsewhere share an answer.

    Args:
        lm: The model with its encoder and its profile.
        items: The questions.
        protocol: How they are asked.
        bare: The backbone before training, if `lm` was fine-tuned; otherwise `lm` without phrases.
        systems: Who answers.
        folder: Keep answers here as they come: a run that was killed goes on.
        progress: Is told how many answers there are, of how many.

    Returns:
        The replies by name of system, in the order of the items.

    Raises:
        MissingExtra: If the parser is not installed; before anything is answered.
    """
    how = protocol or AsqaProtocol()
    due = voices(systems, bare is not None)
    sources = {kind: _source(kind, how.parser) for _, kind in due}
    desks = {False: _Desk(lm, how, sources, folder)}
    if bare is not None:
        desks[True] = _Desk(bare, how, sources, folder)
    found: dict[str, list[Reply]] = {system.name: [] for system in systems}
    for number, item in enumerate(items):
        replies = {}
        for place, (is_bare, kind) in enumerate(due, 1):
            replies[is_bare, kind] = desks[is_bare].reply(item, kind)
            if progress:
                progress(number * len(due) + place, len(items) * len(due))
        for system in systems:
            found[system.name].append(replies[_voice(system, bare is not None)])
    return found


def voices(systems: Sequence[System], has_bare: bool) -> list[tuple[bool, Phrases]]:
    """Return what has to be written for each question.

    Args:
        systems: Who answers.
        has_bare: Whether the bare LM is a model of its own.

    Returns:
        Whether that model writes, and with which phrases; each once.
    """
    return list(dict.fromkeys(_voice(system, has_bare) for system in systems))


def _voice(system: System, has_bare: bool) -> tuple[bool, Phrases]:
    return has_bare and system.is_bare, system.phrases


class _Desk:
    """Where one model answers, and its answers are kept."""

    def __init__(
        self,
        lm: DynamicLM,
        protocol: AsqaProtocol,
        sources: Mapping[Phrases, PhraseSource | None],
        folder: Path | None,
    ) -> None:
        self._lm, self._how, self._sources = lm, protocol, sources
        if folder:
            _make(folder)
        self._cache = ResultCache(folder, _key(lm, protocol))

    def reply(self, item: Item, kind: Phrases) -> Reply:
        """Return the answer that is kept, or make it."""
        known = self._cache.get(item.key, kind)
        if known is None:
            self._cache.put(item.key, kind, asdict(self._write(item, kind)))
            known = self._cache.get(item.key, kind)
        return Reply(**known)

    def _write(self, item: Item, kind: Phrases) -> Reply:
        how = self._how
        # An answer must not depend on which ones were kept before.
        self._lm.forget()
        found = answer(
            self._lm,
            item.question,
            _Shown(item.passages),
            k=len(item.passages),
            phrases="none",
            source=self._sources[kind],
            cite=how.cite,
            encode_marker=how.encode_marker,
            shots=how.shots,
            chat=how.chat,
            **how.options,
        )
        inline = cited_text(found.generation, found.passages, "inline", how.cite)
        stats = found.generation.stats
        return Reply(
            {"typed": found.generation.text, "sentence": found.rendered, "inline": str(inline)},
            phrase_share=stats.phrase_share,
            finish_reason=found.generation.finish_reason,
        )


class _Shown:
    """Finds an item's passages, all and in order, whatever is asked: numbers are theirs."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._hits = []
        seen: dict[str, int] = {}
        for title, text in passages:
            # Passages may be of one article; a citation has to tell them apart.
            seen[title] = seen.get(title, 0) + 1
            name = title if seen[title] == 1 else f"{title} ({seen[title]})"
            self._hits.append(Hit(Chunk(name, 0, text.strip()), 1.0))

    def search(self, query: str, k: int) -> list[Hit]:
        """Return the passages."""
        return self._hits[:k]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"answers cannot be kept in {str(folder)!r}: {error.strerror}. Name another folder."
        ) from error


def _source(kind: Phrases, parser: str) -> PhraseSource | None:
    if kind == "none":
        return None
    return ngrams() if kind == "ngrams" else parsed_chunks(parser)


def _key(lm: DynamicLM, protocol: AsqaProtocol) -> str:
    """Return a hash of all that answers depend on but the item."""
    shown = question_prompt("", (), protocol.shots)
    return results_key(lm, None, {"what": "asqa", "prompt": shown} | asdict(protocol))


def _read_json(path: Path) -> object:
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        raise DocumentError(
            f"there is no file {str(path)!r}. Give ASQA questions with documents: ALCE's "
            "asqa_eval_gtr_top100.json, or a file of the same shape."
        ) from None
    except (OSError, EOFError, ValueError) as error:
        raise DocumentError(
            f"{str(path)!r} cannot be read as JSON: {error}. Get it anew."
        ) from error


def _item(given: Any, place: int, path: Path, documents: int) -> Item:  # noqa: ANN401  (JSON)
    try:
        item = Item(
            question=str(given["question"]),
            passages=tuple(
                Passage(str(own["title"]), str(own["text"])) for own in given["docs"][:documents]
            ),
            pairs=tuple(
                SubQuestion(str(own["question"]), tuple(map(str, own["short_answers"])))
                for own in given["qa_pairs"]
            ),
            long_answers=tuple(str(own["long_answer"]) for own in given["annotations"]),
        )
    except (KeyError, TypeError) as error:
        raise DocumentError(
            f"item {place} of {str(path)!r} is no question of ASQA with documents: {error!r}. It "
            "needs question, qa_pairs, annotations and docs, as ALCE's file has them."
        ) from error
    if len(item.passages) < documents:
        raise DocumentError(
            f"item {place} of {str(path)!r} has {len(item.passages)} documents; {documents} are "
            "to be shown. Give a file with more, or ask for fewer."
        )
    return item
