"""A judge on the loopback: a real server that remembers what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from univerb.lab.judging.judge_endpoint import Endpoint

KEY = "sk-very-secret"
LOOPBACK = pytest.mark.allow_hosts(["127.0.0.1", "::1"])
Answer = tuple[int, dict[str, str], bytes]


def completion(content: str | None) -> Answer:
    return 200, {}, json.dumps({"choices": [{"message": {"content": content}}]}).encode()


class Server:
    """A real server on the loopback that remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: Callable[[str], Answer | None] = lambda _: completion("[[1]]")
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.handle(self, body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def handle(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        with self._lock:
            headers = {name.title(): value for name, value in handler.headers.items()}
            self.requests.append((handler.path, headers, body))
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        answer = self.answer(body["messages"][0]["content"])
        with self._lock:
            self._now -= 1
        if answer is None:
            handler.close_connection = True
            return
        status, headers, data = answer
        handler.send_response(status)
        plain = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        for name, value in {**plain, **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    @property
    def prompts(self) -> list[str]:
        return [body["messages"][0]["content"] for _, _, body in self.requests]

    def endpoint(self, **options: Any) -> Endpoint:
        return Endpoint(self.url, "judge-1", **({"key": KEY} | options))


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server until the block ends."""
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()
