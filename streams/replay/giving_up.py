"""Entries that nobody awaits any more: they are cancelled, as those of a race's losers are.

Left open, a wait would take an event from a later one, and a child would go on for nobody. An entry
is given up where the author's code cancels the task that awaits it, or says that it was removed.
That happens at the same place on replay, so what has been given up has no result for whoever asks
again, even if it was recorded meanwhile: only the record knows that, not the code.

What is under way when the code of a scope has ended is given up as well.
"""

import asyncio
from typing import TYPE_CHECKING

from headwater.processors.replay.commands import Cancel
from headwater.processors.replay.state import OPEN, Entry

if TYPE_CHECKING:
    from headwater.streams.replay.scope import Scope


async def outcome(scope: "Scope", key: str) -> Entry:
    """The result of an entry, which is given up if what awaits it is cancelled first."""
    future = scope.run.result(key)
    try:
        return await future
    except asyncio.CancelledError:
        if future.cancelled():
            give_up(scope, key)
        raise


def give_up(scope: "Scope", key: str) -> None:
    """Cancels an entry and what is beneath it.

    What ends a whole branch or the run cancels tasks too, and says itself what becomes of entries.
    """
    run = scope.run
    if run.closed or scope.is_lost():
        return
    run.record.given_up.add(key)
    entry = run.entries.get(key)
    # A step in its first attempt has no record yet.
    is_open = key in run.calls if entry is None else entry.status in OPEN
    if is_open and not scope.retold:
        run.say(Cancel(key, tuple(run.abandon([key]))))


def come_to_end(scope: "Scope", error: Exception | None) -> Exception | None:
    """Ends a scope whose code is through; gives the error that it ends with.

    What it has left under way is given up: a gather of which one has failed leaves the others. But
    what nobody ever waited for is an error of code that returns.
    """
    error = error or scope.left_undone()
    for key in scope.under_way:
        give_up(scope, key)
    scope.through = True
    for task in scope.under_way.values():
        if task is not None:
            task.cancel()
    return error
