"""What a corpus would cost, told from a sample before anything is built."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from univerb.corpus.manifest import CorpusSettings
from univerb.corpus.mine import MinedPhrases, mine_phrases
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
    """How large a corpus would be, and how many seconds of one core it would take."""

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
    """Tell what building a corpus would cost.

    Args:
        documents: What would be indexed.
        lm: The model.
        settings: How it would be built.

    Returns:
        The estimate; phrases are extrapolated by the rate at which they grow within the sample.

    Raises:
        DocumentError: If there are no documents.
    """
    if not documents:
        raise DocumentError("there are no documents to estimate the cost of. Give at least one.")
    how = settings or CorpusSettings()
    characters = sum(len(document.text) for document in documents)
    sample = _sample(documents, characters)
    began = time.process_time()
    chunks = [
        c.text for d in sample for c in chunked(d, how.max_words, 0, splitter_named(how.splitter))
    ]
    method_named(how.method).features(chunks)
    halves = [chunks[::2], chunks[1::2]]
    runs = [
        tokenize_lines(Document("\n\n".join(h), "sample"), lm.tokenizer).arrays()
        for h in halves
        if h
    ]
    whole = mine_phrases(TokenArrays.concatenate(runs), how)
    seconds = time.process_time() - began
    half = mine_phrases(runs[0], how)
    scale = characters / max(sum(len(document.text) for document in sample), 1)
    growth = math.log2(max(len(whole), 2) / max(len(half), 1)) if len(half) else 1.0
    expected = int(len(whole) * scale ** min(max(growth, 0.0), 1.5))
    phrases = min(expected, how.max_phrases)
    token_count = int(sum((run.ids >= 0).sum() for run in runs) * scale)
    row = lm.width * (1 if lm.is_tied else 2) * numpy.dtype(how.dtype).itemsize
    return Estimate(
        documents=len(documents),
        characters=characters,
        tokens=token_count,
        phrases=phrases,
        bytes=int(characters * 1.3 + 5 * token_count + phrases * (64 + row * how.vectors)),
        text_seconds=seconds * scale,
        encode_seconds=_encode_seconds(lm, whole, phrases) if how.vectors else 0.0,
        is_capped=expected > how.max_phrases,
    )


def _sample(documents: Sequence[Document], characters: int) -> list[Document]:
    """Take documents from everywhere, cut to some hundred thousand characters in all."""
    step = max(math.ceil(characters / _SAMPLE), 1)
    chosen = documents[:: min(step, max(len(documents) // 8, 1))]
    each = max(_SAMPLE // len(chosen), 1000)
    cut = [Document(d.text[:each], d.name) for d in chosen if d.text[:each].strip()]
    return cut or list(documents[:1])


def _encode_seconds(lm: DynamicLM, phrases: MinedPhrases, count: int) -> float:
    if not len(phrases):
        return 0.0
    chosen = min(_ENCODED, len(phrases))
    ends = phrases.ends[:chosen].tolist()
    edges = zip([0, *ends[:-1]], ends, strict=True)
    keys = [tuple(phrases.tokens[a:b].tolist()) for a, b in edges]
    texts = lm.tokenizer.decode_all(keys)
    began = time.process_time()
    lm.encoder.encode([Phrase(k, t) for k, t in zip(keys, texts, strict=True)], lm.embeddings)
    return (time.process_time() - began) / chosen * count
