"""What a corpus would cost to build, estimated from a sample."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from univerb.corpus.manifest import CorpusSettings
from univerb.corpus.mine import MinedPhrases, mine_phrases
from univerb.corpus.shards import GAP
from univerb.documents.chunks import chunked
from univerb.documents.sentences import splitter_named
from univerb.errors import DocumentError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document, Phrase
from univerb.phrases.tokenized import TokenArrays, tokenize_lines
from univerb.retrieval.methods import method_named

_SAMPLE = 400_000
_ENCODED = 2048


@dataclass(frozen=True, slots=True)
class Estimate:
    """Size of a corpus, and the seconds that one core would take to build it."""

    documents: int
    characters: int
    tokens: int
    phrases: int
    bytes: int
    text_seconds: float
    """Chunking, tokenizing, retrieval features and counting."""
    encode_seconds: float
    is_capped: bool
    """Whether there would be more phrases than the settings allow."""


def estimate(
    documents: Sequence[Document], lm: DynamicLM, settings: CorpusSettings | None = None
) -> Estimate:
    """Estimate the cost of building a corpus.

    Phrases are extrapolated by the rate at which their number grows within a sample.
    """
    if not documents:
        raise DocumentError("there are no documents to estimate the cost of. Give at least one.")
    settings = settings or CorpusSettings()
    characters = sum(len(document.text) for document in documents)
    sample = _sample(documents, characters)
    scale = characters / max(sum(len(document.text) for document in sample), 1)
    began = time.process_time()
    halves = _tokenized_halves(sample, lm, settings)
    mined = mine_phrases(TokenArrays.concatenate(halves), settings)
    seconds = time.process_time() - began
    half = len(mine_phrases(halves[0], settings))
    growth = math.log2(max(len(mined), 2) / half) if half else 1.0
    expected = int(len(mined) * scale ** min(max(growth, 0.0), 1.5))
    phrases = min(expected, settings.max_phrases)
    tokens = int(sum((arrays.ids >= 0).sum() for arrays in halves) * scale)
    row = lm.width * (1 if lm.is_tied else 2) * numpy.dtype(settings.dtype).itemsize
    return Estimate(
        documents=len(documents),
        characters=characters,
        tokens=tokens,
        phrases=phrases,
        bytes=int(characters * 1.3 + 5 * tokens + phrases * (64 + row * settings.vectors)),
        text_seconds=seconds * scale,
        encode_seconds=_encode_seconds(lm, mined, phrases) if settings.vectors else 0.0,
        is_capped=expected > settings.max_phrases,
    )


def _tokenized_halves(
    sample: Sequence[Document], lm: DynamicLM, settings: CorpusSettings
) -> list[TokenArrays]:
    """Do for a sample what is done for each shard; return the tokens of every other chunk."""
    splitter = splitter_named(settings.splitter)
    chunks = [c.text for d in sample for c in chunked(d, settings.max_words, 0, splitter)]
    method_named(settings.method).features(chunks)
    texts = [GAP.join(half) for half in (chunks[::2], chunks[1::2]) if half]
    return [tokenize_lines(Document(text, "sample"), lm.tokenizer).arrays() for text in texts]


def _sample(documents: Sequence[Document], characters: int) -> list[Document]:
    """Choose documents evenly, cut to some hundred thousand characters in all."""
    step = max(math.ceil(characters / _SAMPLE), 1)
    chosen = documents[:: min(step, max(len(documents) // 8, 1))]
    each = max(_SAMPLE // len(chosen), 1000)
    cut = [Document(d.text[:each], d.name) for d in chosen if d.text[:each].strip()]
    return cut or list(documents[:1])


def _encode_seconds(lm: DynamicLM, phrases: MinedPhrases, count: int) -> float:
    keys = phrases.keys(_ENCODED)
    if not keys:
        return 0.0
    texts = lm.tokenizer.decode_all(keys)
    began = time.process_time()
    lm.encoder.encode([Phrase(k, t) for k, t in zip(keys, texts, strict=True)], lm.embeddings)
    return (time.process_time() - began) / len(keys) * count
