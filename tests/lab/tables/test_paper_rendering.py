"""A comparison on paper: the grid, the lines, Markdown, LaTeX, the terminal, plots."""

import io
import json
import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from univerb.errors import MissingExtra, OptionError
from univerb.lab.tables.comparison import compare
from univerb.lab.tables.measured import Goal, Measured, Run, RunRow, Setup
from univerb.lab.tables.paper import Column, paper_table
from univerb.lab.tables.plots import plot_comparison
from univerb.lab.tables.rendering import (
    brief,
    latex,
    made_with,
    markdown,
    reasons_text,
    terminal,
    to_json,
)
from univerb.lab.tables.sheets import goals, grid, lines

SETUP = Setup(
    model="smollm2-135m",
    data="wikitext-103 test",
    n=200,
    seed=7,
    threads=2,
    timed="encode + decode",
    scorer="smollm2-135m",
    featuriser="smollm2-135m",
    splitter="regex",
    device="cpu",
)


def row(name, stands_for="", decoding="greedy", section="", **cells):
    own = {key.replace("_", "-"): Measured(value) for key, value in cells.items()}
    return RunRow(name, own, stands_for, section, decoding)


def beside(table, *rows, **more):
    return compare(Run(SETUP, rows, **more), paper_table(table))


@pytest.fixture
def main():
    spread = {"MAUVE": Measured(50.0, 1.25, 100), "PPL": Measured(12.0)}
    return beside(
        "main",
        row("bare", "Transformer", MAUVE=40.0, PPL=8.0),
        RunRow("default", spread, "Ours", "", "greedy"),
        row("mystery", MAUVE=50.0),
        notes=("Spread: standard deviation over 5 seeds.",),
    )


def texts(sheet, name):
    """Return the rows of a sheet that have a name, as dictionaries."""
    rows = [cells for cells in sheet.rows if cells[0].text == name]
    return [dict(zip(sheet.header, (cell.text for cell in cells), strict=True)) for cells in rows]


def best(sheet, column):
    place = sheet.header.index(column)
    return [(cells[0].text, cells[place].text) for cells in sheet.rows if cells[place].is_best]


class TestGrid:
    def test_the_papers_rows_in_its_order_with_ours_below(self, main):
        names = [cells[0].text for cells in grid(main).rows]
        paper = ["RETRO", "KMM-LM*", "CoG", "MWT", "Ours"]
        assert names == ["Transformer", "bare", *paper, "default", "mystery", "comparable?"]

    def test_cells(self, main):
        [ours], [default] = texts(grid(main), "Ours"), texts(grid(main), "default")
        assert ours["MAUVE ↑"] == "25.69 (1.26x)"
        assert ours["From"] == "paper"
        assert default["MAUVE ↑"] == "50.00 ± 1.25 (1.25x)"
        assert default["PPL ↓"] == "12.00 (1.50x)"
        assert default["Rep-2 ↓"] == "-"

    def test_missing_cells_of_the_paper(self):
        [knn] = texts(grid(beside("lawmt", row("a", "Ours", PPL=1.0))), "KMM-LM*")
        assert (knn["MAUVE ↑"], knn["PPL ↓"]) == ("23.32 (1.02x)", "-")

    def test_the_last_line_tells_what_compares(self, main):
        [last] = texts(grid(main), "comparable?")
        assert last["MAUVE ↑"].startswith("no / - [")
        assert last["Rep-2 ↓"] == "-"

    def test_sections_are_rows(self):
        sheet = grid(beside("negatives", row("a", "generation", section="N-ids", PPL=1.0)))
        names = [cells[0].text for cells in sheet.rows]
        assert [name for name in names if name in ("FMM", "N-words", "N-ids")] == [
            "FMM",
            "N-words",
            "N-ids",
        ]
        assert names.index("a") > names.index("N-ids")

    def test_no_column_of_decodings_where_none_is_said(self):
        own = RunRow("a", {"NSL": Measured(90.0)}, "Ours")
        assert "Decoding" not in grid(beside("compression", own)).header
        assert "Decoding" not in lines(beside("compression", own)).header
        assert "Decoding" in grid(beside("main", row("a", "Ours", PPL=1.0))).header

    def test_decimals(self):
        own = RunRow("a", {"Memory": Measured(1.24), "Avg Tokens": Measured(88.4)}, "32")
        [found] = texts(grid(beside("resources", own)), "a")
        assert (found["Memory (Rel) (GB) ↓"], found["Avg Tokens ↓"]) == ("1.2400", "88")


