"""What a run measured and what it was made with, as a value that JSON can hold."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from univerb.errors import DocumentError, OptionError
from univerb.lab.tables.paper import Better, Column

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure."""

    value: float
    spread: float | None = None
    """Its standard deviation or half its interval; the run's notes say which."""
    n: int | None = None
    """Out of how many cases, if not the run's `n`."""

    def __post_init__(self) -> None:
        given = (self.value, *(() if self.spread is None else (self.spread,)))
        if not all(math.isfinite(one) for one in given):
            raise OptionError(
                f"A figure must be finite, not {self.value} ± {self.spread}. "
                "Leave out the cell of what could not be measured."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What figures were made with; an empty text or None: does not apply, or is not known."""

    model: str
    """The backbone: a name, a path or a Hub id, of which the last part counts."""
    data: str
    """Such as `wikitext-103 test`, `lawmt test` or `asqa`; another form of them is another name."""
    n: int
    """Prefixes, questions or cases."""
    seed: int
    threads: int
    timed: str
    """What is inside the timed part: `decode` (prefill too), `retrieve + encode + decode`."""
    scorer: str = ""
    """The model that PPL is of."""
    featuriser: str = ""
    """The model that MAUVE's features are of."""
    training: str = "none"
    """What the LM was fine-tuned on."""
    encoder: str = ""
    retriever: str = ""
    documents: int | None = None
    """How many are retrieved, or shown."""
    shots: int | None = None
    prefix: int | None = None
    """Tokens that are given."""
    budget: int | None = None
    """Base tokens that are written."""
    tokenizer: str = ""
    """Whose tokens units are counted against."""
    splitter: str = ""
    """What splits texts into words for Rep-n (`metrics.repetition.words`)."""
    device: str = "cpu"
    kv_cache: bool = True
    nli: str = ""
    reader: str = ""
    judge: str = ""

    def __post_init__(self) -> None:
        # Results are published: they name models, not the folders of a machine.
        for own in fields(self):
            given = getattr(self, own.name)
            if isinstance(given, str) and Path(given).is_absolute():
                object.__setattr__(self, own.name, Path(given).name)


@dataclass(frozen=True, slots=True)
class RunRow:
    """The figures of a system."""

    name: str
    cells: Mapping[str, Measured]
    """By name of column."""
    stands_for: str = ""
    """The paper's row to set it beside, by name; empty if the paper has none."""
    section: str = ""
    decoding: str = ""
    setup: Setup | None = None
    """If this row was made otherwise than the run."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a system reached in relation to the same LM without phrases, and what it should."""

    system: str
    measure: str
    value: float
    goal: float | None
    """None on test sets that no goal was set for."""
    paper: float | None
    """What the paper reached where the goal was set."""
    better: Better
    unit: str = "x"
    """`x`: a ratio; `points`: a difference."""
    low: float | None = None
    """The ends of the value's interval, 90 %, if there is one."""
    high: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether it is reached; with an interval, by all of it."""
        if self.goal is None:
            return False
        if self.better == "higher":
            return (self.value if self.low is None else self.low) > self.goal
        return (self.value if self.high is None else self.high) <= self.goal


@dataclass(frozen=True, slots=True)
class Run:
    """All figures of a run."""

    setup: Setup
    rows: tuple[RunRow, ...]
    extra: tuple[Column, ...] = ()
    """Columns that the paper does not have."""
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """More to print about the run: version, command, accuracy of a scorer."""
    goals: tuple[Goal, ...] = ()


def run_to_dict(run: Run) -> dict[str, Any]:
    """Return a run as JSON can hold it."""
    extra = [
        {name: getattr(column, name) for name in ("name", "label", "better", "decimals", "beside")}
        for column in run.extra
    ]
    return {"schema_version": SCHEMA_VERSION} | asdict(run) | {"extra": extra}


def run_from_dict(given: Mapping[str, Any]) -> Run:
    """Read what `run_to_dict` wrote.

    Args:
        given: The run.

    Returns:
        The same run.

    Raises:
        DocumentError: If it is no run, or of a later version.
    """
    version = given.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DocumentError(
            f"A run of schema version {version!r} cannot be read, only {SCHEMA_VERSION}. "
            "Make it again, or update univerb."
        )
    try:
        return Run(
            setup=_setup(given["setup"]),
            rows=tuple(_row(row) for row in given["rows"]),
            extra=tuple(Column(**column) for column in given["extra"]),
            notes=tuple(given["notes"]),
            facts=dict(given["facts"]),
            goals=tuple(Goal(**goal) for goal in given.get("goals", ())),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DocumentError(f"This is no run of univerb: {error!r}. Make it again.") from error


def read_run(text: str) -> Run:
    """Read a run from JSON: a run alone, or a comparison that holds one.

    Args:
        text: The content of a file.

    Returns:
        The run.

    Raises:
        DocumentError: If it is no JSON, or no run.
    """
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise DocumentError(f"A run must be JSON: {error}. Make it again.") from error
    run = given.get("run", given) if isinstance(given, dict) else given
    if not isinstance(run, dict):
        raise DocumentError(f"A run must be a JSON object, not {type(run).__name__}.")
    return run_from_dict(run)


def _row(given: Mapping[str, Any]) -> RunRow:
    cells = {name: Measured(**cell) for name, cell in given["cells"].items()}
    setup = _setup(given["setup"]) if given["setup"] else None
    return RunRow(**{**given, "cells": cells, "setup": setup})


def _setup(given: Mapping[str, Any]) -> Setup:
    known = {own.name for own in fields(Setup)}
    if unknown := sorted(set(given) - known):
        raise DocumentError(f"A setup has no {', '.join(unknown)}. Update univerb.")
    return Setup(**given)
