"""All tables of the paper on a tiny model and made-up data, and runs that were killed."""

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import make_gpt2, make_llama, make_tokenizer, saved_encoder
from tiny_data import paragraph, tiny_data
from univerb.corpus.build import build_corpus
from univerb.documents.read import read_documents
from univerb.errors import DocumentError, OptionError
from univerb.lab.data import describe_corpus, open_or_build
from univerb.lab.judging.system_texts import read_pairs
from univerb.lab.protocols import generation_runner, negatives_tables
from univerb.lab.protocols.experiment import Experiment, Sizes
from univerb.lab.protocols.generation_runner import GREEDY, GenerationJob, GenerationTask
from univerb.lab.protocols.language_tables import (
    ATOMIC,
    BARE,
    compression_table,
    default_system,
    language_table,
    plain_systems,
)
from univerb.lab.protocols.lm_scorer import TextScorer
from univerb.lab.protocols.negatives_tables import KINDS, SAMPLES, AblationRow, trained_model
from univerb.lab.protocols.paper_tables import Resources, check_resources, make_reports
from univerb.lab.protocols.passages import ACTS, COG, LAWMT, NATURAL, is_held_out
from univerb.lab.protocols.resources_table import resources_table
from univerb.lab.tables.paper import paper_table
from univerb.lab.tables.paper_comparison import compare_with_paper, unmet
from univerb.modeling.dynamic import DynamicLM
from univerb.phrases.guards import PAPER_GUARDS
from univerb.training.config import TrainingConfig, read_config
from univerb.training.trainer import TrainingResult

