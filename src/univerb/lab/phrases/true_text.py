"""How likely phrases make the text that really follows (docs/method.md, Metrics: perplexity)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from univerb.lab.phrases.reading import Reading
from univerb.modeling.likelihood import (
    Key,
    bare_likelihood,
    bits_per_byte,
    exact_likelihood,
    match_phrases,
    scored_text,
    strict_likelihood,
)


@dataclass(frozen=True, slots=True)
class TrueText:
    """Log-probabilities of second halves, in nats, added up over documents."""

    tokens: int
    bytes: int
    bare: float
    """Of the LM without phrases."""
    biases: list[float]
    exact: list[float]
    """By bias: over all segmentations of the text."""
    strict: list[float]
    """By bias: of one segmentation, the longest phrase first."""

    @property
    def bare_bits(self) -> float:
        """Bits per byte of the LM without phrases."""
        return bits_per_byte(self.bare, self.bytes)

    def exact_bits(self, bias: float) -> float:
        """Bits per byte over all segmentations, at one of the biases."""
        return bits_per_byte(self.exact[self.biases.index(bias)], self.bytes)

    def strict_bits(self, bias: float) -> float:
        """Bits per byte of the one segmentation, at one of the biases."""
        return bits_per_byte(self.strict[self.biases.index(bias)], self.bytes)


def true_text(
    reading: Reading, keys: Sequence[Key], scores: Tensor, size: int, biases: Sequence[float]
) -> TrueText:
    """Measure the truth of one document.

    Args:
        reading: The LM's pass over it.
        keys: The phrases' tokens.
        scores: Their logits along the truth, (T + 1, P).
        size: Bytes of the truth.
        biases: Values of `phrase_bias`.

    Returns:
        Its log-probabilities.
    """
    logits, ids = reading.logits[:-1], torch.tensor(reading.truth, device=reading.logits.device)
    text = scored_text(
        match_phrases(reading.truth, keys),
        logits.gather(1, ids[:, None])[:, 0].cpu().numpy(),
        logits.double().logsumexp(-1).cpu().numpy(),
        scores[:-1].cpu().numpy(),
    )
    return TrueText(
        tokens=len(reading.truth),
        bytes=size,
        bare=bare_likelihood(text),
        biases=list(biases),
        exact=exact_likelihood(text, biases).tolist(),
        strict=strict_likelihood(text, biases).tolist(),
    )


def pool_true_text(documents: Sequence[TrueText]) -> TrueText:
    """Add up documents, all measured at the same biases."""
    return TrueText(
        tokens=sum(text.tokens for text in documents),
        bytes=sum(text.bytes for text in documents),
        bare=sum(text.bare for text in documents),
        biases=documents[0].biases,
        exact=[sum(values) for values in zip(*(text.exact for text in documents), strict=True)],
        strict=[sum(values) for values in zip(*(text.strict for text in documents), strict=True)],
    )
