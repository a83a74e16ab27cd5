"""How likely phrases make the text that really follows (docs/method.md, Metrics: perplexity)."""

from collections.abc import Sequence
from dataclasses import dataclass

from univerb.decoding.text_scores import TextScores
from univerb.modeling.likelihood import bits_per_byte, exact_likelihood, strict_likelihood


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


def true_text(scores: TextScores, size: int, biases: Sequence[float]) -> TrueText:
    """Measure the truth of one document.

    Args:
        scores: The phrases along it.
        size: Bytes of the truth.
        biases: Values of `phrase_bias`.

    Returns:
        Its log-probabilities.
    """
    texts = [scores.scored(bias) for bias in biases]
    return TrueText(
        tokens=len(scores.ids),
        bytes=size,
        bare=scores.bare_likelihood,
        biases=list(biases),
        exact=[exact_likelihood(text) for text in texts],
        strict=[strict_likelihood(text) for text in texts],
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
