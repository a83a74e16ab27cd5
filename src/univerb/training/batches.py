"""The batches of a run of the paper's regimes, each a function of the seed and its passages."""

from collections.abc import Sequence

import numpy
from transformers import PreTrainedModel

from univerb.errors import DocumentError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.tokenized import TokenArrays, TokenizedText, tokenize_text
from univerb.training.batch import MixedBatch
from univerb.training.collate import collate
from univerb.training.config import TrainingConfig
from univerb.training.negatives import Generations, barred_ids
from univerb.training.samples import make_builder
from univerb.training.suffixes import Suffixes
from univerb.training.texts import Texts


class Batches:
    """Passages with phrases in them, and the pools that these are told apart in.

    Args:
        config: The run.
        lm: The LM that will read them.
        documents: The training text, where phrases and their continuations are looked up.
        original: The LM before training, which `generation` asks; None without it.
    """

    def __init__(
        self,
        config: TrainingConfig,
        lm: DynamicLM,
        documents: Sequence[Document],
        original: PreTrainedModel | None,
    ) -> None:
        self._seed = config.run.seed
        self._negatives = config.negatives
        self._static_size = lm.static_size
        self._build = make_builder(config.samples, documents, lm.tokenizer)
        self._generations: Generations | None = None
        self._suffixes: Suffixes | None = None
        if "generation" in config.negatives.kinds and original is not None:
            barred = barred_ids(lm.tokenizer, lm.static_size)
            self._generations = Generations(original, config.negatives.extensions, barred=barred)
        if "corpus-retrieval" in config.negatives.kinds:
            runs = (tokenize_text(document.text, lm.tokenizer).arrays() for document in documents)
            self._suffixes = Suffixes(TokenArrays.concatenate(runs).ids)

    def batch(self, texts: Texts, indices: range) -> MixedBatch:
        """Make the batch of some passages of a text.

        Args:
            texts: The text.
            indices: Which of its passages, in the order of the run.

        Returns:
            The batch.
        """
        passages = [_readable(texts, self._seed, index) for index in indices]
        samples = [
            self._build(text, numpy.random.default_rng((self._seed, index)))
            for index, text in zip(indices, passages, strict=True)
        ]
        barred = [text.is_masked for text in passages]
        return collate(
            samples,
            barred,
            self._negatives,
            self._static_size,
            self._generations,
            self._suffixes,
        )


def _readable(texts: Texts, seed: int, index: int) -> TokenizedText:
    """Return a passage, or the next one after it that has something to predict."""
    for place in range(index, index + len(texts)):
        if len((text := texts.passage(seed, place)).ids) >= 2:
            return text
    raise DocumentError("no passage of the text has two tokens. Give more text.")
