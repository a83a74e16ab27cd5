"""What a second reader tried to break: limits, odd documents, disks, options and pictures."""

import json
from dataclasses import replace

import numpy
import pytest

from conftest import TEXT, make_gpt2, make_tokenizer, saved_encoder, stir
from univerb.decoding.text_scores import FlatTextScores
from univerb.errors import OptionError
from univerb.lab.phrases.firing import firing
from univerb.lab.phrases.halves import cut
from univerb.lab.phrases.plot import plot_report
from univerb.lab.phrases.reading import Reading
from univerb.lab.phrases.report import PhrasesReport
from univerb.lab.phrases.run import PhrasesProtocol, evaluate_phrases
from univerb.lab.phrases.true_text import TrueText, true_text
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document, Phrase
from univerb.phrases.content import content_words

LEASE = Document(f"{TEXT} {TEXT}", "lease.txt")
SMALL = PhrasesProtocol(context=48, truth=40, max_tokens=12, spans=4, biases=(0.0, 4.0))


@pytest.fixture
def lm() -> DynamicLM:
    return stir(DynamicLM.wrap(make_gpt2(), make_tokenizer()))


@pytest.mark.parametrize("name", ["truth", "max_tokens"])
def test_what_the_lm_cannot_see_is_refused_at_once(lm, name):
    with pytest.raises(OptionError, match=f"{name} is 512.*sees 512 positions"):
        evaluate_phrases(lm, [LEASE], None, replace(SMALL, **{name: 512}))


def test_all_that_the_lm_sees_can_be_used(lm):
    long = Document(" ".join([TEXT] * 12), "long.txt")
    protocol = replace(SMALL, context=512, truth=480, max_tokens=500)
    report = evaluate_phrases(lm, [long], None, protocol, variants={"bare": None})
    assert report.true_text.tokens == 480 and report.writing[0].tokens_per_text == 500


@pytest.mark.filterwarnings("ignore::univerb.phrases.ngrams.UnspacedTextWarning")
@pytest.mark.parametrize(
    "text",
    [
        "東京都は日本の首都であり、世界最大の都市圏を形成している。" * 8,
        "1 2 3 4 5 6 7 8 9 " * 20,
        'He said "it (was) [not] so"...\r\n' * 20,
        "\n \n".join(["a"] * 60),
        "e\u0301\u0323 " * 60,
        "\ufffd\u200d\x00 " * 40,
    ],
)
def test_any_document_is_measured_or_passed_over(lm, text):
    halves = cut(Document(text), lm.tokenizer, 48, 40)
    if halves is None:
        return
    whole = lm.tokenizer.encode(text).ids
    begin = len(lm.tokenizer.encode(halves.first).ids)
    assert text.startswith(halves.first + halves.second)
    assert halves.truth == whole[begin : begin + len(halves.truth)] and len(halves.truth) >= 16
    report = evaluate_phrases(lm, [Document(text)], None, SMALL)
    assert report.true_text.exact_bits(0.0) > 0 and report.firing.starts <= len(halves.truth)


def test_spans_are_all_that_a_phrase_may_be(lm):
    halves = cut(LEASE, lm.tokenizer, 48, 40, (2, 3))
    ends = {*halves.starts, len(halves.truth)}
    assert {place for place, _ in halves.spans} <= set(halves.starts)
    # A word that begins the truth begins a stretch, and one that ends it ends one.
    words = [(a, b - a) for a in halves.starts for b in ends if b - a in (2, 3)]
    wanted = [
        (place, size)
        for place, size in words
        if content_words(lm.tokenizer.decode(halves.truth[place : place + size]))
    ]
    assert len(wanted) < len(words)
    assert set(wanted) - {(p, n) for p, n in wanted if p + n == 40} <= set(halves.spans)
    assert set(halves.spans) <= set(wanted)
    assert any(place == 0 for place, _ in halves.spans)


def flat_scores(reading: Reading, phrases: list[Phrase]) -> FlatTextScores:
    """Phrases that score higher than any token."""
    scores = numpy.full((len(reading.truth), len(phrases)), 1e6)
    return FlatTextScores(reading.truth, reading.logits[:-1].numpy(), phrases, scores)


