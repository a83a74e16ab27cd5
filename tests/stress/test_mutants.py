"""Faults put into a copy of the package on purpose: the tests named for each must notice.

A fault is one replacement in one file (mutants.yaml). Where the code has changed, it has to follow.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import univerb

ROOT = Path(__file__).parents[2]
PACKAGE = Path(univerb.__file__).parent
MUTANTS = yaml.safe_load(Path(__file__).with_name("mutants.yaml").read_text("utf-8"))


@pytest.mark.stress
@pytest.mark.parametrize("fault", MUTANTS)
def test_a_fault_is_noticed(fault, tmp_path):
    file, code, faulty, tests = MUTANTS[fault].values()
    shutil.copytree(PACKAGE, tmp_path / "univerb", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "univerb" / file
    source = path.read_text("utf-8")
    assert code in source, f"{file} has no {code!r} any more: name what took its place"
    path.write_text(source.replace(code, faulty), "utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [*command, *tests.split()], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 1, f"not noticed: {fault}\n{ran.stdout[-2000:]}"
