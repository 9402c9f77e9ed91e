"""Commands that are imported when they are called: importing all of them is slow."""

import ast
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Final

import click
from typing_extensions import override

#: Limit of a command's summary in a listing; longer than all of them.
_SENTENCE_MAX: Final = 1_000
#: Exit code of a program whose output was closed, as shells have it.
_BROKEN_PIPE: Final = 141


class OnDemand(click.Command):
    """Placeholder of a command in another module, with its name and summary."""

    def __init__(self, location: str) -> None:
        """Make a placeholder of the command at `location`, module:function."""
        self._module, _, self._function = location.partition(":")
        super().__init__(self._function.replace("_", "-"))

    def load(self) -> click.Command:
        """Import the command."""
        module = import_module(f"headwater.gateway.cli.{self._module}")
        command: click.Command = getattr(module, self._function)
        return command

    @override
    def get_short_help_str(self, limit: int = 45) -> str:
        if self.help is None:
            # Parsing a module is faster than importing it, and works without its extra.
            source = Path(__file__).with_name(f"{self._module}.py").read_text("utf-8")
            for node in ast.parse(source).body:
                if isinstance(node, ast.FunctionDef) and node.name == self._function:
                    self.help = ast.get_docstring(node)
        return super().get_short_help_str(limit)


class Group(click.Group):
    """A group that lists commands with whole sentences, and suggests names for typing errors.

    It imports a command of another module when that is called.
    """

    def add_on_demand(self, *locations: str) -> None:
        """Add commands of other modules, each module:function."""
        for location in locations:
            self.add_command(OnDemand(location))

    @override
    def invoke(self, ctx: click.Context) -> object:
        try:
            result: object = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            # A closed output, as of `| head`, is no error. Python flushes again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(_BROKEN_PIPE) from error
        return result

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, command.get_short_help_str(limit=_SENTENCE_MAX))
            for name, command in sorted(self.commands.items())
            if not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = get_close_matches(args[0], self.commands, n=1)
        if near and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r}; did you mean {near[0]}?")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, OnDemand) else command, rest
