"""The one decode loop, and its faces: `decode_steps`, `stream`, `generate`, `batch`.

Between `generate()` and the first token: the options are checked and filled from the model's
profile, the prompt becomes token ids, the phrases are encoded (`Sequence.encode`; in `unfold` with
a conditional encoder later, when a choice looks at them), the prompt is read (`Session.prefill`),
and each sequence chooses its first unit (`Sequence.draft`).
"""

import time
from collections import abc
from typing import Unpack

from univerb.config import GenerationConfig, GenerationOptions
from univerb.decoding.first_token_head import scores_phrases
from univerb.decoding.results import Generation, Piece
from univerb.decoding.sequence import Sequence
from univerb.engines.base import Output, Row, Session
from univerb.engines.factory import engine_of
from univerb.errors import ModelError, OptionError, PromptError, VocabularyError, shown
from univerb.modeling.phrase_model import PhraseModel, check_highest
from univerb.vocabulary import DynamicVocabulary

Prompt = str | abc.Sequence[int]
"""A text, or token ids."""
Vocabularies = DynamicVocabulary | abc.Sequence[DynamicVocabulary | None] | None
"""One for all prompts, one for each, or none."""


class Decoder:
    """A batch of sequences over one engine session, advanced pass by pass."""

    def __init__(
        self,
        lm: PhraseModel,
        prompts: abc.Sequence[Prompt],
        vocabularies: Vocabularies,
        config: GenerationConfig,
        seeds: abc.Sequence[int] | None = None,
    ) -> None:
        if isinstance(prompts, str) or not isinstance(prompts, abc.Sequence):
            raise PromptError(
                f"prompts is {shown(prompts)}; batch takes a list of texts: batch(lm, [prompt])."
            )
        if lm.has_window and len(prompts) > 1:
            raise ModelError(
                f"{lm.name!r} counts the slots of its cache, which a shared one would "
                "miscount. Use batch(), which takes its prompts one by one."
            )
        config = resolved_for(lm, config)
        each_vocabulary = _vocabulary_of_each(vocabularies, len(prompts))
        configs = _config_of_each(config, seeds, len(prompts))
        self._prompts = [prompt_ids(lm, prompt, config) for prompt in prompts]
        self._name = lm.name
        engine = engine_of(lm)
        self.sequences = [
            Sequence(lm, engine, *each)
            for each in zip(self._prompts, each_vocabulary, configs, strict=True)
        ]
        self._session: Session = engine.session(
            config,
            has_phrases=any(v is not None and (len(v) or config.growth) for v in each_vocabulary),
            needs_states=scores_phrases(lm, config) and any(v is not None for v in each_vocabulary),
        )
        self._running: list[int] = []
        """The index of the sequence that each row of the session is."""

    def steps(self) -> abc.Iterator[list[tuple[int, Piece]]]:
        """Advance until all sequences are done.

        Yields:
            After each pass, the pieces that have become certain, each with its sequence's index.
        """
        if not self._prompts:
            return
        for sequence in self.sequences:
            sequence.encode()
        yield self._timed("prefill_seconds", self._prefill)
        while self._running:
            yield self._timed("decode_seconds", self._advance)

    def _prefill(self) -> list[tuple[int, Piece]]:
        self._running = list(range(len(self.sequences)))
        has_more = min(map(len, self._prompts)) > 1
        if has_more and any(sequence.reads_units for sequence in self.sequences):
            self._session.prefill([ids[:1] for ids in self._prompts])
            read = self._session.step([sequence.prompt_rows() for sequence in self.sequences])
            outputs = [Output(output.hidden[-1:], output.logits[-1:]) for output in read]
        else:
            outputs = self._session.prefill(self._prompts)
        for sequence, output in zip(self.sequences, self._checked(outputs), strict=True):
            sequence.start(output)
        return []

    def _advance(self) -> list[tuple[int, Piece]]:
        # A text may have been ended from outside.
        self._drop_finished([()] * len(self._running))
        batch_size = len(self._running)
        rows = [self.sequences[index].draft(batch_size) for index in self._running]
        rows = self._drop_finished(rows)
        if rows:
            outputs = self._checked(self._session.step(rows))
            running = [self.sequences[index] for index in self._running]
            rejected = [s.accept(output) for s, output in zip(running, outputs, strict=True)]
            self._session.rewind(rejected)
            self._drop_finished(rows)
        return [(i, piece) for i, s in enumerate(self.sequences) for piece in s.release()]

    def _checked(self, outputs: list[Output]) -> list[Output]:
        for output in outputs:
            check_highest(float(output.logits.max()), self._name)
        return outputs

    def _drop_finished(self, rows: abc.Sequence[abc.Sequence[Row]]) -> list[abc.Sequence[Row]]:
        left = [at for at, i in enumerate(self._running) if not self.sequences[i].finish_reason]
        if left and len(left) < len(self._running):
            self._session.select(left)
        self._running = [self._running[at] for at in left]
        return [rows[at] for at in left]

    def _timed(
        self, stage: str, work: abc.Callable[[], list[tuple[int, Piece]]]
    ) -> list[tuple[int, Piece]]:
        stats = [self.sequences[index].stats for index in self._running] or [
            sequence.stats for sequence in self.sequences
        ]
        encoded = sum(each.encode_seconds for each in stats)
        began = time.perf_counter()
        pieces = work()
        seconds = time.perf_counter() - began
        # What is encoded while texts are written is reported apart, whichever of them needs it.
        seconds -= sum(each.encode_seconds for each in stats) - encoded
        for each in stats:
            setattr(each, stage, getattr(each, stage) + seconds)
        return pieces


