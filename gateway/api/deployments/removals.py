"""Removes deployments on which no run is open.

The log of deployments has no order in common with the logs of runs. So a deployment is closed
first: a worker that decides a command that may start a run has read the log of deployments before,
so it starts no further run there. Then a fence through all partitions makes sure that everything
that was decided before the closing is in Postgres, and the open runs are counted. Whether a run or
the removal is first is thus decided by the logs, whatever happens in between.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

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
from headwater.schemas.errors import HeadwaterError
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
            HeadwaterError: Kafka, Postgres or the workers are not available. Without waiting, the
                deployment is opened again, at the latest when the request is repeated.
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
        open_runs = 0 if wait_s else await self._open_runs(deployment)
        if not open_runs:
            await attempt(request)
            try:
                open_runs = await self._remove_drained(deployment, by, wait_s)
            except (HeadwaterError, Problem):
                with suppress(HeadwaterError, Problem):
                    await self._reopen(request, name, by)
                raise
        if open_runs:
            await self._reopen(request, name, by)
            raise Problem(
                DEPLOYMENT_IN_USE,
                f"expected a deployment without open runs, found {open_runs} of {name}; wait until "
                "they have ended, or move them to another deployment",
                openRuns=open_runs,
            )

    async def _remove_drained(self, deployment: DeploymentCreated, by: str, wait_s: int) -> int:
        """Close a deployment and remove it when its runs have ended; return those that are open."""
        name, loop = deployment.id, asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while True:
            closing = await self._close(name, by, temporary=not wait_s)
            while open_runs := await self._open_runs_after_closing(deployment):
                if loop.time() >= until_s:
                    return open_runs
                await asyncio.sleep(_POLL_S)
            if await self._finish(deployment, closing, by):
                return 0

    async def _close(self, name: str, by: str, *, temporary: bool) -> str:
        """Let no new run begin on a deployment; return the id of the valid closing.

        It is that of another request if that has closed the deployment before. The id is a new one
        at each closing: the other request may have counted runs before the deployment was reopened.
        """
        outcome = await self._write(name, CLOSED, self._new_id(), by, temporary=temporary)
        if outcome.closing is None:  # Another request has removed it meanwhile.
            raise Problem(DEPLOYMENT_REMOVED, removal_message(name), field="deploymentId")
        return outcome.closing

    async def _reopen(self, request: AnyRequest, name: str, by: str) -> None:
        """End a temporary closing, also that of a gateway that was killed."""
        closed = (await self._log.catch_up()).retired.get(name)
        if closed is not None and closed.stage == CLOSED and closed.temporary:
            await attempt(request)
            await self._write(name, REOPENED, closed.closing, by)

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
            schedules=tuple(one.name for one in deployment.schedules) if was_active else (),
            graphs=tuple(graphs_of(deployment)) if was_active else (),
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
        **details: Any,  # noqa: ANN401 (other fields of the record)
    ) -> Retired:
        record = DeploymentRetired(
            id=name, stage=stage, closing=closing, by=by, at_ms=self._clock(), **details
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
