"""Jobs of graphs: which there are, and how a worker outside takes and ends them."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from headwater.gateway.client.answers import value_of
from headwater.gateway.client.requests import Answered, Query, Request, members
from headwater.gateway.client.retries import Repeat
from headwater.processors.runs.durations import Duration, milliseconds_of
from headwater.processors.runs.limits import VALUE_BYTES_TOP
from headwater.schemas.answers import Job, JobExtended, JobList, JobPage
from headwater.streams.authoring.values import encode

if TYPE_CHECKING:
    from headwater.gateway.client.session import Session

#: How long a worker has a job unless it says otherwise.
LEASE: Final = "1 minute"


class JobHandle:
    """A job, by the key of one attempt. To have a handle does not mean that the job is yours."""

    def __init__(self, session: "Session", key: str, instance: str | None = None) -> None:
        """Makes a handle; with its instance, as workflow/id, reads of that wait for what is said.

        Errors: ValueError.
        """
        if not key:
            raise ValueError("expected the key of a job, as it was activated with, found nothing")
        self._session = session
        self._instance = instance
        self.key = key

    @override
    def __repr__(self) -> str:
        return f"<job {self.key}>"

    async def complete(self, output: Any = None) -> None:  # noqa: ANN401 (any JSON)
        """Ends the job with its result.

        What is said twice counts once, so it is repeated; here and below.

        Errors: every ClientError; JobLeaseLostError, JobAlreadyEndedError, JobCancelledError.
        """
        await self._say(
            "complete", members(output=encode(output, "the output of a job", VALUE_BYTES_TOP))
        )

    async def fail(
        self,
        message: str,
        *,
        name: str = "Error",
        retryable: bool = True,
        retry_after: Duration | None = None,
    ) -> None:
        """Ends this attempt; the job is tried again as its node says, if it may be.

        Errors: as `complete`.
        """
        after = None if retry_after is None else milliseconds_of("retry_after", retry_after)
        body = members(
            error=members(name=json.dumps(name), message=json.dumps(message)),
            retryable=json.dumps(retryable),
            retryAfterMs=None if after is None else str(after),
        )
        await self._say("fail", body)

    async def extend(self, lease: Duration = LEASE) -> datetime:
        """Keeps the job for longer, counted from now; gives until when it is yours.

        Errors: as `complete`.
        """
        lease_ms = milliseconds_of("lease", lease)
        answer = await self._say("extend", members(leaseMs=str(lease_ms)))
        return value_of(answer, JobExtended).lease_until

    async def _say(self, what: str, body: str) -> Answered:
        where = self._session.beside("jobs", self.key, what)
        repeat = Repeat.SAFE
        return await self._session.write(where, body, repeat=repeat, instance=self._instance)


class TakenJob(JobHandle):
    """A job that was activated: what it is, and what it was given.

    Shape:  attributes as the answer over HTTP has them, in snake case; `details` is that answer.
    """

    def __init__(self, session: "Session", job: Job) -> None:
        super().__init__(session, job.key, f"{job.workflow}/{job.instance_id}")
        self.details = job
        self.type = job.type
        self.workflow_name = job.workflow
        self.instance_id = job.instance_id
        self.run_number = job.run_number
        self.token_id = job.token_id
        self.node_ref = job.node_ref
        self.attempt = job.attempt
        self.input = job.input
        #: As of its activation; `extend` gives a later one.
        self.lease_until = job.lease_until
        self.idempotency_token = job.idempotency_token


async def activate(
    session: "Session",
    types: str | Iterable[str],
    *,
    worker: str,
    most: int,
    lease: Duration,
    wait: Duration,
) -> list[TakenJob]:
    """Takes jobs for a worker.

    Jobs of an answer that was lost come back when their leases end, whether this is repeated or
    not: so it is repeated.
    """
    wait_ms = milliseconds_of("wait", wait)
    wanted = {
        "types": [types] if isinstance(types, str) else list(types),
        "worker": worker,
        "max": most,
        "leaseMs": milliseconds_of("lease", lease),
        "waitMs": wait_ms,
    }
    request = Request(
        method="POST",
        path=session.beside("jobs", "activate"),
        repeat=Repeat.SAFE,
        body=json.dumps(wanted).encode(),
        waits_s=wait_ms / 1000,
    )
    answer = await session.transport.send(request)
    return [TakenJob(session, job) for job in value_of(answer, JobList).jobs]


async def open_jobs(
    session: "Session", task: str | None, *, page_size: int, cursor: str | None
) -> JobPage:
    """A page of the jobs that have not ended."""
    query: Query = {"type": task, "pageSize": page_size, "cursor": cursor}
    return await session.read(session.beside("jobs"), JobPage, query)
