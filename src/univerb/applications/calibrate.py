"""How boldly to use phrases, measured on held-out text with one pass of the LM per passage.

The LM is shown what `generate` shows it, and greedy `unfold` decoding is followed along the true
text: at each position a unit is chosen as decoding would, and a phrase is accepted as far as the
tolerance allows. The calibrated bias and `tolerance` are those with the fewest passes among all
that write no more wrong tokens than the plain LM does; where they leave all its tokens as they are,
a warning says so. The bias is the `phrase_bias` of the flat form; in the conditional form it is the
`eagerness`, since its probabilities are right as they are.

The exact likelihood of the text over V + P (from the same pass) is reported
for every bias: it is what sampling depends on.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Literal, NamedTuple

import numpy
import torch

from univerb.applications.context import DEFAULT_CONTEXT, in_context
from univerb.applications.corpus_profile import CorpusProfile, write_profile
from univerb.applications.passages import find_passages
from univerb.corpus import Corpus
from univerb.decoding.choice import log_ratio
from univerb.decoding.text_scores import PhraseScorer, ReadText, TextScores
from univerb.documents.chunks import Chunk
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
    changed_rate: float
    """The share that would differ from the plain LM's greedy tokens; none does at tolerance 0."""


class NoChangeWarning(UserWarning):
    """With what calibration chose, phrases do not change what the LM writes."""


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

    @property
    def changes_text(self) -> bool:
        """Whether the best values write anything but the plain LM's text."""
        return self.best.changed_rate > 0

    @property
    def note(self) -> str | None:
        """What to know and to do if they do not."""
        if self.changes_text:
            return None
        texts = "any text is" if self.best.tolerance == 0.0 else f"all {self.tokens} tokens were"
        return (
            f"the phrases change no word: with {self._values(self.best)}, the best on the held-out "
            f"text, {texts} what the plain LM writes behind the same passages, in "
            f"{self.best.passes_per_token:.2f} passes per token. {self._other_values()} Or "
            "calibrate on more text (--held-out, --passages) or with other chunks (-k): that may "
            "decide otherwise."
        )

    def _other_values(self) -> str:
        """Say which values would change some of the text, and what that costs."""
        changing = [trial for trial in self.trials if trial.changed_rate > 0]
        if not changing:
            return "No other values change one: index more text of the domain."
        other = fastest(changing, self.plain_error_rate)
        return (
            f"To have the documents' wording, generate with {self._values(other)}: "
            f"{other.changed_rate:.1%} of the tokens change, {other.error_rate:.1%} are other than "
            f"the held-out text's (plain LM {self.plain_error_rate:.1%}), in "
            f"{other.passes_per_token:.2f} passes per token."
        )

    def _values(self, trial: Trial) -> str:
        return f"{self.option} {trial.bias:g} and tolerance {trial.tolerance:g}"

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON can hold them."""
        return asdict(self) | {
            "changes_text": self.changes_text,
            "note": self.note,
            "best": self.best._asdict(),
            "trials": [trial._asdict() for trial in self.trials],
        }


class _Followed(NamedTuple):
    """How far a passage goes along with a phrase."""

    right: int
    """Number of its tokens that are accepted and agree with the text."""
    changed: int
    """Number of its tokens that are accepted, but not the plain LM's."""
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
    A NoChangeWarning says what to do if the best values leave the text as the plain LM writes it.
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
    counts = numpy.zeros((len(pairs), 3))
    tokens = text_bytes = plain_errors = 0
    for done, (beginning, rest) in enumerate(passages, start=1):
        shown = find_passages(beginning, corpus, DEFAULT_CONTEXT)
        passage = _read(lm, corpus.vocabulary(lm, beginning, k), beginning, rest.text, shown)
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
    calibration = Calibration(
        option="eagerness" if lm.scoring.is_conditional else "phrase_bias",
        best=fastest(trials, plain_error_rate),
        plain_error_rate=plain_error_rate,
        trials=tuple(trials),
        plain_bits_per_byte=bits[0],
        bits_per_byte=dict(zip(biases, bits[1:], strict=True)),
        passages=len(passages),
        tokens=tokens,
    )
    if calibration.note:
        warnings.warn(calibration.note, NoChangeWarning, stacklevel=2)
    return calibration


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
def _read(
    lm: DynamicLM,
    vocabulary: DynamicVocabulary,
    beginning: str,
    rest: str,
    shown: Sequence[Chunk] = (),
) -> TextScores:
    """Read a passage behind what `generate` shows the LM."""
    prompt = len(lm.tokenizer.encode(beginning).ids)
    text = in_context(lm, lm.tokenizer.encode(beginning + rest).ids, shown)
    # Nothing predicts the very first token.
    ids, first = text.ids, text.shown + max(prompt, 1)
    batch = torch.tensor([ids], device=lm.model.device)
    hidden = lm.model.base_model(input_ids=batch, use_cache=False).last_hidden_state
    states = hidden[0, first - 1 : -1]
    read = ReadText(ids[:first], ids[first:], states, lm.embeddings.output(states))
    return PhraseScorer(lm, vocabulary).along(read)


def _followed(passage: TextScores, position: int, phrase: int, tolerance: float) -> _Followed:
    """Follow a phrase along a passage from a position on."""
    ids, limit = passage.phrases[phrase].ids, log_ratio(tolerance)
    right = changed = 0
    is_accepted = True
    for at, token in enumerate(ids[: len(passage.ids) - position], start=position):
        is_accepted = bool(passage.logits[at, token] >= passage.top[at] + limit)
        changed += is_accepted and token != passage.best[at]
        if not is_accepted or token != passage.ids[at]:
            break
        right += 1
    is_whole = right == min(len(ids), len(passage.ids) - position)
    return _Followed(right, changed, is_accepted and not is_whole, is_whole)


def _walked(passage: TextScores, bias: float, tolerance: float) -> tuple[int, int, int]:
    """Follow greedy decoding along a passage: count its passes, its wrong and changed tokens."""
    passes = errors = changed = position = 0
    while position < len(passage.ids):
        passes += 1
        token = passage.token(position, tolerance)
        phrase = passage.phrase(position, tolerance, eagerness=bias)
        if phrase is not None:
            followed = _followed(passage, position, phrase, tolerance)
            position += followed.right
            changed += followed.changed
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
        changed += token != passage.best[position]
        position += 1
    return passes, errors, changed
