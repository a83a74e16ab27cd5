"""Every command of the README is run, and every output that it shows compared."""

import json
import re

import pytest
from shown import ROOT, blocks, matches, run, workplace

README = (ROOT / "README.md").read_text(encoding="utf-8")
WORKLOADS = ("law", "open", "answers", "summaries")


def test_the_readme_is_at_most_150_lines():
    assert len(README.splitlines()) <= 150


@pytest.mark.default_model
@pytest.mark.slow
def test_every_block_prints_what_is_shown():
    # In order: some commands use what others before them have built.
    with workplace() as folder:
        for block in blocks("README.md"):
            printed = run(block, folder)
            assert printed.strip(), block.code
            assert block.output is None or matches(block.output, printed), f"{block}\n{printed}"


def test_make_targets_named_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`?make (\w+)`?", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a b\nc", "a b c\n", True),
        ("a b", "a bc", False),
        ("40 tokens; …\nnext", "40 tokens; 1.2 s\nnext", True),
        ("40 tokens; …\nnext", "41 tokens; 1.2 s\nnext", False),
    ],
)
def test_outputs_are_compared_without_line_breaks(shown, printed, same):
    assert matches(shown, printed) == same


def measured(run):
    """The tables of a run of `univerb lab speed`."""
    return json.loads((ROOT / f"docs/results/speed/{run}/systems.json").read_text())["tables"]


def test_every_figure_comes_from_the_committed_result():
    """The table of costs, row by row, as docs/results/speed/torch/systems.json has it."""
    tables = measured("torch")
    systems = ("torch-plain", "hf-lookup-prepacked", "torch-verify", "torch-unfold")
    expected = [[cost(tables, workload, name) for workload in WORKLOADS] for name in systems]
    shown = re.findall(r"^\| .+? \| (\d.+?) \| (.+?) \| (.+?) \| (.+?) \|$", README, re.M)
    assert [list(row) for row in shown] == expected
    for name in ("torch-verify", "hf-lookup-prepacked"):
        texts = [row_of(tables[f"{w}: work"], name)["plain's text"] for w in WORKLOADS]
        assert texts == ["20 of 20"] * 4


def test_figures_in_sentences_come_from_committed_results():
    text, control, llamacpp = " ".join(README.split()), measured("no-repeat"), measured("llamacpp")
    for name in ("torch-verify", "hf-lookup-prepacked"):
        medians = [row_of(control[w], name)["x plain"]["median"] for w in WORKLOADS]
        assert "{:.2f}, {:.2f}, {:.2f} and {:.2f}x".format(*medians) in text
    medians = [row_of(llamacpp[w], "llamacpp-verify")["x plain"]["median"] for w in WORKLOADS]
    assert f"{min(medians):.2f} to {max(medians):.2f}x" in text


def row_of(table, name):
    return next(row for row in table["rows"] if row["system"] == name)


def cost(tables, workload, name):
    """Passes and time of a system as the README writes them."""
    passes = row_of(tables[f"{workload}: work"], name)["passes"]
    ratio = row_of(tables[workload], name)["x plain"]
    if ratio is None:
        return f"{passes:.1f}, 1.00x"
    return f"{passes:.1f}, {ratio['median']:.2f}x ({ratio['low']:.2f}-{ratio['high']:.2f})"
