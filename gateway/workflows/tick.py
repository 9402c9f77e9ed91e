"""Ticks: somebody else's clock drives the workers that were started with --tick."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

import httpx
import msgspec

from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.bodies import Tick, WorkerTick
from headwater.schemas.answers import Ticked, WorkerTicked
from headwater.schemas.errors import PARSE_ERRORS

#: Seconds for all that a tick may do; a worker that needs longer goes on without anybody waiting.
_TIMEOUT_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 2.0


class Ticks:
    """The workers' end of a tick. Several at a time are safe: a worker takes them in turns."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = deque(urls)
        self._http: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Prepares; the worker may be down, now or later."""
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S), trust_env=False
        )

    async def stop(self) -> None:
        """Disconnects."""
        if self._http is not None:
            await self._http.aclose()

    def require(self) -> None:
        """Refuses where ticks are not enabled.

        Errors: Problem.
        """
        if not self._urls:
            raise Problem(
                "tick_disabled",
                "Ticks are off. To enable them, start a worker with --tick, set HEADWATER_TICK_URL "
                "to where it listens and HEADWATER_TICK_KEY to a key of your own.",
            )

    async def tick(self, asked: Tick) -> Ticked:
        """Has all workers do what is due.

        Shape:  what is asked for is for all of them together: without a number they work at the
                same time; with one they do one after the other, each what is left, and another
                one is the first each time.
        Errors: Problem, when none is there; or when one does not say what it did, after the others
                had their turn.
        """
        self._urls.rotate(-1)
        found: list[WorkerTicked | Problem | None]
        if asked.max_instances is None and asked.max_steps is None:
            found = await asyncio.gather(*(self._tick(url, asked) for url in self._urls))
        else:
            found = await self._one_after_the_other(asked)
        faults = [each for each in found if isinstance(each, Problem)]
        if faults:
            raise faults[0]
        done = [each for each in found if isinstance(each, WorkerTicked)]
        if not done and any(each is None for each in found):
            raise _unavailable(", ".join(self._urls), "no worker")
        return Ticked(processed=sum(each.processed for each in done))

    async def _one_after_the_other(self, asked: Tick) -> list[WorkerTicked | Problem | None]:
        found: list[WorkerTicked | Problem | None] = []
        most, steps = asked.max_instances, asked.max_steps
        # Of several workers, all do what goes on before any of them does what begins.
        for continuing in (True, False) if len(self._urls) > 1 else (False,):
            for url in self._urls:
                if 0 in (most, steps):
                    return found
                left = WorkerTick(max_instances=most, max_steps=steps, continuing=continuing)
                each = await self._tick(url, left)
                found.append(each)
                if isinstance(each, Problem):
                    return found  # Nobody knows what is left.
                if each is not None:
                    most, steps = _left(most, each.processed), _left(steps, each.steps)
        return found

    async def _tick(self, url: str, asked: Tick) -> WorkerTicked | Problem | None:
        """What one worker did; None where none listens."""
        assert self._http is not None  # noqa: S101 (the application started it)
        try:
            answer = await self._http.post(url, content=msgspec.json.encode(asked))
            answer.raise_for_status()
            return msgspec.json.decode(answer.content, type=WorkerTicked)
        except httpx.ConnectError:
            return None
        except (httpx.HTTPError, *PARSE_ERRORS) as error:
            return _unavailable(url, str(error) or type(error).__name__)


def _left(most: int | None, used: int) -> int | None:
    return None if most is None else max(0, most - used)


def _unavailable(where: str, found: str) -> Problem:
    return Problem(
        "worker_unavailable",
        f"expected the worker at {where} to answer how much it did, found {found}; what it began "
        "it may go on with",
    )
