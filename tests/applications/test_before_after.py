"""Continuations before and after: the same prompt, budget and passages, phrases on one side."""

from pathlib import Path

import pytest

from conftest import TEXT, make_llama, make_tokenizer, stir
from univerb.applications.adapt import _whole_words, adapt
from univerb.applications.before_after import BeforeAfter, write_before_after
from univerb.applications.calibrate import Calibration, Trial, save_profile
from univerb.applications.context import in_context
from univerb.applications.coverage import passages_of
from univerb.corpus import Corpus
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.decoding.loop import generate
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

PROMPT = "The tenant shall"


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


@pytest.fixture(scope="module")
def corpus(lm: DynamicLM, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("before") / "c.uv"
    return build_corpus(folder, [Document(TEXT, "lease.txt")], lm, CorpusSettings(min_count=1))


def write(
    lm: DynamicLM, after: Corpus, tolerance: float, before: Corpus | None = None
) -> BeforeAfter:
    """Write with a corpus whose profile asks for every phrase that the tolerance allows."""
    best = Trial(100.0, tolerance, 1.0, 0.5, 0.1)
    found = Calibration("phrase_bias", best, 0.5, (best,), 1.0, {}, passages=1, tokens=1)
    save_profile(after, lm, found)
    return write_before_after(lm, [(PROMPT, "a.txt")], before, after)[0]


def test_without_a_corpus_it_is_what_generate_writes_of_the_prompt_alone(lm, corpus):
    written = write(lm, corpus, 1.0)
    assert (written.document, written.prompt) == ("a.txt", PROMPT)
    assert written.before.corpus is None and written.before.passages == ()
    assert written.before.generation.text == generate(lm, PROMPT, max_tokens=40).text


def test_what_is_shown_is_the_same_with_and_without_phrases(lm, corpus):
    written = write(lm, corpus, 1.0)
    plain, after = written.without_phrases, written.after
    assert plain.passages == after.passages != ()
    assert plain.generation.stats.prompt_tokens == after.generation.stats.prompt_tokens
    ids = in_context(lm, PROMPT, after.passages, 40).ids
    assert plain.corpus is None and not plain.generation.phrases
    assert plain.generation.text == generate(lm, ids, max_tokens=40).text
    assert after.corpus == str(corpus.folder)


def test_phrases_and_the_profile_of_the_corpus_count(lm, corpus):
    bold = write(lm, corpus, 1.0)
    assert bold.is_changed and bold.after.generation.stats.phrase_share > 0.5
    cautious = write(lm, corpus, 0.0)
    assert not cautious.is_changed
    assert cautious.to_dict()["is_changed"] is False


def test_another_corpus_writes_with_its_own_phrases_and_passages(lm, corpus, tmp_path):
    text = TEXT.replace("tenant", "lodger")
    other = build_corpus(
        tmp_path / "o.uv", [Document(text, "old.txt")], lm, CorpusSettings(min_count=1)
    )
    before = write(lm, corpus, 1.0, other).before
    assert before.corpus == str(other.folder)
    assert {passage.document for passage in before.passages} == {"old.txt"}
    spans = [span for phrase in before.generation.phrases for span in phrase.sources]
    assert {span.document for span in spans} <= {"old.txt"}


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.filterwarnings("ignore::univerb.applications.calibrate.NoChangeWarning")
def test_adapt_writes_five_while_the_held_out_text_is_in_no_corpus(lm, tmp_path: Path, vectors):
    clauses = [" ".join(f"{n}.{i} {TEXT}" for i in range(14)) for n in range(12)]
    documents = [Document(text, f"{n:02}.txt") for n, text in enumerate(clauses)]
    told: list[tuple[str, int, int]] = []
    result = adapt(
        lm,
        documents,
        tmp_path / "c.uv",
        settings=CorpusSettings(vectors=vectors),
        limit=2,
        progress=lambda *done: told.append(done),
    )
    assert [done for done in told if done[0] == "continuations"] == [
        ("continuations", number, 5) for number in range(1, 6)
    ]
    assert len(result.continuations) == 5
    for each in result.continuations:
        assert each.document == "09.txt"
        assert each.document not in {passage.document for passage in each.after.passages}
        sources = [s for phrase in each.after.generation.phrases for s in phrase.sources]
        assert each.document not in {source.document for source in sources}
    # Afterwards it is.
    assert len(list(result.corpus.listed())) == 12
    # Spread over the text, and first where calibration has not looked.
    seen = passages_of(documents[9:10], lm.tokenizer, limit=2, per_document=16)
    prompts = {each.prompt for each in result.continuations}
    assert len(prompts) == 5 and not any(b.startswith(p) for b, _ in seen for p in prompts)


def test_of_little_text_there_are_fewer(lm, tmp_path):
    documents = [Document(TEXT, "a.txt")]
    held_out = [Document(TEXT[:200], "b.txt")]
    settings = CorpusSettings(vectors=False)
    result = adapt(lm, documents, tmp_path / "c.uv", held_out, settings=settings)
    assert len(result.continuations) == 1
    # It ends with a whole word.
    prompt = result.continuations[0].prompt
    assert TEXT.startswith(f"{prompt} ")


@pytest.mark.parametrize(
    ("beginning", "rest", "expected"),
    [
        ("the rent is due", " on Monday", "the rent is due"),
        ("the rent is du", "e on Monday", "the rent is"),
        ("the rent is ", "due on Monday", "the rent is"),
        ("the rent is due", ", on Monday", "the rent is due"),
        ("unending", "ly", "unending"),
    ],
)
def test_no_prompt_ends_inside_a_word(beginning, rest, expected):
    assert _whole_words(beginning, rest) == expected
