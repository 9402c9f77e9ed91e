"""Commands that are imported when they are called: all of them together take long to load."""

from importlib import import_module

import click
from typing_extensions import override


class OnDemand(click.Command):
    """Stands for a command of another module; knows its name and the line that lists it."""

    def __init__(self, name: str, place: str, summary: str) -> None:
        """Stands for the command at `place`, package.module:attribute."""
        super().__init__(name, help=summary)
        self._place = place

    def load(self) -> click.Command:
        """The command itself."""
        module, _, attribute = self._place.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class OnDemandGroup(click.Group):
    """A group that lists commands as they are, and loads the one that is called."""

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, OnDemand) else command, rest
