"""Ticks: requests that drive the workers started with --tick."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

import httpx
import msgspec

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.bodies import Tick, WorkerTick
from headwater.schemas.answers import Ticked, WorkerTicked
from headwater.schemas.errors import PARSE_ERRORS

#: Seconds that a tick waits for a worker, which continues if it needs longer.
_TIMEOUT_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 2.0


class Ticks:
    """Sends ticks to workers. Concurrent ticks are safe: a worker handles one at a time."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = deque(urls)
        self._http: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Create the HTTP client; the workers need not be running."""
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S), trust_env=False
        )

    async def stop(self) -> None:
        """Close the HTTP client."""
        if self._http is not None:
            await self._http.aclose()

    def require(self) -> None:
        """Refuse ticks when they are disabled.

        Raises:
            Problem: They are disabled.
        """
        if not self._urls:
            raise Problem(
                "tick_disabled",
                "Ticks are off. To enable them, start a worker with --tick, set HEADWATER_TICK_URL "
                "to its address and HEADWATER_TICK_KEY to a key of your own.",
            )

    async def tick(self, request: Tick) -> Ticked:
        """Make the workers execute what is due.

        Limits of the request apply to all workers together. Without limits the workers are called
        at the same time. With limits they are called one after the other, each with what is left,
        and every tick begins with another worker.

        Raises:
            Problem: No worker listens, or a worker did not return a result. Without limits all
                workers were called all the same; with limits none after that one.
        """
        self._urls.rotate(-1)
        results: list[WorkerTicked | Problem | None]
        if request.max_instances is None and request.max_steps is None:
            results = await asyncio.gather(*(self._tick_worker(url, request) for url in self._urls))
        else:
            results = await self._tick_in_turn(request)
        problems = [result for result in results if isinstance(result, Problem)]
        if problems:
            raise problems[0]
        done = [result for result in results if isinstance(result, WorkerTicked)]
        if not done and any(result is None for result in results):
            raise _unavailable(", ".join(self._urls), "no worker")
        return Ticked(processed=sum(result.processed for result in done))

    async def _tick_in_turn(self, request: Tick) -> list[WorkerTicked | Problem | None]:
        results: list[WorkerTicked | Problem | None] = []
        instances, steps = request.max_instances, request.max_steps
        # All workers continue their instances before any of them begins new ones.
        for continuing in (True, False) if len(self._urls) > 1 else (False,):
            for url in self._urls:
                if 0 in (instances, steps):
                    return results
                remaining = WorkerTick(
                    max_instances=instances, max_steps=steps, continuing=continuing
                )
                result = await self._tick_worker(url, remaining)
                results.append(result)
                if isinstance(result, Problem):
                    return results  # What is left of the limits is unknown.
                if result is not None:
                    instances = _subtract(instances, result.processed)
                    steps = _subtract(steps, result.steps)
        return results

    async def _tick_worker(self, url: str, request: Tick) -> WorkerTicked | Problem | None:
        """Call one worker; return None if none listens at the URL."""
        assert self._http is not None  # noqa: S101 (the application started it)
        try:
            response = await self._http.post(url, content=msgspec.json.encode(request))
            response.raise_for_status()
            return msgspec.json.decode(response.content, type=WorkerTicked)
        except httpx.ConnectError:
            return None
        except (httpx.HTTPError, *PARSE_ERRORS) as error:
            return _unavailable(url, str(error) or type(error).__name__)


def _subtract(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)


def _unavailable(url: str, error: str) -> Problem:
    return Problem(
        "worker_unavailable",
        f"expected the worker at {url} to return how much it did, found {error}; it may continue "
        "what it began",
    )
