"""A corpus is a function of its present documents, whatever was done to it before."""

import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import TEXT, make_gpt2, make_llama, make_tokenizer, stir
from univerb.config import EncoderConfig
from univerb.corpus import Corpus, open_corpus, shards
from univerb.corpus import build as building
from univerb.corpus import encode as encoding
from univerb.corpus.build import CorpusBuilder, build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.errors import CorpusError, DocumentError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document, Phrase
from univerb.phrases.content import content_words
from univerb.phrases.ngrams import ngrams

SENTENCES = [
    "The tenant shall pay the rent on the first day.",
    "The landlord shall keep the premises in good repair.",
    "The tenant shall have quiet enjoyment of the premises.",
    "Notice shall be given thirty days before the end.",
    "Of 1234 and 5678 the tenant shall pay half.",
    "家賃は毎月の初日に支払う。家賃は高い。",
    "Cafe\u0301 🙂🙃 rent shall be paid, cafe\u0301 🙂🙃.",
    # Wrapped by an editor: read as one line.
    "The tenant and the landlord agree on these\nterms and on each of the terms, and so",
]
QUERY = "tenant landlord rent premises notice shall"
texts = st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=4).map(" ".join)
names = st.sampled_from(["a", "b", "ü/家.txt", "🙂"])
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.dictionaries(names, texts, min_size=1, max_size=3)),
        st.tuples(st.just("remove"), names),
    ),
    min_size=1,
    max_size=5,
)


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 120)
    monkeypatch.setattr(encoding, "BATCH", 16)


@pytest.fixture
def corpus(tmp_path: Path, lm: DynamicLM) -> Corpus:
    return build_corpus(
        tmp_path / "c.uv", documents(), lm, CorpusSettings(max_words=16, dtype="float32")
    )


def documents() -> list[Document]:
    return [Document(" ".join(SENTENCES[i : i + 5]), f"d{i}") for i in range(4)]


def seen(phrases: list[Phrase]) -> dict[tuple[int, ...], tuple[str, frozenset]]:
    return {phrase.ids: (phrase.text, frozenset(phrase.sources)) for phrase in phrases}


def all_keys(corpus: Corpus) -> list[tuple[int, ...]]:
    return corpus.phrases.ids(numpy.arange(len(corpus.phrases)))


def assert_same(changed: Corpus, fresh: Corpus, lm: DynamicLM) -> None:
    assert list(changed.documents()) == list(fresh.documents())
    assert changed.search(QUERY, 50) == fresh.search(QUERY, 50)
    for others in (False, True):
        one, other = (c.select(QUERY, lm.tokenizer, 50, others=others) for c in (changed, fresh))
        assert seen(one.phrases) == seen(other.phrases)
        assert one.stored == other.stored
    keys = all_keys(fresh)
    assert all_keys(changed) == keys
    assert changed.phrases.counts.tolist() == fresh.phrases.counts.tolist()
    found = [c.vectors([*keys, (7, 7, 7)]) for c in (changed, fresh)]
    assert found[0][0].tolist() == found[1][0].tolist() == list(range(len(keys)))
    for side in (1, 2):
        # What phrases are encoded with changes the last bits of sums.
        atol = 2e-3 if fresh.manifest.settings.dtype == "float16" else 1e-5
        numpy.testing.assert_allclose(found[0][side], found[1][side], atol=atol, rtol=1e-3)
    assert changed.verify() >= fresh.verify()
    number = ("documents", "chunks", "characters", "tokens", "phrase_count")
    assert all(getattr(changed.manifest, n) == getattr(fresh.manifest, n) for n in number)


@settings(max_examples=12)
@given(changes, st.sampled_from([0, 1]), st.sampled_from(["float16", "float32"]))
def test_changes_give_what_a_fresh_build_gives(lm, steps, overlap, dtype):
    how = CorpusSettings(max_words=12, overlap=overlap, sizes=(2, 5), dtype=dtype)
    present: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        builder = CorpusBuilder(Path(folder, "changed"), lm.tokenizer, how, lm=lm)
        for verb, what in steps:
            if verb == "add":
                new = {n: t for n, t in what.items() if present.get(n) != t}
                present = {n: t for n, t in present.items() if n not in new} | new
                builder.add(Document(t, n) for n, t in what.items())
            elif len(present) > 1 and what in present:
                del present[what]
                builder.remove([what])
        if not present:
            return
        changed = open_corpus(Path(folder, "changed"))
        found = {d.name: d.text for d in changed.documents()}
        assert found == present
        fresh = build_corpus(Path(folder, "fresh"), changed.documents(), lm, how)
        assert_same(changed, fresh, lm)


