"""How well one vector stands for the tokens of a phrase, right after it.

Two distributions over V are compared: the LM's after it has read a phrase as one vector, and after
it has read the phrase as its tokens. The training loss is KL(vector || tokens); the other direction
stands beside it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, Literal

import numpy
import torch
from torch import Tensor

from univerb.lab.phrases.reading import Reading
from univerb.modeling.branches import Branch
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase

Vector = Literal["encoder", "last token"]
Position = Literal["token", "unit"]
POSITIONS: tuple[Position, ...] = ("token", "unit")
KINDS: list[tuple[Vector, Position]] = list(product(("encoder", "last token"), POSITIONS))


@dataclass(frozen=True, slots=True)
class Divergence:
    """One kind of vector at one kind of position: a value for each phrase, in nats."""

    vector: Vector
    """The encoder's, or the LM's own row of the phrase's last token, which needs no training."""
    position: Position
    """By token a phrase sits at its last token's position, by unit at its first's."""
    vector_tokens: list[float]
    """KL(vector || tokens), the training loss."""
    tokens_vector: list[float]
    """KL(tokens || vector)."""

    def summary(self) -> dict[str, Any]:
        """Return means and 95th percentiles, as JSON can hold them."""
        return {
            "vector": self.vector,
            "position": self.position,
            "phrases": len(self.vector_tokens),
            "kl_vector_tokens": mean_and_p95(self.vector_tokens),
            "kl_tokens_vector": mean_and_p95(self.tokens_vector),
        }


def input_side(
    lm: DynamicLM,
    reading: Reading,
    spans: Sequence[tuple[int, int]],
    samples: int = 16,
    seed: str = "",
) -> list[Divergence]:
    """Feed stretches of the truth as one vector each and compare what the LM expects next.

    Args:
        lm: The model.
        reading: Its pass over the document.
        spans: Position and size of the stretches that could be phrases.
        samples: Maximum number of stretches, drawn at random.
        seed: Of the sample.

    Returns:
        The divergences, one for each of `KINDS`.
    """
    drawn = sorted(random.Random(seed).sample(spans, min(samples, len(spans))))
    keys = [tuple(reading.truth[start : start + size]) for start, size in drawn]
    if not keys:
        return [Divergence(vector, position, [], []) for vector, position in KINDS]
    phrases = [Phrase(key, lm.tokenizer.decode(key)) for key in keys]
    with torch.inference_mode():
        encoded = torch.from_numpy(lm.vectors(phrases).inputs).to(lm.embeddings.output_weight)
        last = reading.rows([key[-1] for key in keys])
    rows: dict[Vector, Tensor] = {"encoder": encoded, "last token": last}
    branches = [
        Branch(start, row[None], size - 1 if position == "token" else 0)
        for vector, position in KINDS
        for (start, size), row in zip(drawn, rows[vector], strict=True)
    ]
    after = torch.cat(reading.follow(branches)).double().log_softmax(-1)
    tokens = reading.logits[[start + size for start, size in drawn]].double().log_softmax(-1)
    by_kind = after.reshape(len(KINDS), len(drawn), -1)
    return [
        Divergence(*kind, _kl(vectors, tokens), _kl(tokens, vectors))
        for kind, vectors in zip(KINDS, by_kind, strict=True)
    ]


def _kl(p: Tensor, q: Tensor) -> list[float]:
    """Return KL(p || q) row by row, given log-probabilities."""
    values: list[float] = (p.exp() * (p - q)).sum(-1).clamp_min(0.0).tolist()
    return values


def pool_input_side(documents: Sequence[Sequence[Divergence]]) -> list[Divergence]:
    """Concatenate the values of documents, kind by kind."""
    return [
        Divergence(
            *names,
            list(chain.from_iterable(kind.vector_tokens for kind in same)),
            list(chain.from_iterable(kind.tokens_vector for kind in same)),
        )
        for names, same in zip(KINDS, zip(*documents, strict=True), strict=True)
    ]


def mean_and_p95(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and the 95th percentile; 0 of nothing."""
    if not values:
        return {"mean": 0.0, "p95": 0.0}
    return {"mean": float(numpy.mean(values)), "p95": float(numpy.percentile(values, 95))}
