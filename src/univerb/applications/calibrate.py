"""How boldly to use phrases, measured on held-out text with one pass of the LM per passage.

Greedy `unfold` decoding is followed along the true text: at each position a unit is chosen as
decoding would, and a phrase is accepted as far as the tolerance allows. The calibrated bias and
`tolerance` are those with the fewest passes among all that write no more wrong tokens than the
plain LM does. The bias is the `phrase_bias` of the flat form; in the conditional form it is the
`eagerness`, since its probabilities are right as they are.

The exact likelihood of the text over V + P (from the same pass) is reported
for every bias: it is what sampling depends on.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Literal, NamedTuple

import numpy
import torch

from univerb.applications.corpus_profile import CorpusProfile, write_profile
from univerb.corpus import Corpus
from univerb.decoding.choice import log_ratio
from univerb.decoding.text_scores import PhraseScorer, ReadText, TextScores
from univerb.errors import DocumentError, OptionError
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.likelihood import bits_per_byte, exact_likelihood
from univerb.phrase import Document
from univerb.vocabulary import DynamicVocabulary

BIASES = tuple(float(bias) for bias in range(-6, 13))
TOLERANCES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


class Trial(NamedTuple):
    """What greedy decoding would do along held-out text with one pair of values."""

    bias: float
    tolerance: float
    passes_per_token: float
    """1 without phrases, less is faster."""
    error_rate: float
    """The share of tokens that would differ from the text."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The best values, and the figures of all trials."""

    option: Literal["phrase_bias", "eagerness"]
    """What the bias is."""
    best: Trial
    plain_error_rate: float
    """Of the LM's greedy tokens."""
    trials: tuple[Trial, ...]
    plain_bits_per_byte: float
    """Of the LM without phrases."""
    bits_per_byte: dict[float, float]
    """By `phrase_bias`: the exact likelihood of the held-out text."""
    passages: int
    tokens: int

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON can hold them."""
        return asdict(self) | {
            "best": self.best._asdict(),
            "trials": [trial._asdict() for trial in self.trials],
        }


class _Followed(NamedTuple):
    """How far a passage goes along with a phrase."""

    right: int
    """Number of its tokens that are accepted and agree with the text."""
    is_wrong: bool
    """Whether the next token is accepted, too, but does not agree."""
    is_whole: bool
    """Whether there is no next one, in the phrase or in the passage."""


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
    """Find the best bias and `tolerance` for a corpus among all pairs of values.

    Passages are held-out text: beginnings, each of which retrieves `k` chunks of the corpus, and
    what follows them. `progress` is called with the number of passages that are done, and of all.
    """
    if not (isinstance(lm, DynamicLM) and lm.has_encoder):
        raise OptionError(
            f"{lm.name!r} has no phrase encoder on torch, so there is nothing to calibrate. Use it "
            "as it is, or train an encoder: univerb train"
        )
    if not passages:
        raise DocumentError("there is no held-out text to calibrate on. Give longer documents.")
    if corpus.has_vectors:
        lm.attach(corpus)
    totals = numpy.zeros(len(biases) + 1)
    pairs = list(product(biases, tolerances))
    counts = numpy.zeros((len(pairs), 2))
    tokens = text_bytes = plain_errors = 0
    for done, (beginning, rest) in enumerate(passages, start=1):
        passage = _read(lm, corpus.vocabulary(lm, beginning, k), beginning, rest.text)
        totals += [passage.bare_likelihood, *(exact_likelihood(passage.scored(b)) for b in biases)]
        counts += [_walked(passage, *pair) for pair in pairs]
        plain_errors += sum(t != b for t, b in zip(passage.ids, passage.best, strict=True))
        tokens += len(passage.ids)
        text_bytes += len(lm.tokenizer.decode(passage.ids).encode())
        if progress:
            progress(done, len(passages))
    rates = (counts / max(tokens, 1)).tolist()
    trials = [Trial(*pair, *rate) for pair, rate in zip(pairs, rates, strict=True)]
    bits = [bits_per_byte(total, text_bytes) for total in totals.tolist()]
    plain_error_rate = plain_errors / max(tokens, 1)
    return Calibration(
        option="eagerness" if lm.scoring.is_conditional else "phrase_bias",
        best=fastest(trials, plain_error_rate),
        plain_error_rate=plain_error_rate,
        trials=tuple(trials),
        plain_bits_per_byte=bits[0],
        bits_per_byte=dict(zip(biases, bits[1:], strict=True)),
        passages=len(passages),
        tokens=tokens,
    )


def fastest(trials: Sequence[Trial], error_rate: float) -> Trial:
    """Return the fastest trial that is no worse than the plain LM, the most cautious of equals.

    If all are worse than the plain LM's error rate, it is the one with the fewest errors.
    """
    least = max(error_rate, min(trial.error_rate for trial in trials))
    good = [trial for trial in trials if trial.error_rate <= least]
    return min(good, key=lambda t: (t.passes_per_token, t.tolerance, t.bias))


def save_profile(corpus: Corpus, lm: DynamicLM, calibration: Calibration) -> None:
    """Store the values with the corpus, so that `generate` and `answer` use them with it."""
    best = calibration.best
    # It was measured without the biases of the model's own profile.
    biases = {"phrase_bias": 0.0, "eagerness": 0.0} | {calibration.option: best.bias}
    options = biases | {"tolerance": best.tolerance}
    write_profile(corpus, CorpusProfile(encoder=lm.fingerprint(), **options))


@torch.inference_mode()
def _read(lm: DynamicLM, vocabulary: DynamicVocabulary, beginning: str, rest: str) -> TextScores:
    prompt = lm.tokenizer.encode(beginning).ids
    ids = lm.tokenizer.encode(beginning + rest).ids
    # Nothing predicts the very first token.
    first = max(len(prompt), 1)
    batch = torch.tensor([ids], device=lm.model.device)
    hidden = lm.model.base_model(input_ids=batch, use_cache=False).last_hidden_state
    states = hidden[0, first - 1 : -1]
    text = ReadText(ids[:first], ids[first:], states, lm.embeddings.output(states))
    return PhraseScorer(lm, vocabulary).along(text)


def _followed(passage: TextScores, position: int, phrase: int, tolerance: float) -> _Followed:
    """Follow a phrase along a passage from a position on."""
    ids, limit = passage.phrases[phrase].ids, log_ratio(tolerance)
    right = 0
    is_accepted = True
    for at, token in enumerate(ids[: len(passage.ids) - position], start=position):
        is_accepted = bool(passage.logits[at, token] >= passage.top[at] + limit)
        if not is_accepted or token != passage.ids[at]:
            break
        right += 1
    is_whole = right == min(len(ids), len(passage.ids) - position)
    return _Followed(right, is_accepted and not is_whole, is_whole)


def _walked(passage: TextScores, bias: float, tolerance: float) -> tuple[int, int]:
    """Follow greedy decoding along a passage and count its passes and its wrong tokens."""
    passes = errors = position = 0
    while position < len(passage.ids):
        passes += 1
        token = passage.token(position, tolerance)
        phrase = passage.phrase(position, tolerance, eagerness=bias)
        if phrase is not None:
            followed = _followed(passage, position, phrase, tolerance)
            position += followed.right
            if followed.is_whole:
                continue
            if followed.is_wrong:
                errors += 1
                position += 1
                continue
            # After a cut the LM's own token is known, but it has to be read like any other.
            passes += 1
            token = passage.best[position]
        errors += token != passage.ids[position]
        position += 1
    return passes, errors
