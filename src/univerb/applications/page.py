"""The frame and the looks of our HTML pages: no script, nothing loaded from elsewhere."""

from html import escape

_COLOURS = 6
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #5b6670; --page: #fbfaf7;
  --card: #ffffff; --line: #dcdfe2; --strength: 24%; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --soft: #9aa5af; --page: #15191d;
  --card: #1e2429; --line: #343c44; --strength: 34%; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 17px/1.65 system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { margin: 0 auto; padding: 3rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.3; margin: 0 0 1.25rem; overflow-wrap: anywhere; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; position: relative; }
.note, .where { color: var(--soft); font-size: .85rem; }
.c0 { --hue: #2f7fd6; } .c1 { --hue: #d98a00; } .c2 { --hue: #2f9e5b; }
.c3 { --hue: #b0489c; } .c4 { --hue: #d2503a; } .c5 { --hue: #6f63d2; }
.sourced, mark { background: color-mix(in srgb, var(--hue) var(--strength), transparent);
  color: inherit; border-radius: .2em; padding: .05em .1em; box-decoration-break: clone;
  -webkit-box-decoration-break: clone; }
.sourced { cursor: help; border-bottom: 2px solid var(--hue); }
.pop { display: none; position: absolute; z-index: 1; left: 0; right: 0; padding: .75rem .9rem;
  background: var(--card); border: 1px solid var(--line); border-top: 3px solid var(--hue);
  border-radius: .5rem; box-shadow: 0 6px 24px #0003; font-size: .9rem; line-height: 1.5;
  white-space: normal; }
.sourced:hover > .pop, .sourced:focus > .pop { display: block; }
.pop > span { display: block; }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


def page(title: str, body: str, style: str) -> str:
    """Make a whole HTML document.

    Args:
        title: A text; also the heading.
        body: HTML.
        style: CSS that only this page needs.

    Returns:
        The document.
    """
    return _PAGE.format(title=escape(title), body=body, style=_STYLE + style)


def colour(number: int) -> str:
    """Return the class of a colour; they come round again."""
    return f"c{number % _COLOURS}"


def sourced(text: str, sources: str, hue: str, title: str = "") -> str:
    """Colour a stretch of text, and show its sources on pointing.

    Args:
        text: The stretch.
        sources: HTML.
        hue: A class that `colour` returned.
        title: A text for readers who cannot point.

    Returns:
        HTML.
    """
    named = f' title="{escape(title)}"' if title else ""
    return (
        f'<span class="sourced {hue}" tabindex="0"{named}>{escape(text)}'
        f'<span class="pop">{sources}</span></span>'
    )
