"""`univerb lab speed`: figures from rounds, runs that resume, simulations, names of systems."""

import json
from dataclasses import replace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.errors import DocumentError, OptionError, WorkerError
from univerb.lab.data import find_data
from univerb.lab.speed import run as speed_run
from univerb.lab.speed import workers
from univerb.lab.speed.figures import report_systems, time_figures, work_figures
from univerb.lab.speed.run import SpeedRound, SystemsPlan, SystemsRun, run_systems
from univerb.lab.speed.simulation import free_rows, simulate, speed_up
from univerb.lab.speed.systems import (
    REFERENCES,
    SYSTEMS,
    WIDTHS,
    Measurement,
    SystemSettings,
    choose_systems,
)
from univerb.lab.speed.timing import interleaved, paired_interval, ratio, spread
from univerb.lab.speed.workers import without_paths
from univerb.lab.speed.workloads import Request, choose_workloads

SECONDS = st.floats(0.001, 100)
PLAIN, VERIFY, LOOKUP = "torch-plain", "torch-verify", "hf-lookup-prepacked"


def measured(encode=0.0, prefill=1.0, decode=2.0, **other) -> Measurement:
    values = {"ids": [1, 2, 3, 4], "pass_rows": [1, 1, 1]} | other
    return Measurement(encode=encode, prefill=prefill, decode=decode, **values)


def a_round(*systems: tuple[str, Measurement]) -> SpeedRound:
    return SpeedRound("demo", "one", 32, dict(systems))


class TestIntervals:
    @given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=12))
    def test_the_median_is_inside_and_all_is_in_the_range(self, pairs):
        ours, theirs = zip(*pairs, strict=True)
        own = paired_interval(ours, theirs, resamples=100)
        assert own.least <= own.low <= own.high <= own.most
        assert own.median == pytest.approx(numpy.median(numpy.array(ours) / numpy.array(theirs)))

    def test_equal_ratios_leave_no_doubt_however_slow_the_machine_was(self):
        assert paired_interval([1, 10, 3], [2, 20, 6]) == (0.5,) * 5

    def test_more_prompts_narrow_it(self):
        draw = numpy.random.default_rng(1)
        few, many = (paired_interval(draw.uniform(0.5, 1, n), [1.0] * n) for n in (8, 200))
        assert many.high - many.low < few.high - few.low
        assert many.low < 0.75 < many.high

    def test_it_covers_the_median_nine_times_in_ten(self):
        draw = numpy.random.default_rng(0)
        trials = [paired_interval(draw.uniform(0, 1, 40), [1.0] * 40, 300) for _ in range(200)]
        assert 0.84 <= numpy.mean([own.low <= 0.5 <= own.high for own in trials]) <= 0.98


