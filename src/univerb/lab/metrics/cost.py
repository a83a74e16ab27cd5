"""What phrases cost in arithmetic and memory, by the paper's formulas (METHOD C.6, C.7).

The formula of the FLOPs is garbled in print; the one here is that which agrees with the share that
the paper gives. Biases, norms, the softmax and the encoding of phrases are not counted.
"""

from dataclasses import dataclass

VALUE = 4
"""Bytes of a number: the paper computes in single precision."""
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """What the formulas need to know of a Transformer."""

    vocabulary: int
    width: int
    layers: int
    parameters: int
    buffers: int = 0
    """Bytes that it keeps beside its parameters, such as causal masks."""

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.parameters * VALUE + self.buffers


GPT2 = Shape(50_257, 768, 12, parameters=124_439_808, buffers=12 * 1024 * 1024)
"""Tied; the masks are one byte for each pair of its 1,024 positions, in each layer."""


def forward_flops(shape: Shape, positions: int, phrases: int = 0) -> int:
    """Return the FLOPs of one pass over some positions: 2n(V+p)d + L(24nd^2 + 4n^2 d)."""
    n, d = positions, shape.width
    head = 2 * n * (shape.vocabulary + phrases) * d
    return head + shape.layers * (24 * n * d**2 + 4 * n**2 * d)


def step_flops(shape: Shape, context: int, phrases: int = 0) -> int:
    """Return the FLOPs of one position that sees a cached context, itself included."""
    d = shape.width
    head = 2 * (shape.vocabulary + phrases) * d
    return head + shape.layers * (24 * d**2 + 4 * context * d)


def generation_flops(
    shape: Shape, prefix: int, steps: int, phrases: int = 0, *, cached: bool = True
) -> int:
    """Return the FLOPs of writing some units.

    Args:
        shape: The LM's.
        prefix: Positions that are there before.
        steps: Units to write; the prefix's pass decides the first.
        phrases: How many phrases can be chosen.
        cached: Whether keys and values are kept; otherwise each step passes over all, which is
            what the paper's table counts.

    Returns:
        The sum over steps.
    """
    contexts = range(prefix + 1, prefix + steps)
    if cached:
        later = sum(step_flops(shape, context, phrases) for context in contexts)
    else:
        later = sum(forward_flops(shape, context, phrases) for context in contexts)
    return later + (forward_flops(shape, prefix, phrases) if steps else 0)


def extra_compute_share(shape: Shape, positions: int, phrases: int) -> float:
    """Return the share of a pass that phrases are the cause of: p / (V + p + (12d + 2n)L)."""
    extra = 2 * phrases * shape.width * positions
    return extra / forward_flops(shape, positions, phrases) if positions else 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, by what they hold."""

    language_model: int
    encoder: int
    """With its projector."""
    tokens: int
    """The rows of V, which the paper copies for the input and for the output."""
    phrases: int
    """The rows of P in both."""

    @property
    def gib(self) -> float:
        """All together, in GiB: what the paper calls GB."""
        return (self.language_model + self.encoder + self.tokens + self.phrases) / GIB


def paper_memory(lm: Shape, encoder: Shape, phrases: int) -> Memory:
    """Return what the paper's model keeps in memory.

    univerb keeps less: V is not copied, and tied heads have one row for each phrase.

    Args:
        lm: The LM's shape.
        encoder: The phrase encoder's; a linear layer makes vectors of the LM's width.
        phrases: How many phrases there are.

    Returns:
        The bytes.
    """
    projector = (encoder.width + 1) * lm.width * VALUE
    row = 2 * lm.width * VALUE
    return Memory(lm.size, encoder.size + projector, lm.vocabulary * row, phrases * row)


def extra_memory_share(lm: Shape, encoder: Shape, phrases: int) -> float:
    """Return the share of memory that phrases are the cause of: (M_p + 4pd) / (M_p + 4pd + M_l).

    Args:
        lm: The LM's shape.
        encoder: The phrase encoder's.
        phrases: How many phrases there are; here the paper counts one row for each.

    Returns:
        From 0 to 1.
    """
    extra = encoder.size + phrases * lm.width * VALUE
    return extra / (extra + lm.size)
