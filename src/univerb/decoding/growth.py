"""Policies that change a vocabulary while a text is being written."""

import random
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from univerb.errors import OptionError
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary


class RealTime:
    """The paper's real-time setting: start with a share of P, add more as the text grows.

    Appendix D: 70 % of P at the start, then 5 % of P every 10 generated tokens.
    """

    def __init__(
        self,
        phrases: Sequence[Phrase],
        *,
        start: float = 0.70,
        share: float = 0.05,
        every: int = 10,
        seed: int = 0,
    ) -> None:
        if not (0.0 <= start <= 1.0 and 0.0 < share <= 1.0 and every >= 1):
            raise OptionError(
                f"start {start}, share {share}, every {every}: start lies in 0..1, share in "
                "(0, 1], every is at least 1 token."
            )
        self._phrases = list(phrases)
        random.Random(seed).shuffle(self._phrases)
        self._start, self._share, self._every = start, share, every
        self._added: WeakKeyDictionary[DynamicVocabulary, int] = WeakKeyDictionary()
        """Number of phrases that each vocabulary has received: one policy may serve a batch."""

    def __call__(self, vocabulary: DynamicVocabulary, produced: int) -> None:
        """Add the phrases that are due after `produced` base tokens."""
        share = min(self._start + self._share * (produced // self._every), 1.0)
        due = round(share * len(self._phrases))
        added = self._added.get(vocabulary, 0)
        if due > added:
            vocabulary.add(self._phrases[added:due])
            self._added[vocabulary] = due


class ExpireIdle:
    """Keeps a vocabulary to what is in use: drops phrases that stay unused for some steps."""

    def __init__(self, steps: int) -> None:
        if steps < 1:
            raise OptionError(f"steps is {steps}; a phrase needs at least 1 step to be used.")
        self._steps = steps

    def __call__(self, vocabulary: DynamicVocabulary, produced: int) -> None:
        """Expire what has been idle too long."""
        vocabulary.expire(self._steps)
