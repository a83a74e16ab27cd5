"""Encoding the phrases of a corpus once, in batches for any number of workers."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from transformers.utils import logging

from univerb.corpus.mine import MinedPhrases
from univerb.corpus.objects import ObjectEntry, write_object
from univerb.corpus.phrase_index import Ids
from univerb.corpus.vector_rows import Records, RowFormat, VectorDtype
from univerb.corpus.vectors import ROWS
from univerb.errors import CorpusError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase
from univerb.phrases.hashing import Ints, prepend_zero, ranges, split_ids

BATCH = 1_024
"""Phrases per object, half a second of work: little is lost by an interrupt, and the bar moves."""

# The models that this process has loaded, by fingerprint.
_loaded: dict[str, DynamicLM] = {}


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """What a worker needs to encode phrases."""

    root: Path
    model: str
    fingerprint: str
    lm_dtype: str
    dtype: VectorDtype
    tokens: Ids
    ends: Ints

    @property
    def key(self) -> str:
        """A hash of all that the vectors depend on."""
        encoder = f"{self.fingerprint} {self.dtype}".encode()
        content = self.tokens.astype("<i4").tobytes() + self.ends.astype("<i8").tobytes()
        return hashlib.sha256(encoder + content).hexdigest()


def encode_tasks(
    lm: DynamicLM,
    root: Path,
    phrases: MinedPhrases,
    missing: Ints,
    dtype: VectorDtype,
) -> list[EncodeTask]:
    """Divide the phrases with the numbers `missing` into batches.

    The numbers ascend, so that phrases with a common beginning are encoded together.
    """
    fingerprint = lm.fingerprint()
    _loaded[fingerprint] = lm
    begins = prepend_zero(phrases.ends)
    tasks = []
    lm_dtype = str(lm.model.dtype).removeprefix("torch.")
    for start in range(0, len(missing), BATCH):
        batch = missing[start : start + BATCH]
        begin, end = begins[batch], begins[batch + 1]
        tokens, ends = phrases.tokens[ranges(begin, end)], numpy.cumsum(end - begin)
        tasks.append(EncodeTask(root, lm.name, fingerprint, lm_dtype, dtype, tokens, ends))
    return tasks


def encode_batch(task: EncodeTask) -> ObjectEntry:
    """Encode the phrases of a task, unless their object exists."""
    return write_object(task.root, "vectors", task.key, lambda folder: _write(task, folder))


def _write(task: EncodeTask, folder: Path) -> None:
    lm = _model(task)
    with _one_thread(), torch.inference_mode():
        rows = _encoded(lm, split_ids(task.tokens, task.ends), task.dtype)
    (folder / ROWS).write_bytes(rows.tobytes())


def _encoded(lm: DynamicLM, keys: Sequence[tuple[int, ...]], dtype: VectorDtype) -> Records:
    """Encode phrases and round their vectors."""
    texts = lm.tokenizer.decode_all(keys)
    phrases = [Phrase(k, t) for k, t in zip(keys, texts, strict=True)]
    # Not `lm.encode`: a corpus that is attached to the LM may have rounded them.
    vectors = lm.encoder.encode(phrases, lm.embeddings)
    sides = [vectors.outputs] if vectors.inputs is vectors.outputs else list(vectors)
    arrays = [side.float().cpu().numpy() for side in sides]
    layout = RowFormat(dtype, lm.width, lm.is_tied)
    rows = layout.pack(arrays)
    if not layout.are_finite(rows):
        raise CorpusError(
            f"the encoder gives vectors that are not finite in {dtype} (largest: "
            f"{max(numpy.abs(side).max() for side in arrays)}). Check its training, or store them "
            "as float32."
        )
    return rows


def _model(task: EncodeTask) -> DynamicLM:
    if task.fingerprint not in _loaded:
        # A worker's progress bars would mix with those of the build.
        logging.disable_progress_bar()
        lm = DynamicLM.from_pretrained(task.model, dtype=task.lm_dtype)
        if lm.fingerprint() != task.fingerprint:
            raise CorpusError(
                f"the worker's model {task.model!r} is not the one that the corpus is built with. "
                "Save your model to a folder that all workers see, or use one worker."
            )
        _loaded[task.fingerprint] = lm
    return _loaded[task.fingerprint]


@contextmanager
def _one_thread() -> Iterator[None]:
    # The order of sums depends on the number of threads; the bytes must not.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
