"""What tests of the command line share: running it for real, and reading what it left."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Ran

COMMAND = [str(Path(sys.executable).with_name("univerb"))]
# Phrases win every choice, and the text is made of nothing else.
ONLY_PHRASES = ["--mode", "atomic", "--phrase-bias", "900", "--overshoot", "allow"]


def start(*arguments: object, **environment: str) -> subprocess.Popen[bytes]:
    """Start the real command in a process of its own."""
    return subprocess.Popen(
        [*COMMAND, *(a if isinstance(a, bytes) else str(a) for a in arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def spawn(*arguments: object, stdin: bytes = b"", **environment: str) -> Ran:
    process = start(*arguments, **environment)
    out, err = process.communicate(stdin, timeout=900)
    return Ran(process.returncode, out.decode(), err.decode())


def refused(ran: Ran, *words: str) -> None:
    """Check that a command ended with one clear line and nothing else."""
    assert ran.code not in (0, None)
    assert ran.out == ""
    assert "Traceback" not in ran.err
    *notes, last = ran.err.strip().splitlines()
    assert last.startswith("error: ") and all(line.startswith("note: ") for line in notes)
    for word in words:
        assert word in last


def checked(data: dict[str, Any], *texts: str) -> dict[str, Any]:
    """Check a generation against its schema, and its spans against the documents' texts."""
    assert data["schema_version"] == 1
    assert data["finish_reason"] in {"length", "eos", "stop"}
    assert "".join(piece["text"] for piece in data["pieces"]) == data["text"]
    for piece in data["pieces"]:
        assert piece.keys() >= {"text", "ids", "is_phrase", "sources", "logprob"}
        assert piece["ids"] and all(isinstance(token, int) for token in piece["ids"])
        assert piece["logprob"] <= 1e-4
        assert isinstance(piece["is_phrase"], bool)
        for span in piece["sources"]:
            assert span.keys() == {"document", "start", "end"}
            places = [text[span["start"] : span["end"]].split() for text in texts]
            # A broken character that a token left behind shows with the next piece.
            assert piece["text"].lstrip("\ufffd").split() in places
        assert piece["is_phrase"] or not piece["sources"]
    stats = data["stats"]
    assert stats.keys() >= {"steps", "base_tokens", "phrase_share", "seconds"}
    assert stats["seconds"].keys() == {"encode", "prefill", "decode"}
    assert all(value >= 0 for value in stats["seconds"].values())
    assert stats["base_tokens"] == sum(len(piece["ids"]) for piece in data["pieces"])
    in_phrases = sum(len(piece["ids"]) for piece in data["pieces"] if piece["is_phrase"])
    assert stats["phrase_share"] == pytest.approx(in_phrases / max(stats["base_tokens"], 1))
    return data