def test_rows_that_no_phrase_uses_do_not_shift_those_that_come_after(lm, tmp_path):
    """The last rows of a kept object lose their phrases, and new phrases come at once."""
    first = Document(" ".join([TEXT, TEXT, "zzz zzy zzz zzy"]), "a")
    second = Document(" ".join([TEXT, TEXT, "qqq qqx qqq qqx"]), "a")
    build_corpus(tmp_path / "c", [first], lm)
    changed = build_corpus(tmp_path / "c", [second], lm)
    assert_same(changed, build_corpus(tmp_path / "fresh", [second], lm), lm)


def test_what_is_there_already_is_not_computed_again(lm, tmp_path, monkeypatch):
    build_corpus(tmp_path, documents(), lm)
    monkeypatch.setattr(shards, "_write", None)
    monkeypatch.setattr(encoding, "_write", None)
    before = content(tmp_path)
    build_corpus(tmp_path, documents(), lm)
    assert content(tmp_path) == before


def test_progress_counts_documents_and_phrases(lm, tmp_path):
    reports: list[tuple[str, int, int]] = []
    corpus = build_corpus(
        tmp_path, documents(), lm, progress=lambda *report: reports.append(report)
    )
    for stage, count in (("documents", 4), ("vectors", len(corpus.phrases))):
        done = [(at, total) for name, at, total in reports if name == stage]
        assert done[0] == (0, count) and done[-1] == (count, count)
        assert len(done) > 3 and done == sorted(set(done))


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_removed_text_is_gone_from_the_disk(corpus, lm):
    marker = "Xylophonists juggle quartz, xylophonists juggle quartz."
    builder = CorpusBuilder(corpus.folder, lm.tokenizer, lm=lm)
    before = content(corpus.folder)
    builder.add([Document(f"{TEXT} {marker}", "secret"), Document(TEXT, "plain")])
    held = b"".join(content(corpus.folder).values())
    assert marker.encode() in held and b"xylophonists" in held
    builder.remove(["secret", "plain"])
    held = b"".join([*content(corpus.folder).values(), *map(str.encode, before)])
    assert b"ylophonists" not in held and b"secret" not in held
    assert content(corpus.folder)["manifest.json"] and open_corpus(corpus.folder).verify()


def test_a_removal_that_was_interrupted_is_finished_by_the_next_who_opens(corpus, lm, monkeypatch):
    builder = CorpusBuilder(corpus.folder, lm.tokenizer, lm=lm)
    builder.add([Document("Xylophonists juggle quartz.", "secret")])
    with monkeypatch.context() as patched:
        patched.setattr(building, "sweep", lambda *_: None)
        builder.remove(["secret"])
    assert b"Xylophonists" in b"".join(content(corpus.folder).values())
    assert open_corpus(corpus.folder).verify()
    assert b"Xylophonists" not in b"".join(content(corpus.folder).values())


def test_removed_text_stays_only_as_long_as_somebody_reads_it(corpus, lm):
    builder = CorpusBuilder(corpus.folder, lm.tokenizer, lm=lm)
    builder.add([Document(f"{TEXT} Xylophonists juggle quartz.", "secret")])
    reader = open_corpus(corpus.folder)
    builder.remove(["secret"])
    builder.add([Document(f"{TEXT} Another one.", "other")])
    assert "secret" in {document.name for document in reader.documents()}
    assert reader.verify() and reader.search("xylophonists", 3)
    open_corpus(corpus.folder)
    assert b"Xylophonists" in b"".join(content(corpus.folder).values())
    reader.close()
    open_corpus(corpus.folder)
    assert b"Xylophonists" not in b"".join(content(corpus.folder).values())
    assert corpus.verify(), "an older version, of the first documents, is still being read"


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("k", [1, 3, 50])
def test_every_phrase_is_where_it_says(lm, tmp_path, overlap, k):
    how = CorpusSettings(max_words=14, overlap=overlap, vectors=False)
    corpus = build_corpus(tmp_path, documents(), lm, how)
    texts = {document.name: document.text for document in corpus.documents()}
    stored = set(all_keys(corpus))
    chunks = [hit.chunk for hit in corpus.search(QUERY, k)]
    with pytest.warns(match="script without spaces") if k > 3 else nullcontext():
        expected = [
            p for c in chunks for p in ngrams(how.sizes)(Document(c.text, c.document), lm.tokenizer)
        ]
    for others in (False, True):
        found = corpus.select(QUERY, lm.tokenizer, k, others=others)
        keys = {phrase.ids for phrase in found.phrases}
        assert len(keys) == len(found.phrases)
        assert keys == {p.ids for p in expected if others or p.ids in stored}
        assert found.stored == len(keys & stored)
        for phrase in found.phrases:
            assert phrase.sources
            for span in phrase.sources:
                source = texts[span.document][span.start : span.end]
                assert source.replace("\n", " ") == phrase.text.strip()
                assert any(
                    c.document == span.document and c.start <= span.start and span.end <= c.end
                    for c in chunks
                )
    few = corpus.select(QUERY, lm.tokenizer, k, max_phrases=3).phrases
    assert few == corpus.select(QUERY, lm.tokenizer, k).phrases[:3]


