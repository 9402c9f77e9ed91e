"""Handles of jobs in tests, for what an external worker does, without HTTP."""

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from typing_extensions import override

from headwater.processors.graph.planning import TokenStatus
from headwater.processors.rows.patches import Values
from headwater.processors.runs.durations import Duration, milliseconds_of
from headwater.processors.runs.limits import VALUE_BYTES_TOP
from headwater.schemas.failures import is_refused, refused
from headwater.schemas.history import (
    ActivateJob,
    Attempt,
    Command,
    CompleteJob,
    ExtendJob,
    FailJob,
    Failure,
    ReplySent,
)
from headwater.streams.authoring.values import encode
from headwater.streams.harness.histories import value_of

#: Sends a command to an instance, by workflow and id, and returns its outcome.
Send = Callable[[str, str, Command], Awaitable[ReplySent]]


class TestJob:
    """A job of a graph, as an external worker sees it.

    Its attributes are those of the HTTP response, in snake case.
    """

    __test__ = False

    def __init__(self, token: Values, send: Send) -> None:
        self._send = send
        self._attempt = Attempt(token["run_number"], token["id"], token["attempts"])
        self.type = token["task"]
        self.workflow_name = token["workflow_name"]
        self.instance_id = token["instance_id"]
        self.run_number = token["run_number"]
        self.token_id = str(token["id"])
        self.node_ref = token["node_ref"]
        self.attempt = token["attempts"]
        self.input = value_of(token.get("input"))
        self.idempotency_token = token["idempotency_token"]
        #: As of its activation. `extend` returns the later time.
        self.lease_until = datetime.fromtimestamp(0, UTC)

    async def activate(self, worker: str, lease: Duration) -> bool:
        """Acquire the job, if no other worker has it."""
        lease_ms = milliseconds_of("lease", lease)
        reply = await self._reply(ActivateJob(self._attempt, worker, lease_ms))
        if is_refused(reply.code):
            return False
        self.lease_until = _lease_until(reply)
        return True

    async def complete(self, output: Any = None) -> None:  # noqa: ANN401
        """Complete the job with its result.

        Raises:
            JobLeaseLostError: The lease has expired. Also raised by `fail` and `extend`.
            JobAlreadyEndedError: The job has ended. Also raised by `fail` and `extend`.
            JobCancelledError: The job was cancelled. Also raised by `fail` and `extend`.
        """
        await self._do(
            CompleteJob(self._attempt, encode(output, "the output of a job", VALUE_BYTES_TOP))
        )

    async def fail(
        self,
        message: str,
        *,
        name: str = "Error",
        retryable: bool = True,
        retry_after: Duration | None = None,
    ) -> None:
        """Fail this attempt. The job is retried as its node defines, if `retryable`."""
        after = None if retry_after is None else milliseconds_of("retry_after", retry_after)
        await self._do(FailJob(self._attempt, Failure(name, message), retryable, after))

    async def extend(self, lease: Duration = "1 minute") -> datetime:
        """Extend the lease, counted from now. Return when it expires."""
        reply = await self._do(ExtendJob(self._attempt, milliseconds_of("lease", lease)))
        return _lease_until(reply)

    async def _reply(self, command: Command) -> ReplySent:
        return await self._send(self.workflow_name, self.instance_id, command)

    async def _do(self, command: Command) -> ReplySent:
        reply = await self._reply(command)
        if is_refused(reply.code):
            raise refused(reply.code, reply.message)
        return reply

    @override
    def __repr__(self) -> str:
        instance = f"{self.workflow_name}/{self.instance_id}"
        return f"<job {self.type} of {instance}, token {self.token_id}, attempt {self.attempt}>"


def _lease_until(reply: ReplySent) -> datetime:
    return datetime.fromtimestamp((reply.lease_until_ms or 0) / 1000, UTC)


async def activate_jobs(
    tokens: Iterable[Values],
    type: str,  # noqa: A002, published name
    send: Send,
    most: int,
    *,
    worker: str,
    lease: Duration,
) -> list[TestJob]:
    """Acquire up to `most` available jobs of some tokens."""
    acquired: list[TestJob] = []
    for token in tokens:
        is_open = token["status"] == TokenStatus.DISPATCHED and token.get("idempotency_token")
        if len(acquired) < most and is_open and token["task"] == type:
            job = TestJob(token, send)
            if await job.activate(worker, lease):
                acquired.append(job)
    return acquired
