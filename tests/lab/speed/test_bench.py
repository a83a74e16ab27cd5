"""`univerb lab speed`: figures from rounds, runs that go on, prompts of workloads, the command."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import TEXT, make_llama, make_tokenizer, saved_encoder, stir
from univerb.documents.chunks import Chunk
from univerb.errors import CorpusError, DocumentError, OptionError, WorkerError
from univerb.lab.speed import run as bench
from univerb.lab.speed.plot import plot_bench
from univerb.lab.speed.report import (
    COLUMNS,
    break_even,
    break_even_text,
    cells,
    figures,
    markdown,
    spread,
    summary,
    to_dict,
)
from univerb.lab.speed.run import Plan, Round, Run, make_plan, run_bench, without_paths
from univerb.lab.speed.systems import (
    SYSTEMS,
    HFSystem,
    LlamaSystem,
    Measured,
    Setting,
    UniverbSystem,
    choose_systems,
)
from univerb.lab.speed.workloads import (
    WORKLOADS,
    Case,
    choose_workloads,
    detokenised,
    find_data,
    make_cases,
    open_or_build,
    warm_up_cases,
)
from univerb.modeling.dynamic import DynamicLM

SECONDS = st.floats(0.001, 100)
UNFOLD = "univerb-torch-unfold"


def measured(prepare=0.0, prefill=1.0, decode=2.0, **other) -> Measured:
    own = {"ids": [1, 2, 3, 4], "first": prepare + prefill, "steps": 3} | other
    return Measured(prepare=prepare, prefill=prefill, decode=decode, **own)


def a_round(workload="demo", **systems: Measured) -> Round:
    names = {"hf": "hf", "ours": UNFOLD, "llama": "llama.cpp"}
    return Round(workload, "one", 32, {names[name]: own for name, own in systems.items()})


class TestBreakEven:
    @given(SECONDS, SECONDS)
    def test_both_take_equally_long_there(self, extra, saved):
        length = break_even(extra, saved)
        assert math.isclose(extra, length * saved)

    def test_faster_from_the_start_and_with_each_token(self):
        assert break_even(-1.0, 0.5) == 0.0
        assert break_even(0.0, 0.5) == 0.0
        assert break_even(-1.0, 0.0) == 0.0

    def test_never(self):
        assert break_even(1.0, 0.0) is None
        assert break_even(1.0, -0.5) is None

    def test_what_does_not_stay_faster_never_pays(self):
        assert break_even(-1.0, -0.5) is None

    def test_of_rounds(self):
        one = a_round(hf=measured(decode=4.0), ours=measured(prepare=3.0, decode=2.0))
        found = figures([one], UNFOLD)
        assert found.break_even == 6.0
        assert break_even_text(found) == "6 tokens"
        assert break_even_text(figures([one], "hf")) == ""

    def test_in_words(self):
        quick = a_round(hf=measured(decode=4.0), ours=measured(decode=2.0))
        slow = a_round(hf=measured(decode=2.0), ours=measured(prepare=1.0, decode=2.5))
        assert break_even_text(figures([quick], UNFOLD)) == "at once"
        assert break_even_text(figures([slow], UNFOLD)) == "never"


class TestFigures:
    def test_ratios_are_taken_within_a_round(self):
        """The machine was ten times slower in the second round, for both."""
        rounds = [
            a_round(hf=measured(decode=3.0), ours=measured(decode=1.0)),
            a_round(
                hf=measured(prefill=10.0, decode=30.0), ours=measured(prefill=10.0, decode=10.0)
            ),
        ]
        found = figures(rounds, UNFOLD)
        assert found.ratios["hf"] == (0.5, 0.5, 0.5)
        assert found.decode_ratio.median == pytest.approx(1 / 3)
        assert "llama.cpp" not in found.ratios

    def test_times_are_for_128_base_tokens(self):
        found = figures([a_round(hf=measured(prepare=0.5))], "hf")
        assert (found.prepare, found.prefill, found.decode) == (16.0, 32.0, 64.0)
        assert found.total == 112.0
        assert found.first == 1.5

    @given(st.lists(SECONDS, min_size=1, max_size=9))
    def test_spread(self, values):
        middle, low, high = spread(values)
        assert min(values) <= low <= middle <= high <= max(values)

    def test_steps_phrases_memory_and_texts(self):
        rounds = [
            a_round(hf=measured(), ours=measured(steps=1, phrase_tokens=3, peak_mb=7.0)),
            a_round(hf=measured(), ours=measured(ids=[9] * 4, steps=1, phrase_tokens=1)),
        ]
        found = figures(rounds, UNFOLD)
        assert found.tokens_per_step == 2.0
        assert found.phrase_share == 0.5
        assert found.peak_mb == 7.0
        assert found.equal == {"hf": 1}


class TestReport:
    @pytest.fixture
    def ran(self) -> Run:
        one = a_round(hf=measured(), ours=measured(prepare=0.5, decode=1.0), llama=measured())
        return Run(
            {"model": "tiny", "threads": 2}, [one], {"univerb-llamacpp-plain": "no such thing"}
        )

    def test_markdown_has_a_row_for_each_system(self, ran):
        page = markdown(ran, "univerb lab speed --limit 1")
        assert "univerb lab speed --limit 1" in page
        assert "Not measured: univerb-llamacpp-plain: no such thing" in page
        rows = [line for line in page.splitlines() if line.startswith("| ")]
        assert [row.split(" | ")[0].strip("| ") for row in rows[2:]] == ["hf", UNFOLD, "llama.cpp"]
        assert {row.count("|") for row in rows} == {len(COLUMNS) + 1}

    def test_json_has_all_that_figures_are_made_of(self, ran):
        data = json.loads(json.dumps(to_dict(ran)))
        assert data["schema_version"] == 1
        found = {own["system"]: own for own in data["workloads"]["demo"]["systems"]}
        assert found[UNFOLD]["ratios"]["hf"]["median"] == pytest.approx(2.5 / 3)
        assert data["rounds"][0]["measured"]["hf"]["ids"] == [1, 2, 3, 4]

    def test_cells_fit_the_columns(self, ran):
        for own in summary(ran)["demo"]:
            assert len(cells(own)) == len(COLUMNS)

    def test_plot(self, ran, tmp_path):
        plot_bench(tmp_path / "bench.png", summary(ran), "tiny")
        assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")

    def test_plot_of_plain_systems_alone(self, tmp_path):
        plain = Run({}, [a_round(hf=measured())], {})
        plot_bench(tmp_path / "bench.png", summary(plain))
        assert (tmp_path / "bench.png").stat().st_size

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


class FakeWorker:
    """Writes at once; dies when its plan says so."""

    written: list[tuple[str, str]] = []
    left = 10**6

    def __init__(self, name, setting):
        self.name = name
        self.is_closed = False

    def wait_until_loaded(self):
        if self.name == "llama.cpp":
            raise WorkerError("there is no /opt/models/x.gguf.")

    def write(self, case, max_tokens):
        if case.workload == "warm-up":
            return measured()
        if FakeWorker.left <= 0:
            raise WorkerError("killed")
        FakeWorker.left -= 1
        FakeWorker.written.append((self.name, case.name))
        return measured(decode=float(len(FakeWorker.written)))

    def close(self):
        self.is_closed = True


class TestRun:
    @pytest.fixture(autouse=True)
    def fakes(self, monkeypatch):
        monkeypatch.setattr(bench, "Worker", FakeWorker)
        FakeWorker.written, FakeWorker.left = [], 10**6

    @pytest.fixture
    def plan(self) -> Plan:
        setting = Setting(model="tiny", backbone="tiny", threads=1, context=256)
        cases = [Case("demo", f"case {n}", (n, n)) for n in range(3)]
        return Plan(
            cases=cases,
            warm_up=[Case("warm-up", "", (1,))],
            systems=["hf", "hf-bf16", "llama.cpp"],
            setting=setting,
            about={"model": "tiny"},
        )

    def test_systems_take_turns_and_each_begins_once(self, plan):
        ran = run_bench(plan)
        assert [own.name for own in ran.rounds] == ["case 0", "case 1", "case 2"]
        names = [name for name, _ in FakeWorker.written]
        assert names == ["hf", "hf-bf16", "hf-bf16", "hf", "hf", "hf-bf16"]
        assert list(ran.rounds[1].measured) == ["hf", "hf-bf16"]

    def test_what_cannot_be_loaded_is_left_out_and_named(self, plan):
        assert run_bench(plan).not_measured == {"llama.cpp": "there is no x.gguf."}

    def test_none_can_be_loaded(self, plan):
        with pytest.raises(WorkerError, match=r"no system could be loaded. llama.cpp: there is"):
            run_bench(replace(plan, systems=["llama.cpp"]))

    @pytest.mark.parametrize("kill_after", range(6))
    def test_an_interrupted_run_goes_on_and_redoes_the_broken_round(
        self, tmp_path, plan, kill_after
    ):
        FakeWorker.left = kill_after
        with pytest.raises(WorkerError, match="killed"):
            run_bench(plan, tmp_path)
        FakeWorker.written, FakeWorker.left = [], 10**6
        ran = run_bench(plan, tmp_path)
        again = [name for _, name in FakeWorker.written]
        assert again == [f"case {n}" for n in range(kill_after // 2, 3) for _ in range(2)]
        assert len(ran.rounds) == 3

    def test_a_torn_line_is_measured_again(self, plan, tmp_path):
        run_bench(plan, tmp_path)
        [path] = (tmp_path / ".parts").iterdir()
        path.write_bytes(path.read_bytes()[:-20])
        FakeWorker.written = []
        run_bench(plan, tmp_path)
        assert {name for _, name in FakeWorker.written} == {"case 2"}

    @pytest.mark.parametrize(
        "change",
        [
            {"max_tokens": 64},
            {"systems": ["hf"]},
            {"about": {"model": "other"}},
            {"setting": Setting(model="tiny", backbone="tiny", threads=2, context=256)},
        ],
    )
    def test_other_settings_are_another_measurement(self, plan, tmp_path, change):
        run_bench(plan, tmp_path)
        FakeWorker.written = []
        run_bench(replace(plan, **change), tmp_path)
        assert len({name for _, name in FakeWorker.written}) == 3

    def test_parts_are_forgotten(self, plan, tmp_path):
        run_bench(plan, tmp_path)
        bench.forget_parts(tmp_path)
        assert list(tmp_path.iterdir()) == []


class TestNames:
    def test_unknown_system(self):
        with pytest.raises(OptionError, match="Did you mean 'hf-bf16'"):
            choose_systems(["hf-bf61"])

    def test_unknown_workload(self):
        with pytest.raises(OptionError, match="Did you mean 'wikitext'"):
            choose_workloads(["wikitxt"], None)

    def test_a_group_means_all_of_its_modes(self):
        found = choose_systems(["univerb-torch", "hf"])
        modes = ("plain", "unfold", "verify", "atomic")
        assert found == ["hf", *(f"univerb-torch-{mode}" for mode in modes)]
        assert choose_systems([]) == list(SYSTEMS)

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


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """A folder as the real one, with a few sentences."""
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    for name in ("wikitext103", "law", "asqa", "wiki"):
        (folder / name).mkdir(parents=True)
    articles = "".join(
        f" = Lease {n} = \n \n The tenant 's rent is 1 @,@ {n}00 . {TEXT} \n \n = = Part = = \n"
        for n in range(3)
    )
    unknown = f" = Lost = \n \n The <unk> shall pay . {TEXT} \n"
    (folder / "wikitext103/wiki.test.tokens").write_text(articles + unknown)
    (folder / "law/lawmt.test.en").write_text(f"{TEXT}\nShort.\n{TEXT} More.\n")
    (folder / "law/jrc-acquis.en").write_text(f"{TEXT}\n\nThe tenant shall pay.\n")
    with gzip.open(folder / "law/eurlex.jsonl.gz", "wt") as file:
        file.write(json.dumps({"celex": "1", "title": "Act", "text": f"{TEXT} {TEXT}"}) + "\n")
    with gzip.open(folder / "wiki/train-00.jsonl.gz", "wt") as file:
        file.write(json.dumps({"id": "1", "title": "Lease", "text": f"{TEXT} {TEXT}"}) + "\n")
    docs = [{"title": f"Lease {n}", "text": f"{n}. {TEXT[:80]}"} for n in range(5)]
    with gzip.open(folder / "asqa/asqa_200_with_docs.json.gz", "wt") as file:
        json.dump([{"question": f"Who pays {n}?", "docs": docs} for n in range(4)], file)
    return folder


class TestWorkloads:
    @pytest.mark.parametrize("name", ["wikitext", "law"])
    def test_prefixes_with_a_corpus(self, lm, data, name):
        corpus = open_or_build(lm, name, data)
        cases = make_cases(lm, name, data, corpus, limit=8)
        assert len(cases) == {"wikitext": 3, "law": 2}[name]
        for case in cases:
            assert len(case.ids) == 32
            assert list(case.ids) == lm.tokenizer.encode_prompt(case.query)[:32]
            assert len(corpus.vocabulary(lm, case.query)) > 0
        assert open_or_build(lm, name, None).manifest == corpus.manifest

    def test_answers_have_the_prompt_of_answer(self, lm, data, monkeypatch):
        from univerb.applications import answer as module

        seen = {}

        def generate(lm, prompt, vocabulary, **options):
            seen["ids"], seen["phrases"] = prompt, {phrase.ids for phrase in vocabulary}
            raise KeyboardInterrupt

        monkeypatch.setattr(module, "generate", generate)
        case = make_cases(lm, "answers", data, None, limit=1, max_tokens=16)[0]
        documents = [
            bench_document(n, text)
            for n, text in enumerate([f"{n}. {TEXT[:80]}" for n in range(3)])
        ]
        with pytest.raises(KeyboardInterrupt):
            module.answer(lm, case.name, documents, max_tokens=16)
        assert list(case.ids) == seen["ids"]
        assert len(case.passages) == 3
        system = univerb_system(lm, "verify")
        assert {phrase.ids for phrase in system._phrases(case)} == seen["phrases"]

    def test_demo(self, lm):
        cases = make_cases(lm, "demo", None, None, limit=4)
        assert len(cases) == 4
        assert all(case.passages and not case.corpus for case in cases)
        assert len({case.key for case in cases}) == 4

    def test_too_short(self, lm, data):
        (data / "law/lawmt.test.en").write_text("Short.\n")
        with pytest.raises(DocumentError, match="no text of 32 tokens"):
            make_cases(lm, "law", data, open_or_build(lm, "law", data))

    def test_a_corpus_of_another_model_is_refused(self, lm, data):
        folder = open_or_build(lm, "law", data).folder
        other = stir(DynamicLM.wrap(make_llama(), make_tokenizer()), seed=2)
        with pytest.raises(CorpusError, match="another encoder"):
            open_or_build(other, "law", data, folder)

    def test_a_corpus_needs_its_data(self, lm, data):
        (data / "wiki/train-00.jsonl.gz").unlink()
        with pytest.raises(DocumentError, match="--wiki-corpus"):
            open_or_build(lm, "wikitext", data)

    def test_warm_up_is_for_each_place_and_no_case(self, lm):
        cases = [Case("law", "a", (1,), corpus="x"), Case("law", "b", (2,), corpus="x")]
        cases.append(Case("demo", "c", (3,), passages=(Chunk("d", 0, "text"),)))
        found = warm_up_cases(lm, cases)
        assert [case.corpus for case in found] == ["x", ""]
        assert found[1].passages
        assert not {case.ids for case in found} & {case.ids for case in cases}

    @pytest.mark.parametrize(
        ("tokens", "text"),
        [
            (" He 's 1 @,@ 500 m ( 3 @.@ 2 ft ) tall . ", "He's 1,500 m (3.2 ft) tall."),
            (' " In Safe Hands " , a guest @-@ star " x "', '"In Safe Hands", a guest-star "x"'),
            ("It does n't ; why ?", "It doesn't; why?"),
        ],
    )
    def test_detokenised(self, tokens, text):
        assert detokenised(tokens) == text


def bench_document(number: int, text: str):
    from univerb.phrase import Document

    return Document(text, f"{number + 1} Lease {number}")


def univerb_system(lm: DynamicLM, mode: str | None) -> UniverbSystem:
    """A system over a model that is in this process already."""
    system = UniverbSystem.__new__(UniverbSystem)
    system._lm, system._mode, system._corpora = lm, mode, {}
    return system


class TestSystems:
    @pytest.fixture
    def setting(self, tmp_path) -> Setting:
        folder = saved_encoder(tmp_path)
        return Setting(str(folder), str(tmp_path / "tiny"), threads=1, context=256)

    @pytest.fixture
    def case(self, lm) -> Case:
        ids = tuple(lm.tokenizer.encode_prompt(TEXT)[:32])
        return Case("demo", "lease", ids, passages=(Chunk("lease", 0, TEXT),))

    def test_all_write_so_many_tokens_and_lossless_ones_the_same(self, setting, case):
        plain = HFSystem(setting, "float32").write(case, 12)
        assert (len(plain.ids), plain.steps, plain.prepare) == (12, 11, 0.0)
        assert plain.total == pytest.approx(plain.first + plain.decode)
        guessed = HFSystem(setting, "float32", lookup=3).write(case, 12)
        assert guessed.ids == plain.ids
        assert guessed.steps <= 11
        for name in ("plain", "unfold", "verify", "atomic"):
            own = UniverbSystem(setting, SYSTEMS[f"univerb-torch-{name}"]).write(case, 12)
            assert len(own.ids) == 12
            assert own.steps <= 11
            assert min(own.prefill, own.decode, own.prepare) >= 0
            assert own.prepare < own.first < own.total
            assert (own.phrases > 0) == (name != "plain")
            if name in ("plain", "verify"):
                assert own.ids == plain.ids

    def test_a_corpus_is_opened_once(self, lm, data):
        corpus = open_or_build(lm, "law", data)
        case = make_cases(lm, "law", data, corpus, limit=1)[0]
        system = univerb_system(lm, "unfold")
        assert system.write(case, 4).phrases > 0
        assert system._corpus(case.corpus) is system._corpus(case.corpus)

    def test_llama_needs_a_gguf_file(self, setting):
        pytest.importorskip("llama_cpp")
        with pytest.raises(Exception, match="has no GGUF file"):
            LlamaSystem(setting)


class TestCommand:
    def test_end_to_end(self, run, tmp_path, monkeypatch):
        """Real processes, tiny model; the report names no place of this machine."""
        monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))
        encoder = saved_encoder(tmp_path)
        systems = ["--system", "hf", "--system", "univerb-torch-verify", "--system", "llama.cpp"]
        sizes = ["--limit", 2, "--max-tokens", 6, "--threads", 1]
        out = tmp_path / "out"
        ran = run(
            "lab",
            "speed",
            "--workload",
            "demo",
            *systems,
            *sizes,
            "--model",
            encoder,
            "-o",
            out,
            "--json",
        )
        assert ran.code == 0, ran.err
        found = ran.json["workloads"]["demo"]["systems"]
        assert [own["system"] for own in found] == ["hf", "univerb-torch-verify"]
        assert found[1]["equal"] == {"hf": 2}
        assert all(own["peak_mb"] > 10 for own in found)
        assert list(ran.json["not_measured"]) == ["llama.cpp"]
        assert {path.name for path in out.iterdir()} == {"bench.json", "bench.md", "bench.png"}
        for page in ("bench.json", "bench.md"):
            assert str(tmp_path) not in (out / page).read_text()

    def test_unknown_names_cost_no_loading(self, run, tmp_path):
        ran = run("lab", "speed", "--system", "hff", "-o", tmp_path)
        assert ran.code == 1
        assert "Did you mean 'hf'?" in ran.err
        ran = run("lab", "speed", "--workload", "demos", "-o", tmp_path)
        assert ran.code == 1
        assert "Did you mean 'demo'?" in ran.err

    def test_missing_data(self, run, tmp_path):
        ran = run("lab", "speed", "--data", tmp_path / "gone", "-o", tmp_path)
        assert ran.code == 1
        assert "gone" in ran.err

    def test_help_names_all_workloads(self, run):
        ran = run("lab", "speed", "--help")
        assert ran.code == 0
        assert all(name in ran.out for name in WORKLOADS)


class TestPlans:
    def test_more_threads_than_processors_are_refused_before_anything_is_made(self, lm):
        with pytest.raises(OptionError, match="threads is 4096"):
            make_plan(lm, ["demo"], ["hf"], threads=4096)

    def test_a_text_that_does_not_fit_is_refused(self, lm):
        with pytest.raises(OptionError, match=r"positions; .* Lower --max-tokens"):
            make_plan(lm, ["demo"], ["hf"], max_tokens=lm.context_size)
