"""The fast CPU engine: a GGUF file, computed by llama.cpp.

* Rows of one sequence have consecutive positions, one each: a phrase takes one place ("unit").
* A pass reads tokens or vectors. One that has a phrase is fed as vectors altogether, each token as
  its own row of the embedding matrix, which gives the same bits as its id.
* Where there are phrases, states come back rounded as llama.cpp rounded them for its own output
  matrix, so that phrase logits and token logits are on one scale.
* llama.cpp computes the logits of every row of a pass that gives states. So a prompt is read
  without states but for its last token.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy

from univerb.config import GenerationConfig
from univerb.engines.base import Floats, Output, PhraseRow, Row
from univerb.engines.llamacpp.binding import installed_version, last_error
from univerb.engines.llamacpp.lm import LlamaCppLM
from univerb.engines.llamacpp.native import PASS_ROWS, Bytes, Context
from univerb.engines.llamacpp.phrase_weights import NumpyPhraseWeights
from univerb.engines.llamacpp.sampling import NumpySampler, make_sampler
from univerb.engines.prefixes import MIN_TOKENS
from univerb.engines.row_costs import RowCosts
from univerb.engines.row_timing import row_costs
from univerb.errors import ModelError, OptionError, UniverbError

_PROMPT_ROWS = 64
"""Rows per pass of a prompt: as fast as whole, and it can be interrupted between two."""
_SPARE_CELLS = 512
"""Cells of the KV cache that a sequence has at first beyond its prompt."""


class Aborted(UniverbError):
    """A session was told to stop."""


class LlamaCppEngine:
    """Computes with llama.cpp for a `LlamaCppLM`."""

    def __init__(self, lm: LlamaCppLM) -> None:
        self._lm = lm

    @property
    def has_equal_rows(self) -> bool:
        """False: llama.cpp's attention sums several rows in another order than one (0035)."""
        return False

    def row_costs(self, config: GenerationConfig) -> RowCosts:
        """Return what passes over several rows cost."""
        lm = self._lm
        label = f"llamacpp, {Path(lm.name).name}, {lm.threads} threads"
        begin = partial(LlamaCppSession, lm, False)
        return row_costs(begin, lm.context_size, label, lm.gguf.cache_key(), installed_version())

    def session(
        self, config: GenerationConfig, *, has_phrases: bool, needs_states: bool = True
    ) -> "LlamaCppSession":
        """Begin a batch of sequences.

        Args:
            config: Its positions must be "unit".
            has_phrases: Whether there are phrases.
            needs_states: Whether somebody looks at states, now or later.

        Returns:
            A session.

        Raises:
            OptionError: If positions are to count base tokens.
        """
        if config.positions != "unit":
            raise OptionError(
                f"positions is {config.positions!r}; in llama.cpp a row takes one place. Use "
                "'unit', or the torch engine."
            )
        keeps = has_phrases and config.prefix_cache
        return LlamaCppSession(self._lm, needs_states, prefix_cache=keeps)

    def sampler(self, config: GenerationConfig) -> NumpySampler:
        """Make a sampler for one sequence."""
        return make_sampler(config)

    def phrase_weights(self) -> NumpyPhraseWeights:
        """Make what multiplies the rows of one sequence's phrases."""
        return NumpyPhraseWeights()


