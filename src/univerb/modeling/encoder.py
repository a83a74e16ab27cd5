"""The causal phrase encoder: any text span to a vector (paper, section 2.2).

Because it is causal, one pass over a window gives the vector of every prefix of it: see
`encoder_plan`.
"""

import copy
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from univerb.config import EncoderConfig
from univerb.errors import PhraseError
from univerb.modeling.conditional import ConditionalHead
from univerb.modeling.encoder_plan import Key, Plan, passes, plan
from univerb.modeling.heads import Heads, SplitHeads, TiedHead, make_heads
from univerb.modeling.phrase_table import Matrix, PhraseVectors
from univerb.phrase import Phrase
from univerb.tokenizer import Tokenizer


class Embeddings(NamedTuple):
    """The LM's two embedding layers, which the heads correct and a shared encoder reads."""

    input: nn.Module
    output: nn.Module

    @property
    def output_weight(self) -> Tensor:
        """The output matrix, (V, d)."""
        weight = self.output.weight
        assert isinstance(weight, Tensor)
        return weight


class PhraseEncoder(nn.Module):
    """A causal Transformer body and the heads on it.

    The body is either the backbone's first layers, reading the LM's own token embeddings, or
    another model with a tokenizer and embeddings of its own.
    """

    def __init__(
        self,
        body: PreTrainedModel,
        heads: Heads,
        config: EncoderConfig,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__()
        self.body = body
        self.heads = heads
        self.conditional: ConditionalHead | None = None
        """Scores states in the conditional form of the choice."""
        if config.form == "conditional":
            size = heads.output.out_features if isinstance(heads, SplitHeads) else 0
            self.conditional = ConditionalHead(size, -config.bias, config.votes)
        self.config = config
        self.tokenizer = tokenizer
        """The body's own, or None if it reads the LM's tokens and embeddings."""

    @classmethod
    def from_backbone(cls, model: PreTrainedModel, config: EncoderConfig | None = None) -> Self:
        """Begin as a copy of a causal LM's first layers, sharing its token embeddings."""
        config = config or EncoderConfig()
        body = shallow_body(model, config.layers)
        embeddings = Embeddings(model.get_input_embeddings(), model.get_output_embeddings())
        return cls.from_model(body, None, embeddings, config)

    @classmethod
    def from_model(
        cls,
        body: PreTrainedModel,
        tokenizer: Tokenizer | None,
        embeddings: Embeddings,
        config: EncoderConfig | None = None,
    ) -> Self:
        """Begin as another causal model, which reads the phrase's text through its tokenizer.

        Args:
            body: A base model (`AutoModel`), such as GPT-2 for a TinyLlama backbone.
            tokenizer: The body's; None if it reads the LM's tokens and embeddings.
            embeddings: The LM's embedding layers.
            config: Heads; the depth is the body's.

        Returns:
            An encoder with fresh heads.
        """
        config = config or EncoderConfig()
        rows = embeddings.output_weight.detach()
        heads = make_heads(body.config.get_text_config().hidden_size, rows.shape[1], config)
        encoder = cls(body, heads, config, tokenizer).to(device=rows.device, dtype=rows.dtype)
        encoder.eval()
        if isinstance(heads, TiedHead):
            size = rows.shape[0] if tokenizer is None else body.config.vocab_size
            sample = torch.arange(0, size, max(size // 256, 1), device=rows.device)
            with torch.no_grad():
                hidden = encoder.hidden_states(sample[:, None], embeddings)[:, -1]
            heads.match_norm(hidden, float(rows.norm(dim=-1).mean()))
        return encoder

    @property
    def max_tokens(self) -> int:
        """The longest phrase that the body can read, in its own tokens."""
        return int(getattr(self.body.config.get_text_config(), "max_position_embeddings", 1 << 20))

    def encode(self, phrases: Sequence[Phrase], embeddings: Embeddings) -> PhraseVectors[Tensor]:
        """Encode phrases, sharing the passes of those that begin alike."""
        hidden = self.states(phrases, embeddings)
        device = hidden.device
        first, last = (
            torch.tensor([phrase.ids[at] for phrase in phrases], device=device) for at in (0, -1)
        )
        base = self.output_base(first, embeddings)
        return PhraseVectors(*self.heads(hidden, embeddings.input(last), base))

    def output_base(self, first: Tensor, embeddings: Embeddings) -> Tensor:
        """Return what output vectors (P, d) begin as.

        In the flat form, the rows of their first tokens (P,); in the conditional form a fresh
        encoder says nothing of phrases that begin alike.
        """
        rows = embeddings.output_weight[first]
        return rows if self.conditional is None else torch.zeros_like(rows)

    def encode_to_numpy(
        self, phrases: Sequence[Phrase], embeddings: Embeddings
    ) -> PhraseVectors[Matrix]:
        """Encode phrases to single-precision arrays; one array for both sides if tied."""
        sides = self.encode(phrases, embeddings)
        outputs = sides.outputs.float().cpu().numpy()
        is_tied = sides.inputs is sides.outputs
        return PhraseVectors(outputs if is_tied else sides.inputs.float().cpu().numpy(), outputs)

    def states(self, phrases: Sequence[Phrase], embeddings: Embeddings) -> Tensor:
        """Return the body's state (P, d_e) at each phrase's end, which the heads read."""
        keys = [self._key(phrase) for phrase in phrases]
        for phrase, key in zip(phrases, keys, strict=True):
            if not key:
                raise PhraseError(f"phrase {phrase.ids} has no text for the encoder. Drop it.")
            if len(key) > self.max_tokens:
                raise PhraseError(
                    f"phrase {phrase.text[:40]!r}… has {len(key)} tokens; the encoder reads at "
                    f"most {self.max_tokens}. Cut it into shorter phrases."
                )
        return self._gather(plan(keys), embeddings)

    def hidden_states(self, windows: Tensor, embeddings: Embeddings) -> Tensor:
        """Run the body over windows padded to one length, (R, S) ids to (R, S, d_e) states."""
        if self.tokenizer is None:
            output = self.body(inputs_embeds=embeddings.input(windows), use_cache=False)
        else:
            output = self.body(input_ids=windows, use_cache=False)
        states: Tensor = output.last_hidden_state
        return states

    def _key(self, phrase: Phrase) -> Key:
        if self.tokenizer is None:
            return phrase.ids
        return tuple(self.tokenizer.encode(phrase.text).ids)

    def _gather(self, layout: Plan, embeddings: Embeddings) -> Tensor:
        """Return the state at each key's last token, (P, d_e)."""
        device = self.body.device
        size = self.body.config.get_text_config().hidden_size
        result = torch.empty(len(layout.row), size, device=device, dtype=self.body.dtype)
        for windows, keys, row, column in passes(layout):
            states = self.hidden_states(torch.tensor(windows, device=device), embeddings)
            result[keys] = states[row, column]
        return result


def shallow_body(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Copy a causal LM's first layers and final norm, without its token embeddings."""
    config = copy.deepcopy(model.config.get_text_config())
    config.num_hidden_layers = min(layers, config.num_hidden_layers)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    # The LM's embeddings are passed in; one row satisfies the constructor.
    config.vocab_size, config.pad_token_id = 1, None
    body = AutoModel.from_config(config, dtype=model.dtype)
    shapes = {name: tensor.shape for name, tensor in body.state_dict().items()}
    source = model.base_model.state_dict()
    shared = {name: v for name, v in source.items() if shapes.get(name) == v.shape}
    body.load_state_dict(shared, strict=False)
    body.set_input_embeddings(nn.Identity())
    return body
