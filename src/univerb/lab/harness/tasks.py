"""Standard tasks of lm-evaluation-harness, run with a model that may write phrases."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from univerb.errors import DocumentError, MissingExtra, OptionError, first_line

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from univerb.lab.harness.model import UniverbLM


def find_tasks(names: Sequence[str], folder: Path | None = None) -> "TaskManager":
    """Look up tasks or groups of the harness before a model is loaded; `*` stands for anything.

    A folder may have more tasks as YAML files; Python that they name is run. Raises OptionError if
    there is no such task or folder.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise MissingExtra("lm-eval", "harness") from None
    if folder is not None and not folder.is_dir():
        raise OptionError(f"there is no folder {str(folder)!r}. Give one with YAML tasks.")
    if folder is not None:
        # Reading the harness's own tasks, thousands of files, takes a while.
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        if all(manager.match_tasks([name]) for name in names):
            return manager
    manager = TaskManager(include_path=None if folder is None else str(folder))
    for name in names:
        if not manager.match_tasks([name]):
            close = difflib.get_close_matches(name, manager.all_tasks, n=3)
            hint = f"Did you mean {', '.join(map(repr, close))}? " if close else ""
            raise OptionError(
                f"the harness has no task {name!r}. {hint}"
                "All names: lm_eval ls tasks; your own: --tasks-folder."
            )
    return manager


def run_tasks(
    model: "UniverbLM",
    names: Sequence[str],
    manager: "TaskManager",
    *,
    limit: int | None = None,
    num_fewshot: int | None = None,
    chat: bool = False,
) -> dict[str, Any]:
    """Run what `find_tasks` found, at most `limit` documents of each task.

    Returns the harness's report for JSON. Raises DocumentError if a task's data cannot be read.
    """
    from lm_eval import simple_evaluate
    from lm_eval.utils import handle_non_serializable

    try:
        results = simple_evaluate(
            model,
            tasks=manager.match_tasks(list(names)),
            task_manager=manager,
            limit=limit,
            num_fewshot=num_fewshot,
            apply_chat_template=chat,
            log_samples=False,
        )
    except OSError as error:
        raise DocumentError(
            f"the data of {', '.join(names)} cannot be read: {first_line(error)}. Without the "
            "Hub, give tasks over local files with --tasks-folder."
        ) from error
    report: dict[str, Any] = json.loads(json.dumps(results, default=handle_non_serializable))
    return report


def results_table(results: dict[str, Any]) -> str:
    """Return results as the harness prints them: a Markdown table, and another one for groups."""
    from lm_eval.utils import make_table

    tables = [make_table(results)]
    if results.get("groups"):
        tables.append(make_table(results, "groups"))
    return "\n".join(tables)
