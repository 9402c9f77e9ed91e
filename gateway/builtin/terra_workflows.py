"""The workflows that request data from Terra; `gateway.builtin.instances` has names and params.

Terra answers a request immediately, and sends the data later as deliveries. Requesting the same
data twice is idempotent, so a step simply repeats a request that it may have made before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, date, timedelta
from hashlib import md5
from math import inf
from typing import Any, Final, TypeAlias

import msgspec

from headwater.gateway.builtin.data_requests import (
    DataRequest,
    RequestResults,
    combined,
    request_all,
    request_one,
    requests_of,
)
from headwater.gateway.builtin.dependencies import Dependencies
from headwater.gateway.builtin.instances import IMPORT, RECONCILE, ImportParams, LabResult
from headwater.gateway.builtin.terra.answers import TerraFailed
from headwater.gateway.builtin.terra.client import DATA_TYPES
from headwater.gateway.settings.terra import TerraNotConfigured
from headwater.processors.code.errors import NonRetryableError, StepFailedError
from headwater.processors.providers.headwater import LAB, LabParams
from headwater.processors.providers.terra.backfill import BACKFILL, BackfillParams
from headwater.schemas.providers.headwater import LabSubmitted
from headwater.streams.authoring.workflow_values import Break, Continue, Retry, WorkflowEvent
from headwater.streams.code_host.schedules import Schedule, schedule
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

BACKFILL_DAYS: Final = 90
RECONCILE_DAYS: Final = 7
#: Outlasts an outage of Terra overnight; after about 17 hours an operator should look.
_PATIENTLY: Final = Retry(limit=11, delay="30 seconds", backoff="exponential")
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="30 seconds", backoff="constant")
#: Connections of a page: some seconds of requests at the usual rate.
_PAGE: Final = 25
_PAGE_TIMEOUT: Final = "1 hour"
#: Failed requests in the state; when there are as many, they are retried before the next page.
_FAILED_MAX: Final = 200
#: Pauses before retries of failed requests, after the last page.
_RETRY_PAUSES: Final = ("1 minute", "10 minutes", "1 hour")
#: The user waits for this after uploading a lab report.
_LAB_WITHIN_S: Final = 25.0
_LAB_RETRY: Final = Retry(limit=2, delay="1 second", backoff="constant")
_SOON: Final = Retry(limit=inf, delay="1 second", backoff="constant")
_GIVEN_UP: Final = "a request was given up"
#: Latest pages that are kept in the history for inspection.
_KEPT: Final = 10

RECONCILES: Final = schedule(RECONCILE, cron="0 3 * * *", workflow=RECONCILE)


#: A method of `step.log`.
_LogMethod: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[None]]


class _Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a reconcile: the data of all connections up to `after` was requested.

    The history of a run is kept indefinitely, so it contains only digests of connections.
    """

    after: str = ""
    connections: int = 0
    asked: RequestResults = RequestResults()


