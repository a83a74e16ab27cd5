"""Vectors as they are laid out on disk: what rounding costs, and what cannot be rounded."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from univerb.corpus.vector_rows import BLOCK, RowFormat

WIDTHS = [1, BLOCK - 1, BLOCK, 2 * BLOCK + 5]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_rows_come_back_within_half_a_step_of_their_block(width, is_tied, dtype):
    layout = RowFormat(dtype, width, is_tied)
    generator = numpy.random.default_rng(width)
    sides = generator.normal(size=(2, 7, width)).astype(numpy.float32)
    # One direction that is much larger costs only the others of its block.
    sides[:, :, 0] *= 100
    given_sides = sides[:1] if is_tied else sides
    inputs, outputs = layout.unpack(layout.pack(given_sides))
    assert (inputs is outputs) == is_tied
    for before, after in zip(given_sides, (inputs, outputs), strict=False):
        error = numpy.abs(after.astype(numpy.float32) - before)
        if dtype != "int8":
            assert (after == before.astype(dtype)).all()
            continue
        for begin in range(0, width, BLOCK):
            block = slice(begin, begin + BLOCK)
            step = numpy.abs(before[:, block]).max(axis=1, keepdims=True) / 127
            assert (error[:, block] <= 0.501 * step).all()


@given(arrays(numpy.float32, (2, 3, 70), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_rounding_twice_changes_nothing(sides):
    layout = RowFormat("int8", 70, is_tied=False)
    once = layout.pack(sides)
    assert layout.are_finite(once)
    again = numpy.stack(layout.unpack(layout.pack(layout.unpack(once))))
    numpy.testing.assert_allclose(again, numpy.stack(layout.unpack(once)), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
@pytest.mark.parametrize("value", [numpy.nan, numpy.inf, -numpy.inf])
def test_what_is_not_finite_does_not_pass_for_a_vector(dtype, value):
    layout = RowFormat(dtype, 5, is_tied=True)
    sides = numpy.zeros((1, 2, 5), numpy.float32)
    assert layout.are_finite(layout.pack(sides)) and not layout.unpack(layout.pack(sides))[0].any()
    sides[0, 1, 3] = value
    assert not layout.are_finite(layout.pack(sides))
