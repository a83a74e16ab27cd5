"""Every relative link and #anchor of the project's pages leads somewhere: `make check-links`."""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/**/*.md", "recipes/**/*.md", "src/univerb/assets/**/README.md")
_PARSER = MarkdownIt("commonmark").enable("table")


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    tokens = _PARSER.parse(page.read_text(encoding="utf-8"))
    heads = [place for place, token in enumerate(tokens) if token.type == "heading_open"]
    seen: Counter[str] = Counter()
    found = set()
    for place in heads:
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", tokens[place + 1].content)
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def targets(page: Path) -> Iterator[str]:
    """Yield where the links and images of a page point."""
    for block in _PARSER.parse(page.read_text(encoding="utf-8")):
        for token in block.children or ():
            target = token.attrs.get("href") or token.attrs.get("src")
            if target and not re.match(r"[a-z][a-z0-9+.-]*:", str(target)):
                yield str(target)


def broken(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere."""
    for target in targets(page):
        name, _, anchor = unquote(target).partition("#")
        goal = (page.parent / name).resolve() if name else page
        if not goal.is_relative_to(ROOT) or not goal.exists():
            yield f"{target}: there is no such file"
        elif anchor and goal.suffix == ".md" and anchor not in anchors(goal):
            yield f"{target}: the page has no such heading"


if __name__ == "__main__":
    pages = sorted({page for pattern in PAGES for page in ROOT.glob(pattern)})
    faults = [f"{page.relative_to(ROOT)}: {fault}" for page in pages for fault in broken(page)]
    sys.exit("\n".join(faults) if faults else None)
