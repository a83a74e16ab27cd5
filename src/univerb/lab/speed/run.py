"""The run of `univerb lab speed systems`: one process for each model, one request at a time.

A round is one prompt written by every system. Ratios are taken within a round, so that other work
on the machine slows both sides; a round that was interrupted is measured again as a whole.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import univerb
from univerb.errors import WorkerError
from univerb.lab.protocols.result_cache import ResultCache
from univerb.lab.speed.systems import Measurement, SystemSettings
from univerb.lab.speed.timing import Progress, environment
from univerb.lab.speed.workers import RunningSystems, running_systems
from univerb.lab.speed.workloads import Request, RequestMaker, make_requests, warm_up_request
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
    weights: dict[str, str]
    """The precision of each system's."""
    not_measured: dict[str, str] = field(default_factory=dict)
    """Systems that could not be loaded, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemsPlan:
    """What to measure."""

    requests: Sequence[Request]
    warm_up: Request
    systems: Sequence[str]
    settings: SystemSettings
    about: dict[str, Any]
    """All else that results depend on: the model, its profile, the environment."""


def make_plan(
    workloads: Sequence[str],
    systems: Sequence[str],
    make: RequestMaker,
    threads: int | None = None,
    offline: bool | None = None,
    progress: Progress | None = None,
) -> SystemsPlan:
    """Make the requests of workloads.

    Args:
        workloads: The workloads.
        systems: The systems, which load the model anew.
        make: What requests are made with.
        threads: For each system; by default one per core.
        offline: Never contact the Hub.
        progress: Called after each request.

    Returns:
        The plan.

    Raises:
        OptionError: If there are fewer processors than threads.
    """
    threads = len(processors()) if threads is None else thread_count(threads)
    requests = [own for name in workloads for own in make_requests(name, make, progress)]
    context, no_repeat = _context(make.lm, requests), make.no_repeat_ngram_size
    return SystemsPlan(
        requests=requests,
        warm_up=warm_up_request(make.lm),
        systems=systems,
        settings=SystemSettings(make.lm.name, threads, context, offline, no_repeat),
        about={
            "requests": f"{make.limit} of each workload at most, {make.max_tokens} base tokens "
            f"each at most, {make.passages} retrieved passages",
            "repetition control": f"no_repeat_ngram_size {no_repeat}" if no_repeat else "none",
            **_about(make.lm, threads),
        },
    )


def _about(lm: "DynamicLM", threads: int) -> dict[str, Any]:
    return {
        "model": Path(lm.name).name,
        "encoder": lm.fingerprint(),
        "profile": lm.profile.model_dump(),
        "seed": "none: greedy decoding",
        "timed": "encoding, prefill and decoding; retrieval and the finding of phrases are outside",
        **environment(threads),
    }


def _context(lm: "DynamicLM", requests: Sequence[Request]) -> int:
    """Return the positions that the longest request takes."""
    longest = max(len(request.ids) + request.max_tokens for request in requests)
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
    with running_systems(plan.systems, plan.settings, plan.warm_up) as running:
        names = list(running.processes)
        if not names:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in running.failed.items())
            raise WorkerError(f"no system could be loaded. {reasons}")
        cache = ResultCache(folder / _ROUNDS if folder else None, _key(plan, running))
        rounds = []
        for number, request in enumerate(plan.requests, 1):
            costs = cache.get(request.key, _ROUND)
            if costs is None:
                costs = _measure(request, running, number)
                cache.put(request.key, _ROUND, costs)
            measured = {name: Measurement(**costs[name]) for name in names}
            rounds.append(SpeedRound(request.workload, request.name, len(request.ids), measured))
            if progress:
                progress("rounds", number, len(plan.requests))
    costs = "; ".join(f"{host}: {costs}" for host, costs in running.row_costs.items())
    about = {"row costs": costs, **plan.about}
    return SystemsRun(about, rounds, running.weights, running.failed)


def forget_rounds(folder: Path) -> None:
    """Remove the rounds that were kept for resuming: the report has them."""
    shutil.rmtree(folder / _ROUNDS, ignore_errors=True)


def _measure(request: Request, running: RunningSystems, number: int) -> dict[str, Any]:
    """Let every system write, beginning with another one each time."""
    names = list(running.processes)
    first = (number - 1) % len(names)
    order = names[first:] + names[:first]
    return {name: asdict(running.processes[name].write(name, request)) for name in order}


def _key(plan: SystemsPlan, running: RunningSystems) -> str:
    """Return a hash of all that a round depends on but the request."""
    systems = list(running.processes)
    content = [plan.about, asdict(plan.settings), systems, running.row_costs]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    package = Path(univerb.__file__).parent
    for path in sorted(package.rglob("*.py")):
        # The way figures are shown does not change them.
        if path.relative_to(package).parts[0] != "cli":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
