"""The frozen regime as a task: what it trains, what it logs, and what users load."""

import math

import numpy
import pytest
import torch
from frozen_world import (
    ALONE,
    DOCUMENTS,
    LONG,
    make_cache,
    make_config,
    make_lm,
    make_settings,
    make_task,
    shake,
    states_of,
)

import univerb
from conftest import TEXT, saved
from univerb.config import GenerationConfig
from univerb.decoding.conditional_head import ConditionalPhraseHead
from univerb.decoding.phrase_head import Place
from univerb.engines.torch.phrase_weights import TorchPhraseWeights
from univerb.errors import DocumentError
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.likelihood import segmentations
from univerb.phrase import Document, Phrase, Span
from univerb.training.frozen.frozen_task import FrozenTask
from univerb.training.frozen.states import PassageStates
from univerb.training.frozen.stretches import loss_of, stretch_vectors, stretches
from univerb.training.frozen.validation import validate_frozen
from univerb.training.frozen.windows import Windows, windows
from univerb.training.processes import Processes
from univerb.training.trainer import train

SHORT = [Document("Rent is due.", "a"), Document("Day by day.", "b")]


# Training and decoding


def decoding_head(lm: DynamicLM, passage: PassageStates, begin: int) -> ConditionalPhraseHead:
    """Score the phrases of the chunks and of the text before a stretch, as decoding does."""
    sizes = make_settings().sizes
    own = windows(passage.text, sizes, passage.begin, begin)
    found = Windows.joined(own, windows(passage.pool, sizes))
    rows, columns = numpy.nonzero(found.is_phrase)
    keys = [tuple(found.ids[r, : c + 1].tolist()) for r, c in zip(rows, columns, strict=True)]
    vocabulary = lm.vocabulary(
        Phrase(key, lm.tokenizer.decode(key), (Span("text", place, place + 1),))
        for place, key in enumerate(keys)
    )
    counts = [len(phrase.sources) for phrase in vocabulary]
    assert len(counts) < sum(counts) == len(keys)
    weights, config = TorchPhraseWeights(torch.device("cpu")), GenerationConfig(phrase_bias=0.0)
    head = ConditionalPhraseHead(lm, weights, vocabulary, config, frozenset())
    head.update()
    return head


@pytest.mark.parametrize(("name", "share"), [("gpt2", 0.0), ("llama", 0.0), ("llama", 1.0)])
def test_a_text_is_as_likely_in_training_as_in_decoding(name, share):
    lm = shake(make_lm(name))
    lm.encoder.eval()
    # With room for a chunk before the passage.
    settings = {"block": 320, "context_share": share, "context_chunks": 1, "max_options": None}
    passages = (states_of(lm, index, **settings) for index in range(16))
    passage = next(each for each in passages if len(each.ids) - each.begin > 60)
    assert bool(passage.begin) == bool(share)
    parts = stretches(passage, make_settings(max_options=None), numpy.random.default_rng(0))
    part, vectors = parts[-1], stretch_vectors(lm, parts)[-1]
    made, pool = part.stretch, part.pool
    head = decoding_head(lm, passage, made.begin)
    with torch.no_grad():
        found = loss_of(lm, part, vectors, passage, 1.0)
        logits = lm.embeddings.output(passage.hidden.float()).numpy()
    ids, values = passage.ids.tolist(), {}
    for begin, end in zip(made.unit_begin.tolist(), made.unit_end.tolist(), strict=True):
        place = Place(passage.hidden[begin - 1].float().numpy(), logits[begin - 1], ids[:begin], 99)
        voted = head.voted(place)
        value = voted[ids[begin]] - numpy.logaddexp.reduce(logits[begin - 1])
        if begin in made.state + 1:
            scored = head.logits_by_first_token(
                numpy.array([ids[begin]]), place._replace(logits=numpy.zeros_like(voted))
            )
            units = [head.vocabulary.phrase(lm.static_size + i).ids for i in scored.indices]
            shares = dict(zip(units, scored.logits.tolist(), strict=True))
            shares[ids[begin],] = scored.shares[ids[begin]].stop
            value += shares[tuple(ids[begin:end])]
        values[begin, end] = float(value)
    assert len(values) > len(range(made.begin, made.end)) and len(pool.keys) > 20
    edges = (numpy.array(side) for side in zip(*values, strict=True))
    total = segmentations(*edges, numpy.array([*values.values()])).log_likelihood
    bare = float(passage.next_logprob[made.begin - 1 : made.end - 1].sum())
    assert found.gain + bare == pytest.approx(total, rel=2e-3)


