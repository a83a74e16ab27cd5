"""An encoder's folder, read without torch: its card, and the few weights that a choice needs."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from univerb.config import Profile
from univerb.errors import CheckpointError
from univerb.modeling.card import WEIGHTS, Card, check_file, read_card
from univerb.modeling.scoring import Scoring


class StoredEncoder:
    """A phrase encoder on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.card: Card = read_card(folder)

    @property
    def profile(self) -> Profile:
        """The encoder's own, but for positions: in llama.cpp a row takes one."""
        return self.card.profile.model_copy(update={"positions": "unit"})

    @cached_property
    def scoring(self) -> Scoring:
        """How phrases are scored against the LM's states."""
        prefix = "conditional."
        tensors = dict(self.tensors())
        return Scoring(
            {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        )

    @cached_property
    def bias(self) -> float:
        """What is added to the score of every phrase."""
        return float(dict(self.tensors()).get("heads.bias", numpy.zeros(())))

    def tensors(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the encoder's weights by name, half precision widened as torch does."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        check_file(self.folder / WEIGHTS, self.card.sha256.get(WEIGHTS, "none"))
        try:
            tensors = load_file(self.folder / WEIGHTS)
        except (SafetensorError, OSError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{WEIGHTS} in {str(self.folder)!r} cannot be read: {str(error)[:120]}. Save the "
                "encoder in single or half precision."
            ) from error
        for name, tensor in sorted(tensors.items()):
            is_real = numpy.issubdtype(tensor.dtype, numpy.floating)
            if is_real and not numpy.isfinite(tensor).all():
                raise CheckpointError(
                    f"{str(self.folder / WEIGHTS)!r} holds numbers that are not finite (NaN or "
                    f"infinite), in {name}. Get a fresh copy."
                )
            yield name, tensor.astype(numpy.float32) if is_real else tensor
