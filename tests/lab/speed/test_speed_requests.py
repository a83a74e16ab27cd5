"""`univerb lab speed`: the requests of each workload, real systems, parts, and the command."""

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from conftest import TEXT, make_circling, make_gpt2, make_llama, make_tokenizer, saved_encoder, stir
from univerb.applications.passages import find_passages
from univerb.decoding.loop import generate
from univerb.decoding.repetition import WrittenNGrams
from univerb.documents.chunks import Chunk
from univerb.errors import DocumentError, MissingExtra, ModelMissing, OptionError
from univerb.lab.protocols.numbered_prompt import numbered_prompt_ids
from univerb.lab.protocols.passages import is_held_out
from univerb.lab.speed import workloads
from univerb.lab.speed.hosts import UniverbHost, gguf_precision, load_host, prompt_lookup
from univerb.lab.speed.parts import time_part
from univerb.lab.speed.run import make_plan
from univerb.lab.speed.systems import LOOKUP_TOKENS, SYSTEMS, SystemSettings
from univerb.lab.speed.workloads import (
    WORKLOADS,
    Request,
    RequestMaker,
    choose_workloads,
    make_requests,
    warm_up_request,
)
from univerb.loading import load
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

SPEED = ("lab", "speed")
TORCH = [name for name, spec in SYSTEMS.items() if spec.host == "torch"]


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


