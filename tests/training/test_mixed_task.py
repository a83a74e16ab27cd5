"""The regimes `full` and `lora`: the same numbers as decoding, any number of processes, resume."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from tiny_world import make_world, write_config
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoModel, GPT2Config

from conftest import MAKERS, TEXT, data_directory, make_llama, make_tokenizer, stir
from univerb.config import EncoderConfig
from univerb.documents.read import read_documents
from univerb.errors import OptionError
from univerb.modeling.adapter import load_adapter
from univerb.modeling.backbones import load_backbone
from univerb.modeling.card import read_card
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.encoder import PhraseEncoder
from univerb.modeling.encoder_plan import plan
from univerb.modeling.heads import SplitHeads
from univerb.phrase import Document, Phrase
from univerb.tokenizer import Tokenizer
from univerb.training import task_factory
from univerb.training.batch_loader import BatchLoader
from univerb.training.config import TrainingConfig, read_config
from univerb.training.mixed_batch import Pool
from univerb.training.mixed_task import MixedTask
from univerb.training.negatives import GreedyContinuations
from univerb.training.pool_encoding import encode_pool, pool_bias
from univerb.training.processes import Processes
from univerb.training.training_passages import Passages
from univerb.vocabulary import DynamicVocabulary

DOCUMENTS = [
    Document(TEXT, "lease.txt"),
    Document("The landlord shall pay the rent of the premises on the first day. " * 4, "b.txt"),
    Document("Each month the tenant shall have good repair at least thirty days.", "c.txt"),
]
ALL = ["in-batch", "pre-batch", "prefixes", "self-retrieval", "generation"]
ONE = Processes.single("cpu")


def settings(**sections):
    """A small run: passages of 48 tokens, three at a time."""
    given = {
        "regime": "full",
        "data": {"documents": ["x"], "block": 48, "passages": 5},
        "samples": {"gap": [2, 5]},
        "negatives": {"kinds": ALL},
        "losses": {"chunk": 16},
        "run": {"steps": 20, "batch": 3},
    }
    for name, values in sections.items():
        given[name] = {**given.get(name, {}), **values} if isinstance(values, dict) else values
    return TrainingConfig.model_validate(given)


def tiny_lm(name="llama", encoder=None):
    return DynamicLM.wrap(MAKERS[name](), make_tokenizer(), encoder)


def make_task(lm=None, processes=ONE, validation=(), **sections) -> MixedTask:
    return MixedTask(settings(**sections), processes, lm or tiny_lm(), DOCUMENTS, validation)


def test_passages_have_the_papers_phrases():
    text = make_task(validation=DOCUMENTS)
    for passages in (text._passages, text._validation):
        assert passages.tokens(0, 0).is_content.all()


def trainable(task):
    return {
        f"{part}.{name}": parameter
        for part, module in task.modules.items()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def steps(task, count, first=0, rate=2e-3):
    """Train as plainly as can be, and return the losses."""
    optimiser = torch.optim.AdamW(trainable(task).values(), lr=rate, weight_decay=0.0)
    losses = []
    for index in range(first, first + count):
        loss = task.loss(index)
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
        losses.append(float(loss.total.detach()))
    return losses


def foreign_lm(heads="split"):
    """An encoder that reads text through a tokenizer of its own."""
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    rust.train_from_iterator(["landlord premises enjoyment"], trainer)
    torch.manual_seed(5)
    config = GPT2Config(vocab_size=270, n_positions=128, n_embd=16, n_layer=2, n_head=2)
    model = make_llama()
    embeddings = DynamicLM.wrap(model, make_tokenizer()).embeddings
    encoder = PhraseEncoder.from_model(
        AutoModel.from_config(config), Tokenizer(rust), embeddings, EncoderConfig(heads=heads)
    )
    return DynamicLM.wrap(model, make_tokenizer(), encoder)


LMS = {
    "gpt2-split": lambda: stir(tiny_lm("gpt2")),
    "gpt2-tied": lambda: tiny_lm("gpt2", EncoderConfig(heads="tied")),
    "llama-split": lambda: stir(tiny_lm("llama")),
    "llama-tied": lambda: tiny_lm("llama", EncoderConfig(heads="tied")),
    "corrected": lambda: stir(tiny_lm("llama", EncoderConfig(count_correction=True))),
    "foreign-split": lambda: stir(foreign_lm()),
    "foreign-tied": lambda: foreign_lm("tied"),
}


@pytest.mark.parametrize("kind", LMS)
@torch.no_grad()
def test_training_scores_as_decoding_does(kind):
    """L_p from the logits of DynamicLM.forward, whose phrases are encoded one call later."""
    lm = LMS[kind]()
    config = settings(negatives={"kinds": ["in-batch", "prefixes", "self-retrieval"]})
    task = MixedTask(config, ONE, lm, DOCUMENTS)
    passages = Passages(DOCUMENTS, lm.tokenizer, 48)
    batch = BatchLoader(config, lm, DOCUMENTS, None).load(passages, range(3))
    sums, vectors = task._loss_sums(batch)
    phrases = [Phrase(key, lm.tokenizer.decode(key)) for key in batch.pool.keys]
    vocabulary = DynamicVocabulary(lm.static_size, phrases)
    assert len(phrases) > 20
    view = lm.tensors(vocabulary)
    torch.testing.assert_close(vectors.inputs, view.inputs, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(vectors.outputs, view.outputs, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(pool_bias(lm, batch.pool.keys), view.bias)
    total = 0.0
    for units, mask in zip(batch.unit_ids, batch.unit_mask, strict=True):
        logits = lm.forward(units[mask][None], vocabulary)[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, units[mask][1:], reduction="sum")
    torch.testing.assert_close(sums["phrase"].total, total, rtol=1e-4, atol=1e-3)
    assert sums["phrase"].phrases > 5


@pytest.mark.parametrize(
    ("regime", "kind"),
    [("full", "gpt2-split"), ("full", "foreign-split"), ("lora", "llama-tied")],
)
def test_twenty_steps_reduce_the_loss(regime, kind):
    task = make_task(LMS[kind](), regime=regime)
    before = trainable(task)
    before = {name: parameter.detach().clone() for name, parameter in before.items()}
    losses = steps(task, 20)
    assert sum(losses[-4:]) < 0.85 * sum(losses[:4])
    moved = {name.split(".")[0] for name, p in trainable(task).items() if not p.equal(before[name])}
    assert moved == {"lm", "encoder"}


class Half(Processes):
    """One of two ranks that are threads of one process: gradients flow between them as they are."""

    def __init__(self, rank, parts, wait):
        super().__init__(rank, 2, torch.device("cpu"))
        self._parts, self._wait = parts, wait

    def _exchange(self, value):
        self._parts[self.rank] = value
        self._wait.wait(20)
        both = list(self._parts)
        self._wait.wait(20)
        return both

    def gather(self, rows):
        return torch.cat(self._exchange(rows))

    def all_reduce(self, values):
        one, other = self._exchange(dict(values))
        return {name: one[name] + other[name] for name in one}


def halves(work):
    """Do a work on both ranks at the same time."""
    parts, wait = [None, None], threading.Barrier(2)

    def one(rank):
        try:
            return work(Half(rank, parts, wait))
        except BaseException:
            wait.abort()
            raise

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("kind", ["llama-split", "corrected", "foreign-split"])
def test_two_shares_are_the_whole(kind, batch):
    lm = LMS[kind]()
    # No dropout, which is drawn for each process.
    for module in lm.encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    options = {"negatives": {"kinds": ALL, "mask_true": True}, "run": {"steps": 9, "batch": batch}}
    alone = make_task(lm, validation=DOCUMENTS, **options)
    ranks = [make_task(lm, rank, validation=DOCUMENTS, **options) for rank in halves(lambda r: r)]
    for index in range(3):
        whole = alone.loss(index)
        parts = halves(lambda rank, index=index: _loss(ranks[rank.rank], rank, index))
        torch.testing.assert_close(sum(part.total for part in parts), whole.total)
        assert sum(part.rows for part in parts) == whole.rows
        for name, value in whole.terms.items():
            assert sum(p.terms[name] for p in parts) == pytest.approx(value, rel=1e-4, abs=1e-6)
        leaves = list(trainable(alone).values())
        expected = torch.autograd.grad(whole.total, leaves, allow_unused=True)
        found = torch.autograd.grad(sum(p.total for p in parts), leaves, allow_unused=True)
        for a, b in zip(found, expected, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)
    reports = halves(lambda rank: _validate(ranks[rank.rank], rank))
    assert reports[0] == reports[1] == pytest.approx(alone.validate(), rel=1e-4)


def _loss(task, rank, index):
    task._processes = rank
    return task.loss(index)


def _validate(task, rank):
    task._processes = rank
    return task.validate()


def test_a_process_without_rows_takes_part():
    """One row for two processes: the second encodes nothing that counts, but can be waited for."""
    lm = stir(tiny_lm())
    config = settings(negatives={"kinds": ["in-batch"]})
    passages = Passages(DOCUMENTS, lm.tokenizer, 48)
    batch = BatchLoader(config, lm, DOCUMENTS, None).load(passages, range(1))
    key = batch.pool.keys[0]
    pool = Pool(plan([key]), [key], 1)
    alone = encode_pool(lm, pool, ONE)
    for vectors in halves(lambda rank: encode_pool(lm, pool, rank)):
        torch.testing.assert_close(vectors.outputs, alone.outputs)
        assert vectors.outputs.requires_grad


@pytest.mark.parametrize("kind", ["llama-split", "corrected"])
def test_no_phrases_is_the_plain_lm(kind):
    """Nothing to contrast, nothing to keep close."""
    for support, chunk in (("V", 1), ("V+P", 99)):
        losses = {"support": support, "chunk": chunk}
        task = make_task(LMS[kind](), samples={"gap": [60, 60]}, losses=losses)
        terms = task.loss(0).terms
        assert terms["phrase"] == pytest.approx(terms["token"], rel=1e-5)
        assert terms["kl"] == pytest.approx(0.0, abs=1e-5)
        assert terms["phrase_accuracy"] == terms["over_firing"] == 0.0


@pytest.mark.parametrize("hidden", [torch.empty(0, 8), torch.zeros(5, 8)])
def test_heads_that_see_nothing_stay_as_they_are(hidden):
    """The first batch of a run may have no phrase."""
    heads = SplitHeads(8, 4, -3.0)
    heads.fit(hidden, torch.randn(9, 4), torch.zeros(3, 4))
    assert heads.fed == 1
    assert torch.equal(heads.read, torch.eye(8)) and heads.scored.isfinite().all()


def test_every_loss_reaches_the_encoder():
    for name, other in (("phrase", "kl"), ("kl", "phrase")):
        task = make_task(stir(tiny_lm()), losses={name: 1.0, other: 0.0, "token": 0.0})
        loss = task.loss(0)
        assert set(loss.terms) - {"phrase_accuracy", "over_firing"} == {name}
        loss.total.backward()
        heads = task.modules["encoder"].heads
        assert heads.input.weight.grad.any()
        # L_kl over V does not see the output side.
        assert (heads.output.weight.grad.any() > 0) == (name == "phrase")


def test_a_task_resumes_from_its_state():
    def fresh():
        return make_task(stir(tiny_lm("gpt2")), negatives={"kinds": ALL, "depth": 2})

    task, other = fresh(), fresh()
    assert task.state_dict()["pre_batch.sizes"].tolist() == []
    for index in range(3):
        task.loss(index)
    other.load_state_dict({name: tensor.clone() for name, tensor in task.state_dict().items()})
    assert torch.equal(task.loss(3).total, other.loss(3).total)
    forgotten = fresh()
    assert not torch.equal(forgotten.loss(3).total, task.loss(3).total)
    without = make_task(negatives={"kinds": ["in-batch"]}).state_dict()
    assert without.keys() == {"fed", "read", "scored"}


def test_earlier_phrases_only_add_to_the_softmax():
    with_earlier = make_task(stir(tiny_lm()), negatives={"kinds": ["in-batch", "pre-batch"]})
    without = make_task(stir(tiny_lm()), negatives={"kinds": ["in-batch"]})
    assert with_earlier.loss(0).terms == without.loss(0).terms
    assert with_earlier.loss(1).terms["phrase"] > without.loss(1).terms["phrase"]


def test_lora_trains_the_adapter_and_the_encoder_only():
    lm, bare = tiny_lm(), make_llama()
    task = make_task(lm, regime="lora", losses={"teacher": "bare"})
    names = trainable(task)
    assert {name.split(".")[0] for name in names} == {"lm", "encoder"}
    assert all("lora_" in name for name in names if name.startswith("lm."))
    # A fresh adapter does nothing: the bare LM is the LM.
    fresh = make_task(regime="lora", lora={"dropout": 0.0}).loss(0).terms["kl"]
    same = make_task(regime="lora", lora={"dropout": 0.0}, losses={"teacher": "bare"})
    assert same.loss(0).terms["kl"] == pytest.approx(fresh, rel=1e-5)
    steps(task, 5)
    ids = torch.arange(1, 20)[None]
    lm.model.eval()
    assert not torch.allclose(lm.model(ids).logits, bare(ids).logits, atol=1e-2)
    with torch.no_grad():
        states, output = task._read_original(ids)
        assert torch.equal(output(states), bare(ids).logits)
    for name, tensor in bare.state_dict().items():
        mine = dict(lm.model.named_parameters()) | dict(lm.model.named_buffers())
        inner = name if name in mine else name.replace(".weight", ".base_layer.weight")
        assert torch.equal(mine[inner], tensor)


def test_the_teacher_of_full_is_the_lm_before_training():
    task = make_task(losses={"teacher": "bare"})
    steps(task, 3)
    ids = torch.arange(1, 20)[None]
    states, output = task._read_original(ids)
    assert torch.equal(output(states), make_llama()(ids).logits)


def test_validation_is_the_same_each_time_and_leaves_no_trace():
    task = make_task(stir(tiny_lm("gpt2")), validation=DOCUMENTS[:2])
    task.loss(0)
    memory = task.state_dict()
    report = task.validate()
    assert report == task.validate()
    assert report["score"] == report["phrase"] > 0
    assert {"token", "kl", "phrase_accuracy", "over_firing"} < report.keys()
    for name, tensor in task.state_dict().items():
        assert torch.equal(tensor, memory[name])
    assert make_task().validate() == {}


def test_full_exports_a_pair_that_loads(tmp_path):
    lm = tiny_lm()
    task = make_task(lm)
    steps(task, 3)
    task.export(tmp_path / "run", 3)
    loaded = DynamicLM.from_pretrained(str(tmp_path / "run"))
    assert loaded.encoder.config.trained_steps == 3
    assert lm.encoder.config.trained_steps == 0
    assert loaded.profile.mode == "atomic"
    lm.model.eval(), lm.encoder.eval()
    assert_same_logits(loaded, lm)


@pytest.mark.parametrize(
    ("source", "run", "name"),
    [
        ("org/gpt2", "wiki", "gpt2-wiki"),
        ("gpt2", "gpt2-wikitext103", "gpt2-wikitext103"),
        ("here/my model", "x", "my model-x"),
        ("", "x", "llama-x"),
    ],
)
def test_a_trained_lm_has_a_name_of_its_own_and_says_what_it_was(tmp_path, source, run, name):
    lm = tiny_lm()
    lm.model.name_or_path = source
    folder = tmp_path / run / "encoder"
    make_task(lm).export(folder, 3)
    card = read_card(folder).backbone
    assert (card.name, card.trained_from) == (name, source or "llama")
    loaded = DynamicLM.from_pretrained(str(folder))
    assert Path(loaded.model.name_or_path) == folder.resolve() / name
    assert repr(loaded) == f"DynamicLM({name!r}, trained from {source or 'llama'!r})"
    # It is not lost when the pair is saved again, and not claimed of another backbone.
    loaded.save_pretrained(tmp_path / "again")
    assert read_card(tmp_path / "again").backbone.trained_from == card.trained_from
    other = DynamicLM.from_pretrained(str(folder), backbone=loaded.model.name_or_path)
    assert other.trained_from is None
    assert repr(other) == f"DynamicLM({name!r})"


def test_lora_exports_an_encoder_and_an_adapter(tmp_path):
    lm = tiny_lm("gpt2")
    lm.model.save_pretrained(tmp_path / "bare")
    lm.hf_tokenizer.save_pretrained(tmp_path / "bare")
    lm.model.name_or_path = str(tmp_path / "bare")
    task = make_task(lm, regime="lora")
    steps(task, 3)
    task.export(tmp_path / "run", 3)
    loaded = DynamicLM.from_pretrained(str(tmp_path / "run"))
    lm.model.eval(), lm.encoder.eval()
    ids = torch.arange(1, 9)[None]
    assert not torch.allclose(loaded.forward(ids), lm.forward(ids), atol=1e-3)
    load_adapter(loaded.model, tmp_path / "run" / "adapter")
    assert_same_logits(loaded, lm)


@torch.no_grad()
def assert_same_logits(one, other):
    results = []
    for lm in (one, other):
        vocabulary = lm.vocabulary([" the tenant shall", " quiet enjoyment"])
        results.append(lm.forward(torch.tensor([[5, 6, lm.static_size, 7]]), vocabulary))
    torch.testing.assert_close(*results, atol=2e-3, rtol=1e-3)


def written_phrases(monkeypatch, tmp_path, **sections) -> tuple[list, list]:
    """Make the task of a run on disk; returns its models' names and the generated negatives."""
    world = make_world(tmp_path)
    monkeypatch.chdir(world)
    kinds = ["in-batch", "generation"]
    write_config(world, "run", regime="lora", negatives={"kinds": kinds}, **sections)
    task = task_factory.make_task(read_config(world / "run.yaml"), ONE)
    batch = task._loader.load(task._passages, range(4))
    golds = batch.pool.keys[: batch.pool.golds]
    return golds, batch.pool.keys[batch.pool.golds :]