class TestBrief:
    def test_the_papers_ratio_is_the_papers(self, main):
        [table] = brief(main)
        columns = [(str(own.header), list(map(str, own.cells))) for own in table.columns]
        names = [name for name, _ in columns]
        assert names == ["Model", "Decoding", "Measure", "This run", "x baseline", "Paper",
                         "x baseline"]  # fmt: skip
        place = next(
            at
            for at, own in enumerate(zip(columns[0][1], columns[2][1], strict=True))
            if own == ("default", "PPL ↓")
        )
        assert [cells[place] for _, cells in columns[3:]] == ["12.00", "1.50x", "8.03", "2.23x"]


class TestGoals:
    def test_where_none_was_set_systems_are_only_compared(self):
        given = [
            Goal("ours", "MAUVE matched", 1.2, goal, paper, "higher", low=1.1, high=1.3)
            for goal, paper in ((1.0, 1.25), (None, None))
        ]
        own = row("a", "Ours", PPL=1.0)
        [met, compared] = texts(goals(beside("main", own, goals=tuple(given))), "ours")
        assert met["This run"] == compared["This run"] == "1.20x (90 %: 1.10 to 1.30)"
        assert (met["Goal"], met["Met"], met["Paper"]) == ("above 1.00x", "yes", "1.25x")
        assert (compared["Goal"], compared["Met"], compared["Paper"]) == ("-", "-", "-")


class TestBest:
    def test_of_the_paper_and_of_the_run_apart(self, main):
        assert best(grid(main), "MAUVE ↑") == [
            ("Ours", "25.69 (1.26x)"),
            ("default", "50.00 ± 1.25 (1.25x)"),
            ("mystery", "50.00 (1.25x)"),
        ]
        assert best(grid(main), "PPL ↓") == [("bare", "8.00"), ("KMM-LM*", "3.48 (0.97x)")]

    def test_ties_are_those_that_look_the_same(self):
        rows = (row("a", "Transformer", PPL=8.001), row("b", "MWT", PPL=7.999))
        found = best(grid(beside("main", *rows, row("c", "Ours", PPL=8.01))), "PPL ↓")
        assert [name for name, _ in found] == ["a", "KMM-LM*", "b"]

    def test_by_decoding_and_section(self):
        sheet = grid(beside("main-full", row("a", "Ours", "nucleus", PPL=1.0)))
        assert [name for name, _ in best(sheet, "MAUVE ↑")] == ["CoG", "Ours"]
        sheet = grid(beside("negatives"))
        assert len(best(sheet, "MAUVE ↑")) == 3

    def test_alone_or_without_a_direction_none_is(self):
        assert not [name for name, _ in best(grid(beside("gpt4")), "No Prefer")]
        sheet = grid(beside("main", row("only", "Ours", PPL=1.0)))
        assert "only" not in [name for name, _ in best(sheet, "PPL ↓")]


