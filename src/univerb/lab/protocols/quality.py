"""What written texts are worth: how like real ones, how varied, how likely, how compressed.

Texts are put together as the published figures' scripts do (METHOD C.1 to C.5).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from univerb.errors import OptionError
from univerb.lab.metrics.compression import Compression, compression
from univerb.lab.metrics.mauve import (
    MAX_TOKENS,
    Clusters,
    Mauve,
    cog_pair,
    matched_pair,
    mauve,
    quantise,
)
from univerb.lab.metrics.repetition import Repetition, repetition, words
from univerb.lab.protocols.cache import ResultCache
from univerb.lab.protocols.continuations import Text
from univerb.lab.protocols.passages import Passage
from univerb.lab.protocols.scorers import Progress, TextScorer
from univerb.tokenizer import Tokenizer

Features = NDArray[numpy.float32]
FEWEST = 20
"""MAUVE of fewer texts has no two clusters of ten."""


@dataclass(frozen=True, slots=True)
class Quality:
    """The figures of one system's texts."""

    cog: list[Clusters]
    """Of `mauve_cog`, by seed; empty if there are too few texts."""
    matched: list[Clusters]
    """Of `mauve_matched`."""
    repetition: Repetition
    """Prefix and text, cut to the reference's length."""
    whole: Repetition
    """The text alone, all of it."""
    ppl: float
    """Of one stream."""
    ppl_per_sample: float
    compression: Compression
    splitter: str
    """What split the words."""

    @property
    def mauve_cog(self) -> Mauve | None:
        """MAUVE as the published figures have it: references keep their length."""
        return mauve(self.cog) if self.cog else None

    @property
    def mauve_matched(self) -> Mauve | None:
        """MAUVE where both sides are equally long."""
        return mauve(self.matched) if self.matched else None


class Assessor:
    """Scores texts, and keeps what it found.

    Args:
        scorer: Makes perplexities and features.
        tokenizer: That of the passages.
        cache: Where figures are kept, under a hash of texts and scorer.
        progress: Is told how many texts of a step are read.
    """

    def __init__(
        self,
        scorer: TextScorer,
        tokenizer: Tokenizer,
        cache: ResultCache,
        progress: Progress | None = None,
    ) -> None:
        self._scorer, self._tokenizer = scorer, tokenizer
        self._cache, self._progress = cache, progress
        self._features: dict[str, Features] = {}

    def assess(self, passages: Sequence[Passage], texts: Sequence[Text]) -> Quality:
        """Measure what a system wrote.

        Args:
            passages: What it went on from.
            texts: What it wrote, in the same order.

        Returns:
            The figures.

        Raises:
            OptionError: If they are not about the same passages.
        """
        if [own.name for own in passages] != [text.passage for text in texts]:
            raise OptionError("the texts are not those of the passages. Give both in one order.")
        how = [self._scorer.fingerprint, words("").splitter]
        content = [how, [(p.prefix, p.reference) for p in passages]]
        key = _digest([content, [text.ids for text in texts]])
        known = self._cache.get(key, "quality")
        if known is None:
            found = self._measured(passages, texts)
            self._cache.put(key, "quality", _as_json(found))
            known = self._cache.get(key, "quality")
        return _from_json(known, compression([text.as_units() for text in texts]))

    def _measured(self, passages: Sequence[Passage], texts: Sequence[Text]) -> Quality:
        prefixes = [self._tokenizer.decode(own.prefix) for own in passages]
        streams = [prefix + text.text for prefix, text in zip(prefixes, texts, strict=True)]
        cut = [
            self._tokenizer.decode(text.ids[: len(own.reference)])
            for own, text in zip(passages, texts, strict=True)
        ]
        split = [words(f"{prefix} {text}") for prefix, text in zip(prefixes, cut, strict=True)]
        return Quality(
            cog=self._cog(passages, prefixes, texts),
            matched=self._matched(passages, texts),
            repetition=repetition([own.tokens for own in split]),
            whole=repetition([words(text.text).tokens for text in texts]),
            ppl=self._scorer.stream_perplexity(streams, self._progress),
            ppl_per_sample=self._scorer.per_sample_perplexity(streams, self._progress),
            compression=compression([text.as_units() for text in texts]),
            splitter=split[0].splitter,
        )

    def _cog(
        self, passages: Sequence[Passage], prefixes: Sequence[str], texts: Sequence[Text]
    ) -> list[Clusters]:
        each = zip(passages, prefixes, texts, strict=True)
        pairs = [cog_pair(p, self._tokenizer.decode(own.reference), t.text) for own, p, t in each]
        encode = self._scorer.tokenizer.encode_prompt
        return self._clusters([(encode(own[0]), encode(own[1])) for own in pairs if own])

    def _matched(self, passages: Sequence[Passage], texts: Sequence[Text]) -> list[Clusters]:
        both = zip(passages, texts, strict=True)
        pairs = [matched_pair(own.prefix, own.reference, text.ids) for own, text in both]
        return self._clusters([(self._own(own[0]), self._own(own[1])) for own in pairs if own])

    def _own(self, ids: Sequence[int]) -> list[int]:
        """Return tokens of the scorer for tokens of the passages."""
        if self._scorer.tokenizer.fingerprint() == self._tokenizer.fingerprint():
            return list(ids)
        return self._scorer.tokenizer.encode_prompt(self._tokenizer.decode(ids))

    def _clusters(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Clusters]:
        if len(pairs) < FEWEST:
            return []
        reference = self._read([pair[0] for pair in pairs])
        return quantise(reference, self._read([pair[1] for pair in pairs]))

    def _read(self, texts: Sequence[Sequence[int]]) -> Features:
        """Return the features of texts; references are the same for all systems."""
        cut = [list(ids[:MAX_TOKENS]) for ids in texts]
        key = _digest(cut)
        if key not in self._features:
            self._features[key] = self._scorer.features(cut, progress=self._progress)
        return self._features[key]


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _as_json(found: Quality) -> dict[str, Any]:
    clusters = {
        name: [
            {
                "reference": own.reference.tolist(),
                "generated": own.generated.tolist(),
                "count": own.count,
            }
            for own in getattr(found, name)
        ]
        for name in ("cog", "matched")
    }
    own = {name: asdict(getattr(found, name)) for name in ("repetition", "whole")}
    rest = {name: getattr(found, name) for name in ("ppl", "ppl_per_sample", "splitter")}
    return {**clusters, **own, **rest}


def _from_json(given: dict[str, Any], own: Compression) -> Quality:
    clusters = {
        name: [
            Clusters(numpy.array(one["reference"]), numpy.array(one["generated"]), one["count"])
            for one in given[name]
        ]
        for name in ("cog", "matched")
    }
    repeated = {
        # JSON has made texts of the numbers.
        name: Repetition(
            {int(n): rep for n, rep in given[name]["rep"].items()}, given[name]["diversity"]
        )
        for name in ("repetition", "whole")
    }
    return Quality(**{**given, **clusters, **repeated}, compression=own)
