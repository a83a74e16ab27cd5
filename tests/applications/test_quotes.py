"""Sentences as answers: which are first, and which answer at all."""

import numpy
import pytest

from conftest import EOS, make_gpt2, make_llama, make_tokenizer
from univerb.applications import quotes
from univerb.applications.quotes import Quote, answers_question, rank_quotes
from univerb.decoding.continuations import continuation_logprobs
from univerb.documents.chunks import Chunk
from univerb.errors import PromptError
from univerb.modeling.dynamic import DynamicLM

RENT = "The tenant shall pay the whole rent monthly and in advance."
SHIPS = "Ships sail across the wide blue sea to a far harbour."
BREAD = "Bread rises by the warm yeast that lives in it."
CATS = "Cats sleep on the warm roof of the old house."
PASSAGES = [Chunk("a", 5, f"{RENT} {SHIPS}"), Chunk("b", 0, f"{BREAD} {CATS}")]


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    model = make_llama()
    model.config.max_position_embeddings = 4096
    return DynamicLM.wrap(model, make_tokenizer())


@pytest.fixture
def reads_words(monkeypatch):
    """An LM to whom a question is the likelier the more of its words the prompt has."""

    def fake(lm, prompts, text):
        words = set(lm.tokenizer.decode(list(text)).lower().strip(" ?").split())
        texts = [lm.tokenizer.decode(list(prompt)).lower() for prompt in prompts]
        return numpy.array([float(sum(word in text for word in words)) for text in texts])

    monkeypatch.setattr(quotes, "continuation_logprobs", fake)


@pytest.mark.usefixtures("reads_words")
def test_the_sentence_that_makes_the_question_likely_is_first(lm):
    found = rank_quotes(lm, "who shall pay the rent", PASSAGES)
    assert found[0].source == Chunk("a", 5, RENT)
    assert [quote.score for quote in found] == sorted((q.score for q in found), reverse=True)
    assert found[0].evidence == max(quote.evidence for quote in found)
    assert {quote.source.text for quote in found[1:]} == {SHIPS, BREAD, CATS}


@pytest.mark.usefixtures("reads_words")
def test_sentences_that_passages_share_are_quoted_once(lm):
    start = PASSAGES[0].text.index(SHIPS)
    overlapping = Chunk("a", 5 + start, SHIPS)
    twin = Chunk("c", 5 + start, SHIPS)
    found = rank_quotes(lm, "what sails", [PASSAGES[0], overlapping, twin])
    sources = [quote.source for quote in found]
    assert len(sources) == len(set(sources)) == 3


@pytest.mark.usefixtures("reads_words")
def test_an_embedding_model_has_its_say(lm):
    class Likes:
        name = "likes"

        def features(self, texts):
            return {"likes": numpy.array([float("cats sleep" in text.lower()) for text in texts])}

        def index(self, shards):
            self.scores = numpy.concatenate([shard["likes"] for shard in shards])
            return self

        def rank(self, query, k):
            return list(enumerate(self.scores.tolist()))[:k]

    found = rank_quotes(lm, "why is it so", PASSAGES, Likes())
    assert found[0].source.text == CATS
    likeness = {quote.source.text: quote.likeness for quote in found}
    assert likeness[CATS] == 1.0 and likeness[RENT] == 0.0
    assert {quote.likeness for quote in rank_quotes(lm, "why is it so", PASSAGES)} == {0.0}


def test_evidence_is_how_much_likelier_the_question_is(lm, monkeypatch):
    prompts = []

    def recorded(lm, asked, text):
        prompts.extend(lm.tokenizer.decode(list(prompt)) for prompt in asked)
        return continuation_logprobs(lm, asked, text)

    monkeypatch.setattr(quotes, "continuation_logprobs", recorded)
    question = "Who shall pay the rent?"
    found = {quote.source.text: quote for quote in rank_quotes(lm, question, PASSAGES)}
    asked = lm.tokenizer.encode_inside(question).ids
    # One of them says nothing; it is what the others are compared with.
    [nothing] = [prompt for prompt in prompts if not any(text in prompt for text in found)]
    for text, quote in found.items():
        prompt = next(prompt for prompt in prompts if text in prompt)
        both = [lm.tokenizer.encode_prompt(each) for each in (prompt, nothing)]
        likely, before = continuation_logprobs(lm, both, asked)
        assert quote.evidence == pytest.approx(likely - before, abs=1e-4)


def test_a_sentence_that_is_longer_than_the_context_is_read_in_part():
    lm = DynamicLM.wrap(make_gpt2(), make_tokenizer())
    passage = Chunk("a", 0, "The tenant pays " + "rent" * 2000)
    [quote] = rank_quotes(lm, "Who pays?", [passage])
    assert quote.source.text == passage.text
    with pytest.raises(PromptError, match="Ask a shorter question"):
        rank_quotes(lm, "Who pays? " * 500, [passage])


def test_special_tokens_in_a_question_are_plain_text(lm, monkeypatch):
    asked = []

    def recorded(lm, prompts, text):
        asked.extend([*prompts, text])
        return continuation_logprobs(lm, prompts, text)

    monkeypatch.setattr(quotes, "continuation_logprobs", recorded)
    assert rank_quotes(lm, f"Who {EOS} pays{EOS}?", PASSAGES)
    assert asked and not any(lm.tokenizer.special_ids & set(ids) for ids in asked)


def test_a_document_of_very_short_sentences_is_ranked(lm):
    found = rank_quotes(lm, "Who pays?", [Chunk("a", 0, "Ada pays.")])
    assert [quote.source.text for quote in found] == ["Ada pays."]


@pytest.mark.parametrize("passages", [[], [Chunk("a", 0, "")], [Chunk("a", 0, " \n")]])
def test_there_may_be_nothing_to_rank(lm, passages):
    assert rank_quotes(lm, "Who pays?", passages) == []


def test_a_quote_that_has_nothing_to_do_with_a_question_does_not_answer_it():
    full = Chunk("a", 0, "The tenant shall pay the rent on day 5 to Ada.")
    vague = Chunk("a", 0, "The tenant shall pay the rent.")
    for question in ("Why is it so?", "When is it due?"):
        assert not answers_question(question, Quote(full, 9.0, 0.0))
        assert answers_question(question, Quote(full, 0.0, 9.0))
    # What lacks the number that is asked for needs more than what the LM says.
    enough = Quote(vague, 0.0, quotes._LEAST_EVIDENCE + 0.01)
    assert answers_question("Why is it so?", enough)
    assert not answers_question("When is it due?", enough)
    assert answers_question("When is it due?", enough._replace(source=full))
    assert answers_question("When is it due?", Quote(vague, 0.0, 0.0, likeness=1.0))
    # It may be said in other words: "monthly", "the caretaker".
    assert answers_question("When does the tenant pay rent?", enough)
    assert not answers_question("When does the tenant pay rent?", Quote(vague, 0.0, 0.0))


@pytest.mark.usefixtures("reads_words")
def test_as_many_are_read_as_are_asked_for(lm):
    passage = Chunk("a", 0, " ".join(f"The tenant pays rent number {n} to Ada." for n in range(20)))
    assert len(rank_quotes(lm, "Who pays?", [passage], k=15)) == 15
    few, some = (rank_quotes(lm, "Who pays?", [passage], k=k) for k in (1, 12))
    assert few == some == rank_quotes(lm, "Who pays?", [passage])
