"""The vectors of a batch's pool: each process encodes its share of the rows, all get them all."""

from collections.abc import Sequence

import torch
from torch import Tensor

from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.encoder import Plan, plan
from univerb.modeling.phrase_table import PhraseVectors
from univerb.training.batch import Key, Pool
from univerb.training.processes import Processes


def encode_pool(lm: DynamicLM, pool: Pool, processes: Processes) -> PhraseVectors[Tensor]:
    """Encode the phrases of a pool, with gradients.

    Args:
        lm: The LM and its encoder.
        pool: The phrases.
        processes: Who shares the work.

    Returns:
        Their vectors in the pool's order, the same on every process.
    """
    if not pool.keys:
        none = lm.embeddings.output_weight.new_empty(0, lm.width)
        return PhraseVectors(none, none)
    layout = _layout(lm, pool)
    share = processes.share(len(layout.windows))
    # By rows, so that the parts of the processes, one after the other, are in order.
    order = sorted(range(len(pool.keys)), key=layout.row.__getitem__)
    own = [place for place in order if layout.row[place] in share]
    vectors = _encode(lm, pool, layout, share, own)
    sides = [vectors.outputs] if lm.is_tied else [vectors.inputs, vectors.outputs]
    rows = processes.gather(torch.cat(sides, dim=1))[torch.tensor(order).argsort()]
    return PhraseVectors(rows[:, : lm.width], rows[:, -lm.width :])


def pool_bias(lm: DynamicLM, keys: Sequence[Key]) -> Tensor:
    """Return what is added to the logits of phrases (P,), as a phrase table does when decoding."""
    bias = lm.encoder.heads.bias.expand(len(keys))
    if not lm.encoder.config.count_correction:
        return bias
    first = torch.tensor([key[0] for key in keys], dtype=torch.long, device=bias.device)
    return bias - torch.bincount(first)[first].log()


def _layout(lm: DynamicLM, pool: Pool) -> Plan:
    own = lm.encoder.tokenizer
    if own is None:
        return Plan(pool.rows, pool.row, pool.column)
    # Through the text: what begins alike in the LM's tokens need not in the encoder's.
    return plan([tuple(own.encode(text).ids) for text in lm.tokenizer.decode_all(pool.keys)])


def _encode(
    lm: DynamicLM, pool: Pool, layout: Plan, share: range, own: Sequence[int]
) -> PhraseVectors[Tensor]:
    # Without rows of its own a process encodes one for nothing: gradients then take the same way
    # on all processes, which wait for each other in it.
    windows = [layout.windows[row] for row in share or range(1)]
    device, longest = lm.model.device, max(map(len, windows))
    # Padded on the right, where a causal encoder does not look.
    ids = torch.tensor([[*w, *[0] * (longest - len(w))] for w in windows], device=device)
    hidden = lm.encoder.hidden_states(ids, lm.embeddings)

    def column(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    states = hidden[
        column([layout.row[place] - share.start for place in own]),
        column([layout.column[place] for place in own]),
    ]
    last = lm.embeddings.input(column([pool.keys[place][-1] for place in own]))
    first = lm.embeddings.output_weight[column([pool.keys[place][0] for place in own])]
    return PhraseVectors(*lm.encoder.heads(states, last, first))
