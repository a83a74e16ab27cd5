"""Verbs that are listed without being imported, so that `--help` is quick."""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from univerb.cli.console import errors
from univerb.errors import UniverbError


def add_verbs(group: typer.Typer, package: str, verbs: Mapping[str, str]) -> None:
    """Add verbs to a group: their names, each with what the group's help says about it.

    The package has a module for each, with a function of the same name.
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
            command: Any = typer.main.get_command(verb)
            command.callback = _naming_flags(command)
            return command.make_context(*arguments, **settings)

    return LazyVerb


def _naming_flags(command: Any) -> Callable[..., None]:  # noqa: ANN401  (of click)
    """Let the errors of a verb name its flags where they name options."""
    verb = command.callback

    def run(**values: Any) -> None:  # noqa: ANN401  (what click parsed)
        try:
            verb(**values)
        except UniverbError as error:
            if len(error.args) == 1:
                flags = {p.name: p.opts[0] for p in command.params if p.opts[0].startswith("-")}
                error.args = (flags_named(str(error), flags),)
            raise

    return run


def flags_named(message: str, flags: Mapping[str, str]) -> str:
    """Write the options in a message, max_tokens or truncate='left', as a verb's flags."""
    for option, flag in flags.items():
        # A single word may be just a word: it is an option where a value follows.
        follows = r"(?![\w/-]|\.\w)" if "_" in option else r"(?= is |=| ')"
        # Not inside a path or a quoted name: those are the user's.
        message = re.sub(rf"(?<![\w/.'\"-]){option}\b{follows}(='left'|=True)?", flag, message)
    return message


def _refuse(old: str, new: str) -> Any:  # noqa: ANN401  (a function that typer inspects)
    def refuse() -> None:
        errors.print(f"error: `univerb {old}` is now `univerb {new}`. Use that name.")
        raise typer.Exit(2)

    return refuse
