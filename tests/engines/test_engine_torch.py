"""The torch session: rewinding, forking and ragged steps leave exactly what was kept."""

import numpy
import pytest
import torch
from transformers import DynamicCache

from conftest import make_llama
from univerb.engines.torch.session import TorchSession, crop


def reference(lm, ids):
    with torch.no_grad():
        return lm.model(torch.tensor([ids])).logits[0, -1]


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def test_cropping_removes_the_newest_slots():
    cache = DynamicCache()
    model = make_llama()
    model(torch.tensor([[1, 2, 3, 4, 5]]), past_key_values=cache)
    keys = cache.layers[0].keys.clone()
    crop(cache, 2)
    assert cache.get_seq_length() == 3
    assert torch.equal(cache.layers[0].keys, keys[:, :, :3])


def test_a_rewound_session_continues_as_if_the_rows_had_never_been(tiny):
    session = TorchSession(tiny)
    session.prefill([[5, 9, 17]])
    session.step([[1, 2, 3, 4]])
    session.rewind([3])
    (output,) = session.step([[8]])
    expected = reference(tiny, [5, 9, 17, 1, 8])
    assert numpy.allclose(output.logits[-1], expected, atol=1e-5)
    assert session._cache.get_seq_length() == 5, "one sequence leaves no masked slots behind"


def test_a_step_over_several_rows_gives_each_rows_logits(tiny):
    session = TorchSession(tiny)
    session.prefill([[5, 9, 17]])
    (output,) = session.step([[1, 2, 3]])
    for count in (1, 2, 3):
        expected = reference(tiny, [5, 9, 17, 1, 2, 3][: 3 + count])
        assert numpy.allclose(output.logits[count - 1], expected, atol=1e-5)


def test_ragged_steps_and_rewinds_keep_sequences_apart(tiny):
    session = TorchSession(tiny)
    session.prefill([[5, 9, 17, 4], [7], [3, 3]])
    session.step([[1], [2, 3, 4, 5], [6, 7]])
    session.rewind([0, 2, 1])
    outputs = session.step([[8, 8], [9], [10]])
    kept = [[5, 9, 17, 4, 1, 8, 8], [7, 2, 3, 9], [3, 3, 6, 10]]
    for output, ids in zip(outputs, kept, strict=True):
        assert numpy.allclose(output.logits[-1], reference(tiny, ids), atol=1e-4)
    session.select([2, 0])
    outputs = session.step([[11], [12]])
    assert numpy.allclose(outputs[0].logits[-1], reference(tiny, [*kept[2], 11]), atol=1e-4)
    assert numpy.allclose(outputs[1].logits[-1], reference(tiny, [*kept[0], 12]), atol=1e-4)


def test_masked_slots_do_not_pile_up(tiny):
    session, kept = TorchSession(tiny), [[5, 9, 17, 4, 3, 2, 1], [7, 8]]
    session.prefill(kept)
    for turn in range(12):
        long = turn % 2
        session.step([[1, 2, 3, 4] if row == long else [turn] for row in range(2)])
        session.rewind([2 if row == long else 0 for row in range(2)])
        kept = [[*ids, *([1, 2] if row == long else [turn])] for row, ids in enumerate(kept)]
        assert session._cache.get_seq_length() <= 1.25 * max(map(len, kept))
    session.select([1, 0])
    outputs = session.step([[11], [12]])
    for output, ids, last in zip(outputs, kept[::-1], (11, 12), strict=True):
        assert numpy.allclose(output.logits[-1], reference(tiny, [*ids, last]), atol=1e-4)


def test_naming_a_sequence_twice_forks_it(tiny):
    session = TorchSession(tiny)
    session.prefill([[5, 9, 17]])
    session.select([0, 0])
    outputs = session.step([[1], [2]])
    assert numpy.allclose(outputs[0].logits[-1], reference(tiny, [5, 9, 17, 1]), atol=1e-5)
    assert numpy.allclose(outputs[1].logits[-1], reference(tiny, [5, 9, 17, 2]), atol=1e-5)


def test_slots_that_all_sequences_gave_back_are_cropped(tiny):
    session = TorchSession(tiny)
    session.prefill([[5, 9], [7, 8]])
    session.step([[1, 2, 3], [4, 5, 6]])
    session.rewind([2, 1])
    assert session._cache.get_seq_length() == 4
