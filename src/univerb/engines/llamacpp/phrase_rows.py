"""The output vectors of phrases, multiplied with numpy."""

from collections.abc import Sequence

import numpy

from univerb.engines.base import Floats, Ints, ShortList
from univerb.modeling.phrase_table import TableView


class NumpyRows:
    """The rows of one sequence's phrases, in single precision.

    numpy multiplies half-precision rows a hundred times slower than single ones, so rows are
    widened when they are first looked at. Most never are: a choice looks at a few first tokens.
    """

    # A step of llama.cpp takes a few milliseconds: so would the products of some thousand rows.
    short_list = ShortList(start=2048, first_tokens=48, per_token=128, gap=7.0)
    is_rough = False

    def __init__(self) -> None:
        self._given = self._wide = numpy.empty((0, 0), numpy.float32)
        self._is_wide = numpy.empty(0, bool)

    def follow(self, view: TableView) -> None:
        """Take in a view of the table."""
        self._given = self._wide = view.outputs
        if view.outputs.dtype != numpy.float32:
            self._wide = numpy.empty(view.outputs.shape, numpy.float32)
            self._is_wide = numpy.zeros(len(view.outputs), bool)

    def products(self, hidden: Floats, stretches: Sequence[Ints | slice]) -> Floats:
        """Multiply rows with a state (d,)."""
        for rows in stretches:
            if self._wide is not self._given and not self._is_wide[rows].all():
                self._wide[rows] = self._given[rows]
                self._is_wide[rows] = True
        # Not `@`: its threads and llama.cpp's would wait for each other at every step.
        parts = [numpy.vecdot(self._wide[rows], hidden) for rows in stretches]
        return numpy.concatenate(parts)

    def exact(self, hidden: Floats, rows: Ints) -> Floats:
        """Multiply a few rows with a state (d,): `products` is exact already."""
        return self.products(hidden, [rows])
