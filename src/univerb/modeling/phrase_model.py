"""PhraseModel: an LM with phrases, whichever engine computes it, and the source of its vectors."""

import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy
from numpy.typing import NDArray

from univerb.config import MAX_PHRASES, EncoderConfig, Profile
from univerb.errors import CheckpointError, ModelError, PhraseError, PromptError, VocabularyError
from univerb.modeling.chat_template import Turn
from univerb.modeling.phrase_table import Matrix, PhraseTable, PhraseVectors, TableView
from univerb.modeling.scoring import Scoring
from univerb.modeling.vector_cache import VectorCache
from univerb.phrase import Document, Phrase
from univerb.phrases.collection import PhraseItem, collect_phrases
from univerb.phrases.ngrams import PhraseSource
from univerb.phrases.tokenized import unwrapped
from univerb.tokenizer import Tokenizer, check_text
from univerb.vocabulary import DynamicVocabulary


def check_highest(logit: float, name: str) -> None:
    """Refuse to go on if an LM's highest logit is no number: then none of them can be trusted."""
    if not math.isfinite(logit):
        raise ModelError(
            f"{name!r} computes logits that are not finite (NaN or infinite): its weights or its "
            "phrase vectors are damaged, or too large for its dtype. Get a fresh copy, or load it "
            "with dtype float32."
        )


