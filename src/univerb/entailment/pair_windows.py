"""Pairs of texts as the overlapping windows that a model can read, in padded batches."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import tokenizers
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

_BATCH = 16


class PairWindows(NamedTuple):
    """Tokenized windows."""

    inputs: dict[str, list[list[int]]]
    encodings: list[tokenizers.Encoding]
    owners: list[int]
    """The index of the pair that each window belongs to."""

    def by_pair(self) -> list[list[int]]:
        """Return the windows of each pair."""
        rows: list[list[int]] = [[] for _ in range(max(self.owners) + 1)]
        for row, owner in enumerate(self.owners):
            rows[owner].append(row)
        return rows


def pair_windows(
    tokenizer: HFTokenizer,
    pairs: Sequence[tuple[str, str]],
    cut: Literal["only_first", "only_second"],
    max_length: int,
    stride: int,
) -> PairWindows:
    """Tokenize pairs; the text named by `cut` becomes windows that share `stride` tokens."""
    encoded = tokenizer(
        [first for first, _ in pairs],
        [second for _, second in pairs],
        truncation=cut,
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
    )
    owners = encoded.pop("overflow_to_sample_mapping")
    return PairWindows(dict(encoded), encoded.encodings, owners)


def outputs(
    model: PreTrainedModel, tokenizer: HFTokenizer, windows: PairWindows
) -> Iterator[tuple[list[int], Any]]:
    """Run a model over windows; yields the indices of the windows of each batch, and its output."""
    lengths = [len(ids) for ids in windows.inputs["input_ids"]]
    # Windows of similar length need little padding.
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for begin in range(0, len(order), _BATCH):
        rows = order[begin : begin + _BATCH]
        inputs = {name: [values[row] for row in rows] for name, values in windows.inputs.items()}
        padded = tokenizer.pad(inputs, return_tensors="pt").to(model.device)
        yield rows, model(**padded)
