"""Facts about a model's parameters that tell whether what was computed from them still holds."""

from collections.abc import Iterable

from torch import Tensor
from transformers import PreTrainedModel


def parameter_version(tensors: Iterable[Tensor]) -> int:
    """Return a number that changes when a tensor is changed, moved or replaced.

    What is written through `.data` torch does not count, so it is not seen either.
    """
    return hash(tuple((id(t), t._version, t.dtype, t.device) for t in tensors))


def has_adapter(model: PreTrainedModel) -> bool:
    """Tell whether peft has put layers into a model, which it can switch off."""
    return any(type(module).__module__.startswith("peft.") for module in model.modules())
