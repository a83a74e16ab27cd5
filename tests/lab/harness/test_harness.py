"""`univerb` in lm-evaluation-harness: against its own `hf` model, and against enumeration."""

import functools
import json
import math
import sys
from dataclasses import replace

import datasets
import lm_eval.tasks
import pytest
import torch
from lm_eval import evaluator, simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers.processors import TemplateProcessing

from conftest import (
    EOS,
    TEXT,
    make_circling,
    make_conditional,
    make_gpt2,
    make_llama,
    make_tokenizer,
    stir,
)
from univerb.applications.corpus_profile import CorpusProfile, write_profile
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.decoding.loop import generate
from univerb.errors import (
    DocumentError,
    MissingExtra,
    ModelError,
    OptionError,
    PhraseError,
    PromptError,
)
from univerb.lab.harness import scoring as harness_scoring
from univerb.lab.harness.generation_kwargs import generation_options
from univerb.lab.harness.model import UniverbLM
from univerb.lab.harness.request_phrases import PhraseSources, read_sources
from univerb.lab.harness.tasks import find_tasks, results_table, run_tasks
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document, Phrase
from univerb.vocabulary import DynamicVocabulary

LEASE = Document(TEXT, "lease.txt")
CONTEXT = "The tenant shall pay"
PAIRS = [
    (CONTEXT, " the rent on the first day"),
    (CONTEXT, " the landlord"),
    (CONTEXT, " nothing"),
    # Trailing spaces are moved over; an empty context stands behind an end token.
    ("The landlord shall give ", "the tenant notice"),
    ("", "The premises."),
    # More than the LM sees: the context is cut from the left.
    (TEXT * 8, " The tenant shall pay the rent."),
    ("Où l'été", " naît ☃"),
]
PHRASES = [" the rent", " the rent on", (" rent on", 0.7), " on the first", " the first day of"]
BIAS = 2.5


def requests(kind, *args):
    return [Instance(kind, {}, own, 0) for own in args]


def near(expected):
    """The same log-probabilities but for the last bits, and the same words on greediness."""
    return [(pytest.approx(logprob, abs=1e-4), is_greedy) for logprob, is_greedy in expected]


def scored(model, *pairs):
    return model.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)


def scored_ids(model, context, *continuations):
    asked = [((CONTEXT, ""), list(context), list(ids)) for ids in continuations]
    return model._loglikelihood_tokens(asked)


@pytest.fixture(params=[make_gpt2, make_llama], ids=["gpt2", "llama"])
def lm(request) -> DynamicLM:
    return stir(DynamicLM.wrap(request.param(), make_tokenizer()))


@pytest.fixture
def llama() -> DynamicLM:
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


@pytest.fixture
def ids(lm):
    return functools.partial(_ids, lm)


def _ids(lm, text):
    return lm.tokenizer.encode(text).ids


