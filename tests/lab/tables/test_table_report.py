"""A comparison as files and on the terminal: layout, Markdown, LaTeX, JSON, plots."""

import io
import json
import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from univerb.errors import MissingExtra
from univerb.lab.tables.comparison_plot import plot_comparison
from univerb.lab.tables.paper import Column, paper_table
from univerb.lab.tables.paper_comparison import compare_with_paper
from univerb.lab.tables.table_report import Report, paper_layout
from univerb.lab.tables.table_results import Setup, SystemRow, TableCell, TableResult

SETUP = Setup(
    model="smollm2-135m",
    data="wikitext-103 test",
    n=200,
    seed=7,
    threads=2,
    timed="encode + decode",
    scorer="smollm2-135m",
)


def row(name, paper_row="", decoding="greedy", section="", **cells):
    measured = {key.replace("_", "-"): TableCell(value) for key, value in cells.items()}
    return SystemRow(name, measured, paper_row, section, decoding)


def report(table, *rows, setup=SETUP, **more):
    return Report(table, compare_with_paper(TableResult(setup, rows, **more), paper_table(table)))


@pytest.fixture
def main():
    spread = {"MAUVE": TableCell(50.0, 1.25, 100), "PPL": TableCell(12.0)}
    return report(
        "main",
        row("bare", "Transformer", MAUVE=40.0, PPL=8.0),
        SystemRow("default", spread, "Ours", "", "greedy"),
        row("mystery", MAUVE=50.0),
        notes=("Spread: standard deviation over 5 seeds.",),
        facts={"NLI accuracy": "81 %"},
    )


def rows_of(given):
    """Return the rows of the layout by name."""
    frame = paper_layout(given.comparison)
    return {row[0]: dict(zip(frame.columns, row, strict=True)) for row in frame.to_numpy()}


def test_the_papers_rows_in_its_order_with_ours_below(main):
    rows = rows_of(main)
    paper = ["RETRO", "KMM-LM*", "CoG", "MWT", "Ours"]
    assert list(rows) == ["Transformer", "bare", *paper, "default", "mystery", "comparable?"]
    assert rows["Ours"]["MAUVE ↑"] == "25.69 (1.26x)"
    assert (rows["Ours"]["From"], rows["default"]["From"]) == ("paper", "univerb")
    assert rows["default"]["MAUVE ↑"] == "50.00 ± 1.25 (1.25x)"
    assert rows["default"]["PPL ↓"] == "12.00 (1.50x)"
    assert rows["default"]["Rep-2 ↓"] == "-"
    assert rows["comparable?"]["MAUVE ↑"].startswith("no / - [1, 2")
    assert rows["comparable?"]["Rep-2 ↓"] == "-"


def test_layouts_of_other_tables():
    law = rows_of(report("lawmt", row("a", "Ours", PPL=1.0)))["KMM-LM*"]
    assert (law["MAUVE ↑"], law["PPL ↓"]) == ("23.32 (1.02x)", "-")
    negatives = report("negatives", row("a", "generation", section="N-ids", PPL=1.0))
    assert rows_of(negatives)["a"]["Section"] == "N-ids"
    plain = report("compression", SystemRow("a", {"NSL": TableCell(90.0)}, "Ours"))
    assert not {"Decoding", "Section"} & set(paper_layout(plain.comparison).columns)
    cells = {"Memory": TableCell(1.24), "Avg Tokens": TableCell(88.4)}
    resources = rows_of(report("resources", SystemRow("a", cells, "32")))["a"]
    assert (resources["Memory (Rel) (GB) ↓"], resources["Avg Tokens ↓"]) == ("1.2400", "88")


