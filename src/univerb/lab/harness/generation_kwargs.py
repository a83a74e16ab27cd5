"""The harness's `generation_kwargs` as options of univerb."""

from collections.abc import Mapping
from typing import Any

from univerb.config import check_names

_MAX_TOKENS = 256
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names that tasks give to the budget; the first counts."""
_SAME = dict.fromkeys(("top_p", "top_k", "repetition_penalty", "no_repeat_ngram_size", "seed"))
"""Names and meanings that both share."""


def generation_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `generate`, greedy unless the task samples.

    Raises OptionError if the task asks for something that univerb does not do.
    """
    options = dict(arguments)
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
    check_names(options, _SAME, "a task's generation_kwargs have {!r}, which univerb cannot do.")
    return options | {
        "stop": [text for text in ([until] if isinstance(until, str) else until) if text],
        "max_tokens": next((int(n) for n in lengths if n is not None), _MAX_TOKENS),
        "temperature": float(temperature),
    }