class TestLines:
    def test_this_run_paper_comparable(self, main):
        header = lines(main).header
        for name in ("This run", "Paper", "Comparable? Why not"):
            assert name in header
        mauve = [cell.text for cell in lines(main).rows[2]]
        assert mauve[:9] == [
            "default",
            "greedy",
            "MAUVE ↑",
            "50.00 ± 1.25",
            "1.25x",
            "100",
            "Ours",
            "25.69",
            "1.26x",
        ]
        numbers = re.fullmatch(r"no \[([\d, ]+)\]", mauve[9])
        assert numbers
        why = [main.reasons[int(number) - 1] for number in numbers[1].split(", ")]
        assert tuple(sorted(why)) == tuple(sorted(main.lines[2].reasons))

    def test_a_row_that_the_paper_has_not(self, main):
        last = [cell.text for cell in lines(main).rows[-1]]
        assert last[0] == "mystery"
        assert last[6:9] == ["-", "-", "-"]
        assert last[9].startswith("- [")

    def test_there_are_as_many_as_figures(self, main):
        assert len(lines(main).rows) == 5
        assert not lines(beside("main")).rows


class TestMarkdown:
    def test_the_page_says_all_that_it_was_made_with(self, main):
        page = markdown(main, "main.png")
        for text in (
            "# Table 1 of the paper: WikiText-103, greedy",
            "* model: smollm2-135m",
            "* scorer: smollm2-135m",
            "* featuriser: smollm2-135m",
            "* data: wikitext-103 test",
            "* seed: 7",
            "* N: 200",
            "* threads: 2",
            "* inside the timed part: encode + decode",
            "**50.00 ± 1.25 (1.25x)**",
            "featuriser: smollm2-135m here, gpt2-large in the paper",
            "Spread: standard deviation over 5 seeds.",
            "20 % less latency",
            "](main.png)",
        ):
            assert text in page
        assert "main.png" not in markdown(main)

    @given(st.text(st.characters(codec="utf-8"), max_size=20))
    def test_no_name_breaks_a_table(self, name):
        page = markdown(beside("main", row(name, "Ours", PPL=1.0)))
        tables = [line for line in page.splitlines() if line.startswith("| ")]
        bars = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in tables]
        assert set(bars) == {11}

    def test_markup_in_names_is_text(self):
        page = markdown(beside("main", row("a|b*_<c>[d]", "Ours", PPL=1.0)))
        assert r"a\|b\*\_\<c>\[d\]" in page
        assert r"KMM-LM\*" in page


class TestLatex:
    def test_special_characters(self):
        name = r"a&b%c$d#e_f{g}h~i^j\k<l>m|n[o]"
        page = latex(beside("main", row(name, "Ours", PPL=1.0)))
        assert (
            r"a\&b\%c\$d\#e\_f\{g\}h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k"
            r"\textless{}l\textgreater{}m\textbar{}n{[}o{]}"
        ) in page

    @given(st.text(st.characters(codec="ascii"), max_size=20))
    def test_no_name_breaks_a_row(self, name):
        page = latex(beside("main", row(name, "Ours", PPL=1.0)))
        rows = [line for line in page.splitlines() if line.endswith(r" \\")]
        assert {len(re.findall(r"(?<!\\)&", own)) for own in rows} == {9}
        bare = re.sub(r"\\[\\&%$#_{}]", "", page)
        assert bare.count("{") == bare.count("}")
        assert not re.search(r"[%#~^_]", re.sub(r"\\label\{.*\}", "", bare))

    def test_booktabs_directions_and_best(self, main):
        page = latex(main)
        for text in (
            r"\toprule",
            r"\midrule",
            r"\bottomrule",
            r"MAUVE $\uparrow$",
            r"PPL $\downarrow$",
            r"\textbf{50.00 $\pm$ 1.25 (1.25x)}",
            r"\label{tab:main}",
            "KMM-LM* & greedy & paper",
        ):
            assert text in page
        assert page.count(r"\begin{table*}") == page.count(r"\end{table*}") == 2


