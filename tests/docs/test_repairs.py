"""Every test that docs/repairs.md names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "repairs.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/(?:\w+/)*test_\w+\.py)(?:::(\w+))?`", PAGE)))


def test_the_page_names_tests():
    assert len(NAMED) > 40


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file, name):
    source = (ROOT / file).read_text("utf-8")
    assert not name or re.search(rf"^\s*(?:def|class) {name}\b", source, re.MULTILINE)
