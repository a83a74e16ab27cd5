"""What `univerb generate` costs before it writes: memory, and what it imports."""

import os
import re
import subprocess
import sys

import pytest

from commands import COMMAND
from univerb.engines.llamacpp.binding import is_installed

# Imported by transformers where they are installed, or by torch for what a command never does.
HEAVY = {
    "PIL",
    "accelerate",
    "matplotlib",
    "nltk",
    "pandas",
    "peft",
    "ray",
    "scipy",
    "sklearn",
    "spacy",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "torchvision",
}
LAZY_AGAIN = """
from univerb.cli.lean_transformers import import_transformers

import_transformers()
import sys
heavy = {"accelerate", "scipy", "sympy", "torch.distributed.tensor", "torch._dynamo.eval_frame"}
assert not heavy & {*sys.modules}, heavy & {*sys.modules}

import scipy.optimize
import torch
import transformers.models

assert transformers.models.llama.LlamaConfig is transformers.LlamaConfig
assert torch.distributed.is_available()
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)) == 2
assert torch._dynamo.disable.__module__.startswith("torch._dynamo")
"""


# A process of its own, since a child begins with the peak of the process that it was forked from.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_maxrss)
"""


@pytest.mark.default_model
@pytest.mark.parametrize(("engine", "max_megabytes"), [("torch", 900), ("llamacpp", 400)])
def test_one_token_is_had_for_little_memory(engine, max_megabytes):
    pytest.importorskip("resource")
    if engine == "llamacpp" and not is_installed():
        pytest.skip("needs llama.cpp")
    command = [*COMMAND, "generate", "Hello", "--max-tokens", "1", "--engine", engine]
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPROFILEIMPORTTIME": "1"}
    measure = [sys.executable, "-c", MEASURE, *command]
    ran = subprocess.run(measure, env=environment, capture_output=True, text=True, timeout=900)
    imported = set(re.findall(r"\| +(\S+)$", ran.stderr, re.MULTILINE))
    assert ran.returncode == 0
    assert not imported & HEAVY
    assert ("torch" in imported) == (engine == "torch")
    peak = float(ran.stdout)
    assert peak / (1 << 20 if sys.platform == "darwin" else 1 << 10) <= max_megabytes


def test_what_was_left_out_is_there_when_it_is_asked_for():
    subprocess.run([sys.executable, "-c", LAZY_AGAIN], check=True, timeout=900)
