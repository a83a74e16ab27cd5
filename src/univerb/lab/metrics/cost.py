"""FLOPs and memory of phrases by the paper's formulas (docs/method.md, Metrics: FLOPs and memory).

The formula of the FLOPs is garbled in print; this one agrees with the share that the paper gives.
Biases, norms, the softmax and the encoding of phrases are not counted.
"""

from dataclasses import dataclass

VALUE = 4
"""Bytes of a number: the paper computes in single precision."""
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Transformer that the formulas use."""

    vocabulary: int
    width: int
    layers: int
    parameters: int
    buffers: int = 0
    """Bytes beside its parameters, such as causal masks."""
    coordinates: int = 0
    """FLOPs by which a state becomes what phrases are scored against; 0 in the paper's form."""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.parameters * VALUE + self.buffers


def coordinate_flops(width: int) -> int:
    """Return the FLOPs of the conditional form for one state: its coordinates.

    All phrases count as scored: decoding scores those of likely first tokens, and one row for each
    first token.
    """
    return 2 * width**2


GPT2 = Shape(50_257, 768, 12, parameters=124_439_808, buffers=12 * 1024 * 1024)
"""Tied; the masks are one byte for each pair of its 1,024 positions, in each layer."""


def forward_flops(shape: Shape, positions: int, phrases: int = 0) -> int:
    """Return the FLOPs of one pass over n positions: 2n(V+p)d + L(24nd^2 + 4n^2 d)."""
    n, d = positions, shape.width
    head = n * _head_flops(shape, phrases)
    return head + shape.layers * (24 * n * d**2 + 4 * n**2 * d)


def step_flops(shape: Shape, context: int, phrases: int = 0) -> int:
    """Return the FLOPs of one position that sees a cached context, itself included."""
    d = shape.width
    return _head_flops(shape, phrases) + shape.layers * (24 * d**2 + 4 * context * d)


def _head_flops(shape: Shape, phrases: int) -> int:
    """Return the FLOPs of the logits of one position."""
    coordinates = shape.coordinates if phrases else 0
    return 2 * (shape.vocabulary + phrases) * shape.width + coordinates


def generation_flops(
    shape: Shape, prefix: int, steps: int, phrases: int = 0, *, cached: bool = True
) -> int:
    """Return the FLOPs of generating `steps` units, of which the prompt's pass gives the first.

    Without a cache, each step passes over all positions: that is what the paper's table counts.
    """
    of_step = step_flops if cached else forward_flops
    later = sum(of_step(shape, n, phrases) for n in range(prefix + 1, prefix + steps))
    return later + (forward_flops(shape, prefix, phrases) if steps else 0)


def extra_compute_share(shape: Shape, positions: int, phrases: int) -> float:
    """Return the share of a pass that phrases add: p / (V + p + (12d + 2n)L)."""
    whole = forward_flops(shape, positions, phrases)
    return (whole - forward_flops(shape, positions)) / whole if positions else 0.0


def paper_memory(lm: Shape, encoder: Shape, phrases: int) -> float:
    """Return the memory of the paper's model in GiB, which the paper calls GB.

    LM, encoder, its projector, and the rows of V and P, which the paper copies for input and
    output. univerb needs less: V is not copied, and tied heads have one row for each phrase.
    """
    projector = (encoder.width + 1) * lm.width * VALUE
    rows = 2 * (lm.vocabulary + phrases) * lm.width * VALUE
    return (lm.size + encoder.size + projector + rows) / GIB


def extra_memory_share(lm: Shape, encoder: Shape, phrases: int) -> float:
    """Return the share of memory that phrases add: (M_p + 4pd) / (M_p + 4pd + M_l).

    Here the paper counts one row for each phrase.
    """
    extra = encoder.size + phrases * lm.width * VALUE
    return extra / (extra + lm.size)
