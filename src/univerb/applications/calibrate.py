"""How boldly to use phrases, measured on held-out text with one pass of the LM per passage.

Greedy `unfold` decoding is followed along the true text: at each place the best unit is chosen,
and a phrase is kept as far as the tolerance allows. The calibrated `phrase_bias` and `tolerance`
are those with the fewest passes among all that write no more wrong tokens than the plain LM does.

The exact likelihood of the text over V + P (from the same pass) is reported
for every bias: it is what sampling depends on.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from univerb.corpus.corpus import PROFILE, Corpus, CorpusProfile
from univerb.errors import DocumentError
from univerb.files import atomic_write
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.likelihood import (
    Floats,
    bare_likelihood,
    bits_per_byte,
    exact_likelihood,
    match_phrases,
    scored_text,
)
from univerb.phrase import Document
from univerb.vocabulary import DynamicVocabulary

BIASES = tuple(float(bias) for bias in range(-6, 13))
TOLERANCES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


class Trial(NamedTuple):
    """What greedy decoding would do along held-out text with one pair of values."""

    phrase_bias: float
    tolerance: float
    passes_per_token: float
    """1 without phrases, less is faster."""
    error_rate: float
    """The share of tokens that would differ from the text."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found, and the figures it was found on."""

    best: Trial
    plain_error_rate: float
    """Of the LM's own greedy tokens."""
    trials: tuple[Trial, ...]
    plain_bits_per_byte: float
    """Of the LM without phrases."""
    bits_per_byte: dict[float, float]
    """By bias: the exact likelihood of the held-out text."""
    passages: int
    tokens: int

    @property
    def phrase_bias(self) -> float:
        """The calibrated bias."""
        return self.best.phrase_bias

    @property
    def tolerance(self) -> float:
        """The calibrated tolerance."""
        return self.best.tolerance

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON can hold them."""
        return asdict(self) | {
            "best": self.best._asdict(),
            "trials": [trial._asdict() for trial in self.trials],
        }


class _Proposal(NamedTuple):
    """A phrase that could be chosen at a place."""

    score: float
    right: int
    """How many of its tokens are kept and agree with the text."""
    is_wrong: bool
    """Whether the next one is kept too, but does not agree."""
    is_whole: bool
    """Whether there is no next one, in the phrase or in the passage."""


@dataclass(frozen=True, slots=True)
class _Passage:
    """What one pass of the LM says about a passage; row t is about token t and what follows."""

    ids: list[int]
    logits: Tensor
    """(T, V)."""
    scores: Tensor
    """(T, P) of the phrases, without a bias of the profile."""
    numbers: dict[tuple[int, ...], int]
    """Which column each phrase has."""
    bytes: int
    best: list[int]
    """The LM's own greedy token at each place."""
    top: list[float]
    """Its logit."""


