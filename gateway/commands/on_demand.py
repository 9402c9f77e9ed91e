"""Commands that are imported when they are called: importing all of them is slow."""

from difflib import get_close_matches
from importlib import import_module
from typing import Final

import click
from typing_extensions import override

#: Limit of a command's summary in a listing; longer than all of them.
_SENTENCE_MAX: Final = 1_000


class OnDemand(click.Command):
    """Placeholder of a command in another module, with its name and summary."""

    def __init__(self, location: str, summary: str) -> None:
        """Make a placeholder of the command at `location`, module:function."""
        self._module, _, self._function = location.partition(":")
        super().__init__(self._function.replace("_", "-"), help=summary)

    def load(self) -> click.Command:
        """Import the command."""
        module = import_module(f"headwater.gateway.commands.{self._module}")
        command: click.Command = getattr(module, self._function)
        return command


class Group(click.Group):
    """A group that lists commands with whole sentences, and suggests names for typing errors."""

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
        "Look at who has done what, and verify that nobody has changed the record of it.",
    ),
    OnDemand("deliveries:deliveries", "Look at deliveries: what became of them, and why."),
    OnDemand(
        "deployments:deployments",
        "Deploy code of workflows, activate it, roll it back, and see what is active.",
    ),
    OnDemand("operate:dlq", "Look at dead letters and put them back into their topics."),
    OnDemand(
        "doctor:doctor",
        "Look at the house: parts, versions, topics, lag, deployment, disk, clock, certificates.",
    ),
    OnDemand("export:export", "Write a table or view to a file: all of it as it is at one moment."),
    OnDemand("graph:graph", "Check, deploy and look at graphs."),
    OnDemand(
        "lineage:impact",
        "Say what a delivery has set: rows, columns that still have its values, and workflows.",
    ),
    OnDemand(
        "instances:instances", "Look at instances of workflows, create, steer and signal them."
    ),
    OnDemand("jobs:jobs", "See the jobs of graphs, take them, and end them."),
    OnDemand(
        "rebuild:rebuild",
        "Make a table, or workflows, again with today's code, from offset 0 on, and compare.",
    ),
    OnDemand("replay:replay", "Have deliveries processed once more: all that is given has to fit."),
    OnDemand("runs:runs", "Create runs once under a key, see and cancel them."),
    OnDemand("local:settings", "Show every setting: its variable, value, default and meaning."),
    OnDemand(
        "webhook:sources",
        "List the sources of deliveries: their paths, how they are signed, who reads them.",
    ),
    OnDemand(
        "sync:sync", "Copy the rows into a SQLite file: everything at first, then what changed."
    ),
    OnDemand(
        "terra_stand_in:terra_stand_in",
        "Play Terra: connect people who do not exist, and post made data of theirs, signed.",
    ),
    OnDemand(
        "user_tokens:token",
        "Print a token of a user, of the development issuer that `headwater up` has.",
    ),
    OnDemand("topics:topics", "Look at the topics of Headwater, and make them."),
    OnDemand(
        "operate:trace",
        "Show the journey of a delivery: every stage, when, and what was decided there.",
    ),
    OnDemand("users:user", "Look at what is known of one user, or forget it."),
    OnDemand(
        "ownership:validate_ownership",
        "Say whether anybody but the workers is asked to execute runs.",
    ),
    OnDemand(
        "webhook:webhook", "Sign deliveries as their sources do, and find out why one was refused."
    ),
    OnDemand(
        "lineage:why",
        "Say where the values of a row come from: which delivery set each, and what it overrode.",
    ),
    OnDemand("workflows:workflows", "See which workflows exist."),
)
