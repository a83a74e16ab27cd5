"""The LM once more, with its matrices laid out for passes over a few rows on a CPU.

torch multiplies one row as a matrix-vector product; for several rows it rearranges the whole
matrix first, in every pass, so that two rows take nearly twice as long as one. oneDNN reads
matrices that were rearranged once: eight rows then take about as long as one did, and each row's
result is the same whatever rows are beside it.

What remains is the time to read the matrices. FBGEMM keeps them in half precision, computes in
single, and takes half of it; the weights are then right to three digits.

Sequences of a batch that propose phrases of different lengths are padded to the longest. Matrices
are nearly all the work, and they need not be multiplied with padding (`counting`).
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from univerb.config import Weights

_ROWS = 4
"""What the layout is made for; it serves any number."""
MOST_BYTES = 4 << 30
"""Larger models are not laid out a second time: it takes as much memory as their weights."""


_counted: ContextVar[Tensor | None] = ContextVar("counted", default=None)


@contextmanager
def counting(rows: Tensor | None) -> Iterator[None]:
    """Multiply only the rows of a padded batch that count; those of padding become zero.

    Args:
        rows: Which rows (B, T) count; None if all do.

    Yields:
        Nothing.
    """
    token = _counted.set(rows)
    try:
        yield
    finally:
        _counted.reset(token)


class _Laid(nn.Module):
    """A linear layer that leaves padding out."""

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows (B, T, in) to (B, T, out)."""
        counted = _counted.get()
        if counted is None or rows.shape[:-1] != counted.shape:
            return self.multiply(rows)
        own = self.multiply(rows[counted][None])[0]
        out = own.new_zeros(*counted.shape, own.shape[-1])
        out[counted] = own
        return out

    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply all rows."""
        raise NotImplementedError


class PackedLinear(_Laid):
    """A linear layer of a frozen model in single precision."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        self._bias = bias

    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply all rows."""
        if rows.shape[:2] != (1, 1):
            return self._product(rows)
        # For a single row oneDNN takes another way, which is slower than two rows at once.
        return self._product(rows.expand(1, 2, -1))[:, :1]

    def _product(self, rows: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._packed, self._bias, "none", [], ""
        )
        return out


class HalfLinear(_Laid):
    """A linear layer of a frozen model whose weights are kept in half precision."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply all rows."""
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self._packed)
        return out


class Packed:
    """A backbone's body and output layer, sharing all but the matrices with the model."""

    def __init__(self, model: PreTrainedModel, output: nn.Module, weights: Weights) -> None:
        self.stamp = stamp(model.parameters())
        self.weights: Weights = weights
        tensors = chain(model.parameters(), model.buffers())
        self.body: nn.Module = copy.deepcopy(model.base_model, {id(own): own for own in tensors})
        for parent in list(self.body.modules()):
            for name, child in parent.named_children():
                setattr(parent, name, self._laid_out(child))
        self.output = self._laid_out(output)

    @property
    def least_rows(self) -> int:
        """From how many rows of a pass on it is faster than the model."""
        is_one_fast = self.weights == "half" or torch.get_num_threads() > 1
        return 1 if is_one_fast else 2

    def _laid_out(self, layer: nn.Module) -> nn.Module:
        # Subclasses may compute something else.
        if type(layer) not in (nn.Linear, Conv1D) or _has_hooks(layer):
            return layer
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        assert bias is None or isinstance(bias, Tensor)
        rows = weight.t().contiguous() if type(layer) is Conv1D else weight
        make = HalfLinear if self.weights == "half" else PackedLinear
        return make(rows.detach(), None if bias is None else bias.detach())


def stamp(tensors: Iterable[Tensor]) -> int:
    """Return a number that is another one when a tensor is changed, moved or replaced.

    What is written through `.data` torch does not count, so it is not seen either.
    """
    return hash(tuple((id(own), own._version, own.dtype, own.device) for own in tensors))


def has_adapter(model: PreTrainedModel) -> bool:
    """Tell whether peft has put layers of its own into a model, which it can switch off."""
    return any(type(own).__module__.startswith("peft.") for own in model.modules())


def can_pack(model: PreTrainedModel) -> bool:
    """Tell whether a model can be laid out anew, and is small enough for it."""
    if model.device.type != "cpu" or model.dtype != torch.float32 or model.training:
        return False
    if has_adapter(model):
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return bool(sum(own.nbytes for own in model.parameters()) <= MOST_BYTES)


def _has_hooks(layer: nn.Module) -> bool:
    """Tell whether somebody listens to a layer: it must then go on being called."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def pack(model: PreTrainedModel, output: nn.Module, weights: Weights) -> Packed | None:
    """Lay a model out, or return None where that cannot be."""
    if not can_pack(model):
        return None
    has_half = "fbgemm" in torch.backends.quantized.supported_engines
    with torch.inference_mode(mode=False), torch.no_grad():
        return Packed(model, output, weights if has_half else "single")