class KeptVectors(Protocol):
    """Vectors that requests had to encode, kept for later processes."""

    def find(
        self, keys: Sequence[tuple[int, ...]]
    ) -> tuple[NDArray[numpy.int64], NDArray[Any], NDArray[Any]]:
        """Return the indices of the keys that are kept, and their input and output vectors."""
        ...

    def add(
        self, keys: Sequence[tuple[int, ...]], sides: Sequence[NDArray[Any]]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keep vectors, one side if tied; return them as `find` will."""
        ...


class VectorSource(Protocol):
    """Stored phrase vectors, such as a corpus on disk."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the encoder that made them."""
        ...

    def check_encoder(self, fingerprint: str) -> None:
        """Refuse an encoder that did not make the vectors."""
        ...

    def vectors(
        self, keys: Sequence[tuple[int, ...]]
    ) -> tuple[NDArray[numpy.int64], NDArray[Any], NDArray[Any]]:
        """Return the indices of the keys that are stored, and their input and output vectors."""
        ...

    @property
    def kept(self) -> KeptVectors:
        """Vectors that it does not have and that requests had to encode."""
        ...


class PhraseModel(ABC):
    """An LM and its phrases; a subclass says what the LM is and how a phrase is encoded.

    Data flows one way: documents -> phrases (`vocabulary`) -> vectors -> table (both `encode`) ->
    decoding.
    """

    engine: str
    """Name of the engine that computes it: a folder in `univerb.engines`."""
    static_size: int
    """|V|, counted in rows of the output matrix: the first phrase has this id."""
    width: int
    """Size of a phrase's vector, d."""
    context_size: int
    """Number of positions that the LM can see."""
    has_window: bool
    """Whether some layers see only the last slots of the KV cache, or count slots."""

    def __init__(self, tokenizer: Tokenizer, profile: Profile, name: str) -> None:
        self.tokenizer = tokenizer
        self.profile = profile
        self.name = name
        """What `univerb.load` finds it by."""
        self._tables: weakref.WeakKeyDictionary[DynamicVocabulary, PhraseTable] = (
            weakref.WeakKeyDictionary()
        )
        self._sources: list[VectorSource] = []
        self._cache = VectorCache()
        """Vectors that earlier requests had encoded."""
        self._encoder_version = -1
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def encoder_config(self) -> EncoderConfig:
        """The settings of the phrase encoder."""

    @property
    @abstractmethod
    def parameter_count(self) -> int:
        """How many numbers the LM is made of, without the encoder."""

    @property
    @abstractmethod
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text, as the model's generation config says."""

    @property
    @abstractmethod
    def has_chat_template(self) -> bool:
        """Whether the LM was made for messages."""

    @abstractmethod
    def render_chat(self, turns: Sequence[Turn]) -> list[int]:
        """Return messages in the LM's chat template, as ids ready to be continued."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of all that phrase vectors depend on: the encoder and the LM's rows."""

    @abstractmethod
    def parameter_version(self) -> int:
        """Return a number that differs once the encoder or the LM's rows are changed."""

    @property
    @abstractmethod
    def scoring(self) -> Scoring:
        """How phrases are scored against the LM's states."""

    @abstractmethod
    def head_bias(self) -> float:
        """Return what the encoder adds to the score of every phrase."""

    @abstractmethod
    def run_encoder(self, phrases: Sequence[Phrase]) -> PhraseVectors[Matrix]:
        """Encode phrases, whether or not their vectors are stored somewhere."""

    @property
    def has_encoder(self) -> bool:
        """Whether phrases have vectors; otherwise they are scored by their first tokens."""
        return True

    @property
    def is_tied(self) -> bool:
        """Whether a phrase has one vector for input and output."""
        return self.encoder_config.heads == "tied"

    @property
    def is_trained(self) -> bool:
        """Whether the encoder has been trained at all."""
        return self.encoder_config.trained_steps > 0

    def vocabulary(
        self,
        items: Iterable[PhraseItem] = (),
        *,
        source: PhraseSource | None = None,
        max_phrases: int | None = MAX_PHRASES,
    ) -> DynamicVocabulary:
        """Make a vocabulary of phrases from documents, phrase texts and phrases.

        Args:
            items: What to take phrases from.
            source: Finds the phrases of a document; all 2-8-token n-grams by default.
            max_phrases: Keep at most this many, those that save the most tokens; None for all.

        Returns:
            A vocabulary for this LM.
        """
        items = list(items) if isinstance(items, Iterator) else items
        phrases = collect_phrases(items, self.tokenizer, source, max_phrases)
        for phrase in phrases:
            if len(phrase) >= self.context_size:
                raise PhraseError(
                    f"phrase {phrase.text[:40]!r}… has {len(phrase)} tokens; the context of the "
                    f"LM has {self.context_size}. Cut it into shorter phrases."
                )
        return DynamicVocabulary(self.static_size, phrases, self._texts(items, phrases))

    def _texts(self, items: Iterable[PhraseItem], phrases: Sequence[Phrase]) -> list[Sequence[int]]:
        """Return the tokens of documents, and of the phrases that are in none of them."""
        documents = [item for item in items if isinstance(item, Document)]
        if not documents:
            return []
        names = {document.name for document in documents}
        others = [p.ids for p in phrases if not any(s.document in names for s in p.sources)]
        texts = [unwrapped(document.text) for document in documents]
        return [*(each.ids for each in self.tokenizer.encode_all_inside(texts)), *others]

    def encode(self, vocabulary: DynamicVocabulary) -> TableView | None:
        """Turn a vocabulary's phrases into vectors: the step between phrases and decoding.

        Each phrase is encoded once; vectors stay as long as the vocabulary lives. A vocabulary
        that has grown is encoded again at the price of its new phrases. One that never had a
        phrase has no table: None.
        """
        self.check_vocabulary(vocabulary)
        self._drop_stale_vectors()
        with self._lock:
            if vocabulary not in self._tables:
                self._tables[vocabulary] = PhraseTable(
                    self.vectors, self.head_bias, self.encoder_config.count_correction
                )
            table = self._tables[vocabulary]
        return table.sync(vocabulary)

    def has_table(self, vocabulary: DynamicVocabulary) -> bool:
        """Tell whether a vocabulary has been encoded as a whole."""
        with self._lock:
            return vocabulary in self._tables

    def check_vocabulary(self, vocabulary: DynamicVocabulary) -> None:
        """Refuse a vocabulary that was made for another LM."""
        if vocabulary.static_size != self.static_size:
            raise VocabularyError(
                f"the vocabulary was made for |V| = {vocabulary.static_size}, this LM has "
                f"{self.static_size}. Make it with lm.vocabulary(...)."
            )

    def attach(self, source: VectorSource) -> None:
        """Take phrase vectors from a source, such as a corpus, instead of encoding what it has.

        It is used as long as the encoder is the one that made its vectors; a source of another
        encoder is refused. Without an encoder phrases need no vectors, so nothing is taken.
        """
        if not self.has_encoder:
            return
        source.check_encoder(self.fingerprint())
        if source not in self._sources:
            self._sources.append(source)

    def vectors(self, phrases: Sequence[Phrase]) -> PhraseVectors[Matrix]:
        """Return the vectors of phrases, in order: stored, cached, or else encoded now.

        They have single precision, or that of a source if it has them all.
        """
        self._drop_stale_vectors()
        keys = [phrase.ids for phrase in phrases]
        missing = numpy.arange(len(keys))
        inputs = numpy.empty((len(keys), self.width), numpy.float32)
        outputs = inputs if self.is_tied else numpy.empty_like(inputs)
        sources = [s for s in self._sources if s.fingerprint == self.fingerprint()] if keys else []
        for find in [*(source.vectors for source in sources), self._cache.find]:
            if not missing.size:
                break
            indices, *sides = find([keys[index] for index in missing.tolist()])
            if len(indices) == len(keys):
                # All of them: no copy.
                return PhraseVectors(sides[0], sides[0] if self.is_tied else sides[1])
            for side, rows in zip((inputs, outputs), sides, strict=True):
                side[missing[indices]] = rows
            missing = numpy.delete(missing, indices)
        if missing.size:
            kept = sources[0].kept if sources else None
            fresh = self._made_vectors([phrases[index] for index in missing.tolist()], kept)
            inputs[missing] = fresh.inputs
            outputs[missing] = fresh.outputs
        return PhraseVectors(inputs, outputs)

    def _made_vectors(
        self, phrases: Sequence[Phrase], kept: KeptVectors | None
    ) -> PhraseVectors[Matrix]:
        """Return vectors that an earlier process kept, or encode them, and cache both."""
        version = self.parameter_version()
        made = self._kept_or_encoded(phrases, kept) if kept else self._encoded(phrases)
        with self._lock:
            # Not if the encoder was changed meanwhile.
            if version == self._encoder_version == self.parameter_version():
                self._cache.add([phrase.ids for phrase in phrases], *made)
        return made

    def _kept_or_encoded(
        self, phrases: Sequence[Phrase], kept: KeptVectors
    ) -> PhraseVectors[Matrix]:
        keys = [phrase.ids for phrase in phrases]
        inputs = numpy.empty((len(keys), self.width), numpy.float32)
        outputs = inputs if self.is_tied else numpy.empty_like(inputs)
        indices, inputs[indices], outputs[indices] = kept.find(keys)
        missing = numpy.delete(numpy.arange(len(keys)), indices)
        if missing.size:
            fresh = self._encoded([phrases[index] for index in missing.tolist()])
            sides = fresh[:1] if self.is_tied else fresh
            new = kept.add([keys[index] for index in missing.tolist()], sides)
            inputs[missing], outputs[missing] = new
        return PhraseVectors(inputs, outputs)

    def _encoded(self, phrases: Sequence[Phrase]) -> PhraseVectors[Matrix]:
        fresh = self.run_encoder(phrases)
        # NaN is both the lowest and the highest.
        if not all(numpy.isfinite([side.min(), side.max()]).all() for side in fresh):
            raise CheckpointError(
                f"the encoder of {self.name!r} computes vectors that are not finite (NaN or "
                "infinite): it is damaged, or its dtype is too small. Get a fresh copy, or load it "
                "with dtype float32."
            )
        return fresh

    def chat_prompt(self, message: str, system: str | None = None) -> list[int]:
        """Return a user's message in the model's chat template, as ids ready to be continued.

        Ids, because as text the template's special tokens would be added twice. Without a system
        message, the template's default holds.
        """
        for text in (message, "" if system is None else system):
            check_text(text, "message")
        if not self.has_chat_template:
            raise PromptError(f"{self.name!r} has no chat template. Use a plain prompt.")
        turns = [{"role": "system", "content": system}] if system else []
        return self.render_chat([*turns, {"role": "user", "content": message}])

    def forget(self) -> None:
        """Drop the vectors that were encoded for requests.

        Their last bits depend on what was encoded beside them: after this, no request depends on
        the ones before it.
        """
        with self._lock:
            self._tables.clear()
            self._cache.clear()

    def _drop_stale_vectors(self) -> None:
        version = self.parameter_version()
        with self._lock:
            if version != self._encoder_version:
                self._tables.clear()
                self._cache.clear()
                self._encoder_version = version
