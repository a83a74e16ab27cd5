"""What an LM with phrases is, whatever computes it: names, vectors and where they come from."""

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy
from numpy.typing import NDArray

from univerb.config import Profile
from univerb.errors import PhraseError, PromptError, VocabularyError
from univerb.modeling.phrase_table import PhraseTable, TableView, VectorPair
from univerb.modeling.vector_cache import VectorCache
from univerb.phrase import Phrase
from univerb.phrases.collection import PhraseItem, collect_phrases
from univerb.phrases.ngrams import PhraseSource
from univerb.tokenizer import Tokenizer
from univerb.vocabulary import DynamicVocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as HFTokenizer


class VectorSource(Protocol):
    """Somewhere that phrase vectors were put, such as a corpus on disk."""

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
        """Return which phrases it has, as places in `keys`, and their two kinds of vectors."""
        ...


class PhraseModel(ABC):
    """An LM and its phrases; a subclass says what the LM is and how a phrase is encoded."""

    engine: str
    """Who computes: the name of a module in `decoding.engines`."""

    def __init__(self, tokenizer: Tokenizer, profile: Profile, name: str) -> None:
        self.tokenizer = tokenizer
        self.profile = profile
        self.name = name
        """What to load it by."""
        self._tables: weakref.WeakKeyDictionary[DynamicVocabulary, PhraseTable] = (
            weakref.WeakKeyDictionary()
        )
        self._sources: list[VectorSource] = []
        self._encoded = VectorCache()
        """What requests had encoded, for those that come after them."""
        self._encoder_stamp = -1
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def static_size(self) -> int:
        """|V|, counted in rows of the output matrix: the first phrase has this id."""

    @property
    @abstractmethod
    def context_size(self) -> int:
        """How many positions the LM can see."""

    @property
    @abstractmethod
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text, as the model's generation config says."""

    @property
    @abstractmethod
    def has_window(self) -> bool:
        """Whether some layers see only the last so many slots of the KV cache, or count them."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers a phrase's vector has."""

    @property
    @abstractmethod
    def is_tied(self) -> bool:
        """Whether a phrase has one vector for input and output."""

    @property
    @abstractmethod
    def has_count_correction(self) -> bool:
        """Whether phrases that begin alike share what their first token gives them."""

    @property
    @abstractmethod
    def is_trained(self) -> bool:
        """Whether the encoder has been trained at all."""

    @property
    @abstractmethod
    def hf_tokenizer(self) -> "HFTokenizer":
        """The LM's tokenizer as transformers has it, for its chat template."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of all that phrase vectors depend on: the encoder and the LM's rows."""

    @abstractmethod
    def stamp(self) -> int:
        """Return a number that rises when something that vectors depend on is changed."""

    @abstractmethod
    def phrase_bias(self) -> float:
        """Return what the encoder adds to the score of every phrase."""

    @abstractmethod
    def encode_fresh(self, phrases: Sequence[Phrase]) -> VectorPair:
        """Encode phrases that nobody has the vectors of."""

    def vocabulary(
        self,
        items: Iterable[PhraseItem] = (),
        *,
        source: PhraseSource | None = None,
        max_phrases: int | None = None,
    ) -> DynamicVocabulary:
        """Make a vocabulary of phrases from documents, phrase texts and phrases.

        Args:
            items: What to take phrases from.
            source: How to find the phrases of a document; all 2-8-token n-grams by default.
            max_phrases: Keep at most so many, most often found first.

        Returns:
            A vocabulary for this LM. Its phrases are encoded when it is first used.
        """
        phrases = collect_phrases(items, self.tokenizer, source, max_phrases)
        for phrase in phrases:
            if len(phrase) >= self.context_size:
                raise PhraseError(
                    f"phrase {phrase.text[:40]!r}… has {len(phrase)} tokens; the context of the "
                    f"LM has {self.context_size}. Cut it into shorter phrases."
                )
        return DynamicVocabulary(self.static_size, phrases)

    def table(self, vocabulary: DynamicVocabulary) -> TableView | None:
        """Return the vectors of a vocabulary as it is now.

        Args:
            vocabulary: Made for this LM. Its phrases are encoded once and kept as long as it lives.

        Returns:
            Its rows, or None if it never had a phrase.

        Raises:
            VocabularyError: If it was made for another LM.
        """
        if vocabulary.static_size != self.static_size:
            raise VocabularyError(
                f"the vocabulary was made for |V| = {vocabulary.static_size}, this LM has "
                f"{self.static_size}. Make it with lm.vocabulary(...)."
            )
        self._follow_encoder()
        with self._lock:
            if vocabulary not in self._tables:
                self._tables[vocabulary] = PhraseTable(
                    self.vectors, self.phrase_bias, self.has_count_correction
                )
            table = self._tables[vocabulary]
        return table.sync(vocabulary)

    def attach(self, source: VectorSource) -> None:
        """Take phrase vectors from a source instead of encoding what it has.

        Args:
            source: A corpus, for example. It is used as long as the encoder is the one that made
                its vectors.

        Raises:
            CorpusError: If another encoder made them.
        """
        source.check_encoder(self.fingerprint())
        if source not in self._sources:
            self._sources.append(source)

    def vectors(self, phrases: Sequence[Phrase]) -> VectorPair:
        """Return input and output vectors of phrases, in order, from a source where one has them.

        Args:
            phrases: What to encode.

        Returns:
            Their vectors; single precision, or as a source keeps them if one has them all.
        """
        self._follow_encoder()
        keys = [phrase.ids for phrase in phrases]
        missing = numpy.arange(len(keys))
        inputs = numpy.empty((len(keys), self.width), numpy.float32)
        outputs = inputs if self.is_tied else numpy.empty_like(inputs)
        sources = [s for s in self._sources if s.fingerprint == self.fingerprint()] if keys else []
        for find in [*(source.vectors for source in sources), self._encoded.find]:
            if not missing.size:
                break
            places, *sides = find([keys[at] for at in missing.tolist()])
            if len(places) == len(keys):
                # All of them: no copy.
                return VectorPair(sides[0], sides[0] if self.is_tied else sides[1])
            for side, rows in zip((inputs, outputs), sides, strict=True):
                side[missing[places]] = rows
            missing = numpy.delete(missing, places)
        if missing.size:
            stamp = self.stamp()
            rest = self.encode_fresh([phrases[at] for at in missing.tolist()])
            inputs[missing] = rest.inputs
            outputs[missing] = rest.outputs
            with self._lock:
                # Not what an encoder made that was changed meanwhile.
                if stamp == self._encoder_stamp == self.stamp():
                    known = [keys[at] for at in missing.tolist()]
                    self._encoded.add(known, rest.inputs, rest.outputs)
        return VectorPair(inputs, outputs)

    def chat_prompt(self, message: str, system: str | None = None) -> list[int]:
        """Return a user's message in the model's chat template, as ids ready to be continued.

        Args:
            message: What the user says.
            system: What the model is told first; the template's own default if None.

        Returns:
            The prompt's token ids: as text the template's special tokens would be added twice.

        Raises:
            PromptError: If the tokenizer has no chat template.
        """
        if not self.hf_tokenizer.chat_template:
            raise PromptError(f"{self.name!r} has no chat template. Use a plain prompt.")
        turns = [{"role": "system", "content": system}] if system else []
        turns.append({"role": "user", "content": message})
        encoded = self.hf_tokenizer.apply_chat_template(turns, add_generation_prompt=True)
        return list(encoded["input_ids"])

    def forget(self) -> None:
        """Drop the vectors that were encoded for requests.

        Their last bits depend on what was encoded beside them: after this, no request depends on
        the ones before it.
        """
        with self._lock:
            self._tables.clear()
            self._encoded.clear()

    def _follow_encoder(self) -> None:
        """Forget vectors that an older state of the encoder made."""
        stamp = self.stamp()
        with self._lock:
            if stamp != self._encoder_stamp:
                self._tables.clear()
                self._encoded.clear()
                self._encoder_stamp = stamp
