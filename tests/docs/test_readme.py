"""Every command of the README is run, and every output that it shows compared."""

import json
import re

import pytest
from shown import ROOT, blocks, matches, run, workplace

README = (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_every_figure_comes_from_the_committed_result():
    """The table of costs, row by row, as docs/results/speed/systems.json has it."""
    tables = json.loads((ROOT / "docs/results/speed/systems.json").read_text())["tables"]
    times, work = ({row["system"]: row for row in table["rows"]} for table in tables.values())
    lines = re.findall(r"^\| .+? \| (\d+) \| ([\d.]+)x \| .*\|$", README, flags=re.MULTILINE)
    names = ("hf", "hf-prompt-lookup", "univerb-torch-verify", "univerb-torch-unfold")
    expected = [(work[name]["steps"], times[name]["x hf"]["median"]) for name in names]
    for name in ("univerb-torch-unfold-float16", "univerb-llamacpp-atomic"):
        expected.append((work[name]["steps"], work[name]["decode x plain"]["median"]))
    shown = [(float(passes), float(ratio)) for passes, ratio in lines]
    assert shown == [(round(passes), round(ratio, 2)) for passes, ratio in expected]
    assert work["univerb-torch-verify"]["same text"].startswith("hf 6/6")