def continued(model, ids, count):
    """Continue ids greedily, as plainly as can be."""
    for _ in range(count):
        ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
    return ids


@torch.no_grad()
def test_generated_negatives_are_those_of_the_model_that_the_encoder_began_as(
    monkeypatch, tmp_path
):
    """GPT-2 in the paper, also where the LM is TinyLlama: through the text of the phrase."""
    golds, extensions = written_phrases(monkeypatch, tmp_path, encoder_from="foreign")
    foreign, hf = load_backbone("foreign")
    other, own = Tokenizer(hf.backend_tokenizer), tiny_lm().tokenizer
    allowed = set()
    for gold, text in zip(golds, own.decode_all(golds), strict=True):
        prompt = other.encode(text).ids
        written = continued(foreign, prompt, 2)[len(prompt) :]
        # At most as many of the LM's tokens, from the first ones of the other LM.
        whole = [own.encode(text + other.decode(written[:size])).ids for size in (1, 2)]
        allowed |= {tuple(ids[: len(gold) + n]) for ids in whole for n in (1, 2)}
    assert extensions and set(extensions) <= allowed
    assert len({key[:-1] for key in extensions} & set(golds)) > 3


@torch.no_grad()
def test_generated_negatives_of_a_model_with_the_lms_tokenizer_are_its_own_ids(
    monkeypatch, tmp_path
):
    golds, extensions = written_phrases(monkeypatch, tmp_path, encoder_from="gpt2")
    gpt2, _ = load_backbone("gpt2")
    expected = {tuple(continued(gpt2, gold, n)) for gold in golds for n in (1, 2)}
    assert extensions and set(extensions) <= expected


