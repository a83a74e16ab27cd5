"""What gold phrases are told apart from, each strategy under the paper's name (METHOD A.5).

A strategy yields phrases for the pool that all samples of a batch share; which vector belongs to
which is not its business. `PreBatch` alone keeps vectors, those of batches before.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import takewhile

import torch
from torch import Tensor
from transformers import PreTrainedModel

from univerb.phrases.tokenized import Flags
from univerb.tokenizer import Tokenizer
from univerb.training.batch import Key, Sample
from univerb.training.suffixes import Suffixes

# Places of the corpus that a phrase's continuations are taken from.
_HITS = 2
# Phrases in a pass of the generating LM.
_ROWS = 8
_PADDING = -1


def in_batch(samples: Sequence[Sample]) -> list[Key]:
    """Return the gold phrases of a batch, each once, in the order in which they come."""
    return list(dict.fromkeys(key for sample in samples for key in golds_of(sample)))


def prefixes(golds: Iterable[Key]) -> Iterator[Key]:
    """Yield the beginnings of gold phrases: from two tokens to all but one."""
    return (key[:size] for key in golds for size in range(2, len(key)))


def self_retrieval(
    samples: Sequence[Sample], barred: Sequence[Flags], extensions: int
) -> Iterator[Key]:
    """Yield gold phrases with what follows them in their own sample, wherever they occur in it.

    Args:
        samples: The batch.
        barred: For each sample, which of its tokens no phrase may contain.
        extensions: Tokens that follow, at most.

    Yields:
        Extensions by one token, by two and so on, up to a barred one.
    """
    for sample, flags in zip(samples, barred, strict=True):
        # Stands for a barred token; no phrase has it.
        ids = [-1 if bar else token for token, bar in zip(sample.ids, flags.tolist(), strict=True)]
        places: dict[Key, list[int]] = defaultdict(list)
        for place in range(len(ids) - 1):
            places[tuple(ids[place : place + 2])].append(place)
        for key in dict.fromkeys(golds_of(sample)):
            for place in places[key[:2]]:
                end = place + len(key)
                if tuple(ids[place:end]) == key:
                    follow = takewhile(lambda token: token >= 0, ids[end : end + extensions])
                    yield from _extended(key, tuple(follow))


def corpus_retrieval(golds: Iterable[Key], suffixes: Suffixes, extensions: int) -> Iterator[Key]:
    """Yield gold phrases with what follows them elsewhere in the training text.

    Args:
        golds: The phrases.
        suffixes: The training text.
        extensions: Tokens that follow, at most.

    Yields:
        Extensions by one token, by two and so on.
    """
    for key in golds:
        for follow in suffixes.successors(key, extensions, _HITS):
            yield from _extended(key, follow)


def generation(golds: Sequence[Key], generations: "Generations") -> Iterator[Key]:
    """Yield gold phrases with what the LM goes on with when it is given nothing else."""
    for key, follow in zip(golds, generations.successors(golds), strict=True):
        yield from _extended(key, follow)


def golds_of(sample: Sample) -> Iterator[Key]:
    """Yield the phrases of a sample, in order."""
    return (tuple(sample.ids[s:e]) for s, e in sample.units if e - s >= 2)


def _extended(key: Key, follow: Key) -> Iterator[Key]:
    return (key + follow[:size] for size in range(1, len(follow) + 1))


class PreBatch:
    """The phrases of the batches before, as they were encoded then (pre-batch).

    Args:
        depth: Of how many batches.
    """

    def __init__(self, depth: int) -> None:
        self._batches: deque[tuple[list[Key], Tensor]] = deque(maxlen=depth)

    def push(self, keys: Sequence[Key], vectors: Tensor) -> None:
        """Add a batch; the oldest goes if there are too many.

        Args:
            keys: Its phrases.
            vectors: (P, d) theirs; no gradient will flow into them.
        """
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
            places = []
            for place, key in enumerate(batch):
                if key not in seen:
                    seen.add(key)
                    keys.append(key)
                    places.append(place)
            parts.append(vectors[places])
        return keys, torch.cat(parts) if parts else torch.empty(0, 0)

    def memory(self) -> dict[str, Tensor]:
        """Return all that is kept, for a checkpoint."""
        keys = [key for batch, _ in self._batches for key in batch]
        width = max(map(len, keys), default=0)
        padded = [[*key, *[_PADDING] * (width - len(key))] for key in keys]
        vectors = [part for _, part in self._batches]
        return {
            "pre_batch.keys": torch.tensor(padded, dtype=torch.int64).reshape(len(keys), width),
            "pre_batch.vectors": torch.cat(vectors) if vectors else torch.empty(0, 0),
            "pre_batch.sizes": torch.tensor([len(b) for b, _ in self._batches], dtype=torch.int64),
        }

    def remember(self, memory: dict[str, Tensor]) -> None:
        """Take back what `memory` returned."""
        rows = memory["pre_batch.keys"].tolist()
        keys = [tuple(token for token in row if token != _PADDING) for row in rows]
        vectors = memory["pre_batch.vectors"]
        self._batches.clear()
        begin = 0
        for size in memory["pre_batch.sizes"].tolist():
            self._batches.append((keys[begin : begin + size], vectors[begin : begin + size]))
            begin += size


class Generations:
    """What the original LM goes on with after a phrase, greedily; kept, since phrases come again.

    Args:
        model: The LM. An adapter on it is switched off while it generates.
        k: Tokens to generate, at most.
        limit: How many phrases to keep.
        barred: Tokens that no phrase may contain (`barred_ids`); generation stops before one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        k: int,
        limit: int = 1 << 17,
        barred: frozenset[int] = frozenset(),
    ) -> None:
        self._model = model
        self._k = k
        self._limit = limit
        self._barred = barred
        self._known: dict[Key, Key] = {}

    def __len__(self) -> int:
        return len(self._known)

    def successors(self, keys: Sequence[Key]) -> list[Key]:
        """Return what follows each phrase; nothing if the LM would end or break the line.

        Args:
            keys: The phrases.

        Returns:
            At most k tokens each. What they are depends on the phrase alone.
        """
        missing = [key for key in dict.fromkeys(keys) if key not in self._known]
        by_length: dict[int, list[Key]] = defaultdict(list)
        for key in missing:
            by_length[len(key)].append(key)
        with _as_it_was(self._model):
            for alike in by_length.values():
                for begin in range(0, len(alike), _ROWS):
                    self._generate(alike[begin : begin + _ROWS])
        found = [self._known[key] for key in keys]
        while len(self._known) > self._limit:
            del self._known[next(iter(self._known))]
        return found

    @torch.no_grad()
    def _generate(self, keys: list[Key]) -> None:
        # Always as many rows: sums are rounded alike whatever the company, so that a run that
        # resumes with nothing kept generates the same.
        filled = [*keys, *[keys[0]] * (_ROWS - len(keys))]
        given = torch.tensor(filled, device=self._model.device)
        cache = None
        columns: list[list[int]] = []
        for _ in range(self._k):
            output = self._model(input_ids=given, past_key_values=cache, use_cache=True)
            given, cache = output.logits[:, -1:].argmax(-1), output.past_key_values
            columns.append(given[:, 0].tolist())
        rows = zip(*columns, strict=True) if columns else [()] * len(filled)
        for key, row in zip(keys, rows, strict=False):
            self._known[key] = tuple(takewhile(lambda token: token not in self._barred, row))


def barred_ids(tokenizer: Tokenizer, static_size: int) -> frozenset[int]:
    """Return the tokens that no phrase may contain: special ones and those that break a line."""
    texts = tokenizer.decode_all([[token] for token in range(static_size)])
    breaks = {token for token, text in enumerate(texts) if "\n" in text or "\r" in text}
    return tokenizer.special_ids | breaks


@contextmanager
def _as_it_was(model: PreTrainedModel) -> Iterator[None]:
    """Switch dropout and an adapter off for a while."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    adapter = getattr(model, "disable_adapter", nullcontext)
    try:
        with adapter():
            yield
    finally:
        for module in training:
            module.training = True
