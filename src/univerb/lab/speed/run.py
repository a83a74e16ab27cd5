"""The run of `univerb lab speed`: one process for each system, one prompt at a time, all by turns.

A round is one prompt written by every system. Ratios are taken within a round, so that other work
on the machine slows both sides; a round that was interrupted is measured again as a whole.
"""

import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import univerb
from univerb._version import __version__
from univerb.errors import OptionError, UniverbError, WorkerError
from univerb.lab.protocols.cache import ResultCache
from univerb.lab.speed.peak import peak_megabytes
from univerb.lab.speed.systems import Measured, Running, Setting, load_system
from univerb.lab.speed.workloads import (
    Case,
    describe_corpus,
    make_cases,
    open_or_build,
    warm_up_cases,
)
from univerb.threads import processors, thread_count

if TYPE_CHECKING:
    from univerb.modeling.dynamic import DynamicLM

WARM_UP = 8
"""Tokens of each warm-up."""
PARTS = ".parts"
"""Where rounds are kept until the report is written."""
Progress = Callable[[str, int, int], None]

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "llama-cpp-python")
_ROUND = "round"
# llama.cpp takes contexts of whole blocks.
_BLOCK = 256
_PATH = re.compile(r"(?<![\w.~])(?:~|\.{1,2})?/(?:[^/\s'\"]+/)*(?=[^/\s'\"])")


@dataclass(frozen=True, slots=True)
class Round:
    """One prompt, written by every system."""

    workload: str
    name: str
    prompt_tokens: int
    measured: dict[str, Measured]


