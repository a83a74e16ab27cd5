"""DynamicLM: a causal LM, untouched, with a phrase encoder beside it (paper, section 2)."""

import hashlib
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.config import TRAINING_FREE, EncoderConfig, Profile
from univerb.errors import ModelError
from univerb.locations import DEFAULT_MODEL
from univerb.modeling.adapter import copy_adapter, load_adapter
from univerb.modeling.backbones import check_usable, load_backbone
from univerb.modeling.card import ADAPTER, adapter_beside, backbone_of, find_encoder, read_card
from univerb.modeling.chat_template import Turn
from univerb.modeling.checkpoint import describe, read_checkpoint, write_checkpoint
from univerb.modeling.conditional_table import ConditionalTable
from univerb.modeling.encoder import Embeddings, PhraseEncoder
from univerb.modeling.evidence import MAX_OVERLAP
from univerb.modeling.parameters import parameter_version
from univerb.modeling.phrase_model import PhraseModel
from univerb.modeling.phrase_table import Matrix, PhraseVectors, TableView
from univerb.modeling.scoring import Scoring
from univerb.modeling.table_tensors import TableTensors
from univerb.phrase import Phrase
from univerb.tokenizer import Tokenizer
from univerb.vocabulary import DynamicVocabulary

UNTRAINED_PROFILE = Profile(mode="unfold", tolerance=0.9, phrase_bias=6.0)
"""An untrained output head scores a phrase as its first token minus 3; the bias lets it be
proposed, and the tolerance leaves the rest to the LM."""
_COUNTS_SLOTS = ("mpt",)
"""Backbones whose biases depend on the number of KV cache slots between two rows."""


