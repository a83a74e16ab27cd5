"""The one decode loop, and its faces: `decode_steps`, `stream`, `generate`, `batch`."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Unpack

from univerb.decoding.options import Decoding, Options, make_decoding
from univerb.decoding.results import Generation, Piece
from univerb.decoding.sequence import Continuation
from univerb.engines.base import Output, Row, Session
from univerb.engines.factory import engine_of
from univerb.errors import ModelError, OptionError, PromptError, VocabularyError
from univerb.modeling.phrase_model import PhraseModel
from univerb.vocabulary import DynamicVocabulary

Vocabularies = DynamicVocabulary | Sequence[DynamicVocabulary | None] | None


class Decoder:
    """A batch of sequences over one engine session, advanced pass by pass."""

    def __init__(
        self,
        lm: PhraseModel,
        prompts: Sequence[str | Sequence[int]],
        vocabularies: Vocabularies,
        decoding: Decoding,
        seeds: Sequence[int] | None = None,
    ) -> None:
        if isinstance(prompts, str):
            raise PromptError("prompts is one text; batch takes a list: batch(lm, [prompt]).")
        own = vocabulary_each(vocabularies, len(prompts))
        if lm.has_window and len(prompts) > 1:
            raise ModelError(
                f"{lm.name!r} counts the slots of its cache, which a shared one would "
                "miscount. Use batch(), which takes its prompts one by one."
            )
        self._prompts = [prompt_ids(lm, prompt, decoding) for prompt in prompts]
        engine = engine_of(lm)
        each = zip(self._prompts, own, _seeded(decoding, seeds, len(prompts)), strict=True)
        self.sequences = [
            Continuation(lm, engine, ids, vocabulary, how) for ids, vocabulary, how in each
        ]
        self._session: Session = engine.session(
            decoding.resolved(lm.profile),
            has_phrases=any(v is not None and (len(v) or decoding.growth) for v in own),
            can_grow=any(v is not None for v in own),
            reuse=decoding.reuse,
        )
        self._running: list[int] = []
        """Which sequence each row of the session is."""

    def steps(self) -> Iterator[list[tuple[int, Piece]]]:
        """Advance until all sequences are done.

        Yields:
            After each pass, the pieces that have become certain, each with its sequence's index.
        """
        if not self._prompts:
            return
        yield self._timed("prefill_seconds", self._prefill)
        while self._running:
            yield self._timed("decode_seconds", self._advance)

    def _prefill(self) -> list[tuple[int, Piece]]:
        self._running = list(range(len(self.sequences)))
        has_more = min(map(len, self._prompts)) > 1
        if has_more and any(sequence.reads_units for sequence in self.sequences):
            self._session.prefill([ids[:1] for ids in self._prompts])
            read = self._session.step([sequence.prompt_rows() for sequence in self.sequences])
            outputs = [Output(own.hidden[-1:], own.logits[-1:]) for own in read]
        else:
            outputs = self._session.prefill(self._prompts)
        for sequence, output in zip(self.sequences, outputs, strict=True):
            sequence.start(output)
        return []

    def _advance(self) -> list[tuple[int, Piece]]:
        share = len(self._running)
        rows = [self.sequences[index].propose(share) for index in self._running]
        rows = self._drop_finished(rows)
        if rows:
            outputs = self._session.step(rows)
            running = [self.sequences[index] for index in self._running]
            back = [s.settle(output) for s, output in zip(running, outputs, strict=True)]
            self._session.rewind(back)
            self._drop_finished(rows)
        return [(i, piece) for i, s in enumerate(self.sequences) for piece in s.release()]

    def _drop_finished(self, rows: Sequence[Sequence[Row]]) -> list[Sequence[Row]]:
        left = [at for at, i in enumerate(self._running) if not self.sequences[i].finish_reason]
        if left and len(left) < len(self._running):
            self._session.select(left)
        self._running = [self._running[at] for at in left]
        return [rows[at] for at in left]

    def _timed(
        self, stage: str, work: Callable[[], list[tuple[int, Piece]]]
    ) -> list[tuple[int, Piece]]:
        stats = [self.sequences[index].stats for index in self._running] or [
            sequence.stats for sequence in self.sequences
        ]
        encoding = [own.encode_seconds for own in stats]
        began = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - began
        for own, before in zip(stats, encoding, strict=True):
            # Encoding happens inside a pass but is reported apart.
            own_seconds = seconds - (own.encode_seconds - before)
            setattr(own, stage, getattr(own, stage) + own_seconds)
        return result


def decode_steps(
    lm: PhraseModel,
    prompts: Sequence[str | Sequence[int]],
    vocabularies: Vocabularies = None,
    **options: Unpack[Options],
) -> Decoder:
    """Set up a decoder whose passes you drive yourself.

    Args:
        lm: The LM and its encoder.
        prompts: Texts or token ids.
        vocabularies: One for all prompts, one for each, or None.
        **options: As `Decoding` explains them.

    Returns:
        A decoder; iterate over its `steps()`.
    """
    return Decoder(lm, prompts, vocabularies, make_decoding(dict(options)))


def stream(
    lm: PhraseModel,
    prompt: str | Sequence[int],
    vocabulary: DynamicVocabulary | None = None,
    **options: Unpack[Options],
) -> "Stream":
    """Generate piece by piece; a piece may be several words.

    Args:
        lm: The LM and its encoder.
        prompt: A text, or token ids.
        vocabulary: The phrases; None for the plain LM. It may change while you iterate.
        **options: As `Decoding` explains them.

    Returns:
        An iterator of pieces, whose `result` is the whole generation once it is exhausted.
    """
    return Stream(Decoder(lm, [prompt], vocabulary, make_decoding(dict(options))))


def generate(
    lm: PhraseModel,
    prompt: str | Sequence[int],
    vocabulary: DynamicVocabulary | None = None,
    **options: Unpack[Options],
) -> Generation:
    """Generate a whole continuation.

    Args:
        lm: The LM and its encoder.
        prompt: A text, or token ids.
        vocabulary: The phrases; None for the plain LM.
        **options: As `Decoding` explains them.

    Returns:
        The generation.
    """
    return batch(lm, [prompt], vocabulary, **options)[0]


def batch(
    lm: PhraseModel,
    prompts: Sequence[str | Sequence[int]],
    vocabularies: Vocabularies = None,
    *,
    seeds: Sequence[int] | None = None,
    **options: Unpack[Options],
) -> list[Generation]:
    """Generate continuations of several prompts together, each with phrases of its own.

    Args:
        lm: The LM and its encoder.
        prompts: Texts or token ids.
        vocabularies: One for all prompts, one for each, or None.
        seeds: One for each prompt, so that their draws have nothing in common.
        **options: As `Decoding` explains them; each sequence has its seed as if it were alone.

    Returns:
        The generations, in the order of the prompts.
    """
    decoding = make_decoding(dict(options))
    if lm.has_window and len(prompts) > 1:
        own = vocabulary_each(vocabularies, len(prompts))
        each = zip(prompts, own, _seeded(decoding, seeds, len(prompts)), strict=True)
        return [_finished(Decoder(lm, [prompt], [v], how))[0] for prompt, v, how in each]
    return _finished(Decoder(lm, prompts, vocabularies, decoding, seeds))


def _finished(decoder: Decoder) -> list[Generation]:
    pieces: list[list[Piece]] = [[] for _ in decoder.sequences]
    for released in decoder.steps():
        for index, piece in released:
            pieces[index].append(piece)
    return [_result(s, own) for s, own in zip(decoder.sequences, pieces, strict=True)]


class Stream:
    """Pieces of one generation as they become certain."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._pieces: list[Piece] = []
        self._iterator = self._run()

    def __iter__(self) -> Iterator[Piece]:
        return self._iterator

    def __next__(self) -> Piece:
        return next(self._iterator)

    @property
    def result(self) -> Generation:
        """The whole generation; reading it finishes the stream."""
        for _ in self._iterator:
            pass
        return _result(self._decoder.sequences[0], self._pieces)

    def _run(self) -> Iterator[Piece]:
        for released in self._decoder.steps():
            for _, piece in released:
                self._pieces.append(piece)
                yield piece


