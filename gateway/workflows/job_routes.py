"""The routes of jobs: workers outside take, end and keep them; operators see which there are."""

from dataclasses import replace
from typing import Annotated, Final, TypeAlias

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import JSONBody, PathParameter, QueryParameter

from headwater.gateway.http.auditing import note
from headwater.gateway.http.limited_bodies import BodySize
from headwater.gateway.http.openapi import OptionalBody
from headwater.gateway.http.request_scope import AnyRequest
from headwater.gateway.patterns import NAME
from headwater.gateway.workflows import examples
from headwater.gateway.workflows.bodies import text
from headwater.gateway.workflows.entrance import Entrance
from headwater.gateway.workflows.job_bodies import Activation, Completion, Extension, JobFailure
from headwater.gateway.workflows.job_keys import KEY_MAX, JobKey, read_key
from headwater.gateway.workflows.jobs import Jobs, lease_until
from headwater.gateway.workflows.openapi import reads, works
from headwater.gateway.workflows.parameters import PAGE_DEFAULT, Cursor, PageSize, Position
from headwater.gateway.workflows.positions import furthest
from headwater.gateway.workflows.reading import Reading, answer
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

#: What is wrong with a job that a worker believes to have.
_NOT_THEIRS: Final = (
    *(JOB_NOT_FOUND, "INSTANCE_NOT_FOUND", JOB_LEASE_LOST, JOB_ALREADY_ENDED, JOB_CANCELLED),
)
_KeyInPath: TypeAlias = Annotated[
    str,
    PathParameter(
        description="The key that the job was activated with.",
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


def job_routes(entrance: Entrance, reading: Reading, jobs: Jobs) -> list[HTTPRouteHandler]:
    """The routes of jobs."""
    return [
        _listing(reading),
        _activate(entrance, jobs),
        *_ends(entrance, jobs),
        _extend(entrance, jobs),
    ]


def _listing(reading: Reading) -> HTTPRouteHandler:
    @get(
        "/",
        operation_id="listJobs",
        summary="The jobs that have not ended",
        description="Those that wait for a worker, that one has, and that will be tried again; "
        "the oldest first. Their inputs are in the histories of their instances.",
        **reads(answers.JobPage, examples.OPEN_JOBS, "invalid_cursor"),
    )
    async def list_jobs(
        position: Position,
        task: _Type = None,
        page_size: PageSize = PAGE_DEFAULT,
        cursor: Cursor = None,
    ) -> Response[bytes]:
        return await reading.jobs(position, task=task, page_size=page_size, cursor=cursor)

    return list_jobs


def _activate(entrance: Entrance, jobs: Jobs) -> HTTPRouteHandler:
    @post(
        "/activate",
        operation_id="activateJobs",
        summary="Take jobs",
        description="Those of external nodes, by the names of their tasks, the longest waiting "
        "first. Each is the worker's until its lease ends. While there are none the answer waits, "
        "for as long as `waitMs` says, and then has none.",
        **works(answers.JobList, examples.JOBS, "store_unavailable"),
    )
    async def activate_jobs(request: AnyRequest, data: JSONBody[Activation]) -> Response[bytes]:
        context = entrance.context_of(request, request.route_handler)
        await entrance.allow(context, lambda: {"types": [*data.types], "worker": data.worker})
        taken = await jobs.activate(data, lambda: _gone(request))
        return answer(answers.JobList(jobs=taken), {})

    return activate_jobs


async def _gone(request: AnyRequest) -> None:
    """Returns when whoever asks has gone; its body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _allowed(entrance: Entrance, request: AnyRequest, key: str) -> JobKey:
    """Reads a key, and asks whether the caller may work for its instance."""
    found = read_key(key)
    note(request, run_id=found.instance_id, workflow=found.workflow)
    context = entrance.context_of(request, request.route_handler)
    whose = replace(context, workflow_name=found.workflow, instance_id=found.instance_id)
    await entrance.allow(whose)
    return found


def _told(reply: ReplySent) -> Response[bytes]:
    return answer(answers.JobEnded(ok=True), furthest([(reply.partition, reply.position)]))


def _ends(entrance: Entrance, jobs: Jobs) -> list[HTTPRouteHandler]:
    @post(
        "/{key:str}/complete",
        audit="jobs.complete",
        body=BodySize.VALUE,
        operation_id="completeJob",
        operation_class=OptionalBody,
        summary="End a job with its result",
        description="Said again, it is answered as before. What is refused has changed nothing.",
        **works(answers.JobEnded, examples.JOB_ENDED, JOB_OUTPUT_INVALID, *_NOT_THEIRS),
    )
    async def complete_job(
        request: AnyRequest, key: _KeyInPath, data: JSONBody[Completion]
    ) -> Response[bytes]:
        job = await _allowed(entrance, request, key)
        return _told(await jobs.end(job, CompleteJob(job.attempt, text(data.output))))

    @post(
        "/{key:str}/fail",
        audit="jobs.fail",
        body=BodySize.FAILURE,
        operation_id="failJob",
        summary="End an attempt with an error",
        description="It is tried again as its node says, or fails its run. Said again, it is "
        "answered as before.",
        **works(answers.JobEnded, examples.JOB_ENDED, *_NOT_THEIRS),
    )
    async def fail_job(
        request: AnyRequest, key: _KeyInPath, data: JSONBody[JobFailure]
    ) -> Response[bytes]:
        job = await _allowed(entrance, request, key)
        failure = Failure(data.error.name, data.error.message)
        command = FailJob(job.attempt, failure, data.retryable, data.retry_after_ms)
        return _told(await jobs.end(job, command))

    return [complete_job, fail_job]


def _extend(entrance: Entrance, jobs: Jobs) -> HTTPRouteHandler:
    @post(
        "/{key:str}/extend",
        operation_id="extendJob",
        operation_class=OptionalBody,
        summary="Keep a job for longer",
        description="The lease is counted from now. It never gets shorter by it, nor longer than "
        "the `timeoutMs` of the node allows.",
        **works(answers.JobExtended, examples.JOB_EXTENDED, *_NOT_THEIRS),
    )
    async def extend_job(
        request: AnyRequest, key: _KeyInPath, data: JSONBody[Extension]
    ) -> Response[bytes]:
        job = await _allowed(entrance, request, key)
        reply = await jobs.end(job, ExtendJob(job.attempt, data.lease_ms))
        found = answers.JobExtended(lease_until=lease_until(reply))
        return answer(found, furthest([(reply.partition, reply.position)]))

    return extend_job
