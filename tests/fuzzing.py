"""Made-up command lines, calls and request bodies: what no test would think of typing."""

import json
import os
import random
import re
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import numpy
import typer

from conftest import TEXT
from univerb.cli.app import app
from univerb.phrase import Document

NUMBERS = ["0", "1", "-1", "2", "7", "0.5", "-0.0", "1e-45", "1e-38", "1e400", "nan", "inf", "-inf"]
NUMBERS += ["9" * 400, "9" * 5000, "1_0", "0x10", "\u0661", "1,5", "2-8", "8-2", "True", "1e3"]
TEXTS = ["", " ", "\t", "-", "--", "x", "The tenant shall", "\N{SLIGHTLY SMILING FACE}", "\u202e"]
TEXTS += ["\x1b]52;c;aGk=\x07", "\x9b6n", "a\nb\r\n", "\udcff", "[/]", "[bold]x", "%s{}{0}", "\\"]
TEXTS += ["word " * 900, "null", "None", "é" * 9, "\ufffd", "'", "e\u0301", "<|endoftext|>"]


def unlikely_objects() -> list[Any]:
    """Values of every type that a caller or a JSON file may have."""
    texts: list[Any] = [*TEXTS, b"bytes", bytearray(b"x"), [], {}, (), [[]], [None], set()]
    floats = [0.5, -0.0, 1e-45, 1e-3, 99.9, 1e308, float("nan"), float("inf"), -float("inf"), 2.0]
    whole = [0, 1, -1, 2, 3, 5, 64, 1 << 31, 1 << 63, 1 << 64, -(1 << 70), 10**400, 10**5000]
    arrays = [numpy.int64(2), numpy.float32(0.5), numpy.bool_(True), numpy.zeros(2)]
    lists = [["a"], ["a", ""], ["\ud800"], [1, 2], [True], list(range(400)), ("x", 2.0), [("x", 2)]]
    modes = ["unfold", "atomic", "verify", "left", "allow", "forbid", "unit", "token", "float16"]
    others = [None, True, False, object(), len, Path("x"), Document("a b", "n"), 1j, Exception, ...]
    return [*texts, *floats, *whole, *arrays, *lists, *modes, *others]


def made_files(folder: Path, encoder: Path, model: Path) -> list[str]:
    """Fill a folder with files that are right, wrong, and no files at all; return their paths."""
    body = {"prompt": "The tenant", "max_tokens": 2}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    contents: dict[str, bytes] = {
        "lease.txt": TEXT.encode(),
        "empty.txt": b"",
        "binary.dat": bytes(range(256)),
        "in.jsonl": json.dumps(line).encode(),
        "texts.jsonl": json.dumps({"prompt": "a", "text": "b"}).encode(),
        "run.yaml": f"model: {model}\n".encode()
        + b"run: {steps: 1}\ndata: {documents: [lease.txt]}\n",
        "wrong.yaml": b"[: {",
        "page.html": b"<p>The <b>tenant</b>" + b"<a x" * 20,
        "list.txt": b"quiet enjoyment\t2\ngood repair\n",
        "manifest.json": b"{}",
        "\x1b]52;c;aGk=\x07.txt": TEXT.encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "full").mkdir()
    (folder / "full" / "a.txt").write_text(TEXT)
    (folder / "void").mkdir()
    os.mkfifo(folder / "pipe.txt")
    threading.Thread(target=_feed, args=(folder / "pipe.txt",), daemon=True).start()
    made = [*contents, "full", "void", "pipe.txt", ".", "/", "/dev/null", "missing.txt", "no/where"]
    return [*made, "x" * 300, "~nobody-here/x", "\udcff.txt", "a/b/c", "corpus.uv", "new.uv"] + [
        str(encoder),
        str(model),
    ]


def _feed(pipe: Path) -> None:
    """Write into a pipe whenever somebody reads it, as a shell does for <(command)."""
    while pipe.exists():
        try:
            with pipe.open("wb") as file:
                file.write(TEXT.encode())
        except OSError:
            pass


NEVER_RUN = {"setup", "demo", "info", "speed", "harness", "reproduce"}
"""Verbs that install, need the default model or start processes: they get wrong options only."""
UNSAFE = {"workers": ["1", "-1", "0", "x", "9" * 400], "ray_address": [""]}
"""Options that would start processes or wait for a cluster."""
NAMES = {
    "source": ["tokens", "words", "fmm", "parsed"],
    "engine": ["torch", "llamacpp"],
    "device": ["cpu", "cuda", "meta"],
    "dtype": ["float32", "bfloat16", "float16"],
    "system": ["plain", "default", "atomic", "verify"],
    "sizes": ["2-8", "3", "8-2", "0-2", "-", "2-", "1-64", "2-999"],
    "method": ["bm25", "dense:full", "hybrid"],
    "splitter": ["rules", "pysbd", "nltk"],
    "table": ["table1", "asqa", "all", "negatives"],
    "input": ["in.jsonl"],
    "docs": ["lease.txt", "full", "-"],
    "held_out": ["list.txt", "lease.txt"],
    "corpus": ["corpus.uv"],
    "prompt": ["The tenant"],
    "question": ["Who pays the rent?"],
    "output": ["new.uv", "out.jsonl"],
    "phrases": ["list.txt"],
    "texts": ["texts.jsonl"],
    "config": ["run.yaml"],
}
"""Values that are right, at least of some verb."""
WRONG = ["--no-such", "-x", "--help", "--json=1", "--", "--max-tokens=x", "extra"]


