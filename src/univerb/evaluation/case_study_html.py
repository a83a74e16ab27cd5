"""Case studies as one HTML page of its own: no script, nothing loaded from elsewhere."""

from collections.abc import Iterable
from html import escape

from univerb.decoding.results import Piece
from univerb.evaluation.case_study import CaseStudy, System, places
from univerb.phrase import Phrase

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #5b6670; --page: #fbfaf7;
  --card: #ffffff; --line: #dcdfe2; --strength: 24%; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --soft: #9aa5af; --page: #15191d;
  --card: #1e2429; --line: #343c44; --strength: 34%; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.6 system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
h2 { font-size: 1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
.note { color: var(--soft); font-size: .85rem; margin: .75rem 0 0; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; position: relative; }
section { margin: 2.5rem 0 0; }
.prompt { color: var(--soft); margin: 0 0 1rem; padding-left: .9rem;
  border-left: 3px solid var(--line); }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; align-items: start; }
@media (max-width: 48rem) { .sides { grid-template-columns: 1fr; } }
article { min-width: 0; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; padding: 1rem 1.1rem; }
.c0 { --hue: #2f7fd6; } .c1 { --hue: #d98a00; }
.phrase { background: color-mix(in srgb, var(--hue) var(--strength), transparent); cursor: help;
  border-bottom: 2px solid var(--hue); border-radius: .2em; padding: .05em .1em;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }
.pop { display: none; position: absolute; z-index: 1; left: 0; right: 0; padding: .6rem .8rem;
  background: var(--card); border: 1px solid var(--line); border-top: 3px solid var(--hue);
  border-radius: .5rem; box-shadow: 0 6px 24px #0003; font-size: .85rem; white-space: normal; }
.phrase:hover > .pop, .phrase:focus > .pop { display: block; }
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
<p class="note">What is coloured was written as one phrase of the dynamic vocabulary; point at it \
to see where the phrase comes from. All else was written token by token.</p>
{cases}
</main>
</body>
</html>
"""

_CASE = """<section>
<p class="text prompt">{prompt}</p>
<div class="sides">
{sides}
</div>
</section>"""

_SIDE = """<article>
<h2>{name}</h2>
<p class="text">{text}</p>
<p class="note">{caption}</p>
</article>"""


def case_study_html(studies: Iterable[CaseStudy], title: str = "Case study") -> str:
    """Show cases as a page, two systems side by side.

    Args:
        studies: The cases.
        title: The page's title.

    Returns:
        A whole HTML document on which every phrase is coloured and shows its sources.
    """
    cases = (
        _CASE.format(prompt=escape(own.prompt), sides="\n".join(map(_side, (own.ours, own.theirs))))
        for own in studies
    )
    return _PAGE.format(title=escape(title), style=_STYLE, cases="\n".join(cases))


def _side(system: System) -> str:
    return _SIDE.format(
        name=escape(system.name), text=_text(system.pieces), caption=escape(system.caption)
    )


def _text(pieces: Iterable[Piece]) -> str:
    parts, number = [], 0
    for piece in pieces:
        if piece.phrase is None:
            parts.append(escape(piece.text))
            continue
        parts.append(_phrase(piece.text, piece.phrase, number))
        number += 1
    return "".join(parts)


def _phrase(text: str, phrase: Phrase, number: int) -> str:
    """Colour a phrase in one of two colours by turns, so that neighbours stay apart."""
    space = len(text) - len(text.lstrip())
    found = "".join(f"<span>{escape(place)}</span>" for place in places(phrase))
    return (
        f'{escape(text[:space])}<span class="phrase c{number % 2}" tabindex="0">'
        f'{escape(text[space:])}<span class="pop">{found}</span></span>'
    )
