"""Verbs that are listed without being imported, so that `--help` is quick."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from univerb.cli.console import errors


def add_verbs(group: typer.Typer, package: str, verbs: Mapping[str, str]) -> None:
    """Add verbs to a group.

    Args:
        group: The group.
        package: Has a module for each verb, with a function of the same name.
        verbs: Their names, each with what the group's help says about it.
    """
    for name, line in verbs.items():
        group.command(name, help=line, cls=_lazy(package, name))(lambda: None)


def add_renamed(group: typer.Typer, names: Mapping[str, str]) -> None:
    """Let verbs of earlier versions answer with their present names."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    for old, new in names.items():
        command = group.command(old, hidden=True, add_help_option=False, context_settings=settings)
        command(_refuse(old, new))


def _lazy(package: str, name: str) -> type[TyperCommand]:
    class LazyVerb(TyperCommand):
        """Imports the verb's module when the verb is called or asked for its help."""

        def make_context(self, *arguments: Any, **settings: Any) -> Any:  # noqa: ANN401
            verb = typer.Typer(add_completion=False)
            verb.command()(getattr(import_module(f"{package}.{name}"), name))
            return typer.main.get_command(verb).make_context(*arguments, **settings)

    return LazyVerb


def _refuse(old: str, new: str) -> Any:  # noqa: ANN401  (a function that typer inspects)
    def refuse() -> None:
        errors.print(f"error: `univerb {old}` is now `univerb {new}`. Use that name.")
        raise typer.Exit(2)

    return refuse
