"""`headwater instances logs`: log lines of runs, optionally as they are written."""

from collections.abc import AsyncGenerator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import click

from headwater.gateway.cli.instance_formatting import (
    LEVEL_STYLES,
    LOG_WIDTHS,
    graph_event_row,
    log_row,
)
from headwater.gateway.cli.options import combined, examples
from headwater.gateway.cli.output import at_terminal, print_line, print_lines_of_json, say
from headwater.gateway.cli.results import json_option
from headwater.gateway.cli.workflow_service import (
    ENVIRONMENT,
    InstanceName,
    instance_named,
    service_options,
)

if TYPE_CHECKING:
    from headwater.gateway.client.handles import InstanceHandle
    from headwater.gateway.client.sync_client import SyncClient
    from headwater.schemas.answers import GraphEvent, LogLine

_LEVELS: Final = ("debug", "info", "warn", "error")


#: Options that select log lines of a run.
log_options: Final = combined(
    click.option(
        "--run", type=click.IntRange(0), help="Number of the run, from 0. Default: the current."
    ),
    click.option(
        "--log-level", type=click.Choice(_LEVELS), help="Only log lines of exactly this level."
    ),
    click.option("--log-category", metavar="CATEGORY", help="Only log lines of this category; "
                 "the engine's is `system`."),
)  # fmt: skip


@click.command(
    "logs",
    epilog=examples(
        "headwater instances logs order/order-1",
        "headwater instances logs order/order-1 --follow",
        "headwater instances logs order/order-1 --limit 20       the last 20",
        "headwater instances logs order/order-1 --log-level error --run 0",
        "headwater instances logs order/order-1 --run 1 --follow   until run 2 begins",
        "headwater instances logs order/order-1 --log-category system",
        "headwater instances logs review/review-1 --follow --names task.failed,fan_in.completed",
    )
    + ENVIRONMENT,
)
@instance_named
@log_options
@click.option("--limit", type=click.IntRange(1, 100_000), help="Only the last LIMIT lines.")
@click.option("--follow", is_flag=True, help="Show new lines until the instance ends.")
@click.option(
    "--names",
    metavar="NAME,…",
    help="With --follow: also these workflow events of a "
    "graph, such as task.failed or fan_in.completed.",
)
@json_option
@service_options
def show_logs(  # noqa: PLR0913 (one parameter a flag; click names them)
    client: "SyncClient",
    *,
    instance: InstanceName,
    run: int | None,
    log_level: str | None,
    log_category: str | None,
    limit: int | None,
    follow: bool,
    names: str | None,
    as_json: bool,
) -> None:
    """Show what a run matches logged.

    Shows the code's own lines and those of the engine (category system), in the order of the log.
    Lines that a replay wrote again are marked. JSON has an object per line.
    """
    graph_events = _graph_events(names, follow=follow)
    line_filter = _LineFilter(run, log_level, log_category)
    printer = _LinePrinter(as_json=as_json)

    handle = instance.handle(client)
    if not (as_json or at_terminal()):
        print_line({name: name for name in LOG_WIDTHS}, LOG_WIDTHS, {})
    if limit is None:
        _show_all(client, handle, printer, line_filter)
    else:
        with closing(client.iterate(line_filter.lines(handle, "desc"))) as lines:
            for line in reversed(list(islice(lines, limit))):
                printer.show(line)
    if follow:
        _follow(client, handle, printer, line_filter, graph_events)
        if run is not None:
            # The run may have logged its last lines while the next run began.
            _show_all(client, handle, printer, line_filter)
    if not printer.any:
        printer.say(f"{instance} has logged no such lines.")


def _graph_events(names: str | None, *, follow: bool) -> frozenset[str]:
    """Return the workflow events to show.

    Raises:
        click.UsageError: There is no such event, or nothing is followed.
    """
    if names is None:
        return frozenset()
    from headwater.schemas.answers import GRAPH_EVENTS  # noqa: PLC0415 (loads msgspec)

    if not follow:
        raise click.UsageError("--names: add --follow; workflow events are shown as they happen")
    requested = frozenset(names.split(","))
    unknown = requested.difference(GRAPH_EVENTS)
    if unknown:
        expected = ", ".join(GRAPH_EVENTS)
        raise click.UsageError(f"--names: expected some of {expected}, found {min(unknown)!r}")
    return requested


class _LinePrinter:
    """Prints log lines without duplicates: the stream overlaps with lines that were read before."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last_printed_id = ""
        self.any = False

    def say(self, hint: str) -> None:
        """Print a line to standard error, for people."""
        if not self._as_json:
            say(hint)

    def show(self, line: "LogLine") -> None:
        """Print a line unless it was printed before; ids are in the order of the log."""
        if line.id and line.id <= self._last_printed_id:
            return
        self._last_printed_id, self.any = line.id, True
        if self._as_json:
            print_lines_of_json(line)
        else:
            print_line(log_row(line), LOG_WIDTHS, {"level": LEVEL_STYLES})

    def show_graph_event(self, event: "GraphEvent") -> None:
        """Print a workflow event of a graph."""
        self.any = True
        if self._as_json:
            print_lines_of_json(event)
        else:
            print_line(graph_event_row(event), LOG_WIDTHS, {})


class _LineFilter(NamedTuple):
    """Which lines are printer. If `run` is None, lines of the current run and later ones."""

    run: int | None
    level: str | None
    category: str | None

    def lines(
        self, instance: "InstanceHandle", order: Literal["asc", "desc"]
    ) -> AsyncGenerator["LogLine"]:
        return instance.logs(self.run, level=self.level, category=self.category, order=order)

    def matches(self, line: "LogLine") -> bool:
        return self.level in (None, line.level) and self.category in (None, line.category)


def _show_all(
    client: "SyncClient",
    instance: "InstanceHandle[Any]",
    printer: _LinePrinter,
    line_filter: _LineFilter,
) -> None:
    for line in client.iterate(line_filter.lines(instance, "asc")):
        printer.show(line)


def _follow(
    client: "SyncClient",
    instance: "InstanceHandle[Any]",
    printer: _LinePrinter,
    line_filter: _LineFilter,
    graph_events: frozenset[str],
) -> None:
    name = f"{instance.workflow_name}/{instance.id}"
    names = {"status", "log", *graph_events} if graph_events else ()
    with closing(client.iterate(instance.follow(names=names))) as items:
        for item in items:
            # A newer release's messages may have no run.
            run_number = getattr(item.data, "run_number", None)
            if (
                line_filter.run is not None
                and run_number is not None
                and run_number > line_filter.run
            ):
                printer.say(
                    f"run {line_filter.run} of {name} has ended: run {run_number} has begun"
                )
                return
            if item.event == "log" and line_filter.matches(item.data):
                printer.show(item.data)
            elif item.event in graph_events:
                printer.show_graph_event(item.data)
            elif item.event == "end":
                printer.say(f"{name} has ended: {item.data.status}")