def write_lines(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def data(tmp_path) -> Path:
    """A folder as the real one, with a few sentences."""
    folder = tmp_path / "data"
    long = [
        {"id": f"v{n}", "title": "Lease", "text": f"{n} leases.\n{TEXT} {TEXT}"} for n in range(9)
    ]
    write_lines(folder / "wiki/valid.jsonl.gz", [*long, {"id": "s", "title": "S", "text": "Short"}])
    others = [{"id": f"t{n}", "title": "Lease", "text": f"Other {n}. {TEXT}"} for n in range(3)]
    write_lines(folder / "wiki/train-00.jsonl.gz", others)
    acts = [{"celex": str(n), "title": "Act", "text": f"Act {n}. {TEXT}"} for n in range(40)]
    write_lines(folder / "law/eurlex.jsonl.gz", acts)
    docs = [{"title": f"Lease {n}", "text": f"{n}. {TEXT[:80]}"} for n in range(5)]
    items = [
        {"question": f"Who pays {n}?", "docs": docs, "qa_pairs": [], "annotations": []}
        for n in range(60)
    ]
    (folder / "asqa").mkdir()
    with gzip.open(folder / "asqa/asqa_200_with_docs.json.gz", "wt") as file:
        json.dump(items, file)
    return folder


class TestWorkloads:
    @pytest.fixture
    def make(self, lm, data) -> RequestMaker:
        return RequestMaker(lm, data, limit=4, max_tokens=16, passages=2)

    @pytest.mark.parametrize("name", ["open", "law"])
    def test_beginnings_have_passages_of_other_texts(self, make, name):
        requests = make_requests(name, make)
        assert 0 < len(requests) <= 4
        for request in requests:
            assert len(request.ids) == 64 and request.max_tokens == 16
            assert len(request.passages) == 2
            origins = {passage.document for passage in request.passages}
            if name == "open":
                assert request.name.startswith("valid") and request.name != "valid.jsonl.gz#s"
                assert all(origin.startswith("train-00") for origin in origins)
            else:
                assert is_held_out(request.name) and not any(map(is_held_out, origins))

    def test_answers_show_numbered_documents_and_leave_development_alone(self, make, lm):
        first, *others = make_requests("answers", make)
        documents = [Document(f"{n}. {TEXT[:80]}", f"{n + 1} Lease {n}") for n in range(3)]
        shown = find_passages(first.name, documents, 3)
        ids, passages = numbered_prompt_ids(lm, first.name, shown, 4096, is_chat=False)
        assert list(first.ids) == ids and first.passages == passages and len(passages) == 3
        assert first.name == "Who pays 40?" and len(others) == 3

    @pytest.mark.parametrize("name", ["open", "law"])
    def test_texts_may_be_continued_from_their_middle(self, lm, data, name):
        make = RequestMaker(lm, data, 4, 16, 2, middle_words=6)
        for request in make_requests(name, make):
            begin = lm.tokenizer.decode(request.ids)
            assert len(begin.split()) == 6 and begin[-1].isalpha()

    def test_summaries_show_the_article_and_are_as_long_as_its_first_paragraph(self, lm, data):
        [short] = make_requests("summaries", RequestMaker(lm, data, 1, 16, 2))
        assert short.max_tokens == 16 and TEXT in lm.tokenizer.decode(short.ids)
        paragraph = " ".join(["the tenant shall pay"] * 30)
        write_lines(data / "wiki/valid.jsonl.gz", [{"id": "a", "title": "A", "text": paragraph}])
        [long] = make_requests("summaries", RequestMaker(lm, data, 1, 200, 2))
        assert long.max_tokens == len(lm.tokenizer.encode(paragraph).ids) > 64

    def test_a_long_article_is_cut_to_the_context(self, lm, data):
        article = {"id": "a", "title": "A", "text": " ".join([TEXT] * 30)}
        write_lines(data / "wiki/valid.jsonl.gz", [article])
        [request] = make_requests("summaries", RequestMaker(lm, data, 1, 64, 2))
        assert len(request.ids) + request.max_tokens <= lm.context_size
        assert article["text"].startswith(request.passages[0].text)

    def test_demo_needs_no_data(self, lm):
        requests = make_requests("demo", RequestMaker(lm, Path("gone"), 4, 16, 2))
        assert all(request.passages and len(request.ids) == 32 for request in requests)
        assert len({request.key for request in requests}) == 4

    def test_requests_of_a_run_differ_by_all_that_they_hold(self, lm):
        one = Request("demo", "a", (1, 2), (), 8)
        others = [
            Request("demo", "a", (1, 3), (), 8),
            Request("demo", "a", (1, 2), (Chunk("d", 0, "text"),), 8),
            Request("demo", "a", (1, 2), (), 9),
        ]
        assert len({request.key for request in (one, *others)}) == 4

    def test_too_short(self, make):
        write_lines(make.data / "wiki/valid.jsonl.gz", [{"id": "s", "title": "S", "text": "Hi"}])
        with pytest.raises(DocumentError, match="no prompt of more than 64 tokens"):
            make_requests("open", make)

    def test_a_request_ends_where_the_plain_text_does_and_short_ones_are_left_out(
        self, data, monkeypatch
    ):
        monkeypatch.setattr(workloads, "_SHORTEST", 2)
        lm = DynamicLM.wrap(make_circling(), make_tokenizer())
        make = RequestMaker(lm, data, limit=5, max_tokens=30, passages=2)
        endless = make_requests("open", make)
        assert {request.max_tokens for request in endless} == {30}
        written = generate(lm, endless[0].ids, max_tokens=30).pieces
        end = written[4].ids[0]
        lm.model.generation_config.eos_token_id = end
        told: list[tuple[int, int]] = []
        requests = make_requests("open", make, lambda _, done, total: told.append((done, total)))
        count = len(requests)
        assert told == [*((done, 5) for done in range(1, count + 1)), (count, count)]
        assert requests[0].ids == endless[0].ids
        for request in requests:
            text = generate(lm, request.ids, max_tokens=30, ignore_eos=True)
            ids = [token for piece in text.pieces for token in piece.ids]
            assert request.max_tokens == ids.index(end) >= 2
        monkeypatch.setattr(workloads, "_SHORTEST", 20)
        with pytest.raises(DocumentError, match="after which the plain LM writes 20 tokens"):
            make_requests("open", make)

    def test_missing_data_is_named(self, data):
        assert choose_workloads([], data) == ["open", "law", "answers", "summaries"]
        (data / "wiki/train-00.jsonl.gz").unlink()
        with pytest.raises(DocumentError, match=r"'open' needs 'wiki/train-00.jsonl.gz'.*--data"):
            choose_workloads(["open"], data)
        assert choose_workloads([], data) == ["law", "answers", "summaries"]


@pytest.fixture(scope="module", params=[make_llama, make_gpt2, make_circling])
def host(request) -> UniverbHost:
    return UniverbHost(stir(DynamicLM.wrap(request.param(), make_tokenizer())))


@pytest.fixture(scope="module")
def request_(lm) -> Request:
    ids = tuple(lm.tokenizer.encode_prompt(TEXT)[:40])
    return Request("demo", "lease", ids, (Chunk("lease", 0, TEXT),), 12)


class TestSystems:
    def test_all_write_as_many_tokens_and_lossless_ones_the_same(self, host, request_):
        measured = {name: host.write(SYSTEMS[name], request_) for name in TORCH}
        assert measured["hf"].pass_rows == measured["torch-plain"].pass_rows == [1] * 11
        for name, cost in measured.items():
            spec = SYSTEMS[name]
            assert len(cost.ids) == 12 and 0 < cost.passes <= 11
            assert min(cost.prefill, cost.decode) > 0 and (cost.encode > 0) == bool(spec.mode)
            assert cost.total == pytest.approx(cost.encode + cost.prefill + cost.decode)
            assert (cost.phrases > 0) == bool(spec.mode)
            if spec.dtype == "float32" and spec.mode in (None, "verify"):
                assert cost.ids == measured["hf"].ids, name

    @pytest.mark.parametrize("make_model", [make_gpt2, make_circling])
    def test_repetition_control_is_the_same_for_all(self, make_model, request_):
        lm = stir(DynamicLM.wrap(make_model(), make_tokenizer()))
        host = UniverbHost(lm, no_repeat_ngram_size=2)
        request = replace(request_, max_tokens=30)
        measured = {name: host.write(SYSTEMS[name], request) for name in TORCH}
        free = UniverbHost(lm).write(SYSTEMS["torch-plain"], request)
        assert measured["hf"].ids != free.ids
        for name, cost in measured.items():
            ids = [*request.ids, *cost.ids]
            before = set(pairwise(request.ids))
            written = list(pairwise(ids[len(request.ids) - 1 :]))
            assert len(set(written) - before) == len(written), name
            spec = SYSTEMS[name]
            if spec.dtype == "float32" and spec.mode in (None, "verify"):
                assert cost.ids == measured["hf"].ids, name
        # Nobody drafts what would be masked; HF has a draft with the prompt already.
        ours, theirs = (sum(measured[f"{n}"].pass_rows) for n in ("torch-lookup", "hf-lookup"))
        assert abs(ours - theirs) <= LOOKUP_TOKENS + 1

    def test_half_precision_is_for_the_whole_group_and_for_nothing_else(
        self, host, request_, monkeypatch
    ):
        from univerb.engines.torch.prepacked import Float16Linear, Float32Linear

        used = set()

        def watch(multiply):
            return lambda layer, rows: used.add(type(layer)) or multiply(layer, rows)

        for kind in (Float16Linear, Float32Linear):
            monkeypatch.setattr(kind, "multiply", watch(kind.multiply))
        monkeypatch.setattr("torch.get_num_threads", lambda: 2)
        for name in TORCH:
            used.clear()
            host.write(SYSTEMS[name], request_)
            kernels = {"float16": {Float16Linear}, "float32": {Float32Linear}}[SYSTEMS[name].dtype]
            assert used == (kernels if SYSTEMS[name].kernels == "torch prepacked" else set()), name

    def test_a_request_finds_no_vectors_of_another_one(self, host, request_):
        first, second = (host.write(SYSTEMS["torch-verify"], request_) for _ in range(2))
        encoded = []
        encode = host._lm.run_encoder
        host._lm.run_encoder = lambda phrases: encoded.append(len(phrases)) or encode(phrases)
        try:
            host.write(SYSTEMS["torch-unfold"], request_)
        finally:
            del host._lm.run_encoder
        assert sum(encoded) >= first.phrases == second.phrases

    def test_a_wider_machine_is_drafted_for_and_forgotten(self, request_):
        host = UniverbHost(DynamicLM.wrap(make_circling(), make_tokenizer()))
        request = replace(request_, max_tokens=30)
        before = host.write(SYSTEMS["torch-verify"], request)
        narrow, wide = (
            host.write(SYSTEMS[f"torch-verify-wide-{width}"], request) for width in (4, 16)
        )
        assert sum(narrow.pass_rows) < sum(wide.pass_rows)
        assert narrow.ids == wide.ids == before.ids
        assert host.write(SYSTEMS["torch-verify"], request).pass_rows == before.pass_rows

    def test_hf_leaves_the_model_alone(self, host, request_):
        model = host._lm.model
        parts = dict(model.named_modules())
        end = model.generation_config.eos_token_id
        host.write(SYSTEMS["hf-lookup-prepacked"], request_)
        assert dict(model.named_modules()) == parts and "forward" not in vars(model)
        assert model.generation_config.eos_token_id == end

    def test_llama_cpp_needs_its_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr("univerb.lab.speed.hosts.default_gguf", lambda: None)
        settings = SystemSettings(str(saved_encoder(tmp_path)), threads=1, context=256)
        with pytest.raises(ModelMissing, match="univerb setup"):
            load_host("llamacpp-as-shipped", settings)

    def test_on_llama_cpp(self, tmp_path, monkeypatch, lm, request_):
        pytest.importorskip("gguf")
        from tiny_gguf import write_gguf

        monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))
        gguf = write_gguf(tmp_path / "tiny.F32.gguf", lm.model)
        encoder = saved_encoder(tmp_path, lm=lm)
        try:
            host = UniverbHost(load(str(encoder), engine="llamacpp", gguf=str(gguf), threads=1))
        except MissingExtra as missing:
            pytest.skip(str(missing))
        names = [name for name, spec in SYSTEMS.items() if spec.host == "llamacpp"]
        measured = {name: host.write(SYSTEMS[name], request_) for name in names}
        assert host.weights == "F32"
        plain = measured["llamacpp-plain"]
        assert plain.pass_rows == [1] * 11 and all(len(m.ids) == 12 for m in measured.values())
        assert measured["llamacpp-lookup"].ids == measured["llamacpp-verify"].ids == plain.ids


