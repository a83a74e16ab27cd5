"""`univerb lab speed`: the requests of each workload, real systems, parts, and the command."""

import gzip
import json
from pathlib import Path

import pytest

from conftest import TEXT, make_llama, make_tokenizer, saved_encoder, stir
from univerb.applications import answer as answer_module
from univerb.documents.chunks import Chunk
from univerb.errors import CorpusError, DocumentError, OptionError
from univerb.lab.data import open_or_build
from univerb.lab.speed.parts import time_part
from univerb.lab.speed.run import make_plan
from univerb.lab.speed.systems import (
    SYSTEMS,
    HFSystem,
    LlamaSystem,
    SystemSettings,
    UniverbSystem,
)
from univerb.lab.speed.workloads import WORKLOADS, Request, make_requests, warm_up_requests
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.content import content_words

SPEED = ("lab", "speed")


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
    (folder / "wikitext103/wiki.test.tokens").write_text(articles)
    (folder / "law/lawmt.test.en").write_text(f"{TEXT}\nShort.\n{TEXT} More.\n")
    (folder / "law/jrc-acquis.en").write_text(f"{TEXT}\n\nThe tenant shall pay.\n")
    with gzip.open(folder / "law/eurlex.jsonl.gz", "wt") as file:
        file.write(json.dumps({"celex": "1", "title": "Act", "text": f"{TEXT} {TEXT}"}) + "\n")
    with gzip.open(folder / "wiki/train-00.jsonl.gz", "wt") as file:
        file.write(json.dumps({"id": "1", "title": "Lease", "text": f"{TEXT} {TEXT}"}) + "\n")
    docs = [{"title": f"Lease {n}", "text": f"{n}. {TEXT[:80]}"} for n in range(5)]
    items = [
        {"question": f"Who pays {n}?", "docs": docs, "qa_pairs": [], "annotations": []}
        for n in range(4)
    ]
    with gzip.open(folder / "asqa/asqa_200_with_docs.json.gz", "wt") as file:
        json.dump(items, file)
    return folder


class TestWorkloads:
    @pytest.mark.parametrize(("name", "corpus_name"), [("wikitext", "wiki"), ("law", "law")])
    def test_prefixes_with_a_corpus(self, lm, data, name, corpus_name):
        corpus = open_or_build(lm, corpus_name, data)
        requests = make_requests(lm, name, data, corpus, limit=8)
        assert len(requests) == {"wikitext": 3, "law": 2}[name]
        for request in requests:
            assert len(request.ids) == 32
            assert request.query == lm.tokenizer.decode(request.ids)
            every = {phrase.ids for phrase in corpus.vocabulary(lm, request.query)}
            # The corpus is as in the paper; what is timed is what users get.
            offered = list(loaded(lm, "univerb-torch-verify")._phrases(request))
            assert 0 < len(offered) < len(every) and {p.ids for p in offered} <= every
            assert all(content_words(phrase.text) for phrase in offered)
        assert open_or_build(lm, corpus_name, None).manifest == corpus.manifest

    def test_answers_have_the_prompt_of_answer(self, lm, data, monkeypatch):
        seen = {}

        def generate(lm, prompt, vocabulary, **options):
            seen["ids"], seen["phrases"] = prompt, {phrase.ids for phrase in vocabulary}
            raise KeyboardInterrupt

        monkeypatch.setattr(answer_module, "generate", generate)
        [request] = make_requests(lm, "answers", data, None, limit=1, max_tokens=16)
        documents = [Document(f"{n}. {TEXT[:80]}", f"{n + 1} Lease {n}") for n in range(3)]
        with pytest.raises(KeyboardInterrupt):
            answer_module.answer(lm, request.name, documents, max_tokens=16)
        assert list(request.ids) == seen["ids"]
        assert len(request.passages) == 3
        phrases = loaded(lm, "univerb-torch-verify")._phrases(request)
        assert {phrase.ids for phrase in phrases} == seen["phrases"]

    def test_demo(self, lm):
        requests = make_requests(lm, "demo", None, None, limit=4)
        assert all(request.passages and not request.corpus for request in requests)
        assert len({request.key for request in requests}) == 4

    def test_too_short(self, lm, data):
        (data / "law/lawmt.test.en").write_text("Short.\n")
        with pytest.raises(DocumentError, match="no text of more than 32 tokens"):
            make_requests(lm, "law", data, open_or_build(lm, "law", data))

    def test_a_corpus_of_another_model_is_refused(self, lm, data):
        folder = open_or_build(lm, "law", data).folder
        other = stir(DynamicLM.wrap(make_llama(), make_tokenizer()), seed=2)
        with pytest.raises(CorpusError, match="another encoder"):
            open_or_build(other, "law", data, folder)

    def test_a_corpus_needs_its_data(self, lm, data):
        (data / "wiki/train-00.jsonl.gz").unlink()
        with pytest.raises(DocumentError, match="--wiki-corpus"):
            open_or_build(lm, "wiki", data)

    def test_warm_up_is_for_each_origin_of_phrases_and_is_not_measured(self, lm):
        requests = [Request("law", "a", (1,), corpus="x"), Request("law", "b", (2,), corpus="x")]
        requests.append(Request("demo", "c", (3,), passages=(Chunk("d", 0, "text"),)))
        warm_up = warm_up_requests(lm, requests)
        assert [request.corpus for request in warm_up] == ["x", ""]
        assert warm_up[1].passages
        assert not {one.ids for one in warm_up} & {one.ids for one in requests}