class DynamicLM(PhraseModel):
    """A causal LM that can read and write phrases as single vocabulary items.

    The model is the user's own object and stays as it is: with no phrases its logits and its
    text are bit for bit what they were.
    """

    engine = "torch"

    def __init__(
        self,
        model: PreTrainedModel,
        hf_tokenizer: HFTokenizer,
        encoder: PhraseEncoder | None,
        profile: Profile,
    ) -> None:
        added = hf_tokenizer.added_tokens_decoder.items()
        special = [token_id for token_id, token in added if token.special]
        tokenizer = Tokenizer(
            hf_tokenizer.backend_tokenizer, [*hf_tokenizer.all_special_ids, *special]
        )
        super().__init__(tokenizer, profile, model.name_or_path)
        self.model = model
        self._hf_tokenizer = hf_tokenizer
        self._encoder = encoder
        self.embeddings = Embeddings(model.get_input_embeddings(), model.get_output_embeddings())
        self.static_size, self.width = self.embeddings.output_weight.shape
        config = model.config.get_text_config()
        self.context_size = getattr(config, "max_position_embeddings", None) or 1 << 30
        has_sliding = getattr(config, "use_sliding_window", True)
        self.has_window = config.model_type in _COUNTS_SLOTS or bool(
            has_sliding and getattr(config, "sliding_window", None)
        )
        self._fingerprint: tuple[int, str] | None = None
        self._scoring: tuple[int, Scoring] | None = None
        self._conditional_tables: weakref.WeakKeyDictionary[TableView, ConditionalTable] = (
            weakref.WeakKeyDictionary()
        )
        self.adapter: Path | None = None
        """The folder of the adapter that was merged into the model."""
        self.trained_from: str | None = None
        """The LM that the model was before it was trained with its encoder, if it was."""

    def __repr__(self) -> str:
        name = self.model.name_or_path
        name = Path(name).name if Path(name).is_dir() else name
        origin = f", trained from {self.trained_from!r}" if self.trained_from else ""
        return f"{type(self).__name__}({name!r}{origin})"

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
            profile: Default options of a generation.

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
        encoder: bool = True,
        adapter: bool = False,
        device: str = "cpu",
        dtype: str = "float32",
        offline: bool | None = None,
    ) -> Self:
        """Load a saved encoder with its backbone, or a bare LM without one.

        This is `univerb.load` with the torch engine, which explains the options.
        """
        folder, full_name = find_encoder(name)
        own_backbone = backbone_of(folder) if folder else name
        model, tokenizer = load_backbone(
            backbone or own_backbone, device=device, dtype=dtype, offline=offline
        )
        adapter_folder = adapter_beside(folder, name) if adapter else None
        if adapter_folder:
            model = load_adapter(model, adapter_folder)
        check_usable(model, tokenizer)
        loaded = cls(model, tokenizer, None, TRAINING_FREE)
        if folder is None or not encoder:
            return loaded
        description = describe(model, loaded.tokenizer)
        loaded._encoder, profile = read_checkpoint(folder, model, description)
        if adapter_folder:
            changes = {"mode": "atomic", "phrase_bias": 0.0, "eagerness": 0.0}
            profile = profile.model_copy(update=changes)
        loaded.profile = profile
        loaded.adapter, loaded.name = adapter_folder, full_name
        if backbone is None:
            loaded.trained_from = read_card(folder).backbone.trained_from
        return loaded

    def save_pretrained(self, folder: str | Path, *, half: bool = False) -> None:
        """Save the encoder, its settings and its backbone's name; the backbone itself is not.

        An adapter that was loaded is saved beside it, with the profile for the LM without it.
        `half` writes half precision, for shipping; loading widens it again.
        """
        target = Path(folder).expanduser()
        profile = read_card(self.adapter.parent).profile if self.adapter else self.profile
        description = describe(self.model, self.tokenizer)
        description = description.model_copy(update={"trained_from": self.trained_from})
        write_checkpoint(target, self.encoder, description, profile, is_half=half)
        if self.adapter:
            copy_adapter(self.adapter, target / ADAPTER)

    @property
    def has_encoder(self) -> bool:
        """Whether phrases have vectors."""
        return self._encoder is not None

    @property
    def encoder(self) -> PhraseEncoder:
        """The phrase encoder."""
        if self._encoder is None:
            raise ModelError(
                f"{self.name!r} has no encoder. Train one (univerb train), make a fresh one with "
                "DynamicLM.wrap(model, tokenizer), or use mode 'unfold' or 'verify', which need "
                "none."
            )
        return self._encoder

    @property
    def encoder_config(self) -> EncoderConfig:
        """The settings of the phrase encoder; the defaults where there is none."""
        return self._encoder.config if self._encoder else EncoderConfig()

    @property
    def parameter_count(self) -> int:
        """How many numbers the LM is made of, without the encoder."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text, as the model's generation config says."""
        ids = self.model.generation_config.eos_token_id
        return frozenset([ids] if isinstance(ids, int) else ids or [])

    @property
    def hf_tokenizer(self) -> HFTokenizer:
        """The LM's tokenizer as transformers has it."""
        return self._hf_tokenizer

    @property
    def has_chat_template(self) -> bool:
        """Whether the LM was made for messages."""
        return bool(self._hf_tokenizer.chat_template)

    def render_chat(self, turns: Sequence[Turn]) -> list[int]:
        """Return messages in the LM's chat template, as ids ready to be continued."""
        messages = [dict(turn) for turn in turns]
        encoded = self._hf_tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return list(encoded["input_ids"])

    def tensors(self, vocabulary: DynamicVocabulary) -> TableTensors | None:
        """Encode a vocabulary; return its table as tensors, None if it never had a phrase."""
        view = self.encode(vocabulary)
        if view is None:
            return None
        ordered, like = view.in_order(), self.embeddings.output_weight
        columns = (ordered.inputs, ordered.outputs, ordered.bias)
        inputs, outputs, bias = (torch.from_numpy(column).to(like) for column in columns)
        return TableTensors(inputs, outputs, bias, self._conditional_table(view, vocabulary))

    def _conditional_table(
        self, view: TableView, vocabulary: DynamicVocabulary
    ) -> ConditionalTable | None:
        """Return a table as trees, which are built once for each version of a vocabulary."""
        if not self.scoring.is_conditional:
            return None
        if view not in self._conditional_tables:
            phrases = vocabulary.snapshot().phrases
            self._conditional_tables[view] = ConditionalTable(self, view.in_order(), phrases)
        return self._conditional_tables[view]

    def parameter_version(self) -> int:
        """Return a number that differs once the encoder or the LM's rows are changed."""
        rows = (*self.embeddings.input.parameters(), self.embeddings.output_weight)
        encoder = self._encoder
        parts = (*encoder.parameters(), *encoder.buffers()) if encoder is not None else ()
        return parameter_version((*parts, *rows))

    def fingerprint(self) -> str:
        """Return a hash of all that phrase vectors depend on: the encoder and the LM's rows."""
        version = self.parameter_version()
        if self._fingerprint is None or self._fingerprint[0] != version:
            content = hashlib.sha256(self.encoder_config.identity().encode())
            weights = self._encoder.state_dict() if self._encoder is not None else {}
            rows = {"input": self.embeddings.input.weight, "output": self.embeddings.output_weight}
            for name, tensor in [*sorted(weights.items()), *rows.items()]:
                assert isinstance(tensor, Tensor)
                content.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                flat = tensor.detach().cpu().contiguous().reshape(-1)
                content.update(flat.view(torch.uint8).numpy().data)
            self._fingerprint = version, content.hexdigest()[:32]
        return self._fingerprint[1]

    @property
    def scoring(self) -> Scoring:
        """How phrases are scored against the LM's states."""
        head = self._encoder.conditional if self._encoder is not None else None
        version = self.parameter_version()
        if self._scoring is None or self._scoring[0] != version:
            state = head.state_dict() if head is not None else {}
            tensors = {name: tensor.float().cpu().numpy() for name, tensor in state.items()}
            self._scoring = version, Scoring(tensors)
        return self._scoring[1]

    def head_bias(self) -> float:
        """Return what the encoder adds to the score of every phrase."""
        return float(self.encoder.heads.bias.detach()) if self._encoder is not None else 0.0

    def run_encoder(self, phrases: Sequence[Phrase]) -> PhraseVectors[Matrix]:
        """Encode phrases, whether or not their vectors are stored somewhere."""
        with torch.inference_mode(mode=False), torch.no_grad():
            return self.encoder.encode_to_numpy(phrases, self.embeddings)

    def forward(self, ids: Tensor, vocabulary: DynamicVocabulary | None = None) -> Tensor:
        """Return logits (B, T, V + P) of unit ids (B, T): tokens, or phrases as |V| + index."""
        table = self.tensors(vocabulary) if vocabulary is not None else None
        if vocabulary is None or table is None:
            logits: Tensor = self.model(input_ids=ids).logits
            return logits
        is_phrase = ids >= self.static_size
        inputs = self.embeddings.input(ids.masked_fill(is_phrase, 0))
        inputs[is_phrase] = table.inputs[ids[is_phrase] - self.static_size]
        hidden = self.model.base_model(inputs_embeds=inputs, use_cache=False).last_hidden_state
        before = [end for row in ids.tolist() for end in _text_ends(row, vocabulary)]
        return table.unit_logits(self.embeddings.output(hidden), hidden, before)


def _text_ends(units: Sequence[int], vocabulary: DynamicVocabulary) -> Iterator[list[int]]:
    """Yield the last base tokens after each unit."""
    text: list[int] = []
    for unit in units:
        text += vocabulary.phrase(unit).ids if unit >= vocabulary.static_size else (unit,)
        yield text[-MAX_OVERLAP:]
