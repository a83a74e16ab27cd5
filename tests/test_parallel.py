"""Workers: the same results in the same order, whoever works, and nobody left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from univerb.errors import MissingExtra, OptionError, UniverbError, WorkerError
from univerb.parallel import Workers, local_workers, make_workers

# Imported by the workers too: nothing heavy up there, and what they call is down here.


class Odd(Exception):
    """An error that cannot be made again from its message."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


def square(number: int) -> int:
    return number * number


def slow_when_even(number: int) -> int:
    time.sleep(0.05 * (number % 2 == 0))
    return number


def refuse_three(number: int) -> int:
    if number == 3:
        raise OptionError(f"{number} is refused")
    return number


def fail_oddly(number: int) -> int:
    raise Odd("this", str(number))


def lack(package: str) -> None:
    raise MissingExtra(package, "cluster")


def die(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def touch(path: str) -> str:
    Path(path).touch()
    time.sleep(0.2)
    return path


def process(_: object) -> tuple[int, str | None]:
    time.sleep(0.05)
    return os.getpid(), os.environ.get("OMP_NUM_THREADS")


def hang(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds: float = 300.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    with local_workers(2) as workers:
        yield workers


@pytest.fixture(params=[1, 2])
def workers(request: pytest.FixtureRequest, two: Workers) -> Workers:
    return two if request.param == 2 else local_workers()


@given(st.lists(st.integers(-99, 99), max_size=30))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_results_come_in_the_order_of_the_items(workers: Workers, numbers: list[int]):
    assert list(workers.map(square, numbers)) == [n * n for n in numbers]


def test_a_slow_item_does_not_lose_its_place(two: Workers):
    assert list(two.map(slow_when_even, range(10))) == list(range(10))


def test_one_worker_is_this_process_and_works_when_asked(tmp_path: Path):
    paths = [str(tmp_path / name) for name in "ab"]
    with local_workers(1) as alone:
        results = alone.map(touch, paths)
        assert not list(tmp_path.iterdir())
        assert next(results) == paths[0]
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
        assert next(alone.map(process, [0]))[0] == os.getpid()


def test_only_some_items_are_taken_ahead_of_the_results(two: Workers):
    taken: list[int] = []

    class Watched(list[int]):
        def __iter__(self) -> Iterator[int]:
            for item in super().__iter__():
                taken.append(item)
                yield item

    results = two.map(square, Watched(range(100)))
    for count in range(10):
        next(results)
        assert len(taken) <= count + 1 + 4
    results.close()


def test_an_error_is_raised_as_it_was_at_its_place(workers: Workers):
    results = workers.map(refuse_three, range(100))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OptionError, match="3 is refused"):
        next(results)
    assert list(workers.map(square, [5])) == [25], "they go on working"


def test_after_an_error_nothing_new_is_begun(tmp_path: Path, two: Workers):
    paths = [str(tmp_path / "no" / "folder"), *(str(tmp_path / str(n)) for n in range(50))]
    with pytest.raises(FileNotFoundError):
        list(two.map(touch, paths))
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) <= 4 + 1


@pytest.mark.parametrize(("function", "item"), [(fail_oddly, 3), (lack, "ray")])
def test_an_error_that_cannot_travel_keeps_its_words(two: Workers, function, item):
    """Such an error would otherwise break the pool and look like a dead worker."""
    with pytest.raises(UniverbError, match="this and 3|'ray' is not installed") as raised:
        list(two.map(function, [item]))
    assert "killed" not in str(raised.value)
    assert list(two.map(square, [2])) == [4]


def test_a_killed_worker_is_named_as_such():
    with (
        pytest.raises(WorkerError, match="one of 2 worker processes was killed.*fewer"),
        local_workers(2) as workers,
    ):
        list(workers.map(die, range(6)))


def test_no_process_is_left_behind(tmp_path: Path):
    with local_workers(2) as workers:
        pids = {pid for pid, _ in workers.map(process, range(8))}
    assert pids and os.getpid() not in pids and not any(map(lives, pids))

    path = tmp_path / "pid"

    def interrupt() -> None:
        wait_for(lambda: path.exists() and path.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), local_workers(2) as workers:
        threading.Thread(target=interrupt).start()
        next(workers.map(hang, [str(path)]))
    assert not lives(int(path.read_text()))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path: Path, how: signal.Signals):
    path = tmp_path / "pid"
    script = """
        import sys
        from test_parallel import hang
        from univerb.parallel import local_workers
        with local_workers(2) as workers:
            next(workers.map(hang, sys.argv[1:]))
    """
    parent = start(script, path)
    assert wait_for(lambda: path.exists() and path.read_text())
    worker = int(path.read_text())
    assert lives(worker)
    os.killpg(parent.pid, how) if how == signal.SIGINT else parent.send_signal(how)
    _, err = parent.communicate(timeout=900)
    assert wait_for(lambda: not lives(worker))
    assert err.count(b"Traceback") <= 1, "a worker has nothing to say about it"


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with local_workers(2) as workers:
        assert {n for _, n in workers.map(process, range(4))} == {str(max(1, (cores or 1) // 2))}
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with local_workers(2) as workers:
        assert next(workers.map(process, [0]))[1] == "7", "what the user says holds"


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_a_number_of_workers_that_makes_no_sense_is_refused(count: int):
    for make in (local_workers, make_workers):
        with pytest.raises(OptionError, match=f"workers is {count}"):
            make(count)


def test_the_options_choose_the_workers(monkeypatch):
    with make_workers() as alone:
        assert next(alone.map(process, [0]))[0] == os.getpid()
    with pytest.raises(OptionError, match="leave the number out"):
        make_workers(2, "127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"univerb\[cluster\]"):
        make_workers(ray_address="127.0.0.1:1")


def test_a_cluster_that_does_not_answer(monkeypatch):
    def refuse(address: str, **_: object) -> None:
        raise ConnectionError(f"nobody at {address}.\nmore")

    ray = types.SimpleNamespace(is_initialized=lambda: False, init=refuse)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with (
        pytest.raises(WorkerError, match=r"answers at 'host:1': nobody at host:1\. Check"),
        make_workers(ray_address="host:1"),
    ):
        pass


RAY = """
    import os
    import ray
    from test_parallel import process, refuse_three, slow_when_even
    from univerb.errors import OptionError
    from univerb.parallel import make_workers

    if __name__ == "__main__":
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        with make_workers(1) as one, make_workers(2) as two:
            expected = [list(workers.map(slow_when_even, range(20))) for workers in (one, two)]
        with make_workers(ray_address="auto") as workers:
            assert [list(workers.map(slow_when_even, range(20)))] * 2 == expected
            try:
                list(workers.map(refuse_three, range(9)))
            except Exception as error:
                assert type(error) is OptionError and "3 is refused" in str(error), repr(error)
            pids = {pid for pid, _ in workers.map(process, range(8))}
            assert len(pids) <= 2 and os.getpid() not in pids, "processes are used again"
        assert ray.is_initialized(), "it leaves alone what it did not start"
        print("done")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_ray_gives_what_local_workers_give():
    ran = start(RAY)
    out, err = ran.communicate(timeout=900)
    assert out.split() == [b"done"], err.decode()


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Run a script in a session of its own, which finds this module."""
    here = str(Path(__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": f"{here}:{os.environ.get('PYTHONPATH', '')}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