class TestFigures:
    def test_ratios_are_taken_within_a_round(self):
        """The machine was ten times slower in the second round, for both."""
        rounds = [
            a_round((PLAIN, measured(decode=3.0)), (VERIFY, measured(decode=1.0))),
            a_round(
                (PLAIN, measured(prefill=10.0, decode=30.0)),
                (VERIFY, measured(prefill=10.0, decode=10.0)),
            ),
        ]
        own = time_figures(rounds, VERIFY, "float32")
        assert own["x plain"] == (0.5,) * 5 and own["range"] == "0.50-0.50"
        assert own["decode x plain"].median == pytest.approx(1 / 3)
        assert own["x lookup"] is None and own["x verify"] is None
        assert time_figures(rounds, PLAIN)["x verify"].median == pytest.approx(2)

    def test_times_are_of_whole_requests_and_add_up(self):
        own = time_figures([a_round((PLAIN, measured(encode=0.5)))], PLAIN, "float32")
        parts = [own[f"{part} s"] for part in ("encode", "prefill", "decode")]
        assert parts == [0.5, 1.0, 2.0] and own["total s"] == sum(parts)
        assert (own["weights"], own["kernels"]) == ("float32", "torch prepacked")

    def test_passes_rows_phrases_and_texts(self):
        rounds = [
            a_round(
                (LOOKUP, measured(pass_rows=[1, 11])),
                (PLAIN, measured()),
                (VERIFY, measured(pass_rows=[3], phrase_tokens=3, phrases=7)),
            ),
            a_round(
                (LOOKUP, measured(pass_rows=[1, 11])),
                (PLAIN, measured()),
                (VERIFY, measured(ids=[9] * 4, pass_rows=[2, 2, 1], phrase_tokens=1, phrases=7)),
            ),
        ]
        own = work_figures(rounds, VERIFY)
        assert (own["passes"], own["rows"], own["tokens"], own["phrases"]) == (2, 4, 4, 7)
        assert (own["tokens / pass"], own["in phrases"]) == (1.5, 0.5)
        assert own["plain's text"] == "1 of 2" and own["passes x lookup"].median == 1.0
        assert work_figures(rounds, PLAIN)["plain's text"] == ""

    @given(st.lists(SECONDS, min_size=1, max_size=9))
    def test_spread(self, values):
        middle, low, high = spread(values)
        assert min(values) <= low <= middle <= high <= max(values)

    def test_parts_take_turns_and_the_first_round_does_not_count(self):
        calls = []
        systems = {name: lambda name=name: calls.append(name) for name in "ab"}
        seconds = interleaved(systems, rounds=3)
        assert calls == ["a", "b"] * 4
        assert [len(own) for own in seconds.values()] == [3, 3]
        assert ratio([1.0, 10.0], [2.0, 20.0]) == (0.5, 0.5, 0.5)


class TestSimulation:
    def test_rows_are_free_up_to_the_width(self):
        costs = free_rows(4)
        assert [costs(rows) for rows in (1, 2, 4, 8)] == [1.0, 1.0, 1.0, 2.0]
        assert simulate([1, 4, 8], costs) == 4.0
        assert simulate([64], costs) == 16.0

    @given(st.lists(st.integers(1, 100), min_size=1), st.sampled_from(WIDTHS))
    def test_a_wider_machine_is_never_slower(self, pass_rows, width):
        narrow, wide = simulate(pass_rows, free_rows(width)), simulate(pass_rows, free_rows(32))
        assert len(pass_rows) <= wide <= narrow

    def test_speed_up_is_passes_saved(self):
        assert speed_up(9, [4, 4], free_rows(4)) == 4.0
        assert speed_up(9, [8], free_rows(4)) == 4.0
        assert speed_up(9, [1] * 8, free_rows(8)) == 1.0


class TestReport:
    @pytest.fixture
    def ran(self) -> SystemsRun:
        wide = "torch-verify-wide-4"
        one = a_round(
            ("hf", measured()),
            (PLAIN, measured()),
            (VERIFY, measured(encode=0.5, decode=1.0, pass_rows=[4])),
            (wide, measured(pass_rows=[4])),
        )
        weights = dict.fromkeys(["hf", PLAIN, VERIFY, wide], "float32")
        failed = {"llamacpp-plain": "no such thing"}
        return SystemsRun({"model": "tiny", "threads": 2}, [one], weights, failed)

    def test_markdown_has_weights_and_kernels_of_each_system_that_is_timed(self, ran):
        page = report_systems(ran).markdown("univerb lab speed --limit 1")
        assert "univerb lab speed --limit 1" in page
        assert "Not measured: llamacpp-plain: no such thing" in page
        rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in row[:3]] for row in rows[2:5]]
        assert cells == [
            ["hf", "float32", "torch"],
            [PLAIN, "float32", "torch prepacked"],
            [VERIFY, "float32", "torch prepacked"],
        ]
        assert "## demo: simulation\n\nA simulation, not a measurement" in page

    def test_json_has_all_that_figures_are_made_of(self, ran):
        data = json.loads(json.dumps(report_systems(ran).to_dict()))
        rows = {row["system"]: row for row in data["tables"]["demo"]["rows"]}
        assert rows[VERIFY]["x plain"]["median"] == pytest.approx(2.5 / 3)
        simulated = {row["system"]: row for row in data["tables"]["demo: simulation"]["rows"]}
        assert simulated[VERIFY]["16 rows free"]["median"] == 3.0
        assert simulated["torch-verify-wide-4"]["16 rows free"] is None
        assert data["rounds"][0]["measured"]["hf"]["ids"] == [1, 2, 3, 4]

    @pytest.mark.parametrize(
        ("text", "left"),
        [
            ("'/home/me/model' is no folder", "'model' is no folder"),
            ("see ~/cache/univerb/x.gguf now", "see x.gguf now"),
            ("1/2 and and/or", "1/2 and and/or"),
            ("plain words", "plain words"),
        ],
    )
    def test_no_paths(self, text, left):
        assert without_paths(text) == left


