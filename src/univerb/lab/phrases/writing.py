"""What greedy decoding writes after a first half: how fast, how varied, how likely, how copied."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy
import torch

from univerb.config import GenerationConfig, Profile
from univerb.decoding.loop import batch
from univerb.decoding.results import Generation
from univerb.lab.metrics.copying import longest_run
from univerb.lab.metrics.repetition import SIZES, mean_repetition, rep_n, words
from univerb.lab.phrases.reading import Reading
from univerb.modeling.branches import Branch
from univerb.modeling.dynamic import DynamicLM
from univerb.vocabulary import DynamicVocabulary

BARE = "bare"
PROFILE = "profile"


Variants = Mapping[str, dict[str, Any] | None]
"""Options of decoding that are compared, by name; None means the bare LM, without phrases."""


def standard_variants(profile: Profile) -> Variants:
    """Return the variants that are compared, by name: the bare LM, the profile, and four others."""
    resolved = GenerationConfig().resolved(profile)
    atomic = {
        "mode": "atomic",
        "phrase_bias": GenerationConfig(mode="atomic").resolved(profile).phrase_bias,
    }
    as_profiled = {"mode": resolved.mode, "phrase_bias": resolved.phrase_bias}
    if resolved.mode == "unfold":
        as_profiled["tolerance"] = resolved.tolerance
    bias = {"phrase_bias": profile.phrase_bias}
    options: dict[str, dict[str, Any] | None] = {
        BARE: None,
        PROFILE: as_profiled,
        "whole": {"mode": "unfold", "tolerance": 1.0} | bias,
        "verify": {"mode": "verify"} | bias,
        "atomic": atomic,
        "segmented": atomic | {"segment": True},
    }
    return options


def sweep_variants(tolerances: Sequence[float], biases: Sequence[float]) -> Variants:
    """Return the variants of a sweep: the bare LM, `unfold` with every tolerance and bias."""
    variants: dict[str, dict[str, Any] | None] = {BARE: None}
    for tolerance, bias in product(tolerances, biases):
        options = {"mode": "unfold", "tolerance": tolerance, "phrase_bias": bias}
        variants[f"tolerance {tolerance:g}, bias {bias:g}"] = options
    return variants


@dataclass(frozen=True, slots=True)
class WrittenText:
    """One continuation and its figures."""

    text: str
    tokens: int
    """Base tokens."""
    steps: int
    """Passes of the backbone, the prefill's included: it decides the first unit."""
    phrase_tokens: int
    nll: float
    """Of the text under the bare LM, given the context: nats, summed over its tokens."""
    rep: list[float]
    """Rep-2, Rep-3, Rep-4, over words."""
    run_words: int
    """The longest verbatim run from one source."""
    splitter: str
    """What split the words."""


class WritingPrompt(NamedTuple):
    """A document whose first half is continued."""

    reading: Reading
    """The bare LM's pass over it."""
    context: Sequence[int]
    """The end of the first half."""
    vocabulary: DynamicVocabulary
    """The candidates."""
    sources: list[list[str]]
    """The words of the texts that they come from."""


def write(
    lm: DynamicLM,
    prompts: Sequence[WritingPrompt],
    variant: dict[str, Any] | None,
    max_tokens: int = 128,
) -> list[WrittenText]:
    """Continue first halves greedily, all in one batch, and measure the texts.

    Args:
        lm: The model.
        prompts: The documents.
        variant: Options of decoding, or None; all run in the precision of the bare LM.
        max_tokens: Base tokens to write.

    Returns:
        The text of each and its figures.
    """
    contexts = [prompt.context for prompt in prompts]
    phrases = None if variant is None else [prompt.vocabulary for prompt in prompts]
    options: dict[str, Any] = {"max_tokens": max_tokens, "dtype": "float32"}
    options |= variant or {}
    results = batch(lm, contexts, phrases, **options)
    return [_measured(prompt, made) for prompt, made in zip(prompts, results, strict=True)]


def _measured(prompt: WritingPrompt, result: Generation) -> WrittenText:
    ids = [token for piece in result.pieces for token in piece.ids]
    split = words(result.text)
    return WrittenText(
        text=result.text,
        tokens=len(ids),
        steps=result.stats.steps + 1,
        phrase_tokens=result.stats.phrase_tokens,
        nll=_nll(prompt.reading, ids),
        rep=[rep_n(split.tokens, n) for n in SIZES],
        run_words=longest_run(split.tokens, prompt.sources),
        splitter=split.splitter,
    )


def _nll(reading: Reading, ids: Sequence[int]) -> float:
    """Return the negative log-likelihood of a continuation of the context under the bare LM."""
    if not ids:
        return 0.0
    [after] = reading.follow([Branch(0, reading.rows(ids[:-1]))])
    logits = torch.cat([reading.logits[:1], after])
    chosen = logits[torch.arange(len(ids)), torch.tensor(ids)]
    return float((logits.logsumexp(-1) - chosen).double().sum())


@dataclass(frozen=True, slots=True)
class VariantFigures:
    """What one variant writes, over documents."""

    name: str
    options: dict[str, Any] | None
    documents: int
    tokens_per_text: float
    steps_per_token: float
    """Backbone passes per base token, the prefill counted as one; 1 without phrases."""
    phrase_share: float
    """The share of base tokens that were written as part of a phrase."""
    rep: dict[int, float]
    diversity: float
    ppl: float
    """Of the texts under the bare LM."""
    run_words: float
    """The longest verbatim run from one source: mean over texts."""
    run_words_most: int
    splitter: str


def pool_writing(
    name: str, options: dict[str, Any] | None, texts: Sequence[WrittenText]
) -> VariantFigures:
    """Return ratios of sums over the texts of a variant, and means of what is measured by text."""
    tokens = max(sum(text.tokens for text in texts), 1)
    repetition = mean_repetition([dict(zip(SIZES, text.rep, strict=True)) for text in texts])
    return VariantFigures(
        name=name,
        options=options,
        documents=len(texts),
        tokens_per_text=tokens / len(texts),
        steps_per_token=sum(text.steps for text in texts) / tokens,
        phrase_share=sum(text.phrase_tokens for text in texts) / tokens,
        rep=repetition.rep,
        diversity=repetition.diversity,
        ppl=float(numpy.exp(sum(text.nll for text in texts) / tokens)),
        run_words=sum(text.run_words for text in texts) / len(texts),
        run_words_most=max(text.run_words for text in texts),
        splitter=texts[0].splitter,
    )
