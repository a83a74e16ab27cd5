"""Entailment scorers against direct passes of the same models, and what they carry along."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiny_nli import (
    FILLERS,
    make_classifier,
    make_pair_tokenizer,
    make_t5,
    save_base,
)
from univerb.entailment import pair_windows, scorers
from univerb.entailment.cross_encoder import CARD, WEIGHTS, read_cross_encoder
from univerb.entailment.premises import windows
from univerb.entailment.scorers import (
    CrossEncoderEntailment,
    Entailment,
    Scorer,
    TextToTextEntailment,
    load_entailment,
)
from univerb.errors import CheckpointError, ModelError, ModelMissing, OptionError
from univerb.lab.metrics.citations import citation_score

ABOUT = Scorer("tiny", 0.4, {"SNLI test": 81.25})
SHIPPED = Path(__file__).parents[2] / "src/univerb/assets/entailment/minilm-l6-nli"
PAIRS = [
    ("w1 w2 w3", "yes w4"),
    ("w5", "no"),
    (" ".join(FILLERS[:20]), "maybe w1 w2 w3"),
    ("", "w7 w8"),
    ("w9 unknown w9", ""),
]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(pair_windows, "_BATCH", 3)


@pytest.fixture(scope="module")
def tokenizer():
    return make_pair_tokenizer()


@pytest.fixture(scope="module")
def scorer(tokenizer):
    return CrossEncoderEntailment(make_classifier(), tokenizer, ABOUT, max_length=40)


def direct(model, tokenizer, premise, hypothesis):
    """The probabilities of one pair alone, without padding."""
    # As lists: alone, an empty hypothesis would count as none.
    inputs = tokenizer([premise], [hypothesis], return_tensors="pt")
    with torch.no_grad():
        return model(**inputs).logits[0].softmax(-1)


# Cross-encoders


def test_batches_score_each_pair_as_it_scores_alone(scorer, tokenizer):
    expected = torch.stack([direct(make_classifier(), tokenizer, *pair) for pair in PAIRS])
    torch.testing.assert_close(scorer.distributions(PAIRS), expected, atol=1e-6, rtol=1e-5)
    assert scorer.probabilities(PAIRS) == pytest.approx(expected[:, 0].tolist(), abs=1e-6)
    assert expected[:, 0].std() > 0.01, "pairs that score alike would show nothing"
    assert scorer.probabilities([]) == []


@pytest.mark.parametrize("length", [33, 60, 200])
def test_a_long_premise_counts_by_its_best_window(scorer, tokenizer, length):
    words = [FILLERS[(7 * i + i // 5) % len(FILLERS)] for i in range(length)]
    hypothesis = "yes w1 w2 w3"
    room, overlap = 40 - 3 - 4, 40 // 4
    begins = [0]
    while begins[-1] + room < length:
        begins.append(begins[-1] + room - overlap)
    windows = [" ".join(words[b : b + room]) for b in begins]
    assert set(" ".join(windows).split()) == set(words)
    each = [direct(make_classifier(), tokenizer, w, hypothesis)[0].item() for w in windows]
    found = scorer.probabilities([("w1", "w2"), (" ".join(words), hypothesis)])[1]
    assert found == pytest.approx(max(each), abs=1e-6)
    assert length == 33 or max(each) > min(each) + 1e-4


def test_a_premise_counts_by_its_best_window(scorer, tokenizer):
    premise = "Title: w7\nw1 w2\nw3 w9\nw4 w8\nw5 w6"
    for claim in ("yes w1", "no w8 w5", "maybe"):
        parts = windows(premise, claim)
        each = [direct(make_classifier(), tokenizer, part, claim)[0].item() for part in parts]
        assert scorer.probabilities([(premise, claim)]) == pytest.approx([max(each)], abs=1e-6)
        assert len(each) == 9 and max(each) - min(each) > 1e-4


def test_what_needs_no_model_is_not_read_and_nothing_is_read_twice(tokenizer):
    model, rows = make_classifier(), []
    model.register_forward_pre_hook(
        lambda _, args, inputs: rows.append(len(inputs["input_ids"])), with_kwargs=True
    )
    scorer = CrossEncoderEntailment(model, tokenizer, ABOUT, max_length=40)
    asked = [("w1 w2 w3\nw4", "w1 w2 w3."), ("w1 w2 w3", "w1 was 1990")]
    assert scorer.probabilities(asked * 2) == [1.0, 0.0] * 2
    assert scorer(("w9", "w1 w2 w3\nw4"), "w1 w2 w3") and not scorer(("w1", "w2"), "w1 in 1990")
    assert not rows
    asked = [("w1\nw2", "w5 w6 w7"), ("w2\nw1", "w5 w6 w7")]
    first = scorer.probabilities(asked * 2)
    # Two lines, both in two orders, and two premises as a whole.
    assert sum(rows) == 2 + 2 + 2
    assert scorer.probabilities(asked[:1]) == first[:1]
    assert sum(rows) == 6


def test_passages_support_alone_or_by_their_best_windows_together():
    class Words(CrossEncoderEntailment):
        """Finds as many words of the claim as there are."""

        def __init__(self):
            super().__init__(make_classifier(), make_pair_tokenizer(), Scorer("words", 1.0))
            self.asked = []

        def distributions(self, pairs):
            self.asked += pairs
            found = [len({*claim.split()} & {*text.split()}) for text, claim in pairs]
            shares = [n / len(pair[1].split()) for n, pair in zip(found, pairs, strict=True)]
            return torch.tensor([[share, 1.0 - share, 0.0] for share in shares])

    scorer = Words()
    first, second = "w1 w2\nw9", "w8\nw3"
    assert not scorer((first,), "w1 w2 w3") and not scorer((second,), "w1 w2 w3")
    assert scorer((first, second), "w1 w2 w3")
    assert scorer.asked[-1] == ("w1 w2\nw3", "w1 w2 w3")
    assert not scorer((first, second), "w1 w2 w4")
    assert scorer((second, first), "w9")


TEXTS = st.lists(st.sampled_from([*FILLERS, "yes", "no", "ö", "?"]), max_size=120).map(" ".join)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5), st.randoms())
def test_any_texts_get_a_probability_whatever_their_order(scorer, pairs, draw):
    found = scorer.probabilities(pairs)
    assert all(0.0 <= value <= 1.0 for value in found)
    order = draw.sample(range(len(pairs)), len(pairs))
    again = scorer.probabilities([pairs[i] for i in order])
    assert again == pytest.approx([found[i] for i in order], abs=1e-5)
    assert scorer.entails(pairs) == [value >= 0.4 for value in found]


def test_the_label_of_entailment_is_found_by_its_name(tokenizer):
    labels = ("CONTRADICTION", "not_entailment", "ENTAILMENT")
    scorer = CrossEncoderEntailment(make_classifier(labels), tokenizer, ABOUT, max_length=64)
    expected = [direct(make_classifier(labels), tokenizer, *pair)[2].item() for pair in PAIRS]
    assert scorer.probabilities(PAIRS) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ModelError, match="has the labels label_0, label_1, label_2; which one"):
        plain = make_classifier(("LABEL_0", "LABEL_1", "LABEL_2"))
        CrossEncoderEntailment(plain, tokenizer, ABOUT, max_length=64)


# Text-to-text


@pytest.mark.parametrize("marks_words", [True, False])
def test_text_to_text_compares_the_answers_1_and_0(marks_words, monkeypatch):
    monkeypatch.setattr(scorers, "_BATCH", 2)
    model, tokenizer = make_t5(marks_words)
    ids = {answer: tokenizer(answer)["input_ids"] for answer in ("1", "0")}
    assert len(ids["1"]) == 2 + marks_words
    scorer = TextToTextEntailment(model, tokenizer, Scorer("true"))
    pairs = [("a b c", "a"), ("the cat sat on the mat and slept", "a cat"), ("x", "y")]
    for (premise, hypothesis), found in zip(pairs, scorer.probabilities(pairs), strict=True):
        asked = tokenizer(f"premise: {premise} hypothesis: {hypothesis}", return_tensors="pt")
        # Up to the digit; the end that follows it is no part of the decision.
        start = torch.tensor([[0, *ids["1"][:-2]]])
        with torch.no_grad():
            logits = model(input_ids=asked["input_ids"], decoder_input_ids=start).logits[0, -1]
        one, zero = (logits[ids[answer][-2]].item() for answer in ("1", "0"))
        assert found == pytest.approx(1 / (1 + math.exp(zero - one)), abs=1e-5)
        assert abs(found - 0.5) > 0.001


def test_text_to_text_decides_as_greedy_generation_between_the_two():
    model, tokenizer = make_t5(False)
    pairs = [(FILLERS[i], FILLERS[i + 1]) for i in range(30)]
    asked = tokenizer([f"premise: {p} hypothesis: {h}" for p, h in pairs], padding=True)
    only = [tokenizer("1")["input_ids"][0], tokenizer("0")["input_ids"][0]]
    written = model.generate(
        input_ids=torch.tensor(asked["input_ids"]),
        attention_mask=torch.tensor(asked["attention_mask"]),
        max_new_tokens=1,
        do_sample=False,
        prefix_allowed_tokens_fn=lambda *_: only,
    )
    answers = [text == "1" for text in tokenizer.batch_decode(written, skip_special_tokens=True)]
    assert TextToTextEntailment(model, tokenizer, Scorer("true")).entails(pairs) == answers
    assert len(set(answers)) == 2


# On disk


def test_a_classifier_of_transformers_is_loaded_as_it_is(tmp_path, tokenizer):
    folder = tmp_path / "mnli"
    make_classifier().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    scorer = load_entailment(str(folder))
    assert str(scorer.about) == "NLI mnli (accuracy not measured)"
    expected = [direct(make_classifier(), tokenizer, *pair)[0].item() for pair in PAIRS]
    assert scorer.probabilities(PAIRS) == pytest.approx(expected, abs=1e-6)


def test_a_text_to_text_folder_is_known_by_its_config(tmp_path):
    model, tokenizer = make_t5(True)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scorer = load_entailment(str(tmp_path))
    expected = TextToTextEntailment(model, tokenizer, Scorer("x")).probabilities([("a", "b")])
    assert scorer.probabilities([("a", "b")]) == pytest.approx(expected, abs=1e-6)


def test_damaged_or_foreign_folders_are_refused(tmp_path):
    good = tmp_path / "good"
    shutil.copytree(SHIPPED, good)
    card = json.loads((good / CARD).read_text())
    (good / CARD).write_text(json.dumps(card | {"format": 2}))
    with pytest.raises(CheckpointError, match=r"entailment.json .* format: "):
        read_cross_encoder(good)
    (good / CARD).write_text(json.dumps(card))
    blob = bytearray((good / WEIGHTS).read_bytes())
    blob[-1] ^= 1
    (good / WEIGHTS).write_bytes(blob)
    with pytest.raises(CheckpointError, match="is damaged: its sha256"):
        load_entailment(str(good))
    with pytest.raises(ModelError, match="lack classifier"):
        load_entailment(str(save_base(tmp_path / "base")))
    unsafe = save_base(tmp_path / "unsafe")
    config = json.loads((unsafe / "config.json").read_text())
    (unsafe / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "x.Y"}}))
    with pytest.raises(ModelError, match="asks to run code of its own"):
        load_entailment(str(unsafe))
    with pytest.raises(ModelMissing, match="there is no folder"):
        load_entailment(str(tmp_path / "nowhere"))
    with pytest.raises(OptionError, match="dtype is 'int4'"):
        load_entailment(str(good), dtype="int4")


# What a scorer is worth


class Fixed(Entailment):
    """Says what it is told to."""

    def __init__(self, decide):
        self._decide = decide

    @property
    def about(self):
        return Scorer("fixed")

    def probabilities(self, pairs):
        return [float(self._decide(*pair)) for pair in pairs]


def test_a_scorer_is_what_citation_scores_ask():
    yes = Fixed(lambda premise, hypothesis: 0.5 if "swim" in premise else 0.49)
    score = citation_score(
        ["Fish swim [1].", "Fish swim [2].", "Fish swim [1] [2]."],
        ["Title: Fish\nFish can swim.", "Title: Cats\nCats sleep."],
        yes,
    )
    # The second passage supports nothing alone, and beside the first it is not needed.
    assert score is not None
    assert (score.recall, score.precision) == (pytest.approx(2 / 3), pytest.approx(0.5))
