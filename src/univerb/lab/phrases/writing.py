"""What greedy decoding writes after a first half: how fast, how varied, how likely, how copied."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product, starmap
from typing import Any, NamedTuple

import numpy
import torch

from univerb.config import GenerationConfig, Profile
from univerb.decoding.loop import batch
from univerb.decoding.results import Generation
from univerb.engines.row_costs import RowCosts, assume
from univerb.lab.metrics.copying import longest_run
from univerb.lab.metrics.repetition import SIZES, mean_repetition, rep_n, words
from univerb.lab.phrases.phrase_words import count_words, share
from univerb.lab.phrases.reading import Reading
from univerb.modeling.branches import Branch
from univerb.modeling.dynamic import DynamicLM
from univerb.vocabulary import DynamicVocabulary

BARE = "bare"
PROFILE = "profile"
RANDOM_DOCUMENTS = "random documents"
"""A control: the candidates of another document."""
UNTRAINED = "untrained encoder"
"""A control: a fresh encoder with the same settings."""
REPEATED_NGRAM = 8
"""Base tokens: what a text says again in so many costs no LM an effort."""
_SHOWN = 24
"""Tokens of a first half that a report shows."""
_NO_DRAFTS = {"drafts": False}
_COSTS = RowCosts({1: 1.0, 8: 1.0, 32: 4.0})
"""`verify` drafts as where eight rows cost no more than one, on every machine alike."""

Variants = Mapping[str, dict[str, Any] | None]
"""Options of decoding that are compared, by name; None means the bare LM, without phrases."""


def standard_variants(profile: Profile) -> Variants:
    """Return the variants that are compared, by name: the bare LM, the profile, and four others.

    In `unfold` nothing is drafted: steps are what phrases save. `verify` is the plain LM with
    drafts from the same documents, and from the text itself.
    """
    resolved = GenerationConfig().resolved(profile)
    names = {"phrase_bias", "eagerness"}
    of_atomic = GenerationConfig(mode="atomic").resolved(profile)
    atomic: dict[str, Any] = {"mode": "atomic"} | of_atomic.model_dump(include=names)
    unfold: dict[str, Any] = {"mode": "unfold"} | profile.model_dump(include=names) | _NO_DRAFTS
    verify: dict[str, Any] = {"mode": "verify"}
    as_profiled = {
        "atomic": atomic,
        "unfold": unfold | {"tolerance": resolved.tolerance},
        "verify": verify,
    }
    options: dict[str, dict[str, Any] | None] = {
        BARE: None,
        PROFILE: as_profiled[resolved.mode],
        "whole": unfold | {"tolerance": 1.0},
        "verify": verify,
        "atomic": atomic,
        "segmented": atomic | {"segment": True},
    }
    return options


def sweep_variants(tolerances: Sequence[float], biases: Sequence[float]) -> Variants:
    """Return the variants of a sweep: the bare LM, `unfold` with every tolerance and bias.

    The bias is the `eagerness`: in the flat form, greedily, the same as a `phrase_bias`.
    """
    variants: dict[str, dict[str, Any] | None] = {BARE: None}
    for tolerance, bias in product(tolerances, biases):
        options = {"mode": "unfold", "tolerance": tolerance, "phrase_bias": 0.0, "eagerness": bias}
        variants[f"tolerance {tolerance:g}, bias {bias:g}"] = options | _NO_DRAFTS
    return variants


class WritingRow(NamedTuple):
    """A row of the report."""

    variant: str
    options: dict[str, Any] | None
    control: str | None = None
    """`RANDOM_DOCUMENTS` or `UNTRAINED`."""

    @property
    def name(self) -> str:
        """For the report."""
        return f"{self.variant}, {self.control}" if self.control else self.variant

    @property
    def label(self) -> str:
        """The name with the options: what `profile` means may change."""
        return f"written {self.name} {json.dumps(self.options, sort_keys=True)}"


def writing_rows(variants: Variants, controls: Sequence[str] = ()) -> list[WritingRow]:
    """Return the rows of variants, and of those that have phrases with each control."""
    rows = list(starmap(WritingRow, variants.items()))
    with_phrases = [row for row in rows if row.options is not None]
    return rows + [row._replace(control=control) for control in controls for row in with_phrases]


@dataclass(frozen=True, slots=True)
class WrittenText:
    """One continuation and its figures."""

    context: str
    """The end of the first half."""
    text: str
    marked: str
    """The same with its phrases in brackets."""
    tokens: int
    """Base tokens."""
    steps: int
    """Passes of the backbone, the prefill's included: it decides the first unit."""
    new_tokens: int
    """Base tokens that do not end an 8-gram which the text had before."""
    new_steps: int
    """Passes whose first base token is such a one."""
    phrase_tokens: int
    phrases: list[str]
    """The phrases that were written, cut to the part that was kept."""
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
    """Continue first halves greedily, and measure the texts.

    All in one batch, but for `verify`: what is drafted shares the rows of a pass.

    Args:
        lm: The model.
        prompts: The documents.
        variant: Options of decoding, or None; all run in the precision of the bare LM.
        max_tokens: Base tokens to write.

    Returns:
        The text of each and its figures.
    """
    options: dict[str, Any] = {"max_tokens": max_tokens, "dtype": "float32"}
    options |= variant or {}
    size = 1 if options.get("mode") == "verify" else max(len(prompts), 1)
    results = []
    for some in (prompts[begin : begin + size] for begin in range(0, len(prompts), size)):
        phrases = None if variant is None else [prompt.vocabulary for prompt in some]
        with assume(_COSTS):
            results += batch(lm, [prompt.context for prompt in some], phrases, **options)
    ends = [lm.tokenizer.decode(prompt.context[-_SHOWN:]) for prompt in prompts]
    return [_measured(*each) for each in zip(ends, prompts, results, strict=True)]