def test_without_candidates_nothing_fires_and_nothing_is_lost(lm):
    halves = cut(LEASE, lm.tokenizer, 48, 40)
    reading = Reading(lm, halves.context, halves.truth)
    none = flat_scores(reading, [])
    fired = firing(reading, none, halves.starts, tolerance=0.5, bias=9.0)
    assert (fired.fired, fired.fitting, fired.accepted) == (0, 0, 0)
    assert fired.shares()["rate"] == 0.0
    text = true_text(none, len(halves.second), [9.0])
    assert [*text.exact, *text.strict] == pytest.approx([text.bare] * 2)


def test_masked_candidates_never_fire(lm):
    halves = cut(LEASE, lm.tokenizer, 48, 40)
    reading = Reading(lm, halves.context, halves.truth)
    worst = int(reading.logits.amax(0).argmin())
    scores = flat_scores(reading, [Phrase((worst, worst), "x")])
    found = firing(reading, scores, halves.starts, tolerance=0.0, bias=99.0)
    assert found.fired == found.sampled == 0 and found.starts > 0


def test_results_of_another_version_are_not_used(lm, tmp_path, monkeypatch):
    evaluate_phrases(lm, [LEASE], None, SMALL, folder=tmp_path)
    monkeypatch.setattr("univerb.lab.protocols.result_cache.__version__", "0.0.0")
    evaluate_phrases(lm, [LEASE], None, SMALL, folder=tmp_path)
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def test_pictures_of_nothing_and_of_a_bad_encoder(tmp_path):
    pytest.importorskip("matplotlib")
    about = {"model": "m", "documents": 0}
    bad = TrueText(9, 30, -60.0, [0.0, 1.0], [-200.0, -300.0], [-250.0, -350.0])
    for name, text in {"none": None, "bad": bad}.items():
        path = tmp_path / f"{name}.png"
        plot_report(path, PhrasesReport(about, 0.0, text, None, [], [], {}))
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("review")
    (folder / "held.txt").write_text(LEASE.text)
    short = ["--context", 48, "--truth", 32, "--max-tokens", 8]
    return ["--docs", folder / "held.txt", "--model", saved_encoder(folder), *short]


class TestCommand:
    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            (["--sweep-bias", "nan"], "--sweep-bias is 'nan'"),
            (["--sweep-bias", "inf"], "--sweep-bias is 'inf'"),
            (["--sweep-tolerance", "1.5"], "--sweep-tolerance is '1.5'"),
            (["--variant", "profil"], "variant is 'profil'. Allowed: 'bare', 'profile'"),
            (["--tolerance", 2], "tolerance is 2.0"),
            (["--truth", 99999], "truth is 99999"),
            (["--max-tokens", 99999], "max-tokens is 99999"),
            (["--phrase-bias", "nan"], "phrase-bias is nan"),
            (["--corpus", "/nowhere"], "/nowhere"),
            (["--docs", "/nowhere.txt"], "/nowhere.txt"),
        ],
    )
    def test_mistakes_are_one_clear_line(self, run, given, wrong, said):
        ran = run("lab", "phrases", *given, "--sweep", *wrong)
        text = " ".join(ran.err.split())
        assert ran.code == 1 and said in text and "Traceback" not in text

    def test_a_sweep_takes_no_more_documents_than_asked_for(self, run, given, tmp_path):
        for number in range(3):
            (tmp_path / f"{number}.txt").write_text(f"{number} {LEASE.text}")
        grid = ["--sweep", "--sweep-tolerance", 1, "--sweep-bias", 0, "--docs", tmp_path, "--json"]
        ran = run("lab", "phrases", *given[2:], *grid, "--limit", 2)
        assert ran.json["about"]["documents"] == 2
        ran = run("lab", "phrases", *given[2:], *grid, "--limit-writing", 1)
        assert ran.json["about"]["documents"] == 1

    def test_a_report_that_cannot_be_written_is_one_clear_line(self, run, given, tmp_path):
        (tmp_path / "phrases.json").mkdir()
        ran = run("lab", "phrases", *given, "--variant", "bare", "--out", tmp_path)
        assert ran.code == 1 and "cannot be written" in " ".join(ran.err.split())

    def test_a_run_that_went_on_writes_the_same_report(self, run, given, tmp_path):
        ran = run("lab", "phrases", *given, "--out", tmp_path, "--json")
        [file] = tmp_path.glob("documents-*.jsonl")
        first = (tmp_path / "phrases.json").read_text()
        file.write_bytes(file.read_bytes()[:-777])
        again = run("lab", "phrases", *given, "--out", tmp_path, "--json")
        assert again.json == ran.json and (tmp_path / "phrases.json").read_text() == first
        assert json.loads(first)["about"]["documents"] == 1
