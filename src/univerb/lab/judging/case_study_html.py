"""Case studies as one HTML page: no script, nothing loaded from elsewhere."""

from collections.abc import Iterable
from html import escape
from itertools import count

from univerb.applications.page import colour, page, sourced
from univerb.decoding.results import Piece
from univerb.lab.judging.case_study import CaseStudy, SystemOutput, source_labels
from univerb.phrase import Phrase

_STYLE = """
body { font-size: 16px; line-height: 1.6; }
main { max-width: 72rem; }
h2 { font-size: 1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
.note { margin: .75rem 0 0; }
section { margin: 2.5rem 0 0; }
.prompt { color: var(--soft); margin: 0 0 1rem; padding-left: .9rem;
  border-left: 3px solid var(--line); }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr));
  gap: 1rem; align-items: start; }
article { min-width: 0; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; padding: 1rem 1.1rem; }
"""

_NOTE = """<p class="note">What is coloured was written as one phrase of the dynamic vocabulary; \
point at it to see its source. Everything else was written token by token.</p>
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
    """Return a whole HTML document on which every phrase is coloured and shows its sources."""
    cases = (
        _CASE.format(prompt=escape(study.prompt), sides="\n".join(map(_side, study.systems)))
        for study in studies
    )
    return page(title, _NOTE + "\n".join(cases), _STYLE)


def _side(system: SystemOutput) -> str:
    return _SIDE.format(
        name=escape(system.name), text=_text(system.pieces), caption=escape(system.caption)
    )


def _text(pieces: Iterable[Piece]) -> str:
    numbers = count()
    return "".join(
        _phrase(piece.text, piece.phrase, next(numbers)) if piece.phrase else escape(piece.text)
        for piece in pieces
    )


def _phrase(text: str, phrase: Phrase, number: int) -> str:
    """Colour a phrase in one of two colours by turns, so that neighbours stay apart."""
    space = len(text) - len(text.lstrip())
    sources = "".join(f"<span>{escape(label)}</span>" for label in source_labels(phrase))
    return escape(text[:space]) + sourced(text[space:], sources, colour(number % 2))
