"""Random numbers as a function of (seed, micro-batch, ...): a run resumes exactly anywhere."""

import numpy
import torch


def seed_torch(*key: int) -> None:
    """Seed torch's global generators, from which dropout draws its masks."""
    state = numpy.random.SeedSequence(key).generate_state(1, numpy.uint64)
    torch.manual_seed(int(state[0] >> numpy.uint64(1)))


def generator_of(*key: int) -> torch.Generator:
    """Return a generator on the CPU for draws that all processes share."""
    state = numpy.random.SeedSequence(key).generate_state(1)
    return torch.Generator().manual_seed(int(state[0]))
