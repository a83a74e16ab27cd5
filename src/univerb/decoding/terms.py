"""Texts that a generation is asked to write: `prefer` where they fit, `require` in any case.

A term is tried where the LM could begin it: its tokens are read in one pass, and it is kept if the
LM does not mind them much. How much it may mind grows for required terms as the budget runs out; in
the end they are written wherever the text stands.
"""

import re
from collections.abc import Sequence

from univerb.config import GenerationConfig
from univerb.decoding.repetition import repeated_tokens
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
    """The terms of one sequence, and which of them are not written yet."""

    def __init__(
        self,
        config: GenerationConfig,
        tokenizer: Tokenizer,
        vocabulary: DynamicVocabulary | None,
        budget: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._budget = budget
        self._no_repeat = config.no_repeat_ngram_size
        self._repeat_from = config.repeat_from
        self._required = set(config.require)
        self._phrases = {
            text: self._phrase(text, vocabulary)
            for text in dict.fromkeys((*config.require, *config.prefer))
        }
        self._patterns = {term: _pattern(p.text.strip()) for term, p in self._phrases.items()}
        self._missing = list(self._phrases)
        self._not_before = dict.fromkeys(self._phrases, 0)
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
        for term in self._phrases:
            if banned := next((text for text in config.ban if text in term), None):
                raise OptionError(
                    f"{term!r} has {banned!r}, which is banned. Leave one of them out."
                )
        if self.reserved > self._budget:
            raise OptionError(
                f"the required texts have {self.reserved} tokens, but only {self._budget} can be "
                "written. Raise max_tokens, shorten the prompt, or require less."
            )

    @property
    def reserved(self) -> int:
        """Tokens of the budget that required terms still need: before that the text may not end."""
        return sum(len(self._phrases[term]) for term in self._missing if term in self._required)

    def missing_in(self, text: str) -> tuple[str, ...]:
        """Return the terms that a text does not have as whole words, in any case of letters."""
        return tuple(term for term, pattern in self._patterns.items() if not pattern.search(text))

    def fitting(
        self, logits: Floats, prompt: Sequence[int], output: Sequence[int]
    ) -> Phrase | None:
        """Find the missing term that fits best here, judged by its first token.

        Args:
            logits: The LM's (V,), after prompt and output.
            prompt: Base tokens.
            output: Base tokens that were written, whoever chose them.

        Returns:
            The term to try, or None.
        """
        text = self._tokenizer.decode(output)
        self._missing = [term for term in self._missing if not self._is_written(term, text)]
        written, best = len(output), float(logits.max())
        if self._is_last_chance(written):
            return next(self._phrases[term] for term in self._missing if term in self._required)
        fits = [
            (best - float(logits[self._phrases[term].ids[0]]), term)
            for term in self._missing
            if written >= self._not_before[term]
            and self._may_write(term, [*prompt, *output], written)
        ]
        deficit, term = min(fits, default=(0.0, ""))
        return self._phrases[term] if term and deficit <= self._allowance(term, written) else None

    def accepts(self, phrase: Phrase, logits: Sequence[Floats], written: int) -> bool:
        """Tell whether a term that was read is kept.

        Args:
            phrase: The term.
            logits: The LM's before each of its tokens, and after the last.
            written: Number of base tokens in the output before it.

        Returns:
            Whether the LM does not mind it much, and would not make a longer word of it.
        """
        term = next(term for term in self._missing if self._phrases[term] == phrase)
        if self._fits(term, logits, written):
            self._missing.remove(term)
            return True
        self._not_before[term] = written + _PAUSE
        return False

    def _fits(self, term: str, logits: Sequence[Floats], written: int) -> bool:
        if self._is_last_chance(written):
            return True
        phrase = self._phrases[term]
        pairs = zip(phrase.ids, logits[:-1], strict=True)
        deficit = sum(float(row.max()) - float(row[token]) for token, row in pairs)
        whole = self._tokenizer.decode([*phrase.ids, int(logits[-1].argmax())])
        is_word = bool(self._patterns[term].search(whole))
        return is_word and deficit <= self._allowance(term, written)

    def _is_written(self, term: str, text: str) -> bool:
        # At the end of the text, a longer word may still become of it.
        return any(match.end() < len(text) for match in self._patterns[term].finditer(text))

    def _may_write(self, term: str, ids: list[int], written: int) -> bool:
        """Whether a term leaves room for those that are required, and repeats no n-gram."""
        phrase, is_required = self._phrases[term], term in self._required
        if len(phrase) > self._budget - written - self.reserved + len(phrase) * is_required:
            return False
        counted = ids[self._repeat_from :]
        return (
            is_required
            or not self._no_repeat
            or all(
                token not in repeated_tokens([*counted, *phrase.ids[:index]], self._no_repeat)
                for index, token in enumerate(phrase.ids)
            )
        )

    def _is_last_chance(self, written: int) -> bool:
        return 0 < self.reserved == self._budget - written

    def _allowance(self, term: str, written: int) -> float:
        if term not in self._required:
            return _ALLOWANCE
        return _ALLOWANCE * self._budget / max(self._budget - written, 1)


def _pattern(text: str) -> re.Pattern[str]:
    """Find a text where it is not a part of a longer word."""
    before = r"(?<!\w)" if re.match(r"\w", text) else ""
    after = r"(?!\w)" if re.search(r"\w$", text) else ""
    return re.compile(f"{before}{re.escape(text)}{after}", re.IGNORECASE)
