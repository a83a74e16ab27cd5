"""One sequence being written: chooses units, accepts or rejects drafts, knows when it is done."""

import time
from collections import abc

from univerb.config import GenerationConfig
from univerb.decoding.choice import Choice
from univerb.decoding.chooser import Chooser, State
from univerb.decoding.conditional_head import ConditionalPhraseHead
from univerb.decoding.drafter import Draft, Drafter
from univerb.decoding.phrase_head import PhraseHead, Place
from univerb.decoding.results import Candidate, FinishReason, Piece, Stats
from univerb.decoding.segmentation import segmented
from univerb.decoding.terms import Terms
from univerb.decoding.writer import Writer
from univerb.engines.base import Engine, Output, PhraseRow, Row
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Phrase
from univerb.phrases.tokenized import ends_whole
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
        self.stats = Stats(prompt_tokens=len(prompt))
        self.finish_reason: FinishReason | None = None
        self._lm = lm
        self._config = config
        self._is_atomic = config.mode == "atomic"
        self._engine = engine
        self._eos_ids = frozenset() if config.ignore_eos else lm.eos_ids
        self._head: PhraseHead | None = None
        self._drafter: Drafter | None = None
        if vocabulary is not None:
            weights = engine.phrase_weights()
            kind = ConditionalPhraseHead if lm.scoring.is_conditional else PhraseHead
            self._head = kind(lm, weights, vocabulary, config, self._eos_ids)
            self._drafter = Drafter(vocabulary, engine.draft_rows, config.draft_bias > 0.0)
        self._chooser = Chooser(config, engine.sampler(config), self._head)
        self._terms: Terms | None = None
        self._is_after_term = False
        if config.prefer or config.require:
            room = min(config.max_tokens, lm.context_size - len(prompt))
            self._terms = Terms(config, lm.tokenizer, vocabulary, room)
        self._writer = Writer(lm.tokenizer, config.stop)
        self._prompt = prompt
        self._base_ids = list(prompt)
        """Base tokens of prompt and output."""
        self._unit_ids: list[int] = []
        """`atomic`: the phrases that were written."""
        self._produced = 0
        self._context_left = lm.context_size - len(prompt)
        self._released: list[Piece] = []
        self._state: State | None = None
        self._chosen: Choice | None = None
        """A choice that was drawn where a draft was rejected, but not yet carried out."""
        self._draft: Draft | None = None
        self._pending: list[Row] = []

    def encode(self) -> None:
        """Encode the phrases that have no vector yet."""
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
        if not self.reads_units or self._head is None:
            return list(self._prompt[1:])
        size, vocabulary = self._lm.static_size, self._head.vocabulary
        return [
            unit
            if unit < size
            else PhraseRow(self._head.input(unit - size), len(vocabulary.phrase(unit)))
            for unit in segmented(self._prompt, vocabulary)[1:]
        ]

    def start(self, output: Output) -> None:
        """Take the prefill's output."""
        self._state = State(output.hidden[-1], output.logits[-1])

    def draft(self, batch_size: int = 1) -> abc.Sequence[Row]:
        """Choose what comes next.

        Args:
            batch_size: Number of sequences in the pass: they share its rows.

        Returns:
            The rows to compute, none if the text is finished.
        """
        if self._pending:
            rows, self._pending = self._pending, []
            return rows
        assert self._state is not None
        self._grow()
        if term := self._fitting_term():
            self._draft = Draft(term.ids, None, (), term=term)
            return term.ids
        if self._chosen is None or self._is_masked(self._chosen.unit):
            self._chosen = self._choose(self._state, self._base_ids, ahead=0)
        choice, self._chosen = self._chosen, None
        if self._is_after_term:
            self._is_after_term = False
            self._mask_tokens()
        candidates = self._explain(choice)
        if choice.unit >= self._lm.static_size:
            return self._take_phrase(choice, candidates)
        self._draft = self._draft_after(choice.unit, self._state, candidates, batch_size)
        if self._draft:
            return self._draft.ids
        if self._head is not None:
            self._head.vocabulary.tick()
        scored = choice if self._is_atomic else Choice(choice.unit, self._state.logits)
        self._emit_token(choice.unit, scored.logprob, candidates)
        return [] if self.finish_reason else [choice.unit]

    def accept(self, output: Output) -> int:
        """Take the outputs of the drafted rows; returns the number of them to rewind."""
        rows = len(output.logits)
        self.stats.steps += 1
        self.stats.rows += rows
        rejected = 0
        if self._draft is None:
            self._state = State(output.hidden[-1], output.logits[-1])
        elif self._draft.term:
            rejected = self._accept_term(self._draft.term, output)
        else:
            rejected = self._accept_draft(self._draft, output)
        self.stats.pass_ends.append(self._produced)
        self._context_left -= rows - rejected
        if self._context_left <= 0 and not self.finish_reason:
            self._finish("length")
        return rejected

    def missing_terms(self, text: str) -> tuple[str, ...]:
        """Return what was asked for and is not in the text that was released."""
        return self._terms.missing_in(text) if self._terms else ()

    def release(self) -> list[Piece]:
        """Return the pieces that have become certain since the last call."""
        released, self._released = self._released, []
        return released

    def _grow(self) -> None:
        if self._head is None:
            return
        began = time.perf_counter()
        if self._config.growth is not None:
            self._config.growth(self._head.vocabulary, self._produced)
        self._head.update()
        self._add_encode_seconds(time.perf_counter() - began)

    def _add_encode_seconds(self, seconds: float) -> None:
        self.stats.encode_seconds += seconds
        self.stats.growth_seconds += seconds if self.stats.steps else 0.0

    def _max_length(self, ahead: int = 0) -> int:
        """Return how long a phrase may be, in base tokens, after `ahead` more."""
        reserved = self._terms.reserved if self._terms else 0
        left = self._context_left - ahead
        if self._config.overshoot == "allow" and not reserved:
            return left
        return min(left, self._config.max_tokens - self._produced - ahead) - reserved

    def _fitting_term(self) -> Phrase | None:
        """Return a text that was asked for and may fit here."""
        if self._terms is None:
            return None
        assert self._state is not None
        output = self._base_ids[len(self._prompt) :]
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

    def _choose(self, state: State, ids: list[int], ahead: int) -> Choice:
        """Choose a unit after some base tokens, `ahead` of which are drafted."""
        return self._chooser.choose(state, ids, self._unit_ids, self._max_length(ahead))

    def _is_masked(self, unit: int) -> bool:
        """Whether a phrase was taken out of the vocabulary after it was chosen."""
        index = unit - self._lm.static_size
        return self._head is not None and index >= 0 and self._head.is_masked(index)

    def _draft_after(
        self, token: int, state: State, candidates: tuple[Candidate, ...], batch_size: int
    ) -> Draft | None:
        """Draft how the text may go on from a chosen token."""
        drafter = self._drafter
        if self._is_atomic or not drafter or not drafter.is_active or token in self._eos_ids:
            return None
        # What is drafted is tokens: only a phrase that is chosen may go beyond the budget.
        room = min(self._max_length(), self._config.max_tokens - self._produced)
        is_growing = self._config.growth is not None and self._config.tolerance > 0.0
        # Phrases that come at a drafted token would be missed by the choice there.
        if is_growing or min(room, self._engine.draft_rows // batch_size) <= 1:
            return None
        phrase = self._likely_phrase(token, state, room)
        ids, is_lookup = drafter.draft(self._base_ids, token, phrase, room, batch_size)
        is_end = [id_ in self._eos_ids for id_ in ids]
        ids = ids[: is_end.index(True)] if any(is_end) else ids
        if not ids:
            return None
        return Draft([token, *ids], None, candidates, is_lookup, phrase is not None)

    def _likely_phrase(self, token: int, state: State, max_length: int) -> Phrase | None:
        """Return the phrase that is likeliest to go on from a chosen token, if likely enough."""
        assert self._head is not None
        place = Place(*state, self._base_ids, max_length)
        index = self._head.draft(token, place, self._config.draft_bias)
        if index is None:
            return None
        return self._head.vocabulary.phrase(self._lm.static_size + index)

    def _take_phrase(self, choice: Choice, candidates: tuple[Candidate, ...]) -> abc.Sequence[Row]:
        assert self._head is not None
        unit = choice.unit
        phrase = self._head.vocabulary.phrase(unit)
        if not self._is_atomic:
            self._draft = Draft(phrase.ids, unit, candidates)
            return phrase.ids
        self._emit(phrase.ids, choice.logprob, phrase, candidates)
        self._head.vocabulary.tick([unit])
        self._unit_ids.append(unit)
        if self._config.positions == "token":
            # Its row is one, but it takes the positions of all its base tokens.
            self._context_left -= len(phrase) - 1
        vector = self._head.input(unit - self._lm.static_size)
        return [] if self.finish_reason else [PhraseRow(vector, len(phrase))]

    def _accept_term(self, term: Phrase, output: Output) -> int:
        """Write a text that was asked for if it fits; returns the number of rows to rewind."""
        assert self._state is not None and self._terms is not None
        self._draft = None
        logits = [self._state.logits, *output.logits]
        if not self._terms.accepts(term, logits, self._produced):
            return len(term)
        logprobs = [Choice(*pair).logprob for pair in zip(term.ids, logits, strict=False)]
        self._chosen, self._is_after_term = None, term.text[-1:].isalnum()
        self._state = State(output.hidden[-1], output.logits[-1])
        # One token alone is no phrase.
        self._emit(term.ids, sum(logprobs), term if len(term) > 1 else None, ())
        if self._head is not None:
            unit = self._head.vocabulary.find(term.ids)
            self._head.vocabulary.tick([] if unit is None else [unit])
        return 0

    def _accept_draft(self, draft: Draft, output: Output) -> int:
        """Keep the part of a draft that is accepted; returns the number of rows to rewind."""
        assert self._state is not None
        ids = draft.ids
        # A phrase that was chosen is cut where the LM objects; the LM's own token follows.
        own_token = None
        if draft.unit is None:
            count = self._confirmed(ids, output)
        else:
            count, own_token = self._chooser.accepted(ids, self._base_ids, output.logits)
        before = [self._state.logits, *output.logits[: count - 1]]
        logprobs = [Choice(*pair).logprob for pair in zip(ids, before, strict=False)]
        self._draft = None
        if draft.is_lookup:
            assert self._drafter is not None
            self._drafter.prompt_lookup.update(accepted=count)
        self._state = State(output.hidden[count - 1], output.logits[count - 1])
        self._emit_accepted(draft, count, logprobs, own_token)
        if own_token is not None and not self.finish_reason:
            # The pass has already shown the LM's own token here: it costs no pass to choose.
            choice = Choice(own_token, self._state.logits)
            self._emit_token(own_token, choice.logprob, self._explain(choice))
            self._pending = [own_token]
        return len(ids) - count

    def _emit_accepted(
        self, draft: Draft, count: int, logprobs: abc.Sequence[float], own_token: int | None
    ) -> None:
        """Write the accepted part: the phrase that was chosen, or those that a draft holds."""
        assert self._head is not None
        assert self._drafter is not None
        ids, candidates = draft.ids[:count], draft.candidates
        named = self._named_size(draft, count, own_token)
        parts: abc.Iterable[tuple[int, int, int | None]] = [
            *([(0, named, draft.unit)] if named else []),
            *((at, at + 1, None) for at in range(named, count)),
        ]
        if draft.unit is None and draft.names_phrases:
            parts = self._drafter.documents.units(ids)
        vocabulary, used = self._head.vocabulary, []
        for begin, end, unit in parts:
            is_open = unit is not None and not self._is_masked(unit)
            phrase = vocabulary.phrase(unit) if unit is not None and is_open else None
            self._emit(ids[begin:end], sum(logprobs[begin:end]), phrase, candidates)
            used += [unit] if unit is not None else []
            candidates = ()
            if self.finish_reason:
                break
        vocabulary.tick(used)

    def _named_size(self, draft: Draft, count: int, own_token: int | None) -> int:
        """Return how many of a chosen phrase's accepted tokens are named, hence cited, as it.

        Where the LM has cut it, that is up to its last whole word or number; one token is none.
        """
        if draft.unit is None or count == 1:
            return 0
        if own_token is None:
            return count
        decode = self._lm.tokenizer.decode
        # It must not end inside a word of its document, nor inside one that is written.
        texts = decode(draft.ids), decode([*draft.ids[:count], own_token])
        parts = ((size, decode(draft.ids[:size])) for size in range(count, 1, -1))
        return next((n for n, part in parts if all(ends_whole(part, t) for t in texts)), 0)

    def _confirmed(self, ids: abc.Sequence[int], output: Output) -> int:
        """Count the tokens that would have been chosen without the draft.

        The first choice that is another is kept for the next pass: it was drawn already.
        """
        for count in range(1, len(ids)):
            state = State(output.hidden[count - 1], output.logits[count - 1])
            written = [*self._base_ids, *ids[:count]]
            if not self._chooser.may_choose(ids[count], state.logits, written):
                # Whatever is chosen, it is not this token: nothing was drawn, choose it later.
                return count
            choice = self._choose(state, written, ahead=count)
            if choice.unit != ids[count]:
                self._chosen = choice
                return count
        return len(ids)

    def _emit_token(self, token: int, logprob: float, candidates: tuple[Candidate, ...]) -> None:
        if token in self._eos_ids:
            self._finish("eos")
        else:
            self._emit((token,), logprob, None, candidates)

    def _emit(
        self,
        ids: abc.Sequence[int],
        logprob: float,
        phrase: Phrase | None,
        candidates: tuple[Candidate, ...],
    ) -> None:
        self._base_ids.extend(ids)
        self._produced += len(ids)
        self._release(self._writer.write(ids, logprob, phrase, candidates))
        if self._writer.is_stopped:
            self._finish("stop")
        elif self._produced >= self._config.max_tokens:
            self._finish("length")

    def _finish(self, reason: FinishReason) -> None:
        self._release(self._writer.close())
        self.finish_reason = "stop" if self._writer.is_stopped else reason
        self.stats.phrases = len(self._head.vocabulary) if self._head else 0

    def _release(self, pieces: abc.Sequence[Piece]) -> None:
        for piece in pieces:
            self.stats.count(piece)
        self._released.extend(pieces)

    def _explain(self, choice: Choice) -> tuple[Candidate, ...]:
        if not self._config.explain:
            return ()
        return tuple(self._candidate(*pair) for pair in choice.best(_CANDIDATES))

    def _candidate(self, unit: int, probability: float) -> Candidate:
        if unit < self._lm.static_size:
            return Candidate(self._lm.tokenizer.decode([unit]), probability, is_phrase=False)
        assert self._head is not None
        text = self._head.vocabulary.phrase(unit).text
        return Candidate(text, probability, is_phrase=True)
