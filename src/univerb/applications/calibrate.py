"""How boldly to use phrases, measured on held-out text with one pass of the LM per passage.

`phrase_bias`: the exact probability of a text over V + P is a sum over all its segmentations into
tokens and phrases (a dynamic programme over one pass). The calibrated bias is the largest at which
held-out text is no less likely than without phrases: as bold as the text allows.

`tolerance`: where a proposed phrase agrees with the text, its tokens should be kept; where it
departs from it, the first wrong token should not. The calibrated tolerance separates the two best.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from univerb.corpus.reading import PROFILE, Corpus, CorpusProfile
from univerb.errors import DocumentError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.vocabulary import DynamicVocabulary

BIASES = tuple(float(bias) for bias in range(-6, 13))
TOLERANCES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found, and the curves it was found on."""

    phrase_bias: float
    tolerance: float
    plain_bits_per_byte: float
    """Of the LM without phrases."""
    bits_per_byte: dict[float, float]
    """By bias: the exact likelihood of the held-out text."""
    kept_right: dict[float, float]
    """By tolerance: the share of proposed tokens that agree with the text and would be kept."""
    kept_wrong: dict[float, float]
    """By tolerance: the share of first wrong tokens that would be kept."""
    passages: int
    tokens: int

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON can hold them."""
        return asdict(self)


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

    def matches(self) -> list[list[tuple[int, int]]]:
        """Return, for each place, the phrases that the text goes on with: column and length."""
        sizes = sorted({len(key) for key in self.numbers})
        found: list[list[tuple[int, int]]] = []
        for place in range(len(self.ids)):
            keys = [tuple(self.ids[place : place + size]) for size in sizes]
            found.append([(self.numbers[k], len(k)) for k in keys if k in self.numbers])
        return found


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
    totals = torch.zeros(len(biases) + 1, dtype=torch.float64)
    right, wrong = torch.zeros(len(tolerances)), torch.zeros(len(tolerances))
    counts = [0, 0, 0, 0]
    for done, (beginning, rest) in enumerate(passages, start=1):
        seen = _read(lm, corpus.vocabulary(lm, beginning, k), beginning, rest.text)
        totals += _log_likelihoods(seen, biases)
        for side, ratios in zip((right, wrong), _ratios(seen), strict=True):
            side += _kept(ratios, tolerances)
            counts[side is wrong] += len(ratios)
        counts[2] += len(seen.ids)
        counts[3] += seen.bytes
        if progress:
            progress(done, len(passages))
    bits = (-totals / math.log(2) / max(counts[3], 1)).tolist()
    right, wrong = right / max(counts[0], 1), wrong / max(counts[1], 1)
    return Calibration(
        phrase_bias=_boldest(biases, bits[1:], bits[0]),
        tolerance=tolerances[int((right - wrong).argmax())],
        plain_bits_per_byte=bits[0],
        bits_per_byte=dict(zip(biases, bits[1:], strict=True)),
        kept_right=dict(zip(tolerances, right.tolist(), strict=True)),
        kept_wrong=dict(zip(tolerances, wrong.tolist(), strict=True)),
        passages=len(passages),
        tokens=counts[2],
    )


def save_profile(corpus: Corpus, found: Calibration) -> None:
    """Keep the values with the corpus, so that `generate` and `answer` use them with it."""
    profile = CorpusProfile(
        encoder=corpus.fingerprint, phrase_bias=found.phrase_bias, tolerance=found.tolerance
    )
    draft = corpus.folder / f".{PROFILE}.{os.getpid()}"
    draft.write_text(profile.model_dump_json(indent=2), encoding="utf-8")
    os.replace(draft, corpus.folder / PROFILE)


def _boldest(biases: Sequence[float], bits: Sequence[float], plain: float) -> float:
    """Return the largest bias that costs nothing, or the cheapest if all cost something."""
    free = [bias for bias, cost in zip(biases, bits, strict=True) if cost <= plain]
    return max(free) if free else min(zip(bits, biases, strict=True))[1]


@torch.inference_mode()
def _read(lm: DynamicLM, vocabulary: DynamicVocabulary, beginning: str, rest: str) -> _Passage:
    prompt = lm.tokenizer.encode(beginning).ids
    ids = lm.tokenizer.encode(beginning + rest).ids
    first = len(prompt)
    given = torch.tensor([ids], device=lm.model.device)
    hidden = lm.model.base_model(input_ids=given, use_cache=False).last_hidden_state
    states = hidden[0, first - 1 : -1]
    view = lm.rows(vocabulary)
    scores = (
        states.new_empty(len(states), 0) if view is None else states @ view.outputs.T + view.bias
    )
    numbers = {phrase.ids: number for number, phrase in enumerate(vocabulary.snapshot().phrases)}
    return _Passage(
        ids[first:],
        lm.embeddings.output(states).double(),
        scores.double(),
        numbers,
        len(lm.tokenizer.decode(ids[first:]).encode()),
    )


def _log_likelihoods(seen: _Passage, biases: Sequence[float]) -> Tensor:
    """Return the log-probability of a passage: without phrases, then with each bias."""
    tokens = seen.logits.logsumexp(-1)
    own = seen.logits.gather(1, torch.tensor(seen.ids)[:, None])[:, 0]
    plain = (own - tokens).sum()
    bias = torch.tensor(biases, dtype=torch.float64)
    phrases = seen.scores.logsumexp(-1) if seen.scores.shape[1] else torch.full_like(own, -math.inf)
    whole = torch.logaddexp(tokens[:, None], phrases[:, None] + bias)
    # alpha[j]: the probability of the first j tokens, over all ways to write them.
    alpha = torch.full((len(seen.ids) + 1, len(biases)), -math.inf, dtype=torch.float64)
    alpha[0] = 0.0
    for place, matching in enumerate(seen.matches()):
        here = alpha[place] - whole[place]
        alpha[place + 1] = torch.logaddexp(alpha[place + 1], here + own[place])
        for number, size in matching:
            unit = here + seen.scores[place, number] + bias
            alpha[place + size] = torch.logaddexp(alpha[place + size], unit)
    return torch.cat([plain[None], alpha[-1]])


def _ratios(seen: _Passage) -> tuple[Tensor, Tensor]:
    """Compare the tokens of proposed phrases with the LM's best, as log-ratios.

    Args:
        seen: A passage.

    Returns:
        Those of tokens that agree with the text, and those of the first that do not. At each place
        the best phrase is proposed.
    """
    best = seen.logits.amax(-1)
    keys = {number: key for key, number in seen.numbers.items()}
    right: list[Tensor] = []
    wrong: list[Tensor] = []
    for place in range(len(seen.ids)) if keys else ():
        key = keys[int(seen.scores[place].argmax())]
        for at, token in enumerate(key[: len(seen.ids) - place], start=place):
            ratio = seen.logits[at, token] - best[at]
            (right if token == seen.ids[at] else wrong).append(ratio)
            if token != seen.ids[at]:
                break
    empty = seen.logits.new_empty(0)
    return torch.stack(right) if right else empty, torch.stack(wrong) if wrong else empty


def _kept(ratios: Tensor, tolerances: Sequence[float]) -> Tensor:
    """Count, for each tolerance, how many ratios it keeps."""
    limits = torch.tensor([math.log1p(-t) if t < 1 else -math.inf for t in tolerances])
    return (ratios[:, None] >= limits).sum(0).float()