COUNT = 20
SIZES = Sizes(greedy=COUNT, nucleus=3, timed=1, uncached=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_data(tmp_path_factory.mktemp("data"), COUNT)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved_encoder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def experiment(model, data, tmp_path_factory):
    """Shared by all tests, with what it has generated before."""
    folder = tmp_path_factory.mktemp("experiment")
    lm = DynamicLM.from_pretrained(str(model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNIVERB_CACHE", str(folder / "user"))
        yield Experiment(
            lm=lm,
            scorer=TextScorer.of(lm),
            featuriser=TextScorer.of(lm),
            data=data,
            open_corpus=lambda name: open_or_build(lm, name, data),
            folder=folder / "out" / "cache",
            sizes=SIZES,
            task=GenerationTask(max_tokens=10),
            k=4,
            facts={"versions": "1"},
        )


def test_a_table_of_language_modelling(experiment):
    table = paper_table("main-full")
    result = language_table(experiment, table, NATURAL)
    compared = compare_with_paper(result, table)
    systems = {
        "bare LM": "Transformer",
        "univerb (unfold)": "Ours",
        "univerb (atomic)": "Ours",
    }
    assert [(row.name, row.decoding, row.paper_row) for row in compared.rows] == [
        (name, decoding, paper_row)
        for decoding in ("greedy", "nucleus")
        for name, paper_row in systems.items()
    ]
    greedy, ours, _, nucleus, *_ = compared.rows
    assert greedy.cells["MAUVE"].n == COUNT
    assert greedy.cells["Units"].value == 10.0
    assert (greedy.cells["Latency"].n, greedy.cells["Latency uncached"].n) == (1, 1)
    assert "Prepare" not in greedy.cells and "Prepare" in ours.cells
    # Too few for two clusters of ten.
    assert "MAUVE" not in nucleus.cells
    assert nucleus.setup.n == 3
    assert result.setup.data == "wikitext-103 test, de-tokenised"
    assert result.setup.scorer == result.setup.featuriser == "tiny"
    assert result.facts["versions"] == "1"
    assert result.facts["corpus"].startswith("wiki: ")
    assert result.setup.phrases == "all n-grams of 2-8 tokens"
    stored = replace(experiment, task=replace(experiment.task, offered="stored"))
    reasons = unmet({"phrases": "all n-grams*"}, stored.on(NATURAL).setup(1))
    assert reasons == ["phrases: those that the corpus holds here, all n-grams in the paper"]
    assert unmet(table.row("Ours", "", "greedy").needs, result.setup)[-1].startswith("documents: 4")


def test_a_table_says_whether_the_scorer_is_the_generator(experiment):
    few = replace(experiment, sizes=Sizes(1, 1, 0))
    facts = language_table(few, paper_table("main"), NATURAL).facts
    assert facts["scorer = generator"].startswith("yes")
    assert facts["PPL"] == "tiny, float32"
    assert facts["MAUVE"] == "tiny, float32, last state"
    other = TextScorer(make_gpt2(), make_tokenizer(), "tiny")
    facts = language_table(replace(few, scorer=other), paper_table("main"), NATURAL).facts
    assert facts["scorer = generator"] == "no"


def test_a_table_says_how_many_passages_each_form_has(experiment):
    few = replace(experiment, sizes=Sizes(2, 2, 0))
    table = paper_table("main")
    facts = {name: language_table(few, table, name).facts["passages"] for name in (COG, NATURAL)}
    assert facts[COG].startswith("2 of 21; the file has 21 texts, of which 0 are left out")
    assert facts[NATURAL].startswith("2 of 20; the file has 21 texts, of which 1 are left out")
    assert language_table(few, table, COG).setup.data == table.rows[0].needs["data"]
    assert language_table(few, table, NATURAL).setup.data != table.rows[0].needs["data"]


def test_the_lm_before_its_training_and_one_that_was_tuned_apart_have_rows_of_their_own(experiment):
    """A tuned LM without its phrases is neither of them, and is not called so."""
    bare, apart = (DynamicLM.wrap(make_llama(seed=n), make_tokenizer()) for n in (5, 6))
    bare.model.name_or_path, apart.model.name_or_path = "before", "apart"
    tuned = replace(experiment, training="wikitext-103", sizes=Sizes(3, 3, 1))
    table = paper_table("main")
    alone = language_table(tuned, table, NATURAL)
    assert [row.name for row in alone.rows[:2]] == [
        "LM trained with phrases, without them",
        "univerb (unfold)",
    ]
    assert alone.rows[0].setup.training == "wikitext-103, together with phrases"
    assert any("--bare" in note for note in alone.notes)
    result = language_table(replace(tuned, bare=bare, transformer=apart), table, NATURAL)
    compared = compare_with_paper(result, table)
    described = [
        (
            row.name,
            row.paper_row,
            (row.setup or result.setup).model,
            (row.setup or result.setup).training,
        )
        for row in result.rows
    ]
    assert described == [
        ("fine-tuned Transformer", "Transformer", "apart", "wikitext-103"),
        ("bare LM", "", "before", "none"),
        (
            "LM trained with phrases, without them",
            "",
            "tiny",
            "wikitext-103, together with phrases",
        ),
        ("univerb (unfold)", "Ours", "tiny", "wikitext-103"),
        ("univerb (atomic)", "Ours", "tiny", "wikitext-103"),
    ]
    assert not any("--bare" in note for note in result.notes)
    # Timed in turns, and ratios are to the one that was tuned apart.
    ratios = {(cell.row, cell.column): cell.ratio for cell in compared.cells}
    plain, ours = result.rows[0].cells, result.rows[3].cells
    for column in ("PPL", "Latency"):
        expected = ours[column].value / plain[column].value
        assert ratios["univerb (unfold)", column] == pytest.approx(expected)
    texts = [each.cells["PPL"].value for each in result.rows[:3]]
    assert len(set(texts)) == 3


def test_an_lm_of_another_tokenizer_is_no_baseline(experiment):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["tenant"])
    other = DynamicLM.wrap(make_llama(vocab_size=330), tokenizer)
    with pytest.raises(OptionError, match="another tokenizer"):
        replace(experiment, transformer=other)


def test_a_model_whose_profile_is_atomic_has_one_row_and_may_read_its_prefix_in_phrases(experiment):
    lm = experiment.lm
    atomic = DynamicLM(
        lm.model, lm.hf_tokenizer, lm.encoder, lm.profile.model_copy(update={"mode": "atomic"})
    )
    few = replace(experiment, lm=atomic, sizes=Sizes(2, 2, 0))
    result = language_table(few, paper_table("main"), NATURAL, segment=True)
    assert [row.name for row in result.rows] == [
        "bare LM",
        "univerb (atomic)",
        "univerb (atomic, prefix too)",
    ]


def test_the_training_text_of_wikitext_is_the_corpus_if_it_is_there(experiment, data, tmp_path):
    whole = Path(shutil.copytree(data, tmp_path / "data"))
    stand_in = describe_corpus(open_or_build(experiment.lm, "wiki", whole), False)
    assert stand_in.endswith("train-00.jsonl.gz stands in for WikiText-103's training text")
    lines = [" = A = ", "", paragraph(1), "", " = B = ", "", paragraph(2)]
    (whole / "wikitext103/wiki.train.tokens").write_text("\n".join(lines) + "\n")
    corpus = open_or_build(experiment.lm, "wiki", whole)
    assert [each["name"] for each in corpus.listed()] == [
        "wiki.train.tokens#1 A",
        "wiki.train.tokens#2 B",
    ]
    assert "stands in" not in describe_corpus(corpus, False)
    assert corpus.manifest.settings.max_words == 128
    assert corpus.manifest.settings.guards == PAPER_GUARDS


def test_texts_are_exported_for_judges(experiment):
    language_table(experiment, paper_table("main"), NATURAL)
    folder = experiment.folder.parent / "texts"
    names = [f"{NATURAL},_univerb_({name}),_greedy.jsonl" for name in ("unfold", "atomic")]
    pairs = read_pairs(*(folder / name for name in names))
    assert len(pairs) == COUNT
    jobs = [
        GenerationJob(system, GREEDY) for system in (default_system(experiment.lm), BARE, ATOMIC)
    ]
    ours, plain, atomic = experiment.on(NATURAL).generate(jobs)
    assert [pair.ours for pair in pairs] == [text.text for text in ours]
    assert len({tuple(text.text for text in texts) for texts in (ours, plain, atomic)}) > 1


def test_texts_that_cannot_be_exported(experiment, tmp_path):
    (tmp_path / "texts").write_text("a file")
    few = replace(experiment, folder=tmp_path / "cache", sizes=Sizes(1, 1, 0))
    with pytest.raises(OptionError, match="texts' cannot be written"):
        language_table(few, paper_table("main"), NATURAL)


def test_real_time(experiment):
    table = paper_table("real-time")
    few = replace(experiment, sizes=Sizes(2, 2, 0))
    compared = compare_with_paper(language_table(few, table, NATURAL), table)
    assert [row.paper_row for row in compared.rows] == [row.name for row in table.rows]


def test_compression_counts_the_same_texts_twice(experiment):
    table = paper_table("compression-lawmt")
    few = replace(experiment, sizes=Sizes(2, 2, 0))
    result = compression_table(few, {"WikiText103": COG, "LawMT": LAWMT})
    assert compare_with_paper(result, table).cells
    plain, ours = result.rows[:2]
    assert (plain.paper_row, ours.paper_row) == ("Transformer", "Ours")
    [texts] = few.on(COG).generate([GenerationJob(default_system(few.lm), GREEDY)])
    assert ours.cells["NSL"].value == pytest.approx(sum(text.units for text in texts) / 2)
    again = [len(few.lm.tokenizer.encode_prompt(text.text)) for text in texts]
    assert plain.cells["NSL"].value == pytest.approx(sum(again) / 2)
    assert {row.section for row in result.rows} == {"WikiText103", "LawMT"}


def test_resources(experiment):
    table = paper_table("resources")
    result = resources_table(replace(experiment, sizes=Sizes(2, 2, 0)), table)
    compared = compare_with_paper(result, table)
    formula = [row for row in result.rows if "GPT-2" in row.name]
    memory = {row.paper_row: row.cells["Memory"].value for row in formula}
    paper = {row.name: row.values["Memory"] for row in table.rows if not row.section}
    assert memory["0"] == pytest.approx(paper["0"], abs=1e-3)
    for name, value in paper.items():
        # The paper's row of 128 phrases is that of one copy, all others of two.
        more = (memory[name] - memory["0"]) / (2 if name == "128" else 1)
        assert more == pytest.approx(value - paper["0"], abs=2e-4)
    ours = [row for row in compared.rows if "tiny" in row.name]
    assert ours[0].cells["Avg Tokens"].value == 10.0
    assert ours[0].cells["Phrases"].value == 0
    assert 0 < ours[1].cells["Phrases"].value <= 32
    # Each model in relation to itself without phrases.
    ratios = {(cell.row, cell.column): cell.ratio for cell in compared.cells}
    units = [row.cells["Avg Tokens"].value for row in ours]
    assert ratios[ours[0].name, "FLOPS"] is None
    assert ratios[ours[1].name, "Avg Tokens"] == pytest.approx(units[1] / units[0])
    assert ratios["32, GPT-2 by formula", "Memory"] == pytest.approx(memory["32"] / memory["0"])
    assert compared.rows[-1].cells["Extra compute"].value == pytest.approx(5.2, abs=0.1)


def test_people_judge_a_sheet(experiment, tmp_path):
    few = replace(experiment, sizes=Sizes(2, 2, 0))
    resources, folder = Resources(results=tmp_path), tmp_path / "human"
    [waiting] = make_reports(few, "human", resources)
    assert not waiting.comparison.rows
    assert any("Nobody has judged yet" in note for note in waiting.notes)
    sheet = (folder / "sheet.csv").read_text(encoding="utf-8-sig")
    sides = json.loads((folder / "key.json").read_text())["sides"]
    (folder / "filled-anna.csv").write_text(filled(sheet, sides), encoding="utf-8")
    [judged] = make_reports(few, "human", resources)
    assert {row.cells["Better"].value for row in judged.comparison.rows} == {1.0}
    assert len(judged.comparison.rows) == 5 and judged.comparison.cells
    # The sheet is somebody's work by now.
    assert (folder / "sheet.csv").read_text(encoding="utf-8-sig") == sheet
    for name in ("anna", "ben"):
        alike = re.sub(r',"","","","",""', ',"tie","tie","tie","tie","tie"', sheet)
        (folder / f"filled-{name}.csv").write_text(alike, encoding="utf-8")
    [judged] = make_reports(few, "human", resources)
    assert any("kappa (Cohen) undefined" in note for note in judged.notes)
    with pytest.raises(OptionError, match="is of other texts"):
        list(make_reports(replace(few, task=GenerationTask(max_tokens=9)), "human", resources))


def filled(sheet: str, sides: dict[str, int]) -> str:
    """Answer every question in favour of ours."""
    rows = list(csv.DictReader(io.StringIO(sheet)))
    for row in rows:
        for name in ("overall", "fluency", "coherence", "informativeness", "grammar"):
            row[name] = str(sides[row["item"]])
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def test_a_judge_replies(experiment, tmp_path):
    few = replace(experiment, sizes=Sizes(2, 2, 0))
    resources, folder = Resources(results=tmp_path), tmp_path / "gpt4"
    [waiting] = make_reports(few, "gpt4", resources)
    assert not waiting.comparison.rows
    lines = (folder / "LawMT.prompts.jsonl").read_text().splitlines()
    replies = [json.dumps({"id": json.loads(line)["id"], "reply": "[[1]]"}) for line in lines]
    (folder / "LawMT.replies.jsonl").write_text("\n".join(replies))
    [judged] = make_reports(few, "gpt4", resources)
    [row] = judged.comparison.rows
    # A judge that always takes the first is for neither.
    assert (row.section, row.cells["Better"].value) == ("LawMT", pytest.approx(0.5))
    assert any("100 %" in note for note in judged.notes)


def test_a_killed_run_makes_the_same_table(experiment, monkeypatch, tmp_path):
    monkeypatch.setattr(generation_runner, "GROUP_SIZE", 8)
    table = paper_table("main-full")
    whole = replace(experiment, sizes=replace(SIZES, timed=0), folder=tmp_path / "whole")
    expected = language_table(whole, table, COG)
    for number in (1, 3, 8):
        calls = []

        def stop(stage, done, total, calls=calls, number=number):
            calls.append(stage)
            if len(calls) == number:
                raise KeyboardInterrupt

        killed = replace(whole, folder=tmp_path / str(number))
        with pytest.raises(KeyboardInterrupt):
            language_table(replace(killed, progress=stop), table, COG)
        assert language_table(killed, table, COG) == expected


def test_every_row_of_the_ablation_has_settings():
    base = TrainingConfig.model_validate({"data": {"documents": ["x"]}, "run": {"steps": 2}})
    for name in ("negatives", "negatives-full", "negatives-lawmt-full"):
        for row in paper_table(name).rows:
            settings = AblationRow(row.section, row.name).settings(base)
            assert settings.samples.kind == SAMPLES[row.section]
            assert settings.negatives.kinds == KINDS[row.name]
            assert settings.samples.sizes == ((2, 16) if row.section == "FMM" else (2, 5))
    # The paper: the prefixes of the gold phrase belong to all but in-batch negatives.
    assert KINDS["pre-batch"] == ("in-batch", "prefixes", "pre-batch")
    assert all(("prefixes" in kinds) == (name != "in-batch") for name, kinds in KINDS.items())
    rows = paper_table("negatives").rows
    assert len({AblationRow(row.section, row.name).folder for row in rows}) == len(rows)


@pytest.mark.parametrize("name", ["paper", "default"])
def test_the_ablations_that_ship_are_the_papers_but_for_their_size(name):
    path = Path(__file__).parents[3] / "configs" / name / "ablation.yaml"
    base = read_config(path)
    fmm = AblationRow("FMM", "corpus-retrieval").settings(base)
    assert (fmm.samples.sizes, fmm.samples.min_count) == ((2, 16), 2)
    assert AblationRow("N-words", "generation").settings(base).samples.sizes == (2, 5)
    assert (base.encoder.heads, base.encoder.projector) == ("tied", "act_linear")
    assert not base.encoder.count_correction
    assert (base.losses.phrase, base.losses.token, base.losses.kl) == (1.0, 1.0, 1.0)
    is_small = "SMALL" in path.read_text()
    assert is_small == (name == "default") == (base.run.steps != 400_000)
    if not is_small:
        assert (base.model, base.encoder_from, base.regime) == ("gpt2", "gpt2", "full")
        assert base.data.text == "cog"


def test_a_row_is_trained_and_measured_on_the_device_of_the_experiment(monkeypatch, tmp_path):
    """Not on the CPU, nor on any GPU that happens to be there."""
    devices = []

    def make_task(settings, processes):
        devices.append(str(processes.device))
        return "task"

    result = TrainingResult(2, "finished", 2, 1.0, tmp_path)
    monkeypatch.setattr(negatives_tables, "make_task", make_task)
    monkeypatch.setattr(negatives_tables, "train", lambda *_: result)
    monkeypatch.setattr(
        DynamicLM, "from_pretrained", lambda name, **how: devices.append(how["device"]) or how
    )
    base = TrainingConfig.model_validate({"data": {"documents": ["x"]}, "run": {"steps": 2}})
    row = AblationRow("N-ids", "in-batch")
    trained_model(row, base, tmp_path, "cuda:1", "float16")
    assert devices == ["cuda:1", "cuda:1"]


@pytest.mark.slow
def test_the_ablation_trains_and_measures(experiment, model, data, tmp_path, monkeypatch):
    base = TrainingConfig.model_validate(
        {
            "model": str(Path(model).parent / "tiny"),
            "regime": "full",
            "data": {"documents": [str(data / "wiki")], "block": 32},
            "samples": {"min_count": 2},
            "run": {"steps": 2, "batch": 2, "save_every": 2, "validate_every": 2},
        }
    )
    table = paper_table("negatives")
    few = replace(table, rows=tuple(row for row in table.rows if row.name == "in-batch"))
    monkeypatch.setattr("univerb.lab.protocols.paper_tables.paper_table", lambda name: few)
    small = replace(experiment, sizes=Sizes(greedy=3, nucleus=3, timed=0))
    resources = Resources(results=tmp_path, ablation=base, runs=tmp_path / "runs")
    [report] = make_reports(small, "negatives", resources)
    assert [row.section for row in report.comparison.rows] == ["FMM", "N-words", "N-ids"]
    assert report.comparison.result.setup.training == "2 steps, full"
    assert len(list((tmp_path / "runs").glob("*/log.jsonl"))) == 3
    [again] = make_reports(small, "negatives", resources)
    assert again == report


def test_tables_that_cannot_be_made_are_refused_before_the_first(experiment, tmp_path):
    with pytest.raises(OptionError, match="has no test set 'lawmt'. Choose of wikitext"):
        check_resources(["lawmt", "main"], Resources(results=tmp_path, test_sets=["lawmt"]))
    with pytest.raises(OptionError, match="--ablation CONFIG"):
        check_resources(["main", "negatives"], Resources(results=tmp_path))
    frozen = TrainingConfig.model_validate({"data": {"documents": ["x"]}, "run": {"steps": 2}})
    with pytest.raises(OptionError, match="with regime full or lora. Say how with --ablation"):
        check_resources(["negatives"], Resources(results=tmp_path, ablation=frozen))
    with pytest.raises(OptionError, match="--ablation CONFIG"):
        list(make_reports(experiment, "negatives", Resources(results=tmp_path)))
    with pytest.raises(DocumentError, match="asqa_200_with_docs.*UNIVERB_DATA"):
        list(make_reports(experiment, "asqa", Resources(results=tmp_path)))


def test_law_retrieves_as_many_chunks_as_the_paper(experiment):
    assert experiment.on(LAWMT).setup(1).documents == 4
    by_default = replace(experiment, k=None)
    assert by_default.on(LAWMT).setup(1).documents == 512
    assert by_default.on(COG).setup(1).documents == 32


def test_acts_of_the_corpus_are_refused(experiment, data, tmp_path):
    acts = read_documents(data / "law/eurlex.jsonl.gz")
    whole = build_corpus(tmp_path / "all.uv", acts, experiment.lm)
    with pytest.raises(DocumentError, match="acts that passages are read from.*--remove"):
        replace(experiment, open_corpus=lambda name: whole).on(ACTS)
    names = [document["name"] for document in experiment.on(ACTS).corpus.listed()]
    assert any("eurlex" in name for name in names) and not any(map(is_held_out, names))


def test_an_lm_that_was_not_trained_is_its_own_bare_lm(experiment):
    bare = DynamicLM.wrap(make_llama(seed=5), make_tokenizer())
    assert [each.name for each in plain_systems(replace(experiment, bare=bare))] == ["bare LM"]
