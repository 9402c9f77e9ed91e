"""Routes of jobs: external workers activate, end and extend them; operators list them."""

from dataclasses import replace
from typing import Annotated, Final, TypeAlias

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import JSONBody, PathParameter, QueryParameter

from headwater.gateway.api.audit import attempt, note
from headwater.gateway.api.json_bodies import BodySize
from headwater.gateway.api.openapi import OptionalBody
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows import examples
from headwater.gateway.api.workflows.bodies import text
from headwater.gateway.api.workflows.job_requests import (
    KEY_MAX,
    Activation,
    Completion,
    Extension,
    JobFailure,
    JobKey,
    read_key,
)
from headwater.gateway.api.workflows.jobs import JobService, lease_until
from headwater.gateway.api.workflows.openapi import job_spec, read_spec
from headwater.gateway.api.workflows.parameters import PAGE_DEFAULT, Cursor, PageSize, Position
from headwater.gateway.api.workflows.positions import furthest
from headwater.gateway.api.workflows.query_service import QueryService, response_of
from headwater.gateway.api.workflows.request_guard import RequestGuard
from headwater.gateway.settings.patterns import NAME
from headwater.processors.runs.limits import WORKFLOW_NAME_MAX
from headwater.schemas import answers
from headwater.schemas.failures import (
    JOB_ALREADY_ENDED,
    JOB_CANCELLED,
    JOB_LEASE_LOST,
    JOB_NOT_FOUND,
    JOB_OUTPUT_INVALID,
)
from headwater.schemas.history import CompleteJob, ExtendJob, FailJob, Failure, ReplySent

#: Problems of a job with a lease that its worker may have lost.
_LOST_JOB_PROBLEMS: Final = (
    *(JOB_NOT_FOUND, "INSTANCE_NOT_FOUND", JOB_LEASE_LOST, JOB_ALREADY_ENDED, JOB_CANCELLED),
)
_KeyInPath: TypeAlias = Annotated[
    str,
    PathParameter(
        description="The key that the activation returned.",
        schema_extra={"min_length": 1, "max_length": KEY_MAX},
        examples=[Example(value=examples.JOB["key"])],
    ),
]
_Type: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="type",
        min_length=1,
        max_length=WORKFLOW_NAME_MAX,
        pattern=NAME,
        description="Only jobs of this task.",
    ),
]


def job_routes(
    request_guard: RequestGuard, query_service: QueryService, jobs: JobService
) -> list[HTTPRouteHandler]:
    """Return the routes of jobs."""
    return [
        _listing(query_service),
        _activate(request_guard, jobs),
        *_end_routes(request_guard, jobs),
        _extend(request_guard, jobs),
    ]


def _listing(query_service: QueryService) -> HTTPRouteHandler:
    @get(
        "/",
        operation_id="listJobs",
        summary="List the jobs that have not ended",
        description="Jobs that wait for a worker, that a worker has, and that will be retried; "
        "the oldest first. Their inputs are in the histories of their instances.",
        **read_spec(answers.JobPage, examples.OPEN_JOBS, "invalid_cursor"),
    )
    async def list_jobs(
        position: Position,
        task: _Type = None,
        page_size: PageSize = PAGE_DEFAULT,
        cursor: Cursor = None,
    ) -> Response[bytes]:
        return await query_service.list_jobs(
            position, task=task, page_size=page_size, cursor=cursor
        )

    return list_jobs


def _activate(request_guard: RequestGuard, jobs: JobService) -> HTTPRouteHandler:
    @post(
        "/activate",
        operation_id="activateJobs",
        summary="Activate jobs",
        description="Jobs of external nodes, by the names of their tasks, the longest waiting "
        "first. The worker has a job until its lease expires. If there are none, the request "
        "waits for up to `waitMs`, and then returns none.",
        **job_spec(answers.JobList, examples.JOBS, "store_unavailable"),
    )
    async def activate_jobs(request: AnyRequest, data: JSONBody[Activation]) -> Response[bytes]:
        context = request_guard.context_of(request, request.route_handler)
        await request_guard.authorize(
            context, lambda: {"types": [*data.types], "worker": data.worker}
        )
        activated = await jobs.activate(data, lambda: _disconnected(request))
        return response_of(answers.JobList(jobs=activated), {})

    return activate_jobs


