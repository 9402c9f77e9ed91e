"""Jobs of graphs: what an external worker reports of them."""

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from headwater.gateway.client.answers import value_of
from headwater.gateway.client.requests import HttpAnswer, Repeat, json_object
from headwater.processors.runs.durations import Duration, milliseconds_of
from headwater.processors.runs.limits import VALUE_BYTES_TOP
from headwater.schemas.answers import Job, JobExtended
from headwater.streams.authoring.values import encode

if TYPE_CHECKING:
    from headwater.gateway.client.session import Session

#: Default lease of a job.
LEASE: Final = "1 minute"


class JobHandle:
    """Handle of a job, by the key of one attempt. Having it does not mean holding the lease."""

    def __init__(self, session: "Session", key: str, instance: str | None = None) -> None:
        """Make a handle.

        Args:
            session: Session with the server.
            key: Key of the job's attempt.
            instance: workflow/id of the job's instance; later reads of it wait for reports.

        Raises:
            ValueError: The key is empty.
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
        """Complete the job with its output.

        Reporting twice counts once, so the request is repeated if needed; so are `fail` and
        `extend`.

        Raises:
            JobLeaseLostError, JobAlreadyEndedError, JobCancelledError: The job is no longer the
                worker's.
            ClientError: The request failed.
        """
        await self._report(
            "complete", json_object(output=encode(output, "the output of a job", VALUE_BYTES_TOP))
        )

    async def fail(
        self,
        message: str,
        *,
        name: str = "Error",
        retryable: bool = True,
        retry_after: Duration | None = None,
    ) -> None:
        """End this attempt; the node's retry policy decides about another one.

        Raises:
            ClientError: As `complete`.
        """
        after = None if retry_after is None else milliseconds_of("retry_after", retry_after)
        body = json_object(
            error=json_object(name=json.dumps(name), message=json.dumps(message)),
            retryable=json.dumps(retryable),
            retryAfterMs=None if after is None else str(after),
        )
        await self._report("fail", body)

    async def extend(self, lease: Duration = LEASE) -> datetime:
        """Extend the lease, counted from now; return when it expires.

        Raises:
            ClientError: As `complete`.
        """
        lease_ms = milliseconds_of("lease", lease)
        answer = await self._report("extend", json_object(leaseMs=str(lease_ms)))
        return value_of(answer, JobExtended).lease_until

    async def _report(self, action: str, body: str) -> HttpAnswer:
        where = self._session.sibling_path("jobs", self.key, action)
        repeat = Repeat.SAFE
        return await self._session.write(where, body, repeat=repeat, instance=self._instance)


class TakenJob(JobHandle):
    """A job that was activated, with its input.

    Attributes have the names of the HTTP answer in snake case; `details` is the answer itself.
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
        #: As of the activation; `extend` returns a later one.
        self.lease_until = job.lease_until
        self.idempotency_token = job.idempotency_token