def test_the_vectors_of_options_are_those_of_the_encoder():
    lm = shake(make_lm())
    lm.encoder.eval()
    parts = stretches(states_of(lm, 2), make_settings(), numpy.random.default_rng(0))
    for (pool, made, votes), vectors in zip(parts, stretch_vectors(lm, parts), strict=True):
        options = [tuple(pool.ids[o, : pool.length[o]].tolist()) for o in made.option]
        tokens = [(token,) for token in votes.tokens.tolist()]
        for keys, mine in ((options, vectors.options), (tokens, vectors.votes)):
            with torch.no_grad():
                wanted = lm.encoder.encode([Phrase(key, "") for key in keys], lm.embeddings)
            torch.testing.assert_close(mine, wanted.outputs, rtol=1e-4, atol=1e-5)


def test_scores_stay_in_single_precision_where_the_encoder_has_half():
    lm = shake(make_lm())
    passage = states_of(lm, 2)
    parts = stretches(passage, make_settings(), numpy.random.default_rng(0))
    for part, vectors in zip(parts, stretch_vectors(lm, parts), strict=True):
        plain = loss_of(lm, part, vectors, passage, 1.0)
        with torch.autocast("cpu", torch.bfloat16):
            half = loss_of(lm, part, vectors, passage, 1.0)
        assert torch.equal(plain.loss, half.loss) and torch.equal(plain.go, half.go)


# A run


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_training_raises_the_gain_and_leaves_the_lm_alone(tmp_path, name):
    lm = make_lm(name)
    before = {name: value.clone() for name, value in lm.model.state_dict().items()}
    config = make_config(steps=80, input_every=1, input_phrases=24)
    task = make_task(tmp_path / "states", lm, config)
    lm.encoder.eval()
    first = task.validate()
    train(task, config, tmp_path / "run", ALONE)
    lm.encoder.eval()
    last = task.validate()
    assert first.keys() == last.keys() == {"score", "gain", "saved", "fires", "right", "kl"}
    assert last["gain"] > first["gain"] + 0.05
    assert last["saved"] > first["saved"]
    assert last["score"] < first["score"] - 0.1
    assert last["kl"] < first["kl"]
    assert all(torch.equal(value, before[name]) for name, value in lm.model.state_dict().items())
    assert (tmp_path / "run" / "encoder" / "univerb.json").is_file()


def test_the_logged_loss_is_all_that_is_minimised(tmp_path):
    lm = shake(make_lm())
    task = make_task(tmp_path, lm, make_config(input_every=1, teacher=0.5, input_weight=0.25))
    made = task.loss(0)
    assert made.terms.keys() == {"gain", "saved", "teacher", "kl"}
    alone = {"input_every": 0, "teacher": 0.0}
    plain = make_task(tmp_path, lm, make_config(**alone)).loss(0)
    assert plain.terms["gain"] == pytest.approx(made.terms["gain"])
    weights = {"teacher": 0.5, "kl": 0.25}
    assert min(made.terms[name] for name in weights) > 0
    extra = sum(weight * made.terms[name] for name, weight in weights.items())
    assert float(made.total.detach()) == pytest.approx(float(plain.total.detach()) + extra)
    free = make_task(tmp_path, lm, make_config(**alone, unit_price=0.0)).loss(0)
    assert float(free.total.detach()) == pytest.approx(-free.terms["gain"], rel=1e-4)
    assert made.rows == sum(len(task._cache.passage(n).ids) for n in range(2))


