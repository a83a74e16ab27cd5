"""The output vectors of phrases, multiplied with torch on the LM's device."""

import numpy
import torch
from torch import Tensor

from univerb.decoding.engines.base import Floats, Ints
from univerb.modeling.table import TableView


class TorchRows:
    """The rows of one sequence's phrases.

    torch multiplies half-precision rows in half precision: twice as fast as single ones, since
    memory is what it waits for, and right to two digits after the point.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rows = torch.empty(0, 0)
        self._seen: TableView | None = None

    short_list_from = 131_072
    """Measured with benchmarks/decode.py."""

    def follow(self, view: TableView) -> None:
        """Take in a view of the table: shared memory on a CPU, a copy elsewhere."""
        if view is not self._seen:
            self._rows = torch.from_numpy(view.outputs).to(self._device)
            self._seen = view

    def products(self, hidden: Floats, rows: Ints | slice) -> Floats:
        """Multiply rows with a state (d,)."""
        own = self._rows[rows if isinstance(rows, slice) else torch.from_numpy(rows)]
        return self._multiplied(own, hidden)

    def exact(self, hidden: Floats, rows: Ints) -> Floats:
        """Multiply a few rows with a state (d,) in single precision."""
        return self._multiplied(self._rows[torch.from_numpy(rows)].float(), hidden)

    def _multiplied(self, rows: Tensor, hidden: Floats) -> Floats:
        state = torch.from_numpy(hidden).to(rows)
        result: numpy.ndarray = torch.mv(rows, state).float().cpu().numpy()
        return result
