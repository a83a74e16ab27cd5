"""The run of `univerb lab speed systems`: one process for each system, one request at a time.

A round is one prompt written by every system. Ratios are taken within a round, so that other work
on the machine slows both sides; a round that was interrupted is measured again as a whole.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import univerb
from univerb.errors import OptionError, WorkerError
from univerb.lab.data import describe_corpus, open_or_build
from univerb.lab.protocols.result_cache import ResultCache
from univerb.lab.speed.systems import Measurement, SystemSettings
from univerb.lab.speed.timing import Progress, environment
from univerb.lab.speed.workers import SystemProcess, running_systems
from univerb.lab.speed.workloads import WORKLOADS, Request, make_requests, warm_up_requests
from univerb.threads import processors, thread_count

if TYPE_CHECKING:
    from univerb.modeling.dynamic import DynamicLM

_ROUNDS = ".rounds"
_ROUND = "round"
# llama.cpp takes contexts of whole blocks.
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class SpeedRound:
    """One prompt, written by every system."""

    workload: str
    name: str
    prompt_tokens: int
    measured: dict[str, Measurement]


@dataclass(frozen=True, slots=True)
class SystemsRun:
    """All that was measured."""

    about: dict[str, Any]
    rounds: list[SpeedRound]
    precision: dict[str, str]
    """Of each system's weights."""
    not_measured: dict[str, str] = field(default_factory=dict)
    """Systems that could not be loaded, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemsPlan:
    """What to measure."""

    requests: Sequence[Request]
    warm_up: Sequence[Request]
    systems: Sequence[str]
    settings: SystemSettings
    max_tokens: int = 128
    about: dict[str, Any]
    """All else that results depend on: the model, its profile, the corpora, the environment."""


def make_plan(
    lm: "DynamicLM",
    workloads: Sequence[str],
    systems: Sequence[str],
    *,
    data: Path | None = None,
    corpora: Mapping[str, Path | None] | None = None,
    limit: int = 8,
    max_tokens: int = 128,
    threads: int | None = None,
    offline: bool | None = None,
    progress: Progress | None = None,
) -> SystemsPlan:
    """Make the requests of workloads, and the corpora that they need.

    Args:
        lm: Makes prompts and vectors; systems load the model anew.
        workloads: The workloads.
        systems: The systems.
        data: The data folder.
        corpora: Existing corpora, by name.
        limit: Requests of each workload.
        max_tokens: Base tokens to write.
        threads: For each system; by default one per core.
        offline: Never contact the Hub.
        progress: Called while a corpus is built.

    Returns:
        The plan.

    Raises:
        OptionError: If there are fewer processors than threads, or the text would not fit.
    """
    threads = len(processors()) if threads is None else thread_count(threads)
    requests: list[Request] = []
    described = {}
    for name in workloads:
        corpus = None
        if needed := WORKLOADS[name].corpus:
            folder = (corpora or {}).get(needed)
            corpus = open_or_build(lm, needed, data, folder, progress)
            described[needed] = describe_corpus(corpus, is_own=folder is None)
        requests += make_requests(lm, name, data, corpus, limit, max_tokens)
    context = _context(lm, requests, max_tokens)
    return SystemsPlan(
        requests=requests,
        warm_up=warm_up_requests(lm, requests),
        systems=systems,
        settings=SystemSettings(lm.name, lm.model.name_or_path, threads, context, offline),
        max_tokens=max_tokens,
        about={
            "corpora": described or "none",
            "requests": f"{limit} of each workload at most, {max_tokens} base tokens each",
            **_about(lm, threads),
        },
    )


def _about(lm: "DynamicLM", threads: int) -> dict[str, Any]:
    return {
        "model": Path(lm.name).name,
        "encoder": lm.fingerprint(),
        "profile": lm.profile.model_dump(),
        "seed": "none: greedy decoding",
        "timed": "retrieval, choice of phrases and their encoding are inside; loading is not",
        **environment(threads),
    }


def _context(lm: "DynamicLM", requests: Sequence[Request], max_tokens: int) -> int:
    """Return the positions that the longest request takes, or refuse it."""
    longest = max(len(request.ids) for request in requests) + max_tokens
    if longest > lm.context_size:
        raise OptionError(
            f"prompts and {max_tokens} tokens take {longest} positions; {lm.name!r} has "
            f"{lm.context_size}. Lower --max-tokens."
        )
    return min(-(-longest // _BLOCK) * _BLOCK, lm.context_size)


def run_systems(
    plan: SystemsPlan, folder: Path | None = None, progress: Progress | None = None
) -> SystemsRun:
    """Measure all systems on all requests.

    Args:
        plan: What to measure.
        folder: Keep rounds here as they come: an interrupted run resumes.
        progress: Called before each round.

    Returns:
        The rounds, in the order of the requests.

    Raises:
        WorkerError: If no system can be loaded, or one dies.
    """
    with running_systems(plan.systems, plan.settings, plan.warm_up) as (running, precision, failed):
        if not running:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
            raise WorkerError(f"no system could be loaded. {reasons}")
        cache = ResultCache(folder / _ROUNDS if folder else None, _key(plan, list(running)))
        rounds = []
        for number, request in enumerate(plan.requests, 1):
            costs = cache.get(request.key, _ROUND)
            if costs is None:
                costs = _measure(request, plan.max_tokens, running, number)
                cache.put(request.key, _ROUND, costs)
            measured = {name: Measurement(**costs[name]) for name in running}
            rounds.append(SpeedRound(request.workload, request.name, len(request.ids), measured))
            if progress:
                progress("rounds", number, len(plan.requests))
    return SystemsRun(plan.about, rounds, {name: precision[name] for name in running}, failed)


def forget_rounds(folder: Path) -> None:
    """Remove the rounds that were kept for resuming: the report has them."""
    shutil.rmtree(folder / _ROUNDS, ignore_errors=True)


def _measure(
    request: Request, max_tokens: int, running: Mapping[str, SystemProcess], number: int
) -> dict[str, Any]:
    """Let every system write, beginning with another one each time."""
    names = list(running)
    first = (number - 1) % len(names)
    order = names[first:] + names[:first]
    return {name: asdict(running[name].write(request, max_tokens)) for name in order}


def _key(plan: SystemsPlan, systems: Sequence[str]) -> str:
    """Return a hash of all that a round depends on but the request."""
    content = [plan.about, plan.max_tokens, asdict(plan.settings), systems]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    package = Path(univerb.__file__).parent
    for path in sorted(package.rglob("*.py")):
        # The way figures are shown does not change them.
        if path.relative_to(package).parts[0] != "cli":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