@dataclass(frozen=True, slots=True)
class Run:
    """All that was measured."""

    about: dict[str, Any]
    rounds: list[Round]
    not_measured: dict[str, str]
    """Systems that could not be loaded, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    cases: Sequence[Case]
    warm_up: Sequence[Case]
    systems: Sequence[str]
    setting: Setting
    max_tokens: int = 128
    about: dict[str, Any]
    """What the results depend on beside all this: the model, its profile, the corpora."""


def make_plan(
    lm: "DynamicLM",
    workloads: Sequence[str],
    systems: Sequence[str],
    *,
    data: Path | None = None,
    corpora: dict[str, Path | None] | None = None,
    limit: int = 8,
    max_tokens: int = 128,
    threads: int | None = None,
    offline: bool | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Make the prompts of workloads, and the corpora that they need.

    Args:
        lm: Makes prompts and vectors; systems load the model anew.
        workloads: Which.
        systems: Which.
        data: Where the data lies.
        corpora: Corpora that exist already, by workload.
        limit: Prompts of each workload.
        max_tokens: Base tokens to write.
        threads: For each system; by default one per core.
        offline: Never contact the Hub.
        progress: Is told how far a corpus is.

    Returns:
        The plan.

    Raises:
        OptionError: If there are fewer processors than threads, or the text would not fit.
    """
    chosen = len(processors()) if threads is None else thread_count(threads)
    cases: list[Case] = []
    described = {}
    for name in workloads:
        folder = (corpora or {}).get(name)
        corpus = open_or_build(lm, name, data, folder, progress)
        cases += make_cases(lm, name, data, corpus, limit, max_tokens)
        if corpus:
            described[name] = describe_corpus(corpus, is_own=folder is None)
    longest = max(len(case.ids) for case in cases) + max_tokens
    if longest > lm.context_size:
        raise OptionError(
            f"prompts and {max_tokens} tokens take {longest} positions; {lm.name!r} has "
            f"{lm.context_size}. Lower --max-tokens."
        )
    setting = Setting(
        model=lm.name,
        backbone=lm.model.name_or_path,
        threads=chosen,
        context=min(-(-longest // _BLOCK) * _BLOCK, lm.context_size),
        offline=offline,
    )
    about = {
        "model": Path(lm.name).name,
        "encoder": lm.fingerprint(),
        "profile": lm.profile.model_dump(),
        **({"corpora": described} if described else {}),
    }
    return Plan(
        cases=cases,
        warm_up=warm_up_cases(lm, cases),
        systems=systems,
        setting=setting,
        max_tokens=max_tokens,
        about=about,
    )


def run_bench(plan: Plan, folder: Path | None = None, progress: Progress | None = None) -> Run:
    """Measure all systems on all cases.

    Args:
        plan: What to measure.
        folder: Keep rounds here as they come: an interrupted run goes on.
        progress: Is told the stage, how much of it is done, and of how much.

    Returns:
        The rounds, in the order of the cases.

    Raises:
        WorkerError: If no system can be loaded, or one dies.
    """
    tell = progress or (lambda stage, done, total: None)
    with _workers(plan, tell) as (workers, not_measured):
        if not workers:
            reasons = "; ".join(f"{name}: {why}" for name, why in not_measured.items())
            raise WorkerError(f"no system could be loaded. {reasons}")
        cache = ResultCache(_parts(folder), _key(plan, list(workers)))
        rounds = []
        for number, case in enumerate(plan.cases):
            tell("rounds", number, len(plan.cases))
            found = cache.get(case.key, _ROUND)
            if found is None:
                found = _measure(case, plan.max_tokens, workers, number)
                cache.put(case.key, _ROUND, found)
            measured = {name: Measured(**found[name]) for name in workers}
            rounds.append(Round(case.workload, case.name, len(case.ids), measured))
        tell("rounds", len(plan.cases), len(plan.cases))
    return Run(_about(plan), rounds, not_measured)


def forget_parts(folder: Path) -> None:
    """Remove the rounds that were kept for going on: the report has them."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)


def _parts(folder: Path | None) -> Path | None:
    if folder is None:
        return None
    (folder / PARTS).mkdir(parents=True, exist_ok=True)
    return folder / PARTS


def _measure(
    case: Case, max_tokens: int, workers: dict[str, "Worker"], number: int
) -> dict[str, Any]:
    """Let every system write, beginning with another one each time."""
    names = list(workers)
    first = number % len(names)
    order = names[first:] + names[:first]
    return {name: asdict(workers[name].write(case, max_tokens)) for name in order}


@contextmanager
def _workers(plan: Plan, tell: Progress) -> Iterator[tuple[dict[str, "Worker"], dict[str, str]]]:
    """Start a process for each system, one after the other; all end with the block."""
    workers: dict[str, Worker] = {}
    not_measured: dict[str, str] = {}
    try:
        for number, name in enumerate(plan.systems):
            tell("loading systems", number, len(plan.systems))
            workers[name] = Worker(name, plan.setting)
            with _left_out_if_failing(name, workers, not_measured):
                workers[name].wait_until_loaded()
        tell("loading systems", len(plan.systems), len(plan.systems))
        # After all are loaded: the first ones would be cold again by then.
        for name in list(workers):
            with _left_out_if_failing(name, workers, not_measured):
                for case in plan.warm_up:
                    workers[name].write(case, min(WARM_UP, plan.max_tokens))
        yield workers, not_measured
    finally:
        for worker in workers.values():
            worker.close()


@contextmanager
def _left_out_if_failing(
    name: str, workers: dict[str, "Worker"], not_measured: dict[str, str]
) -> Iterator[None]:
    try:
        yield
    except WorkerError as error:
        workers.pop(name).close()
        not_measured[name] = without_paths(str(error)).removeprefix(f"system {name!r}: ")


class Worker:
    """A system in a process of its own, which waits without computing.

    Args:
        name: The system.
        setting: What all have in common.
    """

    def __init__(self, name: str, setting: Setting) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = name
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, setting), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_loaded(self) -> None:
        """Wait for the system, or raise why it cannot be loaded."""
        self._receive()

    def write(self, case: Case, max_tokens: int) -> Measured:
        """Have a prompt continued, and wait for that."""
        self._ours.send((case, max_tokens))
        measured: Measured = self._receive()
        return measured

    def close(self) -> None:
        """End the process, whatever it does."""
        self._ours.close()
        self._process.terminate()
        self._process.join()

    def _receive(self) -> Any:  # noqa: ANN401  (what each question is answered with)
        try:
            is_good, answer = self._ours.recv()
        except (EOFError, ConnectionError):
            self._process.join(timeout=5)
            raise WorkerError(
                f"the process of system {self._name!r} died (exit code {self._process.exitcode}), "
                "perhaps because memory ran out. Name fewer systems with --system; the rounds that "
                "are complete are kept."
            ) from None
        if not is_good:
            raise WorkerError(f"system {self._name!r}: {answer}")
        return answer


def _serve(connection: Connection, name: str, setting: Setting) -> None:
    """Load a system, then write what comes until the other side is gone."""
    # Ctrl-C reaches every process of a terminal; the first one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The bars of many processes would overwrite the one of the run.
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    _use_cores(setting.threads)
    try:
        try:
            system = load_system(name, setting)
        except Exception as error:  # told to the process that asked, whatever it is
            connection.send((False, _reason(error)))
            return
        connection.send((True, None))
        while True:
            connection.send(_answer(system, *connection.recv()))
    except (EOFError, ConnectionError):
        return


def _answer(system: Running, case: Case, max_tokens: int) -> tuple[bool, Measured | str]:
    try:
        measured = system.write(case, max_tokens)
    except Exception as error:  # told to the process that asked, whatever it is
        return False, _reason(error)
    return True, replace(measured, peak_mb=peak_megabytes())


def _reason(error: Exception) -> str:
    if isinstance(error, UniverbError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _use_cores(threads: int) -> None:
    """Leave this process so many cores, so that every library takes as many threads."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(processors())[:threads])


def without_paths(text: str) -> str:
    """Return a message in which of every path only the last part is left."""
    return _PATH.sub("", text)


def _about(plan: Plan) -> dict[str, Any]:
    return {
        "univerb": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "threads": plan.setting.threads,
        "cores": len(processors()),
        "base_tokens": plan.max_tokens,
        **plan.about,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _key(plan: Plan, systems: Sequence[str]) -> str:
    """Return a hash of all that a round depends on but the case."""
    content = hashlib.sha256(json.dumps([_about(plan), systems], sort_keys=True).encode())
    package = Path(univerb.__file__).parent
    for path in sorted(package.rglob("*.py")):
        # How figures are shown does not change them.
        if path.relative_to(package).parts[0] != "cli":
            content.update(path.read_bytes())
    return content.hexdigest()[:16]