async def _disconnected(request: AnyRequest) -> None:
    """Return when the client has disconnected; the body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _authorize_key(request_guard: RequestGuard, request: AnyRequest, key: str) -> JobKey:
    """Parse a key, and authorize the caller for its instance."""
    job = read_key(key)
    note(request, run_id=job.instance_id, workflow=job.workflow)
    context = request_guard.context_of(request, request.route_handler)
    context = replace(context, workflow_name=job.workflow, instance_id=job.instance_id)
    await request_guard.authorize(context)
    return job


def _job_ended(reply: ReplySent) -> Response[bytes]:
    return response_of(answers.JobEnded(ok=True), furthest([(reply.partition, reply.position)]))


def _end_routes(request_guard: RequestGuard, jobs: JobService) -> list[HTTPRouteHandler]:
    @post(
        "/{key:str}/complete",
        audit="jobs.complete",
        audits_attempt=True,
        body=BodySize.VALUE,
        operation_id="completeJob",
        operation_class=OptionalBody,
        summary="End a job with its result",
        description="A repeated request gets the same response. A refused one changes nothing.",
        **job_spec(answers.JobEnded, examples.JOB_ENDED, JOB_OUTPUT_INVALID, *_LOST_JOB_PROBLEMS),
    )
    async def complete_job(
        request: AnyRequest, key: _KeyInPath, data: JSONBody[Completion]
    ) -> Response[bytes]:
        job = await _authorize_key(request_guard, request, key)
        await attempt(request)
        return _job_ended(
            await jobs.send_job_command(job, CompleteJob(job.attempt, text(data.output)))
        )

    @post(
        "/{key:str}/fail",
        audit="jobs.fail",
        audits_attempt=True,
        body=BodySize.FAILURE,
        operation_id="failJob",
        summary="End an attempt with an error",
        description="The attempt is retried by the retry policy of its node, or the run fails. A "
        "repeated request gets the same response.",
        **job_spec(answers.JobEnded, examples.JOB_ENDED, *_LOST_JOB_PROBLEMS),
    )
    async def fail_job(
        request: AnyRequest, key: _KeyInPath, data: JSONBody[JobFailure]
    ) -> Response[bytes]:
        job = await _authorize_key(request_guard, request, key)
        await attempt(request)
        failure = Failure(data.error.name, data.error.message)
        command = FailJob(job.attempt, failure, data.retryable, data.retry_after_ms)
        return _job_ended(await jobs.send_job_command(job, command))

    return [complete_job, fail_job]


def _extend(request_guard: RequestGuard, jobs: JobService) -> HTTPRouteHandler:
    @post(
        "/{key:str}/extend",
        operation_id="extendJob",
        operation_class=OptionalBody,
        summary="Extend the lease of a job",
        description="The new lease begins now. An extension never shortens a lease, nor extends it "
        "beyond the `timeoutMs` of the node.",
        **job_spec(answers.JobExtended, examples.JOB_EXTENDED, *_LOST_JOB_PROBLEMS),
    )
    async def extend_job(
        request: AnyRequest, key: _KeyInPath, data: JSONBody[Extension]
    ) -> Response[bytes]:
        job = await _authorize_key(request_guard, request, key)
        reply = await jobs.send_job_command(job, ExtendJob(job.attempt, data.lease_ms))
        body = answers.JobExtended(lease_until=lease_until(reply))
        return response_of(body, furthest([(reply.partition, reply.position)]))

    return extend_job