class LlamaCppSession:
    """A batch of sequences over one KV cache, which grows as they do."""

    def __init__(self, lm: LlamaCppLM, needs_states: bool, *, prefix_cache: bool = False) -> None:
        self._lm = lm
        self._needs_states = needs_states
        self._prefixes = lm.native.prefixes if prefix_cache else None
        self._context: Context | None = None
        self._lease: Callable[[], object] = bool
        """Gives the context back."""
        self._owners: list[int] = []
        """llama.cpp's id of each sequence."""
        self._lengths: list[int] = []
        """Number of rows of each sequence."""
        self._is_aborted = threading.Event()

    def abort(self) -> None:
        """Stop, from any thread: what is being read raises `Aborted`, as does all that follows."""
        self._is_aborted.set()

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[Output]:
        """Read the prompts; returns the last row of each.

        Args:
            prompts: Token ids, at least one each.

        Returns:
            The last row of each.

        Raises:
            Aborted: If `abort` was called; like any interruption it leaves nothing half read.
            ModelError: If llama.cpp fails.
        """
        if self._context:
            self._context.clear()
        self._owners = list(range(len(prompts)))
        self._lengths = [0] * len(prompts)
        context = self._begin(prompts)
        context.give_states(False)
        counts = [len(p) - 1 - read for p, read in zip(prompts, self._lengths, strict=True)]
        positions, owners = self._places(counts)
        each = zip(prompts, self._lengths, strict=True)
        tokens = [token for prompt, read in each for token in prompt[read:-1]]
        with self._all_or_nothing(context):
            for begin in range(0, len(tokens), _PROMPT_ROWS):
                part = slice(begin, begin + _PROMPT_ROWS)
                self._read(context, tokens[part], positions[part], owners[part], False)
            self._lengths = [len(prompt) - 1 for prompt in prompts]
        outputs = self.step([prompt[-1:] for prompt in prompts])
        self._keep(prompts, counts)
        return outputs

    def _begin(self, prompts: Sequence[Sequence[int]]) -> Context:
        """Return a context with what is kept of the prompts' beginnings."""
        nothing: tuple[int, Bytes | None] = (0, None)
        shared, kept = [0] * len(prompts), [nothing] * len(prompts)
        if self._prefixes:
            found = [self._prefixes.find(prompt) for prompt in prompts]
            shared, kept = [count for count, _ in found], [entry or nothing for _, entry in found]
        # An entry is restored as a whole, then cut.
        room = sum(max(len(p), rows) for p, (rows, _) in zip(prompts, kept, strict=True))
        context = self._with_room(room, len(prompts))
        for owner, (count, (rows, content)) in enumerate(zip(shared, kept, strict=True)):
            if content is not None:
                context.restore(owner, content)
                if rows > count:
                    context.forget(owner, count)
        self._lengths = shared
        return context

    def _keep(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
        """Keep the prompts of which something was new, for those that begin alike."""
        assert self._context is not None
        for owner, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            if self._prefixes and count and len(prompt) > MIN_TOKENS:
                content = self._context.saved(owner)
                self._prefixes.add(prompt, (len(prompt), content), content.nbytes)

    def step(self, rows: Sequence[Sequence[Row]]) -> list[Output]:
        """Read further rows of every sequence, in one pass unless they are hundreds.

        Args:
            rows: Those of each sequence, of any number.

        Returns:
            Copies of the results, so they stay. States are empty if there are no phrases.

        Raises:
            Aborted: If `abort` was called.
            ModelError: If llama.cpp fails.
        """
        counts = [len(sequence_rows) for sequence_rows in rows]
        context = self._with_room(sum(counts), len(rows))
        context.give_states(self._needs_states)
        flat = [row for sequence_rows in rows for row in sequence_rows]
        positions, owners = self._places(counts)
        outputs = []
        with self._all_or_nothing(context):
            for begin in range(0, len(flat), PASS_ROWS):
                part = slice(begin, begin + PASS_ROWS)
                self._read(context, self._fed(flat[part]), positions[part], owners[part], True)
                outputs.append(self._output(context, len(positions[part])))
            self._lengths = [at + new for at, new in zip(self._lengths, counts, strict=True)]
        return _split(outputs, counts)

    def rewind(self, counts: Sequence[int]) -> None:
        """Drop the last rows of each sequence."""
        for index, count in enumerate(counts):
            if count:
                assert self._context is not None
                self._lengths[index] -= count
                self._context.forget(self._owners[index], self._lengths[index])

    def select(self, indices: Sequence[int]) -> None:
        """Keep these sequences in this order; naming one twice forks it."""
        assert self._context is not None
        for index in {*range(len(self._owners))} - {*indices}:
            self._context.forget(self._owners[index], 0)
        order = {index: at for at, index in enumerate(dict.fromkeys(indices))}
        rows = sum(self._lengths[index] for index in indices)
        self._owners = [self._owners[index] for index in order]
        self._lengths = [self._lengths[index] for index in order]
        context = self._with_room(rows - sum(self._lengths), len(indices))
        free = iter({*range(context.sequences)} - {*self._owners})
        owners: list[int] = []
        for at in [order[index] for index in indices]:
            owner = self._owners[at]
            if owner in owners:
                owner = next(free)
                context.fork(self._owners[at], owner)
            owners.append(owner)
        self._owners = owners
        self._lengths = [self._lengths[order[index]] for index in indices]

    def _with_room(self, rows: int, sequences: int) -> Context:
        """Return the context, or move to a larger one, with room for `rows` more."""
        cells = sum(self._lengths) + rows
        old = self._context
        if old and cells <= old.cells and sequences <= old.sequences:
            return old
        model = self._lm.native
        context = model.acquire(cells + _SPARE_CELLS * sequences, sequences)
        lease = weakref.finalize(self, model.release, context)
        if old:
            for twin, owner in enumerate(self._owners):
                if self._lengths[twin]:
                    context.restore(twin, old.saved(owner))
            self._lease()
        self._owners = list(range(len(self._owners)))
        self._context, self._lease = context, lease
        return context

    def _places(self, counts: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the positions and the owners of `counts` further rows of each sequence."""
        each = list(zip(self._owners, self._lengths, counts, strict=True))
        positions = [at + row for _, at, count in each for row in range(count)]
        return positions, [owner for owner, _, count in each for _ in range(count)]

    def _fed(self, rows: Sequence[Row]) -> list[int] | Floats:
        """Return rows as tokens, or as vectors if one is a phrase."""
        tokens = [row for row in rows if isinstance(row, int)]
        if len(tokens) == len(rows):
            return tokens
        vectors = numpy.empty((len(rows), self._lm.width), numpy.float32)
        is_token = [isinstance(row, int) for row in rows]
        if tokens:
            vectors[is_token] = self._lm.input_rows(tokens)
        for at, row in enumerate(rows):
            if isinstance(row, PhraseRow):
                vectors[at] = row.vector
        return vectors

    def _read(
        self,
        context: Context,
        rows: list[int] | Floats,
        positions: Sequence[int],
        owners: Sequence[int],
        wanted: bool,
    ) -> None:
        if self._is_aborted.is_set():
            raise Aborted("the session was aborted. Begin a new one.")
        if code := context.read(rows, positions, owners, wanted):
            raise ModelError(
                f"llama.cpp failed at {len(rows)} rows of a KV cache of {context.cells} (code "
                f"{code}): {last_error()}. Use shorter prompts or fewer sequences at once."
            )

    def _output(self, context: Context, count: int) -> Output:
        """Return the results of a pass over `count` rows."""
        logits = context.logits(range(count))
        if not self._needs_states:
            return Output(numpy.empty((count, 0), numpy.float32), logits)
        return Output(self._lm.as_multiplied(context.states(range(count))), logits)

    @contextmanager
    def _all_or_nothing(self, context: Context) -> Iterator[None]:
        """Drop what was read if not all of it was: an error, Ctrl-C, or `abort`."""
        try:
            yield
        except BaseException:
            for owner, length in zip(self._owners, self._lengths, strict=True):
                context.forget(owner, length)
            raise


def _split(outputs: Sequence[Output], counts: Sequence[int]) -> list[Output]:
    """Give each sequence the rows that are its own."""
    if len(outputs) == 1 and len(counts) == 1:
        return [outputs[0]]
    hidden, logits = (numpy.concatenate(side) for side in zip(*outputs, strict=True))
    ends = numpy.cumsum(counts).tolist()
    each = zip(ends, counts, strict=True)
    return [Output(hidden[end - n : end], logits[end - n : end]) for end, n in each]
