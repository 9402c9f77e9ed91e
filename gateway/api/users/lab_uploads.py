"""The route that uploads a lab report: store it, and send it to Terra by a workflow.

First the bytes are stored durably, then the system event that starts the workflow. So the user does
not have to upload the report again, whatever fails afterwards. A client without a response may
repeat the request: with the same `Idempotency-Key` it is the same upload. Without a key it is
another upload, even with the same bytes.
"""

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIFormat, OpenAPIType, Schema
from litestar.params import HeaderParameter
from litestar.types import Scope

from headwater.gateway.api.body_limits import BodyReader, Budget
from headwater.gateway.api.key_guards import user_of
from headwater.gateway.api.openapi import problem_responses, raw_body
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest, own_request_id
from headwater.gateway.api.users.bodies import Uploaded
from headwater.gateway.api.users.lab_reports import (
    BODY_BYTES_MAX,
    Report,
    UploadLimits,
    read_report,
    storage_key,
)
from headwater.gateway.api.users.ports import UserPorts, step_result
from headwater.gateway.builtin.instances import SUBMIT, InstanceNamed, LabResult
from headwater.processors.providers.envelope import event_id
from headwater.processors.providers.headwater import LAB
from headwater.schemas.providers.headwater import LabUploaded

_IdempotencyKey: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="A unique text that you choose for this upload. Sending the same file again "
        "with the same key, for example after a timeout, does not create another upload.",
    ),
]

#: Seconds that the request waits for Terra's response; the workflow gives up earlier.
_RESULT_WITHIN_S: Final = 40.0
#: Seconds for a file: 10 MiB in two minutes are 87 kB/s.
_READ_S: Final = 120.0
_READS_MAX: Final = 64
_HELD_BYTES_MAX: Final = 64 * 1024 * 1024
_SUBMITTED: Final = "submitted"
_PENDING: Final = "pending"
_NOTES: Final = {
    _SUBMITTED: "Run `headwater sync` in about 30 s to pull biomarkers.",
    _PENDING: "The report is stored, and will be sent to Terra as soon as Terra is available.",
}


_PROBLEMS: Final = (
    "expected_multipart",
    "missing_file_field",
    "invalid_body",
    "unsupported_file_type",
    "file_too_large",
    "terra_upload_failed",
    "terra_not_configured",
    "blobs_unavailable",
    "broker_unavailable",
    "not_yet_readable",
    "bad_request",
    "body_timeout",
    "overloaded",
    "jwks_unavailable",
    "invalid_parameter",
)


_FILE: Final = Schema(
    type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY, description="PDF, PNG or JPEG."
)
_FORM: Final = raw_body(
    "multipart/form-data",
    Schema(type=OpenAPIType.OBJECT, properties={"file": _FILE}, required=["file"]),
)


def upload_route(
    ports: UserPorts, peer_of: Callable[[Scope], str], limits: UploadLimits
) -> HTTPRouteHandler:
    """Return the upload route."""
    # A separate budget: users are authenticated and may be on slow phones, and must not delay
    # deliveries.
    budget = Budget(reads_max=_READS_MAX, held_bytes_max=_HELD_BYTES_MAX, read_s=_READ_S)
    uploads = BodyReader(max_bytes=BODY_BYTES_MAX, budget=budget)

    @post(
        "/labs/upload",
        audit="users.upload_lab_report",
        status_code=200,
        operation_class=_FORM,
        summary="Upload a lab report",
        description="A PDF, PNG or JPEG of at most 10 MiB, in the field `file`. It is stored "
        "before Terra reads it; the results arrive about 30 s later as biomarkers. With status "
        "502 it is stored as well; upload it again to make Terra retry.",
        responses={
            **problem_responses(*_PROBLEMS),
            200: ResponseSpec(Uploaded, generate_examples=False, description="It is stored."),
        },
    )
    async def upload(request: AnyRequest, idempotency_key: _IdempotencyKey = None) -> Uploaded:
        ports.terra.require()
        user_id = user_of(request.scope)
        limits.begin(user_id)
        hold = uploads.hold(peer_of(request.scope))
        try:
            report = await read_report(request.headers, request.receive, uploads, hold)
            limits.add_bytes(user_id, len(report.content))
            upload_id = (
                ports.new_id()
                if idempotency_key is None
                else event_id(user_id, report.content_type, idempotency_key, report.content)
            )
            fact = await _store(ports, report, user_id, upload_id, own_request_id(request.scope))
        finally:
            hold.release()
        return await _answer(ports, fact)

    return upload


async def _store(
    ports: UserPorts, report: Report, user_id: str, upload_id: str, request_id: str
) -> LabUploaded:
    """Store the bytes of a report, then publish the system event. Repeating this is idempotent.

    Raises:
        BlobsUnavailable: The bytes cannot be stored.
        BrokerUnavailable: Kafka did not acknowledge the event.
        Overloaded: Too many records wait for Kafka.
    """
    key = storage_key(user_id, upload_id, report.extension)
    metadata = {"user_id": user_id, "original_name": report.name}
    await ports.blobs.write(key, report.content, report.content_type, **metadata)
    fact = LabUploaded(
        at_ms=ports.clock(),
        user_id=user_id,
        upload_id=upload_id,
        storage_key=key,
        original_name=report.name,
        content_type=report.content_type,
        size=len(report.content),
    )
    await ports.log.publish_fact(fact, request_id=request_id)
    return fact


async def _answer(ports: UserPorts, fact: LabUploaded) -> Uploaded:
    """Wait for Terra's response to a report, and return it.

    Raises:
        Problem: Terra refused the report.
    """
    instance = InstanceNamed(LAB, fact.upload_id)
    result = await step_result(ports.instances, instance, SUBMIT, LabResult, _RESULT_WITHIN_S)
    terra_status = _PENDING if result is None else result.terra_status
    if terra_status not in _NOTES:
        raise Problem(
            "terra_upload_failed",
            f"The report is stored, but Terra did not accept it: {terra_status}.",
            upload_id=fact.upload_id,
            storage_key=fact.storage_key,
            terra_status=terra_status,
        )
    return Uploaded(
        ok=True,
        upload_id=fact.upload_id,
        storage_key=fact.storage_key,
        terra_status=terra_status,
        note=_NOTES[terra_status],
    )
