"""Where phrases fire along the text that really follows, and how often they are right.

The rule is that of `decoding.choice`: phrases whose first token fails the tolerance are masked, and
the best of the others is proposed if it beats the LM's best token.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from torch import Tensor

from univerb.lab.phrases.reading import Reading
from univerb.modeling.branches import Branch
from univerb.modeling.likelihood import Key, fits


@dataclass(frozen=True, slots=True)
class Cell:
    """What fires with one tolerance and one bias."""

    tolerance: float
    bias: float
    fired: int
    right: int
    """How many of the phrases the text continues with, to their ends."""
    lm_right: int
    """How many of the LM's own greedy continuations are right there, over the same length."""

    @property
    def precision(self) -> float:
        """The share of fired phrases that are right."""
        return self.right / self.fired if self.fired else 0.0

    @property
    def lm_precision(self) -> float:
        """The LM's own share, at the same places and lengths."""
        return self.lm_right / self.fired if self.fired else 0.0


@dataclass(frozen=True, slots=True)
class Firing:
    """Counts over the word starts of second halves."""

    starts: int
    """Word starts at which the next tokens are known as far as the longest phrase reaches."""
    fitting: int
    """Those at which some candidate is what the text continues with."""
    profile: Cell
    """With the tolerance and the bias of the model's profile."""
    sampled: int
    """Phrases fired at the profile whose kept part was computed."""
    kept: int
    """Those of which the tolerance keeps two tokens or more."""
    kept_right: int
    """Those of which the text continues with the kept part."""
    lm_kept_right: int
    """The LM's own greedy continuations that are right over the length of the kept part."""
    grid: list[Cell]

    @property
    def rate(self) -> float:
        """The share of word starts at which a phrase fires."""
        return self.profile.fired / self.starts if self.starts else 0.0

    @property
    def fitting_share(self) -> float:
        """The share of word starts at which some candidate fits: no model can be right more."""
        return self.fitting / self.starts if self.starts else 0.0

    @property
    def kept_precision(self) -> float:
        """The share of kept parts that are right."""
        return self.kept_right / self.kept if self.kept else 0.0

    @property
    def lm_kept_precision(self) -> float:
        """The LM's own share, at the same places and lengths."""
        return self.lm_kept_right / self.kept if self.kept else 0.0


class _Proposals(NamedTuple):
    """The phrase that would be proposed at each place with one tolerance, whatever the bias."""

    number: list[int]
    margin: list[float]
    """By how much its score is above the LM's best token; -inf if all phrases are masked."""
    right: list[bool]
    lm_right: list[bool]


def firing(
    reading: Reading,
    keys: Sequence[Key],
    scores: Tensor,
    starts: Sequence[int],
    *,
    tolerance: float,
    bias: float,
    tolerances: Sequence[float] = (),
    biases: Sequence[float] = (),
    most: int = 24,
    seed: str = "",
) -> Firing:
    """Follow the choice rule along the truth of one document.

    Args:
        reading: The LM's pass over it.
        keys: The phrases' tokens.
        scores: Their logits along the truth, (T + 1, P).
        starts: Its word starts.
        tolerance: The profile's.
        bias: The profile's.
        tolerances: Of the grid.
        biases: Of the grid.
        most: Compute the kept part of at most so many fired phrases.
        seed: Of the sample of these.

    Returns:
        The counts.
    """
    longest = max(map(len, keys), default=0)
    places = [place for place in starts if place + longest <= len(reading.truth)]
    along = _Along(reading, keys, scores, places)
    found = {t: along.proposals(t) for t in {tolerance, *tolerances}}
    own = found[tolerance]
    fired = [i for i in range(len(places)) if own.margin[i] + bias > 0]
    chosen = random.Random(seed).sample(fired, min(most, len(fired)))
    proposed = [(places[i], keys[own.number[i]]) for i in sorted(chosen)]
    sizes = kept_sizes(reading, proposed, tolerance)
    parts = [(p, key, n) for (p, key), n in zip(proposed, sizes, strict=True) if n >= 2]
    fitting = fits(reading.truth, keys)
    return Firing(
        starts=len(places),
        fitting=sum(any(fit.size >= 2 for fit in fitting[place]) for place in places),
        profile=_cell(own, tolerance, bias),
        sampled=len(proposed),
        kept=len(parts),
        kept_right=sum(_agreeing(reading.truth, place, key) >= n for place, key, n in parts),
        lm_kept_right=sum(along.runs[place] >= n for place, _, n in parts),
        grid=[_cell(found[t], t, b) for t in tolerances for b in biases],
    )


class _Along:
    """The word starts of a document, and what the LM and the phrases score there."""

    def __init__(
        self, reading: Reading, keys: Sequence[Key], scores: Tensor, places: Sequence[int]
    ) -> None:
        self.runs = reading.right_runs()
        self._truth = reading.truth
        self._keys = keys
        self._places = places
        first = [key[0] for key in keys]
        self._scores = scores[list(places)]
        logits = reading.logits[list(places)]
        self._top = logits.amax(-1, keepdim=True)
        self._first = logits[:, first]

    def proposals(self, tolerance: float) -> _Proposals:
        if not self._keys or not self._places:
            count = len(self._places)
            return _Proposals([0] * count, [-math.inf] * count, [False] * count, [False] * count)
        is_masked = self._first < self._top + _log_share(tolerance)
        values, numbers = self._scores.masked_fill(is_masked, -math.inf).max(-1)
        margins = (values - self._top[:, 0]).tolist()
        chosen = [self._keys[number] for number in numbers.tolist()]
        pairs = list(zip(self._places, chosen, strict=True))
        return _Proposals(
            numbers.tolist(),
            margins,
            [_agreeing(self._truth, place, key) == len(key) for place, key in pairs],
            [self.runs[place] >= len(key) for place, key in pairs],
        )


def kept_sizes(
    reading: Reading, proposed: Sequence[tuple[int, Key]], tolerance: float
) -> list[int]:
    """Return how many tokens of proposed phrases the LM accepts.

    Args:
        reading: The LM's pass over the truth.
        proposed: Places and phrases; the first token is accepted already.
        tolerance: Accept while the probability is at least (1 - tolerance) of the best one's.

    Returns:
        For each phrase the tokens that are kept, 1 at least.
    """
    limit = _log_share(tolerance)
    kept = [_kept_on_text(reading, place, key, limit) for place, key in proposed]
    departed = [_agreeing(reading.truth, place, key) for place, key in proposed]
    # Beyond its first wrong token a phrase is no longer the text: the LM must read it.
    open_ = [
        i
        for i, (_, key) in enumerate(proposed)
        if kept[i] == departed[i] + 1 and kept[i] < len(key)
    ]
    branches = [
        Branch(proposed[i][0] + departed[i], reading.rows(proposed[i][1][departed[i] : -1]))
        for i in open_
    ]
    for i, logits in zip(open_, reading.follow(branches), strict=True):
        rest = proposed[i][1][departed[i] + 1 :]
        kept[i] += _accepted(logits, rest, limit)
    return kept


def pool_firing(each: Sequence[Firing]) -> Firing:
    """Add up documents, all measured with the same settings."""
    grids = zip(*(one.grid for one in each), strict=True)
    names = ("starts", "fitting", "sampled", "kept", "kept_right", "lm_kept_right")
    sums = {name: sum(getattr(one, name) for one in each) for name in names}
    return Firing(
        profile=_added([one.profile for one in each]), grid=[_added(c) for c in grids], **sums
    )


def _added(cells: Sequence[Cell]) -> Cell:
    sums = {n: sum(getattr(cell, n) for cell in cells) for n in ("fired", "right", "lm_right")}
    return Cell(**asdict(cells[0]) | sums)


def _cell(found: _Proposals, tolerance: float, bias: float) -> Cell:
    fired = [i for i, margin in enumerate(found.margin) if margin + bias > 0]
    right = sum(found.right[i] for i in fired)
    return Cell(tolerance, bias, len(fired), right, sum(found.lm_right[i] for i in fired))


def _kept_on_text(reading: Reading, place: int, key: Key, limit: float) -> int:
    """Count the accepted tokens as far as the phrase is the text, its first wrong one included."""
    end = min(_agreeing(reading.truth, place, key) + 1, len(key))
    return 1 + _accepted(reading.logits[place + 1 : place + end], key[1:end], limit)


def _accepted(logits: Tensor, ids: Sequence[int], limit: float) -> int:
    count = 0
    for row, token in zip(logits, ids, strict=True):
        if not bool(row[token] >= row.max() + limit):
            break
        count += 1
    return count


def _agreeing(truth: Sequence[int], place: int, key: Key) -> int:
    """Return how many tokens of a phrase the text continues with."""
    count = 0
    for token, true in zip(key, truth[place : place + len(key)], strict=False):
        if token != true:
            break
        count += 1
    return count


def _log_share(tolerance: float) -> float:
    return -math.inf if tolerance == 1.0 else math.log1p(-tolerance)
