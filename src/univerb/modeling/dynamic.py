"""DynamicLM: a causal LM, untouched, with a phrase encoder beside it (paper, section 2)."""

import hashlib
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.config import EncoderConfig, Profile
from univerb.errors import CheckpointError, PhraseError, PromptError, VocabularyError
from univerb.locations import DEFAULT_MODEL, packaged_encoder
from univerb.modeling.adapter import copy_adapter, load_adapter
from univerb.modeling.backbones import check_usable, load_backbone
from univerb.modeling.checkpoint import (
    ADAPTER,
    CARD,
    WEIGHTS,
    adapter_beside,
    backbone_of,
    describe,
    read_card,
    read_checkpoint,
    write_checkpoint,
)
from univerb.modeling.encoder import Embeddings, PhraseEncoder, Vectors
from univerb.modeling.heads import TiedHead
from univerb.modeling.table import PhraseTable, TableView
from univerb.phrase import Phrase
from univerb.sources.collection import PhraseItem, collect_phrases
from univerb.sources.ngrams import PhraseSource
from univerb.tokenizer import Tokenizer
from univerb.vocabulary import DynamicVocabulary

UNTRAINED_PROFILE = Profile(mode="unfold", tolerance=0.9, phrase_bias=6.0)
"""An untrained output head scores a phrase as its first token minus 3; the bias lets it be
proposed, and the tolerance leaves the rest to the LM."""


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


