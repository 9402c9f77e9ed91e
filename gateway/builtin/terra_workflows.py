"""The workflows that request data from Terra; `gateway.builtin.instances` has names and params.

Terra answers a request immediately, and sends the data later as deliveries. Requesting the same
data twice is idempotent, so a step simply repeats a request that it may have made before.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, date, timedelta
from functools import partial
from hashlib import md5
from math import inf
from typing import Any, Final, TypeAlias

import msgspec

from headwater.gateway.builtin.data_requests import (
    REFUSED,
    Answer,
    DataRequest,
    RequestResults,
    all_refused,
    counted,
    refusals_are_final,
    request_all,
    request_one,
    requests_of,
)
from headwater.gateway.builtin.dependencies import Dependencies
from headwater.gateway.builtin.instances import (
    BACKFILL_DAYS,
    IMPORT,
    RECONCILE,
    RECONCILE_USER,
    ImportParams,
    ReconcileUserParams,
)
from headwater.gateway.builtin.terra.client import DATA_TYPES
from headwater.gateway.builtin.terra.connections import compare
from headwater.gateway.builtin.terra_user_workflows import disconnect_workflow, lab_workflow
from headwater.processors.code.errors import JoinError, NonRetryableError, StepFailedError
from headwater.processors.providers.terra.backfill import BACKFILL, BackfillParams
from headwater.schemas.providers.headwater import ConnectionClosed
from headwater.streams.authoring.workflow_values import Break, Continue, Retry, WorkflowEvent
from headwater.streams.code_host.schedules import Schedule, schedule
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

RECONCILE_DAYS: Final = 7
#: Outlasts an outage of Terra overnight; after about 17 hours an operator should look.
_PATIENTLY: Final = Retry(limit=11, delay="30 seconds", backoff="exponential")
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="30 seconds", backoff="constant")
#: Connections of a page: some seconds of requests at the usual rate.
_PAGE: Final = 25
_PAGE_TIMEOUT: Final = "1 hour"
#: Refused requests of a page that are logged; the others are only counted.
_REFUSALS_LOGGED: Final = 10
#: Failed requests in the state; when there are as many, they are retried before the next page.
_FAILED_MAX: Final = 200
#: Pauses before retries of failed requests, after the last page.
_RETRY_PAUSES: Final = ("1 minute", "10 minutes", "1 hour")
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
    requested: RequestResults = RequestResults()


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
            Workflow(RECONCILE, self.reconcile, strict=False),
            Workflow(RECONCILE_USER, self.reconcile_user, strict=False),
            lab_workflow(self._dependencies, self._clock),
            disconnect_workflow(self._dependencies, self._clock),
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

    async def reconcile_user(
        self, event: WorkflowEvent[ReconcileUserParams], step: Step
    ) -> dict[str, Any]:
        """Compare a user's connections with Terra's list, and request their last days."""
        user_id = event.payload.user_id

        async def compared() -> dict[str, Any]:
            ours = await self._dependencies.connections_of(user_id)
            with refusals_are_final():
                listing = await (await self._dependencies.terra()).subscriptions()
            difference = compare(user_id, ours, listing)
            log = await self._dependencies.facts()
            for fact in difference.facts:
                await log.publish_fact(fact, request_id=event.instance_id)
            closed = sum(isinstance(fact, ConnectionClosed) for fact in difference.facts)
            return {
                "active": [one.terra_user_id for one in difference.connections if one.active],
                "opened": len(difference.facts) - closed,
                "closed": closed,
                "unreadable": len(listing.unreadable) + listing.nameless,
            }

        connections = await step.do("connections", compared, retries=_PATIENTLY)
        active = connections.pop("active")
        until = event.timestamp.astimezone(UTC).date().isoformat()
        requested = await self._request_all(
            step, requests_of(active, DATA_TYPES), until, RECONCILE_DAYS
        )
        return {"connections": len(active), **connections, **requested}

    async def _request_all(
        self, step: Step, requests: Sequence[DataRequest], until: str, days: int
    ) -> dict[str, Any]:
        """Make every request in its own step; fail if one of them failed, or all were refused.

        They are a join, so that a retry of the run repeats all steps that failed.
        """
        end = date.fromisoformat(until)
        answers: list[tuple[DataRequest, Answer]] = []

        async def make(request: DataRequest, step: Step) -> None:
            start = end - timedelta(days=days)
            answers.append((request, await self._request_in_step(step, request, start, end)))

        refusals: list[str] = []
        failures: list[str] = []
        try:
            if requests:
                branches = {str(request): partial(make, request) for request in requests}
                await step.join("requests", **branches)
        except JoinError as error:
            for name, failure in error.errors.items():
                is_refusal = failure.name == REFUSED
                (refusals if is_refusal else failures).append(f"{name}: {failure.message}")
        if refusals and len(refusals) == len(requests):
            raise all_refused(refusals)
        results = counted(answers).with_more(RequestResults(refused=len(refusals)))
        if failures:
            raise NonRetryableError(
                f"Terra accepted {results.taken} of {len(requests)} requests: {'; '.join(failures)}"
            )
        return {"requests": len(requests), **_counts(results)}

    async def _request_in_step(
        self, step: Step, request: DataRequest, start: date, end: date
    ) -> Answer:
        async def ask() -> str:
            return await request_one(await self._dependencies.terra(), request, start, end)

        try:
            answer = await step.do(f"{request.kind} {request.connection}", ask, retries=_PATIENTLY)
        except StepFailedError as failed:
            raise NonRetryableError(failed.error.message, failed.error.name) from failed
        return Answer(answer)

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
            if done.requested.failed:
                await step.sleep(f"before try {number}", pause)
                results = await self._retry_failed(
                    step, f"try {number}", done.requested, start, end
                )
                done = msgspec.structs.replace(done, requested=results)
        return await _summary(step, done)

    async def _page(self, step: Step, state: _Progress, start: date, end: date) -> Continue | Break:
        if len(state.requested.failed) >= _FAILED_MAX:
            results = await self._retry_failed(step, "again", state.requested, start, end)
            for failure in results.failed[_FAILED_MAX:]:
                await _log(step.log.error, _GIVEN_UP, _plain(failure))
            state = msgspec.structs.replace(state, requested=bounded(results))

        async def read() -> list[str]:
            connections = await self._dependencies.connections()
            ids = await connections.active_connections(after=state.after, limit=_PAGE)
            return list(map(_digest, ids))

        page = await step.do("connections", read, retries=_UNTIL_IT_WORKS)
        if not page:
            return Break(_plain(state))
        requests = requests_of(page, DATA_TYPES)
        # A connection may refuse all types of data, and 25 in succession do not.
        refusable = bool(state.requested.taken) and len(page) < _PAGE
        results = await self._request_many(step, "ask", requests, start, end, refusable=refusable)
        state = _Progress(
            after=page[-1],
            connections=state.connections + len(page),
            requested=state.requested.with_more(msgspec.structs.replace(results, refusals=())),
        )
        progress = {"connections": state.connections, **_counts(state.requested)}
        await _log(step.log.info, "another page was requested", progress)
        for refusal in results.refusals[:_REFUSALS_LOGGED]:
            await _log(step.log.warn, "a request was refused", _plain(refusal))
        for failure in results.failed:
            await _log(step.log.warn, "a request failed and will be retried", _plain(failure))
        return Continue(_plain(state))

    async def _retry_failed(
        self, step: Step, name: str, results: RequestResults, start: date, end: date
    ) -> RequestResults:
        retried = await self._request_many(step, name, results.failed, start, end)
        retried = msgspec.structs.replace(retried, refusals=())
        return msgspec.structs.replace(results, failed=()).with_more(retried)

    async def _request_many(
        self,
        step: Step,
        name: str,
        requests: Sequence[DataRequest],
        start: date,
        end: date,
        *,
        refusable: bool = True,
    ) -> RequestResults:
        async def ask() -> dict[str, Any]:
            ids = await self._ids({request.connection for request in requests})
            known = [
                msgspec.structs.replace(request, connection=ids[request.connection])
                for request in requests
                if request.connection in ids
            ]
            terra = await self._dependencies.terra()
            results = await request_all(terra, known, start, end, refusable=refusable)
            return _plain(_with_digests(results))

        plain = await step.do(name, ask, retries=_PATIENTLY, timeout=_PAGE_TIMEOUT)
        return msgspec.convert(plain, RequestResults)

    async def _ids(self, digests: Collection[str]) -> dict[str, str]:
        """Return Terra's ids by digest, of connections that are still active."""
        connections = await self._dependencies.connections()
        return {_digest(id_): id_ for id_ in await connections.active_connections_of(digests)}


