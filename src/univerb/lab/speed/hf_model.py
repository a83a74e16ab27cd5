"""HF `generate` over the very model that univerb computes with, and over its prepacked kernels."""

import copy
import functools
import time
from typing import Any

import torch

from univerb.engines.torch.prepacked import prepacked_model
from univerb.engines.torch.session import _MAX_PREPACKED_ROWS
from univerb.lab.speed.systems import LOOKUP_TOKENS, PREPACKED, Measurement, SystemSpec
from univerb.lab.speed.workloads import Request
from univerb.modeling.dynamic import DynamicLM


class HFModel:
    """HF `generate` on a twin of the LM's model, with torch's own kernels or the prepacked ones."""

    def __init__(self, lm: DynamicLM, spec: SystemSpec, no_repeat_ngram_size: int = 0) -> None:
        self._options: dict[str, int] = {}
        if spec.lookup:
            self._options["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        if no_repeat_ngram_size:
            self._options["no_repeat_ngram_size"] = no_repeat_ngram_size
        self._ends: list[float] = []
        self._rows: list[int] = []
        model = lm.model
        packed = _packed_twin(lm, spec) if spec.kernels == PREPACKED else None
        self._model: Any = _twin(model)
        self._model.generation_config = copy.deepcopy(model.generation_config)
        self._model.generation_config.eos_token_id = None

        # HF looks at the signature.
        @functools.wraps(model.forward)
        def forward(**inputs: Any) -> object:  # noqa: ANN401  (HF's keywords)
            rows = inputs["input_ids"].shape[1]
            twin = packed[0] if packed and rows in packed[1] else model
            output = type(model).forward(twin, **inputs)
            self._ends.append(time.perf_counter())
            self._rows.append(rows)
            return output

        self._model.forward = forward

    def write(self, request: Request) -> Measurement:
        """Continue a prompt by exactly as many base tokens as the request says."""
        began = time.perf_counter()
        prompt = torch.tensor([request.ids])
        written = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_tokens,
            do_sample=False,
            **self._options,
        )
        ids = written[0, len(request.ids) :].tolist()
        return Measurement.plain(ids, began, self._ends[0], self._rows[1:])


def _twin(model: Any) -> Any:  # noqa: ANN401  (a model of transformers)
    """Return a model that shares all its parts with another one until they are replaced."""
    twin = copy.copy(model)
    twin._modules = dict(model._modules)
    return twin


def _packed_twin(lm: DynamicLM, spec: SystemSpec) -> tuple[Any, range] | None:
    """Return the model with prepacked matrices, and the rows of passes that univerb has them for.

    None where this machine cannot pack them.
    """
    packed = prepacked_model(lm, spec.dtype)
    if packed is None:
        return None
    twin = _twin(lm.model)
    output = next(name for name, part in twin.named_children() if part is lm.embeddings.output)
    setattr(twin, lm.model.base_model_prefix, packed.body)
    setattr(twin, output, packed.output)
    # A draft is read with the prompt already.
    drafted = LOOKUP_TOKENS if spec.lookup else 0
    return twin, range(packed.min_rows, _MAX_PREPACKED_ROWS + drafted + 1)
