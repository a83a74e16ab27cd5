"""Every command of the README is run, and every output that it shows compared."""

import json
import re
from statistics import mean, median

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
    result = json.loads((ROOT / "docs/results/speed/systems.json").read_text())
    pairs = (
        ("hf", "hf"),
        ("hf-prompt-lookup", "hf"),
        ("univerb-torch-verify", "hf"),
        ("univerb-torch-unfold", "hf"),
        ("univerb-torch-unfold-float16", "univerb-torch-plain-float16"),
        ("univerb-llamacpp-atomic", "llama.cpp"),
    )
    expected = [cost_columns(result["rounds"], *pair) for pair in pairs]
    assert re.findall(r"^\| .+ \| ([\d.]+ \| [\d.]+x.*?) \| .*\|$", README, re.M) == expected
    ids = [[r["measured"][name]["ids"] for name in ("hf", pairs[2][0])] for r in result["rounds"]]
    assert len(ids) == 6 and all(plain == verified for plain, verified in ids)


def cost_columns(rounds, name, base):
    """Passes and time of a system as the README writes them."""
    parts = ("prepare", "prefill", "decode")
    totals = [[sum(r["measured"][n][part] for part in parts) for n in (name, base)] for r in rounds]
    ratios = sorted(own / plain for own, plain in totals)
    passes = mean(r["measured"][name]["steps"] for r in rounds)
    spread = "" if name == base else f" ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    return f"{passes:.1f} | {median(ratios):.2f}x{spread}"
