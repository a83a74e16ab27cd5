"""The LM's matrices prepacked for passes over a few rows on a CPU.

torch multiplies one row as a matrix-vector product; for several rows it rearranges the whole
matrix first, in every pass, so that two rows take nearly twice as long as one. oneDNN reads
matrices that were packed once: eight rows then take about as long as one did, and each row's
result is the same whatever rows are beside it.

What remains is the time to read the matrices. FBGEMM keeps them in half precision, computes in
single, and takes half of it; the weights are then right to three digits.

Sequences of a batch that draft phrases of different lengths are padded to the longest. Matrices
are nearly all the work, and they need not be multiplied with padding (`skip_padding`).
"""

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from univerb.config import KernelDtype
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.parameters import has_adapter, parameter_version

_LAYOUT_ROWS = 4
"""Number of rows that the layout is optimised for; it serves any number."""
MAX_BYTES = 4 << 30
"""Larger models are not packed: it takes as much memory as their weights."""

_row_mask: ContextVar[Tensor | None] = ContextVar("row_mask", default=None)
_models: "WeakKeyDictionary[DynamicLM, dict[KernelDtype, PrepackedModel]]" = WeakKeyDictionary()
_lock = threading.Lock()


@contextmanager
def skip_padding(row_mask: Tensor | None) -> Iterator[None]:
    """Multiply only the rows of a padded batch that are not padding; those become zero.

    Args:
        row_mask: True for rows (B, T) to multiply; None multiplies all.

    Yields:
        Nothing.
    """
    token = _row_mask.set(row_mask)
    try:
        yield
    finally:
        _row_mask.reset(token)


class PrepackedLinear(nn.Module):
    """A linear layer of a frozen model that skips padding."""

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows (B, T, in) to (B, T, out)."""
        mask = _row_mask.get()
        if mask is None or rows.shape[:-1] != mask.shape:
            return self.multiply(rows)
        products = self.multiply(rows[mask][None])[0]
        out = products.new_zeros(*mask.shape, products.shape[-1])
        out[mask] = products
        return out

    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply all rows."""
        raise NotImplementedError


class Float32Linear(PrepackedLinear):
    """In single precision, by oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _LAYOUT_ROWS)
        self._bias = bias

    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply all rows."""
        if rows.shape[:2] != (1, 1):
            return self._product(rows)
        # For a single row oneDNN takes another path, which is slower than two rows at once.
        return self._product(rows.expand(1, 2, -1))[:, :1]

    def _product(self, rows: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._weight, self._bias, "none", [], ""
        )
        return out


class Float16Linear(PrepackedLinear):
    """With weights in half precision, by FBGEMM."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._weight = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply all rows."""
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self._weight)
        return out


class PrepackedModel:
    """A backbone's body and output layer, sharing all but the matrices with the model."""

    def __init__(self, model: PreTrainedModel, output: nn.Module, dtype: KernelDtype) -> None:
        self.version = parameter_version(model.parameters())
        self.dtype: KernelDtype = dtype
        tensors = chain(model.parameters(), model.buffers())
        self.body: nn.Module = copy.deepcopy(model.base_model, {id(t): t for t in tensors})
        for parent in list(self.body.modules()):
            for name, child in parent.named_children():
                setattr(parent, name, self._packed(child))
        self.output = self._packed(output)

    @property
    def min_rows(self) -> int:
        """Rows of a pass from which on it is faster than the model."""
        is_one_fast = self.dtype == "float16" or torch.get_num_threads() > 1
        return 1 if is_one_fast else 2

    def _packed(self, layer: nn.Module) -> nn.Module:
        # Subclasses may compute something else, and hooks must go on being called.
        has_hooks = layer._forward_hooks or layer._forward_pre_hooks
        if type(layer) not in (nn.Linear, Conv1D) or has_hooks:
            return layer
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        assert bias is None or isinstance(bias, Tensor)
        rows = weight.t().contiguous() if type(layer) is Conv1D else weight
        make = Float16Linear if self.dtype == "float16" else Float32Linear
        return make(rows.detach(), None if bias is None else bias.detach())


def can_prepack(model: PreTrainedModel) -> bool:
    """Tell whether a model can be packed, and is small enough for it."""
    if model.device.type != "cpu" or model.dtype != torch.float32 or model.training:
        return False
    if has_adapter(model):
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return bool(sum(parameter.nbytes for parameter in model.parameters()) <= MAX_BYTES)


def prepacked_model(lm: DynamicLM, dtype: KernelDtype) -> PrepackedModel | None:
    """Return an LM's packed model, made once per state of its weights; None where it cannot be."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        dtype = "float32"
    with _lock:
        models = _models.setdefault(lm, {})
        if not can_prepack(lm.model):
            models.clear()
            return None
        known = models.get(dtype)
        if known is None or known.version != parameter_version(lm.model.parameters()):
            with torch.inference_mode(mode=False), torch.no_grad():
                models[dtype] = PrepackedModel(lm.model, lm.embeddings.output, dtype)
        return models[dtype]
