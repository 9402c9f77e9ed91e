"""`headwater instances logs`: what runs have logged, and what they log now."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import click

from headwater.gateway.commands.instance_words import LEVEL_STYLES, LOG_WIDTHS, log_row
from headwater.gateway.commands.options import examples, json_option, several
from headwater.gateway.commands.output import at_terminal, print_line, print_lines_of_json, say
from headwater.gateway.commands.workflow_service import (
    ENVIRONMENT,
    Named,
    Service,
    instance_named,
    service_options,
)

if TYPE_CHECKING:
    from headwater.gateway.client import Client, InstanceHandle
    from headwater.schemas.answers import LogLine

_LEVELS: Final = ("debug", "info", "warn", "error")


#: Which lines of a run.
log_options: Final = several(
    click.option(
        "--run", type=click.IntRange(0), help="Of this run; the first is 0. Default: the current."
    ),
    click.option(
        "--log-level", type=click.Choice(_LEVELS), help="Only log lines of exactly this level."
    ),
    click.option("--log-category", metavar="CATEGORY", help="Only log lines of this category; "
                 "those of the engine are `system`."),
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
    )
    + ENVIRONMENT,
)
@instance_named
@log_options
@click.option("--limit", type=click.IntRange(1, 100_000), help="Only the last so many.")
@click.option("--follow", is_flag=True, help="Stay and show new lines until the instance ends.")
@json_option
@service_options
def show_logs(  # noqa: PLR0913 (one parameter a flag; click names them)
    service: Service,
    *,
    instance: Named,
    run: int | None,
    log_level: str | None,
    log_category: str | None,
    limit: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Show what a run has logged.

    Its own lines, and those of the engine (category system), in the order of the log. Lines that
    a replay has written again are marked. As JSON each is an object, on a line of its own.
    """
    asked = _Asked(run, log_level, log_category)
    shown = _Shown(as_json=as_json)

    async def ask(client: "Client") -> None:
        one = instance.of(client)
        if limit is None:
            await _show_all(one, shown, asked)
        else:
            async with aclosing(asked.lines(one, "desc")) as lines:
                for line in reversed(await _first(lines, limit)):
                    shown.show(line)
        if follow:
            await _follow(one, shown, asked)
            if run is not None:
                # What it logged last may have come while the next run began.
                await _show_all(one, shown, asked)

    if not (as_json or at_terminal()):
        print_line({name: name for name in LOG_WIDTHS}, LOG_WIDTHS, {})
    service.ask(ask)
    if not shown.any:
        say(f"{instance} has logged nothing that is asked for.")


class _Shown:
    """Prints lines, each once: the stream begins before the lines that were read already."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last_id = ""
        self.any = False

    def show(self, line: "LogLine") -> None:
        """Prints a line that is further than all before; ids are in the order of the log."""
        if line.id and line.id <= self._last_id:
            return
        self._last_id, self.any = line.id, True
        if self._as_json:
            print_lines_of_json(line)
        else:
            print_line(log_row(line), LOG_WIDTHS, {"level": LEVEL_STYLES})


class _Asked(NamedTuple):
    """Which lines are shown; a run of None is the current one, and those that follow it."""

    run: int | None
    level: str | None
    category: str | None

    def lines(
        self, instance: "InstanceHandle", order: Literal["asc", "desc"]
    ) -> AsyncGenerator["LogLine"]:
        return instance.logs(self.run, level=self.level, category=self.category, order=order)

    def has(self, line: "LogLine") -> bool:
        return self.level in (None, line.level) and self.category in (None, line.category)


async def _show_all(instance: "InstanceHandle", shown: _Shown, asked: _Asked) -> None:
    async with aclosing(asked.lines(instance, "asc")) as lines:
        async for line in lines:
            shown.show(line)


async def _first(lines: "AsyncIterator[LogLine]", limit: int) -> "list[LogLine]":
    found = []
    async for line in lines:
        found.append(line)
        if len(found) == limit:
            break
    return found


async def _follow(instance: "InstanceHandle", shown: _Shown, asked: _Asked) -> None:
    name = f"{instance.workflow_name}/{instance.id}"
    async with aclosing(instance.follow()) as items:
        async for item in items:
            # A newer release's messages may have no run.
            of = getattr(item.data, "run_number", None)
            if asked.run is not None and of is not None and of > asked.run:
                say(f"run {asked.run} of {name} has ended: run {of} came after it")
                return
            if item.event == "log" and asked.has(item.data):
                shown.show(item.data)
            elif item.event == "end":
                say(f"{name} has ended: {item.data.status}")
