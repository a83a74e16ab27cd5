"""What systems write after the prefixes of passages, kept as it comes.

Passages are written for in groups, one batch each. A group is kept as a whole: a run that was
killed makes the group that it was at anew, in the same batch, and ends with the same texts.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from univerb.config import Growth
from univerb.corpus.corpus import Corpus
from univerb.decoding.growth import RealTime
from univerb.decoding.loop import batch
from univerb.decoding.results import Generation
from univerb.lab.metrics.compression import Units
from univerb.lab.protocols.cache import ResultCache
from univerb.lab.protocols.passages import Passage
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

TOGETHER = 16
"""Passages in a batch: more take longer in proportion."""
GREEDY, NUCLEUS = "greedy", "nucleus"
DECODINGS: dict[str, dict[str, Any]] = {GREEDY: {}, NUCLEUS: {"temperature": 1.0, "top_p": 0.95}}
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the phrases that a text begins with, and whether the others come as it grows."""

    start: float = 1.0
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Writer:
    """A system: how it decodes, and with which phrases."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of decoding; what is not there is the profile's."""
    has_phrases: bool = True
    k: int | None = None
    """Chunks that a prefix retrieves, if not as many as the task says."""
    max_phrases: int | None = None
    """Of those that the passage retrieves, the ones that save the most tokens."""
    share: Share = Share()


@dataclass(frozen=True, slots=True)
class Job:
    """A system and how it chooses."""

    writer: Writer
    decoding: str
    """One of `DECODINGS`."""

    @property
    def label(self) -> str:
        """What its texts are kept under: all that they depend on, whatever it is called."""
        own = asdict(self.writer) | {"decoding": DECODINGS[self.decoding]}
        del own["name"]
        return json.dumps(own, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Text:
    """What a system wrote."""

    passage: str
    text: str
    ids: list[int]
    """Base tokens."""
    units: int
    steps: int
    """Passes of the backbone, that over the prefix included: it decides the first unit."""
    phrase_lengths: list[int]
    """The tokens of each phrase."""
    phrases: int
    """How many the vocabulary held at the end."""

    def as_units(self) -> Units:
        """Return what compression is measured on."""
        size = len(self.text.encode())
        return Units(size, self.units, len(self.ids), tuple(self.phrase_lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all systems have in common."""

    k: int = 32
    """Chunks that a prefix retrieves."""
    max_tokens: int = 128
    """Base tokens to write. The end token counts as any other, so that all texts are as long."""
    seed: int = 0


class Desk:
    """Has systems write, and keeps what they wrote.

    Args:
        lm: The model.
        corpus: Where phrases come from.
        task: What all systems have in common.
        cache: Where texts are kept; its key must cover model, corpus, task and test set.
    """

    def __init__(
        self, lm: DynamicLM, corpus: Corpus | None, task: Task, cache: ResultCache
    ) -> None:
        self._lm, self._corpus, self._task, self._cache = lm, corpus, task, cache
        if corpus and corpus.has_vectors and corpus.fingerprint == lm.fingerprint():
            lm.attach(corpus)

    def write(
        self, passages: Sequence[Passage], jobs: Sequence[Job], progress: Progress | None = None
    ) -> list[list[Text]]:
        """Return what each system writes, in the order of the passages.

        Args:
            passages: What to go on from.
            jobs: Who writes.
            progress: Is told how many passages are done, of how many.

        Returns:
            The texts of each job.
        """
        found: list[list[Text]] = [[] for _ in jobs]
        for begin in range(0, len(passages), TOGETHER):
            group = passages[begin : begin + TOGETHER]
            for own, texts in zip(found, self._group(group, jobs), strict=True):
                own += texts
            if progress:
                progress(begin + len(group), len(passages))
        return found

    def _group(self, group: Sequence[Passage], jobs: Sequence[Job]) -> list[list[Text]]:
        name = _digest(group)
        due = [job for job in jobs if self._cache.get(name, job.label) is None]
        # One look-up serves all systems.
        looked_up: dict[int | None, list[list[Phrase]]] = {}
        for job in due:
            if job.writer.has_phrases and job.writer.k not in looked_up:
                looked_up[job.writer.k] = [self.phrases(own, job.writer) for own in group]
            # What is written must not depend on what was written or kept before.
            self._lm.forget()
            texts = self._written(group, looked_up.get(job.writer.k, []), job)
            self._cache.put(name, job.label, {"texts": [asdict(text) for text in texts]})
        known = [self._cache.get(name, job.label)["texts"] for job in jobs]
        return [[Text(**text) for text in texts] for texts in known]

    def prompt(self, passage: Passage) -> list[int]:
        """Return what the LM reads: the prefix, behind the tokens that begin a prompt."""
        return [*self._lm.tokenizer.encode_prompt(""), *passage.prefix]

    def phrases(self, passage: Passage, writer: Writer) -> list[Phrase]:
        """Return the phrases of the chunks that a prefix retrieves for a system."""
        if self._corpus is None:
            return []
        query, k = self._lm.tokenizer.decode(passage.prefix), writer.k or self._task.k
        return self._corpus.select(query, self._lm.tokenizer, k).phrases

    def _written(
        self, group: Sequence[Passage], phrases: Sequence[Sequence[Phrase]], job: Job
    ) -> list[Text]:
        names, growth = None, None
        if job.writer.has_phrases:
            names, growth = self.vocabularies(phrases, job.writer)
        results = batch(
            self._lm,
            [self.prompt(passage) for passage in group],
            names,
            seeds=[_seed(self._task.seed, passage) for passage in group],
            max_tokens=self._task.max_tokens,
            ignore_eos=True,
            growth=growth,
            prefix_cache=False,
            **{**job.writer.options, **DECODINGS[job.decoding]},
        )
        return [_text(passage, made) for passage, made in zip(group, results, strict=True)]

    def vocabularies(
        self, phrases: Sequence[Sequence[Phrase]], writer: Writer
    ) -> tuple[list[DynamicVocabulary], Growth | None]:
        """Make the vocabularies that a system begins with, and what makes them grow.

        Args:
            phrases: Those that each passage retrieved.
            writer: The system.

        Returns:
            A vocabulary for each passage, and the policy for all of them.
        """
        size, share = self._lm.static_size, writer.share
        chosen = [own[: writer.max_phrases] for own in phrases]
        if share == Share():
            return [DynamicVocabulary(size, own) for own in chosen], None
        names = [DynamicVocabulary(size) for _ in chosen]
        policies = WeakKeyDictionary(
            {
                name: RealTime(own, start=share.start, seed=self._task.seed)
                for name, own in zip(names, chosen, strict=True)
            }
        )
        for name, policy in policies.items():
            policy(name, 0)

        def grow(name: DynamicVocabulary, produced: int) -> None:
            policies[name](name, produced)

        return names, grow if share.grows else None


def _text(passage: Passage, made: Generation) -> Text:
    return Text(
        passage=passage.name,
        text=made.text,
        ids=[token for piece in made.pieces for token in piece.ids],
        units=made.stats.units,
        steps=made.stats.steps + 1,
        phrase_lengths=sorted(made.stats.phrase_lengths.elements()),
        phrases=made.stats.phrases,
    )


def _digest(group: Sequence[Passage]) -> str:
    content = json.dumps([(own.name, own.prefix) for own in group])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _seed(seed: int, passage: Passage) -> int:
    """Return a seed of the passage's own: with one for all, all would draw alike."""
    content = json.dumps([seed, passage.name, passage.prefix])
    return int(hashlib.sha256(content.encode()).hexdigest()[:15], 16)
