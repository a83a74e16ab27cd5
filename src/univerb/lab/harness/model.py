"""An LM with phrases as a model of lm-evaluation-harness: give it to `lm_eval.simple_evaluate`.

Without phrases every figure is that of the harness's `hf` model on the same backbone. With them a
log-likelihood is exact: summed over all segmentations into tokens and phrases.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from univerb.applications.corpus_profile import profile_options
from univerb.config import GenerationConfig
from univerb.decoding.loop import generate
from univerb.errors import MissingExtra, ModelError, OptionError, PromptError
from univerb.lab.harness.generation_kwargs import generation_options
from univerb.lab.harness.request_phrases import PhraseSources, RequestPhrases
from univerb.lab.harness.scoring import Likelihood, likelihoods
from univerb.modeling.dynamic import DynamicLM

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError:
    raise MissingExtra("lm-eval", "harness") from None

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

OnProgress = Callable[[str, int, int], None]
"""Called with the kind of requests, the number of finished ones, and of all."""
TokenRequest = tuple[tuple[str, str], list[int], list[int]]


class UniverbLM(TemplateLM):  # type: ignore[misc]  # lm-eval is not typed
    """An LM with phrases.

    Likelihoods are those of `unfold` with tolerance 1; texts are generated with the profile.
    """

    def __init__(
        self,
        lm: DynamicLM,
        sources: PhraseSources | None = None,
        *,
        phrase_bias: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Wrap a model and its phrases.

        Args:
            lm: The model.
            sources: Where phrases come from; none by default.
            phrase_bias: Added to every phrase's logit; by default the corpus's calibrated one, else
                the profile's. The encoder's own bias counts besides.
            on_progress: Called after each group of requests.
        """
        super().__init__()
        self.tokenizer = lm.hf_tokenizer
        self.max_length = lm.context_size
        """Tokens of context and continuation."""
        self._lm, self._sources = lm, sources or PhraseSources()
        self._phrases = RequestPhrases(lm, self._sources)
        corpus = self._sources.corpus
        calibrated = profile_options(corpus, lm.fingerprint()) if corpus else {}
        typed = {} if phrase_bias is None else {"phrase_bias": phrase_bias}
        self._options = calibrated | typed
        scored = GenerationConfig(
            mode="unfold", tolerance=1.0, phrase_bias=self._options.get("phrase_bias")
        )
        self.phrase_bias: float = scored.resolved(lm.profile).phrase_bias
        self._on_progress: OnProgress = on_progress or (lambda *_: None)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        token = self.tokenizer.eos_token_id
        return self.prefix_token_id if token is None else int(token)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        raise ModelError(
            f"the tokenizer of {self._lm.name!r} has no token for the beginning or end of a text, "
            "which the harness needs. Set its bos_token or eos_token."
        )

    @property
    def tokenizer_name(self) -> str:
        """The name of the harness's caches."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        **_: Any,  # noqa: ANN401
    ) -> list[int]:
        """Tokenize as the harness's `hf` model does: no second beginning-of-text token."""
        if add_special_tokens is None:
            begins = string.startswith(self.tokenizer.decode([self.prefix_token_id]))
            add_special_tokens = not begins
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def _loglikelihood_tokens(
        self,
        requests: list[TokenRequest],
        **_: Any,  # noqa: ANN401
    ) -> list[tuple[float, bool]]:
        groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for number, ((text, _continuation), context, ids) in enumerate(requests):
            visible = tuple(context[-self._room(ids) :])
            groups.setdefault((text, visible), []).append(number)
        answers: dict[int, tuple[float, bool]] = {}
        for (text, visible), numbers in groups.items():
            scores = self._score(text, visible, [requests[number][2] for number in numbers])
            for number, score in zip(numbers, scores, strict=True):
                answers[number] = (score.logprob, score.is_greedy)
                self.cache_hook.add_partial("loglikelihood", requests[number][0], answers[number])
            self._on_progress("loglikelihood", len(answers), len(requests))
        return [answers[number] for number in range(len(requests))]

    def _room(self, ids: Sequence[int]) -> int:
        """Return the tokens of context that fit before a continuation, whose last is not read."""
        if len(ids) > self.max_length:
            raise PromptError(
                f"a continuation has {len(ids)} tokens, the LM reads {self.max_length}. Leave the "
                "task out, or use a model that reads more."
            )
        return self.max_length + 1 - max(len(ids), 1)

    def _score(
        self, text: str, context: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[Likelihood]:
        phrases = self._phrases.for_context(text)
        return likelihoods(self._lm, context, continuations, phrases, self.phrase_bias)

    def loglikelihood_rolling(
        self, requests: "list[Instance]", disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-probability of whole texts, summed over windows, each exact.

        A window's phrases are those of the text before it; documents count from the start.
        """
        totals: list[float] = []
        for request in requests:
            (text,) = request.args
            totals.append(self._rolled(self.tok_encode(text)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), totals[-1])
            self._on_progress("rolling", len(totals), len(requests))
        return totals

    def _rolled(self, ids: list[int]) -> float:
        windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1)
        special = self._lm.tokenizer.special_ids
        total, done = 0.0, 0
        for context, part in map(make_disjoint_window, windows):
            before = [token for token in ids[:done] if token not in special]
            text = self._lm.tokenizer.decode(before)
            total += self._score(text, context, [part])[0].logprob
            done += len(part)
        return total

    def generate_until(self, requests: "list[Instance]", disable_tqdm: bool = False) -> list[str]:
        """Generate texts, each with its phrases, up to a stop text or the budget."""
        texts: list[str] = []
        for request in requests:
            context, arguments = request.args
            options = self._options | generation_options(arguments)
            if options["max_tokens"] >= self.max_length:
                raise OptionError(
                    f"the task asks for {options['max_tokens']} tokens, the LM reads "
                    f"{self.max_length} with the prompt. Lower its max_gen_toks."
                )
            ids = self.tok_encode(context)[-(self.max_length - options["max_tokens"]) :]
            phrases = self._phrases.for_context(context)
            vocabulary = phrases.vocabulary if phrases.phrases else None
            text = generate(self._lm, ids or [self.prefix_token_id], vocabulary, **options).text
            texts.append(text)
            self.cache_hook.add_partial("generate_until", request.args, text)
            self._on_progress("generation", len(texts), len(requests))
        return texts

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Apply the chat template; without a generation prompt the last message is continued."""
        if not self.tokenizer.chat_template:
            raise PromptError(f"{self._lm.name!r} has no chat template. Use plain prompts.")
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def get_model_info(self) -> dict[str, Any]:
        """Return the model's part of a result."""
        return {
            "univerb_model": self._lm.name,
            "encoder": self._lm.fingerprint(),
            "phrases": self._sources.names,
            "phrase_bias": self.phrase_bias,
            "likelihood": "exact, over all segmentations (unfold, tolerance 1)",
            "generation": self._lm.profile.model_dump() | self._options,
        }
