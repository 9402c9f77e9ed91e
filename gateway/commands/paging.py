"""Listings of several pages, as commands ask for them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import click

from headwater.gateway.commands.output import say

T = TypeVar("T")

#: Asks for a page of a size, after a cursor: rows, and the cursor of the next page if there is one.
Page: TypeAlias = Callable[[int, str | None], Awaitable[tuple[Sequence[T], str | None]]]

cursor_option = click.option("--cursor", help="Go on after the cursor of an earlier listing.")


def limit_option(
    most: int, first: str = "newest"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--limit`: how many, at most; `first` says which of them come first."""
    return click.option(
        "--limit",
        type=click.IntRange(1, most),
        default=50,
        show_default=True,
        help=f"How many, at most; the {first} come first.",
    )


def say_rest(found: Sequence[object], more: str | None, *, none: str, by: str = "--cursor") -> None:
    """Says of a listing that it has nothing, and how it goes on."""
    if not found:
        say(none)
    if more:
        say(f"There are more: {by} {more}")


async def gathered(
    page: Page[T], *, limit: int, page_size: int, cursor: str | None
) -> tuple[list[T], str | None]:
    """Rows of as many pages as it takes, and the cursor behind them if there are more."""
    found: list[T] = []
    while True:
        rows, cursor = await page(min(page_size, limit - len(found)), cursor)
        found += rows
        if cursor is None or len(found) >= limit:
            return found, cursor