class TestWithoutPhrases:
    """The harness's own model of the same backbone is the reference."""

    @pytest.fixture
    def bare(self, lm):
        return UniverbLM(lm)

    @pytest.fixture
    def theirs(self, lm):
        return HFLM(pretrained=lm.model, tokenizer=lm.hf_tokenizer, device="cpu", batch_size=2)

    def test_likelihoods_are_theirs(self, bare, theirs):
        assert scored(bare, *PAIRS) == near(scored(theirs, *PAIRS))

    def test_greedy_texts_are_theirs(self, lm, ids, bare, theirs):
        pieces = generate(lm, CONTEXT, max_tokens=6, ignore_eos=True).pieces
        written = [token for piece in pieces for token in piece.ids]
        wrong = [*written[:-1], written[-1] - 1]
        asked = [((CONTEXT, ""), ids(CONTEXT), own) for own in (written, wrong, written[:1])]
        found = bare._loglikelihood_tokens(asked)
        assert found == near(theirs._loglikelihood_tokens(asked, disable_tqdm=True))
        assert [is_greedy for _, is_greedy in found] == [True, False, True]

    def test_a_beginning_token_is_added_once_as_theirs_is(self):
        tokenizer = make_tokenizer()
        tokenizer.bos_token = EOS
        begin = TemplateProcessing(single=f"{EOS} $A", special_tokens=[(EOS, 0)])
        tokenizer.backend_tokenizer.post_processor = begin
        lm = DynamicLM.wrap(make_gpt2(), tokenizer)
        bare = UniverbLM(lm)
        theirs = HFLM(pretrained=lm.model, tokenizer=tokenizer, device="cpu")
        pairs = [*PAIRS, (EOS + CONTEXT, " the rent")]
        assert bare.tok_encode(CONTEXT) == bare.tok_encode(EOS + CONTEXT)
        assert scored(bare, *pairs) == near(scored(theirs, *pairs))
        asked = requests("loglikelihood_rolling", (TEXT,))
        [one] = bare.loglikelihood_rolling(asked)
        assert one == pytest.approx(theirs.loglikelihood_rolling(asked, True)[0], abs=1e-3)

    def test_documents_that_give_no_phrase_change_nothing(self, lm, bare):
        none = UniverbLM(lm, PhraseSources([Document("the", "one token")]))
        assert scored(none, *PAIRS) == scored(bare, *PAIRS)

    @pytest.mark.parametrize("text", ["", "The tenant", TEXT, TEXT * 9])
    def test_rolling_is_theirs(self, bare, theirs, text):
        asked = requests("loglikelihood_rolling", (text,))
        [one] = bare.loglikelihood_rolling(asked)
        [other] = theirs.loglikelihood_rolling(asked, disable_tqdm=True)
        assert one == pytest.approx(other, abs=1e-3) and (one < 0) == bool(text)

    def test_rolling_in_shorter_windows_is_theirs(self, lm):
        bare = UniverbLM(lm)
        bare.max_length = 16
        theirs = HFLM(pretrained=lm.model, tokenizer=lm.hf_tokenizer, device="cpu", max_length=16)
        asked = requests("loglikelihood_rolling", (TEXT,))
        [one] = bare.loglikelihood_rolling(asked)
        assert one == pytest.approx(theirs.loglikelihood_rolling(asked, True)[0], abs=1e-3)
        assert one != pytest.approx(UniverbLM(lm).loglikelihood_rolling(asked)[0], abs=1e-2)

    def test_texts_are_theirs(self, bare, theirs):
        given = {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False}
        asked = requests("generate_until", *((context, given) for context, _ in PAIRS if context))
        ours = bare.generate_until(asked)
        # Theirs leaves special tokens out of the text, ours never writes an end token.
        assert ours == theirs.generate_until(asked, disable_tqdm=True)
        stop = ours[0][2:5]
        [cut] = bare.generate_until(
            requests("generate_until", (CONTEXT, {"until": stop, "max_gen_toks": 12}))
        )
        assert cut == ours[0].split(stop)[0]

    def test_one_context_is_read_in_one_way_or_another(self, lm, bare, monkeypatch):
        pairs = [(CONTEXT, f" the rent of {n} months") for n in range(5)]
        together = scored(bare, *pairs)
        monkeypatch.setattr(harness_scoring, "_MAX_PASS", 8)
        monkeypatch.setattr(harness_scoring, "_MAX_LOGITS", 1000)
        in_parts = scored(bare, *pairs)
        alone = [scored(bare, pair)[0] for pair in pairs]
        monkeypatch.setattr(lm, "has_window", True)
        one_by_one = scored(bare, *pairs)
        for other in (in_parts, alone, one_by_one):
            assert other == near(together)

    def test_chat_prompts_are_the_templates(self, lm, bare):
        turns = [{"role": "user", "content": "Hello"}]
        with pytest.raises(PromptError, match="no chat template"):
            bare.apply_chat_template(turns)
        lm.hf_tokenizer.chat_template = (
            "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}"
        )
        assert bare.apply_chat_template(turns) == "[user]Hello[assistant]"
        opened = [*turns, {"role": "assistant", "content": "I"}]
        assert bare.apply_chat_template(opened, False) == "[user]Hello[assistant]I"
        assert bare.chat_template(True) == lm.hf_tokenizer.chat_template


