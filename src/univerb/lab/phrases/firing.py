"""Where phrases fire along the text that really follows, and how often they are right.

A phrase fires where greedy decoding would choose it, were this the text so far.
"""

import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from torch import Tensor

from univerb.decoding.choice import log_ratio
from univerb.decoding.text_scores import TextScores
from univerb.lab.phrases.phrase_words import PhraseWords, count_words, share
from univerb.lab.phrases.reading import Reading
from univerb.modeling.branches import Branch
from univerb.modeling.likelihood import Key


@dataclass(frozen=True, slots=True)
class Firing:
    """Counts over the word starts of second halves, with the profile's tolerance and bias."""

    starts: int
    """Word starts after which the truth is as long as the longest phrase."""
    fitting: int
    """Those at which some candidate is what the text continues with."""
    fired: int
    words: int
    """Of the fired phrases."""
    two_content: int
    """Fired phrases with two content words or more."""
    glue: int
    """Fired phrases without a content word."""
    right: int
    """Fired phrases that the text continues with, to their ends."""
    lm_right: int
    """The LM's own greedy continuations that are right there, over the same length."""
    sampled: int
    """Fired phrases whose accepted part was computed."""
    accepted: int
    """Those of which the tolerance accepts two tokens or more."""
    accepted_right: int
    """Those of which the text continues with the accepted part."""
    lm_accepted_right: int
    """The LM's own greedy continuations that are right over the length of the accepted part."""

    def shares(self) -> dict[str, float]:
        """Return the counts as shares: how often phrases fire, and how often they are right."""
        return {
            "rate": share(self.fired, self.starts),
            # No model can be right more often than some candidate fits.
            "fitting_share": share(self.fitting, self.starts),
            **PhraseWords(self.fired, self.words, self.two_content, self.glue).shares(),
            "precision": share(self.right, self.fired),
            "lm_precision": share(self.lm_right, self.fired),
            "accepted_precision": share(self.accepted_right, self.accepted),
            "lm_accepted_precision": share(self.lm_accepted_right, self.accepted),
        }


def firing(
    reading: Reading,
    scores: TextScores,
    starts: Sequence[int],
    *,
    tolerance: float,
    bias: float,
    eagerness: float = 0.0,
    samples: int = 24,
    seed: str = "",
) -> Firing:
    """Follow the choice rule along the truth of one document.

    Args:
        reading: The LM's pass over it.
        scores: The phrases along it.
        starts: Its word starts.
        tolerance: Masks phrases by their first token, and cuts them.
        bias: The `phrase_bias`.
        eagerness: Nats by which the choice prefers phrases.
        samples: Maximum number of fired phrases whose accepted part is computed.
        seed: Of the sample of these.

    Returns:
        The counts.
    """
    longest = max(map(len, scores.phrases), default=0)
    starts = [start for start in starts if start + longest <= len(reading.truth)]
    chosen = [(start, scores.phrase(start, tolerance, bias, eagerness)) for start in starts]
    phrases = [(start, scores.phrases[index]) for start, index in chosen if index is not None]
    fired = [(start, phrase.ids) for start, phrase in phrases]
    runs = reading.greedy_runs()
    right = [_agreeing(reading.truth, start, key) for start, key in fired]
    sample = sorted(random.Random(seed).sample(range(len(fired)), min(samples, len(fired))))
    sizes = accepted_sizes(reading, [fired[i] for i in sample], tolerance)
    parts = [(i, size) for i, size in zip(sample, sizes, strict=True) if size >= 2]
    words = count_words(phrase.text for _, phrase in phrases)
    return Firing(
        starts=len(starts),
        fitting=sum(any(match.size >= 2 for match in scores.matches[start]) for start in starts),
        fired=len(fired),
        words=words.words,
        two_content=words.two_content,
        glue=words.glue,
        right=sum(count == len(key) for (_, key), count in zip(fired, right, strict=True)),
        lm_right=sum(runs[start] >= len(key) for start, key in fired),
        sampled=len(sample),
        accepted=len(parts),
        accepted_right=sum(right[i] >= size for i, size in parts),
        lm_accepted_right=sum(runs[fired[i][0]] >= size for i, size in parts),
    )


def accepted_sizes(
    reading: Reading, proposed: Sequence[tuple[int, Key]], tolerance: float
) -> list[int]:
    """Return the number of tokens of proposed phrases that the LM accepts.

    Args:
        reading: The LM's pass over the truth.
        proposed: Positions and phrases; the first token is accepted already.
        tolerance: Accept while the probability is at least (1 - tolerance) of the best token's.

    Returns:
        For each phrase the accepted tokens, 1 at least.
    """
    limit = log_ratio(tolerance)
    right = [_agreeing(reading.truth, start, key) for start, key in proposed]
    sizes = []
    for (start, key), count in zip(proposed, right, strict=True):
        # As far as the phrase is the text, its first wrong token included, the one pass tells.
        end = min(count + 1, len(key))
        logits = reading.logits[start + 1 : start + end]
        sizes.append(1 + _accepted(logits, key[1:end], limit))
    # Beyond its first wrong token a phrase is no longer the text: the LM must read it.
    unread = [
        i for i, (_, key) in enumerate(proposed) if sizes[i] == right[i] + 1 and sizes[i] < len(key)
    ]
    branches = [
        Branch(proposed[i][0] + right[i], reading.rows(proposed[i][1][right[i] : -1]))
        for i in unread
    ]
    for i, logits in zip(unread, reading.follow(branches), strict=True):
        sizes[i] += _accepted(logits, proposed[i][1][right[i] + 1 :], limit)
    return sizes


def pool_firing(documents: Sequence[Firing]) -> Firing:
    """Add up documents, all measured with the same settings."""
    return Firing(*(sum(counts) for counts in zip(*map(astuple, documents), strict=True)))


def _accepted(logits: Tensor, ids: Sequence[int], limit: float) -> int:
    for count, (row, token) in enumerate(zip(logits, ids, strict=True)):
        if not bool(row[token] >= row.max() + limit):
            return count
    return len(ids)


def _agreeing(truth: Sequence[int], start: int, key: Key) -> int:
    """Return the number of tokens of a phrase that the text continues with."""
    pairs = list(zip(key, truth[start:], strict=False))
    return next((i for i, (token, true) in enumerate(pairs) if token != true), len(pairs))