def _digest(connection: str) -> str:
    return md5(connection.encode(), usedforsecurity=False).hexdigest()


def _with_digests(results: RequestResults) -> RequestResults:
    """Replace Terra's ids of connections with their digests."""
    return msgspec.structs.replace(
        results,
        failed=tuple(map(_with_digest, results.failed)),
        refusals=tuple(map(_with_digest, results.refusals)),
    )


def _with_digest(request: DataRequest) -> DataRequest:
    digest = _digest(request.connection)
    return DataRequest(digest, request.kind, request.why.replace(request.connection, digest))


def bounded(results: RequestResults) -> RequestResults:
    """Limit the failed requests in a state; further ones are dropped, but stay counted."""
    cut = len(results.failed[_FAILED_MAX:])
    return msgspec.structs.replace(
        results, failed=results.failed[:_FAILED_MAX], given_up=results.given_up + cut
    )


async def _summary(step: Step, done: _Progress) -> dict[str, Any]:
    results = done.requested
    for failure in results.failed:
        await _log(step.log.error, _GIVEN_UP, _plain(failure))
    return {
        "connections": done.connections,
        **_counts(results),
        "failed": len(results.failed) + results.given_up,
    }


def _counts(results: RequestResults) -> dict[str, int]:
    return {
        "taken": results.taken,
        "refused": results.refused,
        "unsupported": results.unsupported,
        "unknown_to_terra": results.unknown,
    }


async def _log(method: _LogMethod, message: str, data: dict[str, Any]) -> None:
    await method(message, data)


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain
