"""Every command of the README is run, and every output that it shows compared."""

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
