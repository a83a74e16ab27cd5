"""An answer as one HTML page of its own: no script, nothing loaded from elsewhere."""

from collections.abc import Iterator
from html import escape

from univerb.applications.answer import Answer
from univerb.applications.citations import Citation, Run
from univerb.applications.page import colour, page, sourced
from univerb.documents.chunks import Chunk

_CONTEXT = 80
"""How many characters around a source its popover shows."""

_STYLE = """
main { max-width: 46rem; }
h2 { font-size: .8rem; letter-spacing: .08em; text-transform: uppercase; color: var(--soft);
  margin: 2.5rem 0 .75rem; }
.answer { font-size: 1.15rem; }
.marker { font-size: .75em; vertical-align: super; line-height: 0; font-weight: 600;
  color: color-mix(in srgb, var(--hue) 75%, var(--ink)); text-decoration: none; }
.pop > span + .where { margin-top: .35rem; }
.pop > .where + span { margin-top: .75rem; }
.pop b { background: color-mix(in srgb, var(--hue) var(--strength), transparent); }
section { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--hue);
  border-radius: .5rem; padding: .9rem 1.1rem; margin: 0 0 1rem; font-size: .95rem; }
section:target { outline: 2px solid var(--hue); }
section h3 { margin: 0 0 .4rem; font-size: 1rem; overflow-wrap: anywhere; }
"""

_BODY = """<p class="text answer">{answer}</p>
{note}<h2>Passages</h2>
{passages}"""


def answer_html(answer: Answer) -> str:
    """Show an answer as a page on which every cited stretch leads to its source.

    Args:
        answer: The answer.

    Returns:
        A whole HTML document: the question, the answer with its cited stretches coloured by
        passage, and the passages with what was copied from them.
    """
    note = '<p class="note">Passages were shortened to fit the context of the model.</p>\n'
    passages = (
        _passage(number, passage, [c for c in answer.citations if c.marker == number])
        for number, passage in enumerate(answer.passages, 1)
    )
    body = _BODY.format(
        answer="".join(map(_run, answer.cited.runs())),
        note=note if answer.truncated else "",
        passages="\n".join(passages),
    )
    return page(answer.question, body, _STYLE)


def _run(run: Run) -> str:
    if run.marker is not None:
        link = f'class="marker {_colour(run.marker)}" href="#passage-{run.marker}"'
        return f"<a {link}>{escape(run.text)}</a>"
    if not run.citations:
        return escape(run.text)
    places = "; ".join(_where(citation) for citation in run.citations)
    sources = "".join(map(_source, run.citations))
    return sourced(run.text, sources, _colour(run.citations[0].marker), places)


def _source(citation: Citation) -> str:
    text, offset = citation.passage.text, citation.passage.start
    start, end = citation.start - offset, citation.end - offset
    first, last = max(start - _CONTEXT, 0), min(end + _CONTEXT, len(text))
    before = ("…" if first else "") + text[first:start]
    after = text[end:last] + ("…" if last < len(text) else "")
    return (
        f"<span>{escape(before)}<b>{escape(citation.text)}</b>{escape(after)}</span>"
        f'<span class="where">{escape(_where(citation))}</span>'
    )


def _where(citation: Citation) -> str:
    return f"[{citation.marker}] {citation.document}, characters {citation.start}-{citation.end}"


def _passage(number: int, passage: Chunk, citations: list[Citation]) -> str:
    place = f"characters {passage.start}-{passage.end}"
    return (
        f'<section id="passage-{number}" class="{_colour(number)}">'
        f'<h3>[{number}] {escape(passage.document)} <span class="where">{place}</span></h3>'
        f'<p class="text">{"".join(_highlighted(passage, citations))}</p></section>'
    )


def _highlighted(passage: Chunk, citations: list[Citation]) -> Iterator[str]:
    at = 0
    for citation in sorted(citations, key=lambda c: (c.start, c.end)):
        start, end = max(citation.start - passage.start, at), citation.end - passage.start
        # Sources may overlap; what is highlighted already is not shown again.
        if start < end:
            yield escape(passage.text[at:start])
            yield f"<mark>{escape(passage.text[start:end])}</mark>"
            at = end
    yield escape(passage.text[at:])


def _colour(number: int) -> str:
    return colour(number - 1)
