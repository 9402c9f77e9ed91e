"""The workflows that ask Terra for data; `gateway.terra.instances` has names and params.

A request is answered at once, and its data come as deliveries, like any other. What was asked for
twice comes twice and changes nothing, so a step that may have asked before asks again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, date, timedelta
from hashlib import md5
from math import inf
from typing import Any, Final, TypeAlias

import msgspec

from headwater.gateway.house.asking import Asked, Wanted, ask_all, ask_one, together, wanted_of
from headwater.gateway.house.outside import Outside
from headwater.gateway.terra.client import DATA_TYPES
from headwater.gateway.terra.errors import TerraFailed, TerraNotConfigured
from headwater.gateway.terra.instances import (
    IMPORT,
    RECONCILE,
    ImportParams,
    LabResult,
)
from headwater.processors.providers.headwater.labs import LAB, LabParams
from headwater.processors.providers.terra.backfill import BACKFILL, BackfillParams
from headwater.processors.replay.errors import NonRetryableError, StepFailedError
from headwater.schemas.providers.headwater import LabSubmitted
from headwater.streams.authoring.workflow_values import Break, Continue, Retry, WorkflowEvent
from headwater.streams.code_host.schedules import Schedule, schedule
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

BACKFILL_DAYS: Final = 90
RECONCILE_DAYS: Final = 7
#: A bad night of Terra's is waited for; after some 17 hours somebody should look.
_PATIENTLY: Final = Retry(limit=11, delay="30 seconds", backoff="exponential")
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="30 seconds", backoff="constant")
#: Connections of a page: some seconds of requests at the usual rate.
_PAGE: Final = 25
_PAGE_TIMEOUT: Final = "1 hour"
#: Requests that may wait for another try; where there are more, they are tried before others.
_WAITING_MAX: Final = 200
#: When what has failed is tried again, after the last page.
_TRIES_AFTER: Final = ("1 minute", "10 minutes", "1 hour")
#: Whoever has uploaded a lab report waits for this.
_LAB_WITHIN_S: Final = 25.0
_LAB_RETRY: Final = Retry(limit=2, delay="1 second", backoff="constant")
_SOON: Final = Retry(limit=inf, delay="1 second", backoff="constant")
_GIVEN_UP: Final = "a request was given up"
#: Pages that stay to be looked at.
_KEPT: Final = 10

RECONCILES: Final = schedule(RECONCILE, cron="0 3 * * *", workflow=RECONCILE)


#: A method of `step.log`.
_Log: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[None]]


class _Round(msgspec.Struct, frozen=True, kw_only=True):
    """How far a reconcile is: all connections up to `after` were asked for.

    Its history is kept for ever, so it has connections by their digests alone.
    """

    after: str = ""
    connections: int = 0
    asked: Asked = Asked()


class TerraWorkflows:
    """The workflows, over what they need of the outside.

    Units:  the clock in Unix milliseconds; it is read in steps alone.
    """

    def __init__(self, outside: Outside, clock: Callable[[], int]) -> None:
        self._outside = outside
        self._clock = clock

    @property
    def workflows(self) -> tuple[Workflow, ...]:
        """All of them."""
        return (
            Workflow(BACKFILL, self.backfill, strict=False),
            Workflow(IMPORT, self.import_days, strict=False),
            Workflow(LAB, self.lab, strict=False),
            Workflow(RECONCILE, self.reconcile, strict=False),
        )

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """When some of them are started."""
        return (RECONCILES,)

    # -- one user

    async def backfill(self, event: WorkflowEvent[BackfillParams], step: Step) -> dict[str, Any]:
        """Asks for 90 days of a connection that has become active."""
        wanted = wanted_of([event.payload.terra_user_id], DATA_TYPES)
        return await self._ask_for(step, wanted, event.payload.until, BACKFILL_DAYS)

    async def import_days(self, event: WorkflowEvent[ImportParams], step: Step) -> dict[str, Any]:
        """Asks for the days that a user wants of each of the connections."""
        wanted = wanted_of(event.payload.connections, DATA_TYPES)
        return await self._ask_for(step, wanted, event.payload.until, event.payload.days)

    async def _ask_for(
        self, step: Step, wanted: Sequence[Wanted], until: str, days: int
    ) -> dict[str, Any]:
        """Asks for everything, each request a step of its own; fails if one of them has.

        A retry of the run asks for those alone that have failed.
        """
        end = date.fromisoformat(until)
        start = end - timedelta(days=days)
        asking = (self._ask_in_step(step, each, start, end) for each in wanted)
        asked = together(await asyncio.gather(*asking))
        if asked.failed:
            whys = "; ".join(map(str, asked.failed))
            raise NonRetryableError(
                f"expected Terra to take {len(wanted)} requests, found that it took {asked.taken}: "
                f"{whys}"
            )
        return {"requests": len(wanted), "taken": asked.taken, "unknown_to_terra": asked.unknown}

    async def _ask_in_step(self, step: Step, wanted: Wanted, start: date, end: date) -> Asked:
        async def ask() -> dict[str, Any]:
            return _plain(await ask_one(await self._outside.terra(), wanted, start, end))

        try:
            plain = await step.do(f"{wanted.kind} {wanted.connection}", ask, retries=_PATIENTLY)
        except StepFailedError as failed:
            return Asked(failed=(Wanted(wanted.connection, wanted.kind, str(failed)),))
        return msgspec.convert(plain, Asked)

    # -- everybody

    async def reconcile(self, event: WorkflowEvent[Any], step: Step) -> dict[str, Any]:
        """Asks for the last days of every active connection, in case a delivery was lost."""
        end = event.timestamp.astimezone(UTC).date()
        start = end - timedelta(days=RECONCILE_DAYS)

        async def turn(step: Step, plain: Any) -> Continue | Break:  # noqa: ANN401
            return await self._page(step, msgspec.convert(plain, _Round), start, end)

        plain = await step.loop(
            "pages",
            turn,
            state=_plain(_Round()),
            commit_interval=1,
            history_every=_KEPT,
            history_keep=_KEPT,
        )
        done = msgspec.convert(plain, _Round)
        for number, pause in enumerate(_TRIES_AFTER, 1):
            if done.asked.failed:
                await step.sleep(f"before try {number}", pause)
                asked = await self._ask_again(step, f"try {number}", done.asked, start, end)
                done = msgspec.structs.replace(done, asked=asked)
        return await _summary(step, done)

    async def _page(self, step: Step, state: _Round, start: date, end: date) -> Continue | Break:
        if len(state.asked.failed) >= _WAITING_MAX:
            asked = await self._ask_again(step, "again", state.asked, start, end)
            for each in asked.failed[_WAITING_MAX:]:
                await _say(step.log.error, _GIVEN_UP, _plain(each))
            state = msgspec.structs.replace(state, asked=bounded(asked))

        async def read() -> list[str]:
            connections = await self._outside.connections()
            found = await connections.active_connections(after=state.after, limit=_PAGE)
            return list(map(_digest, found))

        page = await step.do("connections", read, retries=_UNTIL_IT_WORKS)
        if not page:
            return Break(_plain(state))
        asked = await self._ask_many(step, "ask", wanted_of(page, DATA_TYPES), start, end)
        state = _Round(
            after=page[-1],
            connections=state.connections + len(page),
            asked=state.asked.with_more(asked),
        )
        far = {"connections": state.connections, "taken": state.asked.taken}
        await _say(step.log.info, "another page was asked for", far)
        for each in asked.failed:
            await _say(step.log.warn, "a request has failed and is tried again", _plain(each))
        return Continue(_plain(state))

    async def _ask_again(
        self, step: Step, name: str, asked: Asked, start: date, end: date
    ) -> Asked:
        again = await self._ask_many(step, name, asked.failed, start, end)
        return msgspec.structs.replace(asked, failed=()).with_more(again)

    async def _ask_many(
        self, step: Step, name: str, wanted: Sequence[Wanted], start: date, end: date
    ) -> Asked:
        async def ask() -> dict[str, Any]:
            names = await self._names({each.connection for each in wanted})
            known = [
                msgspec.structs.replace(each, connection=names[each.connection])
                for each in wanted
                if each.connection in names
            ]
            asked = await ask_all(await self._outside.terra(), known, start, end)
            return _plain(_nameless(asked))

        plain = await step.do(name, ask, retries=_PATIENTLY, timeout=_PAGE_TIMEOUT)
        return msgspec.convert(plain, Asked)

    async def _names(self, digests: Collection[str]) -> dict[str, str]:
        """Terra's ids by their digests, of connections that are active still."""
        connections = await self._outside.connections()
        return {_digest(each): each for each in await connections.active_connections_of(digests)}

    # -- labs

    async def lab(self, event: WorkflowEvent[LabParams], step: Step) -> dict[str, Any]:
        """Gives an uploaded lab report to Terra, and tells what came of it."""
        params = event.payload

        async def submit() -> dict[str, Any]:
            return _plain(await self._submit(params))

        async def tell() -> None:
            done = msgspec.convert(result, LabResult)
            fact = LabSubmitted(
                at_ms=done.at_ms,
                user_id=params.user_id,
                upload_id=params.upload_id,
                terra_status=done.terra_status,
                terra_upload_id=done.terra_upload_id,
                terra_response=done.terra_response,
            )
            await (await self._outside.facts()).publish_fact(fact, request_id=event.instance_id)

        result = await step.do("submit", submit, retries=_LAB_RETRY, timeout="1 minute")
        await step.do("tell", tell, retries=_SOON)
        return dict(result)

    async def _submit(self, params: LabParams) -> LabResult:
        content = await (await self._outside.blobs()).read(params.storage_key)
        terra = await self._outside.terra()
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
            answer = f"expected an answer of Terra's within {_LAB_WITHIN_S:g} s, found none"
            status = "failed:network"
        return LabResult(
            at_ms=self._clock(),
            terra_status=status,
            terra_upload_id=upload_id,
            terra_response=answer,
        )


def _digest(connection: str) -> str:
    return md5(connection.encode(), usedforsecurity=False).hexdigest()


def _nameless(asked: Asked) -> Asked:
    """The same, but for Terra's ids of connections."""
    failed = tuple(
        Wanted(
            digest := _digest(each.connection), each.kind, each.why.replace(each.connection, digest)
        )
        for each in asked.failed
    )
    return msgspec.structs.replace(asked, failed=failed)


def bounded(asked: Asked) -> Asked:
    """Of requests that fail again and again, as many as a state has room for; others are given up.

    Shape:  they stay counted.
    """
    cut = len(asked.failed[_WAITING_MAX:])
    return msgspec.structs.replace(
        asked, failed=asked.failed[:_WAITING_MAX], given_up=asked.given_up + cut
    )


async def _summary(step: Step, done: _Round) -> dict[str, Any]:
    asked = done.asked
    for each in asked.failed:
        await _say(step.log.error, _GIVEN_UP, _plain(each))
    return {
        "connections": done.connections,
        "taken": asked.taken,
        "unknown_to_terra": asked.unknown,
        "failed": len(asked.failed) + asked.given_up,
    }


async def _say(log: _Log, message: str, data: dict[str, Any]) -> None:
    await log(message, data)


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain
