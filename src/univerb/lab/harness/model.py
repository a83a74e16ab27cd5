"""`univerb` as a model of lm-evaluation-harness. Importing this file registers it there.

Without phrases every figure is that of the harness's own `hf` model on the same backbone. With
them a log-likelihood is exact: over all ways to write the continuation with tokens and phrases.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from univerb.config import GenerationConfig
from univerb.decoding.loop import generate
from univerb.errors import MissingExtra, ModelError, OptionError, PromptError, did_you_mean
from univerb.lab.harness.phrases import PhraseSupply, Sources, read_sources
from univerb.lab.harness.scoring import Likelihood, likelihoods
from univerb.loading import load as load_lm
from univerb.locations import DEFAULT_MODEL
from univerb.modeling.dynamic import DynamicLM

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import (
        get_rolling_token_windows,
        make_disjoint_window,
        simple_parse_args_string,
    )
except ImportError:
    raise MissingExtra("lm-eval", "harness") from None

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

Tell = Callable[[str, int, int], None]
TokenRequest = tuple[tuple[str, str], list[int], list[int]]
_MAX_TOKENS = 256
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names that tasks give to the budget; the first counts."""


@register_model("univerb")
class UniverbLM(TemplateLM):  # type: ignore[misc]  # lm-eval is not typed
    """An LM with phrases, as the harness asks for one.

    Likelihoods are those of `unfold` with tolerance 1; texts are generated as the profile says.
    """

    def __init__(
        self,
        lm: DynamicLM,
        sources: Sources | None = None,
        *,
        phrase_bias: float | None = None,
        max_length: int | None = None,
        progress: Tell | None = None,
    ) -> None:
        """Put a model and its phrases before the harness.

        Args:
            lm: The model.
            sources: Where phrases come from; none by default.
            phrase_bias: Added to every phrase's logit; by default what `univerb calibrate` found
                for the corpus, else the profile's. The encoder's own bias counts besides.
            max_length: See at most so many tokens; by default as many as the LM can.
            progress: Is told the kind of requests, how many are done, and of how many.
        """
        super().__init__()
        if max_length is not None and not 2 <= max_length <= lm.context_size:
            raise OptionError(
                f"max_length is {max_length}; the LM sees {lm.context_size} positions. Give 2 to "
                "that many."
            )
        own = sources or Sources()
        self.tokenizer = lm.hf_tokenizer
        self.max_length: int = max_length or lm.context_size
        self._lm, self._sources, self._supply = lm, own, PhraseSupply(lm, own)
        known = own.corpus.profile_options(lm.fingerprint()) if own.corpus else {}
        self._options = known if phrase_bias is None else known | {"phrase_bias": phrase_bias}
        scored = GenerationConfig(
            mode="unfold", tolerance=1.0, phrase_bias=self._options.get("phrase_bias")
        )
        self.phrase_bias: float = scored.resolved(lm.profile).phrase_bias
        self._tell: Tell = progress or (lambda *_: None)

    @classmethod
    def load(
        cls,
        model: str = DEFAULT_MODEL,
        *,
        docs: str | Sequence[str] = (),
        corpus: str | None = None,
        phrases: str | None = None,
        k: int = 32,
        phrase_bias: float | None = None,
        max_length: int | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        offline: bool | None = None,
    ) -> Self:
        """Load all that the harness names in its `model_args`.

        Args:
            model: As `univerb.load` takes it.
            docs: A file or folder, or several, whose n-grams are phrases.
            corpus: A folder that `univerb index` wrote.
            phrases: A file with phrases, or "context" for the n-grams of each request's context.
            k: Chunks that a context retrieves from the corpus.
            phrase_bias: Added to every phrase's logit.
            max_length: See at most so many tokens.
            device: Where to compute.
            dtype: float32, bfloat16 or float16.
            offline: Never contact the Hub.

        Returns:
            The model.
        """
        paths = [docs] if isinstance(docs, str) else docs
        sources = read_sources(paths, corpus, phrases, k)
        lm = load_lm(model, device=device, dtype=dtype, offline=offline)
        return cls(lm, sources, phrase_bias=phrase_bias, max_length=max_length)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> Self:
        """Load from the harness's arguments; its batch sizes have no meaning here."""
        beside = {k: v for k, v in (additional_config or {}).items() if v is not None}
        given = {k: v for k, v in (beside | arg_dict).items() if "batch_size" not in k}
        names = inspect.signature(cls.load).parameters
        for name in given:
            if name not in names:
                raise OptionError(
                    f"the model univerb has no argument {name!r}. {did_you_mean(name, names)}"
                )
        return cls.load(**given)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> Self:
        """Load from `name=value,name=value`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        token = self.tokenizer.eos_token_id
        return self.prefix_token_id if token is None else int(token)

    @property
    def prefix_token_id(self) -> int:
        """The token that stands before a text without a context."""
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        raise ModelError(
            f"the tokenizer of {self._lm.name!r} has no token for the beginning or end of a text, "
            "which the harness needs. Set its bos_token or eos_token."
        )

    @property
    def tokenizer_name(self) -> str:
        """What the harness files its caches under."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        **_: Any,  # noqa: ANN401
    ) -> list[int]:
        """Tokenize a text as the harness's `hf` model does: no second beginning-of-text token."""
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
            seen = tuple(context[-self._room(ids) :])
            groups.setdefault((text, seen), []).append(number)
        answers: dict[int, tuple[float, bool]] = {}
        for (text, seen), numbers in groups.items():
            found = self._score(text, seen, [requests[number][2] for number in numbers])
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = (answer.logprob, answer.is_greedy)
                self.cache_hook.add_partial("loglikelihood", requests[number][0], answers[number])
            self._tell("loglikelihood", len(answers), len(requests))
        return [answers[number] for number in range(len(requests))]

    def _room(self, ids: Sequence[int]) -> int:
        """Return how many tokens of the context fit before a continuation: its last is not read."""
        if len(ids) > self.max_length:
            raise PromptError(
                f"a continuation has {len(ids)} tokens, the LM sees {self.max_length}. Leave the "
                "task out, or use a model that sees more."
            )
        return self.max_length + 1 - max(len(ids), 1)

    def _score(
        self, text: str, context: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[Likelihood]:
        phrases = self._supply.about(text)
        return likelihoods(self._lm, context, continuations, phrases, self.phrase_bias)

    def loglikelihood_rolling(
        self, requests: "list[Instance]", disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-probability of whole texts, in windows as long as the LM can see.

        A window's phrases are those that the text before it gives; documents count from the start.

        Args:
            requests: The texts.
            disable_tqdm: Not used: there is no such bar.

        Returns:
            One sum over its windows, each exact, for every text.
        """
        totals: list[float] = []
        for request in requests:
            (text,) = request.args
            totals.append(self._rolled(self.tok_encode(text)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), totals[-1])
            self._tell("rolling", len(totals), len(requests))
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
        """Generate texts, each with its phrases, up to a stop text or the budget.

        Args:
            requests: Contexts with the task's `generation_kwargs`.
            disable_tqdm: Not used: there is no such bar.

        Returns:
            The texts, without what stopped them.
        """
        texts: list[str] = []
        for request in requests:
            context, given = request.args
            options = self._options | decoding_options(given)
            if options["max_tokens"] >= self.max_length:
                raise OptionError(
                    f"the task asks for {options['max_tokens']} tokens, the LM sees "
                    f"{self.max_length} with the prompt. Lower its max_gen_toks."
                )
            ids = self.tok_encode(context)[-(self.max_length - options["max_tokens"]) :]
            phrases = self._supply.about(context)
            vocabulary = phrases.vocabulary if phrases else None
            text = generate(self._lm, ids or [self.prefix_token_id], vocabulary, **options).text
            texts.append(text)
            self.cache_hook.add_partial("generate_until", request.args, text)
            self._tell("generation", len(texts), len(requests))
        return texts

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Write a conversation as the model was taught to read it.

        Args:
            chat_history: Messages with role and content.
            add_generation_prompt: Open the model's turn; otherwise the last message is gone on
                with.

        Returns:
            The prompt.

        Raises:
            PromptError: If the tokenizer has no chat template.
        """
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
        """Return what a result says about the model."""
        return {
            "univerb_model": self._lm.name,
            "encoder": self._lm.fingerprint(),
            "phrases": self._sources.names,
            "phrase_bias": self.phrase_bias,
            "likelihood": "exact, over all segmentations (unfold, tolerance 1)",
            "generation": self._lm.profile.model_dump() | self._options,
        }


def decoding_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a task's `generation_kwargs` into univerb's options.

    Args:
        given: What the task says.

    Returns:
        Options of `generate`; greedy unless the task samples.

    Raises:
        OptionError: If it asks for something that univerb does not do.
    """
    options = dict(given)
    until = options.pop("until", None) or []
    lengths = [options.pop(name, None) for name in _LENGTHS]
    is_sampled = options.pop("do_sample", None)
    temperature = options.pop("temperature", None)
    if is_sampled is False:
        temperature = 0.0
    elif temperature is None:
        temperature = 1.0 if is_sampled else 0.0
    if options.get("num_beams") == 1:
        del options["num_beams"]
    known = _checked(options, ("top_p", "top_k", "repetition_penalty", "seed"))
    return known | {
        "stop": [text for text in ([until] if isinstance(until, str) else until) if text],
        "max_tokens": next((int(n) for n in lengths if n is not None), _MAX_TOKENS),
        "temperature": float(temperature),
    }


def _checked(given: dict[str, Any], allowed: Iterable[str]) -> dict[str, Any]:
    for name in given:
        if name not in allowed:
            raise OptionError(
                f"a task's generation_kwargs have {name!r}, which univerb cannot do. "
                f"{did_you_mean(name, allowed)}"
            )
    return given
