"""Following an instance as it goes: server-sent events.

A message is a step, a token, an event, a line or the instance's status, in the shape that histories
have. Several may come of one record; the last of them carries its offset as the `id`, so whoever
goes on behind an id misses nothing and hears nothing twice.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Final

from headwater.gateway.http.problems import Problem
from headwater.gateway.http.streaming import Streamed
from headwater.gateway.workflows import wire
from headwater.gateway.workflows.freshness import Freshness
from headwater.gateway.workflows.positions import HEADER, stated
from headwater.projections.workflows.queries import Changed, Changes, LocatedInstance, Workflows
from headwater.schemas.answers import STREAMED, Answer, Instance, StatusOfRun
from headwater.schemas.errors import StoreUnavailable

#: Seconds of silence after which a comment is sent: proxies cut what is silent for 30 to 60 s.
HEARTBEAT_S: Final = 15.0
#: Streams at once. Each asks Postgres when its partition moves, at most every _GAP_S.
STREAMS_MAX: Final = 200
_GAP_S: Final = 0.05
#: Postgres is away: the stream stays, and asks again after so many seconds.
_RETRY_S: Final = 1.0
#: What a reader whose stream breaks off should wait.
_BEGIN: Final = b"retry: 1000\n\n"
_HEARTBEAT: Final = b": still here\n\n"

#: What the message of an answer is called; one that ends the stream is called `end`.
_EVENTS: Final = {kind: event for event, kind in STREAMED.items() if event != "end"}

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class Tails:
    """The streams of one gateway."""

    def __init__(
        self, workflows: Workflows, freshness: Freshness, *, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self._workflows = workflows
        self._freshness = freshness
        self._heartbeat_s = heartbeat_s
        self._closing = asyncio.Event()
        self.count = 0

    def close(self) -> None:
        """Ends all streams; their readers come back, to another gateway or later."""
        self._closing.set()

    def require_room(self) -> None:
        """Refuses one stream too many.

        Errors: Problem.
        """
        if self.count >= STREAMS_MAX:
            raise Problem(
                "overloaded", f"expected at most {STREAMS_MAX} streams at a time, found as many"
            )

    def response(self, found: LocatedInstance, after: int) -> "Streamed":
        """The stream of an instance's changes after an offset."""
        position = stated({found.partition: found.offset})
        return Streamed(
            iterator=self._follow(found, after),
            media_type="text/event-stream",
            headers={HEADER: position, "cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    async def _follow(self, found: LocatedInstance, after: int) -> AsyncGenerator[bytes, None]:
        self.count += 1
        try:
            yield _BEGIN
            async with aclosing(self._chunks(found, after)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.count -= 1

    async def _chunks(self, found: LocatedInstance, after: int) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        partition, status = found.partition, _status(found.instance)
        silent_since = loop.time()
        while not self._closing.is_set():
            seen = self._freshness.applied().get(partition, -1)
            changes = await self._changes(found.instance, after)
            if changes is None:
                await self._rest(_RETRY_S)
            else:
                after = changes.offset
                status = _latest(changes.rows) or status
                if changes.rows:
                    yield b"".join(_messages(changes.rows))
                    silent_since = loop.time()
                if changes.more:
                    continue
                if status.ended:
                    yield message("end", status, after)
                    return
                await self._moved(partition, seen)
            if loop.time() - silent_since >= self._heartbeat_s:
                yield _HEARTBEAT
                silent_since = loop.time()

    async def _changes(self, instance: Instance, after: int) -> Changes | None:
        """What changed after an offset; None while Postgres is away, or made anew."""
        try:
            return await self._workflows.changes(instance.meta.workflow_name, instance.id, after)
        except StoreUnavailable:
            return None

    async def _moved(self, partition: int, seen: int) -> None:
        """Waits until a partition has moved, the next heartbeat is due, or all streams end."""
        await self._rest(_GAP_S)
        moves = asyncio.ensure_future(
            self._freshness.reached({partition: seen + 1}, self._heartbeat_s, patient=True)
        )
        closes = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((moves, closes), return_when=asyncio.FIRST_COMPLETED)
        finally:
            moves.cancel()
            closes.cancel()
            await asyncio.gather(moves, closes, return_exceptions=True)
        if moves.done() and not moves.cancelled() and moves.exception() is not None:
            await self._rest(_RETRY_S)

    async def _rest(self, seconds: float) -> None:
        """Waits, unless all streams end."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            pass


def message(event: str, data: Answer, offset: int | None) -> bytes:
    """A message; without an offset the reader keeps the one before."""
    lines = [b"event: " + event.encode()]
    if offset is not None:
        lines.append(b"id: %d" % offset)
    # A value of an author's may be JSON on several lines.
    lines += [b"data: " + line for line in _LINE_END.split(wire.encode(data))]
    return b"\n".join(lines) + b"\n\n"


def _messages(rows: tuple[Changed, ...]) -> Iterator[bytes]:
    for index, changed in enumerate(rows):
        last = index + 1 == len(rows) or rows[index + 1].offset != changed.offset
        yield message(_EVENTS[type(changed.row)], changed.row, changed.offset if last else None)


def _latest(rows: tuple[Changed, ...]) -> StatusOfRun | None:
    return next((each.row for each in reversed(rows) if isinstance(each.row, StatusOfRun)), None)


def _status(instance: Instance) -> StatusOfRun:
    details = instance.details
    return StatusOfRun(
        status=details.status,
        error=details.error,
        output=details.output,
        run_number=instance.meta.run_number,
    )
