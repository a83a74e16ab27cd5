"""What gold phrases are contrasted with, each strategy under the paper's name (section 2.4).

docs/method.md, Negatives. A strategy yields phrases for the pool that all samples of a batch share.
`PreBatch` alone keeps vectors, those of earlier batches.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from univerb.phrases.tokenized import Flags
from univerb.tokenizer import Tokenizer
from univerb.training.samples import Key, Sample
from univerb.training.suffix_array import SuffixArray

# Occurrences in the corpus from which a phrase's continuations are taken.
_OCCURRENCES = 2
# Phrases in a pass of the generating LM.
_ROWS = 8
# Phrases whose continuations stay in memory.
_CACHE_SIZE = 1 << 17
_PADDING = -1


def in_batch(samples: Sequence[Sample]) -> list[Key]:
    """Return the gold phrases of a batch, each once, in order of occurrence."""
    return list(dict.fromkeys(key for sample in samples for key in sample.phrases()))


def prefixes(golds: Iterable[Key]) -> Iterator[Key]:
    """Yield the proper prefixes of gold phrases that have two tokens or more."""
    return (key[:size] for key in golds for size in range(2, len(key)))


def self_retrieval(
    samples: Sequence[Sample], forbidden: Sequence[Flags], extensions: int
) -> Iterator[Key]:
    """Yield gold phrases with what follows them in their own sample, wherever they occur in it.

    Args:
        samples: The batch.
        forbidden: For each sample, which of its tokens no phrase may contain.
        extensions: Tokens that follow, at most.

    Yields:
        Extensions by one token, by two and so on, up to a forbidden one.
    """
    for sample, flags in zip(samples, forbidden, strict=True):
        # -1 stands for a forbidden token; no phrase has it.
        ids = [-1 if bar else token for token, bar in zip(sample.ids, flags.tolist(), strict=True)]
        starts: dict[Key, list[int]] = defaultdict(list)
        for index in range(len(ids) - 1):
            starts[tuple(ids[index : index + 2])].append(index)
        for key in dict.fromkeys(sample.phrases()):
            for begin in starts[key[:2]]:
                end = begin + len(key)
                if tuple(ids[begin:end]) == key:
                    following = takewhile(lambda token: token >= 0, ids[end : end + extensions])
                    yield from _extended(key, tuple(following))


def corpus_retrieval(golds: Iterable[Key], corpus: SuffixArray, extensions: int) -> Iterator[Key]:
    """Yield gold phrases with what follows them elsewhere in the training text."""
    for key in golds:
        for following in corpus.continuations(key, extensions, _OCCURRENCES):
            yield from _extended(key, following)


class Continuations(Protocol):
    """What some LM writes after phrases."""

    def continuations(self, keys: Sequence[Key]) -> list[Key]:
        """Return some tokens for each phrase, or none."""
        ...


def generation(golds: Sequence[Key], lm: Continuations) -> Iterator[Key]:
    """Yield gold phrases with what an LM writes after them without any other context."""
    for key, following in zip(golds, lm.continuations(golds), strict=True):
        yield from _extended(key, following)


def _extended(key: Key, following: Key) -> Iterator[Key]:
    return (key + following[:size] for size in range(1, len(following) + 1))


class PreBatch:
    """The phrases of the last `depth` batches, as they were encoded then (pre-batch)."""

    def __init__(self, depth: int) -> None:
        self._batches: deque[tuple[list[Key], Tensor]] = deque(maxlen=depth)

    def push(self, keys: Sequence[Key], vectors: Tensor) -> None:
        """Add a batch: its phrases and their vectors (P, d), into which no gradient will flow."""
        self._batches.append((list(keys), vectors.detach().clone()))

    def entries(self, live: Iterable[Key]) -> tuple[list[Key], Tensor]:
        """Return the phrases of earlier batches, newest first.

        Args:
            live: Phrases of this batch, which have fresher vectors.

        Returns:
            Each other phrase once, and their vectors (P, d); (0, 0) before the first batch.
        """
        seen = set(live)
        keys: list[Key] = []
        parts: list[Tensor] = []
        for batch, vectors in reversed(self._batches):
            fresh = [row for row, key in enumerate(batch) if key not in seen]
            keys += [batch[row] for row in fresh]
            seen.update(batch)
            parts.append(vectors[fresh])
        return keys, torch.cat(parts) if parts else torch.empty(0, 0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return all batches as tensors, for a checkpoint."""
        keys = [key for batch, _ in self._batches for key in batch]
        width = max(map(len, keys), default=0)
        padded = [[*key, *[_PADDING] * (width - len(key))] for key in keys]
        vectors = [part for _, part in self._batches]
        return {
            "pre_batch.keys": torch.tensor(padded, dtype=torch.int64).reshape(len(keys), width),
            "pre_batch.vectors": torch.cat(vectors) if vectors else torch.empty(0, 0),
            "pre_batch.sizes": torch.tensor([len(b) for b, _ in self._batches], dtype=torch.int64),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        rows = state["pre_batch.keys"].tolist()
        keys = [tuple(token for token in row if token != _PADDING) for row in rows]
        self._batches.clear()
        begin = 0
        for size in state["pre_batch.sizes"].tolist():
            end = begin + size
            self._batches.append((keys[begin:end], state["pre_batch.vectors"][begin:end]))
            begin = end


class Generator(NamedTuple):
    """The LM that writes negatives, as it was before training, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: Tokenizer

    @property
    def size(self) -> int:
        """The number of tokens that it can write."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def continuations(self, tokenizer: Tokenizer, static_size: int, k: int) -> Continuations:
        """Write at most `k` tokens after phrases of the LM that has this tokenizer and |V|."""
        own, forbidden = self.tokenizer, forbidden_ids(self.tokenizer, self.size)
        greedy = GreedyContinuations(self.model, k, forbidden, own.begin_ids)
        if (own.fingerprint(), self.size) == (tokenizer.fingerprint(), static_size):
            return greedy
        return TextContinuations(greedy, own, tokenizer, k, forbidden_ids(tokenizer, static_size))


class TextContinuations:
    """What an LM with another tokenizer writes after a phrase: through the text of the phrase.

    Args:
        greedy: What the other LM writes, in its own tokens.
        other: Its tokenizer.
        tokenizer: That of the phrases.
        k: Tokens to return, at most.
        forbidden: Tokens that no phrase may contain.
    """

    def __init__(
        self,
        greedy: "GreedyContinuations",
        other: Tokenizer,
        tokenizer: Tokenizer,
        k: int,
        forbidden: frozenset[int],
    ) -> None:
        self._greedy = greedy
        self._other = other
        self._tokenizer = tokenizer
        self._k = k
        self._forbidden = forbidden

    def continuations(self, keys: Sequence[Key]) -> list[Key]:
        """Return at most k tokens for each phrase; none if they would change the phrase's own."""
        texts = self._tokenizer.decode_all(keys)
        prompts = [tuple(self._other.encode(text).ids) for text in texts]
        written = iter(self._greedy.continuations([prompt for prompt in prompts if prompt]))
        return [
            self._translated(key, text, next(written)) if prompt else ()
            for key, text, prompt in zip(keys, texts, prompts, strict=True)
        ]

    def _translated(self, key: Key, text: str, following: Key) -> Key:
        # A stream holds back the last tokens of a character that is not complete.
        text += self._other.stream().push(following)
        encode = self._tokenizer.encode_inside if text[0].isspace() else self._tokenizer.encode
        ids = tuple(encode(text).ids)
        if ids[: len(key)] != key:
            return ()
        new = ids[len(key) : len(key) + self._k]
        return tuple(takewhile(lambda token: token not in self._forbidden, new))


class GreedyContinuations:
    """What an LM writes after a phrase; cached, since phrases recur.

    Args:
        model: The LM. An adapter on it is switched off while it generates.
        k: Tokens to generate, at most.
        forbidden: Tokens that no phrase may contain (`forbidden_ids`); generation stops before one.
        begin: Special tokens that it wants before a text.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        k: int,
        forbidden: frozenset[int] = frozenset(),
        begin: Sequence[int] = (),
    ) -> None:
        self._model = model
        self._k = k
        self._forbidden = forbidden
        self._begin = begin
        self._cache: dict[Key, Key] = {}

    def continuations(self, keys: Sequence[Key]) -> list[Key]:
        """Return at most k tokens for each phrase; none if the LM would end or break the line.

        They depend on the phrase alone.
        """
        by_length: dict[int, list[Key]] = defaultdict(list)
        for key in dict.fromkeys(keys):
            if key not in self._cache:
                by_length[len(key)].append(key)
        with before_training(self._model):
            for group in by_length.values():
                for begin in range(0, len(group), _ROWS):
                    self._generate(group[begin : begin + _ROWS])
        continuations = [self._cache[key] for key in keys]
        while len(self._cache) > _CACHE_SIZE:
            del self._cache[next(iter(self._cache))]
        return continuations

    @torch.no_grad()
    def _generate(self, keys: list[Key]) -> None:
        # Always as many rows, so that sums are rounded alike in any batch, and a run that resumes
        # with an empty cache generates the same.
        filled = [[*self._begin, *key] for key in [*keys, *[keys[0]] * (_ROWS - len(keys))]]
        ids = torch.tensor(filled, device=self._model.device)
        cache = None
        columns: list[list[int]] = []
        for _ in range(self._k):
            output = self._model(input_ids=ids, past_key_values=cache, use_cache=True)
            ids, cache = output.logits[:, -1:].argmax(-1), output.past_key_values
            columns.append(ids[:, 0].tolist())
        rows = zip(*columns, strict=True) if columns else [()] * len(filled)
        for key, row in zip(keys, rows, strict=False):
            self._cache[key] = tuple(takewhile(lambda token: token not in self._forbidden, row))


def forbidden_ids(tokenizer: Tokenizer, static_size: int) -> frozenset[int]:
    """Return the tokens that no phrase may contain: special ones and those that break a line."""
    texts = tokenizer.decode_all([[token] for token in range(static_size)])
    breaks = {token for token, text in enumerate(texts) if "\n" in text or "\r" in text}
    return tokenizer.special_ids | breaks


@contextmanager
def before_training(model: PreTrainedModel) -> Iterator[None]:
    """Use an LM as it was: without dropout and without its adapter, if it has one."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with getattr(model, "disable_adapter", nullcontext)():
            yield
    finally:
        for module in training:
            module.training = True