class CommandLines:
    """Random command lines of all verbs, with their own options and values of any kind."""

    def __init__(self, seed: int, paths: list[str], model: Path) -> None:
        self._random = random.Random(seed)
        self._paths, self._model = paths, model
        root: Any = typer.main.get_command(app)
        lab: Any = root.commands["lab"]
        self._verbs = [([name], root.commands[name]) for name in root.commands if name != "lab"]
        self._verbs += [(["lab", name], command) for name, command in lab.commands.items()]

    def next(self) -> list[str]:
        """Return what is typed after `univerb`."""
        choose = self._random
        names, verb = choose.choice([v for v in self._verbs if not v[1].hidden])
        if choose.random() < 0.02:
            names, verb = choose.choice(self._verbs)
        if choose.random() < 0.02:
            return [choose.choice(TEXTS), *names]
        if names[-1] in NEVER_RUN or verb.hidden:
            return [*names, choose.choice(["--no-such", "-x", "--help", "--limit=x", "-h"])]
        context = verb.make_context(names[-1], ["--help"], resilient_parsing=True)
        self._kinds = get_type_hints(
            getattr(import_module(".".join(["univerb.cli", *names])), names[-1])
        )
        typed: list[list[str]] = []
        for parameter in context.command.params:
            typed += self._typed(parameter, len(context.command.params))
        flags = {flag for parameter in context.command.params for flag in parameter.opts}
        if "--model" in flags:
            # The last one counts: a wrong one may come later.
            typed.append(["--model", str(self._model)])
        if "--max-tokens" in flags and choose.random() < 0.8:
            typed.append(["--max-tokens", "3"])
        if choose.random() < 0.02:
            typed.append([choose.choice(WRONG)])
        choose.shuffle(typed)
        return [*names, *(word for words in typed for word in words)]

    def _typed(self, parameter: Any, count: int) -> list[list[str]]:
        """Return an argument or an option, or nothing."""
        choose = self._random
        if not parameter.opts[0].startswith("-"):
            words = 1 if choose.random() < 0.93 else choose.choice([0, 2])
            return [[self._value(parameter)] for _ in range(words)]
        if choose.random() > (0.95 if parameter.required else min(0.3, 2 / count)):
            return []
        flag = choose.choice([*parameter.opts, *parameter.secondary_opts])
        is_switch = getattr(parameter, "is_flag", False)
        return [[flag] if is_switch else [flag, self._value(parameter)]]

    def _value(self, parameter: Any) -> str:
        choose, kind = self._random, str(self._kinds.get(parameter.name))
        if parameter.name in UNSAFE:
            return choose.choice(UNSAFE[parameter.name])
        if choose.random() < 0.05:
            return choose.choice([*self._paths, *NUMBERS, *TEXTS])
        if "Literal" in kind:
            return choose.choice(re.findall(r"'(\w+)'", kind))
        if "int" in kind:
            return choose.choice(["1", "2", "7", "0", "-1", "3", "9" * 400, str(1 << 64)])
        if "float" in kind:
            return choose.choice(["0.5", "1", "0", *NUMBERS[:13]])
        name = "input" if "Path" in kind and parameter.name == "source" else parameter.name
        if name in NAMES and choose.random() < 0.7:
            return choose.choice(NAMES[name])
        return choose.choice(choose.choice([self._paths, self._paths, self._paths, TEXTS]))


def fuzzed_request(choose: random.Random, number: int, names: list[str]) -> dict[str, Any]:
    """Return a request: mostly right, with some fields that are not."""
    values = [v for v in unlikely_objects() if not (isinstance(v, int) and v > 10**4000)]
    body: dict[str, Any] = {"prompt": "The tenant", "max_tokens": choose.choice([1, 3, 9])}
    body |= choose.choice([{}, {"documents": [TEXT]}, {"phrases": ["good repair", "a b"]}])
    body |= {"temperature": choose.choice([0, 1, 0.5, 1e-40, 100]), "seed": choose.getrandbits(63)}
    for name in choose.sample(names, choose.choice([0, 0, 1, 1, 2, 3])):
        body[name] = choose.choice(values)
    url = (
        "/v1/completions" if choose.random() < 0.9 else choose.choice(["/v1/chat/completions", ""])
    )
    return {"custom_id": f"{number}", "method": "POST", "url": url, "body": body}


def tried(call: Callable[[], Any], *allowed: type[BaseException]) -> BaseException | None:
    """Call, and return the error if it is none of those that are allowed."""
    try:
        call()
    except allowed:
        return None
    except Exception as error:
        return error
    return None
