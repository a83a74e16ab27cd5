"""A judge behind an OpenAI-compatible endpoint: asked at most once, whatever interrupts the run.

Only the host that the user names is contacted, through the environment's proxy if there is one:
redirects are refused. The key goes into the request's header and nowhere else.
"""

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from univerb.errors import MissingExtra, OptionError, WorkerError
from univerb.files import JsonLines
from univerb.lab.disk_errors import writing
from univerb.lab.judging.judge import JudgePrompt

if TYPE_CHECKING:
    from openai import APIStatusError, OpenAI

KEY_VARIABLE = "UNIVERB_JUDGE_KEY"
"""The environment variable of the key. Not OPENAI_API_KEY: that key is not for every host."""
MAX_WORKERS = 64
_TIMEOUT = 120.0
_PATH = "/chat/completions"
_ADDRESS = re.compile(r"https?://(\[[0-9a-f:]+\]|[\w.-]+)(:\d{1,5})?(/[!-~]*)?", re.ASCII)


@dataclass(frozen=True)
class Endpoint:
    """A model that answers chat completions.

    Raises:
        OptionError: If a field is out of its range.
    """

    url: str
    """The address up to the version, such as http://127.0.0.1:8000/v1."""
    model: str
    key: str | None = field(default=None, repr=False)
    """Sent as the bearer token; see `key_from_environment`."""
    options: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})
    """Other fields of the request."""
    max_retries: int = 5

    def __post_init__(self) -> None:
        # These may hold a secret, so the address is not shown.
        if any(mark in self.url for mark in "@?#"):
            raise OptionError(
                "the judge's address has a user, a query or a fragment. Give it up to the version, "
                f"such as https://HOST/v1, and the key in {KEY_VARIABLE}."
            )
        if not _ADDRESS.fullmatch(self.url):
            raise OptionError(
                f"the judge's address is {self.url!r}. Give one such as http://127.0.0.1:8000/v1."
            )
        if self.key and self.url.startswith("http:") and not self._is_local:
            raise OptionError(
                f"the judge's key would go to {self._host!r} unencrypted. Use https, a tunnel to "
                "127.0.0.1, or no key."
            )
        if not self.model:
            raise OptionError("the judge has no model. Name one that the endpoint serves.")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise OptionError(
                "the judge's key has characters that no header can hold (it is not shown here). "
                "Check how it was set: a line end may have come along."
            )

    @property
    def _host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def _is_local(self) -> bool:
        return urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")

    @property
    def judge(self) -> dict[str, Any]:
        """What the replies depend on."""
        return {"model": self.model, "options": dict(self.options)}

    @cached_property
    def _client(self) -> "OpenAI":
        try:
            from openai import DefaultHttpxClient, OpenAI
        except ImportError:
            raise MissingExtra("openai", "judge") from None
        # No proxy can reach the loopback, and a redirect would take the key to another host.
        http = DefaultHttpxClient(trust_env=not self._is_local, follow_redirects=False)
        return OpenAI(
            api_key=self.key or "none",
            base_url=self.url.rstrip("/").removesuffix(_PATH),
            timeout=_TIMEOUT,
            max_retries=self.max_retries,
            http_client=http,
        )

    def ask(self, prompt: str) -> str:
        """Return the judge's reply, empty if it refuses; the client retries where trouble may pass.

        Raises OptionError if the endpoint refuses the request, WorkerError if no attempt succeeded.
        """
        completions = self._client.chat.completions
        from openai import APIConnectionError, APIStatusError, Omit

        # The client would take these from the environment, for whatever host.
        hidden = ["OpenAI-Organization", "OpenAI-Project", *([] if self.key else ["Authorization"])]
        try:
            completion = completions.create(
                model=self.model,
                messages=[{"role": "user", "content": prompt}],
                extra_headers=dict.fromkeys(hidden, Omit()),
                **self.options,
            )
            return completion.choices[0].message.content or ""
        except APIConnectionError as error:
            raise self._unanswered(str(error.__cause__ or error)) from None
        except APIStatusError as error:
            raise self._refusal(error) from None
        except (AttributeError, LookupError, TypeError, ValueError):
            raise OptionError(
                f"{self._host} answered with no chat completion. Give the address of an "
                "OpenAI-compatible server, up to the version."
            ) from None

    def _refusal(self, error: "APIStatusError") -> Exception:
        code, message = error.status_code, self._redacted(error.message)
        if code in (408, 409, 429) or code >= 500:
            return self._unanswered(f"{code} {message!r}")
        return OptionError(
            f"{self._host} answered {code}: {message!r}. Check the address (redirects are not "
            f"followed), the model {self.model!r}, its options and the key in {KEY_VARIABLE}."
        )

    def _unanswered(self, problem: str) -> WorkerError:
        return WorkerError(
            f"{self._host} gave no answer in {self.max_retries + 1} attempts: "
            f"{self._redacted(problem)}. Check that it runs, and judge again: replies are kept."
        )

    def _redacted(self, text: str) -> str:
        """Return a message without the key, which some servers repeat."""
        return (text.replace(self.key, "***") if self.key else text)[:300]


def key_from_environment() -> str | None:
    """Return the key that the environment holds, if it holds one."""
    return os.environ.get(KEY_VARIABLE, "").strip() or None


def ask_all(
    endpoint: Endpoint,
    prompts: Sequence[JudgePrompt],
    log: Path,
    workers: int = 4,
    on_reply: Callable[[int, int], None] | None = None,
) -> dict[str, str]:
    """Ask what the log has no reply to, `workers` prompts at a time, and return all replies by id.

    The log keeps replies as `read_replies` reads them; one of another judge is refused. `on_reply`
    is called with the number of answered prompts, and of all.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise OptionError(f"workers is {workers}; give 1 to {MAX_WORKERS}.")
    advice = "Make room, or name another file; replies up to now are kept."
    with writing(log, advice), JsonLines(log, {"judge": endpoint.judge}) as lines:
        replies: dict[str, str] = {row["id"]: row["reply"] for row in lines}
        missing = [prompt for prompt in prompts if prompt.id not in replies]
        lock = threading.Lock()

        def ask(prompt: JudgePrompt) -> None:
            reply = endpoint.ask(prompt.prompt)
            # Written by the worker: requests under way at an interruption are not lost either.
            with lock:
                lines.append({"id": prompt.id, "reply": reply})
                replies[prompt.id] = reply

        pool = ThreadPoolExecutor(workers)
        try:
            futures = [pool.submit(ask, prompt) for prompt in missing]
            for number, future in enumerate(as_completed(futures), len(prompts) - len(missing) + 1):
                future.result()
                if on_reply:
                    on_reply(number, len(prompts))
        finally:
            pool.shutdown(cancel_futures=True)
    return {prompt.id: replies[prompt.id] for prompt in prompts}
