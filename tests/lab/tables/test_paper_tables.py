"""The paper's tables: every figure, pinned by sums over its source and by rules between tables."""

from dataclasses import fields
from math import prod

import pytest

from univerb.errors import OptionError
from univerb.lab.tables.paper import paper_columns, paper_table, paper_tables, table_names
from univerb.lab.tables.table_results import Setup

# Rows, and the sum of each column: added up from the LaTeX source of the paper.
SUMS = {
    "main": (6, [132.02, 225.85, 192.35, 172.97, 186.09, 19.05, 32.54]),
    "human": (7, [3.38, 1.85, 1.77]),
    "compression": (3, [343.94, 14.59]),
    "scale-up": (2, [43.18, 86.52, 8.74, 18.08]),
    "negatives": (16, [376.16, 816.75, 168.53]),
    "lawmt": (7, [158.78, 487.23, 11.35, 30.26]),
    "asqa": (4, [13.52, 40.45, 33.56, 45.48, 115.25]),
    "main-full": (12, [276.30, 254.61, 199.85, 175.76, 747.60, 39.28, 324.36]),
    "negatives-full": (32, [741.55, 492.53, 323.02, 250.49, 2320.61, 31.58, 1073.97]),
    "lawmt-full": (14, [325.99, 89.49, 52.00, 37.53, 1147.19, 22.00, 295.34]),
    "negatives-lawmt-full": (32, [774.22, 211.55, 104.41, 64.81, 2836.64, 29.45, 1147.53]),
    "real-time": (3, [75.38, 140.60, 3.33, 23.81]),
    "resources": (8, [17.89, 667, 9.2157, 10, 5]),
    "gpt4": (6, [3.40, 0.29, 2.31]),
    "compression-lawmt": (6, [703.05, 31.73]),
}

CELLS = [
    ("main", "Ours", "", "greedy", "MAUVE", 25.69),
    ("main", "Transformer", "", "greedy", "Diversity", 24.30),
    ("main", "kNN-LM", "", "greedy", "Latency", 10.36),
    ("human", "Grammar", "Comparison in * aspect", "", "No Prefer", 0.43),
    ("compression", "Ours", "", "", "NSL", 101.38),
    ("scale-up", "TinyLlama", "", "greedy", "Latency", 4.92),
    ("negatives", "pre-batch", "FMM", "greedy", "PPL", 9.02),
    ("lawmt", "Transformer w/ FT", "", "greedy", "MAUVE", 23.06),
    ("asqa", "w/ n-grams", "Ours", "", "Citation_prec", 29.30),
    ("main-full", "kNN-LM", "", "nucleus", "Diversity", 95.8),
    ("negatives-full", "generation", "N-ids", "nucleus", "PPL", 53.98),
    ("lawmt-full", "MWT", "", "nucleus", "PPL", 68.55),
    ("negatives-lawmt-full", "corpus-retrieval", "FMM", "nucleus", "Diversity", 95.07),
    ("real-time", "Ours(70) + real-time", "", "greedy", "Latency", 1.31),
    ("resources", "65536", "", "", "Memory", 1.6161),
    ("gpt4", "Transformer", "LawMT", "", "Worse", 0.52),
    ("compression-lawmt", "Ours", "LawMT", "", "UTF-8 Bytes", 6.53),
]


def key(row):
    return row.section, row.name, row.decoding


def test_the_order_is_the_papers():
    assert [table.name for table in paper_tables()] == list(SUMS)
    assert [table.number for table in paper_tables()] == list(range(1, 16))


@pytest.mark.parametrize("name", SUMS)
def test_sums(name):
    table, (rows, sums) = paper_table(name), SUMS[name]
    assert len(table.rows) == rows
    assert len({key(row) for row in table.rows}) == rows
    found = [sum(row.values.get(own.name, 0.0) for row in table.rows) for own in table.columns]
    assert found == pytest.approx(sums, abs=1e-9)


@pytest.mark.parametrize(("name", "row", "section", "decoding", "column", "value"), CELLS)
def test_cells(name, row, section, decoding, column, value):
    found = paper_table(name).row(row, section, decoding)
    assert found is not None
    assert found.values[column] == value


@pytest.mark.parametrize(
    ("part", "whole"),
    [("main", "main-full"), ("negatives", "negatives-full"), ("lawmt", "lawmt-full")],
)
def test_the_main_tables_are_the_greedy_rows_of_the_full_ones(part, whole):
    full = {key(row): row for row in paper_table(whole).rows}
    for row in paper_table(part).rows:
        assert row.values.items() <= full[key(row)].values.items()
    greedy = {own for own in full if own[2] == "greedy"}
    assert {key(row) for row in paper_table(part).rows} == greedy


