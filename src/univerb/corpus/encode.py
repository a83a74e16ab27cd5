"""Phrase vectors of a corpus, made once, in batches that any worker can take."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy
import torch
from transformers.utils import logging

from univerb.corpus.mine import MinedPhrases
from univerb.corpus.objects import ObjectEntry, write_object
from univerb.corpus.phrase_index import Ids
from univerb.corpus.vectors import ROWS
from univerb.errors import CorpusError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase
from univerb.phrases.hashing import Ints, prepend_zero, ranges

BATCH = 32_768
"""Phrases per object: little is lost when a build is interrupted."""

# The models that this process has at hand, by their fingerprints.
_loaded: dict[str, DynamicLM] = {}


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """What a worker needs to encode phrases."""

    root: Path
    model: str
    fingerprint: str
    lm_dtype: str
    dtype: Literal["float16", "float32"]
    tokens: Ids
    ends: Ints

    @property
    def key(self) -> str:
        """A hash of everything the vectors depend on."""
        made_of = f"{self.fingerprint} {self.dtype}".encode()
        content = self.tokens.astype("<i4").tobytes() + self.ends.astype("<i8").tobytes()
        return hashlib.sha256(made_of + content).hexdigest()


def encode_tasks(
    lm: DynamicLM,
    root: Path,
    phrases: MinedPhrases,
    missing: Ints,
    dtype: Literal["float16", "float32"],
) -> list[EncodeTask]:
    """Divide phrases into batches, those that begin alike together.

    Args:
        lm: Whose encoder is meant.
        root: Where the objects go.
        phrases: All phrases.
        missing: The numbers of those to encode, ascending.
        dtype: How to store the vectors.

    Returns:
        The tasks.
    """
    fingerprint = lm.fingerprint()
    _loaded[fingerprint] = lm
    begins = prepend_zero(phrases.ends)
    tasks = []
    for at in range(0, len(missing), BATCH):
        chosen = missing[at : at + BATCH]
        begin, end = begins[chosen], begins[chosen + 1]
        tokens = phrases.tokens[ranges(begin, end)]
        lm_dtype = str(lm.model.dtype).removeprefix("torch.")
        tasks.append(
            EncodeTask(
                root, lm.name, fingerprint, lm_dtype, dtype, tokens, numpy.cumsum(end - begin)
            )
        )
    return tasks


def encode_batch(task: EncodeTask) -> ObjectEntry:
    """Encode the phrases of a task, unless that was done before."""
    return write_object(task.root, "vectors", task.key, lambda folder: _write(task, folder))


def _write(task: EncodeTask, folder: Path) -> None:
    lm = _model(task)
    ends = task.ends.tolist()
    edges = zip([0, *ends[:-1]], ends, strict=True)
    flat = task.tokens.tolist()
    keys = [tuple(flat[begin:end]) for begin, end in edges]
    with _one_thread(), torch.inference_mode():
        rows = encoded_rows(lm, keys, task.dtype)
    (folder / ROWS).write_bytes(rows.tobytes())


def encoded_rows(lm: DynamicLM, keys: Sequence[tuple[int, ...]], dtype: str) -> numpy.ndarray:
    """Encode phrases and put input and output vector of each side by side."""
    texts = lm.tokenizer.decode_all(keys)
    phrases = [Phrase(k, t) for k, t in zip(keys, texts, strict=True)]
    # Not `lm.encode`: a corpus that is attached to the LM may have rounded them.
    vectors = lm.encoder.encode(phrases, lm.embeddings)
    sides = [vectors.outputs] if vectors.inputs is vectors.outputs else list(vectors)
    rows = torch.cat(sides, dim=1).float().cpu().numpy()
    with numpy.errstate(over="ignore"):
        stored: numpy.ndarray = rows.astype(dtype)
    if not numpy.isfinite(stored).all():
        raise CorpusError(
            f"the encoder gives vectors that are not finite in {dtype} (largest: "
            f"{numpy.abs(rows).max()}). Check its training, or store them as float32."
        )
    return stored


def _model(task: EncodeTask) -> DynamicLM:
    if task.fingerprint not in _loaded:
        # A worker's own bars would run through those of the build.
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
    # Sums may come out in another order on several threads; the bytes must not depend on that.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