def vocabulary_each(given: Vocabularies, count: int) -> list[DynamicVocabulary | None]:
    """Return a vocabulary, or None, for each of so many prompts.

    Args:
        given: One for all, one for each, or None.
        count: The number of prompts.

    Returns:
        One entry per prompt.

    Raises:
        VocabularyError: If something else than vocabularies is given.
        OptionError: If their number is not that of the prompts.
    """
    if given is None or isinstance(given, DynamicVocabulary):
        return [given] * count
    each = list(given)
    if not all(one is None or isinstance(one, DynamicVocabulary) for one in each):
        raise VocabularyError(
            f"{str(given)[:40]!r} is no vocabulary. Make one with lm.vocabulary(documents)."
        )
    if len(each) != count:
        raise OptionError(
            f"{count} prompts but {len(each)} vocabularies. Give one for each, or a single one "
            "for all."
        )
    return each


def _seeded(decoding: Decoding, seeds: Sequence[int] | None, count: int) -> list[Decoding]:
    """Return how to decode each of so many prompts."""
    if seeds is None:
        return [decoding] * count
    if len(seeds) != count:
        raise OptionError(f"{count} prompts but {len(seeds)} seeds. Give one for each.")
    return [replace(decoding, seed=seed) for seed in seeds]


def prompt_ids(lm: PhraseModel, prompt: str | Sequence[int], decoding: Decoding) -> list[int]:
    """Turn a prompt into token ids that fit the context.

    Args:
        lm: The LM.
        prompt: A text, or token ids.
        decoding: Says whether a long prompt may be cut.

    Returns:
        The ids.

    Raises:
        PromptError: If the prompt is empty, has unknown ids, or is too long.
    """
    try:
        ids = lm.tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else list(prompt)
    except TypeError:
        raise PromptError(
            f"the prompt {str(prompt)[:40]!r} is neither valid text (UTF-8) nor a list of token "
            "ids. Correct it."
        ) from None
    if not all(isinstance(token, int) for token in ids):
        raise PromptError(
            "the prompt is a list, but not of token ids. Give one text, or use batch() for several."
        )
    if not ids:
        raise PromptError("the prompt is empty. Give at least one character to continue.")
    if min(ids) < 0 or max(ids) >= lm.static_size:
        raise PromptError(
            f"the prompt has ids from {min(ids)} to {max(ids)}; the LM's tokens run from 0 to "
            f"{lm.static_size - 1}. Make them with this model's tokenizer."
        )
    limit = lm.context_size - 1
    if len(ids) > limit and decoding.truncate is None:
        raise PromptError(
            f"the prompt has {len(ids)} tokens; the context of {lm.context_size} leaves room for "
            f"{limit}. Shorten it, or pass truncate='left' to keep its end."
        )
    return ids[-limit:]


def _result(sequence: Continuation, pieces: Sequence[Piece]) -> Generation:
    assert sequence.finish_reason is not None
    text = "".join(piece.text for piece in pieces)
    return Generation(text, tuple(pieces), sequence.finish_reason, sequence.stats)
