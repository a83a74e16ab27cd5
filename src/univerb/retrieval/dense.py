"""Dense retrieval, with any encoder on disk or with static word vectors.

Vectors have length 1, so that inner products order texts as distances do (docs/method.md,
Protocols: WikiText-103).
"""

import functools
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy
from numpy.typing import NDArray

from univerb.errors import MissingExtra, ModelError, first_line
from univerb.files import map_array
from univerb.model_folder import refuse_unsafe
from univerb.retrieval.base import Features, top_ranked

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig
    from transformers.modeling_outputs import BaseModelOutputWithPooling

Pooling = Literal["mean", "cls", "pooler"]
Vectors = NDArray[numpy.float32]
Encoder = Callable[[Sequence[str]], Vectors]

_FILE = "vectors.npy"
_BATCH = 32
_MAX_TOKENS = 256  # Per text; a chunk of 128 words has fewer.


class _VectorMethod:
    """Ranks texts by vectors; subclasses encode them."""

    __slots__ = ()

    def features(self, texts: Sequence[str]) -> Features:
        """Return the texts' vectors; the batch size may change the last digit."""
        return {"vectors": self._encode(texts)}

    def index(self, shards: Sequence[Features]) -> "VectorIndex":
        """Concatenate the vectors of all texts."""
        return VectorIndex(_joined(shards), self._encode)

    def load(self, folder: Path, count: int) -> "VectorIndex":
        """Open a saved index, memory-mapped."""
        vectors = map_array(folder / _FILE, numpy.float32, 2)
        if len(vectors) != count or not numpy.isfinite(vectors).all():
            raise ValueError(f"{_FILE} does not hold {count} vectors of finite numbers")
        return VectorIndex(vectors, self._encode)

    def _encode(self, texts: Sequence[str]) -> Vectors:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Dense(_VectorMethod):
    """Ranks texts by the vectors of a Transformer encoder in a folder."""

    folder: str | Path
    """A Hugging Face model directory with safetensors weights, such as BERT, MiniLM or DPR."""

    @property
    def name(self) -> str:
        """The method and the model's folder."""
        return f"dense:{Path(self.folder).resolve()}"

    def _encode(self, texts: Sequence[str]) -> Vectors:
        encoder = _transformer(Path(self.folder).resolve())
        # Texts of one length together: a batch is padded to its longest.
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        batches = [order[i : i + _BATCH] for i in range(0, len(order), _BATCH)]
        vectors = _normalised([encoder([texts[index] for index in batch]) for batch in batches])
        return vectors[numpy.argsort(order)] if order else vectors


@dataclass(frozen=True, slots=True)
class Static(_VectorMethod):
    """Ranks texts by the mean of static word vectors: fast, since no network runs."""

    folder: str | Path
    """A model2vec directory."""

    @property
    def name(self) -> str:
        """The method and the model's folder."""
        return f"static:{Path(self.folder).resolve()}"

    def _encode(self, texts: Sequence[str]) -> Vectors:
        encoder = _static(Path(self.folder).resolve())
        return _normalised([encoder(texts)] if texts else [])


class VectorIndex:
    """Texts ranked by exact inner product; threads may share it."""

    def __init__(self, vectors: Vectors, encode: Encoder) -> None:
        self._vectors = vectors
        self._encode = encode

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        """Return the `k` nearest texts, best first; none for a query without text."""
        if k < 1 or not len(self._vectors) or not query.strip():
            return []
        vector = self._encode([query])
        if vector.shape[1] != self._vectors.shape[1]:
            raise ModelError(
                f"the model gives vectors of {vector.shape[1]} numbers, the index has "
                f"{self._vectors.shape[1]}. Build the index again with this model."
            )
        # Not `@`: with it, equal rows may differ in the last digit, by their position.
        scores = numpy.einsum("ij,j->i", self._vectors, vector[0])
        return top_ranked(numpy.arange(len(scores)), scores, k)

    def save(self, folder: Path) -> None:
        """Write the vectors as one .npy file."""
        numpy.save(folder / _FILE, self._vectors, allow_pickle=False)


def _joined(shards: Sequence[Features]) -> Vectors:
    # A shard without texts does not know the width.
    parts = [shard["vectors"] for shard in shards if len(shard["vectors"])]
    return numpy.concatenate(parts) if parts else numpy.zeros((0, 0), dtype=numpy.float32)