class TestTerminalAndJson:
    def test_the_terminal_shows_names_as_they_are(self):
        found = beside("main", row("[red]a[/red]", "Ours", PPL=1.5))
        console = Console(file=io.StringIO(), width=250)
        for table in terminal(found):
            console.print(table)
        shown = console.file.getvalue()
        assert "[red]a[/red]" in shown
        assert "1.50" in shown
        assert "Table 1 of the paper" in shown

    def test_reasons_below(self, main):
        text = reasons_text(main)
        assert text.startswith("[1] model: smollm2-135m here, gpt2 in the paper\n[2] ")
        assert "Ratios refer to Transformer, each side to its own." in text

    def test_a_row_that_was_made_otherwise_is_told(self):
        own = replace(row("atomic", "Ours", PPL=1.0), setup=replace(SETUP, n=50, retriever="bm25"))
        assert "- atomic greedy was made with N: 50, retriever: bm25." in reasons_text(
            beside("main", own)
        )

    def test_json_has_every_line(self, main):
        found = json.loads(to_json(main))
        assert found["table"]["number"] == 1
        assert [own["paper"] for own in found["lines"]] == [20.47, 3.6, 25.69, 8.03, None]
        assert found["lines"][2]["run"] == {"value": 50.0, "spread": 1.25, "n": 100}
        assert found["lines"][4]["standing"] is None

    def test_more_facts_are_printed_and_unknown_ones_are_not(self):
        own = beside("main", facts={"NLI accuracy": "81 %"})
        assert made_with(own)["NLI accuracy"] == "81 %"
        assert made_with(own)["KV cache"] == "yes"
        assert "retriever" not in made_with(own)
        no_cache = compare(Run(replace(SETUP, kv_cache=False), ()), paper_table("main"))
        assert made_with(no_cache)["KV cache"] == "no"


class TestPlots:
    @pytest.mark.parametrize("name", ["scale-up", "gpt4", "resources"])
    def test_ratios_values_and_curves(self, name, tmp_path):
        pytest.importorskip("matplotlib")
        table = paper_table(name)
        rows = tuple(
            RunRow(
                f"our {own.name}",
                {name: Measured(value) for name, value in own.values.items()},
                own.name,
                own.section,
                own.decoding,
            )
            for own in table.rows[:3]
        )
        plot_comparison(tmp_path / "a.png", compare(Run(SETUP, rows), table))
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

    def test_figures_that_the_paper_has_not(self, tmp_path):
        pytest.importorskip("matplotlib")
        share = Column("share", better="higher")
        own = RunRow("a", {"share": Measured(3.0)}, "Ours", "", "greedy")
        plot_comparison(tmp_path / "a.png", beside("main", own, extra=(share,)))
        assert (tmp_path / "a.png").stat().st_size

    def test_measures_whose_baseline_is_zero_are_drawn_as_they_are(self, tmp_path, monkeypatch):
        figure = pytest.importorskip("matplotlib.figure")
        drawn = {}
        monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.update(
            {axis.get_title(): axis.get_xlabel() for axis in self.axes}))  # fmt: skip
        cells = {"Citation_rec": Measured(26.0), "Rouge-L": Measured(14.0)}
        zero = {"Citation_rec": Measured(0.0), "Rouge-L": Measured(9.0), "share": Measured(0.0)}
        given = RunRow("bare", zero, "TinyLlama"), RunRow("a", cells, "w/ n-grams", "Ours")
        share = Column("share", better="higher")
        plot_comparison(tmp_path / "a.png", beside("asqa", *given, extra=(share,)))
        assert drawn == {"Citation_rec ↑": "", "Rouge-L ↑": "x TinyLlama"}

    def test_nothing_to_draw(self, tmp_path):
        pytest.importorskip("matplotlib")
        with pytest.raises(OptionError, match="no figure"):
            plot_comparison(tmp_path / "a.png", beside("main"))

    def test_without_matplotlib(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(MissingExtra, match="plots"):
            plot_comparison(tmp_path / "a.png", beside("main", row("a", "Ours", PPL=1.0)))
