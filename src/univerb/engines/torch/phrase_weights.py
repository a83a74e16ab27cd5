"""The output vectors of phrases, multiplied with torch on the LM's device."""

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from univerb.engines.base import Floats, Ints, ShortList
from univerb.modeling.phrase_table import TableView


class TorchPhraseWeights:
    """The rows of one sequence's phrases.

    torch multiplies half-precision rows in half precision: twice as fast as single ones, since
    memory is what it waits for, and right to two digits after the point.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rows = torch.empty(0, 0)
        self._view: TableView | None = None

    short_list = ShortList(min_phrases=131_072, first_tokens=256, per_token=256, max_gap=11.0)

    @property
    def is_approximate(self) -> bool:
        """Whether the rows are in half precision."""
        return self._rows.dtype == torch.float16

    def update(self, view: TableView) -> None:
        """Follow the table to a view of it: shared memory on a CPU, a copy elsewhere."""
        if view is not self._view:
            self._rows = torch.from_numpy(view.outputs).to(self._device)
            self._view = view

    def logits(self, hidden: Floats, spans: Sequence[Ints | slice]) -> Floats:
        """Multiply rows with a state (d,)."""
        # Half precision ends at 65,504: states are brought below 1 for it.
        scale = max(float(numpy.abs(hidden).max()), 1.0) if self.is_approximate else 1.0
        state = torch.from_numpy(hidden / numpy.float32(scale)).to(self._rows)
        parts = [torch.mv(self._rows[_index(rows)], state) for rows in spans]
        result: Floats = (torch.cat(parts).float() * scale).cpu().numpy()
        return result

    def exact_logits(self, hidden: Floats, rows: Ints) -> Floats:
        """Multiply a few rows with a state (d,) in single precision."""
        few = self._rows[torch.from_numpy(rows)].float()
        result: Floats = torch.mv(few, torch.from_numpy(hidden).to(few)).cpu().numpy()
        return result


def _index(rows: Ints | slice) -> Tensor | slice:
    return rows if isinstance(rows, slice) else torch.from_numpy(rows)
