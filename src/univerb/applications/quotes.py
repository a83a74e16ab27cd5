"""Whole sentences of passages that answer a question, chosen by retrieval and by the LM.

A sentence is worth what its judges say together: BM25, the small embedding model if it is
installed, the LM, which is asked how likely the question is behind the sentence, and whether it has
what the question asks for. Small LMs judge a question better than they answer it. Weights and
thresholds were chosen on ASQA 0-39 and on questions about the demo documents
(docs/decisions/0042-quotes.md).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.applications.prompts import fitted, without_special, write_prompt
from univerb.applications.question_types import answer_fit, has_words
from univerb.applications.quotable import Quotable, find_quotable
from univerb.decoding.continuations import continuation_logprobs
from univerb.documents.chunks import Chunk
from univerb.modeling.phrase_model import PhraseModel
from univerb.retrieval.bm25 import BM25

if TYPE_CHECKING:
    from univerb.retrieval.base import Method

_READ_BY_LM = 12
"""Sentences that the LM reads at least; the others are below them for BM25 and the embedding model.
"""
_BY_HEADING, _BY_SENTENCE = 1.5, 1.0
"""Weights of the embedding model, which sees a sentence below its heading and after another."""
_BY_LM, _BY_LM_ALONE = 0.5, 1.5
"""Of the LM beside an embedding model, and without one."""
_BY_FIT = 1.5
_LEAST_EVIDENCE = 1.2
_ALIKE, _MUCH_ALIKE = 0.65, 0.7
"""Cosines from which a sentence answers whatever the LM says, and whatever it lacks."""
_ASK = "Title: {}\nText: {}\n\nWrite a question that this text answers."
_ASK_ANYTHING = "Write a question."
_NO_TEXTS: Mapping[str, str] = MappingProxyType({})
Floats = NDArray[numpy.float64]


class Quote(NamedTuple):
    """A sentence of a passage as an answer to a question."""

    source: Chunk
    """The sentence itself, where it stands in its document."""
    score: float
    """Higher is better; comparable for one question only."""
    evidence: float
    """Nats per token by which the sentence makes the question likelier; near 0 or below it has
    nothing to do with it."""
    likeness: float = 0.0
    """The embedding model's cosine; 0 without one."""


def rank_quotes(
    lm: PhraseModel,
    question: str,
    passages: Sequence[Chunk],
    embedder: "Method | None" = None,
    texts: Mapping[str, str] = _NO_TEXTS,
    k: int = _READ_BY_LM,
) -> list[Quote]:
    """Rank the sentences of passages by how well they answer a question, the best first.

    `texts` are the whole documents by name, as far as they are at hand. Sentences that the LM has
    not read are left out; it reads at least `k`.
    """
    candidates = list(find_quotable(passages, texts))
    retrieved, likeness = _retrieval_scores(question, candidates, embedder)
    read = numpy.argsort(-retrieved, kind="stable")[: max(k, _READ_BY_LM)]
    if not read.size:
        return []
    chosen = [candidates[index] for index in read.tolist()]
    asked = _question_ids(lm, question)
    likelihoods = _question_likelihoods(lm, asked, chosen)
    weight = _BY_LM_ALONE if embedder is None else _BY_LM
    scores = retrieved[read] + weight * _standardised(likelihoods)
    evidence = likelihoods - continuation_logprobs(lm, [write_prompt(lm, _ASK_ANYTHING)], asked)
    columns = zip(chosen, scores, evidence, likeness[read], strict=True)
    quotes = [Quote(each.source, *map(float, numbers)) for each, *numbers in columns]
    return sorted(quotes, key=lambda quote: -quote.score)


def answers_question(question: str, quote: Quote) -> bool:
    """Tell whether a quote has to do with a question at all.

    One that seems to lack what is asked for needs the question's words, or to be much alike.
    """
    text = quote.source.text
    if answer_fit(question, text) < 0 and not has_words(question, text):
        return quote.likeness >= _MUCH_ALIKE
    return quote.evidence >= _LEAST_EVIDENCE or quote.likeness >= _ALIKE


def _retrieval_scores(
    question: str, candidates: Sequence[Quotable], embedder: "Method | None"
) -> tuple[Floats, Floats]:
    """Score sentences by all but the LM; returns the embedding model's cosines, too."""
    below = [f"{each.title}. {each.below_heading}" for each in candidates]
    fits = numpy.array([answer_fit(question, each.text) for each in candidates])
    scores = _standardised(_scores_by(BM25(), question, below)) + _BY_FIT * fits
    likeness = numpy.zeros(len(candidates))
    if embedder is not None:
        after = [f"{each.title}. {each.after_sentence}" for each in candidates]
        for weight, texts in ((_BY_HEADING, below), (_BY_SENTENCE, after)):
            cosines = _scores_by(embedder, question, texts)
            scores = scores + weight * _standardised(cosines)
            likeness = numpy.maximum(likeness, cosines)
    return scores, likeness


def _scores_by(method: "Method", question: str, texts: Sequence[str]) -> Floats:
    scores = numpy.zeros(len(texts))
    for number, score in method.index([method.features(texts)]).rank(question, len(texts)):
        scores[number] = score
    return scores


def _question_ids(lm: PhraseModel, question: str) -> list[int]:
    """Tokenize a question as the LM would write it; what looks like a special token is text."""
    plain = without_special(question.strip(), lm.tokenizer.added_texts)
    return lm.tokenizer.encode_inside(plain).ids


def _question_likelihoods(
    lm: PhraseModel, asked: Sequence[int], candidates: Sequence[Quotable]
) -> Floats:
    """Return how likely the question is behind each text, in nats per token."""
    room = lm.context_size - len(asked)
    prompts = [
        _asking_about(lm, Chunk(each.title, 0, each.below_heading), room) for each in candidates
    ]
    return continuation_logprobs(lm, prompts, asked)


def _asking_about(lm: PhraseModel, titled: Chunk, room: int) -> list[int]:
    """Ask for a question about a text, as much of it as there is room for."""

    def encode(shown: Sequence[Chunk]) -> list[int]:
        return write_prompt(lm, _ASK.format(titled.document, shown[0].text))

    return fitted([titled], encode, room)[0]


def _standardised(values: Floats) -> Floats:
    """Bring judges to one scale, so that none outweighs the others."""
    if not values.size:
        return values
    spread: Floats = (values - values.mean()) / (values.std() + 1e-6)
    return spread
