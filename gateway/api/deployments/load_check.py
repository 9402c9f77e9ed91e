"""Requests every workflow worker to load a deployment before it is activated.

The request and the answers are records of the topic of deployments, which every worker follows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from headwater.schemas.deployments import DeploymentCreated, LoadRequested
from headwater.schemas.replay_answers import WorkerLoad
from headwater.streams.workflows.deployment_log import DeploymentLog

#: Seconds between two reads of the answers.
_LOOK_S: Final = 0.25


class LoadCheck:
    """Finds the workers that cannot load a deployment.

    Args:
        log: The topic of deployments.
        workers: Returns the names of the workers that run.
        within_s: Longest time to wait for answers, in seconds; 0 requests nothing.
        clock: Returns Unix milliseconds.
        new_id: Returns a unique id.
    """

    def __init__(
        self,
        log: DeploymentLog,
        workers: Callable[[], Awaitable[Sequence[str]]],
        *,
        within_s: float,
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._log = log
        self._workers = workers
        self._within_s = within_s
        self._clock = clock
        self._new_id = new_id

    async def check(self, deployment: DeploymentCreated) -> list[WorkerLoad]:
        """Return which of the workers that run can load a deployment.

        Raises:
            BrokerUnavailable: Kafka is not available.
        """
        if not self._within_s:
            return []
        workers = await self._workers()
        if not workers:
            return []
        request = self._new_id()
        record = LoadRequested(id=deployment.id, request=request, at_ms=self._clock())
        await self._log.write(record)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._within_s
        while True:
            answers = (await self._log.catch_up()).loads.get(request, {})
            if answers.keys() >= set(workers) or loop.time() > until_s:
                return [_load_of(worker, answers.get(worker)) for worker in workers]
            await asyncio.sleep(_LOOK_S)


def _load_of(worker: str, error: str | None) -> WorkerLoad:
    return WorkerLoad(
        worker=worker, loaded=error == "", answered=error is not None, reason=error or ""
    )
