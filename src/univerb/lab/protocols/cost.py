"""What phrases cost as it is counted on the modules, beside the formulas of `metrics.cost`.

Both count the products of matrices, attention included, and neither biases, norms, the softmax or
the encoding of phrases. For GPT-2 they agree to the last operation; the formulas know no other
feed-forward layer than one of four times the width, and no keys and values that heads share.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from univerb.errors import OptionError
from univerb.lab.metrics.cost import Shape
from univerb.lab.peak_memory import peak_megabytes
from univerb.modeling.dynamic import DynamicLM
from univerb.vocabulary import DynamicVocabulary


def shape_of(lm: DynamicLM) -> Shape:
    """Return what the formulas need to know of an LM, its phrase encoder apart."""
    return Shape(
        vocabulary=lm.static_size,
        width=lm.width,
        layers=int(lm.model.config.get_text_config().num_hidden_layers),
        parameters=sum(own.numel() for own in lm.model.parameters()),
        buffers=_bytes(*lm.model.buffers()),
    )


@torch.inference_mode()
def counted_flops(
    lm: DynamicLM, positions: int, vocabulary: DynamicVocabulary | None = None
) -> int:
    """Count the FLOPs of one pass over some positions, from the tokens to the logits over V + P.

    Args:
        lm: The LM.
        positions: How many, without a cache.
        vocabulary: The phrases; they are encoded before counting begins.

    Returns:
        Two for each multiplication with its addition.

    Raises:
        OptionError: If there are too many positions, or none.
    """
    if not 1 <= positions <= lm.context_size:
        raise OptionError(
            f"positions is {positions}. Allowed: 1 to {lm.context_size}, what {lm.name!r} sees."
        )
    if vocabulary is not None:
        lm.tensors(vocabulary)
    ids = torch.zeros(1, positions, dtype=torch.long, device=lm.model.device)
    # Attention as plain products: the counter does not know the fused kernel of a CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        lm.forward(ids, vocabulary)
    return int(counter.get_total_flops())


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes, by what they hold."""

    language_model: int
    """Parameters and buffers, shared ones once."""
    encoder: int
    """With its heads."""
    phrases: int
    """The vectors of phrases where the LM is: one for each if input and output share it."""
    peak: int
    """The most that this process has had since it began."""
    cuda_peak: int | None
    """The most that torch has had on the LM's GPU; None if it is on none."""


def footprint(lm: DynamicLM, vocabulary: DynamicVocabulary | None = None) -> Footprint:
    """Measure what is kept in memory.

    Args:
        lm: The LM and its encoder.
        vocabulary: The phrases; they are encoded if they are not yet.

    Returns:
        The bytes. The peaks are those so far: for the peak of some work, ask after it in a process
        of its own.
    """
    rows = lm.tensors(vocabulary) if vocabulary is not None else None
    device = lm.model.device
    on_cuda = device.type == "cuda"
    return Footprint(
        language_model=module_bytes(lm.model),
        encoder=module_bytes(lm.encoder),
        phrases=_bytes(rows.inputs, rows.outputs) if rows else 0,
        peak=round(peak_megabytes() * 1e6),
        cuda_peak=torch.cuda.max_memory_allocated(device) if on_cuda else None,
    )


def module_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's parameters and buffers, shared ones once."""
    return _bytes(*module.parameters(), *module.buffers())


def _bytes(*tensors: Tensor) -> int:
    return sum({own.data_ptr(): own.nbytes for own in tensors}.values())