def _measured(context: str, prompt: WritingPrompt, result: Generation) -> WrittenText:
    ids = [token for piece in result.pieces for token in piece.ids]
    split = words(result.text)
    is_new = new_tokens(ids)
    marked = (f"[{piece.text}]" if piece.phrase else piece.text for piece in result.pieces)
    return WrittenText(
        context=context,
        text=result.text,
        marked="".join(marked),
        tokens=len(ids),
        steps=result.stats.steps + 1,
        new_tokens=sum(is_new),
        new_steps=sum(is_new[token] for token in _first_tokens(result, len(ids))),
        phrase_tokens=result.stats.phrase_tokens,
        phrases=[phrase.text for phrase in result.phrases],
        nll=_nll(prompt.reading, ids),
        rep=[rep_n(split.tokens, n) for n in SIZES],
        run_words=longest_run(split.tokens, prompt.sources),
        splitter=split.splitter,
    )


def new_tokens(ids: Sequence[int], size: int = REPEATED_NGRAM) -> list[bool]:
    """Tell of each token whether the n-gram that it ends is new to the text."""
    seen: set[tuple[int, ...]] = set()
    is_new = []
    for end in range(1, len(ids) + 1):
        ngram = tuple(ids[max(end - size, 0) : end])
        is_new.append(ngram not in seen)
        seen |= {ngram} if len(ngram) == size else set()
    return is_new


def _first_tokens(result: Generation, size: int) -> list[int]:
    """Return for each pass, the prefill's included, the first token of those that it wrote.

    A pass that only reads the last token counts as that token's.
    """
    edges = pairwise([0, *result.stats.pass_ends, size])
    return [begin if begin < end else begin - 1 for begin, end in edges if size]


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
    steps_per_new_token: float
    """The same over the tokens that do not repeat an 8-gram of their text."""
    new_share: float
    """The share of these tokens."""
    phrase_share: float
    """The share of base tokens that were written as part of a phrase."""
    phrases: int
    """Phrases that were written."""
    words_per_phrase: float
    two_content_share: float
    """The share of these phrases with two content words or more."""
    glue_share: float
    """The share without a content word."""
    rep: dict[int, float]
    diversity: float
    ppl: float
    """Of the texts under the bare LM."""
    run_words: float
    """The longest verbatim run from one source: mean over texts."""
    run_words_most: int
    splitter: str


def pool_writing(row: WritingRow, texts: Sequence[WrittenText]) -> VariantFigures:
    """Return ratios of sums over the texts of a row, and means of what is measured by text."""
    tokens = max(sum(text.tokens for text in texts), 1)
    new = sum(text.new_tokens for text in texts)
    written = count_words(phrase for text in texts for phrase in text.phrases)
    repetition = mean_repetition([dict(zip(SIZES, text.rep, strict=True)) for text in texts])
    return VariantFigures(
        name=row.name,
        options=row.options,
        documents=len(texts),
        tokens_per_text=tokens / len(texts),
        steps_per_token=sum(text.steps for text in texts) / tokens,
        steps_per_new_token=share(sum(text.new_steps for text in texts), new),
        new_share=new / tokens,
        phrase_share=sum(text.phrase_tokens for text in texts) / tokens,
        phrases=written.phrases,
        **written.shares(),
        rep=repetition.rep,
        diversity=repetition.diversity,
        ppl=float(numpy.exp(sum(text.nll for text in texts) / tokens)),
        run_words=sum(text.run_words for text in texts) / len(texts),
        run_words_most=max(text.run_words for text in texts),
        splitter=texts[0].splitter,
    )
