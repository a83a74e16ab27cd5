"""The output vectors of phrases, multiplied with numpy."""

from collections.abc import Sequence

import numpy

from univerb.engines.base import Floats, Ints, ShortList
from univerb.modeling.phrase_table import TableView


class NumpyPhraseWeights:
    """The rows of one sequence's phrases, in single precision.

    numpy multiplies half-precision rows a hundred times slower than single ones, so rows are
    widened when they are first looked at. Most never are: a choice looks at a few first tokens.
    """

    # A step of llama.cpp takes a few milliseconds: so would the products of some thousand rows.
    short_list = ShortList(min_phrases=2048, first_tokens=48, per_token=128, max_gap=7.0)
    is_approximate = False

    def __init__(self) -> None:
        self._stored = self._wide = numpy.empty((0, 0), numpy.float32)
        self._is_wide = numpy.empty(0, bool)

    def update(self, view: TableView) -> None:
        """Follow the table to a view of it."""
        self._stored = self._wide = view.outputs
        if view.outputs.dtype != numpy.float32:
            self._wide = numpy.empty(view.outputs.shape, numpy.float32)
            self._is_wide = numpy.zeros(len(view.outputs), bool)

    def logits(self, hidden: Floats, spans: Sequence[Ints | slice]) -> Floats:
        """Multiply rows with a state (d,)."""
        for rows in spans:
            if self._wide is not self._stored and not self._is_wide[rows].all():
                self._wide[rows] = self._stored[rows]
                self._is_wide[rows] = True
        # Not `@`: its threads and llama.cpp's would wait for each other at every step.
        parts = [numpy.vecdot(self._wide[rows], hidden) for rows in spans]
        return numpy.concatenate(parts)

    def exact_logits(self, hidden: Floats, rows: Ints) -> Floats:
        """Multiply a few rows with a state (d,): `logits` is exact already."""
        return self.logits(hidden, [rows])
