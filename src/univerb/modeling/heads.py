"""From the encoder's last hidden state to a phrase's input and output vectors.

`TiedHead` is the paper's: one vector for both embedding matrices (paper, section 2.2).
`SplitHeads` gives each side its own, as a correction of vectors that the LM knows already: the
last token's row on the input side, the first token's on the output side. Both corrections start
at zero, so a fresh encoder changes nothing that its bias does not allow. In the conditional form
(`conditional`) the first token is chosen already: the output vector is the correction alone, and
what it is scored against brings its own coordinates.
"""

import torch
from torch import Tensor, nn

from univerb.config import EncoderConfig


class SplitHeads(nn.Module):
    """An input and an output head, residual and zero-initialised, and a learned bias.

    A few directions of an LM's states are a hundred times larger than the rest, so a step that is
    small for one is an explosion for another. `fit` measures both kinds of states once; the heads
    then learn in coordinates in which all directions are alike, and in the size of the LM's rows.
    """

    def __init__(
        self, encoder_size: int, hidden_size: int, bias: float, is_conditional: bool = False
    ) -> None:
        super().__init__()
        self.input = nn.Linear(encoder_size, hidden_size)
        self.output = nn.Linear(encoder_size, hidden_size)
        self.register_buffer("read", torch.eye(encoder_size))
        self.register_buffer("fed", torch.ones(()))
        self.read: Tensor
        self.fed: Tensor
        self.bias: Tensor
        self.register_buffer("scored", None if is_conditional else torch.eye(hidden_size))
        self.scored: Tensor | None
        if is_conditional:
            self.register_buffer("bias", torch.zeros(()), persistent=False)
        else:
            self.bias = nn.Parameter(torch.tensor(bias))
        for head in (self.input, self.output):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    @torch.no_grad()
    def fit(self, hidden: Tensor, states: Tensor, rows: Tensor) -> None:
        """Choose the coordinates, before any training; without states they stay as they are.

        Args:
            hidden: Some states of the encoder (N, d_e).
            states: Some states of the LM that phrases are scored against (N, d).
            rows: The LM's input rows of some tokens (..., d).
        """
        if rows.any():
            self.fed.copy_(rows.pow(2).mean().sqrt())
        if hidden.any():
            self.read.copy_(whitening(hidden))
        if self.scored is not None and states.any():
            # Of length one, not of size one in each direction: a score is a sum over all of them.
            self.scored.copy_(whitening(states) / states.shape[1] ** 0.5)

    def forward(self, hidden: Tensor, last: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
        """Map hidden states (P, d_e) to input and output vectors, both (P, d).

        Args:
            hidden: The encoder's state at each phrase's last token.
            last: The LM's input row of that token.
            base: What the output vector begins as (`PhraseEncoder.output_base`).

        Returns:
            Input and output vectors.
        """
        whitened = hidden @ self.read
        inputs, outputs = last + self.input(whitened) * self.fed, self.output(whitened)
        return inputs, base + (outputs if self.scored is None else outputs @ self.scored)


class TiedHead(nn.Module):
    """The paper's projector: one vector that is both input and output."""

    def __init__(self, encoder_size: int, hidden_size: int, config: EncoderConfig) -> None:
        super().__init__()
        activation = nn.ReLU() if config.activation == "relu" else nn.Tanh()
        dropout = nn.Dropout(config.dropout)
        last = nn.Linear(encoder_size, hidden_size)
        layers: dict[str, list[nn.Module]] = {
            "linear": [dropout, last],
            "act_linear": [dropout, activation, last],
            "mlp2": [dropout, nn.Linear(encoder_size, encoder_size), nn.GELU(), last],
        }
        self.projector = nn.Sequential(*layers[config.projector])
        self.register_buffer("bias", torch.zeros(()), persistent=False)
        self.bias: Tensor

    def forward(self, hidden: Tensor, last: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
        """Map hidden states (P, d_e) to the vectors (P, d), the same for both sides."""
        vectors = self.projector(hidden)
        return vectors, vectors

    @torch.no_grad()
    def match_norm(self, hidden: Tensor, norm: float) -> None:
        """Scale the projector so that its outputs are as long as the LM's rows.

        A fresh projector's vectors are many times longer than token embeddings, which makes the
        first loss explode. `hidden` are some states (N, d_e), `norm` the mean norm of the rows.
        """
        was_training = self.training
        self.eval()
        scale = norm / self.projector(hidden).norm(dim=-1).mean().clamp_min(1e-6)
        self.train(was_training)
        last = self.projector[-1]
        assert isinstance(last, nn.Linear)
        last.weight.mul_(scale)
        last.bias.mul_(scale)


def whitening(states: Tensor) -> Tensor:
    """Return the symmetric matrix that whitens states: unit variance in all directions."""
    moments = states.float().T @ states.float() / len(states)
    values, directions = torch.linalg.eigh(moments)
    # Directions that hardly occur are not blown up to the size of the rest.
    scale = (values.clamp_min(0) + 0.01 * values.mean()).rsqrt()
    matrix: Tensor = (directions * scale) @ directions.T
    return matrix


Heads = SplitHeads | TiedHead


def make_heads(encoder_size: int, hidden_size: int, config: EncoderConfig) -> Heads:
    """Build the heads that a config names."""
    if config.heads == "tied":
        return TiedHead(encoder_size, hidden_size, config)
    return SplitHeads(encoder_size, hidden_size, config.bias, config.form == "conditional")
