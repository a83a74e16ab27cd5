"""Which engine computes for an LM; only that one is imported."""

from typing import cast

from univerb.decoding.engines.base import Engine
from univerb.modeling.phrase_model import PhraseModel


def engine_of(lm: PhraseModel) -> Engine:
    """Return the engine that an LM names."""
    if lm.engine == "llamacpp":
        from univerb.decoding.engines.llamacpp import LlamaCppEngine
        from univerb.modeling.llamacpp import LlamaCppLM

        return LlamaCppEngine(cast(LlamaCppLM, lm))
    from univerb.decoding.engines.torch import TorchEngine
    from univerb.modeling.dynamic import DynamicLM

    return TorchEngine(cast(DynamicLM, lm))
