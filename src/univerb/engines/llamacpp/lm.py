"""LlamaCppLM: a GGUF file that llama.cpp computes, with a phrase encoder beside it.

Nothing here needs torch as long as phrase vectors come from a corpus: the tokenizer, the encoder's
settings and its fingerprint are read from files. Only encoding a phrase imports torch.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy
from numpy.typing import NDArray

from univerb.config import EncoderConfig, Profile
from univerb.engines.llamacpp.conversion import as_q8_0
from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.engines.llamacpp.gguf_parts import (
    INPUT,
    OUTPUT,
    check_fits,
    check_words,
    default_file,
    read_tokenizer,
    special_ids,
    tokenizer_folder,
)
from univerb.engines.llamacpp.native import NativeModel, as_multiplied
from univerb.errors import CheckpointError, ModelError
from univerb.files import atomic_write
from univerb.locations import DEFAULT_MODEL, cache_directory
from univerb.model_folder import read_json_object
from univerb.modeling.card import (
    CARD,
    WEIGHTS,
    Card,
    backbone_of,
    check_file,
    find_encoder,
    read_card,
)
from univerb.modeling.phrase_model import PhraseModel, check_highest
from univerb.modeling.phrase_table import Matrix, PhraseVectors
from univerb.modeling.scoring import Scoring
from univerb.phrase import Phrase
from univerb.threads import thread_count
from univerb.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as HFTokenizer

    from univerb.modeling.encoder import Embeddings, PhraseEncoder

Floats = NDArray[numpy.float32]

_BLOCK = 4096
"""Rows that are de-quantised at once when a whole matrix is read: ten megabytes."""
_PROBES = (1, 7, 3)
"""Tokens that test whether the model can be used."""


class LlamaCppLM(PhraseModel):
    """A causal LM in a GGUF file that can read and write phrases as single vocabulary items."""

    engine = "llamacpp"
    # llama.cpp counts windows by position, so shared caches do not disturb them.
    has_window = False

    def __init__(self, gguf: GgufFile, folder: Path, tokens: Path, name: str, threads: int) -> None:
        self.gguf = gguf
        self._folder = folder
        self._tokens = tokens
        self._card: Card = read_card(folder)
        rust = read_tokenizer(tokens)
        tokenizer = Tokenizer(rust, special_ids(rust, tokens))
        super().__init__(tokenizer, _profile(self._card.profile), name)
        check_fits(gguf, self._card, tokenizer)
        check_words(gguf, rust, self._card.backbone.name)
        self.native = NativeModel(gguf.path, threads)
        self.static_size, self.width = self.native.static_size, self.native.width
        self.context_size = self.native.context_size
        self.threads = threads
        self._torch_side: tuple[PhraseEncoder, Embeddings] | None = None
        self._check_usable()

    @classmethod
    def from_pretrained(
        cls,
        name: str = DEFAULT_MODEL,
        *,
        gguf: str | Path | None = None,
        threads: int | None = None,
        offline: bool | None = None,
    ) -> Self:
        """Load a GGUF file and the encoder that belongs to it.

        This is `univerb.load` with the llamacpp engine, which explains the options. The encoder's
        folder, or its backbone's, has the tokenizer.json. A file that is given is used as it is;
        the default model's is converted once, to be read faster.
        """
        folder, full_name = find_encoder(name)
        if folder is None:
            raise CheckpointError(
                f"{name!r} has no {CARD}: the llamacpp engine needs an encoder. Give a folder that "
                f"save_pretrained wrote, or {DEFAULT_MODEL!r}."
            )
        backbone = backbone_of(folder)
        tokens = tokenizer_folder(folder, backbone, offline)
        if gguf is None:
            file = as_q8_0(default_file(backbone, name))
        else:
            file = GgufFile(Path(gguf).expanduser())
        return cls(file, folder, tokens, full_name, thread_count(threads))

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text, as the model's generation config or the file says."""
        ids: object = self.gguf.number("tokenizer.ggml.eos_token_id")
        for name in ("config.json", "generation_config.json"):
            ids = (read_json_object(self._tokens / name) or {}).get("eos_token_id", ids)
        listed = ids if isinstance(ids, list) else [ids]
        return frozenset(i for i in listed if isinstance(i, int) and 0 <= i < self.static_size)

    @property
    def encoder_config(self) -> EncoderConfig:
        """The settings of the phrase encoder."""
        return self._card.encoder

    @property
    def output_name(self) -> str:
        """The name of the output matrix: the input matrix where they are tied."""
        return OUTPUT if OUTPUT in self.gguf.matrices else INPUT

    def input_rows(self, tokens: Sequence[int]) -> Floats:
        """Return the vectors that llama.cpp reads for tokens (n, d), to the last bit."""
        return self.gguf.rows(INPUT, tokens)

    def as_multiplied(self, states: Floats) -> Floats:
        """Round states as llama.cpp does before it multiplies them with the output matrix."""
        return as_multiplied(states, self.gguf.matrices[self.output_name].kind)

    def parameter_version(self) -> int:
        """Return 0: nothing here changes."""
        return 0

    def head_bias(self) -> float:
        """Return what the encoder adds to the score of every phrase."""
        return self._bias

    @cached_property
    def scoring(self) -> Scoring:
        """How phrases are scored against the LM's states."""
        prefix = "conditional."
        tensors = dict(self._encoder_tensors())
        return Scoring(
            {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        )

    @cached_property
    def _bias(self) -> float:
        return float(dict(self._encoder_tensors()).get("heads.bias", numpy.zeros(())))

    def fingerprint(self) -> str:
        """Return the hash that `DynamicLM.fingerprint` gives for the same encoder and LM.

        Reading both matrices takes a second, so the hash is stored in the user's cache.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        key = self.gguf.cache_key(self._card.encoder.model_dump(), self._card.sha256)
        path = cache_directory() / "fingerprints" / key
        try:
            cached = path.read_text(encoding="ascii")
        except (OSError, ValueError):
            cached = ""
        if re.fullmatch("[0-9a-f]{32}", cached):
            return cached
        fingerprint = self._computed_fingerprint()
        with suppress(OSError):  # a cache that cannot be written is no error
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, fingerprint)
        return fingerprint

    def _computed_fingerprint(self) -> str:
        # The very bytes that DynamicLM hashes; a test holds the two together.
        content = hashlib.sha256(self._card.encoder.identity().encode())
        for name, tensor in self._encoder_tensors():
            content.update(f"{name} {tensor.shape} torch.{tensor.dtype}".encode())
            content.update(tensor.tobytes())
        for name, matrix in (("input", INPUT), ("output", self.output_name)):
            count, width = self.gguf.matrices[matrix][:2]
            content.update(f"{name} {(count, width)} torch.float32".encode())
            for begin in range(0, count, _BLOCK):
                content.update(self.gguf.rows(matrix, slice(begin, begin + _BLOCK)).tobytes())
        return content.hexdigest()[:32]

    def _encoder_tensors(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the encoder's weights by name, half precision widened as torch does."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        check_file(self._folder / WEIGHTS, self._card.sha256.get(WEIGHTS, "none"))
        try:
            tensors = load_file(self._folder / WEIGHTS)
        except (SafetensorError, OSError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{WEIGHTS} in {str(self._folder)!r} cannot be read: {str(error)[:120]}. Save the "
                "encoder in single or half precision."
            ) from error
        for name, tensor in sorted(tensors.items()):
            is_real = numpy.issubdtype(tensor.dtype, numpy.floating)
            if is_real and not numpy.isfinite(tensor).all():
                raise CheckpointError(
                    f"{str(self._folder / WEIGHTS)!r} holds numbers that are not finite (NaN or "
                    f"infinite), in {name}. Get a fresh copy."
                )
            yield name, tensor.astype(numpy.float32) if is_real else tensor

    def run_encoder(self, phrases: Sequence[Phrase]) -> PhraseVectors[Matrix]:
        """Encode phrases, whether or not their vectors are stored somewhere.

        The first call imports torch, loads the encoder with its backbone, and keeps the encoder.
        """
        import torch

        with self._lock:
            encoder, embeddings = self._torch_side = self._torch_side or self._load_torch_side()
        with torch.inference_mode():
            return encoder.encode_to_numpy(phrases, embeddings)

    def _load_torch_side(self) -> "tuple[PhraseEncoder, Embeddings]":
        import torch

        from univerb.modeling.dynamic import DynamicLM
        from univerb.modeling.encoder import Embeddings

        encoder = DynamicLM.from_pretrained(self.name).encoder
        # The file's own rows: what vectors depend on is what the fingerprint says.
        names = dict.fromkeys((INPUT, self.output_name))
        matrices = [torch.from_numpy(self.gguf.rows(name, slice(None))) for name in names]
        layers = [
            torch.nn.Embedding.from_pretrained(matrix)  # type: ignore[no-untyped-call]
            for matrix in matrices
        ]
        return encoder, Embeddings(layers[0], layers[-1])

    @cached_property
    def hf_tokenizer(self) -> "HFTokenizer":
        """The tokenizer as transformers has it, for its chat template."""
        from transformers import AutoTokenizer

        tokenizer: HFTokenizer = AutoTokenizer.from_pretrained(
            str(self._tokens), local_files_only=True, trust_remote_code=False
        )
        return tokenizer

    def _check_usable(self) -> None:
        """Refuse a model that changes embeddings or logits, by comparing its logits with ours."""
        context = self.native.acquire(len(_PROBES), 1)
        context.give_states(True)
        results = []
        positions, owners = range(len(_PROBES)), [0] * len(_PROBES)
        for rows in (list(_PROBES), self.input_rows(_PROBES)):
            context.clear()
            if context.read(rows, positions, owners, True):
                raise ModelError(f"llama.cpp cannot compute {str(self.gguf.path)!r}.")
            results.append((context.states([2]), context.logits([2])))
        self.native.release(context)
        (states, logits), (_, by_vector) = results
        check_highest(float(logits.max()), str(self.gguf.path))
        best = numpy.argsort(logits[0])[-8:]
        ours = self.as_multiplied(states) @ self.gguf.rows(self.output_name, best.tolist()).T
        # Rounding explains as much; soft-capping or scaling makes far more.
        allowed = 0.02 * float(numpy.abs(logits).max()) + 0.05
        errors = (numpy.abs(by_vector - logits).max(), numpy.abs(ours - logits[:, best]).max())
        if not max(errors) <= allowed:
            raise ModelError(
                f"{str(self.gguf.path)!r} changes embeddings before its first layer or logits "
                "after its last one (scaling, soft-capping), so phrases would be on another scale. "
                "Use a backbone without it."
            )


def _profile(profile: Profile) -> Profile:
    """Return the profile for llama.cpp: every row costs a step, so only single vectors save time.

    A row takes one position, whatever it stands for.
    """
    changes: dict[str, object] = {"mode": "atomic", "positions": "unit"}
    if profile.mode != "atomic":
        changes |= {"phrase_bias": 0.0, "eagerness": 0.0}
    return profile.model_copy(update=changes)
