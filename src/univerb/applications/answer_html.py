"""An answer as one HTML page of its own: no script, nothing loaded from elsewhere."""

from collections.abc import Iterator
from html import escape

from univerb.applications.answer import Answer
from univerb.applications.citations import Citation, Run
from univerb.applications.page import colour, page, sourced, stylesheet
from univerb.documents.chunks import Chunk

_CONTEXT = 80
"""Characters around a source that its popover shows."""

_BODY = """<p class="text answer">{answer}</p>
{note}<h2>Passages</h2>
{passages}"""


def answer_html(answer: Answer) -> str:
    """Show an answer as an HTML page on which every cited stretch leads to its source.

    It has the question, the answer with its cited stretches coloured by passage, and the passages
    with what was copied from them.
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
    return page(answer.question, body, stylesheet("answer"))


def _run(run: Run) -> str:
    if run.marker is not None:
        link = f'class="marker {_colour(run.marker)}" href="#passage-{run.marker}"'
        return f"<a {link}>{escape(run.text)}</a>"
    if not run.citations:
        return escape(run.text)
    spans = "; ".join(_where(citation) for citation in run.citations)
    sources = "".join(map(_source, run.citations))
    return sourced(run.text, sources, _colour(run.citations[0].marker), spans)


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
    span = f"characters {passage.start}-{passage.end}"
    return (
        f'<section id="passage-{number}" class="{_colour(number)}">'
        f'<h3>[{number}] {escape(passage.document)} <span class="where">{span}</span></h3>'
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
