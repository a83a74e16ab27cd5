"""The batches of the regimes `full` and `lora`: a function of the seed and the passages."""

from collections.abc import Sequence

import numpy

from univerb.errors import DocumentError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.tokenized import TokenArrays, TokenizedText, tokenize_text
from univerb.training.config import TrainingConfig
from univerb.training.mixed_batch import MixedBatch, collate
from univerb.training.negatives import Continuations, Generator
from univerb.training.samples import make_builder
from univerb.training.suffix_array import SuffixArray
from univerb.training.training_passages import Passages


class BatchLoader:
    """Makes samples of passages, and the pools in which their phrases are contrasted.

    Phrases and their continuations are looked up in the training `documents`; `generation` asks
    the `generator`.
    """

    def __init__(
        self,
        config: TrainingConfig,
        lm: DynamicLM,
        documents: Sequence[Document],
        generator: Generator | None,
    ) -> None:
        self._seed = config.run.seed
        self._negatives = config.negatives
        self._static_size = lm.static_size
        self._build = make_builder(config.samples, documents, lm.tokenizer)
        self._lm: Continuations | None = None
        self._corpus: SuffixArray | None = None
        if "generation" in config.negatives.kinds and generator is not None:
            k = config.negatives.extensions
            self._lm = generator.continuations(lm.tokenizer, lm.static_size, k)
        if "corpus-retrieval" in config.negatives.kinds:
            runs = (tokenize_text(document.text, lm.tokenizer).arrays() for document in documents)
            self._corpus = SuffixArray(TokenArrays.concatenate(runs).ids)

    def load(self, passages: Passages, indices: range) -> MixedBatch:
        """Make the batch of the passages with these numbers."""
        texts = [_readable(passages, self._seed, index) for index in indices]
        samples = [
            self._build(text, numpy.random.default_rng((self._seed, index)))
            for index, text in zip(indices, texts, strict=True)
        ]
        forbidden = [text.is_masked for text in texts]
        return collate(
            samples, forbidden, self._negatives, self._static_size, self._lm, self._corpus
        )


def _readable(passages: Passages, seed: int, index: int) -> TokenizedText:
    """Return a passage, or the next one after it that has something to predict."""
    for number in range(index, index + len(passages)):
        if len((text := passages.tokens(seed, number)).ids) >= 2:
            return text
    raise DocumentError("no passage of the text has two tokens. Give more text.")
