"""Listings of several pages, as commands ask for them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

import click

T = TypeVar("T")

#: Asks for a page of a size, after a cursor: rows, and the cursor of the next page if there is one.
Page: TypeAlias = Callable[[int, str | None], Awaitable[tuple[Sequence[T], str | None]]]

cursor_option = click.option("--cursor", help="Go on after the cursor of an earlier listing.")


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