class TerraWorkflows:
    """The Terra workflows.

    Args:
        dependencies: Services that the steps use.
        clock: Returns Unix milliseconds; read only in steps.
    """

    def __init__(self, dependencies: Dependencies, clock: Callable[[], int]) -> None:
        self._dependencies = dependencies
        self._clock = clock

    @property
    def workflows(self) -> tuple[Workflow, ...]:
        """All Terra workflows."""
        return (
            Workflow(BACKFILL, self.backfill, strict=False),
            Workflow(IMPORT, self.import_days, strict=False),
            Workflow(LAB, self.lab, strict=False),
            Workflow(RECONCILE, self.reconcile, strict=False),
        )

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """Schedules that start them."""
        return (RECONCILES,)

    # -- one user

    async def backfill(self, event: WorkflowEvent[BackfillParams], step: Step) -> dict[str, Any]:
        """Request 90 days of a connection that has become active."""
        requests = requests_of([event.payload.terra_user_id], DATA_TYPES)
        return await self._request_all(step, requests, event.payload.until, BACKFILL_DAYS)

    async def import_days(self, event: WorkflowEvent[ImportParams], step: Step) -> dict[str, Any]:
        """Request the days that a user chose, of all connections of the user."""
        requests = requests_of(event.payload.connections, DATA_TYPES)
        return await self._request_all(step, requests, event.payload.until, event.payload.days)

    async def _request_all(
        self, step: Step, requests: Sequence[DataRequest], until: str, days: int
    ) -> dict[str, Any]:
        """Make every request in its own step; fail if one of them failed.

        A retry of the run repeats only the failed requests.
        """
        end = date.fromisoformat(until)
        start = end - timedelta(days=days)
        steps = (self._request_in_step(step, request, start, end) for request in requests)
        results = combined(await asyncio.gather(*steps))
        if results.failed:
            failures = "; ".join(map(str, results.failed))
            raise NonRetryableError(
                f"Terra accepted {results.taken} of {len(requests)} requests: {failures}"
            )
        return {
            "requests": len(requests),
            "taken": results.taken,
            "unknown_to_terra": results.unknown,
        }

    async def _request_in_step(
        self, step: Step, request: DataRequest, start: date, end: date
    ) -> RequestResults:
        async def ask() -> dict[str, Any]:
            return _plain(await request_one(await self._dependencies.terra(), request, start, end))

        try:
            plain = await step.do(f"{request.kind} {request.connection}", ask, retries=_PATIENTLY)
        except StepFailedError as failed:
            failure = DataRequest(request.connection, request.kind, str(failed))
            return RequestResults(failed=(failure,))
        return msgspec.convert(plain, RequestResults)

    # -- all users

    async def reconcile(self, event: WorkflowEvent[Any], step: Step) -> dict[str, Any]:
        """Request the last days of every active connection, in case a delivery was lost."""
        end = event.timestamp.astimezone(UTC).date()
        start = end - timedelta(days=RECONCILE_DAYS)

        async def turn(step: Step, plain: Any) -> Continue | Break:  # noqa: ANN401
            return await self._page(step, msgspec.convert(plain, _Progress), start, end)

        plain = await step.loop(
            "pages",
            turn,
            state=_plain(_Progress()),
            commit_interval=1,
            history_every=_KEPT,
            history_keep=_KEPT,
        )
        done = msgspec.convert(plain, _Progress)
        for number, pause in enumerate(_RETRY_PAUSES, 1):
            if done.asked.failed:
                await step.sleep(f"before try {number}", pause)
                results = await self._retry_failed(step, f"try {number}", done.asked, start, end)
                done = msgspec.structs.replace(done, asked=results)
        return await _summary(step, done)

    async def _page(self, step: Step, state: _Progress, start: date, end: date) -> Continue | Break:
        if len(state.asked.failed) >= _FAILED_MAX:
            results = await self._retry_failed(step, "again", state.asked, start, end)
            for failure in results.failed[_FAILED_MAX:]:
                await _log(step.log.error, _GIVEN_UP, _plain(failure))
            state = msgspec.structs.replace(state, asked=bounded(results))

        async def read() -> list[str]:
            connections = await self._dependencies.connections()
            ids = await connections.active_connections(after=state.after, limit=_PAGE)
            return list(map(_digest, ids))

        page = await step.do("connections", read, retries=_UNTIL_IT_WORKS)
        if not page:
            return Break(_plain(state))
        requests = requests_of(page, DATA_TYPES)
        results = await self._request_many(step, "ask", requests, start, end)
        state = _Progress(
            after=page[-1],
            connections=state.connections + len(page),
            asked=state.asked.with_more(results),
        )
        progress = {"connections": state.connections, "taken": state.asked.taken}
        await _log(step.log.info, "another page was requested", progress)
        for failure in results.failed:
            await _log(step.log.warn, "a request failed and will be retried", _plain(failure))
        return Continue(_plain(state))

    async def _retry_failed(
        self, step: Step, name: str, results: RequestResults, start: date, end: date
    ) -> RequestResults:
        retried = await self._request_many(step, name, results.failed, start, end)
        return msgspec.structs.replace(results, failed=()).with_more(retried)

    async def _request_many(
        self, step: Step, name: str, requests: Sequence[DataRequest], start: date, end: date
    ) -> RequestResults:
        async def ask() -> dict[str, Any]:
            ids = await self._ids({request.connection for request in requests})
            known = [
                msgspec.structs.replace(request, connection=ids[request.connection])
                for request in requests
                if request.connection in ids
            ]
            results = await request_all(await self._dependencies.terra(), known, start, end)
            return _plain(_with_digests(results))

        plain = await step.do(name, ask, retries=_PATIENTLY, timeout=_PAGE_TIMEOUT)
        return msgspec.convert(plain, RequestResults)

    async def _ids(self, digests: Collection[str]) -> dict[str, str]:
        """Return Terra's ids by digest, of connections that are still active."""
        connections = await self._dependencies.connections()
        return {_digest(id_): id_ for id_ in await connections.active_connections_of(digests)}

    # -- labs

    async def lab(self, event: WorkflowEvent[LabParams], step: Step) -> dict[str, Any]:
        """Send an uploaded lab report to Terra, and publish the result."""
        params = event.payload

        async def submit() -> dict[str, Any]:
            return _plain(await self._submit(params))

        async def publish() -> None:
            done = msgspec.convert(result, LabResult)
            fact = LabSubmitted(
                at_ms=done.at_ms,
                user_id=params.user_id,
                upload_id=params.upload_id,
                terra_status=done.terra_status,
                terra_upload_id=done.terra_upload_id,
                terra_response=done.terra_response,
            )
            facts = await self._dependencies.facts()
            await facts.publish_fact(fact, request_id=event.instance_id)

        result = await step.do("submit", submit, retries=_LAB_RETRY, timeout="1 minute")
        await step.do("tell", publish, retries=_SOON)
        return dict(result)

    async def _submit(self, params: LabParams) -> LabResult:
        content = await (await self._dependencies.blobs()).read(params.storage_key)
        terra = await self._dependencies.terra()
        upload_id: str | None = None
        try:
            async with asyncio.timeout(_LAB_WITHIN_S):
                upload_id, answer = await terra.upload_lab_report(
                    params.user_id,
                    name=params.storage_key.rpartition("/")[2],
                    content_type=params.content_type,
                    content=content,
                )
            status = "submitted"
        except TerraFailed as error:
            status, answer = f"failed:{error.status or 'network'}", error.message
        except TerraNotConfigured as error:
            status, answer = f"failed:{error.code}", error.message
        except TimeoutError:
            answer = f"Terra did not respond within {_LAB_WITHIN_S:g} s"
            status = "failed:network"
        return LabResult(
            at_ms=self._clock(),
            terra_status=status,
            terra_upload_id=upload_id,
            terra_response=answer,
        )


def _digest(connection: str) -> str:
    return md5(connection.encode(), usedforsecurity=False).hexdigest()


def _with_digests(results: RequestResults) -> RequestResults:
    """Replace Terra's ids of connections with their digests."""
    failed = tuple(
        DataRequest(
            digest := _digest(request.connection),
            request.kind,
            request.why.replace(request.connection, digest),
        )
        for request in results.failed
    )
    return msgspec.structs.replace(results, failed=failed)


def bounded(results: RequestResults) -> RequestResults:
    """Limit the failed requests in a state; further ones are dropped, but stay counted."""
    cut = len(results.failed[_FAILED_MAX:])
    return msgspec.structs.replace(
        results, failed=results.failed[:_FAILED_MAX], given_up=results.given_up + cut
    )


async def _summary(step: Step, done: _Progress) -> dict[str, Any]:
    results = done.asked
    for failure in results.failed:
        await _log(step.log.error, _GIVEN_UP, _plain(failure))
    return {
        "connections": done.connections,
        "taken": results.taken,
        "unknown_to_terra": results.unknown,
        "failed": len(results.failed) + results.given_up,
    }


async def _log(method: _LogMethod, message: str, data: dict[str, Any]) -> None:
    await method(message, data)


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain
