"""Texts that a generation is asked to write: `prefer` where they fit, `require` in any case.

A term is tried where the LM could begin it: its tokens are read in one pass, and it is kept if the
LM does not mind them much. How much it may mind grows for required terms as the budget runs out; in
the end they are written wherever the text stands.
"""

from collections.abc import Sequence

from univerb.config import GenerationConfig
from univerb.engines.base import Floats
from univerb.errors import OptionError
from univerb.phrase import Phrase
from univerb.tokenizer import Tokenizer
from univerb.vocabulary import DynamicVocabulary

_ALLOWANCE = 7.0
"""Nats that the tokens of a term may together lie below the LM's best ones: a factor of 1,100."""
_PAUSE = 4
"""Tokens until a term that did not fit is tried again: each trial costs a pass."""


class Terms:
    """The terms of one sequence that are not written yet."""

    def __init__(
        self,
        config: GenerationConfig,
        tokenizer: Tokenizer,
        vocabulary: DynamicVocabulary | None,
        budget: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._budget = budget
        self._missing = {
            text: self._phrase(text, vocabulary)
            for text in dict.fromkeys((*config.require, *config.prefer))
        }
        self._required = set(config.require)
        self._not_before = dict.fromkeys(self._missing, 0)
        self._check(config)

    def _phrase(self, text: str, vocabulary: DynamicVocabulary | None) -> Phrase:
        ids = tuple(self._tokenizer.encode_inside(text.strip()).ids)
        if not ids or not self._tokenizer.special_ids.isdisjoint(ids):
            raise OptionError(f"{text!r} is empty or a special token. Prefer or require words.")
        unit = vocabulary.find(ids) if vocabulary is not None else None
        if vocabulary is not None and unit is not None:
            return vocabulary.phrase(unit)
        return Phrase(ids, self._tokenizer.decode(ids))

    def _check(self, config: GenerationConfig) -> None:
        if config.mode != "atomic" and config.tolerance == 0.0:
            raise OptionError(
                "prefer and require change the text, but mode 'verify' (tolerance 0) writes the "
                "plain LM's. Use mode 'unfold' or 'atomic', or leave them out."
            )
        if self.reserved > self._budget:
            raise OptionError(
                f"the required texts have {self.reserved} tokens, but only {self._budget} can be "
                "written. Raise max_tokens, shorten the prompt, or require less."
            )

    @property
    def missing(self) -> tuple[str, ...]:
        """Those that are not written yet."""
        return tuple(self._missing)

    @property
    def reserved(self) -> int:
        """Tokens of the budget that required terms still need: before that the text may not end."""
        return sum(len(self._missing[term]) for term in self._required & self._missing.keys())

    def update(self, ids: Sequence[int]) -> None:
        """Drop the terms that the output's tokens hold, whoever chose them."""
        text = self._tokenizer.decode(ids).casefold()
        for term in [term for term in self._missing if term.strip().casefold() in text]:
            del self._missing[term]

    def fitting(self, logits: Floats, written: int) -> Phrase | None:
        """Return the term that fits best here, judged by its first token, or None.

        Args:
            logits: The LM's (V,).
            written: Number of base tokens in the output.
        """
        if self._is_last_chance(written):
            return next(self._missing[term] for term in self._missing if term in self._required)
        best = float(logits.max())
        fits = [
            (best - float(logits[phrase.ids[0]]), term)
            for term, phrase in self._missing.items()
            if written >= self._not_before[term] and len(phrase) <= self._room(term, written)
        ]
        deficit, term = min(fits, default=(0.0, ""))
        return self._missing[term] if term and deficit <= self._allowance(term, written) else None

    def accepts(self, phrase: Phrase, logits: Sequence[Floats], written: int) -> bool:
        """Tell whether a term that was read is kept; `logits` are those before its tokens."""
        if self._is_last_chance(written):
            return True
        term = next(term for term, missing in self._missing.items() if missing == phrase)
        pairs = zip(phrase.ids, logits, strict=True)
        deficit = sum(float(row.max()) - float(row[token]) for token, row in pairs)
        if deficit <= self._allowance(term, written):
            return True
        self._not_before[term] = written + _PAUSE
        return False

    def _room(self, term: str, written: int) -> int:
        """Return the tokens that a term may have, so that the required ones still fit."""
        others = self.reserved - (len(self._missing[term]) if term in self._required else 0)
        return self._budget - written - others

    def _is_last_chance(self, written: int) -> bool:
        return 0 < self.reserved >= self._budget - written

    def _allowance(self, term: str, written: int) -> float:
        if term not in self._required:
            return _ALLOWANCE
        return _ALLOWANCE * self._budget / (self._budget - written)
