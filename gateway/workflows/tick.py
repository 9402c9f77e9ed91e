"""Ticks: somebody else's clock drives a worker that was started with --tick."""

from typing import Final

import httpx
import msgspec

from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.bodies import Tick
from headwater.schemas.answers import Ticked

#: Seconds for all that a tick may do; a worker that needs longer goes on without anybody waiting.
_TIMEOUT_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 2.0


class Ticks:
    """The worker's end of a tick. Several at a time are safe: its owner takes turns."""

    def __init__(self, url: str) -> None:
        self._url = url
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
        if not self._url:
            raise Problem(
                "tick_disabled",
                "Ticks are off. To enable them, start a worker with --tick, set HEADWATER_TICK_URL "
                "to where it listens and HEADWATER_TICK_KEY to a key of your own.",
            )

    async def tick(self, asked: Tick) -> Ticked:
        """Has the worker do what is due.

        Errors: Problem.
        """
        assert self._http is not None  # noqa: S101 (the application started it)
        try:
            answer = await self._http.post(self._url, content=msgspec.json.encode(asked))
            answer.raise_for_status()
            return msgspec.json.decode(answer.content, type=Ticked)
        except (httpx.HTTPError, msgspec.MsgspecError) as error:
            raise Problem(
                "worker_unavailable",
                f"expected the worker at {self._url} to answer how much it did, found "
                f"{str(error) or type(error).__name__}; what it began it may go on with",
            ) from error
