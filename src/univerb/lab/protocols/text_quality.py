"""Quality of generated texts: MAUVE, repetition, perplexity and compression.

Texts are joined as the scripts behind the published values do (docs/method.md).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy
from numpy.typing import NDArray
from pydantic import TypeAdapter

from univerb.errors import OptionError
from univerb.lab.metrics.compression import Compression, compression
from univerb.lab.metrics.mauve import Mauve, cog_pair, matched_pair, mauve, quantise
from univerb.lab.metrics.repetition import Repetition, repetition, words
from univerb.lab.protocols.featuriser import Featuriser
from univerb.lab.protocols.generation_runner import GeneratedText, Progress
from univerb.lab.protocols.lm_scorer import TextScorer
from univerb.lab.protocols.passages import Passage
from univerb.lab.protocols.result_cache import ResultCache, short_hash
from univerb.tokenizer import Tokenizer

Features = NDArray[numpy.float32]
MIN_TEXTS = 20
"""MAUVE of fewer texts has no two clusters of ten."""


@dataclass(frozen=True, slots=True)
class TextQuality:
    """The measurements of one system's texts."""

    mauve_cog: Mauve | None
    """As the published values: references keep their length. None without a featuriser, or if there
    are too few texts."""
    mauve_matched: Mauve | None
    """Both sides equally long."""
    repetition: Repetition
    """Prefix and text, cut to the reference's length."""
    ppl: float
    """Of one stream."""
    ppl_per_sample: float
    compression: Compression
    splitter: str
    """What split the words."""


_QUALITY = TypeAdapter(TextQuality)


class QualityMeter:
    """Measures texts of a tokenizer; results are kept by a hash of all models.

    The scorer gives perplexities, the featuriser what MAUVE compares.
    """

    def __init__(
        self,
        scorer: TextScorer,
        featuriser: Featuriser | None,
        tokenizer: Tokenizer,
        cache: ResultCache,
        progress: Progress | None = None,
    ) -> None:
        self._scorer, self._featuriser, self._tokenizer = scorer, featuriser, tokenizer
        self._cache, self._progress = cache, progress
        self._features: dict[str, Features] = {}

    def measure(self, passages: Sequence[Passage], texts: Sequence[GeneratedText]) -> TextQuality:
        """Measure the continuations of passages, in the same order."""
        if [passage.name for passage in passages] != [text.passage for text in texts]:
            raise OptionError("the texts are not those of the passages. Give both in one order.")
        models = [model.fingerprint for model in (self._scorer, self._featuriser) if model]
        scoring = [*models, words("").splitter]
        content = [scoring, [(passage.prefix, passage.reference) for passage in passages]]
        key = short_hash([content, [text.ids for text in texts]])
        if self._cache.get(key, "quality") is None:
            self._cache.put(key, "quality", asdict(self._measured(passages, texts)))
        return _QUALITY.validate_python(self._cache.get(key, "quality"))

    def _measured(self, passages: Sequence[Passage], texts: Sequence[GeneratedText]) -> TextQuality:
        decode = self._tokenizer.decode
        prefixes = [decode(passage.prefix) for passage in passages]
        streams = [prefix + text.text for prefix, text in zip(prefixes, texts, strict=True)]
        as_long = [text.ids[: len(p.reference)] for p, text in zip(passages, texts, strict=True)]
        split = [words(f"{p} {decode(ids)}") for p, ids in zip(prefixes, as_long, strict=True)]
        return TextQuality(
            mauve_cog=self._cog(passages, prefixes, texts),
            mauve_matched=self._matched(passages, texts),
            repetition=repetition([each.tokens for each in split]),
            ppl=self._scorer.stream_perplexity(streams, self._progress),
            ppl_per_sample=self._scorer.per_sample_perplexity(streams, self._progress),
            compression=compression([text.as_units() for text in texts]),
            splitter=split[0].splitter,
        )

    def _cog(
        self, passages: Sequence[Passage], prefixes: Sequence[str], texts: Sequence[GeneratedText]
    ) -> Mauve | None:
        references = [self._tokenizer.decode(passage.reference) for passage in passages]
        pairs = map(cog_pair, prefixes, references, [text.text for text in texts])
        return self._mauve([pair for pair in pairs if pair])

    def _matched(self, passages: Sequence[Passage], texts: Sequence[GeneratedText]) -> Mauve | None:
        both, decode = zip(passages, texts, strict=True), self._tokenizer.decode
        pairs = [matched_pair(p.prefix, p.reference, text.ids) for p, text in both]
        return self._mauve([(decode(pair[0]), decode(pair[1])) for pair in pairs if pair])

    def _mauve(self, pairs: Sequence[tuple[str, str]]) -> Mauve | None:
        if self._featuriser is None or len(pairs) < MIN_TEXTS:
            return None
        sides = []
        for texts in zip(*pairs, strict=True):
            # References are the same for all systems.
            key = short_hash(texts)
            if key not in self._features:
                self._features[key] = self._featuriser.features(texts, self._progress)
            sides.append(self._features[key])
        references, generated = sides
        return mauve(quantise(references, generated))
