"""Systems side by side: each runs once per round, and ratios are taken within a round."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import torch
from rich.progress import track
from transformers import PreTrainedModel

# Phrases are scored, and neither chosen nor guessed: every step writes one token.
UNHEARD = {"phrase_bias": -900.0, "escape": 0, "draft": 0.0, "ignore_eos": True}


def hf_generate(model: PreTrainedModel, prompts: list[list[int]], tokens: int) -> None:
    """Write so many tokens after each prompt, all equally long, greedily and as HF does."""
    inputs = torch.tensor(prompts)
    model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
    )


def interleaved(systems: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Run every system once per round, after a round that does not count."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for number in track(range(rounds + 1), "rounds"):
        for name, run in systems.items():
            began = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def ratios(own: list[float], reference: list[float]) -> list[float]:
    """Return median, smallest and largest ratio within a round."""
    each = [a / b for a, b in zip(own, reference, strict=True)]
    return [round(value, 3) for value in (statistics.median(each), min(each), max(each))]
