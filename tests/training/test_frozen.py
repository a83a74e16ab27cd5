"""The frozen regime against slow, direct computations on tiny models."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_world import make_beginning_tokenizer

from conftest import MAKERS, TEXT, make_tokenizer, stir
from univerb.config import EncoderConfig
from univerb.modeling.branches import Branch, Branches
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document, Phrase
from univerb.phrases.guards import Guards, is_number
from univerb.phrases.tokenized import tokenize_text
from univerb.training.config import (
    DataConfig,
    FrozenConfig,
    NegativeConfig,
    OptimiserConfig,
    RunConfig,
    TrainingConfig,
)
from univerb.training.frozen import input_loss
from univerb.training.frozen.distillation import Bigrams, distillation_loss
from univerb.training.frozen.frozen_task import FrozenTask
from univerb.training.frozen.input_loss import after_phrase, input_losses
from univerb.training.frozen.pools import Bank, Candidates, LivePool
from univerb.training.frozen.row_losses import match_gold, row_losses
from univerb.training.frozen.states import StateCache, States, read_states
from univerb.training.frozen.validation import validate_frozen
from univerb.training.frozen.windows import Windows, char_classes, windows
from univerb.training.processes import Processes
from univerb.training.trainer import train
from univerb.training.training_passages import Passages

LONG = " ".join(f"{TEXT} Number {n} of the lease, dated {1900 + n}, is void." for n in range(6))
KINDS = ("in-batch", "prefixes", "self-retrieval")


def make_lm(name: str = "llama", **encoder: object) -> DynamicLM:
    settings = EncoderConfig.model_validate({"count_correction": True, **encoder})
    return DynamicLM.wrap(MAKERS[name](), make_tokenizer(), settings)


def make_config(steps: int = 6, **frozen: object) -> TrainingConfig:
    given = {"groups": 2, "own": 0.4, "own_weight": 0.3, "input_every": 2, "input_phrases": 6}
    given |= {"teacher": 0.5}
    return TrainingConfig(
        data=DataConfig(documents=("text",), block=96, passages=16),
        negatives=NegativeConfig(kinds=KINDS, extensions=6, mask_true=True),
        frozen=FrozenConfig.model_validate(given | {"input_context": 48} | frozen),
        optimiser=OptimiserConfig(rate=1e-3),
        run=RunConfig(steps=steps, batch=1, accumulate=1, save_every=2, validate_every=3),
    )


def make_task(
    folder: Path, lm: DynamicLM, config: TrainingConfig, processes: Processes | None = None
) -> FrozenTask:
    documents = [Document(LONG[n:], f"d{n}") for n in range(0, 400, 25)]
    texts = Passages(documents, lm.tokenizer, config.data.block)
    cache = StateCache(folder, lm, texts, 0)
    return FrozenTask(lm, config, cache, cache, processes or Processes.single())


def states_of(lm: DynamicLM, text: str = LONG) -> States:
    return read_states(lm, tokenize_text(text[:700], lm.tokenizer))


def test_states_are_those_of_the_lm():
    lm = make_lm()
    states = states_of(lm)
    with torch.no_grad():
        logits = lm.model(input_ids=states.ids.long()[None]).logits[0]
    torch.testing.assert_close(states.logsumexp, logits.logsumexp(-1))
    torch.testing.assert_close(states.max_logit, logits.max(-1).values)
    own = logits[:-1].log_softmax(-1).gather(1, states.ids.long()[1:, None])[:, 0]
    torch.testing.assert_close(states.next_logprob[:-1], own)
    assert states.next_logprob[-1] == 0
    assert states.hidden.dtype == torch.float16


def test_windows_are_all_ngrams_that_the_guards_allow():
    lm = make_lm()
    words = "In 1999 12 34 tenants\nshall pay 7 8 or 1,500 rents. "
    text = tokenize_text(words + LONG[:300], lm.tokenizer, Guards(content=None))
    found = windows(read_states(lm, text), (2, 5), char_classes(lm.tokenizer, lm.static_size))
    ids = text.ids.tolist()
    wanted = {
        (place, size)
        for size in range(2, 6)
        for place in text.windows(size).tolist()
        if place and not is_number(lm.tokenizer.decode(ids[place : place + size]))
    }
    given = {
        (int(found.before[row]) + 1, int(column) + 1)
        for row, column in found.is_phrase.nonzero().tolist()
    }
    assert given == wanted
    tuples = {}
    for row, column in found.is_phrase.nonzero().tolist():
        key = int(found.keys[row, column])
        assert tuples.setdefault(key, found.ids[row, : column + 1].tolist()) == (
            found.ids[row, : column + 1].tolist()
        )
    spans = {tuple(ids[a : a + n]) for a, n in wanted}
    assert len(tuples) == len(spans)


def direct(
    lm: DynamicLM, states: States, rows: Windows, phrases: dict[tuple[int, ...], torch.Tensor]
) -> tuple[list[float], list[float]]:
    """Compute both losses with whole softmaxes and Python tuples."""
    strict, marginal = [], []
    firsts = [key[0] for key in phrases]
    weight = lm.embeddings.output_weight.detach()
    for row in range(len(rows)):
        at = int(rows.before[row])
        hidden = states.hidden[at].float()
        tokens = hidden @ weight.T
        scores = {
            key: float(hidden @ vector + lm.encoder.heads.bias.detach())
            - math.log(firsts.count(key[0]))
            for key, vector in phrases.items()
        }
        whole = math.log(sum(map(math.exp, scores.values())) + sum(map(math.exp, tokens.tolist())))
        bare = float(tokens.logsumexp(0))
        text = tuple(states.ids[at + 1 : at + 9].tolist())
        total, best = math.exp(bare - whole), math.exp(bare - whole)
        for size in range(2, len(text) + 1):
            if text[:size] in phrases:
                cost = float(states.next_logprob[at : at + size].sum())
                share = math.exp(scores[text[:size]] - whole - cost)
                total, best = total + share, share
        strict.append(-math.log(best))
        marginal.append(-math.log(total))
    return strict, marginal


@pytest.mark.parametrize("backbone", ["gpt2", "llama"])
def test_losses_equal_whole_softmaxes(backbone):
    lm = make_lm(backbone)
    states = states_of(lm)
    found = windows(states, (2, 8), char_classes(lm.tokenizer, lm.static_size))
    own, rows = found[slice(0, 30)], found[slice(25, 60)]
    pool = LivePool.of(own, own.is_phrase)
    torch.manual_seed(3)
    outputs = torch.randn(len(pool.keys), lm.width)
    candidates = Candidates.joined(pool, outputs, Bank.empty(lm.width))
    logits = candidates.logits(lm, states.hidden[rows.before].float())
    fit = match_gold(rows, candidates, torch.zeros(len(rows), dtype=torch.long), mask_true=True)
    total = (states.hidden[rows.before].float() @ lm.embeddings.output_weight.T).logsumexp(1)
    losses = row_losses(logits, total.detach(), states.max_logit[rows.before], rows, fit)
    phrases = {
        tuple(own.ids[int(w), : int(c) + 1].tolist()): outputs[k]
        for k, (w, c) in enumerate(zip(pool.window, pool.column, strict=True))
    }
    strict, marginal = direct(lm, states, rows, phrases)
    torch.testing.assert_close(losses.strict, torch.tensor(strict), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(losses.marginal, torch.tensor(marginal), rtol=1e-4, atol=1e-4)
    assert (losses.gold >= 0).any()
    assert (losses.gold < 0).any()
    assert (losses.marginal <= losses.strict + 1e-6).all()


def test_the_teacher_is_the_lm_after_the_true_first_token():
    lm = make_lm()
    states = states_of(lm)
    found = windows(states, (2, 8), char_classes(lm.tokenizer, lm.static_size))
    own, rows = found[slice(0, 40)], found[slice(20, 60)]
    pool = LivePool.of(own, own.is_phrase)
    torch.manual_seed(3)
    logits = torch.randn(len(rows), len(pool.keys))
    pairs, after = Bigrams.of(pool), rows.before + 1
    weight = lm.embeddings.output_weight.detach()
    hidden = states.hidden[after].float()
    total = (hidden @ weight.T).logsumexp(1)
    loss, weights = distillation_loss(
        logits, rows.ids[:, 0], hidden, total, weight[pairs.second], pairs
    )
    phrases = [
        tuple(own.ids[int(w), : int(c) + 1].tolist())
        for w, c in zip(pool.window, pool.column, strict=True)
    ]
    choices = 0
    for row in range(len(rows)):
        first = int(rows.ids[row, 0])
        offered = sorted({key[1] for key in phrases if key[0] == first})
        if len(offered) < 2:
            assert loss[row] == weights[row] == 0
            continue
        choices += 1
        expects = (hidden[row] @ weight.T).softmax(0)[offered]
        scores = [
            sum(math.exp(logits[row, k]) for k, key in enumerate(phrases) if key[:2] == (first, s))
            for s in offered
        ]
        mine = torch.tensor(scores) / sum(scores)
        teacher = expects / expects.sum()
        wanted = float((teacher * (teacher / mine).log()).sum())
        assert float(loss[row]) == pytest.approx(wanted, abs=1e-4)
        assert float(weights[row]) == pytest.approx(float(expects.sum()), abs=1e-4)
    assert choices > 5


def test_a_row_does_not_see_what_only_its_own_text_brought():
    lm = make_lm()
    states = states_of(lm)
    found = windows(states, (2, 8), char_classes(lm.tokenizer, lm.static_size))[slice(0, 12)]
    pool = LivePool.of(found, found.is_phrase)
    candidates = Candidates.joined(
        pool, torch.zeros(len(pool.keys), lm.width), Bank.empty(lm.width)
    )
    length = found.is_phrase.int().argmax(1) + 1
    hidden = match_gold(found, candidates, length, mask_true=True)
    for row in range(len(found)):
        for column in range(8):
            place = int(candidates.index_of(found.keys[row, column]))
            is_longer = column >= int(length[row])
            is_alone = int(candidates.owners[place]) == 1
            if not found.is_phrase[row, column]:
                assert hidden.candidate[row, column] == hidden.masked[row, column] == -1
            elif is_longer and is_alone:
                assert hidden.masked[row, column] == place
                assert hidden.candidate[row, column] == -1
            else:
                assert hidden.candidate[row, column] == place
                assert hidden.masked[row, column] == -1
    paper = match_gold(found, candidates, length, mask_true=False)
    assert (paper.masked == -1).all()
    assert ((paper.candidate >= 0).sum(1) >= 1).all()


def test_the_bank_keeps_each_key_once_newest_first():
    lm = make_lm()
    found = windows(states_of(lm), (2, 4), char_classes(lm.tokenizer, lm.static_size))
    first, second = (LivePool.of(found[s], found[s].is_phrase) for s in (slice(0, 9), slice(5, 14)))
    bank = Bank.empty(lm.width).pushed(first, torch.zeros(len(first.keys), lm.width), 99)
    bank = bank.pushed(second, torch.ones(len(second.keys), lm.width), 99)
    assert len(set(bank.keys.tolist())) == len(bank.keys)
    assert (bank.outputs[: len(second.keys)] == 1).all()
    assert bank.pushed(second, torch.ones(len(second.keys), lm.width), 5).outputs.shape[0] == 5


@pytest.mark.parametrize("backbone", ["gpt2", "llama"])
def test_a_branch_reads_what_a_text_of_its_own_would(backbone):
    lm = make_lm(backbone)
    ids = states_of(lm).ids.long()[:40]
    text = Branches(lm, ids.tolist())
    torch.manual_seed(1)
    vectors = torch.randn(3, lm.width)
    after, positions = torch.tensor([5, 17, 30]), torch.tensor([8, 18, 30])
    branches = [
        Branch(int(n), vector[None], int(at - n))
        for n, at, vector in zip(after, positions, vectors, strict=True)
    ]
    together = text.read(branches)
    for row in range(3):
        seen = int(after[row])
        inputs = torch.cat([lm.embeddings.input(ids[:seen]), vectors[row : row + 1]])
        places = torch.cat([torch.arange(seen), positions[row : row + 1]])
        with torch.no_grad():
            alone = lm.model.base_model(
                inputs_embeds=inputs[None],
                position_ids=places[None],
                # Without it, places that jump are taken for several texts in one row.
                attention_mask=torch.ones(1, seen + 1),
                use_cache=False,
            ).last_hidden_state[0, -1]
        torch.testing.assert_close(together[row], alone, rtol=1e-4, atol=1e-4)


def test_no_difference_where_the_vector_is_the_token_itself():
    lm = make_lm()
    ids = states_of(lm).ids.long()[:30]
    text = Branches(lm, ids.tolist())
    places = torch.tensor([4, 9, 20])
    rows = lm.embeddings.input(ids[places])
    read = text.read([Branch(int(n), row[None]) for n, row in zip(places, rows, strict=True)])
    difference = after_phrase(lm, read, text.hidden[places])
    torch.testing.assert_close(difference.learned, torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(difference.measured, torch.zeros(3), rtol=0, atol=1e-5)


def test_the_input_loss_reaches_the_encoder_and_nothing_else():
    lm = make_lm()
    states = states_of(lm)
    found = windows(states, (2, 8), char_classes(lm.tokenizer, lm.static_size))[slice(8, 14)]
    lm.model.requires_grad_(False)
    length = found.is_phrase.int().argmax(1) + 1
    input_losses(lm, states, found, length, 64).learned.sum().backward()
    assert lm.encoder.heads.input.weight.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in lm.model.parameters())


@pytest.mark.parametrize("kinds", [KINDS, ("in-batch",), ("in-batch", "pre-batch", "prefixes")])
def test_training_lowers_the_loss_and_leaves_the_lm_alone(tmp_path, kinds):
    lm = make_lm()
    before = {name: value.clone() for name, value in lm.model.state_dict().items()}
    config = make_config(steps=30)
    config = config.model_copy(update={"negatives": NegativeConfig(kinds=kinds, mask_true=True)})
    task = make_task(tmp_path / "states", lm, config)
    first = sum(float(task.loss(index).total.detach()) for index in range(4))
    train(task, config, tmp_path / "run", Processes.single())
    last = sum(float(task.loss(index).total.detach()) for index in range(4))
    assert last < first
    assert all(torch.equal(value, before[name]) for name, value in lm.model.state_dict().items())
    again = DynamicLM.wrap(lm.model, lm.hf_tokenizer)
    assert not again.is_trained
    assert (tmp_path / "run" / "encoder" / "univerb.json").is_file()


def test_what_users_get_is_sharper_than_what_goes_on_training(tmp_path):
    exported = {}
    for factor in (1.0, 2.0):
        lm = stir(make_lm())
        task = make_task(tmp_path / "states", lm, make_config(sharpen=factor))
        before = {name: value.clone() for name, value in lm.encoder.state_dict().items()}
        task.export(tmp_path / str(factor), 3)
        after = lm.encoder.state_dict()
        assert all(torch.equal(value, before[name]) for name, value in after.items())
        exported[factor] = load_file(tmp_path / str(factor) / "encoder.safetensors")
    for name, value in exported[1.0].items():
        stretched = name.startswith("heads.output.") or name == "heads.bias"
        torch.testing.assert_close(exported[2.0][name], value * (2.0 if stretched else 1.0))


class Half(Processes):
    """One of two processes that never meet: it is handed what both encoded and added up."""

    def __init__(self, rank: int) -> None:
        single = Processes.single()
        super().__init__(rank, 2, single.device)

    def gather(self, rows, counts=None):
        return rows if self.whole is None else self.whole

    def all_reduce(self, values):
        return self.sums.pop(0)


def test_two_shares_are_the_whole(tmp_path):
    config = make_config(steps=1, input_every=1)
    whole = make_task(tmp_path, make_lm(), config).loss(0)
    lm = make_lm()
    task = make_task(tmp_path, lm, config)
    totals = []
    for rank in range(2):
        half = Half(rank)
        states, rows = task._rows(0)
        half.whole, half.sums = _all_windows(task, lm)
        task._processes = half
        totals.append(task.loss(0))
    assert sum(loss.rows for loss in totals) == whole.rows
    total = sum(float(loss.total.detach()) for loss in totals)
    assert total == pytest.approx(float(whole.total.detach()), abs=1e-5)
    for name, value in whole.terms.items():
        assert sum(loss.terms[name] for loss in totals) == pytest.approx(value, abs=1e-5)


def _all_windows(task: FrozenTask, lm: DynamicLM) -> tuple[torch.Tensor, list[dict[str, float]]]:
    """Encode and add up what a single process would: recorded from its own run."""
    kept: list[torch.Tensor] = []
    sums: list[dict[str, float]] = []
    real = lm.encoder.hidden_states

    def recorded(ids, embeddings):
        states = real(ids, embeddings)
        kept.append(states)
        return states

    def added(values):
        sums.append(dict(values))
        return dict(values)

    lm.encoder.hidden_states = recorded
    task._processes = Processes.single()
    task._processes.all_reduce = added
    task.loss(0)
    del lm.encoder.hidden_states
    return kept[0].detach(), sums


def test_a_run_that_stopped_ends_with_the_same_bits(tmp_path):
    torch.set_num_threads(1)
    config = make_config(steps=6)
    whole = make_lm()
    train(make_task(tmp_path / "s", whole, config), config, tmp_path / "a", Processes.single())

    class Stop(Exception):
        pass

    stopped = make_lm()
    task = make_task(tmp_path / "s", stopped, config)
    real = task.loss

    def failing(index: int):
        if index == 4:
            raise Stop
        return real(index)

    task.loss = failing
    with pytest.raises(Stop):
        train(task, config, tmp_path / "b", Processes.single())
    resumed = make_lm()
    train(make_task(tmp_path / "s", resumed, config), config, tmp_path / "b", Processes.single())
    for name, value in whole.encoder.state_dict().items():
        assert torch.equal(value, resumed.encoder.state_dict()[name]), name


def test_damaged_states_are_computed_again(tmp_path):
    lm = make_lm()
    config = make_config()
    make_task(tmp_path, lm, config).loss(0)
    (path,) = tmp_path.rglob("000000.safetensors")
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    make_task(tmp_path, make_lm(), config).loss(0)
    assert path.read_bytes() == good


def test_validation_measures_what_decoding_would_find(tmp_path):
    lm = make_lm()
    task = make_task(tmp_path, lm, make_config())
    found = task.validate()
    assert found.keys() == {"score", "marginal", "strict", "fires", "precision", "kl"}
    assert found["marginal"] <= found["score"] <= found["strict"]
    assert 0 <= found["fires"] <= 1
    lm.encoder.heads.bias.data.fill_(50.0)
    assert task.validate()["fires"] == 1.0


@pytest.mark.parametrize("texts", [["Rent", LONG], ["Rent", "Day"]])
def test_validation_passes_over_text_without_phrases(tmp_path, texts):
    lm, config = make_lm(), make_config()
    documents = [Document(text, f"d{n}") for n, text in enumerate(texts)]
    held = StateCache(
        tmp_path / "held", lm, Passages(documents, lm.tokenizer, config.data.block), 0
    )
    found = validate_frozen(lm, held, config, char_classes(lm.tokenizer, lm.static_size))
    assert all(math.isfinite(value) for value in found.values())


def test_a_phrase_scores_in_training_as_it_does_in_decoding(tmp_path):
    lm = make_lm()
    task = make_task(tmp_path, lm, make_config())
    torch.manual_seed(5)
    torch.nn.init.normal_(lm.encoder.heads.output.weight, std=0.1)
    states, rows = task._rows(0)
    own = rows[slice(0, 20)]
    with torch.no_grad():
        pool, outputs = task._encode(0, own, torch.full((20,), 8))
    keys = [
        tuple(own.ids[int(w), : int(c) + 1].tolist())
        for w, c in zip(pool.window, pool.column, strict=True)
    ]
    vocabulary = lm.vocabulary([Phrase(key, lm.tokenizer.decode(key)) for key in keys])
    view = lm.tensors(vocabulary)
    hidden = states.hidden[own.before].float()
    candidates = Candidates.joined(pool, outputs, Bank.empty(lm.width))
    trained = candidates.logits(lm, hidden)
    torch.testing.assert_close(trained, hidden @ view.outputs.T + view.bias, rtol=1e-4, atol=1e-4)


def test_an_lm_that_wants_a_token_before_a_text_reads_it_before_every_context(
    tmp_path, monkeypatch
):
    """As at inference: in cached states, and before text that is cut to the last tokens."""
    plain = make_lm()
    lm = DynamicLM.wrap(plain.model, make_beginning_tokenizer(), stir(plain).encoder)
    contexts: list[list[int]] = []

    class Noting(Branches):
        def __init__(self, lm: DynamicLM, ids: list[int]) -> None:
            contexts.append(ids)
            super().__init__(lm, ids)

    monkeypatch.setattr(input_loss, "Branches", Noting)
    task = make_task(tmp_path, lm, make_config(input_every=1, input_context=24))
    states, _ = task._rows(0)
    first = states.passage.diff(prepend=torch.tensor([-1])) != 0
    begin = lm.tokenizer.begin_ids
    assert states.ids[first].tolist() == begin * int(first.sum())
    assert not states.may_start[first].any()
    for index in range(4):
        task.loss(index)
    assert len(contexts) == 4
    assert all(ids[:1] == begin and begin[0] not in ids[1:] for ids in contexts)


def test_a_context_that_is_cut_is_what_the_lm_reads_after_its_first_token():
    """The divergence at a phrase, computed from the text that a user would have given."""
    plain = stir(make_lm())
    lm = DynamicLM.wrap(plain.model, make_beginning_tokenizer(), plain.encoder)
    begin = lm.tokenizer.begin_ids
    states = states_of(lm)
    rows = windows(states, (2, 4), char_classes(lm.tokenizer, lm.static_size))
    rows = rows[rows.before > 60][:1]
    length = torch.tensor([2])
    start = int(rows.before[0]) + 1
    context = [*begin, *states.ids[start + 2 - 16 : start + 2].tolist()]
    measured = input_losses(lm, states, rows, length, 16).measured
    with torch.no_grad():
        static = lm.model.base_model(input_ids=torch.tensor([context])).last_hidden_state[0, -1]
        phrase = Phrase(tuple(context[-2:]), lm.tokenizer.decode(context[-2:]))
        vector = lm.encoder.encode([phrase], lm.embeddings).inputs
        fed = torch.cat([lm.embeddings.input(torch.tensor(context[:-2])), vector])
        positions = torch.tensor([[*range(len(context) - 2), len(context) - 1]])
        dynamic = lm.model.base_model(
            inputs_embeds=fed[None],
            position_ids=positions,
            attention_mask=torch.ones_like(positions),
        ).last_hidden_state[0, -1]
    expected = after_phrase(lm, dynamic[None], static[None]).measured
    torch.testing.assert_close(measured, expected, rtol=1e-3, atol=1e-5)