def decode_steps(
    lm: PhraseModel,
    prompts: abc.Sequence[Prompt],
    vocabularies: Vocabularies = None,
    **options: Unpack[GenerationOptions],
) -> Decoder:
    """Set up a decoder whose passes you drive yourself.

    Args:
        lm: The LM and its encoder.
        prompts: Texts or token ids.
        vocabularies: One for all prompts, one for each, or None.
        **options: As `GenerationConfig` explains them.

    Returns:
        A decoder; iterate over its `steps()`.
    """
    return Decoder(lm, prompts, vocabularies, GenerationConfig(**options))


def stream(
    lm: PhraseModel,
    prompt: Prompt,
    vocabulary: DynamicVocabulary | None = None,
    **options: Unpack[GenerationOptions],
) -> "Stream":
    """Generate piece by piece; a piece may be several words.

    Args:
        lm: The LM and its encoder.
        prompt: A text, or token ids.
        vocabulary: The phrases; None for the plain LM. It may change while you iterate.
        **options: As `GenerationConfig` explains them.

    Returns:
        An iterator of pieces, whose `result` is the whole generation once it is exhausted.
    """
    return Stream(Decoder(lm, [prompt], vocabulary, GenerationConfig(**options)))


def generate(
    lm: PhraseModel,
    prompt: Prompt,
    vocabulary: DynamicVocabulary | None = None,
    **options: Unpack[GenerationOptions],
) -> Generation:
    """Generate a whole continuation.

    Args:
        lm: The LM and its encoder.
        prompt: A text, or token ids.
        vocabulary: The phrases; None for the plain LM.
        **options: As `GenerationConfig` explains them.

    Returns:
        The generation.
    """
    return batch(lm, [prompt], vocabulary, **options)[0]


def batch(
    lm: PhraseModel,
    prompts: abc.Sequence[Prompt],
    vocabularies: Vocabularies = None,
    *,
    seeds: abc.Sequence[int] | None = None,
    **options: Unpack[GenerationOptions],
) -> list[Generation]:
    """Generate continuations of several prompts together, each with phrases of its own.

    Args:
        lm: The LM and its encoder.
        prompts: Texts or token ids.
        vocabularies: One for all prompts, one for each, or None.
        seeds: One for each prompt, so that their draws have nothing in common.
        **options: As `GenerationConfig` explains them; each sequence has its seed as if alone.

    Returns:
        The generations, in the order of the prompts.
    """
    config = GenerationConfig(**options)
    if not lm.has_window or len(prompts) <= 1:
        return _finished(Decoder(lm, prompts, vocabularies, config, seeds))
    each_vocabulary = _vocabulary_of_each(vocabularies, len(prompts))
    each = zip(prompts, each_vocabulary, _config_of_each(config, seeds, len(prompts)), strict=True)
    return [_finished(Decoder(lm, [prompt], [v], config))[0] for prompt, v, config in each]


