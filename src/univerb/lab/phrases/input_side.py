"""How well one vector stands for the tokens of a phrase, right after it.

Two distributions over V are compared: the LM's after it has read a phrase as one vector, and after
it has read the phrase as its tokens. The training loss is KL(vector || tokens); the other direction
stands beside it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy
import torch
from torch import Tensor

from univerb.lab.phrases.reading import Reading
from univerb.modeling.branches import Branch
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase

Vector = Literal["encoder", "last token"]
Position = Literal["token", "unit"]
VECTORS: tuple[Vector, ...] = ("encoder", "last token")
POSITIONS: tuple[Position, ...] = ("token", "unit")


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


@dataclass(frozen=True, slots=True)
class InputSide:
    """The divergences of sampled phrases."""

    each: list[Divergence]

    def find(self, vector: Vector, position: Position) -> Divergence:
        """Return the values of one kind."""
        return next(d for d in self.each if (d.vector, d.position) == (vector, position))


def input_side(
    lm: DynamicLM,
    reading: Reading,
    spans: Sequence[tuple[int, int]],
    most: int = 16,
    seed: str = "",
) -> InputSide:
    """Feed stretches of the truth as one vector each and see what the LM expects next.

    Args:
        lm: The model.
        reading: Its pass over the document.
        spans: Place and size of the stretches that could be phrases.
        most: Take a sample of at most so many.
        seed: Of the sample.

    Returns:
        The divergences.
    """
    chosen = sorted(random.Random(seed).sample(spans, min(most, len(spans))))
    keys = [tuple(reading.truth[place : place + size]) for place, size in chosen]
    kinds = list(product(VECTORS, POSITIONS))
    if not keys:
        return InputSide([Divergence(vector, position, [], []) for vector, position in kinds])
    phrases = [Phrase(key, lm.tokenizer.decode(key)) for key in keys]
    with torch.inference_mode():
        rows: dict[Vector, Tensor] = {
            "encoder": torch.from_numpy(lm.vectors(phrases).inputs).to(lm.embeddings.output_weight),
            "last token": reading.rows([key[-1] for key in keys]),
        }
    branches = [
        Branch(place, row[None], size - 1 if position == "token" else 0)
        for vector, position in kinds
        for (place, size), row in zip(chosen, rows[vector], strict=True)
    ]
    after = torch.cat(reading.follow(branches)).double().log_softmax(-1)
    tokens = reading.logits[[place + size for place, size in chosen]].double().log_softmax(-1)
    by_kind = after.reshape(len(kinds), len(chosen), -1)
    return InputSide(
        [
            Divergence(vector, position, _kl(own, tokens), _kl(tokens, own))
            for (vector, position), own in zip(kinds, by_kind, strict=True)
        ]
    )


def _kl(p: Tensor, q: Tensor) -> list[float]:
    """Return KL(p || q) row by row, given log-probabilities."""
    values: list[float] = (p.exp() * (p - q)).sum(-1).clamp_min(0.0).tolist()
    return values


def pool_input_side(each: Sequence[InputSide]) -> InputSide:
    """Put the values of documents one after the other."""
    pooled = []
    for kind in zip(*(one.each for one in each), strict=True):
        values = {
            name: [value for one in kind for value in getattr(one, name)]
            for name in ("vector_tokens", "tokens_vector")
        }
        pooled.append(Divergence(kind[0].vector, kind[0].position, **values))
    return InputSide(pooled)


def summary(found: InputSide) -> list[dict[str, object]]:
    """Return mean and 95th percentile of each kind, as JSON can hold them."""
    return [
        {
            "vector": own.vector,
            "position": own.position,
            "phrases": len(own.vector_tokens),
            "kl_vector_tokens": mean_and_p95(own.vector_tokens),
            "kl_tokens_vector": mean_and_p95(own.tokens_vector),
        }
        for own in found.each
    ]


def mean_and_p95(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and the 95th percentile; 0 of nothing."""
    if not values:
        return {"mean": 0.0, "p95": 0.0}
    return {"mean": float(numpy.mean(values)), "p95": float(numpy.percentile(values, 95))}