def loaded(lm: DynamicLM, name: str) -> UniverbSystem:
    """A system over a model that is in this process already."""
    system = UniverbSystem.__new__(UniverbSystem)
    system._lm, system._corpora, system._has_phrases, system._control = lm, {}, True, None
    system._options = {"mode": SYSTEMS[name].mode}
    return system


class TestSystems:
    @pytest.fixture
    def settings(self, tmp_path) -> SystemSettings:
        folder = saved_encoder(tmp_path)
        return SystemSettings(str(folder), str(tmp_path / "tiny"), threads=1, context=256)

    @pytest.fixture
    def request_(self, lm) -> Request:
        ids = tuple(lm.tokenizer.encode_prompt(TEXT)[:32])
        return Request("demo", "lease", ids, passages=(Chunk("lease", 0, TEXT),))

    def test_all_write_as_many_tokens_and_lossless_ones_the_same(self, settings, request_):
        plain = HFSystem(settings, SYSTEMS["hf"]).write(request_, 12)
        assert (len(plain.ids), plain.steps, plain.prepare) == (12, 11, 0.0)
        assert plain.total == pytest.approx(plain.first + plain.decode)
        lookup = HFSystem(settings, SYSTEMS["hf-prompt-lookup"]).write(request_, 12)
        assert lookup.ids == plain.ids and lookup.steps <= 11
        for name in (one for one in SYSTEMS if one.startswith("univerb-torch")):
            system = UniverbSystem(settings, SYSTEMS[name])
            own = system.write(request_, 12)
            assert system.precision == ("float16" if "float16" in name else "float32")
            assert len(own.ids) == 12 and own.steps <= 11
            assert min(own.prefill, own.decode, own.prepare) >= 0
            assert (own.phrases > 1) == ("plain" not in name)
            assert "plain" not in name or (own.steps, own.phrase_tokens) == (11, 0)
            if SYSTEMS[name].mode in (None, "verify"):
                assert own.ids == plain.ids

    def test_a_corpus_is_opened_once(self, lm, data):
        corpus = open_or_build(lm, "law", data)
        [request] = make_requests(lm, "law", data, corpus, limit=1)
        system = loaded(lm, "univerb-torch-unfold")
        assert system.write(request, 4).phrases > 0
        assert system._corpus(request.corpus) is system._corpus(request.corpus)

    def test_llama_needs_a_gguf_file(self, settings):
        pytest.importorskip("llama_cpp")
        with pytest.raises(Exception, match="has no GGUF file"):
            LlamaSystem(settings)

    def test_llama_reads_the_file_that_univerb_computes_with(self, tmp_path, monkeypatch):
        pytest.importorskip("llama_cpp")
        from gguf import GGMLQuantizationType

        from tiny_gguf import write_gguf

        monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))
        layers = GGMLQuantizationType.Q4_1
        slow = write_gguf(tmp_path / "tiny.Q4_1.gguf", make_llama(), layers=layers)
        monkeypatch.setattr("univerb.lab.speed.systems.default_gguf", lambda: slow)
        system = LlamaSystem(SystemSettings("tiny", "smollm2-135m", 1, 64))
        assert system.precision == "GGUF Q8_0"
        assert len(system.write(Request("demo", "first", (5, 9, 17)), 4).ids) == 4


