"""llama.cpp through its C interface: a model, contexts over it, rows in, states and logits out.

A context is a KV cache with the buffers to compute on it. Making one takes 10 ms to 1 s, by its
size, so contexts are pooled.
"""

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy
from numpy.typing import NDArray

from univerb.engines.llamacpp.binding import last_error, library
from univerb.engines.prefixes import PrefixStore
from univerb.errors import ModelError

Floats = NDArray[numpy.float32]
Bytes = NDArray[numpy.uint8]

PASS_ROWS = 256
"""Maximum number of rows of one pass."""
_MIN_CELLS = 1024
_MAX_IDLE = 2
"""Number of contexts that stay in the pool."""
_MAX_SEQUENCES = 256
"""What llama.cpp takes in one context."""
_NONE = 0
"""llama.cpp's number of no pooling, and of no flash attention."""
_SHARED_SCALE = {2, 3, 6, 7, 8, 20, 39}
"""GGML's types with blocks of 32: states are rounded to bytes with a half-precision scale."""
_SUPER_BLOCK = {*range(10, 20), 21, 22, 23, 29, 34, 35}
"""GGML's types with blocks of 256: to bytes with a single-precision scale."""


class _Weights:
    """The weights of a model; its contexts hold a reference, so that they are freed last."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer
        weakref.finalize(self, library().llama_model_free, pointer)


class NativeModel:
    """A model that llama.cpp has loaded, and a pool of contexts over it."""

    def __init__(self, path: Path, threads: int) -> None:
        native = library()
        settings = native.llama_model_default_params()
        settings.n_gpu_layers = 0
        settings.check_tensors = True
        last_error()  # forget older ones
        pointer = native.llama_model_load_from_file(str(path).encode(), settings)
        if not pointer:
            raise ModelError(
                f"llama.cpp cannot load {str(path)!r}: {last_error()}. Get a fresh copy, or a "
                "newer llama.cpp if the model is newer than it."
            )
        self.weights = _Weights(pointer)
        self.threads = threads
        self.width = int(native.llama_model_n_embd(pointer))
        self.context_size = int(native.llama_model_n_ctx_train(pointer))
        vocabulary = native.llama_model_get_vocab(pointer)
        self.static_size = int(native.llama_vocab_n_tokens(vocabulary))
        has_encoder = native.llama_model_has_encoder(pointer)
        is_stateful = native.llama_model_is_recurrent(pointer)
        if has_encoder or is_stateful or native.llama_model_is_hybrid(pointer):
            raise ModelError(
                f"{str(path)!r} is not a causal Transformer with a KV cache, which phrases need. "
                "Use a decoder-only Transformer."
            )
        self.prefixes: PrefixStore[tuple[int, Bytes]] = PrefixStore()
        """Of each of the last prompts, its number of rows and their part of the KV cache."""
        self._idle: list[Context] = []
        self._released: SimpleQueue[Context] = SimpleQueue()
        self._lock = threading.Lock()

    def acquire(self, cells: int, sequences: int) -> "Context":
        """Take an empty context from the pool, or make one; `release` it in the end.

        Args:
            cells: Minimum number of rows that it holds, of all sequences together.
            sequences: Minimum number of sequences.

        Returns:
            The context.
        """
        with self._lock:
            self._take_back()
            large = [c for c in self._idle if c.cells >= cells and c.sequences >= sequences]
            if large:
                context = min(large, key=lambda candidate: candidate.cells)
                self._idle.remove(context)
                return context
        roomy = max(_MIN_CELLS, 1 << (cells - 1).bit_length())
        # No more than the sequences can ever fill.
        return Context(self, min(roomy, max(cells, sequences * self.context_size)), sequences)

    def release(self, context: "Context") -> None:
        """Put a context into the pool; the smallest is freed if there are too many.

        Finalizers call this, in the middle of anything: it never waits for a lock.
        """
        self._released.put(context)
        if self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def _take_back(self) -> None:
        """Sort in what was released; the caller has the lock."""
        with suppress(Empty):
            while True:
                context = self._released.get_nowait()
                context.clear()
                self._idle.append(context)
        for _ in range(len(self._idle) - _MAX_IDLE):
            self._idle.remove(min(self._idle, key=lambda candidate: candidate.cells))


class Context:
    """A KV cache for some sequences, and the buffers of a pass over it."""

    def __init__(self, model: NativeModel, cells: int, sequences: int) -> None:
        self._native = native = library()
        if sequences > _MAX_SEQUENCES:
            raise ModelError(
                f"{sequences} sequences at once; llama.cpp takes {_MAX_SEQUENCES}. Use fewer."
            )
        settings = native.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = cells, sequences
        settings.n_batch = settings.n_ubatch = PASS_ROWS
        settings.n_outputs_max = settings.n_outputs_max_per_seq = 0
        settings.n_threads = settings.n_threads_batch = model.threads
        # One pool of cells for all sequences, and the state of each row.
        settings.kv_unified, settings.pooling_type = True, _NONE
        # Full caches even where layers have windows: rows can be taken back.
        settings.swa_full = True
        # On a CPU flash attention costs time as the context grows, and some agreement with fp32.
        settings.flash_attn_type = _NONE
        last_error()  # forget older ones
        self._handle = native.llama_init_from_model(model.weights.pointer, settings)
        if not self._handle:
            raise ModelError(
                f"llama.cpp cannot make a KV cache of {cells} positions: {last_error()}. Use "
                "shorter prompts, fewer sequences at once, or a machine with more memory."
            )
        weakref.finalize(self, _free, self._handle, model.weights)
        self.cells, self.sequences = cells, sequences
        self._sizes = (model.width, model.static_size)
        self._memory = native.llama_get_memory(self._handle)
        self._gives_states = False
        self._make_buffers()

    def _make_buffers(self) -> None:
        native, width = self._native, self._sizes[0]
        self._tokens, self._positions, self._owners = numpy.zeros((3, PASS_ROWS), numpy.int32)
        self._vectors = numpy.zeros((PASS_ROWS, width), numpy.float32)
        self._wanted = numpy.zeros(PASS_ROWS, numpy.int8)
        self._counts = numpy.ones(PASS_ROWS, numpy.int32)
        number = ctypes.POINTER(ctypes.c_int32)
        begin = self._owners.ctypes.data
        self._lists = (number * PASS_ROWS)(
            *(ctypes.cast(begin + 4 * row, number) for row in range(PASS_ROWS))
        )
        shared = {
            "pos": self._positions.ctypes.data_as(number),
            "n_seq_id": self._counts.ctypes.data_as(number),
            "seq_id": ctypes.cast(self._lists, ctypes.POINTER(number)),
            "logits": self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        }
        vectors = self._vectors.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._by_token = native.llama_batch(
            token=self._tokens.ctypes.data_as(number), embd=None, **shared
        )
        self._by_vector = native.llama_batch(token=None, embd=vectors, **shared)

    def give_states(self, wanted: bool) -> None:
        """Set whether passes give hidden states; they then give states and logits of all rows."""
        if wanted != self._gives_states:
            self._native.llama_set_embeddings(self._handle, wanted)
            self._gives_states = wanted

    def read(
        self,
        rows: Sequence[int] | Floats,
        positions: Sequence[int],
        owners: Sequence[int],
        wanted: Sequence[bool] | bool,
    ) -> int:
        """Run one pass.

        Args:
            rows: At most PASS_ROWS token ids, or their vectors (n, d).
            positions: Each row's position in its sequence.
            owners: Each row's sequence.
            wanted: Whether to compute each row's logits.

        Returns:
            llama.cpp's return code: 0 for success.
        """
        count = len(rows)
        batch = self._by_vector if isinstance(rows, numpy.ndarray) else self._by_token
        buffer = self._vectors if isinstance(rows, numpy.ndarray) else self._tokens
        buffer[:count] = rows
        self._positions[:count] = positions
        self._owners[:count] = owners
        self._wanted[:count] = wanted
        batch.n_tokens = count
        return int(self._native.llama_decode(self._handle, batch))

    def states(self, rows: Sequence[int]) -> Floats:
        """Return a copy of the states of some rows of the last pass, (n, d)."""
        return self._copied(self._native.llama_get_embeddings_ith, rows, self._sizes[0])

    def logits(self, rows: Sequence[int]) -> Floats:
        """Return a copy of the logits of some rows of the last pass, (n, V).

        The next pass overwrites llama.cpp's own; a copy takes a thousandth of a pass.
        """
        return self._copied(self._native.llama_get_logits_ith, rows, self._sizes[1])

    def _copied(
        self,
        find: Callable[[int, int], ctypes.Array[ctypes.c_float]],
        rows: Sequence[int],
        width: int,
    ) -> Floats:
        copies = numpy.empty((len(rows), width), numpy.float32)
        for copy, row in zip(copies, rows, strict=True):
            source = find(self._handle, row)
            if not source:
                raise ModelError(f"llama.cpp gave nothing for a row: {last_error()}.")
            ctypes.memmove(copy.ctypes.data, source, width * 4)
        return copies

    def clear(self) -> None:
        """Forget all sequences."""
        self._native.llama_memory_clear(self._memory, False)

    def forget(self, sequence: int, begin: int) -> None:
        """Forget a sequence's rows from position `begin` on."""
        if not self._native.llama_memory_seq_rm(self._memory, sequence, begin, -1):
            raise ModelError("llama.cpp cannot remove rows of this model. Use another model.")

    def fork(self, sequence: int, twin: int) -> None:
        """Copy a sequence to another one."""
        self._native.llama_memory_seq_cp(self._memory, sequence, twin, -1, -1)

    def saved(self, sequence: int) -> Bytes:
        """Return a copy of a sequence's part of the KV cache."""
        size = self._native.llama_state_seq_get_size(self._handle, sequence)
        content = numpy.empty(size, numpy.uint8)
        begin = content.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        self._native.llama_state_seq_get_data(self._handle, begin, size, sequence)
        return content

    def restore(self, sequence: int, content: Bytes) -> None:
        """Fill an empty sequence with what any context over this model has `saved`."""
        begin = content.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if not self._native.llama_state_seq_set_data(self._handle, begin, len(content), sequence):
            raise ModelError(f"llama.cpp cannot copy a sequence: {last_error()}.")


