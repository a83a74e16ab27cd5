"""The first page of a folder: older pages, other files, and what was reached."""

import json

from univerb.lab.tables.comparison import compare
from univerb.lab.tables.measured import Goal, Measured, Run, RunRow, Setup
from univerb.lab.tables.overview import overview, read_comparisons
from univerb.lab.tables.paper import paper_table
from univerb.lab.tables.rendering import to_dict, to_json

SETUP = Setup(model="tiny", data="texts", n=9, seed=0, threads=1, timed="decode")


def page(table, goals=()):
    rows = (RunRow("ours", {"PPL": Measured(2.0)}, "Ours", "", "greedy"),)
    return compare(Run(SETUP, rows, goals=goals), paper_table(table))


def test_pages_in_the_papers_order_and_nothing_else(tmp_path):
    goal = Goal("ours", "units", 0.7, 0.8, 0.79, "lower")
    (tmp_path / "lawmt.json").write_text(to_json(page("lawmt")))
    (tmp_path / "main.json").write_text(to_json(page("main", (goal,))))
    (tmp_path / "notes.json").write_text("not json")
    (tmp_path / "list.json").write_text("[1]")
    found = read_comparisons(tmp_path)
    assert list(found) == ["main", "lawmt"]
    text = overview(found)
    assert "| ours | units | 0.70x | at most 0.80x | **yes** | 0.79x |" in text
    assert text.count("## ") == 1
    assert "[lawmt](lawmt.md)" in text


def test_pages_from_before_there_were_goals(tmp_path):
    old = to_dict(page("main"))
    del old["run"]["goals"]
    (tmp_path / "main.json").write_text(json.dumps(old))
    assert list(read_comparisons(tmp_path)) == ["main"]
