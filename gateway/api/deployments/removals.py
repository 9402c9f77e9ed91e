"""Removes deployments on which no run is open.

The log of deployments has no order in common with the logs of runs. So a deployment is closed
first: a worker that decides a command that may start a run has read the log of deployments before,
so it starts no further run there. Then a fence through all partitions makes sure that everything
that was decided before the closing is in Postgres, and the open runs are counted. Whether a run or
the removal is first is thus decided by the logs, whatever happens in between.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from headwater.gateway.api.audit import attempt, note
from headwater.gateway.api.authentication import admitted_key
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows.runs.run_service import deployment_of
from headwater.processors.deployments import (
    ActivationRejected,
    Retired,
    active_message,
    graphs_of,
    removal_message,
)
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.deployments import (
    CLOSED,
    REMOVED,
    REOPENED,
    DeploymentCreated,
    DeploymentRetired,
)
from headwater.schemas.failures import DEPLOYMENT_ACTIVE, DEPLOYMENT_IN_USE, DEPLOYMENT_REMOVED
from headwater.streams.workflows.deployment_log import DeploymentLog

#: Seconds between two counts of open runs: runs that keep a removal waiting take longer.
_POLL_S: Final = 0.5


class Removals:
    """Removes deployments.

    Args:
        log: The topic of deployments.
        workflows: Rows of the runs on deployments.
        fence: Returns when Postgres has everything that workers had decided before the call.
        clock: Returns Unix milliseconds.
        new_id: Returns globally unique ids.
    """

    def __init__(
        self,
        log: DeploymentLog,
        workflows: Workflows,
        fence: Callable[[], Awaitable[None]],
        *,
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._log = log
        self._workflows = workflows
        self._fence = fence
        self._clock = clock
        self._new_id = new_id

    async def remove(self, request: AnyRequest, name: str, wait_s: int) -> None:
        """Remove a deployment.

        Args:
            request: The request, for its audit entries.
            name: Id of the deployment.
            wait_s: How long to wait until its runs have ended, in seconds. Meanwhile, and after
                that, no new run begins on it.

        Raises:
            Problem: It is unknown, removed or active, or runs of it are open.
            HeadwaterError: Kafka, Postgres or the workers are not available. The deployment may be
                closed; the request is safe to repeat.
        """
        by = admitted_key(request.scope) or ""
        deployments = await self._log.catch_up()
        removal = deployments.retired.get(name)
        if removal is not None and deployments.is_removed(name):
            # The gateway that removed it may have been killed before it deleted the records.
            await attempt(request, deployment=name)
            await self._log.discard(removal)
        deployment = deployment_of(deployments, name)
        note(request, deployment=name, app=deployment.app, digest=deployment.digest)
        if name in deployments.in_use:
            raise Problem(DEPLOYMENT_ACTIVE, active_message(name))
        if not wait_s:
            self._require_none(name, await self._open_runs(deployment))
        await attempt(request)
        own, closing = await self._close(name, by)
        until_s = asyncio.get_running_loop().time() + wait_s
        while True:
            open_runs = await self._open_runs_after_closing(deployment)
            if not open_runs:
                if await self._finish(deployment, closing, by):
                    return
                own, closing = await self._close(name, by)
            elif asyncio.get_running_loop().time() < until_s:
                await asyncio.sleep(_POLL_S)
            else:
                if not wait_s and closing == own:
                    await self._write(name, REOPENED, closing, by)
                self._require_none(name, open_runs)

    async def _close(self, name: str, by: str) -> tuple[str, str]:
        """Let no new run begin on a deployment; return the id of this closing and of the valid one.

        They differ if another request has closed it before. The id is a new one at each closing:
        the other request may have counted runs before the deployment was reopened.
        """
        own = self._new_id()
        outcome = await self._write(name, CLOSED, own, by)
        if outcome.closing is None:  # Another request has removed it meanwhile.
            raise Problem(DEPLOYMENT_REMOVED, removal_message(name), field="deploymentId")
        return own, outcome.closing

    async def _open_runs_after_closing(self, deployment: DeploymentCreated) -> int:
        """Return how many runs of a closed deployment are open, exactly if there are none."""
        open_runs = await self._open_runs(deployment)
        if open_runs:
            return open_runs
        await self._fence()
        return await self._open_runs(deployment)

    async def _finish(self, deployment: DeploymentCreated, closing: str, by: str) -> bool:
        """Remove a closed deployment; False if it was reopened meanwhile."""
        name = deployment.id
        deployments = await self._log.catch_up()
        was_active = name in deployments.activated_at_ms
        outcome = await self._write(
            name,
            REMOVED,
            closing,
            by,
            tuple(schedule.name for schedule in deployment.schedules) if was_active else (),
            tuple(graphs_of(deployment)) if was_active else (),
        )
        removal = (await self._log.catch_up()).retired.get(name)
        if outcome.removed and removal is not None:
            await self._log.discard(removal)
        return outcome.removed

    async def _write(
        self,
        name: str,
        stage: str,
        closing: str,
        by: str,
        schedules: tuple[str, ...] = (),
        graphs: tuple[str, ...] = (),
    ) -> Retired:
        record = DeploymentRetired(
            id=name,
            stage=stage,
            closing=closing,
            by=by,
            at_ms=self._clock(),
            schedules=schedules,
            graphs=graphs,
        )
        outcome = await self._log.write(record)
        if isinstance(outcome, ActivationRejected):
            raise Problem(outcome.code, outcome.message)
        assert isinstance(outcome, Retired)  # noqa: S101 (the kind of the record determines it)
        return outcome

    async def _open_runs(self, deployment: DeploymentCreated) -> int:
        names = [workflow.name for workflow in deployment.workflows]
        runs = await self._workflows.runs_of_deployments({deployment.id: names})
        return runs[deployment.id].open

    @staticmethod
    def _require_none(name: str, open_runs: int) -> None:
        if open_runs:
            raise Problem(
                DEPLOYMENT_IN_USE,
                f"expected a deployment without open runs, found {open_runs} of {name}; wait until "
                "they have ended, or move them to another deployment",
                openRuns=open_runs,
            )
