"""The frame and the looks of our HTML pages: no script, nothing loaded from elsewhere."""

from html import escape
from importlib.resources import files

_COLOURS = 6

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
    """Make an HTML document of a title (text), a body (HTML) and the CSS that only it needs."""
    return _PAGE.format(title=escape(title), body=body, style=stylesheet("page") + style)


def stylesheet(name: str) -> str:
    """Return a style sheet that ships with the package."""
    return (files("univerb") / "assets" / f"{name}.css").read_text(encoding="utf-8")


def colour(number: int) -> str:
    """Return the class of a colour; they come round again."""
    return f"c{number % _COLOURS}"


def sourced(text: str, sources: str, hue: str, title: str = "") -> str:
    """Colour a stretch of text, and show its sources (HTML) on pointing.

    `hue` is a class that `colour` returned, `title` a text for readers who cannot point.
    """
    named = f' title="{escape(title)}"' if title else ""
    return (
        f'<span class="sourced {hue}" tabindex="0"{named}>{escape(text)}'
        f'<span class="pop">{sources}</span></span>'
    )
