"""A phrase encoder on a few Llama layers, computed with numpy: torch takes seconds to import.

It gives what `modeling.encoder` gives but for last bits. Encoders of other kinds (a body of their
own, tied heads, another architecture) are left to torch: `NumpyEncoder.of` returns None for them.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from univerb.engines.base import Floats
from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.engines.llamacpp.stored_encoder import StoredEncoder
from univerb.errors import PhraseError
from univerb.modeling.encoder_plan import passes, plan
from univerb.modeling.phrase_table import PhraseVectors
from univerb.phrase import Phrase

Rows = Callable[[Sequence[int]], Floats]
"""Rows of one of the LM's embedding matrices, by token."""

_PARTS = (
    *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    *("self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj",
)
_HEADS = (
    *("heads.read", "heads.fed", "heads.input.weight", "heads.input.bias"),
    *("heads.output.weight", "heads.output.bias"),
)
_MAX_TOKENS = 2048
"""Of a phrase: attention over more takes gigabytes here."""
_lock = threading.Lock()
"""The number of numpy's threads is the process's."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """What the weights do not say."""

    layers: int
    heads: int
    key_heads: int
    frequency: float
    """The base of the angles that positions turn by."""
    epsilon: float

    @classmethod
    def of(cls, file: GgufFile, layers: int) -> Self | None:
        """Read it from the settings of a GGUF file; None if the LM is no plain Llama."""
        names = (*file.settings, *(tensor.name for tensor in file.tensors))
        if any(name.startswith(("llama.rope.scal", "rope_")) for name in names):
            # Positions turn by other angles.
            return None
        heads = file.number("llama.attention.head_count")
        key_heads = file.settings.get("llama.attention.head_count_kv", heads)
        epsilon = file.settings.get("llama.attention.layer_norm_rms_epsilon")
        frequency = file.settings.get("llama.rope.freq_base", 10000.0)
        if not (heads and isinstance(key_heads, int) and heads % key_heads == 0):
            return None
        if not (isinstance(epsilon, float) and isinstance(frequency, float)):
            return None
        return cls(layers, heads, key_heads, frequency, epsilon)

    def fits(self, weights: Mapping[str, NDArray[Any]]) -> bool:
        """Tell whether all weights of such an encoder are there, and of these heads."""
        layers = [f"body.layers.{number}" for number in range(self.layers)]
        body = {f"{layer}.{part}.weight" for layer in layers for part in _PARTS}
        if {name for name in weights if name.startswith("body.")} != body | {"body.norm.weight"}:
            return False
        heads = {name for name in weights if name.startswith("heads.")} - {"heads.scored"}
        rows = [[len(weights[f"{n}.self_attn.{p}_proj.weight"]) for p in "qkv"] for n in layers]
        width = rows[0][0] // self.heads
        fitting = [self.heads * width, self.key_heads * width, self.key_heads * width]
        return {*_HEADS} <= heads and all(each == fitting for each in rows)


class NumpyEncoder:
    """The body and the heads of an encoder."""

    def __init__(self, weights: dict[str, NDArray[Any]], shape: LlamaShape) -> None:
        self._weights = weights
        self._shape = shape
        self._libraries = ThreadpoolController().select(user_api="blas")

    @classmethod
    def of(cls, encoder: StoredEncoder, file: GgufFile) -> Self | None:
        """Return the encoder if it is one that numpy computes here, or None."""
        card = encoder.card
        shape = LlamaShape.of(file, card.encoder.layers)
        if card.body is not None or card.encoder.heads != "split" or shape is None:
            return None
        used = ("body.", "heads.")
        weights = {name: tensor for name, tensor in encoder.tensors() if name.startswith(used)}
        return cls(weights, shape) if shape.fits(weights) else None

    def encode(
        self, phrases: Sequence[Phrase], input_rows: Rows, output_rows: Rows
    ) -> PhraseVectors[Floats]:
        """Encode phrases, sharing the passes of those that begin alike."""
        for phrase in phrases:
            if len(phrase) > _MAX_TOKENS:
                raise PhraseError(
                    f"phrase {phrase.text[:40]!r}… has {len(phrase)} tokens; the encoder reads at "
                    f"most {_MAX_TOKENS}. Cut it into shorter phrases."
                )
        # On one thread: where others work, numpy's threads wait for llama.cpp's, a hundredfold.
        with _lock, self._libraries.limit(limits=1):
            return self._encode(phrases, input_rows, output_rows)

    def _encode(
        self, phrases: Sequence[Phrase], input_rows: Rows, output_rows: Rows
    ) -> PhraseVectors[Floats]:
        layout, weights = plan([phrase.ids for phrase in phrases]), self._weights
        hidden = numpy.empty((len(phrases), len(weights["body.norm.weight"])), numpy.float32)
        for windows, keys, row, column in passes(layout):
            flat = input_rows([token for window in windows for token in window])
            states = self._states(flat.reshape(len(windows), len(windows[0]), -1))
            hidden[keys] = states[row, column]
        whitened = hidden @ weights["heads.read"]
        inputs = input_rows([phrase.ids[-1] for phrase in phrases])
        outputs = self._linear("heads.output", whitened)
        if (scored := weights.get("heads.scored")) is not None:
            # The flat form: a correction of the first token's own row.
            outputs = output_rows([phrase.ids[0] for phrase in phrases]) + outputs @ scored
        fed = self._linear("heads.input", whitened) * weights["heads.fed"]
        return PhraseVectors(inputs + fed, outputs)

    def _states(self, rows: Floats) -> Floats:
        """Run the body over windows, (R, S, d) rows to (R, S, d) states."""
        turn = self._turns(rows.shape[1])
        for layer in range(self._shape.layers):
            name = f"body.layers.{layer}"
            normed = self._normed(f"{name}.input_layernorm", rows)
            rows = rows + self._attention(f"{name}.self_attn", normed, turn)
            normed = self._normed(f"{name}.post_attention_layernorm", rows)
            gate = self._linear(f"{name}.mlp.gate_proj", normed)
            with numpy.errstate(over="ignore"):  # towards 0
                gate = gate / (1 + numpy.exp(-gate))
            opened = gate * self._linear(f"{name}.mlp.up_proj", normed)
            rows = rows + self._linear(f"{name}.mlp.down_proj", opened)
        return self._normed("body.norm", rows)

    def _attention(self, name: str, normed: Floats, turn: tuple[Floats, Floats]) -> Floats:
        """Let every row of a window look at those up to it, (R, S, d)."""
        count, size, _ = normed.shape
        queries, keys, values = (
            self._linear(f"{name}.{part}_proj", normed)
            .reshape(count, size, heads, -1)
            .swapaxes(1, 2)
            for part, heads in zip("qkv", self._head_counts, strict=True)
        )
        shared = self._shape.heads // self._shape.key_heads
        keys, values = (side.repeat(shared, axis=1) for side in (_turned(keys, *turn), values))
        scores: Floats = _turned(queries, *turn) @ keys.swapaxes(2, 3)
        scores /= numpy.float32(queries.shape[3] ** 0.5)
        scores += numpy.triu(numpy.full((size, size), -numpy.inf, numpy.float32), 1)
        shares = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = (shares @ values).swapaxes(1, 2).reshape(count, size, -1)
        return self._linear(f"{name}.o_proj", mixed)

    @property
    def _head_counts(self) -> tuple[int, int, int]:
        shape = self._shape
        return shape.heads, shape.key_heads, shape.key_heads

    def _turns(self, size: int) -> tuple[Floats, Floats]:
        """Return cosine and sine of the angle of every position and dimension, (S, d_head)."""
        width = self._weights["body.layers.0.self_attn.q_proj.weight"].shape[0] // self._shape.heads
        speed = self._shape.frequency ** -(numpy.arange(0, width, 2) / width)
        angles = numpy.tile(numpy.outer(numpy.arange(size), speed), 2)
        return numpy.cos(angles).astype(numpy.float32), numpy.sin(angles).astype(numpy.float32)

    def _normed(self, name: str, rows: Floats) -> Floats:
        power: Floats = numpy.square(rows).mean(axis=-1, keepdims=True)
        weight: Floats = self._weights[f"{name}.weight"]
        normed: Floats = rows / numpy.sqrt(power + numpy.float32(self._shape.epsilon)) * weight
        return normed

    def _linear(self, name: str, rows: Floats) -> Floats:
        weight: Floats = self._weights[f"{name}.weight"]
        # One product: numpy would make one for each window.
        product: Floats = rows.reshape(-1, rows.shape[-1]) @ weight.T
        product += self._weights.get(f"{name}.bias", numpy.float32(0))
        return product.reshape(*rows.shape[:-1], -1)


def _turned(vectors: Floats, cosine: Floats, sine: Floats) -> Floats:
    """Turn vectors (..., S, d_head) by the angles of their positions."""
    first, second = numpy.split(vectors, 2, axis=-1)
    across: Floats = numpy.concatenate([-second, first], axis=-1)
    return vectors * cosine + across * sine
