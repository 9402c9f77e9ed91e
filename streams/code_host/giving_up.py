"""Entries that nobody awaits any more: they are cancelled, as those of a race's losers are.

Left open, a wait would take an event from a later one, and a child would go on for nobody. An entry
is given up where the author's code cancels the task that awaits it, or says that it was removed.
That happens at the same place on replay, so what has been given up has no result for whoever asks
again, even if it was recorded meanwhile: only the record knows that, not the code.
"""

import asyncio
from typing import TYPE_CHECKING

from processors.replay.commands import Cancel
from processors.replay.state import OPEN, Entry

if TYPE_CHECKING:
    from streams.code_host.scope import Scope


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
    if entry is not None and entry.status in OPEN and not scope.retold:
        run.say(Cancel(key, tuple(run.abandon([key]))))
