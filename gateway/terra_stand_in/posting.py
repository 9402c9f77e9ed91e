"""Posting: what the stand-in owes to Headwater, signed, and sent until it is taken."""

import asyncio
import logging
import os
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any, Final

import httpx
import msgspec

from headwater.gateway.terra_stand_in.error_injection import Faults
from headwater.gateway.terra_stand_in.generated_data import records_of
from headwater.gateway.terra_stand_in.people import Due, People
from headwater.processors.signatures import SCHEMES, sign

log = logging.getLogger(__name__)

#: Exit code of a process that was told to die.
DIED: Final = 86
#: Terra waits that long for an answer.
_TIMEOUT_S: Final = 8.0
_SIDE_BY_SIDE: Final = 8
_FIRST_PAUSE_MS: Final = 250
_LONGEST_PAUSE_MS: Final = 10_000
#: How long nobody looks when nobody says that there is something to do.
_LOOK_EVERY_S: Final = 0.25


class Posting:
    """Posts what is due, until it is cancelled."""

    def __init__(
        self,
        people: People,
        faults: Faults,
        *,
        target: str,
        secret: str,
        seed: int,
        clock: Callable[[], int],
    ) -> None:
        self._people = people
        self._faults = faults
        self._target = target
        self._secret = secret
        self._seed = seed
        self._clock = clock
        self._woken = asyncio.Event()
        self._on_their_way: set[int] = set()

    def wake_up(self) -> None:
        """Says that something is to be posted."""
        self._woken.set()

    async def run(self) -> None:
        """Posts everything that is due, and then what becomes so."""
        async with httpx.AsyncClient(timeout=_TIMEOUT_S) as http, asyncio.TaskGroup() as tasks:
            while True:
                for due in self._next():
                    self._on_their_way.add(due.id)
                    tasks.create_task(self._post(http, due))
                self._woken.clear()
                try:
                    async with asyncio.timeout(_LOOK_EVERY_S):
                        await self._woken.wait()
                except TimeoutError:
                    continue

    def _next(self) -> list[Due]:
        """What is due and not on its way, as far as there is room."""
        room = _SIDE_BY_SIDE - len(self._on_their_way)
        due = self._people.due(self._clock(), 2 * _SIDE_BY_SIDE) if room else []
        return [each for each in due if each.id not in self._on_their_way][:room]

    async def _post(self, http: httpx.AsyncClient, due: Due) -> None:
        if self._faults.dies_now():
            log.warning("the Terra stand-in dies, as it was told to")
            os._exit(DIED)
        body = self._body(due)
        try:
            if body is not None:
                await self._send(http, due, msgspec.json.encode(body))
            self._people.posted(due.id)
        except (httpx.HTTPError, OSError) as error:
            pause_ms = min(_LONGEST_PAUSE_MS, _FIRST_PAUSE_MS * 2 ** min(due.attempts, 16))
            self._people.put_off(due.id, self._clock() + pause_ms)
            log.info("a delivery is tried again in %s ms: %s", pause_ms, error)
        finally:
            self._on_their_way.discard(due.id)
            self._woken.set()

    async def _send(self, http: httpx.AsyncClient, due: Due, body: bytes) -> None:
        now_ms = self._clock()
        headers = {
            "content-type": "application/json",
            "terra-reference": due.post.reference,
            "x-terra-trace-id": f"{due.post.reference}-{due.id}",
            **sign(SCHEMES["terra"], body, self._secret, now_ms // 1_000),
        }
        answer = await http.post(self._target, content=body, headers=headers)
        answer.raise_for_status()
        self._people.count("deliveries")

    def _body(self, due: Due) -> dict[str, Any] | None:
        """The body of a post; None when there is nothing to say any more."""
        if due.post.chunk is None:
            return due.post.body
        kind, user_id, first, last = due.post.chunk
        person = self._people.person(user_id)
        if person is None:
            return None
        begins, ends = date.fromisoformat(first), date.fromisoformat(last)
        days = (begins + timedelta(days=number) for number in range((ends - begins).days + 1))
        records = [
            record
            for day in days
            for record in records_of(kind, self._seed, user_id, person.provider, day)
        ]
        if not records:
            return None
        return {"type": kind, "version": "2022-03-16", "user": person.as_user(), "data": records}