def test_documents_that_cannot_be_told_apart_or_read_are_refused(lm, tmp_path):
    builder = CorpusBuilder(tmp_path / "c", lm.tokenizer, lm=lm)
    with pytest.raises(DocumentError, match="no documents"):
        builder.add([])
    with pytest.raises(DocumentError, match="two documents are called 'a'"):
        builder.add([Document("one", "a"), Document("two", "a")])
    with pytest.raises(DocumentError, match="'b' is not valid UTF-8"):
        builder.add([Document("one", "a"), Document("half \ud83d of one", "b")])
    with pytest.raises(CorpusError, match="does not exist"):
        builder.remove(["a"])
    assert not (tmp_path / "c").exists()
    builder.add([Document("one", "a")])
    with pytest.raises(DocumentError, match="no document would be left"):
        builder.remove(["a"])


def test_a_corpus_without_a_single_phrase_works(lm, tmp_path):
    corpus = build_corpus(tmp_path, [Document("。", "dot")], lm)
    assert not len(corpus.phrases) and corpus.search("x", 3) == []
    assert corpus.select("x", lm.tokenizer, 3, others=True).phrases == []
    assert [len(part) for part in corpus.vectors([(1, 2), (3,)])] == [0, 0, 0]
    assert [len(part) for part in corpus.vectors([])] == [0, 0, 0]
    lm.attach(corpus)
    grown = build_corpus(tmp_path, [Document(TEXT, "lease")], lm)
    assert len(grown.phrases) and grown.verify() > corpus.manifest.characters


@pytest.mark.parametrize("heads", ["tied", "split"])
def test_a_corpus_without_vectors_and_one_with_either_head(heads, tmp_path):
    lm = DynamicLM.wrap(make_gpt2(), make_tokenizer(), EncoderConfig(heads=heads))
    bare = build_corpus(tmp_path / "bare", documents(), lm, CorpusSettings(vectors=False))
    assert not bare.has_vectors and bare.select(QUERY, lm.tokenizer).stored
    with pytest.raises(CorpusError, match="without vectors"):
        bare.vectors([(1, 2)])
    with pytest.raises(CorpusError, match="another encoder"):
        lm.attach(bare)
    full = build_corpus(tmp_path / "full", documents(), lm, CorpusSettings(dtype="float32"))
    keys = all_keys(full)
    places, inputs, outputs = full.vectors(keys)
    assert len(places) == len(keys) and (inputs is outputs) == (heads == "tied")
    with pytest.raises(CorpusError, match="other settings"):
        CorpusBuilder(full.folder, lm.tokenizer, CorpusSettings(max_words=5), lm=lm)


def test_a_corpus_has_the_guards_of_its_settings(tmp_path):
    lm = DynamicLM.wrap(make_gpt2(), make_tokenizer())
    texts = [Document("Es war die Miete der Wohnung: 1,50 of the rent", "a")]
    how = {"vectors": False, "min_count": 1}
    offered = {}
    for content in ("de", "en", None):
        settings = CorpusSettings(content=content, whole_numbers=bool(content), **how)
        corpus = build_corpus(tmp_path / f"{content}.uv", texts, lm, settings)
        offered[content] = {
            phrase.text
            for others in (False, True)
            for phrase in corpus.select("Miete rent", lm.tokenizer, others=others).phrases
        }
        if content:
            stored = map(lm.tokenizer.decode, all_keys(corpus))
            assert all(content_words(text, content) for text in stored)
    assert " of the" in offered["de"] and " war die" not in offered["de"]
    assert " of the" not in offered["en"] and " war die" in offered["en"]
    assert {" of the", " war die", ",50 of the"} <= offered[None]
    assert ",50 of the" not in offered["de"] | offered["en"] < offered[None]