class FakeProcess:
    """Writes at once; dies when its plan says so."""

    written: list[tuple[str, str]] = []
    loaded: list[str] = []
    left = 10**6
    row_costs = "1 row 1.00"

    def __init__(self, name, settings):
        self.name = name
        FakeProcess.loaded.append(name)

    def wait_until_loaded(self):
        if self.name == "llamacpp":
            raise WorkerError("there is no /opt/models/x.gguf.")
        return "", self.row_costs

    def write(self, system, request):
        if request.workload == "warm-up":
            if system == "torch-atomic":
                raise WorkerError("it has no encoder.")
            return measured()
        if FakeProcess.left <= 0:
            raise WorkerError("killed")
        FakeProcess.left -= 1
        FakeProcess.written.append((system, request.name))
        return measured(decode=float(len(FakeProcess.written)))

    def close(self):
        FakeProcess.loaded.remove(self.name)


class TestRun:
    @pytest.fixture(autouse=True)
    def fakes(self, monkeypatch):
        monkeypatch.setattr(workers, "HostProcess", FakeProcess)
        FakeProcess.written, FakeProcess.loaded, FakeProcess.left = [], [], 10**6

    @pytest.fixture
    def plan(self) -> SystemsPlan:
        return SystemsPlan(
            requests=[Request("demo", f"case {n}", (n, n), (), 4) for n in range(3)],
            warm_up=Request("warm-up", "", (1,), (), 8),
            systems=["hf", VERIFY, "torch-atomic", "llamacpp-plain", "llamacpp-verify"],
            settings=SystemSettings(model="tiny", threads=1, context=256),
            about={"model": "tiny"},
        )

    def test_systems_take_turns_and_each_begins_once(self, plan):
        ran = run_systems(plan)
        assert [own.name for own in ran.rounds] == ["case 0", "case 1", "case 2"]
        assert [name for name, _ in FakeProcess.written] == [
            "hf",
            VERIFY,
            VERIFY,
            "hf",
            "hf",
            VERIFY,
        ]
        assert list(ran.rounds[1].measured) == ["hf", VERIFY]
        assert FakeProcess.loaded == []

    def test_what_cannot_be_loaded_or_cannot_write_is_left_out_and_named(self, plan):
        ran = run_systems(plan)
        missing = "there is no x.gguf."
        assert ran.not_measured == {
            "torch-atomic": "it has no encoder.",
            "llamacpp-plain": missing,
            "llamacpp-verify": missing,
        }
        assert ran.weights == {"hf": "float32", VERIFY: "float32"}

    def test_none_can_be_loaded(self, plan):
        with pytest.raises(WorkerError, match=r"no system could be loaded. llamacpp-plain: there"):
            run_systems(replace(plan, systems=["llamacpp-plain"]))

    @pytest.mark.parametrize("kill_after", range(6))
    def test_an_interrupted_run_goes_on_and_redoes_the_broken_round(
        self, tmp_path, plan, kill_after
    ):
        FakeProcess.left = kill_after
        with pytest.raises(WorkerError, match="killed"):
            run_systems(plan, tmp_path)
        FakeProcess.written, FakeProcess.left = [], 10**6
        ran = run_systems(plan, tmp_path)
        again = [name for _, name in FakeProcess.written]
        assert again == [f"case {n}" for n in range(kill_after // 2, 3) for _ in range(2)]
        assert len(ran.rounds) == 3

    def test_a_torn_line_is_measured_again(self, plan, tmp_path):
        run_systems(plan, tmp_path)
        [path] = (tmp_path / ".rounds").glob("*.jsonl")
        path.write_bytes(path.read_bytes()[:-20])
        FakeProcess.written = []
        run_systems(plan, tmp_path)
        assert {name for _, name in FakeProcess.written} == {"case 2"}

    @pytest.mark.parametrize(
        "change",
        [
            {"requests": [Request("demo", f"case {n}", (n, n), (), 5) for n in range(3)]},
            {"systems": ["hf"]},
            {"about": {"model": "other"}},
            {"settings": SystemSettings(model="tiny", threads=2, context=256)},
        ],
    )
    def test_other_settings_are_another_measurement(self, plan, tmp_path, change):
        run_systems(plan, tmp_path)
        FakeProcess.written = []
        run_systems(replace(plan, **change), tmp_path)
        assert len({name for _, name in FakeProcess.written}) == 3

    def test_other_row_costs_are_another_measurement(self, plan, tmp_path, monkeypatch):
        assert run_systems(plan, tmp_path).about["row costs"] == "torch: 1 row 1.00"
        FakeProcess.written = []
        monkeypatch.setattr(FakeProcess, "row_costs", "1 row 1.00, 8 rows 2.00")
        run_systems(plan, tmp_path)
        assert len({name for _, name in FakeProcess.written}) == 3

    def test_parts_are_forgotten(self, plan, tmp_path):
        run_systems(plan, tmp_path)
        speed_run.forget_rounds(tmp_path)
        assert list(tmp_path.iterdir()) == []


class TestNames:
    def test_unknown_system(self):
        with pytest.raises(OptionError, match="Did you mean 'torch-verify'"):
            choose_systems(["torch-verfy"])

    def test_unknown_workload(self):
        with pytest.raises(OptionError, match="Did you mean 'summaries'"):
            choose_workloads(["summarys"], None)

    def test_a_group_means_all_of_its_systems(self):
        names = choose_systems(["llamacpp", "hf"])
        assert names[0] == "hf" and {SYSTEMS[name].group for name in names[1:]} == {"llamacpp"}
        assert choose_systems([]) == list(SYSTEMS)

    def test_systems_are_compared_with_the_same_weights_and_kernels(self):
        for spec in SYSTEMS.values():
            for name in REFERENCES[spec.group]:
                reference = SYSTEMS[name]
                assert reference.dtype == spec.dtype
                assert spec.kernels == "torch" or reference.kernels == spec.kernels

    def test_missing_data(self, tmp_path, monkeypatch):
        monkeypatch.setenv("UNIVERB_DATA", str(tmp_path / "gone"))
        with pytest.raises(DocumentError, match="gone"):
            find_data()
        with pytest.raises(DocumentError, match=r"needs 'law/eurlex.jsonl.gz'"):
            choose_workloads(["law"], tmp_path)

    def test_without_data_the_demo_runs(self, tmp_path, monkeypatch):
        monkeypatch.delenv("UNIVERB_DATA", raising=False)
        monkeypatch.chdir(tmp_path)
        assert find_data() is None
        assert choose_workloads([], None) == ["demo"]


def test_a_process_that_has_died_between_two_requests_is_an_error_that_says_so():
    settings = SystemSettings(model="no-such-model-anywhere", threads=1, context=256, offline=True)
    process = workers.HostProcess("torch", settings)
    with pytest.raises(WorkerError):
        process.wait_until_loaded()
    process._process.join()  # it ends when it has said why
    with pytest.raises(WorkerError, match="died"):
        process.write("torch-plain", Request("demo", "", (1,), (), 4))
    process.close()
