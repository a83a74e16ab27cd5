"""Which engine computes for an LM; only that one is imported."""

from typing import cast

from univerb.engines.base import Engine
from univerb.modeling.phrase_model import PhraseModel


def engine_of(lm: PhraseModel) -> Engine:
    """Return the engine that an LM names."""
    if lm.engine == "llamacpp":
        from univerb.engines.llamacpp.lm import LlamaCppLM
        from univerb.engines.llamacpp.session import LlamaCppEngine

        return LlamaCppEngine(cast(LlamaCppLM, lm))
    from univerb.engines.torch.session import TorchEngine
    from univerb.modeling.dynamic import DynamicLM

    return TorchEngine(cast(DynamicLM, lm))
