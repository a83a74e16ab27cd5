"""Corpora under thousands of reads, kills and forgeries; `make test` runs a sample of each."""

import random

import pytest

from conftest import make_llama, make_tokenizer, stir
from corpus_traffic import traffic
from forged_corpora import check_forgeries, small_corpus
from killed_builds import Killed, started_session
from univerb.modeling.dynamic import DynamicLM

pytestmark = pytest.mark.stress


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


def test_ten_readers_against_two_writers_for_two_minutes(lm, tmp_path, record_property):
    counts = traffic(tmp_path / "c", lm, readers=10, writers=2, seconds=120)
    record_property("counts", dict(counts))
    assert not [(what, n) for what, n in counts.items() if what.startswith("failed")]
    assert counts["reads"] > 1000 and counts["added"] + counts["removed"] > 50


@pytest.mark.parametrize(("verb", "kills"), [("build", 40), ("append", 40), ("remove", 60)])
def test_many_kills_leave_the_old_corpus_or_the_new(tmp_path, verb, kills):
    with started_session(tmp_path / "session") as session:
        killed = Killed(session, verb, tmp_path)
        moments = range(1, killed.calls + 1)
        killed.check(random.Random(verb).sample(moments, min(kills, len(moments))))


def test_every_forged_number(lm, tmp_path):
    corpus = small_corpus(tmp_path / "corpus", lm)
    assert check_forgeries(corpus, lm, tmp_path / "forged", step=1) > 1000
