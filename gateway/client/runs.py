"""Runs by their ids alone, as a program creates, reads and cancels them."""

import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from headwater.gateway.client.answers import value_of
from headwater.gateway.client.requests import members
from headwater.gateway.client.retries import Repeat
from headwater.processors.runs.limits import VALUE_BYTES_TOP
from headwater.schemas.run_answers import Run, RunCreated, RunListed, RunPage
from headwater.streams.authoring.values import encode
from headwater.streams.authoring.workflow_values import Named, name_of

if TYPE_CHECKING:
    from headwater.gateway.client.requests import Query
    from headwater.gateway.client.session import Session


class WantedRuns(TypedDict, total=False):
    """Which runs are listed: those that stand so, of this workflow, on this deployment."""

    status: str | None
    workflow: str | None
    deployment: str | None


class Runs:
    """The runs of a server: its instances, each by its id alone.

    Errors: every ClientError from every method.
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
        """Creates a run, on the active deployment or on one that is named.

        Shape:  what is created again under a key, within a day, is the same run; without one it has
                a key of its own, so that it may be sent again while there is no answer.
        Errors: IdempotencyConflictError for a key of something else; ValueError for one that cannot
                be a key, as an empty one.
        """
        body = members(
            workflowName=json.dumps(name_of(workflow)),
            input=encode(input, "the input of a run", VALUE_BYTES_TOP),
            deploymentId=None if deployment is None else json.dumps(deployment),
        )
        answer = await self._session.write(
            self._session.of_gateway("v1", "runs"),
            body,
            repeat=Repeat.SAFE,
            key=self._session.new_id() if key is None else key,
        )
        return value_of(answer, RunCreated)

    async def get(self, run_id: str, *, workflow: str | None = None) -> Run:
        """A run, whole; an id that is in several workflows takes the name of one."""
        where = self._session.of_gateway("v1", "runs", run_id)
        return await self._session.read(where, Run, {"workflowName": workflow})

    async def page(
        self, *, limit: int = 50, cursor: str | None = None, **wanted: Unpack[WantedRuns]
    ) -> RunPage:
        """A page of runs, the newest first; `.cursor` goes on behind it."""
        query: Query = {
            "status": wanted.get("status"),
            "workflowName": wanted.get("workflow"),
            "deploymentId": wanted.get("deployment"),
            "limit": limit,
            "cursor": cursor,
        }
        return await self._session.read(self._session.of_gateway("v1", "runs"), RunPage, query)

    async def all(self, **wanted: Unpack[WantedRuns]) -> AsyncGenerator[RunListed]:
        """Every run that is wanted, the newest first."""
        cursor = None
        while True:
            page = await self.page(limit=1_000, cursor=cursor, **wanted)
            for each in page.data:
                yield each
            if page.cursor is None:
                return
            cursor = page.cursor

    async def cancel(self, run_id: str, reason: str = "", *, workflow: str | None = None) -> Run:
        """Cancels a run: its code may clean up. One that is cancelled stays so.

        Errors: InstanceTerminalError, where it has ended otherwise.
        """
        answer = await self._session.write(
            self._session.of_gateway("v1", "runs", run_id, "cancel"),
            members(reason=json.dumps(reason)),
            repeat=Repeat.SAFE,
            query={"workflowName": workflow},
        )
        return value_of(answer, Run)
