"""One sequence being written: chooses units, accepts or rejects drafts, knows when it is done."""

import time
from collections import abc

from univerb.config import GenerationConfig
from univerb.decoding.choice import Choice
from univerb.decoding.chooser import Chooser, State
from univerb.decoding.conditional_head import ConditionalPhraseHead
from univerb.decoding.drafter import Documents, Draft, Drafter, UnreadPass
from univerb.decoding.first_token_head import FirstTokenHead, scores_phrases
from univerb.decoding.naming import Part, accepted_parts, joined
from univerb.decoding.output_text import OutputText
from univerb.decoding.phrase_head import PhraseHead
from univerb.decoding.results import Candidate, FinishReason, Piece, Stats
from univerb.decoding.segmentation import segmented
from univerb.decoding.terms import Terms
from univerb.engines.base import Engine, Output, PhraseRow, Row
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

_CANDIDATES = 5


class Sequence:
    """The state of one generation between two passes of the backbone.

    `draft` names the rows to compute next; `accept` takes their outputs. A phrase that is fed
    as tokens is a draft until its pass has shown what the LM thinks of each of them.
    """

    def __init__(
        self,
        lm: PhraseModel,
        engine: Engine,
        prompt: list[int],
        vocabulary: DynamicVocabulary | None,
        config: GenerationConfig,
    ) -> None:
        self._lm = lm
        self._config = config
        self._is_atomic = config.mode == "atomic"
        self._eos_ids = frozenset() if config.ignore_eos else lm.eos_ids
        self._text = OutputText(lm.tokenizer, prompt, config)
        self._prompt = prompt
        self._head: PhraseHead | FirstTokenHead | None = None
        self._proposer: FirstTokenHead | None = None
        """Proposes phrases where no encoder scores them."""
        self._drafter: Drafter | None = None
        if vocabulary is not None:
            self._set_phrases(vocabulary, engine)
        scoring_head = self._head if isinstance(self._head, PhraseHead) else None
        self._chooser = Chooser(config, engine.sampler(config), scoring_head)
        self._terms: Terms | None = None
        self._is_after_term = False
        if config.prefer or config.require:
            room = min(config.max_tokens, lm.context_size - len(prompt))
            self._terms = Terms(config, lm.tokenizer, vocabulary, room)
        self._unit_ids: list[int] = []
        """`atomic`: the phrases that were written."""
        self._context_left = lm.context_size - len(prompt)
        self._state: State | None = None
        self._chosen: Choice | None = None
        """A choice that was drawn where a draft was rejected, but not yet carried out."""
        self._unread: UnreadPass | None = None
        self._term: Phrase | None = None
        """A text that was asked for and is being read: it stands or falls as a whole."""

    def _set_phrases(self, vocabulary: DynamicVocabulary, engine: Engine) -> None:
        lm, config = self._lm, self._config
        lm.check_vocabulary(vocabulary)
        documents = Documents(vocabulary)
        if scores_phrases(lm, config):
            kind = ConditionalPhraseHead if lm.scoring.is_conditional else PhraseHead
            self._head = kind(lm, engine.phrase_weights(), vocabulary, config, self._eos_ids)
        else:
            self._head = FirstTokenHead(vocabulary, documents, config, self._eos_ids)
            self._proposer = self._head if config.tolerance > 0.0 else None
        # Phrases that come at a drafted token would be missed by the choice there, and so would
        # terms; and without phrases the LM is left alone.
        is_growing = config.growth is not None and config.tolerance > 0.0
        asks_for_terms = config.prefer or config.require
        drafts = engine.has_equal_rows if config.drafts is None else config.drafts
        may_draft = drafts and not (self._is_atomic or is_growing or asks_for_terms)
        if may_draft and (vocabulary.size or config.growth is not None):
            costs = engine.row_costs(config)
            repetition = config.no_repeat_ngram_size, config.repeat_from
            self._drafter = Drafter(documents, costs, *repetition)

    @property
    def stats(self) -> Stats:
        """What it has cost so far."""
        return self._text.stats

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it is being written."""
        return self._text.finish_reason

    def encode(self) -> None:
        """Follow the vocabulary, and encode what choices need at once."""
        if self._head is None:
            return
        began = time.perf_counter()
        self._head.update()
        self._add_encode_seconds(time.perf_counter() - began)

    @property
    def reads_units(self) -> bool:
        """Whether the prompt is read with its phrases as single vectors."""
        return self._config.segment and self._is_atomic and self._head is not None

    def prompt_rows(self) -> list[Row]:
        """Return the prompt's rows but for the first token."""
        if not self.reads_units or not isinstance(self._head, PhraseHead):
            return list(self._prompt[1:])
        return [self._row(unit) for unit in segmented(self._prompt, self._head.vocabulary)[1:]]

    def _row(self, unit: int) -> Row:
        """Return a unit as one row: a token, or a phrase's vector."""
        if unit < self._lm.static_size:
            return unit
        assert isinstance(self._head, PhraseHead)
        vector = self._head.input(unit - self._lm.static_size)
        return PhraseRow(vector, len(self._head.vocabulary.phrase(unit)))

    def start(self, output: Output) -> None:
        """Take the prefill's output."""
        self._state = State.after(output, -1)

    def draft(self, batch_size: int = 1) -> abc.Sequence[Row]:
        """Choose what comes next.

        Args:
            batch_size: Number of sequences in the pass: they share its rows.

        Returns:
            The rows to compute, none if the text is finished.
        """
        assert self._state is not None
        self._grow()
        if self._chosen is None and (term := self._fitting_term()):
            self._term = term
            return term.ids
        if self._chosen is None or self._is_masked(self._chosen.unit):
            self._chosen = self._choose(self._state)
        choice, self._chosen = self._chosen, None
        if self._is_after_term:
            self._is_after_term = False
            self._mask_tokens()
        candidates = self._explain(choice)
        if self._is_atomic and choice.unit >= self._lm.static_size:
            return self._write_vector(choice, candidates)
        return self._read_unit(choice, candidates, batch_size)

    def _read_unit(
        self, choice: Choice, candidates: tuple[Candidate, ...], batch_size: int
    ) -> abc.Sequence[Row]:
        """Name the rows of a chosen unit, and of what may follow it."""
        assert self._state is not None
        ids = self._ids_of(choice.unit)
        draft = self._draft_after(ids, batch_size)
        if draft or len(ids) > 1:
            rows = [*ids, *(draft.ids if draft else ())]
            self._unread = UnreadPass(rows, choice, candidates, draft)
            return rows
        self._tick()
        scored = choice if self._is_atomic else Choice(choice.unit, self._state.logits)
        self._write_token(choice.unit, scored.logprob, candidates)
        return [] if self.finish_reason else [choice.unit]

    def accept(self, output: Output) -> int:
        """Take the outputs of the drafted rows; returns the number of them to rewind."""
        rows = len(output.logits)
        self.stats.steps += 1
        self.stats.pass_rows.append(rows)
        accepted = rows
        if self._term is not None:
            accepted = self._accept_term(self._term, output)
        elif self._unread is not None:
            accepted = self._accept_unread(self._unread, output)
        if accepted:
            self._state = State.after(output, accepted - 1)
        self.stats.pass_ends.append(self._text.produced)
        self._context_left -= accepted
        if self._context_left <= 0:
            self.finish("length")
        return rows - accepted

    def finish(self, reason: FinishReason) -> None:
        """End the text, if it has not ended."""
        if not self.finish_reason:
            self._text.finish(reason)

    def missing_terms(self, text: str) -> tuple[str, ...]:
        """Return what was asked for and is not in the text that was released."""
        return self._terms.missing_in(text) if self._terms else ()

    def release(self) -> list[Piece]:
        """Return the pieces that have become certain since the last call."""
        if self.finish_reason and self._head is not None:
            self.stats.phrases = len(self._head.vocabulary)
        return self._text.release()

    def _grow(self) -> None:
        if self._head is not None and self._config.growth is not None:
            began = time.perf_counter()
            self._config.growth(self._head.vocabulary, self._text.produced)
            self._add_encode_seconds(time.perf_counter() - began)
        self.encode()

    def _add_encode_seconds(self, seconds: float) -> None:
        self.stats.encode_seconds += seconds
        is_later = self._config.growth is not None and self.stats.steps > 0
        self.stats.growth_seconds += seconds if is_later else 0.0

    def _max_length(self, ahead: int = 0) -> int:
        """Return how long a phrase may be, in base tokens, `ahead` rows of a pass further."""
        reserved = self._terms.reserved if self._terms else 0
        left = self._context_left - ahead
        if self._config.overshoot == "allow" and not reserved:
            return left
        return min(left, self._text.left) - reserved

    def _fitting_term(self) -> Phrase | None:
        """Return a text that was asked for and may fit here."""
        if self._terms is None:
            return None
        assert self._state is not None
        output = self._text.ids[len(self._prompt) :]
        term = self._terms.fitting(self._state.logits, self._prompt, output)
        self._mask_tokens()
        return term

    def _mask_tokens(self) -> None:
        """Keep a text from ending before all is written, a term from becoming another word."""
        assert self._terms is not None
        masked = self._eos_ids if self._terms.reserved else frozenset()
        if self._is_after_term:
            masked |= self._lm.tokenizer.word_continuations
        self._chooser.masked_tokens = masked

    def _choose(self, state: State, ahead: int = 0) -> Choice:
        """Choose a unit after the text, `ahead` rows of a pass further than what was read."""
        ids, longest = self._text.ids, self._max_length(ahead)
        choice = self._chooser.choose(state, ids, self._unit_ids, longest)
        self._add_encode_seconds(self._chooser.new_encode_seconds())
        if self._proposer is not None and choice.unit not in self._eos_ids:
            unit = self._proposer.proposal(ids, choice.unit, longest)
            choice = choice if unit is None else choice._replace(unit=unit)
        return choice

    def _ids_of(self, unit: int) -> tuple[int, ...]:
        if unit < self._lm.static_size:
            return (unit,)
        assert self._head is not None
        return self._head.vocabulary.phrase(unit).ids

    def _is_masked(self, unit: int) -> bool:
        """Whether a phrase was taken out of the vocabulary after it was chosen."""
        index = unit - self._lm.static_size
        return self._head is not None and index >= 0 and self._head.is_masked(index)

    def _draft_after(self, unit: tuple[int, ...], batch_size: int) -> Draft | None:
        """Draft how the text may go on from a chosen unit."""
        if self._drafter is None or unit[0] in self._eos_ids:
            return None
        # What is drafted is tokens: only a phrase that is chosen may go beyond the budget.
        room = min(self._max_length(), self._text.left)
        draft = self._drafter.draft(self._text.ids, unit, room, batch_size)
        if draft is None:
            return None
        ends = (at for at, token in enumerate(draft.ids) if token in self._eos_ids)
        ids = draft.ids[: next(ends, None)]
        return draft._replace(ids=ids) if ids else None

    def _write_vector(self, choice: Choice, candidates: tuple[Candidate, ...]) -> abc.Sequence[Row]:
        """`atomic`: write a phrase that is fed as one vector."""
        assert self._head is not None
        phrase = self._head.vocabulary.phrase(choice.unit)
        self._write(phrase.ids, choice.logprob, phrase, candidates)
        self._tick([choice.unit])
        self._unit_ids.append(choice.unit)
        if self._config.positions == "token":
            # Its row is one, but it takes the positions of all its base tokens.
            self._context_left -= len(phrase) - 1
        return [] if self.finish_reason else [self._row(choice.unit)]

    def _accept_term(self, term: Phrase, output: Output) -> int:
        """Write a text that was asked for if it fits; returns the number of rows that stand."""
        assert self._state is not None and self._terms is not None
        self._term = None
        logits = [self._state.logits, *output.logits]
        if not self._terms.accepts(term, logits, self._text.produced):
            return 0
        logprobs = [Choice(*pair).logprob for pair in zip(term.ids, logits, strict=False)]
        self._chosen, self._is_after_term = None, term.text[-1:].isalnum()
        # One token alone is no phrase.
        self._write(term.ids, sum(logprobs), term if len(term) > 1 else None, ())
        if self._head is not None:
            unit = self._head.vocabulary.find(term.ids)
            self._tick([] if unit is None else [unit])
        return len(term)

    def _accept_unread(self, unread: UnreadPass, output: Output) -> int:
        """Keep what would have been chosen unit by unit; returns the number of rows that stand."""
        assert self._state is not None
        self._unread = None
        logits = [self._state.logits, *output.logits]
        parts: list[Part] = []
        choice, candidates, at = unread.choice, unread.candidates, 0
        while True:
            ids = self._ids_of(choice.unit)
            count, own_token = len(ids), None
            if count > 1:
                after = output.logits[at : at + count]
                count, own_token = self._chooser.accepted(ids, self._text.ids, after)
            logprobs = [Choice(*p).logprob for p in zip(ids[:count], logits[at:], strict=False)]
            whole = Part(ids, logprobs, choice.unit if len(ids) > 1 else None, candidates)
            parts += accepted_parts(whole, own_token, self._lm.tokenizer)
            self._text.ids.extend(ids[:count])
            at += count
            following = self._following(own_token, unread.ids[at:], State.after(output, at - 1), at)
            if following is None:
                break
            ids = self._ids_of(following.unit)
            if tuple(unread.ids[at : at + len(ids)]) != ids:
                # It was drawn already: it is carried out in the next pass.
                self._chosen = following
                break
            choice, candidates = following, self._explain(following)
        if self._drafter is not None and unread.draft is not None:
            self._drafter.update(unread.draft, at + len(unread.draft.ids) - len(unread.ids))
        self._show(parts, unread.draft)
        return at

    def _following(
        self, own_token: int | None, rows: abc.Sequence[int], state: State, ahead: int
    ) -> Choice | None:
        """Choose what follows accepted rows; None where that is left to the next pass."""
        if own_token is not None:
            return Choice(own_token, state.logits)
        if not rows or not self._chooser.may_choose(rows[0], state.logits, self._text.ids):
            # Whatever is chosen, it was not drafted; nothing was drawn.
            return None
        return self._choose(state, ahead)

    def _show(self, parts: abc.Sequence[Part], draft: Draft | None) -> None:
        """Show accepted tokens; those that were drafted are named as the phrases that they are."""
        assert self._head is not None
        vocabulary, used = self._head.vocabulary, []
        if draft is not None:
            parts = list(joined(parts, vocabulary))
        for ids, logprobs, unit, candidates in parts:
            is_open = unit is not None and not self._is_masked(unit)
            phrase = vocabulary.phrase(unit) if unit is not None and is_open else None
            self._text.show(ids, sum(logprobs), phrase, candidates)
            used += [unit] if unit is not None else []
        self._tick(used)
        self._finish_if_full()

    def _tick(self, used: abc.Sequence[int] = ()) -> None:
        if self._head is not None:
            self._head.vocabulary.tick(used)

    def _write_token(self, token: int, logprob: float, candidates: tuple[Candidate, ...]) -> None:
        if token in self._eos_ids:
            self._text.finish("eos")
        else:
            self._write((token,), logprob, None, candidates)

    def _write(
        self,
        ids: abc.Sequence[int],
        logprob: float,
        phrase: Phrase | None,
        candidates: tuple[Candidate, ...],
    ) -> None:
        self._text.ids.extend(ids)
        self._text.show(ids, logprob, phrase, candidates)
        self._finish_if_full()

    def _finish_if_full(self) -> None:
        if self._text.left <= 0:
            self.finish("length")

    def _explain(self, choice: Choice) -> tuple[Candidate, ...]:
        best = choice.best(_CANDIDATES) if self._config.explain else []
        return tuple(Candidate(self._text_of(u), p, u >= self._lm.static_size) for u, p in best)

    def _text_of(self, unit: int) -> str:
        if self._head is None or unit < self._lm.static_size:
            return self._lm.tokenizer.decode([unit])
        return self._head.vocabulary.phrase(unit).text
