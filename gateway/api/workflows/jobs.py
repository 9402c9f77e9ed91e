"""Jobs for external workers: candidates are read from Postgres, the owners of instances decide.

Postgres may lag, and other gateways read the same rows. So an activation sends a command for every
candidate, and the owner of its instance accepts or refuses it. Requested jobs are excluded from
later queries for a while, because Postgres returns them until it has applied the outcome.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from msgspec import Raw, structs

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.command_outcomes import refusal, send_all
from headwater.gateway.api.workflows.job_requests import Activation, JobKey
from headwater.gateway.api.workflows.positions import Freshness
from headwater.projections.workflows.queries import OpenJob, Workflows
from headwater.schemas.answers import Job
from headwater.schemas.failures import is_refused
from headwater.schemas.history import ActivateJob, Attempt, JobCommand, ReplySent
from headwater.streams.workflows.client import Addressed, OutcomeUnknown, WorkflowClient

_AnyFuture: TypeAlias = "asyncio.Future[Any]"

_FIRST: Final = asyncio.FIRST_COMPLETED
#: Activations that wait at a time. They query Postgres when the history advances, at most once
#: per pause.
WAITING_MAX: Final = 200
#: Seconds between two queries of one activation, at first and at most.
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.5
#: Seconds after which an activation queries again although the history has not advanced: a job that
#: was excluded may still be available.
_QUERY_AGAIN_S: Final = 5.0
#: Seconds for which a requested job is excluded. Postgres usually lags by some ms. If it lags by
#: more, the owners refuse a job that is requested again.
_EXCLUDED_S: Final = 5.0
#: Most excluded jobs: a few seconds' work, and few enough for a parameter of a query.
_EXCLUDED_MAX: Final = 2_000


class JobService:
    """Activates and ends jobs of all workflows, for one gateway."""

    def __init__(
        self,
        commands: WorkflowClient,
        workflows: Workflows,
        freshness: Freshness,
        *,
        new_id: Callable[[], str],
    ) -> None:
        self._commands = commands
        self._workflows = workflows
        self._freshness = freshness
        self._new_id = new_id
        self._closing = asyncio.Event()
        #: Keys of requested jobs, with the times until which they are excluded, in that order.
        self._excluded: dict[str, float] = {}
        self.waiting = 0

    def close(self) -> None:
        """End all waits."""
        self._closing.set()

    async def activate(
        self, request: Activation, disconnected: Callable[[], Awaitable[object]]
    ) -> list[Job]:
        """Activate jobs for a worker; wait for some if there are none.

        Args:
            request: The worker's request.
            disconnected: Returns when the worker has disconnected, which ends the wait.

        Raises:
            Problem: Too many activations wait.
            StoreUnavailable: Postgres could not be read.
            OutcomeUnknown: The outcome of no command is known.
        """
        if self.waiting >= WAITING_MAX:
            raise Problem(
                "overloaded",
                f"expected at most {WAITING_MAX} activations at a time, found as many",
            )
        self.waiting += 1
        ends = [asyncio.ensure_future(disconnected()), asyncio.ensure_future(self._closing.wait())]
        try:
            return await self._activate(request, ends)
        finally:
            self.waiting -= 1
            await _cancel(ends)

    async def _activate(self, request: Activation, ends: Sequence[_AnyFuture]) -> list[Job]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + request.wait_ms / 1000
        pause_s = _PAUSE_S
        while True:
            seen = self._freshness.applied() or await self._freshness.refresh()
            jobs = await self._activate_available(request)
            left_s = until_s - loop.time()
            if jobs or left_s <= 0:
                return jobs
            await asyncio.wait(ends, timeout=min(pause_s, left_s), return_when=_FIRST)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)
            advanced = asyncio.ensure_future(
                self._freshness.wait_until_advanced(
                    seen, min(until_s - loop.time(), _QUERY_AGAIN_S)
                )
            )
            try:
                await asyncio.wait((advanced, *ends), return_when=_FIRST)
                if any(future.done() for future in ends):
                    return []
                advanced.result()
            finally:
                await _cancel([advanced])

    async def _activate_available(self, request: Activation) -> list[Job]:
        """Activate the jobs that are available now."""
        now_s = asyncio.get_running_loop().time()
        self._drop_exclusions(now_s)
        rows = await self._workflows.open_jobs(
            request.types, list(self._excluded), limit=request.max
        )
        # No await from here to the update: two activations never request the same job.
        free = {_key_of(row): row for row in rows if _key_of(row).text not in self._excluded}
        self._excluded.update({key.text: now_s + _EXCLUDED_S for key in free})
        replies = await self._accepted_replies(
            {
                # Identifies the outcome in case the outcomes of other commands are unknown.
                self._new_id(): Addressed(
                    key.workflow,
                    key.instance_id,
                    ActivateJob(key.attempt, request.worker, request.lease_ms),
                )
                for key in free
            }
        )
        return [
            _job(key, row, lease_until(reply))
            for (key, row), reply in zip(free.items(), replies, strict=True)
            if reply is not None
        ]

    def _drop_exclusions(self, now_s: float) -> None:
        """Drop expired exclusions, and the oldest ones beyond the limit."""
        for key, until_s in list(self._excluded.items()):
            if until_s > now_s and len(self._excluded) <= _EXCLUDED_MAX:
                return
            del self._excluded[key]

    async def _accepted_replies(self, commands: Mapping[str, Addressed]) -> list[ReplySent | None]:
        """Send commands by id; return the replies of accepted ones, None for the others.

        Raises:
            OutcomeUnknown: No command is known to be accepted.
        """
        if not commands:
            return []
        sent = [
            structs.replace(command, command_id=command_id)
            for command_id, command in commands.items()
        ]
        try:
            return [_accepted(reply) for reply in await send_all(self._commands, sent)]
        except OutcomeUnknown as error:
            known = {command_id: _accepted(reply) for command_id, reply in error.known.items()}
            if not any(known.values()):
                raise
            return [known.get(command_id) for command_id in commands]

    async def send_job_command(self, key: JobKey, command: JobCommand) -> ReplySent:
        """Complete, fail or extend a job.

        Raises:
            Problem: The owner refused the command.
            OutcomeUnknown: No outcome arrived in time.
        """
        addressed = Addressed(key.workflow, key.instance_id, command)
        (reply,) = await send_all(self._commands, [addressed])
        if is_refused(reply.code):
            raise refusal(reply)
        return reply


def _accepted(reply: ReplySent) -> ReplySent | None:
    return None if is_refused(reply.code) else reply


def lease_until(reply: ReplySent) -> datetime:
    """Return when the lease of an activated or extended job expires."""
    assert reply.lease_until_ms is not None  # noqa: S101 (set for both commands)
    return datetime.fromtimestamp(reply.lease_until_ms / 1000, UTC)


def _key_of(row: OpenJob) -> JobKey:
    attempt = Attempt(row.run_number, int(row.token_id), row.attempt)
    return JobKey(row.workflow_name, row.instance_id, attempt)


def _job(key: JobKey, row: OpenJob, until: datetime) -> Job:
    return Job(
        key=key.text,
        type=row.type,
        workflow=row.workflow_name,
        instance_id=row.instance_id,
        run_number=row.run_number,
        token_id=row.token_id,
        node_ref=row.node_ref,
        attempt=row.attempt,
        input=Raw((row.input or "null").encode()),
        lease_until=until,
        idempotency_token=row.idempotency_token,
    )


async def _cancel(futures: Sequence[_AnyFuture]) -> None:
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
