"""DynamicLM: a causal LM, untouched, with a phrase encoder beside it (paper, section 2)."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.config import EncoderConfig, Profile
from univerb.errors import CheckpointError
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
from univerb.modeling.parameters import parameter_version
from univerb.modeling.phrase_model import PhraseModel
from univerb.modeling.phrase_table import VectorPair
from univerb.phrase import Phrase
from univerb.tokenizer import Tokenizer
from univerb.vocabulary import DynamicVocabulary

UNTRAINED_PROFILE = Profile(mode="unfold", tolerance=0.9, phrase_bias=6.0)
"""An untrained output head scores a phrase as its first token minus 3; the bias lets it be
proposed, and the tolerance leaves the rest to the LM."""
_COUNTS_SLOTS = ("mpt",)
"""Backbones whose biases depend on how many slots of the KV cache lie between two rows."""


class Rows(NamedTuple):
    """The vectors of a vocabulary where the LM is; row i belongs to phrase id V + i for ever."""

    version: int
    inputs: Tensor
    """(P, d), fed when a phrase is read."""
    outputs: Tensor
    """(P, d), scored against the LM's hidden state."""
    bias: Tensor
    """(P,), added to the scores; -inf for phrases that are not active."""
    first: Tensor
    """(P,), each phrase's first token id."""


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
        encoder: PhraseEncoder,
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
        self.encoder = encoder
        self.embeddings = Embeddings(model.get_input_embeddings(), model.get_output_embeddings())
        self._fingerprint: tuple[int, str] | None = None
        self.adapter: Path | None = None
        """Where the adapter that was added to the model lies."""

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
        """Whether some layers see only the last so many slots of the KV cache, or count them."""
        config = self.model.config.get_text_config()
        if config.model_type in _COUNTS_SLOTS:
            return True
        uses_it = getattr(config, "use_sliding_window", True)
        return bool(getattr(config, "sliding_window", None) and uses_it)

    @property
    def hf_tokenizer(self) -> HFTokenizer:
        """The LM's tokenizer as transformers has it."""
        return self._hf_tokenizer

    @property
    def is_trained(self) -> bool:
        """Whether the encoder has been trained at all."""
        return self.encoder.config.trained_steps > 0

    def rows(self, vocabulary: DynamicVocabulary) -> Rows | None:
        """Return the vectors of a vocabulary as it is now, as tensors, in the order of its ids.

        Args:
            vocabulary: Made for this LM. Its phrases are encoded once and kept as long as it lives.

        Returns:
            Its rows, or None if it never had a phrase.
        """
        view = self.table(vocabulary)
        if view is None:
            return None
        if not view.is_plain:
            view = view.in_order()
        like = self.embeddings.output_weight
        inputs, outputs = (torch.from_numpy(side).to(like) for side in (view.inputs, view.outputs))
        bias = torch.from_numpy(view.bias).to(like)
        return Rows(
            view.version, inputs, outputs, bias, torch.from_numpy(view.first).to(like.device)
        )

    def stamp(self) -> int:
        """Return a number that is another one when the encoder or the LM's rows are changed."""
        # Training changes parameters in place and counts it: rows of older ones are stale.
        rows = (*self.embeddings.input.parameters(), self.embeddings.output_weight)
        return parameter_version((*self.encoder.parameters(), *self.encoder.buffers(), *rows))

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
        stamp = self.stamp()
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

    def phrase_bias(self) -> float:
        """Return what the encoder adds to the score of every phrase."""
        return float(self.encoder.heads.bias.detach())

    @property
    def has_count_correction(self) -> bool:
        """Whether phrases that begin alike share what their first token gives them."""
        return self.encoder.config.count_correction

    def encode(self, phrases: Sequence[Phrase]) -> Vectors:
        """Return input and output vectors of phrases, in order, from a source where one has them.

        Args:
            phrases: What to encode.

        Returns:
            Their vectors.
        """
        found = self.vectors(phrases)
        like = self.embeddings.output_weight
        outputs = torch.from_numpy(found.outputs).to(like)
        return Vectors(
            outputs if self.is_tied else torch.from_numpy(found.inputs).to(like), outputs
        )

    def encode_fresh(self, phrases: Sequence[Phrase]) -> VectorPair:
        """Encode phrases that nobody has the vectors of."""
        with torch.inference_mode(mode=False), torch.no_grad():
            made = self.encoder.encode(phrases, self.embeddings)
        outputs = made.outputs.float().cpu().numpy()
        return VectorPair(outputs if self.is_tied else made.inputs.float().cpu().numpy(), outputs)

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
