"""What passes cost: measured once, kept, and the same wherever it is given."""

import threading
import time
from contextlib import nullcontext

import pytest

from univerb.config import GenerationConfig
from univerb.engines import row_timing
from univerb.engines.factory import engine_of
from univerb.engines.row_costs import VARIABLE, RowCosts, assume, assumed_costs
from univerb.errors import OptionError


class Clock:
    """A session whose passes take a given time."""

    def __init__(self, costs):
        self.costs, self.now, self.rows, self.longest = costs, 0.0, 0, 0

    def prefill(self, prompts):
        self.rows += len(prompts[0])

    def step(self, rows):
        self.rows += len(rows[0])
        self.longest = max(self.longest, self.rows)
        self.now += self.costs(len(rows[0])) / 100

    def rewind(self, counts):
        self.rows -= counts[0]


@pytest.fixture
def measured(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path))
    monkeypatch.setattr(row_timing, "_known", {})
    clock = Clock(RowCosts({1: 10.0, 4: 26.0, 32: 200.0}))
    monkeypatch.setattr(row_timing.time, "perf_counter", lambda: clock.now)
    return clock


def test_costs_are_those_of_one_row_times_so_much():
    costs = RowCosts({1: 10.0, 4: 25.0, 8: 50.0})
    assert [costs(1), costs(2), costs(4), costs(8)] == [1.0, 1.5, 2.5, 5.0]
    assert costs(16) == 10.0 and costs(64) == 40.0, "beyond the last point, as on average there"
    assert repr(costs) == "1 row 1.00, 4 rows 2.50, 8 rows 5.00"


def test_no_pass_costs_more_than_one_over_more_rows():
    disturbed = RowCosts({1: 30.0, 2: 20.0, 4: 90.0, 8: 40.0})
    assert [disturbed(rows) for rows in (1, 2, 4, 8)] == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "bad", [{}, {2: 1.0}, {-3: 1.0, 1: 1.0}, {1: 0.0}, {1: float("nan")}, {1: 1.0, 4: -1.0}]
)
def test_costs_that_are_none_are_refused(bad):
    with pytest.raises(OptionError, match="Give positive numbers"):
        RowCosts(bad)


def test_costs_are_measured_once(measured):
    first = row_timing.row_costs(lambda: measured, 512, "a model", 2)
    assert first(4) == pytest.approx(2.6) and measured.rows == 128, "every pass is taken back"
    again = row_timing.row_costs(lambda: pytest.fail("measured twice"), 512, "a model", 2)
    assert again.points == first.points
    (known,) = row_timing.known_costs().items()
    assert known[0] == "a model" and known[1].points == first.points


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"costs": {"1": "x"}}', '{"costs": {"2": 1.0}}', "null"]
)
def test_a_damaged_file_is_measured_again(measured, tmp_path, content):
    row_timing.row_costs(lambda: measured, 512, "a model")
    (path,) = (tmp_path / "row_costs").glob("*.json")
    path.write_text(content)
    row_timing._known.clear()  # as another process would find it
    assert row_timing.row_costs(lambda: measured, 512, "a model")(4) == pytest.approx(2.6)


def test_models_of_one_name_are_both_shown(measured):
    for folder in ("a", "b"):
        row_timing.row_costs(lambda: measured, 512, "a model", folder)
    assert list(row_timing.known_costs()) == ["a model", "a model (2)"]


def test_a_context_of_one_token_has_no_room_for_drafts(measured):
    assert row_timing.row_costs(lambda: measured, 1, "a model").points == {1: 1.0}


def test_threads_do_not_measure_at_once(measured, monkeypatch):
    monkeypatch.setenv("UNIVERB_CACHE", "/proc/nothing")
    begun, barrier = [], threading.Barrier(4)

    def begin():
        begun.append(1)
        time.sleep(0.05)  # the others come meanwhile
        return measured

    def ask():
        barrier.wait()
        row_timing.row_costs(begin, 512, "a model")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == 1


def test_costs_are_measured_once_where_the_cache_cannot_be_written(measured, tmp_path, monkeypatch):
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    first = row_timing.row_costs(lambda: measured, 512, "a model")
    again = row_timing.row_costs(lambda: pytest.fail("measured twice"), 512, "a model")
    assert first.points == again.points


def test_a_process_takes_what_another_one_was_measuring(measured, tmp_path, monkeypatch):
    taken = RowCosts({1: 1.0, 32: 3.0})

    def other_process_writes(path, busy, wait):
        path.with_suffix(".json").write_text('{"format": 2, "costs": {"1": 1.0, "32": 3.0}}')
        return nullcontext()

    monkeypatch.setattr(row_timing, "exclusive_lock", other_process_writes)
    costs = row_timing.row_costs(lambda: pytest.fail("measured, too"), 512, "a model")
    assert costs.points == taken.points


@pytest.mark.parametrize("context_size", [2, 9, 40, 128, 160])
def test_a_short_context_is_not_exceeded(measured, context_size):
    costs = row_timing.measure(measured, context_size)
    assert measured.longest <= context_size and costs(1) == 1.0


def test_costs_can_be_given(monkeypatch, tiny):
    monkeypatch.setenv(VARIABLE, "1:2,8:3")
    assert assumed_costs()(8) == 1.5
    with assume(RowCosts({1: 1.0, 8: 4.0})):
        assert engine_of(tiny).row_costs(GenerationConfig())(8) == 4.0
    monkeypatch.setenv(VARIABLE, "1:2,eight")
    with pytest.raises(OptionError, match=f"{VARIABLE} is '1:2,eight'"):
        assumed_costs()


def test_a_model_is_measured_as_it_computes(monkeypatch, tmp_path, tiny):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path))
    costs = engine_of(tiny).row_costs(GenerationConfig())
    assert set(costs.points) >= {1, 2, 4, 8, 16, 32} and costs(1) == 1.0
    assert engine_of(tiny).row_costs(GenerationConfig()).points == costs.points