def test_a_micro_batch_without_phrases_changes_nothing(tmp_path):
    config = make_config(input_every=0)
    task = make_task(tmp_path, make_lm(), config)
    task._cache = make_cache(tmp_path, task._lm, config, SHORT)
    made = task.loss(0)
    made.total.backward()
    assert float(made.total.detach()) == 0.0
    assert all(p.grad is None or not p.grad.any() for p in task._lm.encoder.parameters())


@pytest.mark.parametrize("input_every", [0, 1])
def test_two_shares_are_the_whole(tmp_path, input_every):
    config = make_config(run={"batch": 3}, input_every=input_every)

    def shared(processes: Processes):
        lm = shake(make_lm())
        made = make_task(tmp_path, lm, config, processes).loss(0)
        made.total.backward()
        grads = {n: p.grad for n, p in lm.encoder.named_parameters() if p.grad is not None}
        return made, grads

    whole, grads = shared(ALONE)
    halves = [shared(Processes(rank, 2, torch.device("cpu"))) for rank in range(2)]
    assert sum(made.rows for made, _ in halves) == whole.rows
    total = sum(float(made.total.detach()) for made, _ in halves)
    assert total == pytest.approx(float(whole.total.detach()), abs=1e-5)
    for name, value in whole.terms.items():
        assert sum(made.terms[name] for made, _ in halves) == pytest.approx(value, abs=1e-5)
    for name, grad in grads.items():
        parts = [part.get(name, torch.zeros_like(grad)) for _, part in halves]
        torch.testing.assert_close(parts[0] + parts[1], grad, rtol=1e-3, atol=1e-5)


class Stop(Exception):
    """A run is killed."""


@pytest.mark.parametrize(("name", "keep"), [("llama", None), ("gpt2", None), ("llama", 1)], ids=str)
def test_a_run_that_stopped_ends_with_the_same_bits(tmp_path, name, keep):
    """GPT-2's layers have dropout: what it drew is drawn again."""
    torch.set_num_threads(1)
    # More passages than a group has, several times.
    config = make_config(run={"batch": 8}, keep_groups=keep, max_options=4)
    whole = make_lm(name)
    train(make_task(tmp_path / "s", whole, config), config, tmp_path / "a", ALONE)
    task = make_task(tmp_path / "s", make_lm(name), config)
    real = task.loss

    def failing(index: int):
        if index == 5:
            raise Stop
        return real(index)

    task.loss = failing
    with pytest.raises(Stop):
        train(task, config, tmp_path / "b", ALONE)
    resumed = make_lm(name)
    train(make_task(tmp_path / "s", resumed, config), config, tmp_path / "b", ALONE)
    for key, value in whole.encoder.state_dict().items():
        assert torch.equal(value, resumed.encoder.state_dict()[key]), key
    if keep:
        assert len(list((tmp_path / "s").rglob("*.safetensors"))) <= 2 * (keep + 1)


def test_the_coordinates_of_the_heads_are_a_part_of_a_checkpoint(tmp_path):
    task = make_task(tmp_path, make_lm(), make_config())
    state = {name: value.clone() for name, value in task.state_dict().items()}
    lm = task._lm
    assert {"heads.read", "heads.fed", "conditional.whiten"} <= state.keys()
    assert not torch.equal(state["conditional.whiten"], torch.eye(lm.width))
    other = make_task(tmp_path, make_lm(), make_config(), documents=DOCUMENTS[:2])
    assert not torch.equal(other.state_dict()["conditional.whiten"], state["conditional.whiten"])
    other.load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items())


def test_an_encoder_that_was_trained_keeps_its_coordinates(tmp_path):
    lm = make_lm(trained_steps=7)
    make_task(tmp_path, lm, make_config())
    assert torch.equal(lm.encoder.conditional.whiten, torch.eye(lm.width))


