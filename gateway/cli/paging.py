"""Paging of commands that list something."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import click

from headwater.gateway.cli.output import say

T = TypeVar("T")

#: Fetches a page of a size after a cursor: rows, and the cursor of the next page if there is one.
Page: TypeAlias = Callable[[int, str | None], Awaitable[tuple[Sequence[T], str | None]]]

cursor_option = click.option("--cursor", help="Continue after an earlier listing's cursor.")


def limit_option(
    largest: int, first: str = "newest"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `--limit`; `first` names the rows that come first."""
    return click.option(
        "--limit",
        type=click.IntRange(1, largest),
        default=50,
        show_default=True,
        help=f"How many, at most; the {first} come first.",
    )


def say_more(rows: Sequence[object], more: str | None, *, none: str, by: str = "--cursor") -> None:
    """Print that a listing is empty, or the cursor of its next page."""
    if not rows:
        say(none)
    if more:
        say(f"There are more: {by} {more}")


async def collect_pages(
    page: Page[T], *, limit: int, page_size: int, cursor: str | None
) -> tuple[list[T], str | None]:
    """Return rows of as many pages as needed, and the cursor after them if there are more."""
    collected: list[T] = []
    while True:
        rows, cursor = await page(min(page_size, limit - len(collected)), cursor)
        collected += rows
        if cursor is None or len(collected) >= limit:
            return collected, cursor
