"""`univerb.load`: a model by name, in one line; a missing one is noticed before torch loads."""

from typing import TYPE_CHECKING

from univerb.locations import DEFAULT_MODEL, locate

if TYPE_CHECKING:
    from univerb.modeling.dynamic import DynamicLM


def load(
    name: str = DEFAULT_MODEL,
    *,
    backbone: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    offline: bool | None = None,
) -> "DynamicLM":
    """Load a dynamic LM; `DynamicLM.from_pretrained` explains the arguments."""
    locate(backbone or name, offline)
    from univerb.modeling.dynamic import DynamicLM

    return DynamicLM.from_pretrained(
        name, backbone=backbone, device=device, dtype=dtype, offline=offline
    )