def test_text_without_phrases_cannot_be_learned_from(tmp_path):
    config, lm = make_config(), make_lm()
    with pytest.raises(DocumentError, match="a phrase to learn from. Give more text"):
        make_task(tmp_path, lm, config, documents=SHORT)


# Validation


def test_validation_is_the_exact_likelihood_of_held_out_text(tmp_path):
    """All options count, whatever a step samples."""
    lm = shake(make_lm())
    lm.encoder.eval()
    config = make_config(max_options=1)
    cache = make_cache(tmp_path, lm, config)
    found = validate_frozen(lm, cache, config)
    gain = tokens = 0.0
    for index in range(config.data.passages):
        passage = cache.passage(index)
        settings = make_settings(max_options=None)
        parts = stretches(passage, settings, numpy.random.default_rng(5))
        for part, vectors in zip(parts, stretch_vectors(lm, parts), strict=True):
            made = loss_of(lm, part, vectors, passage, 1.0)
            gain, tokens = gain + made.gain, tokens + part.stretch.end - part.stretch.begin
    assert found["gain"] == pytest.approx(gain / tokens, rel=1e-4)
    assert found["score"] <= -found["gain"]
    task = FrozenTask(lm, config, cache, None, ALONE)
    assert task.validate() == {}


@pytest.mark.parametrize("documents", [[*SHORT, Document(LONG, "c")], SHORT])
def test_validation_passes_over_text_without_phrases(tmp_path, documents):
    lm, config = make_lm(), make_config()
    found = validate_frozen(lm, make_cache(tmp_path, lm, config, documents), config)
    assert all(math.isfinite(value) for value in found.values())


# What users load


def ids_of(generation: univerb.Generation) -> list[int]:
    return [token for piece in generation.pieces for token in piece.ids]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    lm = make_lm()
    lm.model.name_or_path = str(saved(folder / "tiny", lm))
    config = make_config(steps=20)
    train(make_task(folder / "states", lm, config), config, folder / "run", ALONE)
    return lm, folder / "run" / "encoder"


@pytest.mark.parametrize("mode", ["unfold", "atomic", "verify"])
def test_what_a_run_exports_is_loaded_and_decodes(exported, mode):
    trained, folder = exported
    lm = univerb.load(str(folder), engine="torch")
    assert lm.is_trained and lm.encoder_config.form == "conditional"
    assert (lm.profile.mode, lm.profile.positions) == ("unfold", "token")
    again = DynamicLM.from_pretrained(str(folder))
    for name, value in trained.encoder.state_dict().items():
        assert torch.equal(again.encoder.state_dict()[name], value), name
    vocabulary = lm.vocabulary(DOCUMENTS[:2])
    # Drawn: the LM's best tokens are no words.
    sampling = {"max_tokens": 60, "temperature": 1.0, "mode": mode, "ignore_eos": True}
    profile = {"phrase_bias": 8.0} | ({"tolerance": 1.0} if mode == "unfold" else {})
    written = univerb.generate(lm, TEXT[:60], vocabulary, **sampling, **profile)
    plain = univerb.generate(lm, TEXT[:60], **sampling)
    assert ids_of(written) and (mode != "verify" or ids_of(written) == ids_of(plain))
    assert any(piece.phrase for piece in written.pieces) or mode == "verify"


def test_without_phrases_every_bit_is_the_bare_lms(exported):
    lm = DynamicLM.from_pretrained(str(exported[1]))
    ids = torch.tensor([lm.tokenizer.encode_prompt(TEXT[:60])])
    with torch.no_grad():
        assert torch.equal(lm.forward(ids), lm.model(input_ids=ids).logits)
        wanted = lm.model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=-1)
    for vocabulary in (None, lm.vocabulary([])):
        written = univerb.generate(
            lm, TEXT[:60], vocabulary, max_tokens=12, ignore_eos=True, mode="unfold"
        )
        assert ids_of(written) == wanted[0, ids.shape[1] :].tolist()
