"""Generates a continuation of each passage for each system, and keeps the texts as they come.

Passages are continued in groups, one batch each. A group is kept as a whole: a run that was killed
generates the group that it was at again, in the same batch, and ends with the same texts.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary

from univerb.config import Growth
from univerb.corpus.corpus import Corpus
from univerb.decoding.growth import RealTime
from univerb.decoding.loop import batch
from univerb.decoding.results import Generation
from univerb.lab.metrics.compression import Units
from univerb.lab.protocols.passages import Passage
from univerb.lab.protocols.result_cache import ResultCache, short_hash
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase
from univerb.phrases.guards import PAPER_GUARDS
from univerb.vocabulary import DynamicVocabulary

GROUP_SIZE = 16
"""Passages in a batch: more take longer in proportion."""
MANY_CHUNKS = 64
"""All n-grams of more chunks than this are so many that passages are continued one by one."""
GREEDY, NUCLEUS = "greedy", "nucleus"
DECODINGS: dict[str, dict[str, Any]] = {GREEDY: {}, NUCLEUS: {"temperature": 1.0, "top_p": 0.95}}
Progress = Callable[[int, int], None]
"""Called with the number of passages that are done, and of all."""


@dataclass(frozen=True, slots=True)
class TextSystem:
    """A system: its options of decoding, and its phrases."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of decoding; others are the profile's."""
    has_phrases: bool = True
    lm: str = ""
    """A hash of the weights of the LM that generates, if it is not the model at hand."""
    k: int | None = None
    """Chunks to retrieve for a prefix, if not the task's number."""
    max_phrases: int | None = None
    """Only the phrases that save the most tokens, of those that the prefix retrieves."""
    start: float = 1.0
    """The share of the phrases that a text begins with."""
    grows: bool = False
    """Whether the other phrases are added as the text grows."""


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """A system with one of `DECODINGS`."""

    system: TextSystem
    decoding: str

    @property
    def key(self) -> str:
        """Everything that the job's texts depend on, whatever the system is called."""
        content = asdict(self.system) | {"decoding": DECODINGS[self.decoding]}
        del content["name"]
        return json.dumps(content, sort_keys=True)

    @property
    def options(self) -> dict[str, Any]:
        """Options of decoding."""
        # A prefix that was read before must change neither texts nor times.
        return {**self.system.options, **DECODINGS[self.decoding], "prefix_cache": False}


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """The continuation of a passage."""

    passage: str
    text: str
    ids: list[int]
    """Base tokens."""
    units: int
    steps: int
    """Passes of the backbone, with that over the prefix: it decides the first unit."""
    phrase_lengths: list[int]
    """The tokens of each phrase."""
    phrases: int
    """Number of phrases in the vocabulary at the end."""

    def as_units(self) -> Units:
        """Return what compression is measured on."""
        size = len(self.text.encode())
        return Units(size, self.units, len(self.ids), tuple(self.phrase_lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTask:
    """What all systems have in common."""

    k: int = 32
    """Chunks to retrieve for a prefix."""
    max_tokens: int = 128
    """Base tokens to generate. The end token counts as any other: no text is shorter."""
    overshoot: Literal["allow", "forbid"] = "allow"
    """Whether a last phrase may run over this number, as it may in the paper."""
    offered: Literal["all", "stored"] = "all"
    """All n-grams of the retrieved chunks, or those that the corpus has a vector for."""
    seed: int = 0


class GenerationRunner:
    """Has systems continue passages, and keeps the texts.

    Args:
        lm: The model.
        corpus: Where phrases come from.
        task: What all systems have in common.
        cache: Where texts are kept; its key must cover model, corpus, task and test set.
        others: LMs with the same tokenizer that some systems name, by a hash of their weights.
    """

    def __init__(
        self,
        lm: DynamicLM,
        corpus: Corpus | None,
        task: GenerationTask,
        cache: ResultCache,
        others: Mapping[str, DynamicLM] | None = None,
    ) -> None:
        self._lm, self._corpus, self._task, self._cache = lm, corpus, task, cache
        self._others = others or {}
        if corpus and corpus.has_vectors and corpus.fingerprint == lm.fingerprint():
            lm.attach(corpus)

    def generate(
        self,
        passages: Sequence[Passage],
        jobs: Sequence[GenerationJob],
        progress: Progress | None = None,
    ) -> list[list[GeneratedText]]:
        """Return the texts of each job, in the order of the passages."""
        texts: list[list[GeneratedText]] = [[] for _ in jobs]
        chunks = max((job.system.k or self._task.k for job in jobs), default=0)
        is_large = self._task.offered == "all" and chunks > MANY_CHUNKS
        size = 1 if is_large else GROUP_SIZE
        for begin in range(0, len(passages), size):
            group = passages[begin : begin + size]
            for of_job, new in zip(texts, self._group(group, jobs), strict=True):
                of_job += new
            if progress:
                progress(begin + len(group), len(passages))
        return texts

    def lm_of(self, system: TextSystem) -> DynamicLM:
        """Return the LM that generates a system's texts."""
        return self._others[system.lm] if system.lm else self._lm

    def prompt(self, passage: Passage) -> list[int]:
        """Return what the LM reads: the prefix, behind the tokens that begin a prompt."""
        return [*self._lm.tokenizer.encode_prompt(""), *passage.prefix]

    def phrases(self, passage: Passage, system: TextSystem) -> list[Phrase]:
        """Return the phrases of the chunks that a prefix retrieves for a system."""
        if self._corpus is None:
            return []
        query, k = self._lm.tokenizer.decode(passage.prefix), system.k or self._task.k
        has_all = self._task.offered == "all"
        return self._corpus.select(
            query, self._lm.tokenizer, k, others=has_all, guards=PAPER_GUARDS
        ).phrases

    def vocabularies(
        self, phrases: Sequence[Sequence[Phrase]], system: TextSystem
    ) -> tuple[list[DynamicVocabulary], Growth | None]:
        """Return a vocabulary for the phrases of each passage, and what makes them grow, if any."""
        size = self._lm.static_size
        chosen = [candidates[: system.max_phrases] for candidates in phrases]
        if system.start == 1.0:
            return [DynamicVocabulary(size, candidates) for candidates in chosen], None
        vocabularies = [DynamicVocabulary(size) for _ in chosen]
        policies = WeakKeyDictionary(
            {
                vocabulary: RealTime(candidates, start=system.start, seed=self._task.seed)
                for vocabulary, candidates in zip(vocabularies, chosen, strict=True)
            }
        )
        for vocabulary, policy in policies.items():
            policy(vocabulary, 0)

        def grow(vocabulary: DynamicVocabulary, produced: int) -> None:
            policies[vocabulary](vocabulary, produced)

        return vocabularies, grow if system.grows else None

    def _group(
        self, group: Sequence[Passage], jobs: Sequence[GenerationJob]
    ) -> list[list[GeneratedText]]:
        key = short_hash([(passage.name, passage.prefix) for passage in group])
        # One search serves all systems that retrieve the same number of chunks.
        retrieved: dict[int | None, list[list[Phrase]]] = {}
        for job in jobs:
            if self._cache.get(key, job.key) is None:
                k = job.system.k
                if job.system.has_phrases and k not in retrieved:
                    retrieved[k] = [self.phrases(passage, job.system) for passage in group]
                # A text must not depend on what was generated or kept before.
                self.lm_of(job.system).forget()
                texts = self._generated(group, retrieved.get(k, []), job)
                self._cache.put(key, job.key, {"texts": [asdict(text) for text in texts]})
        kept = [self._cache.get(key, job.key)["texts"] for job in jobs]
        return [[GeneratedText(**text) for text in texts] for texts in kept]

    def _generated(
        self, group: Sequence[Passage], phrases: Sequence[Sequence[Phrase]], job: GenerationJob
    ) -> list[GeneratedText]:
        vocabularies, growth = None, None
        if job.system.has_phrases:
            vocabularies, growth = self.vocabularies(phrases, job.system)
        generations = batch(
            self.lm_of(job.system),
            [self.prompt(passage) for passage in group],
            vocabularies,
            seeds=[_seed(self._task.seed, passage) for passage in group],
            max_tokens=self._task.max_tokens,
            overshoot=self._task.overshoot,
            ignore_eos=True,
            growth=growth,
            **job.options,
        )
        return [_text(*both) for both in zip(group, generations, strict=True)]


def _text(passage: Passage, generation: Generation) -> GeneratedText:
    stats = generation.stats
    return GeneratedText(
        passage=passage.name,
        text=generation.text,
        ids=[token for piece in generation.pieces for token in piece.ids],
        units=stats.units,
        steps=stats.steps + 1,
        phrase_lengths=sorted(stats.phrase_lengths.elements()),
        phrases=stats.phrases,
    )


def _seed(seed: int, passage: Passage) -> int:
    """Return a seed for one passage: with the same for all, all would draw alike."""
    return int(short_hash([seed, passage.name, passage.prefix])[:15], 16)
