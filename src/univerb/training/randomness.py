"""Dropout that is a function of where a run is, not of how it got there."""

import numpy
import torch


def seed_dropout(*place: int) -> None:
    """Seed what dropout draws from with a place of a run: seed, micro-batch, process."""
    state = numpy.random.SeedSequence(place).generate_state(1, numpy.uint64)
    torch.manual_seed(int(state[0] >> numpy.uint64(1)))
