"""The causal phrase encoder: any text span to a vector (paper, section 2.2).

Because it is causal, one pass over a window gives the vector of every prefix of it. All n-grams
that begin at one position therefore cost one row; `plan` finds the fewest rows for any set.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy
import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from univerb.config import EncoderConfig
from univerb.errors import PhraseError
from univerb.modeling.conditional import ConditionalHead
from univerb.modeling.heads import Heads, SplitHeads, TiedHead, make_heads
from univerb.modeling.phrase_table import Matrix, PhraseVectors
from univerb.phrase import Phrase
from univerb.tokenizer import Tokenizer

# Tokens per encoder pass: enough to keep a CPU's matrix units busy, few enough for its caches.
_PASS_TOKENS = 1024
_MAX_PADDING = 32
"""Tokens of padding in a pass: about as many as another pass would cost."""

Key = tuple[int, ...]


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


class Plan(NamedTuple):
    """Which windows to encode, and where in them each key ends."""

    windows: list[Key]
    row: list[int]
    column: list[int]


def plan(keys: Sequence[Key]) -> Plan:
    """Find the fewest windows of which every key is a prefix; keys may repeat."""
    order = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)
    windows: list[Key] = []
    row = [0] * len(keys)
    # In descending order a key's longest extension comes before it, with nothing between
    # them that does not extend the key too.
    for index in order:
        key = keys[index]
        if not windows or windows[-1][: len(key)] != key:
            windows.append(key)
        row[index] = len(windows) - 1
    return Plan(windows, row, [len(key) - 1 for key in keys])


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
        passes = list(_passes(layout.windows))
        # Windows are numbered in the order of the passes: the keys of a pass are then contiguous.
        number = numpy.empty(len(layout.windows), numpy.int64)
        number[[row for rows in passes for row in rows]] = numpy.arange(len(number))
        window = number[layout.row]
        order = numpy.argsort(window, kind="stable")
        window, column = window[order], numpy.array(layout.column, numpy.int64)[order]
        begin = 0
        for rows in passes:
            windows = torch.tensor(_padded([layout.windows[row] for row in rows]), device=device)
            states = self.hidden_states(windows, embeddings)
            keys = slice(*numpy.searchsorted(window, [begin, begin + len(rows)]))
            result[order[keys]] = states[window[keys] - begin, column[keys]]
            begin += len(rows)
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


def _passes(windows: Sequence[Key]) -> Iterator[list[int]]:
    """Group windows of about equal length: a little padding costs less than another pass."""
    rows: list[int] = []
    padding = longest = 0
    for index in sorted(range(len(windows)), key=lambda index: -len(windows[index])):
        padding += longest - len(windows[index])
        if not rows or padding > _MAX_PADDING or (len(rows) + 1) * longest > _PASS_TOKENS:
            if rows:
                yield rows
            rows, padding, longest = [], 0, len(windows[index])
        rows.append(index)
    if rows:
        yield rows


def _padded(windows: Sequence[Key]) -> list[Key]:
    """Lengthen windows to the first one's length, which no column before the end can see."""
    longest = len(windows[0])
    # By tokens of their own: a damaged row of the embeddings harms only phrases that have it.
    return [window + window[-1:] * (longest - len(window)) for window in windows]
