"""`univerb lab speed`: figures from rounds, runs that resume, requests of each workload."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.errors import DocumentError, OptionError, WorkerError
from univerb.lab.data import find_data
from univerb.lab.speed import run as speed_run
from univerb.lab.speed import workers
from univerb.lab.speed.figures import break_even, figures, report_systems
from univerb.lab.speed.run import SpeedRound, SystemsPlan, SystemsRun, run_systems
from univerb.lab.speed.systems import (
    SYSTEMS,
    Measurement,
    SystemSettings,
    choose_systems,
    gguf_precision,
)
from univerb.lab.speed.timing import interleaved, ratio, spread
from univerb.lab.speed.workers import without_paths
from univerb.lab.speed.workloads import Request, choose_workloads

SECONDS = st.floats(0.001, 100)
UNFOLD = "univerb-torch-unfold"


def measured(prepare=0.0, prefill=1.0, decode=2.0, **other) -> Measurement:
    own = {"ids": [1, 2, 3, 4], "first": prepare + prefill, "steps": 3} | other
    return Measurement(prepare=prepare, prefill=prefill, decode=decode, **own)


def a_round(workload="demo", **systems: Measurement) -> SpeedRound:
    names = {"hf": "hf", "ours": UNFOLD, "llama": "llama.cpp"}
    return SpeedRound(workload, "one", 32, {names[name]: own for name, own in systems.items()})


class TestBreakEven:
    @given(SECONDS, SECONDS)
    def test_both_take_equally_long_there(self, extra, saved):
        length = break_even(extra, saved)
        assert math.isclose(extra, length * saved)

    @pytest.mark.parametrize(
        ("extra", "saved", "length"),
        [
            (-1.0, 0.5, 0.0),
            (0.0, 0.5, 0.0),
            (-1.0, 0.0, 0.0),
            (1.0, 0.0, None),
            (1.0, -0.5, None),
            # Faster at first, but not for long.
            (-1.0, -0.5, None),
        ],
    )
    def test_at_once_and_never(self, extra, saved, length):
        assert break_even(extra, saved) == length

    @pytest.mark.parametrize(
        ("hf", "ours", "text"),
        [
            (measured(decode=4.0), measured(prepare=3.0, decode=2.0), "6 tokens"),
            (measured(decode=4.0), measured(decode=2.0), "at once"),
            (measured(decode=2.0), measured(prepare=1.0, decode=2.5), "never"),
        ],
    )
    def test_of_rounds(self, hf, ours, text):
        one = a_round(hf=hf, ours=ours)
        assert figures([one], UNFOLD)["break-even"] == text
        assert figures([one], "hf")["break-even"] == ""


class TestFigures:
    def test_ratios_are_taken_within_a_round(self):
        """The machine was ten times slower in the second round, for both."""
        rounds = [
            a_round(hf=measured(decode=3.0), ours=measured(decode=1.0)),
            a_round(
                hf=measured(prefill=10.0, decode=30.0), ours=measured(prefill=10.0, decode=10.0)
            ),
        ]
        own = figures(rounds, UNFOLD)
        assert own["x hf"] == (0.5, 0.5, 0.5)
        assert own["decode x plain"].median == pytest.approx(1 / 3)
        assert own["x llama.cpp"] is None

    def test_times_are_for_128_base_tokens(self):
        own = figures([a_round(hf=measured(prepare=0.5))], "hf")
        assert (own["prepare"], own["prefill"], own["decode"]) == (16.0, 32.0, 64.0)
        assert (own["total s"], own["first token s"]) == (112.0, 1.5)

    @given(st.lists(SECONDS, min_size=1, max_size=9))
    def test_spread(self, values):
        middle, low, high = spread(values)
        assert min(values) <= low <= middle <= high <= max(values)

    def test_steps_phrases_memory_and_texts(self):
        rounds = [
            a_round(hf=measured(), ours=measured(steps=1, phrase_tokens=3, peak_mb=7.0)),
            a_round(hf=measured(), ours=measured(ids=[9] * 4, steps=1, phrase_tokens=1)),
        ]
        own = figures(rounds, UNFOLD)
        assert (own["tokens / step"], own["in phrases"], own["peak MB"]) == (2.0, 0.5, 7)
        assert own["same text"] == "hf 1/2"

    def test_systems_take_turns_and_the_first_round_does_not_count(self):
        calls = []
        systems = {name: lambda name=name: calls.append(name) for name in "ab"}
        seconds = interleaved(systems, rounds=3)
        assert calls == ["a", "b"] * 4
        assert [len(own) for own in seconds.values()] == [3, 3]
        assert ratio([1.0, 10.0], [2.0, 20.0]) == (0.5, 0.5, 0.5)


class TestReport:
    @pytest.fixture
    def ran(self) -> SystemsRun:
        one = a_round(hf=measured(), ours=measured(prepare=0.5, decode=1.0), llama=measured())
        precision = {"hf": "float32", UNFOLD: "float32", "llama.cpp": "GGUF Q4_1"}
        failed = {"univerb-llamacpp-plain": "no such thing"}
        return SystemsRun({"model": "tiny", "threads": 2}, [one], precision, failed)

    def test_markdown_has_a_row_with_its_precision_for_each_system(self, ran):
        page = report_systems(ran).markdown("univerb lab speed --limit 1")
        assert "univerb lab speed --limit 1" in page
        assert "Not measured: univerb-llamacpp-plain: no such thing" in page
        rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
        names = {row[0].strip("| "): row[1].strip() for row in rows[2:5]}
        assert names == ran.precision

    def test_json_has_all_that_figures_are_made_of(self, ran):
        data = json.loads(json.dumps(report_systems(ran).to_dict()))
        rows = {row["system"]: row for row in data["tables"]["demo"]["rows"]}
        assert rows[UNFOLD]["x hf"]["median"] == pytest.approx(2.5 / 3)
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
    left = 10**6

    def __init__(self, name, settings):
        self.name = name
        self.is_closed = False

    def wait_until_loaded(self):
        if self.name == "llama.cpp":
            raise WorkerError("there is no /opt/models/x.gguf.")
        return "float32"

    def write(self, request, max_tokens):
        if request.workload == "warm-up":
            return measured()
        if FakeProcess.left <= 0:
            raise WorkerError("killed")
        FakeProcess.left -= 1
        FakeProcess.written.append((self.name, request.name))
        return measured(decode=float(len(FakeProcess.written)))

    def close(self):
        self.is_closed = True


class TestRun:
    @pytest.fixture(autouse=True)
    def fakes(self, monkeypatch):
        monkeypatch.setattr(workers, "SystemProcess", FakeProcess)
        FakeProcess.written, FakeProcess.left = [], 10**6

    @pytest.fixture
    def plan(self) -> SystemsPlan:
        settings = SystemSettings(model="tiny", backbone="tiny", threads=1, context=256)
        requests = [Request("demo", f"case {n}", (n, n)) for n in range(3)]
        return SystemsPlan(
            requests=requests,
            warm_up=[Request("warm-up", "", (1,))],
            systems=["hf", "hf-bfloat16", "llama.cpp"],
            settings=settings,
            about={"model": "tiny"},
        )

    def test_systems_take_turns_and_each_begins_once(self, plan):
        ran = run_systems(plan)
        assert [own.name for own in ran.rounds] == ["case 0", "case 1", "case 2"]
        names = [name for name, _ in FakeProcess.written]
        assert names == ["hf", "hf-bfloat16", "hf-bfloat16", "hf", "hf", "hf-bfloat16"]
        assert list(ran.rounds[1].measured) == ["hf", "hf-bfloat16"]

    def test_what_cannot_be_loaded_is_left_out_and_named(self, plan):
        assert run_systems(plan).not_measured == {"llama.cpp": "there is no x.gguf."}

    def test_none_can_be_loaded(self, plan):
        with pytest.raises(WorkerError, match=r"no system could be loaded. llama.cpp: there is"):
            run_systems(replace(plan, systems=["llama.cpp"]))

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
            {"max_tokens": 64},
            {"systems": ["hf"]},
            {"about": {"model": "other"}},
            {"settings": SystemSettings(model="tiny", backbone="tiny", threads=2, context=256)},
        ],
    )
    def test_other_settings_are_another_measurement(self, plan, tmp_path, change):
        run_systems(plan, tmp_path)
        FakeProcess.written = []
        run_systems(replace(plan, **change), tmp_path)
        assert len({name for _, name in FakeProcess.written}) == 3

    def test_parts_are_forgotten(self, plan, tmp_path):
        run_systems(plan, tmp_path)
        speed_run.forget_rounds(tmp_path)
        assert list(tmp_path.iterdir()) == []


class TestNames:
    def test_unknown_system(self):
        with pytest.raises(OptionError, match="Did you mean 'hf-bfloat16'"):
            choose_systems(["hf-bfloat61"])

    def test_unknown_workload(self):
        with pytest.raises(OptionError, match="Did you mean 'wikitext'"):
            choose_workloads(["wikitxt"], None)

    def test_a_group_means_all_of_its_modes(self):
        names = choose_systems(["univerb-torch", "hf"])
        modes = ("plain", "verify", "unfold", "atomic", "plain-float16", "unfold-float16")
        assert names == ["hf", *(f"univerb-torch-{mode}" for mode in modes)]
        assert choose_systems([]) == list(SYSTEMS)

    def test_every_system_is_compared_in_its_own_precision_and_its_name_says_half(self):
        for name, spec in SYSTEMS.items():
            assert SYSTEMS[spec.plain].mode is None
            if spec.mode is not None:
                assert SYSTEMS[spec.plain].dtype == spec.dtype
            if spec.dtype not in ("float32", ""):
                assert name.endswith(spec.dtype)

    @pytest.mark.parametrize(
        ("file", "precision"),
        [
            ("SmolLM2-135M-Instruct.Q4_1.gguf", "GGUF Q4_1"),
            ("model-f16.gguf", "GGUF F16"),
            ("model.gguf", "GGUF"),
        ],
    )
    def test_the_precision_of_a_gguf_file(self, file, precision):
        assert gguf_precision(Path(file)) == precision

    def test_missing_data(self, tmp_path, monkeypatch):
        monkeypatch.setenv("UNIVERB_DATA", str(tmp_path / "gone"))
        with pytest.raises(DocumentError, match="gone"):
            find_data()
        with pytest.raises(DocumentError, match=r"needs 'law/lawmt.test.en'"):
            choose_workloads(["law"], tmp_path)

    def test_without_data_the_demo_runs(self, tmp_path, monkeypatch):
        monkeypatch.delenv("UNIVERB_DATA", raising=False)
        monkeypatch.chdir(tmp_path)
        assert find_data() is None
        assert choose_workloads([], None) == ["demo"]
