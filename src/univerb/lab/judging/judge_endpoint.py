"""A judge behind an OpenAI-compatible endpoint: asked at most once, whatever interrupts the run.

Only the host that the user names is contacted, through the environment's proxy if there is one:
redirects are refused. The key goes into the request's header and nowhere else.
"""

import ipaddress
import json
import os
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPRedirectHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from univerb.errors import OptionError, WorkerError
from univerb.lab.judging.judge import Question, json_lines, read_replies

KEY_VARIABLE = "UNIVERB_JUDGE_KEY"
"""The environment variable of the key. Not another product's: its key is not for every host."""
MAX_WORKERS = 64
_LONGEST_PAUSE = 60.0
_LARGEST_REPLY = 4 << 20
_RETRIED = {408, 409, 425, 429}
_PATH = "/chat/completions"
_OWN_FIELDS = {"model", "messages", "stream", "n"}


class _Again(Exception):
    """Trouble that may pass."""

    def __init__(self, problem: str, pause: float = 0.0) -> None:
        super().__init__(problem)
        self.pause = pause


class _NoRedirect(HTTPRedirectHandler):
    """Makes a redirect an error: it would take the texts, and the key, to another host."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow nothing."""


@dataclass(frozen=True)
class Endpoint:
    """A model that answers chat completions.

    Raises:
        OptionError: If a field is not as it should be.
    """

    url: str
    """The address up to the version, such as http://127.0.0.1:8000/v1."""
    model: str
    key: str | None = field(default=None, repr=False)
    """Sent as the bearer's token; see `key_from_environment`."""
    options: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})
    """Other fields of the request."""
    timeout: float = 120.0
    """Seconds that the server may be silent."""
    attempts: int = 6
    pause: float = 1.0
    """Seconds before the second attempt; doubled before each that follows."""

    def __post_init__(self) -> None:
        self._check_url()
        if not self.model:
            raise OptionError("the judge has no model. Name one that the endpoint serves.")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise OptionError(
                "the judge's key has characters that no header can hold (it is not shown here). "
                "Check how it was set: a line end may have come along."
            )
        if taken := sorted(_OWN_FIELDS & set(self.options)):
            raise OptionError(f"the judge's options set {', '.join(taken)}. Leave that out.")
        if self.attempts < 1 or self.timeout <= 0 or self.pause < 0:
            raise OptionError(
                f"attempts is {self.attempts}, timeout {self.timeout:g} and pause {self.pause:g}; "
                "give at least 1, more than 0, and 0 or more."
            )

    def _check_url(self) -> None:
        # These may hold a secret, so the address is not shown.
        if any(mark in self.url for mark in "@?#"):
            raise OptionError(
                "the judge's address has a user, a query or a fragment. Give it up to the version, "
                f"such as https://HOST/v1, and the key in {KEY_VARIABLE}."
            )
        try:
            parts = urlsplit(self.url)
            is_usable = parts.scheme in ("http", "https") and parts.port != 0 and parts.hostname
        except ValueError:
            is_usable = False
        if not is_usable or not re.fullmatch("[!-~]+", self.url):
            raise OptionError(
                f"the judge's address is {self.url!r}. Give one such as http://127.0.0.1:8000/v1."
            )
        if self.key and parts.scheme == "http" and not self._is_local:
            raise OptionError(
                f"the judge's key would go to {parts.netloc!r} unencrypted. Use https, a tunnel to "
                "127.0.0.1, or no key."
            )

    @property
    def _is_local(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def judge(self) -> dict[str, Any]:
        """What its replies depend on."""
        return {"model": self.model, "options": dict(self.options)}

    def ask(self, prompt: str, stopped: threading.Event | None = None) -> str:
        """Ask one question, again where the trouble may pass.

        Args:
            prompt: The question.
            stopped: Once set, no further attempt is made.

        Returns:
            What the model replied; empty if it would not.

        Raises:
            OptionError: If the endpoint refuses the request.
            WorkerError: If no attempt succeeded.
        """
        stopped = stopped or threading.Event()
        message = {"role": "user", "content": prompt}
        body = json.dumps({"model": self.model, "messages": [message], **self.options}).encode()
        attempt, problem = 0, ""
        while attempt < self.attempts and not stopped.is_set():
            attempt += 1
            try:
                return self._content(self._post(body))
            except _Again as again:
                problem = str(again)
                pause = min(max(self.pause * 2 ** (attempt - 1), again.pause), _LONGEST_PAUSE)
            if attempt < self.attempts:
                # Not all workers at the same moment.
                stopped.wait(pause * random.uniform(1.0, 1.25))
        raise WorkerError(
            f"{self._place} gave no answer in {attempt} attempts: {problem or 'stopped'}. Check "
            "that it runs, and judge again: what was answered is kept."
        )

    @property
    def _place(self) -> str:
        return urlsplit(self.url).netloc

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "User-Agent": "univerb"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        address = self.url.rstrip("/").removesuffix(_PATH) + _PATH
        try:
            request = Request(address, body, headers)
            with _opener(self._is_local).open(request, timeout=self.timeout) as response:
                data: bytes = response.read(_LARGEST_REPLY + 1)
        except HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, HTTPException) as error:
            raise _Again(self._hidden(str(error) or type(error).__name__)) from None
        if len(data) > _LARGEST_REPLY:
            raise OptionError(f"{self._place} answered with more than {_LARGEST_REPLY >> 20} MB.")
        return data

    def _content(self, data: bytes) -> str:
        try:
            content = json.loads(data)["choices"][0]["message"]["content"]
        except (ValueError, RecursionError, LookupError, TypeError):
            content = data
        # A model that refuses, or thinks until its budget ends, says nothing at all.
        if content is None:
            return ""
        if not isinstance(content, str):
            said = self._hidden(data.decode("utf-8", "replace"))
            raise OptionError(
                f"{self._place} answered {said!r}, which is no chat completion. Give the address "
                "of an OpenAI-compatible server, up to the version."
            )
        return content

    def _refused(self, error: HTTPError) -> Exception:
        said = self._hidden(_message(error))
        if error.code in _RETRIED or error.code >= 500:
            return _Again(f"{error.code} {said!r}", _seconds(error.headers.get("Retry-After")))
        if error.code < 400:
            return OptionError(
                f"{self._place} redirects elsewhere ({error.code}), which is not followed. Name "
                "the address that it leads to, if you trust it."
            )
        return OptionError(
            f"{self._place} answered {error.code}: {said!r}. Check the address, the model "
            f"{self.model!r}, its options and the key in {KEY_VARIABLE}."
        )

    def _hidden(self, text: str) -> str:
        """Return a message without the key, which some servers repeat."""
        return (text.replace(self.key, "***") if self.key else text)[:300]


