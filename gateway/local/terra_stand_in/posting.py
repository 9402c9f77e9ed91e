"""Post signed deliveries to Headwater and retry them; inject errors on request."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from typing import Annotated, Any, Final, Literal

import httpx2
import msgspec

from headwater.gateway.local.terra_stand_in.deliveries import records_of
from headwater.gateway.local.terra_stand_in.people import Due, People
from headwater.processors.signatures import SCHEMES, sign

#: Kinds of injected errors.
Kind = Literal["status", "stall", "die"]
_STATUS: Final = 500


class InjectedError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An error of the next requests.

    Attributes:
        kind: `status` answers with a status; `stall` delays the response; `die` ends the process.
        path: Prefix of the path of matching requests.
        query: Part of the query of matching requests.
        times: Number of requests.
        status: Status of the response.
        retry_after: Retry-After header of the response.
        seconds: Seconds for which a request stalls.
        after: Number of deliveries before the process ends.
    """

    kind: Kind
    path: str = "/"
    query: str = ""
    times: Annotated[int, msgspec.Meta(ge=1)] = 1
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] = _STATUS
    retry_after: str | None = None
    seconds: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 3_600.0
    after: Annotated[int, msgspec.Meta(ge=0)] = 0


class ErrorInjector:
    """The queue of errors to inject."""

    def __init__(self, first: Iterable[InjectedError] = ()) -> None:
        self._pending = list(first)

    def add(self, error: InjectedError) -> None:
        """Add an error after the pending ones."""
        self._pending.append(error)

    def clear(self) -> None:
        """Remove all pending errors."""
        self._pending.clear()

    def next_for(self, path: str, query: str) -> InjectedError | None:
        """Return the first error that matches a request, and consume it once."""
        for number, error in enumerate(self._pending):
            matches = path.startswith(error.path) and error.query in query
            if error.kind != "die" and matches:
                self._consume(number)
                return error
        return None

    def must_exit(self) -> bool:
        """Whether the process must exit before its next delivery."""
        for number, error in enumerate(self._pending):
            if error.kind == "die":
                if error.after == 0:
                    return True
                self._pending[number] = msgspec.structs.replace(error, after=error.after - 1)
                return False
        return False

    def _consume(self, number: int) -> None:
        error = self._pending[number]
        if error.times > 1:
            self._pending[number] = msgspec.structs.replace(error, times=error.times - 1)
        else:
            del self._pending[number]


# -- posting

log = logging.getLogger(__name__)

#: Exit code after the injected error `die`.
DIED: Final = 86
#: Terra's timeout.
_TIMEOUT_S: Final = 8.0
_CONCURRENT: Final = 8
_FIRST_PAUSE_MS: Final = 250
_LONGEST_PAUSE_MS: Final = 10_000
#: Seconds between checks for due deliveries, unless `wake_up` is called.
_POLL_EVERY_S: Final = 0.25


class Posting:
    """Posts deliveries that are due, until it is cancelled."""

    def __init__(
        self,
        people: People,
        injector: ErrorInjector,
        *,
        target: str,
        secret: str,
        seed: int,
        clock: Callable[[], int],
    ) -> None:
        self._people = people
        self._injector = injector
        self._target = target
        self._secret = secret
        self._seed = seed
        self._clock = clock
        self._woken = asyncio.Event()
        self._in_flight: set[int] = set()

    def wake_up(self) -> None:
        """Check for due deliveries now."""
        self._woken.set()

    async def run(self) -> None:
        """Post deliveries when they are due."""
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S) as http, asyncio.TaskGroup() as tasks:
            while True:
                for due in self._next():
                    self._in_flight.add(due.id)
                    tasks.create_task(self._post(http, due))
                self._woken.clear()
                try:
                    async with asyncio.timeout(_POLL_EVERY_S):
                        await self._woken.wait()
                except TimeoutError:
                    continue

    def _next(self) -> list[Due]:
        """Return due deliveries that are not in flight, up to the limit of concurrent ones."""
        free = _CONCURRENT - len(self._in_flight)
        due = self._people.due(self._clock(), 2 * _CONCURRENT) if free else []
        return [post for post in due if post.id not in self._in_flight][:free]

    async def _post(self, http: httpx2.AsyncClient, due: Due) -> None:
        if self._injector.must_exit():
            log.warning("the Terra stand-in exits because of the injected error `die`")
            os._exit(DIED)
        body = self._body(due)
        try:
            if body is not None:
                await self._send(http, due, msgspec.json.encode(body))
            self._people.posted(due.id)
        except (httpx2.HTTPError, OSError) as error:
            pause_ms = min(_LONGEST_PAUSE_MS, _FIRST_PAUSE_MS * 2 ** min(due.attempts, 16))
            self._people.put_off(due.id, self._clock() + pause_ms)
            log.info("a delivery failed and is retried in %s ms: %s", pause_ms, error)
        finally:
            self._in_flight.discard(due.id)
            self._woken.set()

    async def _send(self, http: httpx2.AsyncClient, due: Due, body: bytes) -> None:
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
        """Return the body of a delivery; None if there is nothing to send."""
        if due.post.chunk is None:
            return due.post.body
        kind, user_id, first, last = due.post.chunk
        person = self._people.person(user_id)
        if person is None:
            return None
        start, end = date.fromisoformat(first), date.fromisoformat(last)
        days = (start + timedelta(days=number) for number in range((end - start).days + 1))
        records = [
            record
            for day in days
            for record in records_of(kind, self._seed, user_id, person.provider, day)
        ]
        if not records:
            return None
        return {"type": kind, "version": "2022-03-16", "user": person.as_user(), "data": records}