def _finished(decoder: Decoder) -> list[Generation]:
    pieces: list[list[Piece]] = [[] for _ in decoder.sequences]
    for released in decoder.steps():
        for index, piece in released:
            pieces[index].append(piece)
    return [_result(*pair) for pair in zip(decoder.sequences, pieces, strict=True)]


class Stream:
    """Pieces of one generation as they become certain."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._pieces: list[Piece] = []
        self._iterator = _collected(decoder, self._pieces)

    def __iter__(self) -> abc.Iterator[Piece]:
        return self._iterator

    def __next__(self) -> Piece:
        return next(self._iterator)

    def end(self) -> Generation:
        """End the text where it is, and return it."""
        self._decoder.sequences[0].finish("stop")
        return self.result

    @property
    def result(self) -> Generation:
        """The whole generation; reading it finishes the stream."""
        for _ in self._iterator:
            pass
        return _result(self._decoder.sequences[0], self._pieces)


def _collected(decoder: Decoder, pieces: list[Piece]) -> abc.Iterator[Piece]:
    """Yield pieces as they come, and keep them."""
    # Not a method: a stream that refers to itself would keep its KV cache when it is dropped.
    for released in decoder.steps():
        for _, piece in released:
            pieces.append(piece)
            yield piece


def resolved_for(lm: PhraseModel, config: GenerationConfig) -> GenerationConfig:
    """Fill options from an LM's profile; refuse a mode that the LM cannot have."""
    config = config.resolved(lm.profile)
    if config.mode == "atomic" and not lm.has_encoder:
        raise OptionError(
            f"mode is 'atomic', which feeds phrases as vectors of an encoder, but {lm.name!r} has "
            "none. Use 'unfold' or 'verify', or train an encoder: univerb train"
        )
    return config


def _vocabulary_of_each(vocabularies: Vocabularies, count: int) -> list[DynamicVocabulary | None]:
    """Return a vocabulary, or None, for each of `count` prompts."""
    if vocabularies is None or isinstance(vocabularies, DynamicVocabulary):
        return [vocabularies] * count
    each = list(vocabularies) if isinstance(vocabularies, abc.Iterable) else [vocabularies]
    if not all(v is None or isinstance(v, DynamicVocabulary) for v in each):
        raise VocabularyError(
            f"{shown(vocabularies)} is no vocabulary. Make one with lm.vocabulary(documents)."
        )
    if len(each) != count:
        raise OptionError(
            f"{count} prompts but {len(each)} vocabularies. Give one for each, or a single one "
            "for all."
        )
    return each


def _config_of_each(
    config: GenerationConfig, seeds: abc.Sequence[int] | None, count: int
) -> list[GenerationConfig]:
    """Return the options of each of `count` prompts."""
    if seeds is None:
        return [config] * count
    if not isinstance(seeds, abc.Collection) or len(seeds) != count:
        raise OptionError(f"{count} prompts but seeds is {shown(seeds)}. Give one for each.")
    return [config.model_copy(update={"seed": GenerationConfig(seed=s).seed}) for s in seeds]


def prompt_ids(lm: PhraseModel, prompt: Prompt, config: GenerationConfig) -> list[int]:
    """Turn a prompt into token ids that fit the context.

    Args:
        lm: The LM.
        prompt: A text, or token ids.
        config: Says whether a long prompt may be cut.

    Returns:
        The ids.

    Raises:
        PromptError: If the prompt is empty, has unknown ids, or is too long.
    """
    try:
        ids = lm.tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else list(prompt)
    except TypeError:
        raise PromptError(
            f"the prompt {shown(prompt)} is neither valid text (UTF-8) nor a list of token "
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
    if len(ids) > limit and config.truncate is None:
        raise PromptError(
            f"the prompt has {len(ids)} tokens; the context of {lm.context_size} leaves room for "
            f"{limit}. Shorten it, or keep its end with truncate='left'."
        )
    return ids[-limit:]


def _result(sequence: Sequence, pieces: abc.Sequence[Piece]) -> Generation:
    assert sequence.finish_reason is not None
    text = "".join(piece.text for piece in pieces)
    return Generation(
        text, tuple(pieces), sequence.finish_reason, sequence.stats, sequence.missing_terms(text)
    )
