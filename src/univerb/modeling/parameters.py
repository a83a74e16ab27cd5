"""Facts about parameters: whether they are numbers, and whether they were changed."""

from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import PreTrainedModel


def parameter_version(tensors: Iterable[Tensor]) -> int:
    """Return a number that changes when a tensor is changed, moved or replaced.

    What is written through `.data` torch does not count, so it is not seen either.
    """
    return hash(tuple((id(t), t._version, t.dtype, t.device) for t in tensors))


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first tensor that holds a NaN or an infinite number, or None.

    Half a second for a billion numbers: fast enough to check what is loaded.
    """
    for name, tensor in tensors:
        if tensor.numel() and tensor.is_floating_point():
            low, high = tensor.detach().aminmax()
            if not (torch.isfinite(low) and torch.isfinite(high)):
                return name
    return None


def has_adapter(model: PreTrainedModel) -> bool:
    """Tell whether peft has put layers into a model, which it can switch off."""
    return any(type(module).__module__.startswith("peft.") for module in model.modules())