def calibrate(
    lm: DynamicLM,
    corpus: Corpus,
    passages: Sequence[tuple[str, Document]],
    k: int = 32,
    *,
    biases: Sequence[float] = BIASES,
    tolerances: Sequence[float] = TOLERANCES,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Find `phrase_bias` and `tolerance` for a corpus.

    Args:
        lm: The model.
        corpus: Where the phrases come from.
        passages: Held-out text: beginnings, and what follows them.
        k: From how many chunks each beginning retrieves.
        biases: What to try.
        tolerances: What to try.
        progress: Is told how many passages are done, of how many.

    Returns:
        The best values and the curves.

    Raises:
        DocumentError: If there is no passage.
    """
    if not passages:
        raise DocumentError("there is no held-out text to calibrate on. Give longer documents.")
    if corpus.has_vectors:
        lm.attach(corpus)
    totals = numpy.zeros(len(biases) + 1)
    pairs = [(bias, tolerance) for bias in biases for tolerance in tolerances]
    counts = Counter[str]()
    walked: Counter[tuple[float, float, str]] = Counter()
    for done, (beginning, rest) in enumerate(passages, start=1):
        seen = _read(lm, corpus.vocabulary(lm, beginning, k), beginning, rest.text)
        totals += _log_likelihoods(seen, biases)
        for tolerance in tolerances:
            proposals = _proposals(seen, tolerance)
            for bias in biases:
                passes, errors = _walked(seen, proposals, bias)
                walked[bias, tolerance, "passes"] += passes
                walked[bias, tolerance, "errors"] += errors
        counts["errors"] += sum(t != b for t, b in zip(seen.ids, seen.best, strict=True))
        counts["tokens"] += len(seen.ids)
        counts["bytes"] += seen.bytes
        if progress:
            progress(done, len(passages))
    size = max(counts["tokens"], 1)
    trials = [
        Trial(b, t, walked[b, t, "passes"] / size, walked[b, t, "errors"] / size) for b, t in pairs
    ]
    bits = [bits_per_byte(total, counts["bytes"]) for total in totals.tolist()]
    return Calibration(
        best=fastest(trials, counts["errors"] / size),
        plain_error_rate=counts["errors"] / size,
        trials=tuple(trials),
        plain_bits_per_byte=bits[0],
        bits_per_byte=dict(zip(biases, bits[1:], strict=True)),
        passages=len(passages),
        tokens=counts["tokens"],
    )


def fastest(trials: Sequence[Trial], error_rate: float) -> Trial:
    """Return the fastest trial that is no worse than the plain LM, the most cautious of equals.

    Args:
        trials: What was tried.
        error_rate: The plain LM's.

    Returns:
        The best one; the one with the fewest errors if all are worse.
    """
    least = max(error_rate, min(trial.error_rate for trial in trials))
    good = [trial for trial in trials if trial.error_rate <= least]
    return min(good, key=lambda t: (t.passes_per_token, t.tolerance, t.phrase_bias))


def save_profile(corpus: Corpus, lm: DynamicLM, found: Calibration) -> None:
    """Keep the values with the corpus, so that `generate` and `answer` use them with it."""
    profile = CorpusProfile(
        encoder=lm.fingerprint(), phrase_bias=found.phrase_bias, tolerance=found.tolerance
    )
    atomic_write(corpus.folder / PROFILE, profile.model_dump_json(indent=2))


@torch.inference_mode()
def _read(lm: DynamicLM, vocabulary: DynamicVocabulary, beginning: str, rest: str) -> _Passage:
    prompt = lm.tokenizer.encode(beginning).ids
    ids = lm.tokenizer.encode(beginning + rest).ids
    # Nothing predicts the very first token.
    first = max(len(prompt), 1)
    given = torch.tensor([ids], device=lm.model.device)
    hidden = lm.model.base_model(input_ids=given, use_cache=False).last_hidden_state
    states = hidden[0, first - 1 : -1]
    view = lm.tensors(vocabulary)
    scores = (
        states.new_empty(len(states), 0) if view is None else states @ view.outputs.T + view.bias
    )
    numbers = {phrase.ids: number for number, phrase in enumerate(vocabulary.snapshot().phrases)}
    logits = lm.embeddings.output(states).cpu().double()
    top, best = logits.max(-1)
    return _Passage(
        ids[first:],
        logits,
        scores.cpu().double(),
        numbers,
        len(lm.tokenizer.decode(ids[first:]).encode()),
        best.tolist(),
        top.tolist(),
    )


def _log_likelihoods(seen: _Passage, biases: Sequence[float]) -> Floats:
    """Return the log-probability of a passage: without phrases, then with each bias."""
    text = scored_text(
        match_phrases(seen.ids, list(seen.numbers)),
        seen.logits.gather(1, torch.tensor(seen.ids)[:, None])[:, 0].numpy(),
        seen.logits.logsumexp(-1).numpy(),
        seen.scores.numpy(),
    )
    return numpy.append(bare_likelihood(text), exact_likelihood(text, biases))


def _proposals(seen: _Passage, tolerance: float) -> list[_Proposal | None]:
    """Return the best phrase at each place whose first token the LM could accept.

    Args:
        seen: A passage.
        tolerance: Which tokens are accepted.

    Returns:
        For each place a phrase with its score, how many of its tokens agree with the text, and
        whether the token after these would be kept although it is wrong.
    """
    if not seen.numbers:
        return [None] * len(seen.ids)
    limit = math.log1p(-tolerance) if tolerance < 1 else -math.inf
    keys = list(seen.numbers)
    first = torch.tensor([key[0] for key in keys])
    ratios = seen.logits - seen.logits.amax(-1, keepdim=True)
    scores = seen.scores.masked_fill(ratios[:, first] < limit, -math.inf)
    values, numbers = scores.max(-1)
    found: list[_Proposal | None] = []
    for place, (value, number) in enumerate(zip(values.tolist(), numbers.tolist(), strict=True)):
        if value == -math.inf:
            found.append(None)
            continue
        right = 0
        kept = True
        for at, token in enumerate(keys[number][: len(seen.ids) - place], start=place):
            kept = bool(ratios[at, token] >= limit)
            if not kept or token != seen.ids[at]:
                break
            right += 1
        is_whole = right == min(len(keys[number]), len(seen.ids) - place)
        found.append(_Proposal(value, right, kept and not is_whole, is_whole))
    return found


def _walked(seen: _Passage, proposals: Sequence[_Proposal | None], bias: float) -> tuple[int, int]:
    """Follow greedy decoding along a passage and count its passes and its wrong tokens."""
    passes = errors = place = 0
    while place < len(seen.ids):
        passes += 1
        proposal = proposals[place]
        if proposal is not None and proposal.score + bias > seen.top[place]:
            place += proposal.right
            if proposal.is_whole:
                continue
            if proposal.is_wrong:
                errors += 1
                place += 1
                continue
            # After a cut the LM's own token is known, but it has to be read like any other.
            passes += 1
        errors += seen.best[place] != seen.ids[place]
        place += 1
    return passes, errors
