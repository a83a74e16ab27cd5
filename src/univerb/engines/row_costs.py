"""What a pass over several rows costs, beside one over a single row.

Where weights are read once for all rows, eight rows cost little more than one; where a CPU computes
all the time, four rows cost nearly three passes. Whether a draft pays depends on this ratio.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import numpy

from univerb.errors import OptionError

MAX_ROWS = 32
"""Of a pass with drafts."""
VARIABLE = "UNIVERB_ROW_COSTS"
"""Environment variable with costs to use instead of those measured, as in 1:1,8:1.3,32:3.5."""
_MAX_COST = 1e6
_assumed: ContextVar["RowCosts | None"] = ContextVar("assumed", default=None)


class RowCosts:
    """The cost of passes by their number of rows.

    Args:
        costs: For some numbers of rows, 1 among them, in any unit. More rows cost no less.
    """

    def __init__(self, costs: Mapping[int, float]) -> None:
        self.points = dict(sorted(costs.items()))
        rows, values = numpy.array(list(self.points)), numpy.array(list(self.points.values()))
        are_costs = ((values > 0) & (values < _MAX_COST)).all()
        if not self.points or min(self.points) != 1 or not are_costs:
            raise OptionError(
                f"costs of passes are {dict(costs)}. Give positive numbers, that of 1 row among "
                "them, as in 1:1,8:1.3,32:3.5."
            )
        # Noise only ever adds: what more rows cost is a bound for fewer.
        values = numpy.minimum.accumulate(values[::-1])[::-1]
        relative = values / values[0]
        every = numpy.arange(1, MAX_ROWS + 1)
        # Beyond the last point, rows cost what they cost there on average.
        beyond = every / rows[-1] * relative[-1]
        inside = numpy.interp(every, rows, relative)
        self._relative: list[float] = numpy.where(every <= rows[-1], inside, beyond).tolist()

    def __call__(self, rows: int) -> float:
        """Return what a pass over some rows costs, in passes over one."""
        if rows <= MAX_ROWS:
            return self._relative[rows - 1]
        return self._relative[-1] * rows / MAX_ROWS

    def __repr__(self) -> str:
        each = (f"{rows} {'row' if rows == 1 else 'rows'} {self(rows):.2f}" for rows in self.points)
        return ", ".join(each)


@contextmanager
def assume(costs: RowCosts) -> Iterator[None]:
    """Draft by these costs, whatever this machine's are."""
    token = _assumed.set(costs)
    try:
        yield
    finally:
        _assumed.reset(token)


def assumed_costs() -> RowCosts | None:
    """Return the costs that were given by `assume` or in the environment."""
    text = os.environ.get(VARIABLE)
    if _assumed.get() is not None or not text:
        return _assumed.get()
    try:
        pairs = (pair.split(":") for pair in text.split(","))
        return RowCosts({int(rows): float(cost) for rows, cost in pairs})
    except (ValueError, OptionError):
        raise OptionError(
            f"{VARIABLE} is {text[:80]!r}. Give rows and costs as in 1:1,8:1.3,32:3.5, or unset it."
        ) from None
