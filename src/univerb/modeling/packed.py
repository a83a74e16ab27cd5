"""The LM once more, with its matrices laid out for passes over a few rows on a CPU.

torch multiplies one row as a matrix-vector product; for several rows it rearranges the whole
matrix first, in every pass, so that two rows take nearly twice as long as one. oneDNN reads
matrices that were rearranged once: eight rows then take about as long as one did. Each row's
result is the same whatever rows are beside it.
"""

import copy
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

_ROWS = 4
"""What the layout is made for; it serves any number."""
MOST_BYTES = 4 << 30
"""Larger models are not laid out a second time: it takes as much memory as their weights."""


class PackedLinear(nn.Module):
    """A linear layer of a frozen model."""

    def __init__(self, layer: nn.Linear | Conv1D) -> None:
        super().__init__()
        weight = layer.weight.detach()
        if isinstance(layer, Conv1D):
            weight = weight.t().contiguous()
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        self._bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows (B, T, in) to (B, T, out)."""
        if rows.shape[:2] != (1, 1):
            return self._multiply(rows)
        # For a single row oneDNN takes another way, which is slower than two rows at once.
        return self._multiply(rows.expand(1, 2, -1))[:, :1]

    def _multiply(self, rows: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._packed, self._bias, "none", [], ""
        )
        return out


class Packed:
    """A backbone's body and output layer, sharing all but the matrices with the model."""

    def __init__(self, model: PreTrainedModel, output: nn.Module) -> None:
        self.stamp = stamp(model)
        tensors = chain(model.parameters(), model.buffers())
        self.body: nn.Module = copy.deepcopy(model.base_model, {id(own): own for own in tensors})
        for parent in list(self.body.modules()):
            for name, child in parent.named_children():
                # Subclasses may compute something else.
                if type(child) in (nn.Linear, Conv1D):
                    setattr(parent, name, PackedLinear(child))
        self.output = PackedLinear(output) if type(output) is nn.Linear else output


def stamp(model: PreTrainedModel) -> int:
    """Return a number that rises when a weight is changed in place."""
    return sum(own._version for own in model.parameters())


def can_pack(model: PreTrainedModel) -> bool:
    """Tell whether a model can be laid out anew, and is small enough for it."""
    if model.device.type != "cpu" or model.dtype != torch.float32 or model.training:
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return bool(sum(own.nbytes for own in model.parameters()) <= MOST_BYTES)