def test_the_default_is_a_row_of_the_ablation():
    for ablation, main in (("negatives-full", "main-full"), ("negatives-lawmt-full", "lawmt-full")):
        for decoding in ("greedy", "nucleus"):
            own = paper_table(main).row("Ours", "", decoding)
            row = paper_table(ablation).row("self-retrieval + generation", "N-words", decoding)
            assert row.values == own.values


def test_diversity_is_a_product_but_in_two_rows():
    broken = []
    for table in paper_tables():
        for row in table.rows:
            if {"Rep-2", "Diversity"} <= set(row.values):
                product = 100 * prod(1 - row.values[f"Rep-{n}"] / 100 for n in (2, 3, 4))
                if abs(product - row.values["Diversity"]) > 0.03:
                    broken.append((table.name, *key(row)))
    assert broken == [
        ("negatives-lawmt-full", "FMM", "corpus-retrieval", "nucleus"),
        ("negatives-lawmt-full", "N-words", "self-retrieval", "greedy"),
    ]


def test_preferences_add_up_to_one():
    for name in ("human", "gpt4"):
        for row in paper_table(name).rows:
            assert sum(row.values.values()) == pytest.approx(1.0)


def test_relative_figures_are_those_that_the_paper_prints():
    rows = paper_table("resources").rows[:7]
    flops = [round(row.values["FLOPS"] / rows[0].values["FLOPS"], 2) for row in rows]
    memory = [round(row.values["Memory"] / rows[0].values["Memory"], 2) for row in rows]
    assert flops == [1.0, 0.65, 0.51, 0.52, 0.49, 0.59, 0.65]
    assert memory == [1.0, 1.0, 1.0, 1.01, 1.04, 1.08, 1.30]


def test_slips_keep_their_label_and_have_a_name():
    first, _, second, _ = paper_table("negatives-lawmt-full").rows[:4]
    assert (first.label, second.label) == ("pre-batch", "pre-batch")
    assert (first.name, second.name) == ("in-batch", "pre-batch")
    assert paper_table("main").row("kNN-LM", "", "greedy").label == "KMM-LM*"


def test_missing_figures_are_left_out():
    row = paper_table("lawmt").row("kNN-LM", "", "greedy")
    assert row.values == {"MAUVE": 23.32, "Diversity": 19.85}


def test_baselines():
    for table in paper_tables():
        for row in table.rows:
            base = table.baseline_of(row.section, row.decoding)
            assert (base is None) == (not table.baseline)
            if base:
                assert base.decoding == row.decoding
                assert base.section in (row.section, "")
                assert base.name == table.baseline


def test_every_need_is_a_field_of_a_setup():
    known = {own.name for own in fields(Setup)}
    for column in paper_columns().values():
        assert set(column.needs) <= known
    for table in paper_tables():
        for row in table.rows:
            assert {"model"} <= set(row.needs) <= known


def test_row_needs_go_before_table_needs():
    table = paper_table("lawmt")
    assert table.row("Ours", "", "greedy").needs["documents"] == 512
    assert table.row("Transformer w/ FT", "", "greedy").needs["training"] == "lawmt"
    assert "retriever" not in table.row("MWT", "", "greedy").needs
    assert paper_table("gpt4").row("CoG", "LawMT").needs["data"] == "lawmt test"


def test_directions():
    better = {name: column.better for name, column in paper_columns().items()}
    assert {name for name, way in better.items() if not way} == {"No Prefer"}
    lower = {"Rep-2", "Rep-3", "Rep-4", "Latency", "PPL", "NSL", "Worse"}
    lower |= {"FLOPS", "Avg Tokens", "Memory", "Extra memory", "Extra compute"}
    assert {name for name, way in better.items() if way == "lower"} == lower


@pytest.mark.parametrize("name", ["main", "table1", "Table1"])
def test_a_table_has_a_name_and_a_number(name):
    assert paper_table(name).number == 1


@pytest.mark.parametrize("name", ["table16", "table0", "main-ful", ""])
def test_an_unknown_table_is_told_apart(name):
    with pytest.raises(OptionError, match=r"table1 to table15.*Allowed: asqa"):
        paper_table(name)


def test_inconsistencies_are_told():
    told = {table.name: " ".join(table.notes) for table in paper_tables()}
    assert all(told.values())
    for name, words in [
        ("main", "10 %"),
        ("scale-up", "1.90"),
        ("negatives-lawmt-full", "83.78"),
        ("real-time", "8.04"),
        ("resources", "garbled"),
        ("gpt4", "loses"),
        ("compression", "NLS"),
    ]:
        assert words in told[name]


def test_tables_are_asked_for_by_name_and_number():
    assert table_names(["all"]) == [table.name for table in paper_tables()]
    assert table_names(["table6", "main", "main"]) == ["main", "lawmt"]
    with pytest.raises(OptionError, match="Did you mean 'main'"):
        table_names(["mian"])