class DynamicLM:
    """A causal LM that can read and write phrases as single vocabulary items.

    The model is the user's own object and stays as it is: with no phrases its logits and its
    text are bit for bit what they were.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        hf_tokenizer: HFTokenizer,
        encoder: PhraseEncoder,
        profile: Profile,
    ) -> None:
        self.model = model
        self.hf_tokenizer = hf_tokenizer
        self.encoder = encoder
        self.profile = profile
        added = hf_tokenizer.added_tokens_decoder.items()
        special = [token_id for token_id, token in added if token.special]
        self.tokenizer = Tokenizer(
            hf_tokenizer.backend_tokenizer, [*hf_tokenizer.all_special_ids, *special]
        )
        self.embeddings = Embeddings(model.get_input_embeddings(), model.get_output_embeddings())
        self._tables: weakref.WeakKeyDictionary[DynamicVocabulary, PhraseTable] = (
            weakref.WeakKeyDictionary()
        )
        self._encoder_stamp = -1
        self._fingerprint: tuple[int, str] | None = None
        self._sources: list[VectorSource] = []
        self.name: str = model.name_or_path
        """What to load it by."""
        self.adapter: Path | None = None
        """Where the adapter that was added to the model lies."""
        self._lock = threading.Lock()

    @classmethod
    def wrap(
        cls,
        model: PreTrainedModel,
        tokenizer: HFTokenizer,
        encoder: PhraseEncoder | EncoderConfig | None = None,
        profile: Profile | None = None,
    ) -> Self:
        """Put a phrase encoder beside a model that you loaded yourself.

        Args:
            model: Any HF causal LM; it is neither changed nor copied.
            tokenizer: Its fast tokenizer.
            encoder: An encoder, or settings for a fresh one made of the model's first layers.
            profile: How to decode by default.

        Returns:
            The pair.

        Raises:
            ModelError: If the model or tokenizer cannot be used.
        """
        check_usable(model, tokenizer)
        if not isinstance(encoder, PhraseEncoder):
            encoder = PhraseEncoder.from_backbone(model, encoder)
        default = Profile() if encoder.config.trained_steps else UNTRAINED_PROFILE
        return cls(model, tokenizer, encoder, profile or default)

    @classmethod
    def from_pretrained(
        cls,
        name: str = DEFAULT_MODEL,
        *,
        backbone: str | None = None,
        adapter: bool = False,
        device: str = "cpu",
        dtype: str = "float32",
        offline: bool | None = None,
    ) -> Self:
        """Load a saved encoder with its backbone, or a bare LM with an untrained encoder.

        Args:
            name: A folder that `save_pretrained` wrote, or a backbone (folder, default model's
                name or Hub id).
            backbone: Another place for the encoder's backbone than the one it was saved with.
            adapter: Add the LoRA adapter that lies beside the encoder, trained for `atomic`, which
                then is the mode by default.
            device: Where to put it, as torch names devices.
            dtype: float32, bfloat16 or float16.
            offline: Never contact the Hub; by default as the environment says.

        Returns:
            The pair, ready to generate.
        """
        given = Path(name).expanduser()
        folder = given if (given / CARD).is_file() else packaged_encoder(name)
        if folder is None and (given / WEIGHTS).is_file():
            raise CheckpointError(
                f"{name!r} has {WEIGHTS} but no {CARD}: its save was interrupted. Save it again."
            )
        lm_name = backbone or (backbone_of(folder) if folder else name)
        model, tokenizer = load_backbone(lm_name, device=device, dtype=dtype, offline=offline)
        # What load_backbone was given, so that a saved encoder finds its way back.
        is_folder = Path(lm_name).expanduser().is_dir()
        model.name_or_path = str(Path(lm_name).expanduser().resolve()) if is_folder else lm_name
        place = adapter_beside(folder, name) if adapter else None
        if place:
            model = load_adapter(model, place)
        if folder is None:
            return cls.wrap(model, tokenizer)
        check_usable(model, tokenizer)
        description = describe(model, Tokenizer(tokenizer.backend_tokenizer))
        encoder, profile = read_checkpoint(folder, model, description)
        if place:
            profile = profile.model_copy(update={"mode": "atomic", "phrase_bias": 0.0})
        loaded = cls(model, tokenizer, encoder, profile)
        loaded.adapter = place
        loaded.name = str(given.resolve()) if folder == given else name
        return loaded

    def save_pretrained(self, folder: str | Path, *, half: bool = False) -> None:
        """Save the encoder, its settings and its backbone's name; the backbone itself is not.

        An adapter that was loaded is saved beside it, with the profile for the LM without it.

        Args:
            folder: Where to; made if it is not there.
            half: Write half precision, for shipping.
        """
        description = describe(self.model, self.tokenizer)
        place = Path(folder).expanduser()
        profile = read_card(self.adapter.parent).profile if self.adapter else self.profile
        write_checkpoint(place, self.encoder, description, profile, is_half=half)
        if self.adapter:
            copy_adapter(self.adapter, place / ADAPTER)

    @property
    def static_size(self) -> int:
        """|V|, counted in rows of the output matrix: the first phrase has this id."""
        return int(self.embeddings.output_weight.shape[0])

    @property
    def context_size(self) -> int:
        """How many positions the LM can see."""
        config = self.model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", None) or 1 << 30)

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text, as the model's generation config says."""
        given = self.model.generation_config.eos_token_id
        return frozenset([given] if isinstance(given, int) else given or [])

    @property
    def has_window(self) -> bool:
        """Whether some layers see only the last so many slots of the KV cache."""
        config = self.model.config.get_text_config()
        uses_it = getattr(config, "use_sliding_window", True)
        return bool(getattr(config, "sliding_window", None) and uses_it)

    @property
    def is_trained(self) -> bool:
        """Whether the encoder has been trained at all."""
        return self.encoder.config.trained_steps > 0

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

    def rows(self, vocabulary: DynamicVocabulary) -> TableView | None:
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
        with self._lock:
            stamp = self._stamp()
            if stamp != self._encoder_stamp:
                self._tables.clear()
                self._encoder_stamp = stamp
            if vocabulary not in self._tables:
                self._tables[vocabulary] = PhraseTable(
                    self.encode,
                    bias=lambda: float(self.encoder.heads.bias),
                    count_correction=self.encoder.config.count_correction,
                )
            table = self._tables[vocabulary]
        return table.sync(vocabulary)

    def _stamp(self) -> int:
        # Training changes parameters in place and counts it: rows of older ones are stale.
        rows = (self.embeddings.input.weight, self.embeddings.output_weight)
        own = (*self.encoder.parameters(), *self.encoder.buffers())
        return sum(tensor._version for tensor in (*own, *rows))

    @property
    def width(self) -> int:
        """How many numbers a phrase's vector has."""
        return int(self.embeddings.output_weight.shape[1])

    @property
    def is_tied(self) -> bool:
        """Whether a phrase has one vector for input and output."""
        return isinstance(self.encoder.heads, TiedHead)

    def fingerprint(self) -> str:
        """Return a hash of all that phrase vectors depend on: the encoder and the LM's rows."""
        stamp = self._stamp()
        if self._fingerprint is None or self._fingerprint[0] != stamp:
            content = hashlib.sha256(self.encoder.config.model_dump_json().encode())
            rows = {"input": self.embeddings.input.weight, "output": self.embeddings.output_weight}
            for name, tensor in [*sorted(self.encoder.state_dict().items()), *rows.items()]:
                assert isinstance(tensor, Tensor)
                content.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                plain = tensor.detach().cpu().contiguous().reshape(-1)
                content.update(plain.view(torch.uint8).numpy().data)
            self._fingerprint = stamp, content.hexdigest()[:32]
        return self._fingerprint[1]

    def attach(self, source: VectorSource) -> None:
        """Take phrase vectors from a source instead of encoding what it has.

        Args:
            source: A corpus, for example. It is used as long as the encoder is the one that made
                its vectors.

        Raises:
            StoreError: If another encoder made them.
        """
        source.check_encoder(self.fingerprint())
        if source not in self._sources:
            self._sources.append(source)

    def encode(self, phrases: Sequence[Phrase]) -> Vectors:
        """Return input and output vectors of phrases, in order, from a source where one has them.

        Args:
            phrases: What to encode.

        Returns:
            Their vectors.
        """
        sources = [s for s in self._sources if s.fingerprint == self.fingerprint()]
        if not sources or not phrases:
            return self.encoder.encode(phrases, self.embeddings)
        like = self.embeddings.output_weight
        inputs = like.new_empty(len(phrases), self.width)
        outputs = inputs if self.is_tied else torch.empty_like(inputs)
        missing = numpy.arange(len(phrases))
        for source in sources:
            places, *found = source.vectors([phrases[i].ids for i in missing.tolist()])
            sides = [torch.from_numpy(rows).to(like) for rows in found]
            if len(places) == len(phrases):
                # All of them: no copy.
                return Vectors(sides[0], sides[0] if self.is_tied else sides[1])
            for side, rows in zip((inputs, outputs), sides, strict=True):
                side[missing[places]] = rows
            missing = numpy.delete(missing, places)
        if missing.size:
            rest = self.encoder.encode([phrases[i] for i in missing.tolist()], self.embeddings)
            inputs[missing] = rest.inputs
            outputs[missing] = rest.outputs
        return Vectors(inputs, outputs)

    def forward(self, ids: Tensor, vocabulary: DynamicVocabulary | None = None) -> Tensor:
        """Score every position against V' = V + P.

        Args:
            ids: Unit ids (B, T): tokens, or phrases as |V| + index.
            vocabulary: The phrases; None for the bare LM.

        Returns:
            Logits (B, T, V + P).
        """
        view = self.rows(vocabulary) if vocabulary is not None else None
        if view is None:
            logits: Tensor = self.model(input_ids=ids).logits
            return logits
        is_phrase = ids >= self.static_size
        inputs = self.embeddings.input(ids.masked_fill(is_phrase, 0))
        inputs[is_phrase] = view.inputs[ids[is_phrase] - self.static_size]
        hidden = self.model.base_model(inputs_embeds=inputs, use_cache=False).last_hidden_state
        return torch.cat(
            [self.embeddings.output(hidden), hidden @ view.outputs.T + view.bias], dim=-1
        )

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
