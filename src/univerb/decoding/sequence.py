"""One sequence being written: decides units, settles proposals, knows when it is done."""

import math
import time
from collections.abc import Iterable, Sequence

import numpy

from univerb.decoding.choice import (
    Choice,
    accepted_tokens,
    accepts,
    choose_atomic,
    choose_escape,
    choose_unfold,
    guess,
    ways_back,
)
from univerb.decoding.drafter import Draft, Guesses
from univerb.decoding.options import Decoding
from univerb.decoding.phrase_head import ActivePhrases, Scored
from univerb.decoding.results import Candidate, FinishReason, Piece, Stats
from univerb.decoding.segmentation import segmented
from univerb.decoding.writer import Writer
from univerb.engines.base import Engine, Floats, Output, PhraseRow, Row
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

_CANDIDATES = 5


class Continuation:
    """The state of one generation between two passes of the backbone.

    `propose` names the rows to compute next; `settle` takes their outputs. A phrase that is fed
    as tokens is a draft until its pass has shown what the LM thinks of each of them.
    """

    def __init__(
        self,
        lm: PhraseModel,
        engine: Engine,
        prompt: Sequence[int],
        vocabulary: DynamicVocabulary | None,
        decoding: Decoding,
    ) -> None:
        self.stats = Stats(prompt_tokens=len(prompt))
        self.finish_reason: FinishReason | None = None
        self._lm = lm
        self._decoding = decoding
        self._how = decoding.resolved(lm.profile)
        self._engine = engine
        self._eos = frozenset() if decoding.ignore_eos else lm.eos_ids
        self._sampler = engine.sampler(decoding)
        self._phrases: ActivePhrases | None = None
        self._guesses: Guesses | None = None
        if vocabulary is not None:
            self._phrases = ActivePhrases(
                lm,
                engine.phrase_rows(),
                vocabulary,
                self._how.phrase_bias,
                decoding.ban,
                self._eos,
                decoding.exact,
            )
            self._guesses = Guesses(vocabulary, engine.draft_rows, self._how.draft > 0.0)
        self._writer = Writer(lm.tokenizer, decoding.stop)
        self._prompt = list(prompt)
        self._seen = list(prompt)
        """Base tokens of prompt and output, and the ids of phrases that were written."""
        self._produced = 0
        self._context_left = lm.context_size - len(prompt)
        self._released: list[Piece] = []
        self._state: tuple[Floats, Floats] | None = None
        """Hidden state and logits after the last row, if a choice is due."""
        self._chosen: Choice | None = None
        """A choice that was made, where a guess went wrong, but not yet carried out."""
        self._draft: Draft | None = None
        self._pending: list[Row] = []

    @property
    def reads_units(self) -> bool:
        """Whether the prompt is read with its phrases as single vectors."""
        is_wanted = self._decoding.segment and self._how.is_atomic
        return is_wanted and self._phrases is not None

    def prompt_rows(self) -> list[Row]:
        """Return the prompt's rows but for the first token."""
        if not self.reads_units or self._phrases is None:
            return list(self._prompt[1:])
        self._phrases.refresh()
        size, names = self._lm.static_size, self._phrases.vocabulary
        rows: list[Row] = []
        for unit in segmented(self._prompt, names)[1:]:
            if unit < size:
                rows.append(unit)
            else:
                vector = self._phrases.input(unit - size)
                rows.append(PhraseRow(vector, len(names.phrase(unit))))
        return rows

    def start(self, output: Output) -> None:
        """Take the prefill's output."""
        self._state = (output.hidden[-1], output.logits[-1])

    def propose(self, share: int = 1) -> Sequence[Row]:
        """Decide what comes next.

        Args:
            share: So many sequences take part in the pass: a guess may fill its part of the rows.

        Returns:
            The rows to compute, none if the text is finished.
        """
        if self._pending:
            rows, self._pending = self._pending, []
            return rows
        assert self._state is not None
        hidden, logits = self._state
        self._grow()
        if self._chosen is None or self._is_gone(self._chosen.unit):
            self._chosen = self._choose(hidden, logits, self._seen, 0)
        choice, self._chosen = self._chosen, None
        candidates = self._explain(choice)
        if choice.unit >= len(logits):
            return self._take_phrase(choice, candidates)
        self._draft = self._guess(choice.unit, hidden, logits, candidates, share)
        if self._draft:
            return self._draft.ids
        if self._phrases is not None:
            self._phrases.vocabulary.tick()
        weighed = choice if self._how.is_atomic else Choice(choice.unit, logits)
        self._emit_token(choice.unit, weighed.logprob, candidates)
        return [] if self.finish_reason else [choice.unit]

    def settle(self, output: Output) -> int:
        """Take the outputs of the proposed rows; returns how many of them to take back."""
        rows = len(output.logits)
        self.stats.steps += 1
        self.stats.rows += rows
        rejected = 0
        if self._draft is None:
            self._state = (output.hidden[-1], output.logits[-1])
        else:
            rejected = self._settle_draft(self._draft, output)
        self._context_left -= rows - rejected
        if self._context_left <= 0 and not self.finish_reason:
            self._finish("length")
        return rejected

    def release(self) -> list[Piece]:
        """Hand out the pieces that have become certain since the last call."""
        released, self._released = self._released, []
        return released

    def _grow(self) -> None:
        if self._phrases is None:
            return
        began = time.perf_counter()
        if self._decoding.growth is not None:
            self._decoding.growth(self._phrases.vocabulary, self._produced)
        self._phrases.refresh()
        seconds = time.perf_counter() - began
        self.stats.encode_seconds += seconds
        self.stats.growth_seconds += seconds if self.stats.steps else 0.0

    def _longest_phrase(self, ahead: int = 0) -> int:
        """How long a phrase may be, in base tokens, after so many more."""
        left = self._context_left - ahead
        if self._decoding.overshoot == "allow":
            return left
        return min(left, self._decoding.max_tokens - self._produced - ahead)

    def _choose(self, hidden: Floats, logits: Floats, seen: Sequence[int], ahead: int) -> Choice:
        """Choose a unit, given the state after the ids seen, so many ahead of what is written."""
        longest = self._longest_phrase(ahead)
        if self._how.is_atomic:
            choice = choose_atomic(
                logits, self._all_phrases(hidden, logits, longest), self._sampler, seen
            )
        else:
            filtered = self._sampler.filtered(logits, seen)
            accepted = self._accepted_phrases(hidden, filtered, longest)
            choice = choose_unfold(logits, filtered, accepted, self._sampler)
        # At tolerance 0 the text is the LM's own.
        if not self._how.escape or (not self._how.is_atomic and self._how.tolerance == 0.0):
            return choice
        return self._escape(choice, hidden, logits, longest, seen)

    def _all_phrases(self, hidden: Floats, logits: Floats, longest: int) -> Scored | None:
        """Score every phrase, or the short-list of a large vocabulary."""
        if self._phrases is None:
            return None
        if self._phrases.is_large:
            return self._phrases.short_list(logits, hidden, longest)
        return self._phrases.scored(hidden, longest)

    def _accepted_phrases(self, hidden: Floats, filtered: Floats, longest: int) -> Scored | None:
        """Score the phrases whose first token the LM accepts."""
        if self._phrases is None or self._how.tolerance == 0.0:
            return None
        if self._how.tolerance == 1.0:
            return self._all_phrases(hidden, filtered, longest)
        tokens = accepted_tokens(filtered, self._how.tolerance)
        found = self._phrases.beginning_with(tokens, hidden, longest)
        # Phrases that cannot be chosen must not even lengthen the draw.
        return found and found.where(found.logits > -math.inf)

    def _escape(
        self, choice: Choice, hidden: Floats, logits: Floats, longest: int, seen: Sequence[int]
    ) -> Choice:
        """Lead a text that would go round in circles elsewhere, at the start of a word."""
        size, has_space = self._lm.static_size, self._lm.tokenizer.has_space
        begun = choice.unit
        if begun >= size and choice.phrases:
            begun = int(choice.phrases.first[choice.phrases.numbers == begun - size][0])
        if not has_space(begun):
            return choice
        written = [token for token in seen[len(self._prompt) :] if token < size]
        back = ways_back(written, begun, self._how.escape)
        phrases = self._all_phrases(hidden, logits, longest) if back else None
        if phrases is None:
            return choice
        known = numpy.unique(phrases.first).tolist()
        ways = {token for token in known if has_space(token)} - back
        return choose_escape(size, phrases, ways, self._sampler) or choice

    def _is_gone(self, unit: int) -> bool:
        """Whether a phrase was taken out of the vocabulary after it was chosen."""
        number = unit - self._lm.static_size
        return self._phrases is not None and number >= 0 and self._phrases.is_barred(number)

    def _guess(
        self,
        token: int,
        hidden: Floats,
        logits: Floats,
        candidates: tuple[Candidate, ...],
        share: int,
    ) -> Draft | None:
        """Return how the text may go on from a chosen token."""
        if self._how.is_atomic or not self._guesses or token in self._eos:
            return None
        # What is guessed is tokens: only a phrase that is chosen may go beyond the budget.
        longest = min(self._longest_phrase(), self._decoding.max_tokens - self._produced)
        is_growing = self._decoding.growth is not None and self._how.tolerance > 0.0
        # Phrases that come at a guessed token would be missed by the choice there.
        if is_growing or min(longest, self._engine.draft_rows // share) <= 1:
            return None
        phrase = self._likely_phrase(token, hidden, logits, longest)
        found, is_recalled = self._guesses.after(self._seen, token, phrase, longest, share)
        is_end = [one in self._eos for one in found]
        found = found[: is_end.index(True)] if any(is_end) else found
        if not found:
            return None
        return Draft([token, *found], None, candidates, is_recalled, phrase is not None)

    def _likely_phrase(
        self, token: int, hidden: Floats, logits: Floats, longest: int
    ) -> Phrase | None:
        """Return the phrase that is likeliest to go on from a chosen token."""
        assert self._phrases is not None
        own = self._phrases.beginning_with(numpy.array([token]), hidden, longest)
        number = None if own is None else guess(float(logits[token]), own, self._how.draft)
        return None if number is None else self._phrases.vocabulary.phrase(len(logits) + number)

    def _take_phrase(self, choice: Choice, candidates: tuple[Candidate, ...]) -> Sequence[Row]:
        assert self._phrases is not None
        unit = choice.unit
        phrase = self._phrases.vocabulary.phrase(unit)
        if not self._how.is_atomic:
            self._draft = Draft(phrase.ids, unit, candidates)
            return phrase.ids
        self._emit(phrase.ids, choice.logprob, phrase, candidates)
        self._phrases.vocabulary.tick([unit])
        self._seen.append(unit)
        if self._how.positions == "token":
            # Its row is one, but it takes the positions of all its base tokens.
            self._context_left -= len(phrase) - 1
        row = self._phrases.input(unit - self._lm.static_size)
        return [] if self.finish_reason else [PhraseRow(row, len(phrase))]

    def _settle_draft(self, draft: Draft, output: Output) -> int:
        """Keep the part of a draft that stands; returns how many of its rows to take back."""
        assert self._state is not None
        ids, is_guess = draft.ids, draft.unit is None
        kept, own = self._confirmed(ids, output) if is_guess else self._accepted(ids, output)
        before = [self._state[1], *output.logits[: kept - 1]]
        logprobs = [Choice(*pair).logprob for pair in zip(ids, before, strict=False)]
        self._draft = None
        if draft.is_recalled:
            assert self._guesses is not None
            self._guesses.history.stood(kept)
        self._state = (output.hidden[kept - 1], output.logits[kept - 1])
        self._emit_kept(draft, kept, logprobs)
        if own is not None and not self.finish_reason:
            # The pass has already shown the LM's own token here: it costs no pass to choose.
            logits = output.logits[kept - 1]
            chosen = Choice(own, logits)
            self._emit_token(own, chosen.logprob, self._explain(chosen))
            self._pending = [own]
        return len(ids) - kept

    def _emit_kept(self, draft: Draft, kept: int, logprobs: Sequence[float]) -> None:
        """Write what stands of a draft: the phrase that was chosen, or those that a guess holds."""
        assert self._phrases is not None
        assert self._guesses is not None
        ids, candidates = draft.ids[:kept], draft.candidates
        whole = draft.unit if kept > 1 else None
        parts: Iterable[tuple[int, int, int | None]] = [(0, kept, whole)]
        if not draft.names_phrases:
            parts = [(at, at + 1, None) for at in range(kept)]
        elif draft.unit is None:
            parts = self._guesses.documents.units(ids)
        names, used = self._phrases.vocabulary, []
        for begin, end, unit in parts:
            is_open = unit is not None and not self._is_gone(unit)
            phrase = names.phrase(unit) if unit is not None and is_open else None
            self._emit(ids[begin:end], sum(logprobs[begin:end]), phrase, candidates)
            used += [unit] if unit is not None else []
            candidates = ()
            if self.finish_reason:
                break
        names.tick(used)

    def _accepted(self, ids: Sequence[int], output: Output) -> tuple[int, int | None]:
        """Count the tokens that the LM tolerates; its own token follows after a cut."""
        for kept in range(1, len(ids)):
            seen = [*self._seen, *ids[:kept]]
            filtered = self._sampler.filtered(output.logits[kept - 1], seen)
            token = accepts(filtered, ids[kept], self._how.tolerance, self._sampler)
            if token != ids[kept]:
                return kept, token
        return len(ids), None

    def _confirmed(self, ids: Sequence[int], output: Output) -> tuple[int, None]:
        """Count the tokens that would have been chosen without the guess.

        The first choice that is another is kept for the next pass: it was drawn already.
        """
        is_greedy = self._sampler.is_greedy
        for kept in range(1, len(ids)):
            logits, seen = output.logits[kept - 1], [*self._seen, *ids[:kept]]
            if is_greedy and int(self._sampler.filtered(logits, seen).argmax()) != ids[kept]:
                # Whatever is chosen, it is not this token: nothing was drawn, choose it later.
                return kept, None
            choice = self._choose(output.hidden[kept - 1], logits, seen, kept)
            if choice.unit != ids[kept]:
                self._chosen = choice
                return kept, None
        return len(ids), None

    def _emit_token(self, token: int, logprob: float, candidates: tuple[Candidate, ...]) -> None:
        if token in self._eos:
            self._finish("eos")
        else:
            self._emit((token,), logprob, None, candidates)

    def _emit(
        self,
        ids: Sequence[int],
        logprob: float,
        phrase: Phrase | None,
        candidates: tuple[Candidate, ...],
    ) -> None:
        self._seen.extend(ids)
        self._produced += len(ids)
        self._hand_out(self._writer.write(ids, logprob, phrase, candidates))
        if self._writer.is_stopped:
            self._finish("stop")
        elif self._produced >= self._decoding.max_tokens:
            self._finish("length")

    def _finish(self, reason: FinishReason) -> None:
        self._hand_out(self._writer.close())
        self.finish_reason = "stop" if self._writer.is_stopped else reason
        self.stats.phrases = len(self._phrases.vocabulary) if self._phrases else 0

    def _hand_out(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self.stats.count(piece)
        self._released.extend(pieces)

    def _explain(self, choice: Choice) -> tuple[Candidate, ...]:
        if not self._decoding.explain:
            return ()
        return tuple(self._candidate(*unit) for unit in choice.best(_CANDIDATES))

    def _candidate(self, unit: int, probability: float) -> Candidate:
        if unit < self._lm.static_size:
            return Candidate(self._lm.tokenizer.decode([unit]), probability, is_phrase=False)
        assert self._phrases is not None
        text = self._phrases.vocabulary.phrase(unit).text
        return Candidate(text, probability, is_phrase=True)
