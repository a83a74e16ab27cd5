"""LlamaCppLM: a GGUF file that llama.cpp computes, with or without a phrase encoder beside it.

Nothing here needs torch but encoders that numpy does not compute (`numpy_encoder`): the tokenizer,
the encoder's settings and its fingerprint are read from files.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy
from numpy.typing import NDArray

from univerb.config import TRAINING_FREE, EncoderConfig
from univerb.engines.llamacpp.conversion import as_q8_0
from univerb.engines.llamacpp.gguf_checks import INPUT, OUTPUT, check_language_model
from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.engines.llamacpp.gguf_parts import (
    LanguageParts,
    default_file,
    parts_beside,
    parts_inside,
    tokenizer_folder,
)
from univerb.engines.llamacpp.native import NativeModel, as_multiplied
from univerb.engines.llamacpp.numpy_encoder import NumpyEncoder
from univerb.engines.llamacpp.stored_encoder import StoredEncoder
from univerb.errors import CheckpointError, ModelError
from univerb.files import atomic_write
from univerb.locations import DEFAULT_MODEL, cache_directory, is_gguf
from univerb.modeling.card import CARD, backbone_of, find_encoder
from univerb.modeling.chat_template import Turn
from univerb.modeling.phrase_model import PhraseModel, check_highest
from univerb.modeling.phrase_table import Matrix, PhraseVectors
from univerb.modeling.scoring import Scoring
from univerb.phrase import Phrase
from univerb.threads import thread_count

if TYPE_CHECKING:
    from univerb.modeling.encoder import Embeddings, PhraseEncoder

Floats = NDArray[numpy.float32]

_BLOCK = 4096
"""Rows that are de-quantised at once when a whole matrix is read: ten megabytes."""
_PROBES = (1, 7, 3)
"""Tokens that test whether the model can be used."""


class LlamaCppLM(PhraseModel):
    """A causal LM in a GGUF file that can read and write phrases as single vocabulary items.

    Without an encoder, phrases are scored by the LM's own logits, and never fed as vectors.
    """

    engine = "llamacpp"
    # llama.cpp counts windows by position, so shared caches do not disturb them.
    has_window = False

    def __init__(
        self,
        gguf: GgufFile,
        parts: LanguageParts,
        encoder: StoredEncoder | None,
        name: str,
        threads: int,
        offline: bool | None = None,
    ) -> None:
        self.gguf = gguf
        self._offline = offline
        self._parts = parts
        self._encoder = encoder
        super().__init__(parts.tokenizer, encoder.profile if encoder else TRAINING_FREE, name)
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
        encoder: bool = True,
        threads: int | None = None,
        offline: bool | None = None,
    ) -> Self:
        """Load a GGUF file, and the encoder that belongs to it.

        This is `univerb.load` with the llamacpp engine, which explains the options. If the name is
        itself that of a GGUF file, there is no encoder, and everything else is read from the file.
        Otherwise the encoder's folder, or its backbone's, has the tokenizer.json. A file that is
        given is used as it is; the default model's is converted once, to be read faster.
        """
        count = thread_count(threads)
        if is_gguf(name) and gguf is None:
            path = Path(name).expanduser()
            file = _opened(path)
            return cls(file, parts_inside(file), None, str(path.resolve()), count)
        if not encoder and name == DEFAULT_MODEL and gguf is None:
            file = as_q8_0(default_file(name, name))
            return cls(file, parts_inside(file), None, name, count)
        folder, full_name = find_encoder(name)
        if folder is None:
            raise CheckpointError(
                f"{name!r} has no {CARD}, so it is no encoder. Give a folder that save_pretrained "
                f"wrote, or {DEFAULT_MODEL!r}; for an LM without an encoder, the GGUF file itself "
                "as the model."
            )
        stored, backbone = StoredEncoder(folder), backbone_of(folder)
        tokens = tokenizer_folder(folder, backbone, offline)
        if gguf is None:
            file = as_q8_0(default_file(backbone, name))
        else:
            file = _opened(Path(gguf).expanduser())
        parts = parts_beside(file, stored.card, tokens)
        return cls(file, parts, stored if encoder else None, full_name, count, offline)

    @property
    def parameter_count(self) -> int:
        """How many numbers the LM is made of, without the encoder."""
        return sum(math.prod(tensor.shape) for tensor in self.gguf.tensors)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text, as the model's generation config or the file says."""
        return frozenset(i for i in self._parts.end_ids if 0 <= i < self.static_size)

    @property
    def has_encoder(self) -> bool:
        """Whether phrases can have vectors."""
        return self._encoder is not None

    @property
    def encoder_config(self) -> EncoderConfig:
        """The settings of the phrase encoder; the defaults where there is none."""
        return self._encoder.card.encoder if self._encoder else EncoderConfig()

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
        return self._encoder.bias if self._encoder else 0.0

    @cached_property
    def scoring(self) -> Scoring:
        """How phrases are scored against the LM's states."""
        return self._encoder.scoring if self._encoder else Scoring({})

    def fingerprint(self) -> str:
        """Return the hash that `DynamicLM.fingerprint` gives for the same encoder and LM.

        Reading both matrices takes a second, so the hash is stored in the user's cache. Without an
        encoder it is a hash of the file and its tokenizer.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        if self._encoder is None:
            return self.gguf.cache_key("no encoder", self.tokenizer.fingerprint())
        card = self._encoder.card
        path = (
            cache_directory()
            / "fingerprints"
            / self.gguf.cache_key(card.encoder.model_dump(), card.sha256)
        )
        try:
            cached = path.read_text(encoding="ascii")
        except (OSError, ValueError):
            cached = ""
        if re.fullmatch("[0-9a-f]{32}", cached):
            return cached
        fingerprint = self._computed_fingerprint(self._encoder)
        with suppress(OSError):  # a cache that cannot be written is no error
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, fingerprint)
        return fingerprint

    def _computed_fingerprint(self, encoder: StoredEncoder) -> str:
        # The very bytes that DynamicLM hashes; a test holds the two together.
        content = hashlib.sha256(encoder.card.encoder.identity().encode())
        for name, tensor in encoder.tensors():
            content.update(f"{name} {tensor.shape} torch.{tensor.dtype}".encode())
            content.update(tensor.tobytes())
        for name, matrix in (("input", INPUT), ("output", self.output_name)):
            count, width = self.gguf.matrices[matrix][:2]
            content.update(f"{name} {(count, width)} torch.float32".encode())
            for begin in range(0, count, _BLOCK):
                content.update(self.gguf.rows(matrix, slice(begin, begin + _BLOCK)).tobytes())
        return content.hexdigest()[:32]

    def run_encoder(self, phrases: Sequence[Phrase]) -> PhraseVectors[Matrix]:
        """Encode phrases, whether or not their vectors are stored somewhere.

        Where numpy cannot, the first call imports torch, loads the encoder with its backbone, and
        keeps the encoder.
        """
        if self._encoder is None:
            raise CheckpointError(
                f"{self.name!r} has no phrase encoder, so phrases have no vectors. Use mode "
                "'unfold' or 'verify', or train an encoder for the model with: univerb train"
            )
        with self._lock:
            numpy_encoder = self._numpy_encoder
        if numpy_encoder is not None:
            output_rows = partial(self.gguf.rows, self.output_name)
            return numpy_encoder.encode(phrases, self.input_rows, output_rows)
        import torch

        with self._lock:
            encoder, embeddings = self._torch_side = self._torch_side or self._load_torch_side()
        with torch.inference_mode():
            return encoder.encode_to_numpy(phrases, embeddings)

    @cached_property
    def _numpy_encoder(self) -> NumpyEncoder | None:
        return NumpyEncoder.of(self._encoder, self.gguf) if self._encoder else None

    def _load_torch_side(self) -> "tuple[PhraseEncoder, Embeddings]":
        import torch

        from univerb.modeling.dynamic import DynamicLM
        from univerb.modeling.encoder import Embeddings

        encoder = DynamicLM.from_pretrained(self.name, offline=self._offline).encoder
        # The file's own rows: what vectors depend on is what the fingerprint says.
        names = dict.fromkeys((INPUT, self.output_name))
        matrices = [torch.from_numpy(self.gguf.rows(name, slice(None))) for name in names]
        layers = [
            torch.nn.Embedding.from_pretrained(matrix)  # type: ignore[no-untyped-call]
            for matrix in matrices
        ]
        return encoder, Embeddings(layers[0], layers[-1])

    @property
    def has_chat_template(self) -> bool:
        """Whether the LM was made for messages."""
        return self._parts.template is not None

    def render_chat(self, turns: Sequence[Turn]) -> list[int]:
        """Return messages in the LM's chat template, as ids ready to be continued."""
        assert self._parts.template is not None
        return self.tokenizer.encode_marked(self._parts.template.render(turns))

    def _check_usable(self) -> None:
        """Refuse a model whose numbers are not finite, or on another scale than phrases'.

        Without an encoder nobody compares vectors with what llama.cpp computes, and decoding
        checks its logits itself.
        """
        if self._encoder is None:
            return
        states, logits = self._probe(list(_PROBES))
        check_highest(float(logits.max()), str(self.gguf.path))
        _, by_vector = self._probe(self.input_rows(_PROBES))
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

    def _probe(self, rows: list[int] | Floats) -> tuple[Floats, Floats]:
        """Return the state and the logits of the last of a few rows."""
        context = self.native.acquire(len(rows), 1)
        context.give_states(True)
        if context.read(rows, range(len(rows)), [0] * len(rows), True):
            raise ModelError(f"llama.cpp cannot compute {str(self.gguf.path)!r}.")
        last = [len(rows) - 1]
        result = context.states(last), context.logits(last)
        self.native.release(context)
        return result


def _opened(path: Path) -> GgufFile:
    """Open a file of the user's."""
    file = GgufFile(path)
    check_language_model(file)
    return file