def key_from_environment(variable: str = KEY_VARIABLE) -> str | None:
    """Return the key that an environment variable holds, if it holds one."""
    return os.environ.get(variable, "").strip() or None


@cache
def _opener(is_local: bool) -> OpenerDirector:
    # No proxy can reach this machine's own loopback.
    return build_opener(_NoRedirect, *([ProxyHandler({})] if is_local else []))


def _message(error: HTTPError) -> str:
    try:
        data = error.read(_LARGEST_REPLY).decode("utf-8", "replace")
    except (OSError, HTTPException):
        return ""
    try:
        return str(json.loads(data)["error"]["message"])
    except (ValueError, RecursionError, LookupError, TypeError):
        return data


def _seconds(header: str | None) -> float:
    try:
        return max(float(header or 0.0), 0.0)
    except ValueError:  # a date; our own pauses do
        return 0.0


_BEGIN = b'{"id": "'
"""How a line of a log begins."""


class ReplyLog:
    """Replies on disk, line by line; `read_replies` reads them too.

    Args:
        path: The file; it is continued if it is there.
        judge: Who replies. A file with another's replies is refused.
    """

    def __init__(self, path: Path, judge: Mapping[str, Any]) -> None:
        self._path = path
        self._judge = dict(judge)
        self._lock = threading.Lock()
        # Now: a file that cannot be written should not cost a reply first.
        self._write(b"")
        self._mend()
        self.replies = self._read()

    def append(self, own: str, reply: str) -> None:
        """Keep a reply; it is on the disk when this returns.

        Args:
            own: The question's id.
            reply: The reply.

        Raises:
            OptionError: If the file cannot be written.
        """
        line = json.dumps({"id": own, "judge": self._judge, "reply": reply})
        with self._lock:
            self._write(f"{line}\n".encode())
            self.replies[own] = reply

    def _read(self) -> dict[str, str]:
        for number, line in json_lines(self._path):
            if line.get("judge") != self._judge:
                raise OptionError(
                    f"line {number} of {str(self._path)!r} is by the judge {line.get('judge')}; "
                    f"this one is {self._judge}. Name another file."
                )
        return read_replies(self._path)

    def _mend(self) -> None:
        """Cut off a last line that a crash tore."""
        try:
            data = self._path.read_bytes()
            whole = data.rfind(b"\n") + 1
            torn = data[whole:]
            # Only what this log began to write: any other file is somebody's, and stays.
            if torn and not (torn.startswith(_BEGIN) or _BEGIN.startswith(torn)):
                raise OptionError(
                    f"{str(self._path)!r} is no log of replies. Name another file with --log."
                )
            if torn:
                os.truncate(self._path, whole)
        except OSError as error:
            raise self._unusable(error) from error

    def _write(self, data: bytes) -> None:
        try:
            with self._path.open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> OptionError:
        return OptionError(
            f"{str(self._path)!r} cannot be used: {error.strerror}. Make room, or name another "
            "file; what was answered before is kept."
        )


def ask_all(
    endpoint: Endpoint,
    asked: Sequence[Question],
    log: ReplyLog,
    workers: int = 4,
    on_reply: Callable[[int, int], None] | None = None,
) -> dict[str, str]:
    """Ask what is not answered yet, some questions at a time.

    Args:
        endpoint: The judge.
        asked: The questions.
        log: Where answers are found and kept.
        workers: How many questions are under way at once.
        on_reply: Called with the number of answered questions, and of all.

    Returns:
        The reply to each question, by its id.

    Raises:
        OptionError: If the endpoint refuses a request, or `workers` is out of its range.
        WorkerError: If the endpoint does not answer.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise OptionError(f"workers is {workers}; give 1 to {MAX_WORKERS}.")
    waiting = [one for one in dict.fromkeys(asked) if one.id not in log.replies]
    done, stopped = len(set(asked)) - len(waiting), threading.Event()

    def answer(one: Question) -> None:
        # Kept by the worker: what was under way at an interruption is not lost either.
        log.append(one.id, endpoint.ask(one.prompt, stopped))

    pool = ThreadPoolExecutor(workers)
    try:
        for future in as_completed([pool.submit(answer, one) for one in waiting]):
            future.result()
            done += 1
            if on_reply:
                on_reply(done, len(set(asked)))
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
    return {one.id: log.replies[one.id] for one in asked}
