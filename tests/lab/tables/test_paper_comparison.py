"""A run beside the paper: which figures compare, why not, ratios, and the run as JSON."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from univerb.errors import OptionError
from univerb.lab.tables.paper import Column, paper_columns, paper_table
from univerb.lab.tables.paper_comparison import NOT_IN_PAPER, compare_with_paper, unmet
from univerb.lab.tables.table_results import Setup, SystemRow, TableCell, TableResult

PAPER = Setup(
    model="openai-community/gpt2",
    data="WikiText-103 test",
    n=1785,
    seed=0,
    threads=2,
    timed="decode",
    scorer="gpt2-large",
    featuriser="gpt2-large",
    training="wikitext-103",
    retriever="facebook/dpr-ctx_encoder-single-nq-base",
    documents=32,
    phrases="all n-grams of 2-8 tokens",
    prefix=32,
    budget=128,
    tokenizer="gpt2",
    splitter="spacy.blank('en') 3.8.18",
    device="NVIDIA GeForce RTX 3090",
    kv_cache=False,
)
OURS = Setup(
    model="smollm2-135m",
    data="wikitext-103 test",
    n=200,
    seed=0,
    threads=2,
    timed="decode",
    scorer="smollm2-135m",
    featuriser="smollm2-135m",
    retriever="bm25",
    documents=32,
    prefix=32,
    budget=128,
    splitter="regex",
)


def row(name, paper_row="", decoding="greedy", section="", setup=None, **cells):
    found = {key.replace("_", "-"): TableCell(value) for key, value in cells.items()}
    return SystemRow(name, found, paper_row, section, decoding, setup)


def a_run(*rows, setup=PAPER, extra=()):
    return TableResult(setup, rows, extra)


def one(setup, column, table="main", paper_row="Ours", section="", decoding="greedy"):
    """Return the only cell of a result of one value."""
    own = SystemRow("mine", {column: TableCell(1.0)}, paper_row, section, decoding)
    [line] = compare_with_paper(a_run(own, setup=setup), paper_table(table)).cells
    return line


class TestComparable:
    @pytest.mark.parametrize("column", ["MAUVE", "Rep-3", "Diversity", "Latency", "PPL"])
    def test_a_run_as_the_papers_compares(self, column):
        line = one(PAPER, column)
        assert (line.comparability, line.reasons) == ("yes", ())

    @pytest.mark.parametrize(
        ("change", "column", "word"),
        [
            ({"featuriser": "gpt2"}, "MAUVE", "featuriser"),
            ({"n": 1000}, "MAUVE", "N: 1000 here, about 1800 in the paper"),
            ({"scorer": ""}, "PPL", "scorer: not known here, gpt2-large in the paper"),
            ({"splitter": "regex"}, "Rep-2", "splitter"),
            ({"splitter": "regex"}, "Diversity", "splitter"),
            ({"model": "gpt2-large"}, "PPL", "model"),
            ({"training": "none"}, "PPL", "training"),
            ({"data": "wikitext-103 test, de-tokenised"}, "PPL", "data"),
            ({"retriever": "bm25"}, "PPL", "retriever: bm25 here, dpr in the paper"),
            ({"documents": 16}, "PPL", "documents: 16 here, 32 in the paper"),
            ({"budget": 64}, "PPL", "budget"),
            ({"prefix": None}, "PPL", "prefix: not known here"),
        ],
    )
    def test_one_thing_that_differs_is_the_one_reason(self, change, column, word):
        line = one(replace(PAPER, **change), column)
        assert line.comparability == "no"
        assert len(line.reasons) == 1
        assert line.reasons[0].startswith(word)

    @pytest.mark.parametrize(
        ("change", "column"),
        [
            ({"featuriser": "", "scorer": ""}, "Rep-2"),
            ({"scorer": "", "n": 50, "device": "cpu"}, "Diversity"),
            ({"featuriser": "", "splitter": ""}, "PPL"),
            ({"seed": 5, "threads": 64}, "MAUVE"),
        ],
    )
    def test_what_a_column_does_not_hang_on_is_no_reason(self, change, column):
        assert one(replace(PAPER, **change), column).comparability == "yes"

    def test_a_row_without_retrieval_needs_no_retriever(self):
        setup = replace(PAPER, retriever="", documents=None)
        assert one(setup, "PPL", paper_row="Transformer").comparability == "yes"
        assert one(setup, "PPL", paper_row="Ours").comparability == "no"

    def test_latency_elsewhere_leaves_ratios(self):
        line = one(replace(PAPER, device="cpu", kv_cache=True, timed="encode + decode"), "Latency")
        assert line.comparability == "ratios only"
        assert line.reasons == (
            "device: cpu here, rtx-3090 in the paper",
            "KV cache: yes here, no in the paper",
            "inside the timed part: encode + decode here, decode in the paper",
        )

    def test_flops_are_a_trend_at_best(self):
        line = one(PAPER, "FLOPS", "resources", "32", decoding="")
        assert line.comparability == "trend only"
        assert line.reasons == (paper_columns()["FLOPS"].caveat,)

    def test_memory_by_formula_needs_only_the_model(self):
        assert one(PAPER, "Memory", "resources", "32", decoding="").comparability == "yes"
        assert one(OURS, "Memory", "resources", "32", decoding="").comparability == "no"

    def test_citations(self):
        setup = replace(PAPER, model="TinyLlama/TinyLlama-1.1B-Chat-v1.0", data="ASQA", n=948)
        setup = replace(setup, documents=3, shots=1, nli="minilm")
        ours = {"table": "asqa", "paper_row": "w/ n-grams", "section": "Ours", "decoding": ""}
        assert one(setup, "Rouge-L", **ours).comparability == "yes"
        assert one(setup, "Citation_rec", **ours).reasons == (
            "NLI: minilm here, t5-xxl-true-nli-mixture in the paper",
        )
        assert one(setup, "QA-EM", **ours).reasons[0].startswith("reader: not known")
        true = replace(setup, nli="google/t5_xxl_true_nli_mixture")
        assert one(true, "Citation_rec", **ours).comparability == "yes"
        bare = one(true, "Rouge-L", "asqa", "TinyLlama", decoding="")
        assert bare.reasons == ("training: wikitext-103 here, none in the paper",)

    @pytest.mark.parametrize(
        ("judge", "standing"),
        [("gpt-4", "yes"), ("GPT-4-0125-preview", "yes"), ("gpt-4o", "no"), ("human", "no")],
    )
    def test_judges(self, judge, standing):
        setup = replace(PAPER, judge=judge, n=100)
        found = one(setup, "Better", "gpt4", "MWT", "WikiText103", decoding="")
        assert found.comparability == standing

    def test_a_cells_own_n_and_a_rows_own_setup_count(self):
        rows = (
            SystemRow("few", {"MAUVE": TableCell(1.0, n=10)}, "Ours", "", "greedy"),
            row("small", "Ours", MAUVE=1.0, setup=OURS),
            row("whole", "Ours", MAUVE=1.0),
        )
        few, small, whole = compare_with_paper(a_run(*rows), paper_table("main")).cells
        assert (few.comparability, few.n, small.comparability, small.n) == ("no", 10, "no", 200)
        assert (whole.comparability, whole.n) == ("yes", 1785)

    def test_what_the_paper_leaves_out_has_no_standing(self):
        line = one(PAPER, "PPL", "lawmt", "kNN-LM")
        assert (line.paper, line.comparability, line.reasons) == (None, None, (NOT_IN_PAPER,))
        line = one(PAPER, "PPL", paper_row="")
        assert (line.paper_row, line.comparability, line.reasons) == ("", None, (NOT_IN_PAPER,))

    def test_another_measure_never_compares_but_stands_beside(self):
        matched = Column("MAUVE_matched", better="higher", variant_of="MAUVE")
        own = SystemRow("mine", {"MAUVE_matched": TableCell(30.0)}, "Ours", "", "greedy")
        [line] = compare_with_paper(a_run(own, extra=(matched,)), paper_table("main")).cells
        assert (line.paper, line.comparability) == (25.69, "no")
        assert line.reasons == ("MAUVE_matched is another measure than the paper's MAUVE",)

    @given(st.integers(0, 5000))
    def test_n_counts_from_nine_tenths_on(self, n):
        assert bool(unmet({"n": 1800}, replace(PAPER, n=n))) == (n < 1620)

    @pytest.mark.parametrize(
        "name",
        [
            "gpt2-large",
            "GPT2_Large",
            "openai-community/gpt2-large",
            "/models/gpt2-large/",
            "a\\gpt2-large",
        ],
    )
    def test_names_are_alike_by_their_last_part(self, name):
        assert not unmet({"scorer": "gpt2-large"}, replace(PAPER, scorer=name))

    @pytest.mark.parametrize("name", ["gpt2", "gpt2-large-finetuned", "xgpt2-large", ""])
    def test_other_names_are_not(self, name):
        assert unmet({"scorer": "gpt2-large"}, replace(PAPER, scorer=name))


class TestRatios:
    def test_each_side_to_its_own_baseline(self):
        run = a_run(
            row("bare", "Transformer", MAUVE=40.0, PPL=8.0),
            row("default", "Ours", MAUVE=50.0, PPL=12.0),
            row("atomic", "Ours", MAUVE=30.0),
            setup=OURS,
        )
        found = {
            (own.row, own.column): own for own in compare_with_paper(run, paper_table("main")).cells
        }
        assert found["default", "MAUVE"].ratio == pytest.approx(1.25)
        assert found["default", "MAUVE"].paper_ratio == pytest.approx(25.69 / 20.47)
        assert found["default", "PPL"].ratio == pytest.approx(1.5)
        assert found["atomic", "MAUVE"].ratio == pytest.approx(0.75)
        assert found["bare", "MAUVE"].ratio is None
        assert found["bare", "MAUVE"].paper_ratio is None

    def test_greedy_and_nucleus_have_their_own_baselines(self):
        run = a_run(
            row("bare", "Transformer", "greedy", PPL=4.0),
            row("bare", "Transformer", "nucleus", PPL=20.0),
            row("ours", "Ours", "greedy", PPL=8.0),
            row("ours", "Ours", "nucleus", PPL=30.0),
        )
        lines = compare_with_paper(run, paper_table("main-full")).cells
        assert [own.ratio for own in lines] == [None, None, 2.0, 1.5]
        assert lines[3].paper_ratio == pytest.approx(51.38 / 31.01)

    def test_sections_have_their_own_or_the_one_above_all(self):
        run = a_run(
            row("a", "in-batch", section="FMM", PPL=10.0),
            row("b", "generation", section="FMM", PPL=5.0),
            row("c", "generation", section="N-ids", PPL=5.0),
        )
        lines = compare_with_paper(run, paper_table("negatives")).cells
        assert [own.ratio for own in lines] == [None, 0.5, None]
        assert lines[2].paper_ratio == pytest.approx(8.07 / 21.53)
        run = a_run(
            SystemRow("bare", {"Rouge-L": TableCell(20.0)}, "TinyLlama"),
            SystemRow("parsed", {"Rouge-L": TableCell(25.0)}, "w/ parsing", "Ours"),
        )
        assert compare_with_paper(run, paper_table("asqa")).cells[1].ratio == 1.25

    def test_without_a_baseline_there_are_none(self):
        run = a_run(SystemRow("mine", {"Better": TableCell(0.5)}, "MWT", "WikiText103"))
        [line] = compare_with_paper(run, paper_table("gpt4")).cells
        assert (line.ratio, line.paper_ratio) == (None, None)
        [line] = compare_with_paper(
            a_run(row("mine", "Ours", MAUVE=1.0)), paper_table("main")
        ).cells
        assert line.ratio is None
        assert line.paper_ratio == pytest.approx(25.69 / 20.47)

    def test_a_baseline_of_zero_gives_none(self):
        run = a_run(row("bare", "Transformer", PPL=0.0), row("ours", "Ours", PPL=1.0))
        assert compare_with_paper(run, paper_table("main")).cells[1].ratio is None


class TestRowsAndColumns:
    def test_rows_of_another_decoding_are_left_out(self):
        run = a_run(row("a", "Ours", "greedy", PPL=1.0), row("a", "Ours", "nucleus", PPL=1.0))
        assert [own.decoding for own in compare_with_paper(run, paper_table("main")).cells] == [
            "greedy"
        ]

    def test_a_table_without_decodings_takes_all(self):
        run = a_run(row("a", "Ours", "greedy", NSL=90.0), row("a", "Ours", "nucleus", NSL=95.0))
        lines = compare_with_paper(run, paper_table("compression")).cells
        assert [own.paper for own in lines] == [101.38, 101.38]

    def test_columns_that_only_other_tables_have_are_kept_at_the_end(self):
        run = a_run(SystemRow("a", {"Rep-2": TableCell(9.0)}, "Ours", "", "greedy"))
        found = compare_with_paper(run, paper_table("scale-up"))
        assert [own.name for own in found.columns][-1] == "Rep-2"
        assert found.cells[0].comparability is None

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ([row("a", "Oursx", PPL=1.0)], r"no row 'Oursx \(greedy\)'.*Did you mean 'Ours"),
            ([row("a", "Ours", "", PPL=1.0)], r"no row 'Ours'.*Ours \(greedy\)"),
            ([row("a", "Ours", section="FMM", PPL=1.0)], "no row 'FMM: Ours"),
            ([row("a", "Ours", PPL=1.0)] * 2, r"Two rows are 'a \(greedy\)'"),
            ([row("a", "Ours", PLP=1.0)], "column 'PLP'.*Did you mean 'PPL'"),
        ],
    )
    def test_what_does_not_fit_is_an_error(self, rows, message):
        with pytest.raises(OptionError, match=message):
            compare_with_paper(a_run(*rows), paper_table("main"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_is_finite(value):
    with pytest.raises(OptionError, match="must be finite"):
        TableCell(value)
    with pytest.raises(OptionError, match="must be finite"):
        TableCell(1.0, value)


def test_a_setup_names_models_and_not_the_folders_of_a_machine():
    assert replace(PAPER, model="/home/somebody/models/tiny").model == "tiny"
    assert replace(PAPER, scorer="org/model").scorer == "org/model"
