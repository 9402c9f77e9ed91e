"""Checks a deployment before it is activated: runs are replayed, and workers load it.

The request to load it and the answers are records of the topic of deployments, which every worker
follows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from headwater.gateway.api.workflows.replay_gate import ReplayGate
from headwater.schemas.deployments import DeploymentCreated, LoadRequested
from headwater.schemas.errors import BrokerUnavailable, StoreUnavailable
from headwater.schemas.replay_answers import NotReplayed, ReplayReport, WorkerLoad
from headwater.streams.workflows.deployment_log import DeploymentLog

_LOG: Final = logging.getLogger("headwater.gateway")

_INSTALLING: Final = "it is still installing the packages"
#: Seconds between two reads of the answers.
_LOOK_S: Final = 0.25


class LoadCheck:
    """Finds the workers that cannot load a deployment.

    Args:
        log: The topic of deployments.
        workers: Returns the names of the workers that run.
        within_s: Longest time to wait for answers, in seconds; 0 requests nothing.
        install_s: Longest time that workers may take to install packages, in seconds.
        clock: Returns Unix milliseconds.
        new_id: Returns a unique id.
    """

    def __init__(
        self,
        log: DeploymentLog,
        workers: Callable[[], Awaitable[Sequence[str]]],
        *,
        within_s: float,
        install_s: float,
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._log = log
        self._workers = workers
        self._within_s = within_s
        self._install_s = install_s
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
        answers = await self._answers(request, workers)
        try:
            await self._log.discard_loads(deployment.id, answers)
        except BrokerUnavailable as error:
            _LOG.warning("answers of workers are not deleted: %s", error)
        return [_load_of(worker, answers) for worker in workers]

    async def _answers(self, request: str, workers: Sequence[str]) -> Mapping[str, str | None]:
        """Return the answers of workers when all have answered, or no further ones are awaited."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while True:
            answers = (await self._log.catch_up()).loads.get(request, {})
            left = [worker for worker in workers if answers.get(worker) is None]
            # Workers that install packages are awaited, others may have been killed.
            installing = any(worker in answers for worker in left)
            within_s = self._within_s + (self._install_s if installing else 0)
            if not left or loop.time() - begin_s > within_s:
                return answers
            await asyncio.sleep(_LOOK_S)


class ActivationCheck:
    """Checks deployments.

    Args:
        gate: Replays runs.
        load_check: Finds workers that cannot load a deployment.
    """

    def __init__(self, gate: ReplayGate, load_check: LoadCheck) -> None:
        self._gate = gate
        self._load_check = load_check

    async def check(
        self, deployment: DeploymentCreated, *, without_runs: bool = False
    ) -> ReplayReport:
        """Return how runs of a deployment's workflows fit it, and whether workers can load it.

        Args:
            deployment: The deployment.
            without_runs: Whether runs that cannot be read are only reported.

        Raises:
            StoreUnavailable: Postgres, which knows the runs, is not available.
            BrokerUnavailable: Kafka is not available.
        """
        loading = asyncio.create_task(self._load_check.check(deployment))
        try:
            report = await self._gate.check(deployment)
        except StoreUnavailable as error:
            if not without_runs:
                loading.cancel()
                raise
            report = _unchecked(deployment, error)
        except BaseException:
            loading.cancel()
            raise
        return msgspec.structs.replace(report, workers=await loading)


def _unchecked(deployment: DeploymentCreated, error: StoreUnavailable) -> ReplayReport:
    """Return the report of a check that could not read the runs."""
    names = [workflow.name for workflow in deployment.workflows]
    reason = f"the runs are not known: {error.message}"
    skipped = [NotReplayed(workflow_name=name, runs=0, reason=reason) for name in names]
    return ReplayReport(runs=[], not_replayed=skipped)


def _load_of(worker: str, answers: Mapping[str, str | None]) -> WorkerLoad:
    error = answers.get(worker)
    reason = _INSTALLING if worker in answers and error is None else error or ""
    return WorkerLoad(worker=worker, loaded=error == "", answered=error is not None, reason=reason)