def _free(context: int, _: _Weights) -> None:
    # The second argument keeps the weights alive until now.
    library().llama_free(context)


def as_multiplied(states: Floats, kind: int) -> Floats:
    """Round states (n, d) as llama.cpp does before it multiplies them with its output matrix.

    Phrase logits of states so rounded are on the scale of the token logits: a phrase with the
    vector of a token has that token's logit. `kind` is GGML's number of the matrix's type.
    """
    if kind == 1:
        return states.astype(numpy.float16).astype(numpy.float32)
    if kind in _SHARED_SCALE:
        blocks = states.reshape(-1, 32)
        scale = numpy.abs(blocks).max(axis=1, keepdims=True) / 127
        inverse = numpy.divide(1, scale, out=numpy.zeros_like(scale), where=scale > 0)
        stored_scale = scale.astype(numpy.float16).astype(numpy.float32)
        shared: Floats = numpy.rint(blocks * inverse) * stored_scale
        return shared.reshape(states.shape)
    if kind in _SUPER_BLOCK:
        blocks = states.reshape(-1, 256)
        extreme = numpy.take_along_axis(blocks, numpy.abs(blocks).argmax(axis=1)[:, None], axis=1)
        inverse = numpy.divide(-127, extreme, out=numpy.zeros_like(extreme), where=extreme != 0)
        scale = numpy.divide(1, inverse, out=numpy.zeros_like(extreme), where=extreme != 0)
        rounded: Floats = numpy.minimum(numpy.rint(blocks * inverse), 127) * scale
        return rounded.reshape(states.shape)
    return states