@pytest.mark.parametrize("regime", ["full", "lora"])
@pytest.mark.parametrize("kind", ["llama-split", "gpt2-tied", "corrected", "foreign-tied"])
def test_every_tensor_of_a_loss_is_made_on_the_models_device(kind, regime):
    """Tensors without a device are made on one that has no data, and would spoil the loss."""
    options = {"negatives": {"kinds": ALL, "mask_true": True}, "losses": {"teacher": "bare"}}
    totals = []
    for default in ("cpu", "meta"):
        task = make_task(LMS[kind](), validation=DOCUMENTS, regime=regime, **options)
        # Batches are made on the CPU, whatever the model's device.
        batches = [task._loader.load(task._passages, range(3 * i, 3 * i + 3)) for i in range(2)]
        task._loader = SimpleNamespace(load=lambda _, rows, b=batches: b[rows.start // 3 % 2])
        with torch.device(default):
            for index in range(2):
                torch.manual_seed(index)
                loss = task.loss(index).total
                loss.backward()
                totals.append(float(loss))
            totals.append(task.validate()["score"])
    assert totals[:3] == totals[3:]


def test_generated_negatives_are_written_on_the_models_device():
    model, keys = make_llama(), [(5, 6), (7, 8, 9)]
    expected = GreedyContinuations(model, 2).continuations(keys)
    with torch.device("meta"):
        assert GreedyContinuations(model, 2).continuations(keys) == expected


def test_models_are_loaded_on_the_device_of_the_process(monkeypatch, tmp_path):
    world = make_world(tmp_path)
    monkeypatch.chdir(world)
    devices = []

    def noted(name, *, device):
        devices.append(device)
        return load_backbone(name)

    monkeypatch.setattr(task_factory, "load_backbone", noted)
    name = write_config(world, "run", regime="full", encoder_from="foreign")
    processes = Processes(0, 1, torch.device("cuda", 1))
    with pytest.raises((AssertionError, RuntimeError), match="CUDA|NVIDIA|cuda"):
        task_factory.make_task(read_config(world / name), processes)
    assert devices == ["cuda:1", "cuda:1"]


@pytest.mark.parametrize("kind", ["llama-split", "gpt2-tied"])
def test_half_precision_is_close_to_single(kind):
    """Autocast as the trainer does it: logits and losses are in single precision."""
    plain, half = (make_task(LMS[kind]()) for _ in range(2))
    for task in (plain, half):
        for module in task.modules.values():
            module.eval()
    expected = plain.loss(0).total
    with torch.autocast("cpu", torch.bfloat16):
        loss = half.loss(0).total
    loss.backward()
    assert loss.dtype == torch.float32 and loss.isfinite()
    assert float(loss) == pytest.approx(float(expected), rel=0.05)
    grads = [p.grad for p in trainable(half).values() if p.grad is not None]
    assert grads and all(grad.isfinite().all() for grad in grads)


def test_settings_that_cannot_work():
    many = Processes(0, 4, torch.device("cpu"))
    with pytest.raises(OptionError, match="4 processes"):
        make_task(processes=many)


def test_corpus_retrieval_and_fmm():
    task = make_task(
        samples={"kind": "fmm", "min_count": 2, "gap": [1, 3]},
        negatives={"kinds": ["in-batch", "corpus-retrieval"]},
    )
    loss = task.loss(0)
    loss.total.backward()
    assert loss.rows > 20


@pytest.mark.default_model
@torch.no_grad()
def test_an_untrained_encoder_adds_little_to_the_loss(default_lm):
    """At most 0.1 nats at token rows, at the pool sizes of the paper and of a large batch."""
    documents = read_documents(data_directory() / "wiki" / "valid.jsonl.gz")[:60]
    kinds = ["in-batch", "prefixes", "self-retrieval"]
    run = settings(data={"block": 256}, samples={"gap": [5, 12]}, negatives={"kinds": kinds})
    loader = BatchLoader(run, default_lm, documents, None)
    passages = Passages(documents, default_lm.tokenizer, 256)
    batch = loader.load(passages, range(1))
    hidden = default_lm.model.base_model(input_ids=batch.token_ids).last_hidden_state[0]
    is_token = batch.unit_ids[0, 1:] < default_lm.static_size
    rows = hidden[batch.sigma[0, :-1][is_token]]
    total = default_lm.embeddings.output(rows).logsumexp(-1)
    for count, size in ((6, 450), (38, 2700)):
        pool = loader.load(passages, range(count)).pool
        assert size < len(pool.keys) < 1.3 * size
        for corrected, bias in ((True, -3.0), (False, -6.0)):
            config = EncoderConfig(count_correction=corrected, bias=bias)
            lm = DynamicLM.wrap(default_lm.model, default_lm.hf_tokenizer, config)
            vectors = encode_pool(lm, pool, ONE)
            phrases = (rows @ vectors.outputs.T + pool_bias(lm, pool.keys)).logsumexp(-1)
            assert float(torch.nn.functional.softplus(phrases - total).mean()) <= 0.1