class Slow:
    """The probability of one unit after a text, by a pass of its own."""

    def __init__(self, lm, phrases, bias):
        self.lm, self.bias = lm, bias
        self.phrases = list(phrases)
        self.row = functools.cache(self._row)

    @torch.no_grad()
    def _row(self, text):
        if self.lm.scoring.is_conditional:
            biased = [replace(phrase, weight=phrase.weight + self.bias) for phrase in self.phrases]
            vocabulary = DynamicVocabulary(self.lm.static_size, biased)
            return self.lm.forward(torch.tensor([text]), vocabulary)[0, -1].double()
        read = self.lm.model(input_ids=torch.tensor([text]), output_hidden_states=True)
        vectors = torch.from_numpy(self.lm.vectors(self.phrases).outputs)
        scores = vectors @ read.hidden_states[-1][0, -1] + self.lm.head_bias() + self.bias
        scores += torch.tensor([phrase.weight for phrase in self.phrases])
        return torch.cat([read.logits[0, -1], scores]).double()

    def mass(self, text, left):
        """The probability that the text goes on with what is left, over all ways."""
        if not left:
            return 1.0
        shares = self.row(tuple(text)).softmax(0)
        size = self.lm.static_size
        units = [(int(left[0]), tuple(left[:1]))]
        units += [(size + n, phrase.ids) for n, phrase in enumerate(self.phrases)]
        return sum(
            float(shares[unit]) * self.mass([*text, *key[: len(left)]], left[len(key) :])
            for unit, key in units
            if tuple(left[: len(key)]) == key[: len(left)]
        )