class TestParts:
    def test_each_gives_its_tables_and_says_what_is_timed(self, lm, tmp_path, monkeypatch):
        monkeypatch.setattr("univerb.lab.speed.parts.TOKENS", 4)
        (tmp_path / "lease.txt").write_text(" ".join([TEXT] * 5))
        paths = [str(tmp_path / "lease.txt")]
        tables = {"head": ["head", "short-list"], "encoding": ["encoding"]}
        for part, names in (tables | {"corpus": ["build", "request"]}).items():
            report = time_part(lm, part, paths, None, 2)
            assert [table.name for table in report.tables] == names
            assert report.about["precision"] == "float32" and "encod" in report.about["timed"]
            assert all(
                len(row) == len(table.header) for table in report.tables for row in table.rows
            )
        with pytest.raises(DocumentError, match="prompts of 32 tokens"):
            (tmp_path / "lease.txt").write_text("Too short.")
            time_part(lm, "head", paths, None, 2)


class TestCommand:
    def test_end_to_end(self, run, tmp_path, monkeypatch):
        """Real processes, tiny model; the report names no folder of this machine."""
        monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))
        encoder = saved_encoder(tmp_path)
        systems = ["--system", "hf", "--system", "univerb-torch-verify", "--system", "llama.cpp"]
        sizes = ["--limit", 2, "--max-tokens", 6, "--threads", 1, "--workload", "demo"]
        out = tmp_path / "out"
        ran = run(*SPEED, *systems, *sizes, "--model", encoder, "-o", out, "--json")
        assert ran.code == 0, ran.err
        times, work = (ran.json["tables"][name]["rows"] for name in ("demo", "demo: work"))
        assert [row["system"] for row in times] == ["hf", "univerb-torch-verify"]
        assert [row["precision"] for row in times] == ["float32", "float32"]
        assert work[1]["same text"] == "hf 2/2"
        assert all(row["peak MB"] > 10 for row in work)
        assert list(ran.json["not_measured"]) == ["llama.cpp"]
        facts = ("model", "seed", "threads", "timed", "requests", "corpora", "profile")
        assert set(facts) <= set(ran.json["about"])
        assert {path.name for path in out.iterdir()} == {"systems.json", "systems.md"}
        for path in out.iterdir():
            assert str(tmp_path) not in path.read_text()

    def test_a_part_is_shown_in_full(self, run, tmp_path):
        encoder = saved_encoder(tmp_path)
        (tmp_path / "lease.txt").write_text(" ".join([TEXT] * 5))
        given = ["--docs", tmp_path / "lease.txt", "--model", encoder, "-o", tmp_path / "out"]
        ran = run(*SPEED, "encoding", "--limit", 1, *given)
        assert ran.code == 0, ran.err
        assert "phrases / s" in ran.out and "shared prefixes" in ran.out
        assert (tmp_path / "out" / "encoding.md").read_text().startswith("# Speed")

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (["--system", "hff"], "Did you mean 'hf'?"),
            (["--workload", "demos"], "Did you mean 'demo'?"),
            (["--data", "/gone"], "gone"),
        ],
    )
    def test_mistakes_cost_no_loading(self, run, tmp_path, wrong, message):
        ran = run(*SPEED, *wrong, "-o", tmp_path)
        assert ran.code == 1 and message in ran.err

    def test_help_names_all_workloads(self, run):
        ran = run(*SPEED, "--help")
        assert ran.code == 0
        assert all(name in ran.out for name in WORKLOADS)


class TestPlans:
    def test_more_threads_than_processors_are_refused_before_anything_is_made(self, lm):
        with pytest.raises(OptionError, match="threads is 4096"):
            make_plan(lm, ["demo"], ["hf"], threads=4096)

    def test_a_text_that_does_not_fit_is_refused(self, lm):
        with pytest.raises(OptionError, match=r"positions; .* Lower --max-tokens"):
            make_plan(lm, ["demo"], ["hf"], max_tokens=lm.context_size)
