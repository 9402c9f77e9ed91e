"""Workflows and instances as a program holds them: names to ask by, nothing that could be stale."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec
from typing_extensions import override

from headwater.gateway.client.answers import StreamItem, accepted, status_in, value_of
from headwater.gateway.client.listing import PAGE_SIZE, TRIMMED_PAGE_SIZE, Listing
from headwater.gateway.client.requests import Query, members
from headwater.gateway.client.retries import Repeat
from headwater.gateway.paths import path
from headwater.processors.runs.durations import Duration, milliseconds
from headwater.processors.runs.limits import BATCH_MAX, VALUE_BYTES_TOP
from headwater.schemas.answers import (
    BulkPage,
    EventSent,
    History,
    HistoryPage,
    Instance,
    InstanceListed,
    InstancesCreated,
    InstanceStatus,
    LogLine,
    Managed,
)
from headwater.schemas.failures import InstanceFailedError, InstanceTerminalError
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.batches import parse_batch
from headwater.streams.authoring.inspection import InspectableInstance, InspectionQuery
from headwater.streams.authoring.lifecycle import CANCEL, TERMINATE, Action, Controllable
from headwater.streams.authoring.request_arguments import (
    checked_event_type,
    checked_instance_id,
    checked_labels,
)
from headwater.streams.authoring.result_types import output_of
from headwater.streams.authoring.values import encode_object, encode_params
from headwater.streams.authoring.workflow_values import Named, P_contra, R_co, name_of

if TYPE_CHECKING:
    from headwater.gateway.client.requests import Answered
    from headwater.gateway.client.session import Session

A = TypeVar("A")

#: What a history has, each with pages of its own.
_LISTS: Final = frozenset({"steps", "tokens", "events", "logs"})


class InstanceHandle(Controllable[InstanceStatus], InspectableInstance, Generic[R_co]):
    """An instance, by its id. To have a handle does not mean that there is such an instance.

    Shape:  InstanceHandle[R] is one of a workflow that returns R.
    """

    def __init__(
        self,
        session: "Session",
        workflow_name: str,
        instance_id: str,
        declared: object = None,
    ) -> None:
        """Make a handle; `declared` is the workflow itself, if the caller has it."""
        self._session = session
        self._declared = declared
        self._path = path("workflows", workflow_name, "instances", instance_id)
        self._key = f"{workflow_name}/{instance_id}"
        self.workflow_name = workflow_name
        self.id = instance_id

    @override
    def __repr__(self) -> str:
        return f"<instance {self._key}>"

    async def status(self) -> InstanceStatus:
        """How it stands: `.status`, `.output`, `.error`."""
        return (await self.describe()).details

    async def describe(self) -> Instance:
        """All that there is to know of it but its history: `.details` and `.meta`."""
        return await self._session.read(self._path, Instance, instance=self._key)

    @override
    async def perform(self, action: Action, reason: str = "") -> InstanceStatus:
        """Perform an action and return the status of the instance afterwards."""
        body = members(reason=json.dumps(reason) if reason else None)
        repeat = Repeat.SAFE if action.repeatable else Repeat.UNSAFE
        try:
            return await self._manage(action.name, repeat, body)
        except InstanceTerminalError as error:
            if action not in (TERMINATE, CANCEL) or not error.repeated:
                raise
            # An attempt whose answer was lost may have ended it: then all is as asked for.
            found = await self.status()
            if found.status is not RunStatus.TERMINATED:
                raise
            return found

    @override
    async def inspect(self, query: InspectionQuery[A]) -> A:
        return await self._session.read(
            f"{self._path}/graph/{query.path}",
            query.answer,
            dict(query.numbers),
            body=None if query.texts is None else members(**query.texts),
            instance=self._key,
        )

    async def retry(self, from_step: str | None = None) -> InstanceStatus:
        """Begins a new run of an errored instance that keeps what was done.

        Shape:  from_step is the key of the first step that is done again; without it, the one that
                failed. A request whose outcome is unknown is not repeated.
        """
        wanted = None if from_step is None else json.dumps(from_step)
        return await self._manage("retry", Repeat.UNSAFE, members(fromStep=wanted))

    async def send_event(
        self,
        type: str,  # noqa: A002 (as authors call it)
        payload: Any = None,  # noqa: ANN401 (any JSON)
        *,
        start_if_missing: bool | Mapping[str, Any] = False,
        idempotency_key: str | None = None,
    ) -> InstanceStatus:
        """Sends an event, once; it is kept until the instance waits for it.

        Shape:  gives how the instance stands then, `accepted` where no worker has decided and the
                client prefers not to wait for one (`Prefer: respond-async`); start_if_missing
                creates the instance if there is none: True, or {"params": …}; what is sent under an
                idempotency key that was used for it within a day does nothing; without one, each
                call has a key of its own.
        """
        start = None
        if start_if_missing is not False:
            given = {} if start_if_missing is True else start_if_missing
            params = given.get("params")
            start = members(
                params=None
                if params is None
                else encode_params(params, self.workflow_name, VALUE_BYTES_TOP)
            )
        body = members(
            type=json.dumps(checked_event_type(type)),
            payload=None
            if payload is None
            else encode_object(payload, "an event's payload", VALUE_BYTES_TOP),
            startIfMissing=start,
        )
        key = self._session.new_id() if idempotency_key is None else idempotency_key
        answer = await self._command("events", Repeat.SAFE, body, key)
        return status_in(answer, EventSent)

    async def history(
        self,
        run_number: int | None = None,
        *,
        include_trimmed: bool = False,
        include_logs: bool = False,
        log_level: str | None = None,
        log_category: str | None = None,
    ) -> History:
        """What happened: `.steps`, or `.tokens` of a graph, `.events` and `.logs`.

        Shape:  of the current run, or of another; with `include_trimmed` also what loops have
                forgotten, which is read from the log and takes longer.
        """
        query: Query = {"runNumber": run_number}
        if include_trimmed:
            query |= {"includeTrimmed": True, "pageSize": TRIMMED_PAGE_SIZE}
        if include_logs:
            query |= {"includeLogs": True, "logLevel": log_level, "logCategory": log_category}
        whole: History | None = None
        async for page in self._history_pages(query):
            whole = whole or History(
                run_number=page.run_number, steps=[], events=[], logs=[], tokens=[]
            )
            whole.steps.extend(page.steps)
            whole.tokens.extend(page.tokens)
            whole.events.extend(page.events)
            whole.logs.extend(page.logs or ())
        assert whole is not None  # noqa: S101, there is a first page
        return whole

    async def logs(
        self,
        run_number: int | None = None,
        *,
        level: str | None = None,
        category: str | None = None,
        order: Literal["asc", "desc"] = "asc",
    ) -> AsyncGenerator[LogLine]:
        """Lines of the current run or of another, as they are asked for."""
        query: Query = {"runNumber": run_number, "includeLogs": True, "order": order}
        query |= {"logLevel": level, "logCategory": category}
        async for page in self._history_pages(query, logs_alone=True):
            for line in page.logs or ():
                yield line

    async def follow(self, last_id: str = "") -> AsyncGenerator[StreamItem[Any]]:
        """What happens to it, until it has ended; goes on over lost connections.

        After a lost connection the last few items may come again.

        Shape:  last_id is the `.id` of an item: goes on behind it.
        """
        stream = self._session.follow(f"{self._path}/events-stream", self._key, last_id)
        async with aclosing(stream) as items:
            async for item in items:
                yield item

    async def result(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 (as authors call it)
        """Waits until it has ended, and gives its output.

        Units:  a number is milliseconds, text is as in "10 seconds".
        Errors: InstanceFailedError if it ended otherwise; TimeoutError.
        """
        limit = None if timeout is None else milliseconds(timeout) / 1000
        waiting = asyncio.timeout(limit)
        try:
            async with waiting:
                status = await self._end()
        except TimeoutError as error:
            if not waiting.expired():
                raise
            raise TimeoutError(f"expected {self._key} to end within {limit:g} s") from error
        if status.status is RunStatus.COMPLETE:
            output: R_co = output_of(self._declared, status.output)
            return output
        why = status.error
        raise InstanceFailedError(
            self._key, status.status, why.name if why else "", why.message if why else ""
        )

    async def _end(self) -> InstanceStatus:
        status = await self.status()
        if not status.ended:
            async with aclosing(self.follow()) as items:
                async for item in items:
                    status = item.data if item.event == "end" else status
        return status

    async def _manage(self, verb: str, repeat: Repeat, body: str = "{}") -> InstanceStatus:
        answer = await self._command(verb, repeat, body)
        return status_in(answer, Managed)

    async def _command(
        self, name: str, repeat: Repeat, body: str = "{}", key: str | None = None
    ) -> "Answered":
        where = f"{self._path}/{name}"
        return await self._session.write(where, body, repeat=repeat, instance=self._key, key=key)

    async def _history_pages(
        self, query: Query, *, logs_alone: bool = False
    ) -> AsyncGenerator[HistoryPage]:
        """Pages until all was read; what was read whole is left out of later ones."""
        asked: Query = {"pageSize": PAGE_SIZE, **query}
        left = set() if logs_alone else _LISTS - {"logs"}
        left |= {"logs"} if query.get("includeLogs") else set()
        while left:
            page = await self._session.read(
                f"{self._path}/history", HistoryPage, asked, instance=self._key
            )
            yield msgspec.structs.replace(page, **{name: [] for name in _LISTS - left})
            left = {name for name in left if getattr(page, f"{name}_has_next_page")}
            if "steps" not in left:
                asked |= {"includeTrimmed": None, "pageSize": PAGE_SIZE}
            # The run may be followed by another while its pages are read.
            asked |= {"runNumber": page.run_number}
            asked |= {f"{name}Cursor": getattr(page, f"{name}_cursor") for name in left}


class WorkflowHandle(Listing, Generic[P_contra, R_co]):
    """A workflow, by its name.

    Shape:  WorkflowHandle[P, R] is one that takes P and returns R.
    """

    def __init__(self, session: "Session", workflow: str | Named) -> None:
        name = name_of(workflow)
        super().__init__(session, path("workflows", name, "instances"))
        self._declared = workflow
        self.name = name

    @override
    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def get(self, id: str) -> InstanceHandle[R_co]:  # noqa: A002 (as authors call it)
        """The handle of an instance; nothing is asked for yet."""
        return InstanceHandle(self._session, self.name, id, self._declared)

    async def create(
        self,
        id: str | None = None,  # noqa: A002 (as authors call it)
        params: P_contra | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> InstanceHandle[R_co]:
        """Creates an instance, once, under an id of its own unless one is given.

        Shape:  labels are texts by which it is found, by name; what is created under an idempotency
                key that has created it before is there already; without an id, it has one that is
                made of the key.
        Errors: every ClientError, InstanceExistsError among them.
        """
        if id is None and idempotency_key is None:
            id = self._session.new_id()  # noqa: A001 (as authors call it)
        body = members(
            id=None if id is None else json.dumps(checked_instance_id(id)),
            params=encode_params(params, self.name, VALUE_BYTES_TOP),
            labels=_labels(labels),
        )
        answer = await self._session.write(
            self._path,
            body,
            repeat=Repeat.SAFE,
            instance=None if id is None else f"{self.name}/{id}",
            key=self._session.new_id() if idempotency_key is None else idempotency_key,
        )
        if id is None:
            taken = accepted(answer)
            id = taken[0].id if taken else value_of(answer, InstanceListed).id  # noqa: A001
        return self.get(id)

    async def create_batch(self, batch: Iterable[Mapping[str, Any]]) -> list[InstanceHandle[R_co]]:
        """Create instances of {"id": …, "params": …, "labels": …}; return handles of the new ones.

        Ids that exist are skipped and left out. More than 100 are sent in several requests, one
        after the other. A request whose answer was lost is repeated; those that it created are not
        left out. Where no worker has decided yet, all are returned.

        Raises:
            ClientError: A request was refused; instances of earlier requests stay.
            ValueError: The batch is no list of {"id": …}.
        """
        new = [
            members(
                id=json.dumps(each.id),
                params=encode_params(each.params, self.name, VALUE_BYTES_TOP),
                labels=_labels(each.labels),
            )
            for each in parse_batch(batch)
        ]
        created: list[InstanceHandle[R_co]] = []
        for first in range(0, len(new), BATCH_MAX):
            body = members(instances=f"[{','.join(new[first : first + BATCH_MAX])}]")
            answer = await self._session.write(
                f"{self._path}/batch", body, repeat=Repeat.SAFE, key=self._session.new_id()
            )
            found = accepted(answer) or value_of(answer, InstancesCreated).instances
            created += [self.get(each.id) for each in found]
        return created

    async def change_all(
        self,
        action: str,
        *,
        status: str | None = None,
        labels: Mapping[str, str] | None = None,
        dry_run: bool = False,
        reason: str = "",
    ) -> AsyncGenerator[BulkPage]:
        """Retries, pauses, resumes, cancels or terminates all instances with a status, or labels.

        Shape:  page by page as it is done, the newest first; an instance that refuses has a
                `.code`. Those that are ended can be told why. With a dry run nothing is done.
        """
        asked: dict[str, Any] = {"action": action, "status": status, "labels": dict(labels or {})}
        asked["dryRun"] = dry_run
        if reason:
            asked["reason"] = reason
        where = path("workflows", self.name, "bulk")
        while True:
            answer = await self._session.write(where, json.dumps(asked), repeat=Repeat.SAFE)
            page = value_of(answer, BulkPage)
            yield page
            if not page.has_next_page:
                return
            asked["cursor"] = page.cursor


def _labels(given: object) -> str | None:
    """Return labels as JSON, or None where there are none.

    Raises:
        InvalidLabelsError: They break the rules.
    """
    labels = {each.name: each.value for each in checked_labels(given or {})}
    return json.dumps(labels) if labels else None