class TestWithPhrases:
    @pytest.fixture
    def model(self, lm):
        return UniverbLM(lm, PhraseSources(PHRASES), phrase_bias=BIAS)

    @pytest.fixture
    def writer(self, lm):
        """An LM that writes phrases."""
        return lm

    @pytest.mark.parametrize("text", [" the rent", " the rent on the first day", " the landlord"])
    def test_the_likelihood_is_the_sum_over_all_ways_to_write(self, lm, ids, model, text):
        slow = Slow(lm, lm.vocabulary(PHRASES), BIAS)
        [(found, _)] = scored(model, (CONTEXT, text))
        assert found == pytest.approx(math.log(slow.mass(ids(CONTEXT), ids(text))), abs=1e-4)
        assert found != pytest.approx(scored(UniverbLM(lm), (CONTEXT, text))[0][0], abs=1e-2)

    def test_continuations_together_are_those_alone(self, model):
        alone = [scored(model, pair)[0] for pair in PAIRS]
        assert scored(model, *PAIRS) == near(alone)

    def test_what_can_follow_adds_up_to_what_is_there(self, lm, ids, model):
        context, begun = ids(CONTEXT), ids(" the rent on")
        every = [[*begun, token] for token in range(lm.static_size)]
        mass = sum(math.exp(own) for own, _ in scored_ids(model, context, *every))
        [(whole, _)] = scored_ids(model, context, begun)
        assert mass == pytest.approx(math.exp(whole), rel=1e-4)
        first = scored_ids(model, context, *([token] for token in range(lm.static_size)))
        assert sum(math.exp(own) for own, _ in first) == pytest.approx(1.0, abs=1e-4)

    def test_the_empty_continuation_is_certain(self, model, ids):
        assert scored_ids(model, ids(CONTEXT), [], ids(" the"))[0] == (0.0, True)

    @pytest.mark.parametrize("bias", [-1000.0, 0.0, 3.0, 6.0, 12.0])
    def test_greedy_is_what_the_decode_loop_writes(self, writer, ids, bias):
        model = UniverbLM(writer, PhraseSources([LEASE]), phrase_bias=bias)
        context = ids(CONTEXT)
        with_phrases = generate(
            writer,
            context,
            writer.vocabulary([LEASE]),
            mode="unfold",
            tolerance=1.0,
            exact=True,
            phrase_bias=bias,
            max_tokens=12,
            overshoot="allow",
            dtype="float32",
            ignore_eos=True,
            drafts=False,
        )
        written = [token for piece in with_phrases.pieces for token in piece.ids]
        assert any(piece.is_phrase for piece in with_phrases.pieces) == (bias > -1000.0)
        sizes = range(1, len(written) + 1)
        found = scored_ids(model, context, *(written[:size] for size in sizes))
        # A beginning is written, too, when it ends inside a phrase.
        assert [is_greedy for _, is_greedy in found] == [True] * len(found)
        others = [[*written[: n - 1], (written[n - 1] + 1) % writer.static_size] for n in sizes]
        assert not any(is_greedy for _, is_greedy in scored_ids(model, context, *others))

    def test_phrases_that_decoding_bars_have_no_share(self, lm):
        [end] = lm.eos_ids
        token = lm.tokenizer.encode(" rent").ids[0]

        barred = Phrase((token, end), " rent<|endoftext|>")
        phrases = [*lm.vocabulary([" the rent"]), barred]
        without = UniverbLM(lm, PhraseSources(phrases[:1]), phrase_bias=BIAS)
        both = UniverbLM(lm, PhraseSources(phrases), phrase_bias=BIAS)
        assert scored(both, *PAIRS) == near(scored(without, *PAIRS))
        only = UniverbLM(lm, PhraseSources([barred]), phrase_bias=BIAS)
        assert scored(only, *PAIRS) == near(scored(UniverbLM(lm), *PAIRS))

    def test_texts_are_what_generate_writes(self, lm, model):
        given = {"until": ["."], "max_gen_toks": 16}
        [text] = model.generate_until(requests("generate_until", (CONTEXT, given)))
        own = generate(
            lm,
            CONTEXT,
            lm.vocabulary(PHRASES),
            stop=["."],
            max_tokens=16,
            phrase_bias=BIAS,
        )
        assert text == own.text

    def test_the_bias_is_the_profiles_unless_one_is_given(self, lm):
        sources = PhraseSources([LEASE])
        own = UniverbLM(lm, sources)
        assert own.phrase_bias == lm.profile.phrase_bias == 6.0
        same = UniverbLM(lm, sources, phrase_bias=6.0)
        assert scored(own, *PAIRS) == scored(same, *PAIRS)
        assert scored(own, PAIRS[0]) != scored(UniverbLM(lm, sources, phrase_bias=0.0), PAIRS[0])
        with pytest.raises(OptionError, match="phrase_bias"):
            UniverbLM(lm, phrase_bias=1e9)


class TestConditional(TestWithPhrases):
    """The same with an encoder of the conditional form."""

    @pytest.fixture
    def lm(self):
        return make_conditional()

    @pytest.fixture
    def writer(self):
        # Phrases go on from the LM's own token, so its tokens must be words of the lease.
        return make_conditional(make_circling())


