"""Every link, #anchor and path that the project's pages name is there: `make check-links`."""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/**/*.md", "recipes/**/*.md", "src/univerb/assets/**/README.md")
ROOMS = (ROOT, ROOT / "src/univerb")


def parsed(page):
    """Return the blocks of a page."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def anchors(page):
    """Return the anchors that GitHub makes of a page's headings."""
    blocks = parsed(page)
    heads = [place + 1 for place, block in enumerate(blocks) if block.type == "heading_open"]
    titles = [re.sub(r"[^\w\- ]", "", blocks[place].content.lower()) for place in heads]
    return {title.replace(" ", "-") for title in titles}


def broken_link(page, target):
    """Say where a link leads nowhere."""
    name, _, anchor = unquote(target).partition("#")
    goal = (page.parent / name).resolve() if name else page
    if not goal.is_relative_to(ROOT) or not goal.exists():
        return f"{target}: there is no such file"
    is_missing = anchor and goal.suffix == ".md" and anchor not in anchors(goal)
    return f"{target}: there is no such heading" if is_missing else None


def lost_path(code):
    """Say which path in code, such as `decoding/loop.py`, is not where it was."""
    is_path = re.fullmatch(r"[\w-]+(/[\w.-]+)+\.(py|md|yaml)", code)
    is_ours = is_path and any((room / code.split("/")[0]).is_dir() for room in ROOMS)
    return f"{code} is gone" if is_ours and not any((r / code).exists() for r in ROOMS) else None


def faults(page):
    """Yield what is wrong with the links and paths of a page."""
    for token in (token for block in parsed(page) for token in block.children or ()):
        why, target = None, token.attrs.get("href") or token.attrs.get("src")
        if target and not re.match(r"[a-z][a-z0-9+.-]*:", target):
            why = broken_link(page, target)
        # The changelog also names what was there once.
        elif token.type == "code_inline" and page.stem != "CHANGELOG":
            why = lost_path(token.content)
        yield from [f"{page.relative_to(ROOT)}: {why}"] if why else []


if __name__ == "__main__":
    pages = sorted({page for pattern in PAGES for page in ROOT.glob(pattern)})
    sys.exit("\n".join(fault for page in pages for fault in faults(page)) or None)
