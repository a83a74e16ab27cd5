"""Entailment scorers against direct passes of the same models, and what they carry along."""

import json
import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tiny_nli import (
    FILLERS,
    make_classifier,
    make_pair_tokenizer,
    make_t5,
    save_base,
)
from univerb.errors import CheckpointError, ModelError, ModelMissing, OptionError
from univerb.lab.judging import entailment
from univerb.lab.judging.cross_encoder import (
    CARD,
    WEIGHTS,
    CrossEncoder,
    CrossEncoderCard,
    pack_int8,
    read_cross_encoder,
    unpack_int8,
    write_cross_encoder,
)
from univerb.lab.judging.entailment import (
    CrossEncoderEntailment,
    Entailment,
    Scorer,
    TextToTextEntailment,
    default_folder,
    load_entailment,
)
from univerb.lab.metrics.citations import citation_score

ABOUT = Scorer("tiny", 0.4, {"SNLI test": 81.25})
CARD_OF_TINY = CrossEncoderCard(
    name="tiny", trained_on="nothing", max_length=48, threshold=0.4, accuracies={"SNLI test": 81.25}
)
PAIRS = [
    ("w1 w2 w3", "yes w4"),
    ("w5", "no"),
    (" ".join(FILLERS[:20]), "maybe w1 w2 w3"),
    ("", "w7 w8"),
    ("w9 unknown w9", ""),
]


@pytest.fixture(scope="module")
def tokenizer():
    return make_pair_tokenizer()


@pytest.fixture(scope="module")
def scorer(tokenizer):
    return CrossEncoderEntailment(make_classifier(), tokenizer, ABOUT, max_length=40, batch=3)


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


TEXTS = st.lists(st.sampled_from([*FILLERS, "yes", "no", "ö", "?"]), max_size=120).map(" ".join)


@settings(max_examples=25)
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


def test_lengths_and_batches_out_of_range_are_refused(tokenizer):
    with pytest.raises(OptionError, match="max_length is 65. Allowed: 32 to 64"):
        CrossEncoderEntailment(make_classifier(), tokenizer, ABOUT, max_length=65)
    with pytest.raises(OptionError, match="batch is 0"):
        CrossEncoderEntailment(make_classifier(), tokenizer, ABOUT, max_length=64, batch=0)


# Text-to-text


@pytest.mark.parametrize("marks_words", [True, False])
def test_text_to_text_compares_the_answers_1_and_0(marks_words):
    model, tokenizer = make_t5(marks_words)
    ids = {answer: tokenizer(answer)["input_ids"] for answer in ("1", "0")}
    assert len(ids["1"]) == 2 + marks_words
    scorer = TextToTextEntailment(model, tokenizer, Scorer("true"), batch=2)
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


def test_a_saved_cross_encoder_comes_back_with_its_card(tmp_path, tokenizer):
    model = make_classifier()
    write_cross_encoder(tmp_path, CrossEncoder(model, tokenizer, CARD_OF_TINY))
    scorer = load_entailment(str(tmp_path))
    assert scorer.about == ABOUT
    assert str(scorer.about) == "NLI tiny (SNLI test 81.2 %)"
    expected = [direct(model, tokenizer, *pair)[0].item() for pair in PAIRS]
    assert scorer.probabilities(PAIRS) == pytest.approx(expected, abs=0.03)
    parameters = sum(p.numel() for p in model.parameters())
    assert (tmp_path / WEIGHTS).stat().st_size < 1.5 * parameters, "fp16 would have 2 each"


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
    scorer = load_entailment(str(tmp_path), batch=2)
    expected = TextToTextEntailment(model, tokenizer, Scorer("x")).probabilities([("a", "b")])
    assert scorer.probabilities([("a", "b")]) == pytest.approx(expected, abs=1e-6)


def test_damaged_or_foreign_folders_are_refused(tmp_path, tokenizer):
    good = tmp_path / "good"
    write_cross_encoder(good, CrossEncoder(make_classifier(), tokenizer, CARD_OF_TINY))
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


def test_the_default_scorer_is_found_in_the_cache_or_says_how_to_get_it(
    tmp_path, monkeypatch, tokenizer
):
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path))
    monkeypatch.setattr(entailment, "DEFAULT_SCORER", "not-in-the-package")
    with pytest.raises(ModelMissing, match="recipes/nli/README.md"):
        default_folder()
    folder = tmp_path / "entailment" / "not-in-the-package"
    write_cross_encoder(folder, CrossEncoder(make_classifier(), tokenizer, CARD_OF_TINY))
    assert default_folder() == folder
    assert load_entailment("not-in-the-package").about == ABOUT


# int8

ROWS = arrays(
    numpy.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False),
)


@settings(max_examples=60)
@given(ROWS)
def test_int8_is_within_half_a_step_of_each_rows_own_scale(values):
    matrix = torch.from_numpy(values)
    packed = pack_int8({"m": matrix, "bias": matrix[0]})
    assert packed["m"].dtype == torch.int8
    found = unpack_int8(packed)
    assert found.keys() == {"m", "bias"}
    assert torch.equal(found["bias"], matrix[0])
    steps = matrix.abs().amax(1, keepdim=True) / 127
    assert torch.all((found["m"] - matrix).abs() <= 0.501 * steps)
    assert torch.equal(pack_int8(found)["m"], packed["m"])


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