class TestSources:
    def test_of_the_context_are_its_own_ngrams(self, llama):
        context = "The landlord shall give the tenant notice. The landlord shall"
        own = UniverbLM(llama, PhraseSources(uses_context=True))
        same = UniverbLM(llama, PhraseSources([Document(context)]))
        pair = (context, " give the tenant notice")
        assert scored(own, pair) == near(scored(same, pair))
        assert scored(own, pair)[0][0] != pytest.approx(scored(UniverbLM(llama), pair)[0][0])
        # Each request has its own: what another one's context says is not there.
        assert scored(own, PAIRS[0], pair)[1] == near(scored(own, pair))[0]
        assert scored(own, ("", "The premises.")) == scored(UniverbLM(llama), ("", "The premises."))

    def test_of_a_corpus_are_retrieved_by_the_context(self, llama, tmp_path):
        documents = [LEASE, Document("Cats sleep. Cats sleep all day, and cats sleep.", "cats")]
        corpus = build_corpus(tmp_path / "c.uv", documents, llama, CorpusSettings(min_count=2))
        model = UniverbLM(llama, PhraseSources(corpus=corpus, k=1))
        found = corpus.select(CONTEXT, llama.tokenizer, 1).phrases
        assert found
        same = UniverbLM(llama, PhraseSources(found))
        assert scored(model, PAIRS[0]) == near(scored(same, PAIRS[0]))
        bare = scored(UniverbLM(llama), ("", "The premises."))
        assert scored(model, ("", "The premises.")) == bare

    def test_the_bias_that_was_found_for_a_corpus_counts(self, llama, tmp_path):
        corpus = build_corpus(tmp_path / "c.uv", [LEASE], llama, CorpusSettings(min_count=2))
        profile = CorpusProfile(encoder=llama.fingerprint(), phrase_bias=1.5, tolerance=0.4)
        write_profile(corpus, profile)
        assert UniverbLM(llama, PhraseSources(corpus=corpus)).phrase_bias == 1.5
        assert UniverbLM(llama, PhraseSources(corpus=corpus), phrase_bias=2.0).phrase_bias == 2.0

    def test_a_later_window_has_the_phrases_of_the_text_before_it(self, llama):
        ids = llama.tokenizer.encode(TEXT).ids
        own, bare = UniverbLM(llama, PhraseSources(uses_context=True)), UniverbLM(llama)
        own.max_length = bare.max_length = 40
        asked = requests("loglikelihood_rolling", (TEXT,))
        first = requests("loglikelihood_rolling", (llama.tokenizer.decode(ids[:40]),))
        assert own.loglikelihood_rolling(first) == bare.loglikelihood_rolling(first)
        expected, before = 0.0, []
        for at in range(0, len(ids), 40):
            part = ids[at : at + 40]
            sources = PhraseSources([Document(llama.tokenizer.decode(before))] if before else [])
            model = UniverbLM(llama, sources)
            context = ids[max(at + len(part) - 41, 0) : at] or [model.prefix_token_id]
            expected += scored_ids(model, context, part)[0][0]
            before += part
        assert own.loglikelihood_rolling(asked)[0] == pytest.approx(expected, abs=1e-3)

    def test_that_are_not_there_are_named(self, tmp_path):
        with pytest.raises(DocumentError, match="nowhere"):
            read_sources([str(tmp_path / "nowhere.txt")])
        with pytest.raises(PhraseError, match="nowhere"):
            read_sources(phrases=str(tmp_path / "nowhere.txt"))

    def test_are_read_from_files(self, tmp_path):
        (tmp_path / "a.txt").write_text(TEXT)
        (tmp_path / "list.txt").write_text("the rent\n")
        found = read_sources([str(tmp_path / "a.txt")], phrases=str(tmp_path / "list.txt"))
        assert len(found.items) == 2 and not found.uses_context
        assert read_sources(phrases="context").uses_context


class TestOptions:
    def test_of_a_task(self):
        assert generation_options({"until": "\n"}) == {
            "stop": ["\n"],
            "max_tokens": 256,
            "temperature": 0.0,
        }
        given = {"until": ["a", ""], "do_sample": True, "top_p": 0.9, "max_new_tokens": 7}
        assert generation_options(given | {"num_beams": 1}) == {
            "stop": ["a"],
            "max_tokens": 7,
            "temperature": 1.0,
            "top_p": 0.9,
        }
        assert generation_options({"do_sample": False, "temperature": 0.7})["temperature"] == 0.0
        assert generation_options({"temperature": 0.7})["temperature"] == 0.7

    def test_that_nobody_can_do_are_refused(self, llama):
        with pytest.raises(OptionError, match="num_beams.*Allowed"):
            generation_options({"num_beams": 4})
        with pytest.raises(OptionError, match="512"):
            asked = requests("generate_until", (CONTEXT, {"max_gen_toks": 512}))
            UniverbLM(llama).generate_until(asked)
        short = UniverbLM(llama)
        short.max_length = 4
        with pytest.raises(PromptError, match="continuation"):
            scored(short, (CONTEXT, " the rent on the first day"))

    def test_a_tokenizer_without_an_end_is_refused(self, llama):
        llama.hf_tokenizer.eos_token = None
        with pytest.raises(ModelError, match="bos_token"):
            scored(UniverbLM(llama), PAIRS[0])

    def test_without_the_harness_say_what_to_install(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "univerb.lab.harness.model")
        monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
        monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
        with pytest.raises(MissingExtra, match=r"univerb\[harness\]"):
            import univerb.lab.harness.model  # noqa: F401
        with pytest.raises(MissingExtra, match=r"univerb\[harness\]"):
            find_tasks(["any"])


