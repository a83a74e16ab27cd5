"""The vectors of a batch's pool: each process encodes a share of its rows, all get all."""

from collections.abc import Sequence

import torch
from torch import Tensor

from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.encoder_plan import Plan, plan
from univerb.modeling.phrase_table import PhraseVectors
from univerb.training.mixed_batch import Pool
from univerb.training.processes import Processes
from univerb.training.samples import Key


def encode_pool(lm: DynamicLM, pool: Pool, processes: Processes) -> PhraseVectors[Tensor]:
    """Encode the phrases of a pool, with gradients: the same vectors on every process."""
    if not pool.keys:
        none = lm.embeddings.output_weight.new_empty(0, lm.width)
        return PhraseVectors(none, none)
    layout = _layout(lm, pool)
    share = processes.share(len(layout.windows))
    # By rows, so that the parts of the processes, one after the other, are in order.
    order = sorted(range(len(pool.keys)), key=layout.row.__getitem__)
    phrases = [k for k in order if layout.row[k] in share]
    vectors = _encode(lm, pool, layout, share, phrases)
    sides = [vectors.outputs] if lm.is_tied else [vectors.inputs, vectors.outputs]
    rows = processes.gather(torch.cat(sides, dim=1))
    rows = rows[torch.tensor(order, device=rows.device).argsort()]
    return PhraseVectors(rows[:, : lm.width], rows[:, -lm.width :])


def pool_bias(lm: DynamicLM, keys: Sequence[Key]) -> Tensor:
    """Return what is added to the logits of phrases (P,), as a phrase table does when decoding."""
    bias = lm.encoder.heads.bias.expand(len(keys))
    if not lm.encoder.config.count_correction:
        return bias
    first = torch.tensor([key[0] for key in keys], dtype=torch.long, device=bias.device)
    return bias - torch.bincount(first)[first].log()


def _layout(lm: DynamicLM, pool: Pool) -> Plan:
    tokenizer = lm.encoder.tokenizer
    if tokenizer is None:
        return pool.plan
    # Through the text: a common prefix in the LM's tokens need not be one in the encoder's.
    return plan([tuple(tokenizer.encode(text).ids) for text in lm.tokenizer.decode_all(pool.keys)])


def _encode(
    lm: DynamicLM, pool: Pool, layout: Plan, share: range, phrases: Sequence[int]
) -> PhraseVectors[Tensor]:
    # A process without rows encodes one that is not used: gradients then take the same way on all
    # processes, which wait for each other in it.
    windows = [layout.windows[row] for row in share or range(1)]
    device, longest = lm.model.device, max(map(len, windows))
    # Padded on the right, where a causal encoder does not look.
    ids = torch.tensor([[*w, *[0] * (longest - len(w))] for w in windows], device=device)
    hidden = lm.encoder.hidden_states(ids, lm.embeddings)

    def column(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    states = hidden[
        column([layout.row[k] - share.start for k in phrases]),
        column([layout.column[k] for k in phrases]),
    ]
    last = lm.embeddings.input(column([pool.keys[k][-1] for k in phrases]))
    base = lm.encoder.output_base(column([pool.keys[k][0] for k in phrases]), lm.embeddings)
    return PhraseVectors(*lm.encoder.heads(states, last, base))
