"""Commands that are imported when they are called: importing all of them is slow."""

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Final

import click
from typing_extensions import override

#: Limit of a command's summary in a listing; longer than all of them.
_SENTENCE_MAX: Final = 1_000
#: Exit code of a program whose output was closed, as shells have it.
_BROKEN_PIPE: Final = 141


class OnDemand(click.Command):
    """Placeholder of a command in another module, with its name and summary."""

    def __init__(self, location: str, summary: str) -> None:
        """Make a placeholder of the command at `location`, module:function."""
        self._module, _, self._function = location.partition(":")
        super().__init__(self._function.replace("_", "-"), help=summary)

    def load(self) -> click.Command:
        """Import the command."""
        module = import_module(f"headwater.gateway.cli.{self._module}")
        command: click.Command = getattr(module, self._function)
        return command


class Group(click.Group):
    """A group that lists commands with whole sentences, and suggests names for typing errors."""

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
        return super().resolve_command(ctx, args)


class OnDemandGroup(Group):
    """A group that lists placeholders, and imports the command that is called."""

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, OnDemand) else command, rest


#: Commands of other modules.
COMMANDS: Final = (
    OnDemand(
        "audit:audit",
        "Show who has done what, and verify that the audit log was not changed.",
    ),
    OnDemand("deliveries:deliveries", "Look at deliveries: what became of them, and why."),
    OnDemand(
        "deployments:deployments",
        "Deploy workflow code, activate it, roll it back, and see what is active.",
    ),
    OnDemand("operate:dlq", "Look at dead letters and put them back into their topics."),
    OnDemand(
        "doctor:doctor",
        "Check the system: processes, versions, topics, lag, deployment, disk, clock, TLS.",
    ),
    OnDemand("export:export", "Write a table or view to a file, as of one moment."),
    OnDemand("workflows:graph", "Check, deploy and look at graphs."),
    OnDemand(
        "deliveries:impact",
        "Show what a delivery set: rows, columns that still have its values, and workflows.",
    ),
    OnDemand(
        "instances:instances",
        "Show instances of workflows, create and control them, send events to them.",
    ),
    OnDemand("jobs:jobs", "List the jobs of graphs, activate them, and end them."),
    OnDemand(
        "operations:rebuild",
        "Build a table, or the workflows, again from offset 0 with this release, and compare.",
    ),
    OnDemand("operations:replay", "Process deliveries again: those that match all options."),
    OnDemand("runs:runs", "Create runs once per idempotency key, show and cancel them."),
    OnDemand("options:settings", "Show every setting: its variable, value, default and meaning."),
    OnDemand(
        "webhook:sources",
        "List the sources of deliveries: paths, signature schemes and providers.",
    ),
    OnDemand("sync:sync", "Copy the rows into a SQLite file: everything at first, then changes."),
    OnDemand(
        "terra_stand_in:terra_stand_in",
        "Imitate Terra: connect people who do not exist, and post signed, made-up data.",
    ),
    OnDemand(
        "user_tokens:token",
        "Print a user's token, of the development issuer of `headwater up`.",
    ),
    OnDemand("topics:topics", "List and create Headwater's topics, check and repair them."),
    OnDemand(
        "operate:trace",
        "Show the trace of a delivery: every stage, its time, and its result.",
    ),
    OnDemand("users:user", "Show or wipe everything about one user."),
    OnDemand(
        "doctor:validate_ownership",
        "Check that only workers are requested to execute runs.",
    ),
    OnDemand(
        "webhook:webhook", "Sign deliveries as their sources do, and find out why one was refused."
    ),
    OnDemand(
        "deliveries:why",
        "Show where the values of a row come from: which delivery set each, and what it overrode.",
    ),
    OnDemand("workflows:workflows", "List workflows."),
)