class TestPromptLookup:
    @pytest.mark.parametrize(
        ("text", "draft"),
        [
            ([1, 2, 3, 1, 2], [3, 1, 2]),
            ([9, 2, 5, 1, 2, 3, 1, 2], [3, 1, 2]),
            ([1, 2, 3, 4, 2], [3, 4, 2]),
            ([1, 2, 3], []),
            ([7], []),
            ([7, 7], [7]),
        ],
    )
    def test_the_longest_and_first_occurrence_wins(self, text, draft):
        assert prompt_lookup(text) == draft

    def test_what_would_be_masked_is_not_drafted_and_the_next_occurrence_is_tried(self):
        text = [1, 2, 3, 4, 9, 1, 2, 7, 8, 9, 1, 2]
        assert prompt_lookup(text) == [3, 4, 9, 1, 2, 7, 8, 9, 1, 2]
        # With three, what followed 1 2 may not follow it again; with four, not what followed 9 1 2.
        assert prompt_lookup(text, WrittenNGrams(3)) == []
        assert prompt_lookup(text, WrittenNGrams(4)) == [3]
        assert prompt_lookup([9, 1, 2, 3, 1, 2, 7, 9, 1, 2], WrittenNGrams(4)) == [7]

    def test_drafts_are_what_hf_drafts(self):
        import random

        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        hf = PromptLookupCandidateGenerator(num_output_tokens=LOOKUP_TOKENS, max_length=1000)
        draw = random.Random(0)
        for _ in range(200):
            text = [draw.randrange(6) for _ in range(draw.randrange(3, 40))]
            drafted = hf.get_candidates(torch.tensor([text]))[0][0, len(text) :].tolist()
            assert prompt_lookup(text) == drafted


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
        names = ["hf", "torch-plain", "torch-verify", "torch-verify-wide-8", "llamacpp-plain"]
        systems = [word for name in names for word in ("--system", name)]
        sizes = ["--limit", 2, "--max-tokens", 16, "--threads", 1, "--workload", "demo"]
        out = tmp_path / "out"
        ran = run(*SPEED, *systems, *sizes, "--model", encoder, "-o", out, "--json")
        assert ran.code == 0, ran.err
        times, work, simulated = (
            ran.json["tables"][name]["rows"] for name in ("demo", "demo: work", "demo: simulation")
        )
        assert [row["system"] for row in times] == ["hf", "torch-plain", "torch-verify"]
        assert {row["weights"] for row in times} == {"float32"}
        assert [row["kernels"] for row in times] == ["torch", "torch prepacked", "torch prepacked"]
        assert times[1]["x plain"] is None and times[2]["x plain"]["median"] > 0
        assert [row["plain's text"] for row in work] == ["2 of 2", "", "2 of 2", "2 of 2"]
        assert [row["system"] for row in simulated] == ["torch-verify", "torch-verify-wide-8"]
        assert list(ran.json["not_measured"]) == ["llamacpp-plain"]
        facts = ("model", "seed", "threads", "timed", "requests", "profile", "processor", "torch")
        assert ran.json["about"]["row costs"].startswith("torch: 1 row 1.00, 8 rows 1.20")
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
        make = RequestMaker(lm, Path("gone"), 1, 16, 3)
        with pytest.raises(OptionError, match="threads is 4096"):
            make_plan(["demo"], ["hf"], make, threads=4096)

    def test_a_text_ends_where_the_context_does(self, lm):
        make = RequestMaker(lm, Path("gone"), 1, lm.context_size, 3)
        plan = make_plan(["demo"], ["hf"], make)
        [request] = plan.requests
        assert len(request.ids) + request.max_tokens <= lm.context_size
        assert plan.settings.context <= lm.context_size

    def test_the_warm_up_is_not_measured(self, lm):
        plan = make_plan(["demo"], ["hf"], RequestMaker(lm, Path("gone"), 4, 16, 3))
        assert warm_up_request(lm).ids not in {request.ids for request in plan.requests}


@pytest.mark.parametrize(
    ("file", "precision"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("model-f16.gguf", "F16"),
        ("model.gguf", "GGUF"),
    ],
)
def test_the_precision_of_a_gguf_file(file, precision):
    assert gguf_precision(Path(file)) == precision
