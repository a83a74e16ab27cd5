"""How phrase vectors are laid out on disk: floats, or whole numbers with scales."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy
from numpy.typing import NDArray

VectorDtype = Literal["int8", "float16", "float32"]
VectorRows = NDArray[Any]
Records = NDArray[Any]
"""Packed rows, one entry of `RowFormat.record` each."""

BLOCK = 64
"""Numbers with a scale of their own: a few directions are ten times larger than the others, and
one scale for all would be theirs."""
_HIGHEST = 127


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The layout of rows: the input vector followed by the output vector; one vector if tied."""

    dtype: VectorDtype
    width: int
    is_tied: bool

    @property
    def record(self) -> numpy.dtype[Any]:
        """One row as numpy reads it."""
        sides = 1 if self.is_tied else 2
        values = ("values", f"<{numpy.dtype(self.dtype).str[1:]}", (sides, self.width))
        scales = ("scales", "<f4", (sides, len(range(0, self.width, BLOCK))))
        return numpy.dtype([scales, values] if self.dtype == "int8" else [values])

    def pack(self, sides: Sequence[VectorRows]) -> Records:
        """Round vectors: each side (P, d), one if tied. What is too large becomes infinite."""
        vectors = numpy.stack(sides, axis=1).astype(numpy.float32, copy=False)
        rows = numpy.empty(len(vectors), self.record)
        if self.dtype != "int8":
            with numpy.errstate(over="ignore"):
                rows["values"] = vectors
            return rows
        begins = range(0, self.width, BLOCK)
        highest = numpy.maximum.reduceat(numpy.abs(vectors), begins, axis=2)
        rows["scales"] = highest / numpy.float32(_HIGHEST)
        # Zeros have no scale, and what is not finite has none either.
        with numpy.errstate(invalid="ignore", divide="ignore"):
            scaled = vectors / self._spread(rows["scales"])
        rows["values"] = numpy.rint(numpy.nan_to_num(scaled, posinf=0, neginf=0))
        return rows

    def _spread(self, scales: VectorRows) -> VectorRows:
        return numpy.repeat(scales, BLOCK, axis=2)[:, :, : self.width]

    def are_finite(self, rows: Records) -> bool:
        """Tell whether all vectors are finite."""
        if self.dtype != "int8":
            return bool(numpy.isfinite(rows["values"]).all())
        with numpy.errstate(over="ignore"):
            return bool(numpy.isfinite(rows["scales"] * numpy.float32(_HIGHEST + 1)).all())

    def unpack(self, rows: Records) -> tuple[VectorRows, VectorRows]:
        """Return input and output vectors (P, d); one array if they are the same."""
        values = rows["values"]
        if self.dtype == "int8":
            values = values * self._spread(rows["scales"])
        inputs = values[:, 0]
        return inputs, inputs if self.is_tied else values[:, 1]