def test_a_page_says_what_it_was_made_with(main):
    page = main.markdown("main.png")
    for text in (
        "# Table 1 of the paper: WikiText-103, greedy",
        "- model: smollm2-135m",
        "- seed: 7",
        "- N: 200",
        "- threads: 2",
        "- inside the timed part: encode + decode",
        "- NLI accuracy: 81 %",
        "- KV cache: yes",
        "50.00 ± 1.25 (1.25x)",
        r"- \[1\] model: smollm2-135m here, gpt2 in the paper",
        "Ratios are to Transformer, on each side.",
        "Spread: standard deviation over 5 seeds.",
        "20 % less latency",
        "](main.png)",
    ):
        assert text in page
    assert "main.png" not in main.markdown()
    assert "retriever" not in main.settings
    other = replace(row("atomic", "Ours", PPL=1.0), setup=replace(SETUP, n=50, retriever="bm25"))
    notes = report("main", other).notes
    assert "atomic greedy was measured with N: 50, retriever: bm25." in notes


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_no_name_breaks_a_table(name):
    page = report("main", row(name, "Ours", PPL=1.0)).markdown()
    tables = [line for line in page.splitlines() if line.startswith("|")]
    bars = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in tables]
    assert set(bars) == {11}


@given(st.text(st.characters(codec="ascii"), max_size=20))
def test_no_name_breaks_latex(name):
    page = report("main", row(name, "Ours", PPL=1.0)).latex()
    rows = [line for line in page.splitlines() if line.endswith(r" \\")]
    assert {len(re.findall(r"(?<!\\)&", each)) for each in rows} == {9}
    assert not any(each.startswith("[") for each in rows)


def test_latex_has_booktabs_and_symbols(main):
    page = main.latex()
    for text in (r"\toprule", r"MAUVE $\uparrow$", r"PPL $\downarrow$", r"50.00 $\pm$ 1.25"):
        assert text in page


def test_the_terminal_shows_names_as_they_are():
    made = report("main", row("[red]a[/red]", "Ours", PPL=1.5))
    console = Console(file=io.StringIO(), width=100)
    console.print(made.terminal())
    shown = console.file.getvalue()
    for text in ("[red]a[/red]", "1.50", "8.03", "2.23x", "Table 1 of the paper", "no [1, 2"):
        assert text in shown


def test_no_word_is_broken_in_a_narrow_terminal():
    rows = [row(name, "Ours", PPL=1.5) for name in ("transformer, fine-tuned", "prompt-lookup")]
    console = Console(file=io.StringIO(), width=80)
    console.print(report("main", *rows).terminal())
    shown = console.file.getvalue()
    for word in ("transformer,", "fine-tuned", "prompt-lookup", "(greedy)", "Comparable?", "1.50"):
        assert word in shown


def test_files_of_a_report(main, tmp_path):
    assert main.write(tmp_path) == ""
    assert {path.name for path in tmp_path.iterdir()} == {
        f"main.{suffix}" for suffix in ("md", "tex", "json", "png")
    }
    content = json.loads((tmp_path / "main.json").read_text())
    assert content["table"] == "main"
    assert [cell["paper"] for cell in content["cells"]] == [20.47, 3.6, 25.69, 8.03, None]
    assert content["cells"][2]["measured"] == {"value": 50.0, "spread": 1.25, "n": 100}
    assert content["cells"][4]["comparability"] is None
    assert content["result"]["setup"]["model"] == "smollm2-135m"
    assert (tmp_path / "main.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_values_are_written(main, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "univerb[plots]" in main.write(tmp_path)
    assert "](main.png)" not in (tmp_path / "main.md").read_text()


def test_without_pandas_the_extra_is_named(main, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"univerb\[eval\]"):
        main.markdown()


def test_plots_show_ratios_where_there_are_any(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure")
    drawn = {}

    def savefig(self, *_, **__):
        drawn.update({axis.get_title(): axis.get_xlabel() for axis in self.axes})

    monkeypatch.setattr(figure.Figure, "savefig", savefig)
    ours = {"Citation_rec": TableCell(26.0), "Rouge-L": TableCell(14.0)}
    zero = {"Citation_rec": TableCell(0.0), "Rouge-L": TableCell(9.0), "share": TableCell(1)}
    rows = SystemRow("bare", zero, "TinyLlama"), SystemRow("a", ours, "w/ n-grams", "Ours")
    share = Column("share", better="higher")
    plot_comparison(tmp_path / "a.png", report("asqa", *rows, extra=(share,)).comparison)
    # Nothing has a ratio to a baseline of zero.
    assert drawn == {"Citation_rec ↑": "", "Rouge-L ↑": "x TinyLlama", "share ↑": ""}
    plot_comparison(tmp_path / "empty.png", report("main").comparison)
    assert not (tmp_path / "empty.png").exists()