def _normalised(parts: Sequence[Vectors]) -> Vectors:
    if not parts:
        return numpy.zeros((0, 0), dtype=numpy.float32)
    vectors = numpy.concatenate(parts).astype(numpy.float32)
    lengths = numpy.linalg.norm(vectors, axis=1, keepdims=True)
    # A text without known words stays zero.
    lengths[lengths == 0] = 1
    normalised: Vectors = vectors / lengths
    return normalised


@functools.lru_cache(maxsize=2)
def _static(folder: Path) -> Encoder:
    try:
        from model2vec import StaticModel
    except ImportError:
        raise MissingExtra("model2vec", "dense") from None
    _check_folder(folder, "static word vectors")
    try:
        model = StaticModel.from_pretrained(folder)
    except Exception as error:  # of readers of JSON, tensors and tokenizers
        raise _unreadable(folder, error) from error

    def encode(texts: Sequence[str]) -> Vectors:
        vectors: Vectors = model.encode(list(texts), use_multiprocessing=False)
        return vectors

    return encode


@functools.lru_cache(maxsize=2)
def _transformer(folder: Path) -> Encoder:
    """Load an encoder once and return it as a function."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer, DPRContextEncoder
    from transformers.utils import logging

    _check_folder(folder, "an encoder")
    # A second's work; a bar would mix with what the command prints.
    shows_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        # AutoModel loads every DPR folder as a question encoder, with random weights.
        is_context = "DPRContextEncoder" in (config.architectures or [])
        model, info = (DPRContextEncoder if is_context else AutoModel).from_pretrained(
            folder,
            config=config,
            use_safetensors=True,
            output_loading_info=True,
            trust_remote_code=False,
            local_files_only=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # transformers raises anything
        raise _unreadable(folder, error) from error
    finally:
        if shows_bars:
            logging.enable_progress_bar()
    pooling = _pooling_of(folder, config)
    missing = sorted(k for k in info["missing_keys"] if pooling == "pooler" or "pooler" not in k)
    if missing:
        raise _unreadable(folder, ValueError(f"it has no weights for {missing[0]!r}"))
    model.eval()
    length = min(_MAX_TOKENS, tokenizer.model_max_length, config.max_position_embeddings)
    lock = threading.Lock()

    def encode(texts: Sequence[str]) -> Vectors:
        with lock:  # Padding is state of the tokenizer.
            inputs = tokenizer(
                list(texts), padding=True, truncation=True, max_length=length, return_tensors="pt"
            )
        with torch.inference_mode():
            output = model(**inputs)
        vectors: Vectors = _pooled(output, inputs["attention_mask"], pooling).float().numpy()
        return vectors

    return encode


def _pooling_of(folder: Path, config: "PreTrainedConfig") -> Pooling:
    """Return the pooling that an encoder was trained with; the mean if it does not say."""
    if config.model_type == "dpr":
        return "pooler"
    card = folder / "1_Pooling" / "config.json"  # as sentence-transformers writes it
    if card.is_file() and json.loads(card.read_text("utf-8")).get("pooling_mode_cls_token"):
        return "cls"
    return "mean"


def _pooled(
    output: "BaseModelOutputWithPooling", mask: "torch.Tensor", kind: Pooling
) -> "torch.Tensor":
    pooled: torch.Tensor
    if kind == "mean":
        weights = mask.unsqueeze(-1)
        pooled = (output.last_hidden_state * weights).sum(1) / weights.sum(1).clamp(min=1)
    else:
        pooled = output.pooler_output if kind == "pooler" else output.last_hidden_state[:, 0]
    return pooled


def _check_folder(folder: Path, what: str) -> None:
    if not folder.is_dir():
        raise ModelError(
            f"{str(folder)!r} is no folder. Give the folder of {what} on this machine; nothing is "
            "downloaded here."
        )
    refuse_unsafe(folder)


def _unreadable(folder: Path, error: Exception) -> ModelError:
    return ModelError(
        f"the model in {str(folder)!r} cannot be read: {first_line(error)}. Give a folder with "
        "its config.json, its tokenizer.json and its weights as safetensors."
    )
