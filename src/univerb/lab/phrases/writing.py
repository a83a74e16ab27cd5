"""What greedy decoding writes after a first half: how fast, how varied, how likely, how copied."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
from univerb.tokenizer import Tokenizer
from univerb.vocabulary import DynamicVocabulary

BARE = "bare"
PROFILE = "profile"


class Way(NamedTuple):
    """A way to decode; without options it is the bare LM's."""

    name: str
    options: dict[str, Any] | None


def standard_ways(profile: Profile) -> dict[str, Way]:
    """Return the ways that are compared, by name: the profile's, five others and the bare LM's."""
    how = GenerationConfig().resolved(profile)
    atomic = {
        "mode": "atomic",
        "phrase_bias": GenerationConfig(mode="atomic").resolved(profile).phrase_bias,
    }
    own: dict[str, Any] = {"mode": profile.mode, "phrase_bias": how.phrase_bias}
    if profile.mode == "unfold":
        own["tolerance"] = how.tolerance
    ways = [
        Way(BARE, None),
        Way(PROFILE, own),
        Way("whole", {"mode": "unfold", "tolerance": 1.0, "phrase_bias": profile.phrase_bias}),
        Way("verify", {"mode": "verify", "phrase_bias": profile.phrase_bias}),
        Way("atomic", atomic),
        Way("segmented", atomic | {"segment": True}),
    ]
    return {way.name: way for way in ways}


def grid_ways(tolerances: Sequence[float], biases: Sequence[float]) -> dict[str, Way]:
    """Return the ways of a sweep: `unfold` with every tolerance and every bias.

    What leads out of circles would hide what tolerance and bias do.
    """
    ways = [
        Way(
            f"tolerance {tolerance:g}, bias {bias:g}",
            {"mode": "unfold", "tolerance": tolerance, "phrase_bias": bias},
        )
        for tolerance in tolerances
        for bias in biases
    ]
    return {way.name: way for way in ways}


@dataclass(frozen=True, slots=True)
class Written:
    """One continuation."""

    text: str
    tokens: int
    """Base tokens."""
    steps: int
    """Passes of the backbone, the prefill's included: it decides the first unit."""
    units: int
    phrase_tokens: int
    nll: float
    """Of the text under the bare LM, given the context: nats, summed over its tokens."""
    rep: list[float]
    """Rep-2, Rep-3, Rep-4, over words."""
    run_words: int
    """The longest verbatim run from one source."""
    run_tokens: int
    splitter: str
    """What split the words."""


class Sources:
    """The texts that phrases came from, as words and as tokens."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        self._texts = texts
        self._tokenizer = tokenizer

    @cached_property
    def words(self) -> list[list[str]]:
        """The words of each text."""
        return [words(text).tokens for text in self._texts]

    @cached_property
    def tokens(self) -> list[list[int]]:
        """The LM's tokens of each text."""
        return [one.ids for one in self._tokenizer.encode_all_inside(self._texts)]


class Subject(NamedTuple):
    """A document whose first half is continued."""

    reading: Reading
    """The bare LM's pass over it."""
    context: Sequence[int]
    """The end of the first half."""
    vocabulary: DynamicVocabulary
    """The candidates."""
    sources: Sources
    """Where they come from."""


def write(
    lm: DynamicLM, subjects: Sequence[Subject], way: Way, max_tokens: int = 128
) -> list[Written]:
    """Continue first halves greedily, all in one batch, and measure the texts.

    Args:
        lm: The model.
        subjects: The documents.
        way: How to decode.
        max_tokens: Base tokens to write.

    Returns:
        The text of each and its figures.
    """
    contexts = [own.context for own in subjects]
    phrases = [own.vocabulary for own in subjects] if way.options is not None else None
    results = batch(lm, contexts, phrases, max_tokens=max_tokens, **(way.options or {}))
    return [_measured(own, made) for own, made in zip(subjects, results, strict=True)]


def _measured(subject: Subject, result: Generation) -> Written:
    ids = [token for piece in result.pieces for token in piece.ids]
    split = words(result.text)
    return Written(
        text=result.text,
        tokens=len(ids),
        steps=result.stats.steps + 1,
        units=result.stats.units,
        phrase_tokens=result.stats.phrase_tokens,
        nll=_nll(subject.reading, ids),
        rep=[rep_n(split.tokens, n) for n in SIZES],
        run_words=longest_run(split.tokens, subject.sources.words),
        run_tokens=longest_run(ids, subject.sources.tokens),
        splitter=split.splitter,
    )


def _nll(reading: Reading, ids: Sequence[int]) -> float:
    """Return the negative log-likelihood of a continuation of the context under the bare LM."""
    if not ids:
        return 0.0
    [after] = reading.follow([Branch(0, reading.rows(ids[:-1]))])
    logits = torch.cat([reading.logits[:1], after])
    own = logits[torch.arange(len(ids)), torch.tensor(ids)]
    return float((logits.logsumexp(-1) - own).double().sum())


@dataclass(frozen=True, slots=True)
class Writing:
    """What one way of decoding writes, over documents."""

    name: str
    options: dict[str, Any] | None
    documents: int
    tokens_per_text: float
    steps_per_token: float
    """Backbone passes per base token, the prefill counted as one; 1 without phrases."""
    units_per_token: float
    phrase_share: float
    """The share of base tokens that were written as part of a phrase."""
    rep: dict[int, float]
    diversity: float
    ppl: float
    """Of the texts under the bare LM."""
    run_words: float
    """The longest verbatim run from one source: mean over texts."""
    run_words_most: int
    run_tokens: float
    run_tokens_most: int
    splitter: str


def pool_writing(way: Way, each: Sequence[Written]) -> Writing:
    """Add up the texts of one way.

    Args:
        way: The way.
        each: Its texts.

    Returns:
        Ratios of sums, and means of what is measured text by text.
    """
    tokens = max(sum(one.tokens for one in each), 1)
    found = mean_repetition([dict(zip(SIZES, one.rep, strict=True)) for one in each])
    return Writing(
        name=way.name,
        options=way.options,
        documents=len(each),
        tokens_per_text=tokens / len(each),
        steps_per_token=sum(one.steps for one in each) / tokens,
        units_per_token=sum(one.units for one in each) / tokens,
        phrase_share=sum(one.phrase_tokens for one in each) / tokens,
        rep=found.rep,
        diversity=found.diversity,
        ppl=float(numpy.exp(sum(one.nll for one in each) / tokens)),
        run_words=sum(one.run_words for one in each) / len(each),
        run_words_most=max(one.run_words for one in each),
        run_tokens=sum(one.run_tokens for one in each) / len(each),
        run_tokens_most=max(one.run_tokens for one in each),
        splitter=each[0].splitter,
    )