TASKS = {
    "lease_choice": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "lease_rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]
""",
    "lease_text": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: ["."], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}
ROWS = [
    {"question": "The tenant shall pay", "choices": ["the rent", "the landlord"], "label": 0},
    {"question": "The landlord shall give", "choices": ["the day", "the tenant"], "label": 1},
    {"question": "The premises in", "choices": ["good repair", "each month"], "label": 0},
]


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """A folder with tasks over local data."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = folder / "data.json"
    data.write_text("\n".join(map(json.dumps, ROWS)))
    for name, content in TASKS.items():
        where = f"{{data_files: {{test: {data}}}, cache_dir: {tmp_path / 'cache'}}}"
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {where}\ntest_split: test"
        (folder / f"{name}.yaml").write_text(head + content)
    # Without the harness's own tasks, which take half a minute to read.
    few = functools.partial(TaskManager, include_defaults=False)
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", few)
    # It lists the machine's packages, which takes seconds.
    monkeypatch.setattr(evaluator, "add_env_info", lambda _: None)
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    return folder


def figures(results):
    return {
        (task, name): value
        for task, own in results["results"].items()
        for name, value in own.items()
        if isinstance(value, float)
    }


class TestTasks:
    def test_without_phrases_score_as_with_their_own_model(self, llama, tasks):
        manager = find_tasks(list(TASKS), tasks)
        ours = run_tasks(UniverbLM(llama), list(TASKS), manager)
        theirs = simple_evaluate(
            HFLM(pretrained=llama.model, tokenizer=llama.hf_tokenizer, device="cpu"),
            tasks=list(TASKS),
            task_manager=manager,
        )
        assert figures(ours) == pytest.approx(figures(theirs), rel=1e-4)
        assert len(figures(ours)) >= 5
        table = results_table(ours)
        assert all(name in table for name in (*TASKS, "bits_per_byte", "acc_norm"))

    def test_with_phrases_score_otherwise(self, llama, tasks):
        manager = find_tasks(["lease_*"], tasks)
        bare = run_tasks(UniverbLM(llama), ["lease_*"], manager)
        told = []
        model = UniverbLM(llama, PhraseSources([LEASE]), on_progress=lambda *a: told.append(a))
        found = run_tasks(model, ["lease_*"], manager)
        rolling = ("lease_rolling", "bits_per_byte,none")
        assert figures(found)[rolling] != pytest.approx(figures(bare)[rolling], rel=1e-3)
        assert found["config"]["phrases"] == ["1 documents and phrases"]
        assert found["config"]["phrase_bias"] == 6.0
        nats = model.loglikelihood_rolling(
            requests("loglikelihood_rolling", *((row["question"],) for row in ROWS))
        )
        size = sum(len(row["question"].encode()) for row in ROWS)
        assert figures(found)[rolling] == pytest.approx(-sum(nats) / math.log(2) / size)
        assert {("loglikelihood", 6, 6), ("rolling", 3, 3), ("generation", 3, 3)} <= set(told)

    def test_that_are_not_there_are_named(self, llama, tasks, tmp_path):
        with pytest.raises(OptionError, match="Did you mean .*'lease_text'"):
            find_tasks(["lease_tekst"], tasks)
        with pytest.raises(OptionError, match="nowhere"):
            find_tasks(["lease_text"], tmp_path / "nowhere")
        with pytest.raises(OptionError, match="no task 'xyzzy'. All names"):
            find_tasks(["lease_text", "xyzzy"], tasks)
        (tasks / "data.json").unlink()
        manager = find_tasks(["lease_text"], tasks)
        with pytest.raises(DocumentError, match="lease_text cannot be read"):
            run_tasks(UniverbLM(llama), ["lease_text"], manager)
