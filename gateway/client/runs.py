"""Runs by their ids alone: create, read and cancel them."""

import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from headwater.gateway.client.answers import value_of
from headwater.gateway.client.requests import Repeat, json_object
from headwater.processors.runs.limits import VALUE_BYTES_TOP
from headwater.schemas.v1_answers import Run, RunCreated, RunListed, RunPage
from headwater.streams.authoring.values import encode
from headwater.streams.authoring.workflow_values import Named, name_of

if TYPE_CHECKING:
    from headwater.gateway.client.requests import Query
    from headwater.gateway.client.session import Session


class RunFilter(TypedDict, total=False):
    """Filters of a listing of runs: their status, workflow and deployment."""

    status: str | None
    workflow: str | None
    deployment: str | None


class Runs:
    """Runs of a server: its instances, identified by their ids alone.

    All methods raise ClientError.
    """

    def __init__(self, session: "Session") -> None:
        self._session = session

    async def create(
        self,
        workflow: str | Named,
        input: Any = None,  # noqa: A002, ANN401 (as the service calls it; any JSON)
        *,
        deployment: str | None = None,
        key: str | None = None,
    ) -> RunCreated:
        """Create a run, on the active deployment or the one named.

        Args:
            workflow: The workflow or its name.
            input: Any JSON.
            deployment: Id of a deployment.
            key: Idempotency key: within a day, the same key returns the same run. Without one the
                request has a key of its own, so that it is safe to repeat.

        Raises:
            IdempotencyConflictError: The key was used for something else.
            ValueError: The key is not valid, for example empty.
        """
        body = json_object(
            workflowName=json.dumps(name_of(workflow)),
            input=encode(input, "the input of a run", VALUE_BYTES_TOP),
            deploymentId=None if deployment is None else json.dumps(deployment),
        )
        answer = await self._session.write(
            self._session.gateway_path("v1", "runs"),
            body,
            repeat=Repeat.SAFE,
            key=self._session.new_id() if key is None else key,
        )
        return value_of(answer, RunCreated)

    async def get(self, run_id: str, *, workflow: str | None = None) -> Run:
        """Return a run. If several workflows have the id, `workflow` names one of them."""
        where = self._session.gateway_path("v1", "runs", run_id)
        return await self._session.read(where, Run, {"workflowName": workflow})

    async def page(
        self, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[RunFilter]
    ) -> RunPage:
        """Return a page of runs, newest first; `.cursor` is that of the next page."""
        query: Query = {
            "status": filters.get("status"),
            "workflowName": filters.get("workflow"),
            "deploymentId": filters.get("deployment"),
            "limit": limit,
            "cursor": cursor,
        }
        return await self._session.read(self._session.gateway_path("v1", "runs"), RunPage, query)

    async def all(self, **filters: Unpack[RunFilter]) -> AsyncGenerator[RunListed]:
        """Yield all runs that the filters select, newest first."""
        cursor = None
        while True:
            page = await self.page(limit=1_000, cursor=cursor, **filters)
            for run in page.data:
                yield run
            if page.cursor is None:
                return
            cursor = page.cursor

    async def cancel(self, run_id: str, reason: str = "", *, workflow: str | None = None) -> Run:
        """Cancel a run; its code may clean up. Canceling a canceled run changes nothing.

        Raises:
            InstanceTerminalError: The run ended otherwise.
        """
        answer = await self._session.write(
            self._session.gateway_path("v1", "runs", run_id, "cancel"),
            json_object(reason=json.dumps(reason)),
            repeat=Repeat.SAFE,
            query={"workflowName": workflow},
        )
        return value_of(answer, Run)
